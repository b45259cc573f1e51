"""Tables in and out, with what there is to say about them on stderr."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import numpy as np
import numpy.typing as npt

from gorelm._files import place_of, whole_file
from gorelm._typing import Array
from gorelm.cli.app import say
from gorelm.datasets.columns import columns_of
from gorelm.datasets.fetch import suggest
from gorelm.datasets.table import choose_columns, line_numbers, read_table, split_names

if TYPE_CHECKING:
    import pandas

WRITTEN = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
PAGES = (".html", ".htm")
STDOUT = Path("-")
_FEWEST_ROWS = 10
_LARGEST_TARGET = 1e150  # squares of what is larger have no number

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A file's inputs and targets, as frames, and where its rows are."""

    path: Path
    columns: list[str]  # of the file
    X: pandas.DataFrame
    y: pandas.DataFrame
    lines: npt.NDArray[np.intp] | None  # None: the file has none
    ids: pandas.Index | None  # None: the file has none
    id_name: str | None = None  # None: they have no name

    @property
    def target_names(self) -> list[str]:
        """Names of the targets."""
        return list(self.y.columns)


def read(path: Path, targets: str, features: str | None, id_name: str | None = None) -> Table:
    """Read inputs and targets; raises if there are too few rows to judge any."""
    frame = with_ids(saying_warnings(lambda: read_table(path)), id_name, path)
    for what, names in (("a target", targets), ("a feature", features or "")):
        if id_name is not None and id_name in split_names(names, [id_name]):
            raise ValueError(f"Column {id_name!r} of {path} is to be both the id and {what}.")
    inputs, outputs = chosen(frame, targets, features, path)
    if len(frame) < _FEWEST_ROWS:
        raise ValueError(
            f"{path} has {len(frame)} rows; at least {_FEWEST_ROWS} are needed, as every row is "
            "judged by the others."
        )
    y = frame.iloc[:, outputs]
    numbers_of(y, path)
    return Table(
        path,
        list(frame.columns),
        frame.iloc[:, inputs],
        y,
        line_numbers(path, len(frame)),
        frame.index if has_ids(frame) else None,
        id_name,
    )


def with_ids(frame: pandas.DataFrame, id_name: str | None, path: Path) -> pandas.DataFrame:
    """Return the table with the column of that name as the ids of its rows."""
    if id_name is None:
        return frame
    if id_name not in frame.columns:
        raise ValueError(f"{path} has no column {id_name!r}; {suggest(id_name, frame.columns)}")
    return frame.set_index(id_name)


def has_ids(frame: pandas.DataFrame) -> bool:
    """Say whether a table came with ids of its rows, which are then its index."""
    import pandas

    return not isinstance(frame.index, pandas.RangeIndex) or frame.index.name is not None


def about_ids(path: Path, id_name: str | None = None) -> str:
    """Say what was taken for the ids of the rows."""
    if id_name is not None:
        return f"Column {id_name!r} holds the ids of the rows; it is no input."
    parquet = path.name.lower().endswith((".parquet", ".pq"))
    what = "The index of the table" if parquet else "The first column, which has no name,"
    return f"{what} holds the ids of the rows; it is no input."


def chosen(
    frame: pandas.DataFrame, targets: str, features: str | None, path: Path
) -> tuple[list[int], list[int]]:
    """Return the places of inputs and targets; `targets` are names, or how many (the last)."""
    names = list(frame.columns)
    by_number = targets.isdecimal() and targets not in names
    return choose_columns(names, int(targets) if by_number else targets, features, path)


def numbers_of(y: pandas.DataFrame, path: Path) -> Array:
    """Return targets as numbers, NaN where missing.

    Raises
    ------
    ValueError
        If a target is mostly beyond the numbers whose squares can be summed.
    """
    T = np.column_stack([column.numbers()[0] for column in columns_of(y)])
    for name, values in zip(y.columns, T.T, strict=True):
        known = np.abs(values[~np.isnan(values)])
        if len(known) and np.median(known) > _LARGEST_TARGET:
            raise ValueError(
                f"target {name!r} of {path} has values of {np.median(known):.0e} and more; divide "
                f"it by a power of ten (the typical value may be {_LARGEST_TARGET:.0e} at most)."
            )
    return T


def saying_warnings(work: Callable[[], T]) -> T:
    """Do the work, and show its warnings as lines on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        result = work()
    for message in dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning):
        say(f"note: {message}", err=True)
    return result


def require_places(
    inputs: Mapping[str, Path], outputs: Mapping[str, tuple[Path | None, tuple[str, ...]]]
) -> None:
    """Raise before any work is done if a result could not be written, or would replace an input.

    `outputs` has, by option, where a result goes (None: nowhere), and how its name may end (empty:
    anyhow).
    """
    places: dict[Path, str] = {}
    for option, (path, endings) in outputs.items():
        if path is None or path == STDOUT:
            continue
        if endings and not path.name.lower().endswith(endings):
            raise ValueError(f"{path}: the name of this file must end in {' or '.join(endings)}.")
        place = place_of(path)
        for what, source in inputs.items():
            if _same(place, source):
                raise ValueError(f"{path} is the {what} itself; choose another file to write to.")
        for other, its_option in places.items():
            if _same(place, other):
                raise ValueError(f"{its_option} and {option} name the same file, {path}.")
        places[place] = option


def _same(place: Path, other: Path) -> bool:
    if place.exists() and other.exists():
        return place.samefile(other)
    return place == Path(other).resolve()


def write(frame: pandas.DataFrame, path: Path, *, separator: str | None = None) -> None:
    """Write a frame as its file's name says, ids first if it has some; `-` is CSV on stdout."""
    name, index = path.name.lower(), has_ids(frame)
    if path == STDOUT:
        text = io.StringIO()
        frame.to_csv(text, index=index)
        if sys.stdout.isatty():
            say(*text.getvalue().splitlines())
        else:
            click.echo(text.getvalue(), nl=False)
        return
    if separator is None:
        separator = "\t" if name.endswith((".tsv", ".tsv.gz")) else ","
    with whole_file(path) as file:
        if name.endswith((".parquet", ".pq")):
            frame.to_parquet(file, index=index)
        else:
            packed = "gzip" if name.endswith(".gz") else None
            frame.to_csv(file, index=index, sep=separator, mode="wb", compression=packed)
