"""Encoding of raw tables in any place: memory, blocks, files, a cluster; for `TableRegressor`.

What the encoding needs to know of a column (`Learnt`) is merged from the same of parts of its rows
(`Piece`): one piece for a table in memory, else one per block or partition. Medians are exact, so
all numbers of a column are in memory at once; for other tables, one pass learns as many columns as
`COLUMN_BYTES` allow. The encoder is then fitted to a few artificial rows with the same statistics:
the median of each numeric column, a missing value where there are some, and every category as often
as its rank requires.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gorelm._progress import meter
from gorelm._typing import Array
from gorelm.backends.dask.source import Partitioned
from gorelm.datasets.columns import (
    Cells,
    Kind,
    RawColumn,
    Tally,
    columns_of,
    first_of_count,
    kind_of,
)
from gorelm.estimators._elsewhere import here
from gorelm.estimators._owners import is_dask
from gorelm.estimators._prepare import is_tensor
from gorelm.stream import ParquetTable, RowBlocks

if TYPE_CHECKING:
    from gorelm.stream import TablePart

COLUMN_BYTES = 2**28  # of numbers that are in memory at a time to learn columns of

Encode = Callable[[Any], Array]  # from a frame or array to inputs


# -- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Some rows of a column."""

    tally: Tally
    numbers: npt.NDArray[np.float64]  # NaN: missing, or no number; infinite ones as they are
    invalid: list[str]
    words: Counter[str | None] | None  # None (the key): missing; None: only numbers

    @classmethod
    def of(cls, column: RawColumn) -> Piece:
        """Take what there is to learn of some rows."""
        tally = column.tally()
        if column.cells.dtype == np.float64:
            return cls(tally, np.asarray(column.cells), column.numbers()[1], None)
        nothing = np.full(len(column.cells), np.nan)
        numbers, invalid = (nothing, []) if tally.declared is not None else column.numbers()
        return cls(tally, numbers, invalid, _counts(column))


@dataclass(frozen=True)
class Learnt:
    """What a fit must know of a column.

    Attributes
    ----------
    kind : {"number", "words", "dates", "nested", "empty"}
        What the column holds.
    n_rows : int
        Number of cells.
    n_known : int
        Number of those that are finite numbers, or words.
    same : bool
        Whether no two known numbers or words differ.
    first : int or None
        Number of the first row, if the column counts the rows.
    median : float
        Of the known numbers.
    invalid : list of str
        Cells that are neither finite numbers nor missing, of a column of numbers.
    words : Counter
        How often each word occurs; None: missing.
    """

    kind: Kind
    n_rows: int
    n_known: int
    same: bool
    first: int | None
    median: float
    invalid: list[str]
    words: Counter[str | None]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Learnt:
        """Put the pieces of a column together."""
        kind = kind_of([piece.tally for piece in pieces])
        n_rows = sum(len(piece.numbers) for piece in pieces)
        if kind == "words":
            words = Counter[str | None]()
            for piece in pieces:
                words.update(
                    _counts(RawColumn(piece.numbers)) if piece.words is None else piece.words
                )
            n_known, same = n_rows - words[None], len(words.keys() - {None}) <= 1
            return cls(kind, n_rows, n_known, same, None, np.nan, [], words)
        numbers = np.concatenate([piece.numbers for piece in pieces])
        first, known = first_of_count(numbers), numbers[np.isfinite(numbers)]
        same, n_known = bool((known == known[:1]).all()), len(known)
        median = float(np.median(known, overwrite_input=True)) if n_known else np.nan
        invalid = [cell for piece in pieces for cell in piece.invalid] if kind == "number" else []
        return cls(kind, n_rows, n_known, same, first, median, invalid, Counter())

    @property
    def n_missing(self) -> int:
        """Number of cells that are neither finite numbers nor words."""
        return self.n_rows - self.n_known

    def few(self, max_categories: int) -> list[object]:
        """Return a few cells to which an encoder is fitted as to all of them."""
        if self.kind == "words":
            return few_words(self.words, max_categories)
        return [np.nan, self.median] if self.n_missing else [self.median]


