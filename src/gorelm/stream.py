"""Inputs that are read a block of rows at a time, as often as a fit needs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gorelm._extras import needs
from gorelm._progress import meter
from gorelm._typing import Array, Indices, Inputs

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
        Blocks for a :class:`gorelm.TableRegressor` may hold categories and missing values; for all
        other estimators they hold finite numbers.
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
        self._numbers: Indices | None = None  # of the rows in the whole table; None: 0, 1, ...

    def __len__(self) -> int:
        return self.shape[0]

    def given(self) -> Iterator[tuple[int, Any]]:
        """Go through the blocks once as they are read: number of the first row, and the block.

        Their columns and rows are counted; what is in them is not looked at.
        """
        self.n_passes += 1
        start = 0
        for read in self._read():
            block: Any = read if hasattr(read, "shape") else np.asarray(read)
            if self.feature_names is not None and hasattr(block, "columns"):
                _require_columns(block, self.feature_names, start)
            shape = np.shape(block)
            if len(shape) != 2 or shape[1] != self.shape[1]:
                raise ValueError(
                    f"the block from row {start} on has shape {shape}; rows of "
                    f"{self.shape[1]} inputs are expected"
                )
            self._require_rows(start + shape[0], at_most=True)
            yield start, block
            start += shape[0]
        self._require_rows(start)

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Go through all rows once, in blocks of equal size: where they are, and the inputs."""
        follower = meter()
        start, waiting, count = 0, list[Array](), 0
        for first, given in self.given():
            block = self._checked(given, first)
            for piece in (block[i : i + BLOCK_ROWS] for i in range(0, len(block), BLOCK_ROWS)):
                waiting.append(piece)
                count += len(piece)
                if count >= BLOCK_ROWS:
                    joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                    yield slice(start, start + BLOCK_ROWS), joined[:BLOCK_ROWS]
                    start, waiting = start + BLOCK_ROWS, [joined[BLOCK_ROWS:]]
                    count -= BLOCK_ROWS
                    if follower is not None:
                        follower.tick(start / len(self))
        if count:
            yield slice(start, start + count), np.concatenate(waiting)

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
        if not np.isfinite(block).all():
            bad = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            number = bad if self._numbers is None else self._numbers[bad]
            raise ValueError(
                f"row {number} of X has a NaN or an infinite value; impute or remove it"
            )
        return block

    def take(self, rows: Indices) -> RowBlocks:
        """Return some rows; a pass over them is one over all.

        Parameters
        ----------
        rows : array of int
            Their numbers, in increasing order.
        """
        require_increasing(rows, len(self))

        def read() -> Iterator[Any]:
            done = 0
            for start, block in self.given():
                stop = done + int(np.searchsorted(rows[done:], start + len(block)))
                if stop > done:
                    places = rows[done:stop] - start
                    yield block.iloc[places] if hasattr(block, "iloc") else block[places]
                done = stop

        some = RowBlocks(read, len(rows), self.shape[1], self.feature_names)
        some._numbers = rows if self._numbers is None else self._numbers[rows]
        return some

    def whole(self) -> Array:
        """Return all rows as one array."""
        parts = [x for _, x in self]
        return np.concatenate(parts) if parts else np.empty(self.shape)

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
            Frames must have the same columns, whose names are those of the inputs.
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

        n_rows, n_features, names = 0, None, None
        for block in read():
            if np.ndim(block) != 2:
                raise ValueError(f"block {n_rows} on has {np.ndim(block)} dimensions, not 2")
            if n_features is None:
                n_features = np.shape(block)[1]
                names = list(block.columns) if hasattr(block, "columns") else None
            elif names is not None and hasattr(block, "columns"):
                _require_columns(block, names, n_rows)
            n_rows += np.shape(block)[0]
        if n_features is None:
            raise ValueError("there is no block")
        named = names is not None and all(isinstance(name, str) for name in names)
        return cls(read, n_rows, n_features, names if named else None)

    @classmethod
    def from_parquet(
        cls, path: str | os.PathLike[str], targets: list[str], features: list[str] | None = None
    ) -> tuple[RowBlocks, Array]:
        """Return the inputs of Parquet files in blocks, and their targets whole.

        Parameters
        ----------
        path : path-like
            The file, or the folder: the files in it, whatever their depth, in the order of their
            names.
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
            import pyarrow
            import pyarrow.parquet as parquet
        files = _parquet_files(Path(path))
        schema, n_rows = _described(files)
        names = schema.names
        features = [n for n in names if n not in targets] if features is None else list(features)
        if unknown := [name for name in [*targets, *features] if name not in names]:
            raise ValueError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")

        def read() -> Iterator[Array]:
            for file in files:
                for batch in parquet.ParquetFile(file).iter_batches(BLOCK_ROWS, columns=features):
                    columns = [batch[name].to_numpy(zero_copy_only=False) for name in features]
                    yield np.column_stack(columns)

        table = pyarrow.concat_tables(
            [parquet.ParquetFile(file).read(columns=list(targets)) for file in files]
        )
        y = np.column_stack([table[name].to_numpy() for name in targets]).astype(float)
        return cls(read, n_rows, len(features), list(features)), y


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
            import pyarrow.parquet  # noqa: F401
        self.path, self.on_workers = Path(path), on_workers
        self.files = _parquet_files(self.path)
        self._schema, self._n_rows = _described(self.files)
        self._taken: Indices | None = None  # rows that count; None: all
        index = (self._schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in self._schema.names if name not in index]
        self.columns = names if columns is None else list(columns)
        if unknown := [name for name in self.columns if name not in self._schema.names]:
            raise ValueError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.columns)

    def __len__(self) -> int:
        return self._n_rows if self._taken is None else len(self._taken)

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns."""
        return self.columns

    def select(self, columns: list[str]) -> ParquetTable:
        """Return the table of some columns."""
        other = ParquetTable(self.path, columns, on_workers=self.on_workers)
        other._taken = self._taken
        return other

    def take(self, rows: Indices) -> ParquetTable:
        """Return the table of some rows; a pass over them is one over all.

        Parameters
        ----------
        rows : array of int
            Their numbers, in increasing order.
        """
        require_increasing(rows, len(self))
        other = copy(self)
        other.on_workers = False  # `parts` are those of all rows
        other._taken = rows if self._taken is None else self._taken[rows]
        return other

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

        start, taken = 0, self._taken
        for file in self.files:
            for batch in parquet.ParquetFile(file).iter_batches(FRAME_ROWS, columns=self.columns):
                frame: pandas.DataFrame = batch.to_pandas(ignore_metadata=True)
                ends = start, start + len(frame)
                if taken is not None:
                    first, last = np.searchsorted(taken, ends)
                    frame = frame.iloc[taken[first:last] - start].reset_index(drop=True)
                if len(frame):
                    yield frame[self.columns]
                start = ends[1]

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
        if self._taken is not None:
            whole = whole.iloc[self._taken].reset_index(drop=True)
        return whole[names]


