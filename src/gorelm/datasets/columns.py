"""Columns of raw tables: which hold numbers, words or dates; missing and invalid cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array

from gorelm._compat import num_samples
from gorelm._typing import Mask

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Cells: TypeAlias = npt.NDArray[np.float64] | npt.NDArray[np.object_]
Kind: TypeAlias = Literal["number", "words", "dates", "nested", "empty"]

# A column of text is one of numbers, some invalid, if this share of its known cells are numbers.
_MOSTLY = 0.8
_LONGEST_WORD = 24
_NESTED = (list, tuple, dict, set, np.ndarray)


class Tally(NamedTuple):
    """How many cells of (a part of) a column are of which kind."""

    declared: Kind | None = None  # what the frame says they all are
    n_known: int = 0
    n_dates: int = 0
    n_nested: int = 0
    n_numbers: int = 0


def kind_of(tallies: Sequence[Tally]) -> Kind:
    """Return what a column holds, by the cells of all its parts."""
    declared = {tally.declared for tally in tallies}
    if len(declared) == 1 and (only := declared.pop()) is not None:
        return only
    if "words" in declared:
        return "words"
    known, dates, nested, numbers = (
        sum(counts) for counts in zip(*(tally[1:] for tally in tallies), strict=True)
    )
    if not known:
        return "dates" if "dates" in declared else "empty"
    if dates == known:
        return "dates"
    if nested == known:
        return "nested"
    return "number" if numbers >= _MOSTLY * known else "words"


@dataclass(frozen=True)
class RawColumn:
    """One column as given: float64, or objects of any type."""

    cells: Cells
    declared: Kind | None = None  # what the frame says it is, where that is beyond doubt

    @property
    def kind(self) -> Kind:
        """What the column holds, by most of its cells."""
        return kind_of([self.tally()])

    def tally(self) -> Tally:
        """Return how many cells are of which kind, unless the frame declares the kind."""
        if self.declared is not None:
            return Tally(self.declared)
        if self.cells.dtype == np.float64:
            known = len(self.cells) - int(np.isnan(self.cells).sum())
            return Tally(n_known=known, n_numbers=known)
        cells = [cell for cell in self.cells if not _is_missing(cell)]
        return Tally(
            n_known=len(cells),
            n_dates=sum(_is_date(cell) for cell in cells),
            n_nested=sum(isinstance(cell, _NESTED) for cell in cells),
            n_numbers=sum(_number(cell) is not None for cell in cells),
        )

    def numbers(self) -> tuple[npt.NDArray[np.float64], list[str]]:
        """Return the cells as finite numbers or NaN, and the cells that are neither, as text."""
        if self.cells.dtype == np.float64:
            numbers = self.cells.astype(np.float64, copy=False)
            infinite = np.isinf(numbers)
            if not infinite.any():
                return numbers, []
            return np.where(infinite, np.nan, numbers), [str(x) for x in numbers[infinite]]
        values, invalid = np.full(len(self.cells), np.nan), []
        for i, cell in enumerate(self.cells):
            if _is_missing(cell):
                continue
            number = _number(cell)
            if number is not None and np.isfinite(number):
                values[i] = number
            elif number is None or np.isinf(number):
                invalid.append(str(cell))
        return values, invalid

    def words(self) -> Cells:
        """Return the cells as text without blanks around it, NaN where missing."""
        return np.array([_word(cell) for cell in self.cells], dtype=object)


def columns_of(X: object, name: str = "X") -> list[RawColumn]:
    """Return the columns of a pandas or polars frame, or of whatever makes an array.

    Raises
    ------
    ValueError
        If there is no row or no column, or the values are complex or not in two dimensions.
    """
    if hasattr(X, "iloc"):
        columns = _pandas_columns(X)
    elif hasattr(X, "iter_columns"):
        columns = _polars_columns(X.iter_columns())
    else:
        array = check_array(X, dtype=None, ensure_all_finite=False, input_name=name)
        columns = _array_columns(array)
    shape = (len(columns[0].cells) if columns else num_samples(X), len(columns))
    check_array(np.broadcast_to(0.0, shape), input_name=name)  # its words for an empty table
    return columns


def target_columns(y: object) -> tuple[list[str], list[RawColumn], bool]:
    """Return the names and columns of targets, and whether they came as one, in one dimension."""
    if hasattr(y, "to_frame"):  # a series of pandas or polars
        return [str(getattr(y, "name", None) or "y")], columns_of(y.to_frame(), "y"), True
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns], columns_of(y, "y"), False
    array = check_array(y, dtype=None, ensure_2d=False, ensure_all_finite=False, input_name="y")
    if array.ndim == 1:
        return ["y"], columns_of(array[:, None], "y"), True
    columns = columns_of(array, "y")
    return [f"y{j}" for j in range(len(columns))], columns, False


def is_counter(column: RawColumn) -> bool:
    """Return whether the cells are the numbers of the rows, from 0 or 1, in order."""
    return column.kind == "number" and first_of_count(column.numbers()[0]) is not None


def first_of_count(numbers: npt.NDArray[np.float64]) -> int | None:
    """Return the number of the first row if these are numbers of rows, from 0 or 1, in order."""
    n = len(numbers)
    if n < 2 or numbers[0] not in (0.0, 1.0) or not (numbers == numbers[0] + np.arange(n)).all():
        return None
    return int(numbers[0])


def _pandas_columns(frame: pd.DataFrame) -> list[RawColumn]:
    columns = []
    for j in range(frame.shape[1]):
        series = frame.iloc[:, j]
        dtype = series.dtype
        if dtype.name == "category":
            columns.append(RawColumn(series.astype(object).to_numpy(), "words"))
        elif dtype.kind in "biuf":
            columns.append(RawColumn(series.to_numpy(np.float64, na_value=np.nan)))
        elif dtype.kind in "mM":
            columns.append(RawColumn(series.to_numpy(object), "dates"))
        else:
            columns.append(RawColumn(_refuse_complex(series.to_numpy(object))))
    return columns


def _polars_columns(series_of: Iterable[pl.Series]) -> list[RawColumn]:
    columns = []
    for series in series_of:
        if series.dtype.is_integer() or series.dtype.is_float():
            columns.append(RawColumn(series.to_numpy().astype(np.float64)))
            continue
        cells = np.empty(len(series), dtype=object)
        cells[:] = series.to_list()
        words = str(series.dtype).startswith(("Categorical", "Enum"))
        dates: Kind | None = "dates" if series.dtype.is_temporal() else None
        columns.append(RawColumn(cells, "words" if words else dates))
    return columns


def _array_columns(array: Cells) -> list[RawColumn]:
    if array.dtype.kind in "biuf":
        return [RawColumn(column) for column in array.astype(np.float64).T]
    if array.dtype.kind in "mM":
        return [RawColumn(column.astype(object), "dates") for column in array.T]
    return [RawColumn(_refuse_complex(column)) for column in array.astype(object).T]


def _refuse_complex(cells: Cells) -> Cells:
    if any(isinstance(cell, complex) for cell in cells):
        raise ValueError("Complex data not supported")
    return cells


def _is_missing(cell: object) -> bool:
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, str):
        return not cell.strip()
    return isinstance(cell, float) and cell != cell


def _is_date(cell: object) -> bool:
    # dates, times, timestamps and durations of the standard library, NumPy and pandas
    return hasattr(cell, "isoformat") or isinstance(cell, np.datetime64 | np.timedelta64)


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except OverflowError:  # an integer of hundreds of digits
        return float("inf")
    except (TypeError, ValueError):
        return None


def _word(cell: object) -> str | float:
    if _is_missing(cell):
        return np.nan
    # A column of codes that lost one cell comes back as 1.0, 2.0, ...
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def in_words(names: list[str], limit: int = 8) -> str:
    """Return names in quotes, shortened, and how many more there are."""
    shown = [repr(shortened(name, _LONGEST_WORD)) for name in names]
    if len(names) > limit:
        return f"{', '.join(shown[: limit - 1])} and {len(names) - limit + 1} others"
    return ", ".join(shown[:-1]) + " and " * (len(shown) > 1) + shown[-1]


def shortened(name: str, width: int) -> str:
    """Return a name on one line, cut in its middle where it is too long: numbers are at the end."""
    name = " ".join(name.split())
    if len(name) <= width:
        return name
    head = (width - 2) // 2
    return f"{name[:head]}...{name[len(name) - (width - 3 - head) :]}"


def are_missing(words: Cells) -> Mask:
    """Return which of some words are missing."""
    return np.array([not isinstance(word, str) for word in words], dtype=bool)


def distinct(words: Cells) -> list[str]:
    """Return the words that are not missing, most frequent first, then in alphabetical order."""
    return by_frequency(Counter(word for word in words if isinstance(word, str)))


def by_frequency(counts: Mapping[str, int] | Mapping[str | None, int]) -> list[str]:
    """Return words in the order of their counts, then of the alphabet; None: missing words."""
    pairs = [(-count, word) for word, count in counts.items() if word is not None]
    return [word for _, word in sorted(pairs)]