def few_words(counts: Counter[str | None], max_categories: int) -> list[object]:
    """Return words among which the same ones are the `max_categories` - 1 most frequent ones.

    The encoder keeps the last ones in the order of frequency and then of the alphabet (a missing
    word comes after all others). Three ranks tell it where to cut: below, at and above the
    frequency of the first word that it keeps.
    """
    known = sorted(counts, key=lambda word: (word is None, word or ""))
    by_count = sorted(known, key=lambda word: counts[word])  # stable
    first_kept = counts[by_count[-(max_categories - 1) :][0]]
    few: list[object] = []
    for word in by_count:
        rank = 1 + (counts[word] >= first_kept) + (counts[word] > first_kept)
        few += [np.nan if word is None else word] * rank
    return few


def few_rows(columns: Sequence[Learnt], used: Sequence[str], max_categories: int) -> Cells:
    """Return a few rows to which an encoder is fitted as to all; zeros in columns not used."""
    few = [
        [0.0] if kind == "ignored" else column.few(max_categories)
        for column, kind in zip(columns, used, strict=True)
    ]
    n_rows = max(map(len, few))
    cells = np.empty((n_rows, len(few)), object if "words" in used else np.float64)
    for j, column in enumerate(few):
        # The last value of a column may stand there any number of times.
        cells[:, j] = column + [column[-1]] * (n_rows - len(column))
    return cells


def _counts(column: RawColumn) -> Counter[str | None]:
    return Counter(word if isinstance(word, str) else None for word in column.words())


# -- tables --------------------------------------------------------------------------------------


