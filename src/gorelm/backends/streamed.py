"""Rows whose hidden outputs do not fit in memory: every pass computes H again, block by block.

`HiddenBlocks` are the hidden outputs of `gorelm.stream.RowBlocks`: as many blocks as a memory
budget allows are kept, in float32; the others are computed in every pass, by several threads ahead
of the row pass. `StreamedRows` is the row pass over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, reduce
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
from joblib import cpu_count
from threadpoolctl import ThreadpoolController

from gorelm._features.layer import HiddenLayer, RowSource
from gorelm._features.scaling import Scaling, Summary, merge
from gorelm._solver.far_targets import refuse_huge
from gorelm._solver.linalg import GramSum
from gorelm._solver.rows import BlockRows, Result, cut, total
from gorelm._typing import Array, Indices, Mask
from gorelm.stream import BLOCK_ROWS, RowBlocks

PART_WORK = 8_000_000  # multiplications for each product with a part of a block


def summarise(
    X: RowBlocks, weights: Array, used: Mask, summary: Callable[[Array, Array], Summary]
) -> Summary:
    """Return the summary of the used rows; see `gorelm._features.scaling.fit_scaling`."""
    return reduce(merge, (summary(x[used[rows]], weights[rows][used[rows]]) for rows, x in X))


def source_of(X: RowBlocks, used: Mask, scaling: Scaling) -> RowSource:
    """Return where to fetch scaled rows among the used ones."""
    numbers = np.flatnonzero(used)

    def take(at: Indices) -> Array:
        wanted, parts, places = numbers[at], [], []
        for rows, x in X:
            here = np.flatnonzero((wanted >= rows.start) & (wanted < rows.stop))
            parts.append(scaling.apply(x[wanted[here] - rows.start])[0])
            places.append(here)
        return np.concatenate(parts)[np.argsort(np.concatenate(places))]

    return RowSource(len(numbers), take)


class HiddenBlocks:
    """What a hidden layer makes of scaled rows, block by block, times omega.

    `used` are the rows that count, `omega` the square roots of their weights, and `memory` the
    bytes that kept blocks may take.
    """

    def __init__(
        self,
        X: RowBlocks,
        used: Mask,
        scaling: Scaling,
        hidden: HiddenLayer,
        omega: Array | None,
        *,
        memory: float,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._X, self._used, self._scaling, self._hidden = X, used, scaling, hidden
        self._omega, self.dtype = omega, np.dtype(dtype)
        self.shape = (int(used.sum()), hidden.n_outputs)
        self._kept: dict[int, Array] = {}
        per_block = BLOCK_ROWS * hidden.n_outputs * self.dtype.itemsize
        self._n_kept = int(max(memory, 0) // max(per_block, 1))
        self.n_passes = 0
        self._n_workers = max(1, min(8, cpu_count()))
        self._workers = ThreadPoolExecutor(self._n_workers, "hidden")
        self._libraries = ThreadpoolController()
        # Fresh memory for every block would cost half of what making it costs.
        size = (min(BLOCK_ROWS, len(X)), hidden.n_outputs)
        self._memory: SimpleQueue[Array] = SimpleQueue()
        for _ in range(self._n_workers):
            self._memory.put(np.empty(size, self.dtype))

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Go through the used rows once: where they are among the used ones, and H there."""
        self.n_passes += 1
        for number, rows, x, where in self._places():
            kept = self._kept.get(number)
            yield where, self._make(number, rows, x, where) if kept is None else kept

    def each(self, work: Callable[[slice, Array], Result]) -> Iterator[Result]:
        """Yield, in their order, what `work` makes of every block, several being made at a time.

        Meanwhile BLAS has one thread for each of them: its own threads would wait for each other.
        """
        self.n_passes += 1
        waiting: deque[Future[Result]] = deque()
        with self._libraries.limit(limits=1, user_api="blas"):
            for place in self._places():
                waiting.append(self._workers.submit(partial(self._work, work, *place)))
                if len(waiting) > 2 * self._n_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _work(
        self,
        work: Callable[[slice, Array], Result],
        number: int,
        rows: slice,
        x: Array,
        where: slice,
    ) -> Result:
        if (kept := self._kept.get(number)) is not None:
            return work(where, kept)
        memory = self._memory.get()
        try:
            return work(where, self._make(number, rows, x, where, memory))
        finally:
            self._memory.put(memory)

    def _places(self) -> Iterator[tuple[int, slice, Array, slice]]:
        """Yield every block's number, its rows, inputs, and where they are among the used rows."""
        start = 0
        for number, (rows, x) in enumerate(self._X):
            stop = start + int(np.count_nonzero(self._used[rows]))
            yield number, rows, x, slice(start, stop)
            start = stop

    def _make(
        self, number: int, rows: slice, x: Array, where: slice, memory: Array | None = None
    ) -> Array:
        scaled, _ = self._scaling.apply(x[self._used[rows]])
        refuse_huge(scaled, "X", self.dtype, "set input_scaling or rescale X")
        keep = number < self._n_kept
        out = None if keep or memory is None else memory[: len(scaled)]
        H = self._hidden.transform(scaled.astype(self.dtype, copy=False), out=out)
        if self._omega is not None:
            H *= self._omega[where, None].astype(H.dtype)
        if keep:
            self._kept[number] = H
        return H


class StreamedRows(BlockRows):
    """H in blocks, times omega; T, E and U in memory."""

    def __init__(
        self, H: HiddenBlocks, T: Array, omega: Array | None = None, observed: Mask | None = None
    ) -> None:
        super().__init__(H.shape, H.dtype, T, omega, observed)
        self.H = H

    def moments(self) -> tuple[Array, Array]:
        """Sum up H'H and H'T in one pass."""
        total = GramSum(self.shape[1])
        HtT = np.zeros((self.shape[1], self.shape[2]))
        for rows, h in self.H:
            h = h.astype(np.float64, copy=False)
            total.add(h)
            HtT += h.T @ self.T[rows]
        return total.G, HtT

    def each_block(
        self, work: Callable[[slice, Array], Result], n_columns: int
    ) -> Iterator[Result]:
        """Go through the rows once; see `BlockRows.each_block`."""
        for where, h in self.H:
            for part in cut(len(h), h.shape[1], n_columns):
                yield work(_within(where, part), h[part])

    def totals(
        self, work: Callable[[slice, Array], Sequence[Array]], n_columns: int
    ) -> list[Array]:
        """Go through the rows once, blocks in threads, and add up the results of `work`."""

        def of_block(where: slice, h: Array) -> list[Array]:
            # Larger parts than in memory: threads wait for each other between operations.
            parts = cut(len(h), h.shape[1], n_columns, PART_WORK)
            return total(work(_within(where, part), h[part]) for part in parts)

        return total(self.H.each(of_block))


def _within(where: slice, part: slice) -> slice:
    return slice(where.start + part.start, where.start + part.stop)
