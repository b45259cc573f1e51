"""Scaled inputs that are read again in every pass, a block at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Indices
from gorelm.backends import inputs
from gorelm.backends.inputs import ByBlocks, LastTaken, ScaledRows, Work, within_reach
from gorelm.stream import RowBlocks


class StreamedInputs(ByBlocks):
    """The rows of `RowBlocks`, scaled; every call is one pass over them.

    Parameters
    ----------
    X : RowBlocks
        Inputs as given.
    scaling : Scaling
        Of the inputs.
    """

    def __init__(self, X: RowBlocks, scaling: Scaling) -> None:
        self._X, self._scaling = X, scaling
        self._last = LastTaken()

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self._X.shape

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        return self._last.of(rows, self._taken)

    def _taken(self, rows: Indices | slice) -> Array:
        chosen: Indices = np.arange(len(self._X))[rows]
        taken = np.empty((len(chosen), self._X.shape[1]))

        def put(_: int, places: Indices | slice, x: Array) -> None:
            taken[places] = x

        self.each_block([chosen], put, 1, in_order=False)
        return taken

    def each_block(
        self, groups: Sequence[Indices], work: Work, n_threads: int, *, in_order: bool
    ) -> None:
        """Do the work on every block, in one pass; see `ByBlocks.each_block`."""

        def scaled(k: int, places: Indices, x: Array) -> None:
            work(k, places, within_reach(self._scaling, x.astype(np.float64, copy=False)))

        if n_threads <= 1:
            for k, places, x in self._pass(groups):
                scaled(k, places, x)
            return
        n_lanes = min(n_threads, len(groups)) if in_order else n_threads
        lanes = [ThreadPoolExecutor(1) for _ in range(n_lanes)]
        waiting: deque[Future[None]] = deque()
        try:
            for number, (k, places, x) in enumerate(self._pass(groups)):
                lane = lanes[(k if in_order else number) % n_lanes]
                waiting.append(lane.submit(scaled, k, places, x))
                if len(waiting) > 3 * n_lanes:
                    waiting.popleft().result()
            while waiting:
                waiting.popleft().result()
        finally:
            for lane in lanes:
                lane.shutdown(wait=True, cancel_futures=True)

    def _pass(self, groups: Sequence[Indices]) -> Iterator[tuple[int, Indices, Array]]:
        """Yield the rows of the groups in blocks of equal size: group, places in it, inputs."""
        size = inputs.BLOCK_ROWS
        orders = [np.argsort(group, kind="stable") for group in groups]
        ordered = [group[order] for group, order in zip(groups, orders, strict=True)]
        done = [0] * len(groups)  # rows of the group that were yielded
        seen = [0] * len(groups)  # rows of the group that were read
        waiting: list[list[Array]] = [[] for _ in groups]
        for where, x in self._X:
            for k, rows in enumerate(ordered):
                stop = seen[k] + int(np.searchsorted(rows[seen[k] :], where.stop))
                if stop == seen[k]:
                    continue
                waiting[k].append(x[rows[seen[k] : stop] - where.start])
                seen[k] = stop
                while seen[k] - done[k] >= size or (done[k] < seen[k] == len(rows)):
                    joined = np.concatenate(waiting[k])
                    n = min(size, len(joined))
                    yield k, orders[k][done[k] : done[k] + n], joined[:n]
                    done[k] += n
                    waiting[k] = [joined[n:]]


if TYPE_CHECKING:
    _implements: type[ScaledRows] = StreamedInputs