class EncodableTable(ABC):
    """A table whose columns can be learnt, and whose rows can be encoded.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    feature_names : list of str or None
        Names of the columns.
    """

    shape: tuple[int, int]
    feature_names: list[str] | None = None

    def learn(self) -> list[Learnt]:
        """Return what a fit must know of every column."""
        n_columns, found = self.shape[1], list[Learnt]()
        step, follower = self._at_a_time(), meter()
        while len(found) < n_columns:
            places = list(range(len(found), min(len(found) + step, n_columns)))
            found += [Learnt.of(of_one) for of_one in zip(*self._pieces(places), strict=True)]
            if follower is not None:
                follower.tick(len(found) / n_columns)
        return found

    def _at_a_time(self) -> int:
        """Return how many columns to learn in one pass."""
        return max(COLUMN_BYTES // (8 * max(self.shape[0], 1)), 1)

    @abstractmethod
    def _pieces(self, places: list[int]) -> Iterable[list[Piece]]:
        """Return some columns, in as many pieces as there are blocks of rows."""

    @abstractmethod
    def encoded(self, encode: Encode, n_inputs: int) -> object:
        """Return the encoded rows, where the table is."""


class TableInMemory(EncodableTable):
    """A frame, an array or a tensor, which is encoded here and returned to its device."""

    def __init__(self, X: Any) -> None:
        self._given = X
        self.values = X.values if isinstance(X, Partitioned) else here(X)
        self._columns = columns_of(self.values)
        self.shape = len(self._columns[0].cells), len(self._columns)

    def _at_a_time(self) -> int:
        return self.shape[1]

    def _pieces(self, places: list[int]) -> Iterable[list[Piece]]:
        return [[Piece.of(self._columns[j]) for j in places]]

    def encoded(self, encode: Encode, n_inputs: int) -> object:
        """Return the encoded rows as they came: an array, a tensor, to be sent to workers."""
        return like(self._given, encode(self.values))


class TableInBlocks(EncodableTable):
    """Blocks of frames or arrays."""

    def __init__(self, X: RowBlocks) -> None:
        self._X, self.shape, self.feature_names = X, X.shape, X.feature_names

    def _pieces(self, places: list[int]) -> Iterable[list[Piece]]:
        return (_pieces(block, places) for block in blocks_of(self._X))

    def encoded(self, encode: Encode, n_inputs: int) -> object:
        """Return the encoded rows, a block at a time; they are encoded in every pass."""
        X = self._X
        return RowBlocks(lambda: map(encode, blocks_of(X)), len(X), n_inputs)


class TableInFiles(EncodableTable):
    """A Parquet file, or a folder of them."""

    def __init__(self, X: ParquetTable) -> None:
        self._X, self.shape, self.feature_names = X, X.shape, X.columns

    def _at_a_time(self) -> int:
        return 1  # a column of a file is read by itself

    def _pieces(self, places: list[int]) -> Iterable[list[Piece]]:
        return [_pieces(self._X.frame([self._X.columns[j] for j in places]))]

    def encoded(self, encode: Encode, n_inputs: int) -> object:
        """Return the encoded rows, in blocks or on the workers of a cluster."""
        X = self._X
        if not X.on_workers:
            return RowBlocks(lambda: map(encode, blocks_of(X)), len(X), n_inputs)
        from gorelm.backends.dask.source import array_of_parts

        parts = X.parts()
        read = partial(_read_and_encode, encode=encode, columns=X.columns)
        return array_of_parts(read, parts, [part.n_rows for part in parts], n_inputs)


class TableOnCluster(EncodableTable):
    """A dask dataframe or array: its workers learn and encode their partitions."""

    def __init__(self, X: Any) -> None:
        from gorelm.backends.dask.source import delayed_parts, lengths_of, names_of

        if np.ndim(X) != 2:
            raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
        self.feature_names = names_of(X)
        self._parts: list[Any] = delayed_parts(X)
        self._lengths = lengths_of(X)
        n_columns = len(X.columns) if hasattr(X, "columns") else int(X.shape[1])
        self.shape = sum(self._lengths), n_columns

    def _pieces(self, places: list[int]) -> Iterable[list[Piece]]:
        import dask

        from gorelm.backends.dask.fit import active_client
        from gorelm.backends.dask.inputs import results

        learn = dask.delayed(_pieces, pure=False)
        filled = [part for part, n in zip(self._parts, self._lengths, strict=True) if n]
        found: list[list[Piece]] = results(active_client(), [learn(p, places) for p in filled])
        return found

    def encoded(self, encode: Encode, n_inputs: int) -> object:
        """Return a dask array of the encoded rows."""
        from gorelm.backends.dask.source import array_of_parts

        read = partial(_encoded_part, encode=encode, n_inputs=n_inputs)
        return array_of_parts(read, self._parts, self._lengths, n_inputs)


def encoded_lazily(X: Any, encode: Encode, n_inputs: int) -> Any:
    """Return a dask array of the encoded rows of a collection, whose lengths need not be known."""
    from gorelm.backends.dask.source import array_of_parts, delayed_parts

    parts = delayed_parts(X)
    lengths = X.chunks[0] if hasattr(X, "chunks") else [np.nan] * len(parts)
    read = partial(_encoded_part, encode=encode, n_inputs=n_inputs)
    return array_of_parts(read, parts, lengths, n_inputs)


def encodable_table(X: Any) -> EncodableTable:
    """Return a table of any owner."""
    if isinstance(X, RowBlocks):
        return TableInBlocks(X)
    if isinstance(X, ParquetTable):
        return TableInFiles(X)
    return TableOnCluster(X) if is_dask(X) else TableInMemory(X)


def blocks_of(X: RowBlocks | ParquetTable) -> Iterator[Any]:
    """Return the rows of a table that is read in blocks, as they are stored."""
    if isinstance(X, ParquetTable):
        return X.frames()
    return (block for _, block in X.given() if len(block))


def like(X: Any, inputs: Array) -> object:
    """Return inputs in memory as X came: an array, a tensor on its device, rows for workers."""
    if isinstance(X, Partitioned):
        return Partitioned(inputs, X.npartitions)
    if not is_tensor(X):
        return inputs
    library: Any = sys.modules[type(X).__module__.split(".")[0]]
    device = {"device": X.device} if hasattr(X, "detach") else {}
    return library.asarray(inputs, **device)


def _pieces(block: Any, places: list[int] | None = None) -> list[Piece]:
    if places is not None:
        block = block.iloc[:, places] if hasattr(block, "iloc") else block[:, places]
    return [Piece.of(column) for column in columns_of(block)]


def _encoded_part(part: Any, encode: Encode, n_inputs: int) -> Array:
    return encode(part) if len(part) else np.empty((0, n_inputs))


def _read_and_encode(part: TablePart, encode: Encode, columns: list[str]) -> Array:
    return encode(part.frame(columns))
