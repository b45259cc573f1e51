"""Scaled inputs that are read a block at a time, in every pass anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._features.scaling import Scaling
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices
from gorelm.backends import inputs
from gorelm.backends.inputs import ScaledRows, add_rows, with_constant, within_reach
from gorelm.stream import RowBlocks

# Of a group's number, places in the group, and the inputs there as they were read.
Work = Callable[[int, Indices, Array], None]


class StreamedInputs:
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

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self._X.shape

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        chosen: Indices = np.arange(len(self._X))[rows]
        taken = np.empty((len(chosen), self._X.shape[1]))

        def put(_: int, places: Indices, x: Array) -> None:
            taken[places] = self._scaled(x)

        self._each([chosen], put, 1)
        return taken

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        totals = [RidgeSums.zero(hidden.n_outputs + 1, T.shape[1]) for _ in groups]

        def add(k: int, places: Indices, x: Array) -> None:
            rows = groups[k][places]
            add_rows(totals[k], hidden, self._scaled(x), omega[rows], T[rows])

        self._each(groups, add, n_threads)
        return totals

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        results = [np.empty((len(g), B.shape[1])) for g, B in zip(groups, coefs, strict=True)]

        def put(k: int, places: Indices, x: Array) -> None:
            results[k][places] = with_constant(hidden, self._scaled(x)) @ coefs[k]

        self._each(groups, put, n_threads, sums=False)
        return list(results)

    def _scaled(self, x: Array) -> Array:
        return within_reach(self._scaling, x.astype(np.float64, copy=False))

    def _each(
        self, groups: Sequence[Indices], work: Work, n_threads: int, *, sums: bool = True
    ) -> None:
        """Do the work on all rows of all groups, in one pass.

        Blocks of one group that are summed are the work of one thread, in their order: so no digit
        depends on the number of threads.
        """
        if n_threads <= 1:
            for k, places, x in self._pass(groups):
                work(k, places, x)
            return
        n_lanes = min(n_threads, len(groups)) if sums else n_threads
        lanes = [ThreadPoolExecutor(1) for _ in range(n_lanes)]
        waiting: deque[Future[None]] = deque()
        try:
            for number, (k, places, x) in enumerate(self._pass(groups)):
                lane = lanes[(k if sums else number) % n_lanes]
                waiting.append(lane.submit(work, k, places, x))
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
