"""Tables in and out, with what there is to say about them on stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import numpy.typing as npt

from gorelm.datasets.table import choose_columns, line_numbers, read_table

__all__ = ["STDOUT", "WRITTEN", "Table", "read", "require_place_for", "saying_warnings", "write"]

WRITTEN = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq")
STDOUT = Path("-")
_FEWEST_ROWS = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A file's inputs and targets, as frames, and where its rows are."""

    path: Path
    n_columns: int
    X: Any
    y: Any
    lines: npt.NDArray[np.intp] | None  # None: the file has none

    @property
    def target_names(self) -> list[str]:
        """Names of the targets."""
        return list(self.y.columns)


def read(path: Path, targets: str, features: str | None) -> Table:
    """Read inputs and targets; raises if there are too few rows to judge any."""
    frame = saying_warnings(lambda: read_table(path))
    names = list(frame.columns)
    by_number = targets.isdecimal() and targets not in names
    inputs, outputs = choose_columns(names, int(targets) if by_number else targets, features, path)
    if len(frame) < _FEWEST_ROWS:
        raise ValueError(
            f"{path} has {len(frame)} rows; at least {_FEWEST_ROWS} are needed, as every row is "
            "judged by the others."
        )
    return Table(
        path, len(names), frame.iloc[:, inputs], frame.iloc[:, outputs],
        line_numbers(path, len(frame)),
    )  # fmt: skip


def saying_warnings(work: Callable[[], T]) -> T:
    """Do the work, and show its warnings as lines on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        result = work()
    for message in dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning):
        click.echo(f"note: {message}", err=True)
    return result


def require_place_for(path: Path | None, data: Path, endings: tuple[str, ...] | None) -> None:
    """Raise before any work is done if its result could not be written."""
    if path is None or path == STDOUT:
        return
    if endings is not None and not path.name.lower().endswith(endings):
        raise ValueError(f"{path}: the name of this file must end in {' or '.join(endings)}.")
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder, not a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} to write {path.name} to.")
    if path.exists() and data.exists() and path.samefile(data):
        raise ValueError(f"{path} is the table itself; choose another file to write to.")


def write(frame: Any, path: Path) -> None:
    """Write a frame as its file's name says; `-` is CSV on stdout."""
    name = path.name.lower()
    if path == STDOUT:
        frame.to_csv(sys.stdout, index=False)
    elif name.endswith((".parquet", ".pq")):
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if name.endswith(".tsv") else ",")
