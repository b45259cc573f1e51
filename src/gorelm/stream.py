"""Rows that do not fit in memory: inputs read in blocks, H made from them anew in every pass.

`RowBlocks` are inputs that can be gone through again and again (an array, a memory map, a Parquet
file, blocks from anywhere). `HiddenBlocks` are their hidden outputs: as many blocks as a memory
budget allows are kept, in float32, and the others are made when their turn comes, one ahead of the
row pass, in another thread. `StreamedRows` is the row pass over them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import cpu_count
from scipy import sparse
from threadpoolctl import ThreadpoolController

from gorelm.blocks import cut, total
from gorelm.factor import GramSum
from gorelm.hidden import HiddenLayer
from gorelm.prox import Array
from gorelm.rows import Result, Rows
from gorelm.scaling import Scaling
from gorelm.targets import refuse_huge

__all__ = ["HiddenBlocks", "RowBlocks", "StreamedRows"]

# Small enough to stay in a cache between making a block and using it, large enough for BLAS.
BLOCK_ROWS = 1024
PART_WORK = 8_000_000  # multiplications for each product with a part of a block


class RowBlocks:
    """Rows of inputs, read a block at a time, as often as needed.

    Parameters
    ----------
    read : callable
        Returns an iterator over the rows, in blocks (arrays or frames) of any size; called once
        for every pass, and giving the same rows each time. A block may be overwritten by the next.
    n_rows, n_features : int
        How many there are.
    feature_names : list of str, optional
        Names of the inputs.

    Attributes
    ----------
    n_passes : int
        How often the rows have been gone through.

    See Also
    --------
    RowBlocks.from_array, RowBlocks.from_blocks, RowBlocks.from_parquet
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Any]],
        n_rows: int,
        n_features: int,
        feature_names: list[str] | None = None,
    ) -> None:
        self._read = read
        self.shape = (n_rows, n_features)
        self.feature_names = feature_names
        self.n_passes = 0
        self.nbytes = 0  # in memory

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Go through all rows once, in blocks of equal size: where they are, and the inputs."""
        self.n_passes += 1
        start, waiting, count = 0, list[Array](), 0
        for given in self._read():
            block = self._checked(given, start + count)
            for piece in (block[i : i + BLOCK_ROWS] for i in range(0, len(block), BLOCK_ROWS)):
                waiting.append(piece)
                count += len(piece)
                self._require_rows(start + count, at_most=True)
                if count >= BLOCK_ROWS:
                    joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                    yield slice(start, start + BLOCK_ROWS), joined[:BLOCK_ROWS]
                    start, waiting = start + BLOCK_ROWS, [joined[BLOCK_ROWS:]]
                    count -= BLOCK_ROWS
        if count:
            yield slice(start, start + count), np.concatenate(waiting)
        self._require_rows(start + count)

    def _require_rows(self, count: int, *, at_most: bool = False) -> None:
        if count > len(self) or not (at_most or count == len(self)):
            raise ValueError(
                f"the blocks have {count} rows{' or more' if at_most else ''}, not {len(self)}: "
                "they must be the same in every pass"
            )

    def _checked(self, given: Any, start: int) -> Array:
        # A copy: rows are waiting, or in the hands of a thread, when the next ones are read.
        block = np.array(given)
        if block.dtype != np.float32:
            block = block.astype(np.float64, copy=False)
        if block.ndim != 2 or block.shape[1] != self.shape[1]:
            raise ValueError(
                f"the block from row {start} on has shape {block.shape}; rows of "
                f"{self.shape[1]} inputs are expected"
            )
        if not np.isfinite(block).all():
            bad = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            raise ValueError(f"row {bad} of X has a NaN or an infinite value; impute or remove it")
        return block

    @classmethod
    def from_array(cls, X: Any) -> RowBlocks:
        """Return the blocks of an array or a memory map.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Read from the disk, if that is where it is, block by block.
        """
        if np.ndim(X) != 2:
            raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
        starts = range(0, X.shape[0], BLOCK_ROWS)
        dense = (lambda x: x.toarray()) if sparse.issparse(X) else np.asarray
        blocks = cls(lambda: (dense(X[i : i + BLOCK_ROWS]) for i in starts), *X.shape)
        blocks.nbytes = getattr(X, "nbytes", 0)
        return blocks

    @classmethod
    def from_blocks(cls, blocks: Iterable[Any] | Callable[[], Iterable[Any]]) -> RowBlocks:
        """Return blocks from anywhere.

        Parameters
        ----------
        blocks : callable or iterable
            A function that returns an iterator over blocks, or something that can be iterated
            over again and again (a list, not a generator). Gone through once here, to count rows.
        """
        if callable(blocks):
            read = blocks
        elif iter(blocks) is blocks:
            raise TypeError(
                "a generator can be gone through only once, and a fit reads the rows in every "
                "iteration: pass the function that makes it"
            )
        else:
            again = blocks

            def read() -> Iterable[Any]:
                return again

        n_rows, n_features = 0, None
        for block in read():
            if np.ndim(block) != 2:
                raise ValueError(f"block {n_rows} on has {np.ndim(block)} dimensions, not 2")
            n_rows += len(block)
            n_features = np.shape(block)[1] if n_features is None else n_features
        if n_features is None:
            raise ValueError("there is no block")
        return cls(read, n_rows, n_features)

    @classmethod
    def from_parquet(
        cls, path: str | os.PathLike[str], targets: list[str], features: list[str] | None = None
    ) -> tuple[RowBlocks, Array]:
        """Return the inputs of a Parquet file in blocks, and its targets whole.

        Parameters
        ----------
        path : path-like
            The file.
        targets : list of str
            Names of the target columns.
        features : list of str, optional
            Names of the input columns, all numeric; by default all that are no targets.

        Returns
        -------
        X : RowBlocks
        y : array of shape (n_samples, n_targets)
        """
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError('Parquet files need pyarrow: pip install "gorelm[data]"') from error
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        features = [n for n in names if n not in targets] if features is None else list(features)
        if unknown := [name for name in [*targets, *features] if name not in names]:
            raise ValueError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")

        def read() -> Iterator[Array]:
            for batch in parquet.ParquetFile(path).iter_batches(BLOCK_ROWS, columns=features):
                columns = [batch[name].to_numpy(zero_copy_only=False) for name in features]
                yield np.column_stack(columns)

        table = file.read(columns=list(targets))
        y = np.column_stack([table[name].to_numpy() for name in targets]).astype(float)
        return cls(read, file.metadata.num_rows, len(features), list(features)), y


def fit_input_scaling(
    kind: str | None, X: RowBlocks, weights: Array, used: npt.NDArray[np.bool_]
) -> Scaling:
    """Read an input scaling off the used rows, in one or two passes; see `Scaling.fit`."""
    if kind is None:
        return Scaling.fit(None, X, weights)
    low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for rows, x in X:
        x = x[used[rows]]
        if len(x):
            low, high = np.minimum(low, x.min(axis=0)), np.maximum(high, x.max(axis=0))
    ends = np.stack([low, high])
    if kind == "minmax":
        return Scaling.fit(kind, ends, np.ones(2))
    # Moments in the units of the ends, where nothing overflows and little cancels.
    unit = Scaling.fit("minmax", ends, np.ones(2))
    total, first, second = 0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for rows, x in X:
        x, w = unit.apply(x[used[rows]].astype(float))[0], weights[rows][used[rows]]
        total, first, second = total + w.sum(), first + w @ x, second + w @ (x * x)
    mean = first / total
    deviation = np.sqrt(np.maximum(second / total - mean**2, 0.0))
    return Scaling.of(unit.undo(mean), deviation * unit.scale)


class HiddenBlocks:
    """What a hidden layer makes of scaled rows, block by block, times omega.

    Parameters
    ----------
    X : RowBlocks
        Inputs.
    used : boolean array (N,)
        The rows that count.
    scaling : Scaling
        Of the inputs.
    hidden : HiddenLayer
        The layer.
    omega : array, optional
        Square roots of the weights of the used rows.
    memory : float
        Bytes that kept blocks may take.
    dtype : dtype, default=float32
        Precision of the outputs.
    """

    def __init__(
        self,
        X: RowBlocks,
        used: npt.NDArray[np.bool_],
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

    def each(self, work: Callable[[slice, Array], Any]) -> Iterator[Any]:
        """Yield, in their order, what `work` makes of every block, several being made at a time.

        Meanwhile BLAS has one thread for each of them: its own threads would wait for each other.
        """
        self.n_passes += 1
        waiting: deque[Future[Any]] = deque()
        with self._libraries.limit(limits=1, user_api="blas"):
            for place in self._places():
                waiting.append(self._workers.submit(self._work, work, *place))
                if len(waiting) > 2 * self._n_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _work(
        self,
        work: Callable[[slice, Array], Any],
        number: int,
        rows: slice,
        x: Array,
        where: slice,
    ) -> Any:
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


class StreamedRows(Rows):
    """H in blocks; T, E and U in memory.

    Parameters
    ----------
    H : HiddenBlocks
        Hidden outputs, times omega.
    T, omega, observed
        As for `Rows`.
    """

    H: Any
    in_memory = False

    def __init__(
        self,
        H: HiddenBlocks,
        T: Array,
        omega: Array | None = None,
        observed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        super().__init__(H, T, omega, observed, HtT=np.empty((0, 0)))  # type: ignore[arg-type]

    def moments(self) -> tuple[Array, Array]:
        """Sum up H'H and H'T in one pass."""
        total = GramSum(self.shape[1])
        HtT = np.zeros((self.shape[1], self.shape[2]))
        for rows, h in self.H:
            h = h.astype(np.float64, copy=False)
            total.add(h)
            HtT += h.T @ self.T[rows]
        return total.G, HtT

    def _pass(
        self, work: Callable[[slice, Array], Result], n_columns: int, H: Array | None = None
    ) -> Iterator[Result]:
        del H
        for where, h in self.H:
            for part in cut(len(h), h.shape[1], n_columns):
                yield work(_within(where, part), h[part])

    def _totals(
        self,
        work: Callable[[slice, Array], tuple[Array, ...]],
        n_columns: int,
        H: Array | None = None,
    ) -> list[Array]:
        del H

        def of_block(where: slice, h: Array) -> list[Array]:
            # Larger parts than in memory: threads wait for each other between operations.
            parts = cut(len(h), h.shape[1], n_columns, PART_WORK)
            return total(work(_within(where, part), h[part]) for part in parts)

        return total(self.H.each(of_block))


def _within(where: slice, part: slice) -> slice:
    return slice(where.start + part.start, where.start + part.stop)
