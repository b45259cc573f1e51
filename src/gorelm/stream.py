"""Inputs that are read a block of rows at a time, as often as a fit needs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gorelm._extras import needs
from gorelm._progress import meter
from gorelm._typing import Array, Inputs

if TYPE_CHECKING:
    import pandas

__all__ = ["ParquetTable", "RowBlocks"]

# Small enough to stay in a cache between making a block and using it, large enough for BLAS.
BLOCK_ROWS = 1024
FRAME_ROWS = 16_384  # of a table that is read by frames
PART_ROWS = 131_072  # of a table, that a worker of a cluster reads at a time, or somewhat more

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
        follower = meter()
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
                    if follower is not None:
                        follower.tick(start / len(self))
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


class TablePart(NamedTuple):
    """Rows of a table that lie together in one of its files."""

    file: Path
    row_groups: tuple[int, ...]
    n_rows: int

    def frame(self, columns: list[str]) -> pandas.DataFrame:
        """Return some columns of the rows."""
        import pyarrow.parquet as parquet

        table = parquet.ParquetFile(self.file).read_row_groups(self.row_groups, columns=columns)
        frame: pandas.DataFrame = table.to_pandas(ignore_metadata=True)
        return frame[columns]


class ParquetTable:
    """A Parquet file, or a folder of such files, as a table that need not fit in memory.

    :class:`gorelm.TableRegressor` takes it as X: it learns its encoding column by column, and reads
    the rows a block at a time.

    Parameters
    ----------
    path : path-like
        The file, or the folder: the files in it, whatever their depth, in the order of their names.
    columns : list of str, optional
        Names of the columns; by default all but those of a pandas index.
    on_workers : bool, default=False
        Whether the workers of the dask cluster to which this process is connected read the rows,
        encode them, and hold them for a fit. They must find the files under the same path.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    columns : list of str
        Names of the columns.

    Raises
    ------
    ValueError
        If the files disagree on the columns or their types, or lack a column.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: list[str] | None = None,
        *,
        on_workers: bool = False,
    ) -> None:
        with needs("Parquet files need pyarrow and pandas", "data"):
            import pyarrow.parquet as parquet
        self.path, self.on_workers = Path(path), on_workers
        self.files = _parquet_files(self.path)
        found = [parquet.ParquetFile(file) for file in self.files]
        self._schema = found[0].schema_arrow
        for file, one in zip(self.files, found, strict=True):
            if one.schema_arrow.remove_metadata() != self._schema.remove_metadata():
                raise ValueError(f"{file} and {self.files[0]} disagree on columns or their types")
        self._n_rows = int(sum(one.metadata.num_rows for one in found))
        index = (self._schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in self._schema.names if name not in index]
        self.columns = names if columns is None else list(columns)
        if unknown := [name for name in self.columns if name not in self._schema.names]:
            raise ValueError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._n_rows, len(self.columns)

    def __len__(self) -> int:
        return self._n_rows

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns."""
        return self.columns

    def select(self, columns: list[str]) -> ParquetTable:
        """Return the table of some columns."""
        return ParquetTable(self.path, columns, on_workers=self.on_workers)

    def parts(self) -> list[TablePart]:
        """Return the rows in parts for the workers of a cluster, in their order."""
        import pyarrow.parquet as parquet

        found: list[TablePart] = []
        for file in self.files:
            metadata = parquet.ParquetFile(file).metadata
            groups, n_rows = list[int](), 0
            for number in range(metadata.num_row_groups):
                groups.append(number)
                n_rows += metadata.row_group(number).num_rows
                if n_rows >= PART_ROWS or number == metadata.num_row_groups - 1:
                    found.append(TablePart(file.absolute(), tuple(groups), n_rows))
                    groups, n_rows = [], 0
        return [part for part in found if part.n_rows]

    def frames(self) -> Iterator[pandas.DataFrame]:
        """Go through the rows once, a frame at a time."""
        import pyarrow.parquet as parquet

        for file in self.files:
            for batch in parquet.ParquetFile(file).iter_batches(FRAME_ROWS, columns=self.columns):
                frame: pandas.DataFrame = batch.to_pandas(ignore_metadata=True)
                yield frame[self.columns]

    def frame(self, columns: list[str] | None = None) -> pandas.DataFrame:
        """Return some columns as a frame in memory.

        Parameters
        ----------
        columns : list of str, optional
            Their names; by default all. Equal words of a column share their memory.
        """
        import pyarrow
        import pyarrow.parquet as parquet

        names = self.columns if columns is None else columns
        tables = [parquet.read_table(file, columns=names) for file in self.files]
        whole: pandas.DataFrame = pyarrow.concat_tables(tables).to_pandas(
            ignore_metadata=True, deduplicate_objects=True, split_blocks=True, self_destruct=True
        )
        return whole[names]


def _parquet_files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        return [path]
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in (".parquet", ".pq"))
    if not files:
        raise ValueError(f"the folder {path} has no Parquet file")
    return files
