"""Inputs that are read a block of rows at a time, as often as a fit needs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gorelm._extras import needs
from gorelm._typing import Array, Inputs

__all__ = ["RowBlocks"]

# Small enough to stay in a cache between making a block and using it, large enough for BLAS.
BLOCK_ROWS = 1024

Blocks: TypeAlias = Iterable[npt.ArrayLike]


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
        read: Callable[[], Blocks],
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

    def _checked(self, given: npt.ArrayLike, start: int) -> Array:
        # A copy: threads may still use these rows when the next ones are read.
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
    def from_array(cls, X: Inputs) -> RowBlocks:
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
    def from_blocks(cls, blocks: Blocks | Callable[[], Blocks]) -> RowBlocks:
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

            def read() -> Blocks:
                return again

        n_rows, n_features = 0, None
        for block in read():
            if np.ndim(block) != 2:
                raise ValueError(f"block {n_rows} on has {np.ndim(block)} dimensions, not 2")
            n_rows += np.shape(block)[0]
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
        with needs("Parquet files need pyarrow", "data"):
            import pyarrow.parquet as parquet
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