def _described(files: list[Path]) -> tuple[Any, int]:
    """Return the schema that all files have, and how many rows they have together."""
    import pyarrow.parquet as parquet

    found = [parquet.ParquetFile(file) for file in files]
    schema = found[0].schema_arrow
    for file, one in zip(files, found, strict=True):
        if one.schema_arrow.remove_metadata() != schema.remove_metadata():
            raise ValueError(f"{file} and {files[0]} disagree on columns or their types")
    return schema, int(sum(one.metadata.num_rows for one in found))


def _require_columns(block: Any, names: list[str], start: int) -> None:
    if list(block.columns) != names:
        raise ValueError(
            f"the block from row {start} on has the columns {list(block.columns)}, and not "
            f"{names}: all blocks must have the same columns in the same order"
        )


def require_increasing(rows: Indices, n_rows: int) -> None:
    """Raise unless these are numbers of rows in increasing order, without repeats."""
    if len(rows) and (rows[0] < 0 or rows[-1] >= n_rows or (np.diff(rows) <= 0).any()):
        raise ValueError(
            f"numbers of rows must be increasing, from 0 on, and below {n_rows}, the number of rows"
        )


def _parquet_files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        return [path]
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in (".parquet", ".pq"))
    if not files:
        raise ValueError(f"the folder {path} has no Parquet file")
    return files
