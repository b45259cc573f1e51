"""Tables that are read a block at a time: what `TableRegressor` needs of them to learn an encoding.

The encoding is learnt column by column, from one column in memory at a time. The encoder is then
fitted to a few rows that tell it the same: the median of each column of numbers, a gap where one
has gaps, and every word as often as its rank demands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import overload

import numpy as np

from gorelm._typing import Array
from gorelm.datasets.columns import Cells, Kind, RawColumn, columns_of
from gorelm.stream import ParquetTable


class StoredColumns(Sequence[RawColumn]):
    """The columns of a table, each read when it is asked for."""

    def __init__(self, table: ParquetTable) -> None:
        self._table = table
        self._kinds: dict[int, Kind] = {}

    def __len__(self) -> int:
        return len(self._table.columns)

    @overload
    def __getitem__(self, j: int) -> RawColumn: ...

    @overload
    def __getitem__(self, j: slice) -> list[RawColumn]: ...

    def __getitem__(self, j: int | slice) -> RawColumn | list[RawColumn]:
        if isinstance(j, slice):
            return [self[k] for k in range(len(self))[j]]
        if not 0 <= j < len(self):
            raise IndexError(j)
        (column,) = columns_of(self._table.frame([self._table.columns[j]]))
        # What a column holds is decided once: that may take a look at every cell.
        kind = self._kinds.setdefault(j, column.kind)
        return RawColumn(column.cells, kind)


class StoredCells:
    """Numbers and words of the columns, as the encoder takes them; a column at a time."""

    def __init__(self, columns: Sequence[RawColumn], kinds: list[str]) -> None:
        self._columns, self._kinds = columns, kinds

    def __getitem__(self, where: tuple[slice, int]) -> Cells:
        column = self._columns[where[1]]
        return column.words() if self._kinds[where[1]] == "words" else column.numbers()[0]

    def invalid(self, names: list[str]) -> dict[str, list[str]]:
        """Return the cells that are neither numbers nor missing, by the name of their column."""
        pairs = zip(names, self._kinds, strict=True)
        return {
            f"column {name!r}": self._columns[j].numbers()[1]
            for j, (name, kind) in enumerate(pairs)
            if kind == "number"
        }

    def few(self, max_categories: int) -> Cells:
        """Return a few rows to which an encoder is fitted as to all of them."""
        columns: list[list[object]] = []
        for j, kind in enumerate(self._kinds):
            if kind == "words":
                columns.append(few_words(self[:, j], max_categories))
            elif kind == "number":
                columns.append(few_numbers(np.asarray(self[:, j], dtype=np.float64)))
            else:
                columns.append([0.0])
        n_rows = max(len(column) for column in columns)
        cells = np.empty((n_rows, len(columns)), object if "words" in self._kinds else np.float64)
        for j, column in enumerate(columns):
            # The last value of a column may stand there any number of times.
            cells[:, j] = column + [column[-1]] * (n_rows - len(column))
        return cells


def few_numbers(numbers: Array) -> list[object]:
    """Return numbers with the same median, and a gap if there is one."""
    gaps = np.isnan(numbers)
    median = float(np.median(numbers[~gaps])) if not gaps.all() else np.nan
    return [np.nan, median] if gaps.any() else [median]


def few_words(words: Cells, max_categories: int) -> list[object]:
    """Return words among which the same ones are the `max_categories` - 1 most frequent ones.

    The encoder keeps the last ones in the order of frequency and then of the alphabet (a missing
    word comes after all others). Three ranks tell it where to cut: below, at and above the
    frequency of the first word that it keeps.
    """
    counts = Counter(word if isinstance(word, str) else None for word in words)
    # None for missing words; last in the alphabet.
    known = sorted(counts, key=lambda word: (word is None, word or ""))
    by_count = sorted(known, key=lambda word: counts[word])  # stable
    first_kept = counts[by_count[-(max_categories - 1) :][0]]
    few: list[object] = []
    for word in by_count:
        rank = 1 + (counts[word] >= first_kept) + (counts[word] > first_kept)
        few += [np.nan if word is None else word] * rank
    return few
