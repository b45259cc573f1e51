"""Outliers in the targets of a table, all other cells as they are in its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gorelm._typing import Array, Mask
from gorelm.cli.reading import chosen, numbers_of, saying_warnings
from gorelm.datasets.columns import columns_of
from gorelm.datasets.contamination import contaminate
from gorelm.datasets.table import TextTable, read_table, read_text

if TYPE_CHECKING:
    import pandas

_LARGEST_EXACT = 2**53  # the floats of larger integers are rounded


def planted_in(
    path: Path, targets: str, out: Path, *, ratio: float, kind: str, seed: int
) -> tuple[pandas.DataFrame, str | None]:
    """Return the table with outliers, and the separator to write it with (None: the usual one)."""
    import pandas

    frame = saying_warnings(lambda: read_table(path))
    _, places = chosen(frame, targets, None, path)
    if "planted" in frame.columns:
        raise ValueError(f"{path} has a column 'planted' already; rename or remove it")
    T = _complete(frame.iloc[:, places], path)
    named = pandas.DataFrame(T, columns=frame.columns[places])
    dirty, planted, changed = saying_warnings(
        lambda: contaminate(named, ratio, kind=kind, random_state=seed, return_cells=True)
    )
    text = None if out.name.lower().endswith((".parquet", ".pq")) else read_text(path)
    separator = None
    if text is not None:
        frame = _with_text(text, places, dirty, changed)
        separator = _separator(text, out)
    else:
        for k, j in enumerate(places):
            frame.isetitem(j, _with_numbers(frame.iloc[:, j], dirty[:, k], changed[:, k]))
    frame["planted"] = planted.astype(int)
    return frame, separator


def _complete(y: pandas.DataFrame, path: Path) -> Array:
    """Return targets as numbers; raises if one is missing or a word."""
    for name, column in zip(y.columns, columns_of(y), strict=True):
        if column.kind not in ("number", "empty"):
            raise ValueError(f"target {name!r} of {path} is not numeric: it holds {column.kind}.")
    T = numbers_of(y, path)
    missing = np.isnan(T).sum(axis=0)
    if missing.any():
        name = y.columns[int(np.argmax(missing > 0))]
        raise ValueError(
            f"target {name!r} of {path} has missing values; outliers are planted in complete "
            "targets only."
        )
    return T


def _with_text(text: TextTable, places: list[int], dirty: Array, changed: Mask) -> pandas.DataFrame:
    for k, j in enumerate(places):
        cells = text.cells.iloc[:, j].to_list()
        for i in np.flatnonzero(changed[:, k]):
            cells[i] = repr(float(dirty[i, k])).replace(".", text.decimal)
        text.cells.isetitem(j, cells)
    return text.cells


def _separator(text: TextTable, out: Path) -> str | None:
    """Keep the separator of the file, unless the name of the new one says another."""
    if out.name.lower().endswith((".tsv", ".tsv.gz")):
        return None
    if text.separator != "\t":
        return text.separator
    return ";" if text.decimal == "," else None


def _with_numbers(column: pandas.Series, dirty: Array, changed: Mask) -> pandas.Series | Array:
    """Return a column with outliers; very large integers stay exact, outliers among them whole."""
    if column.dtype.kind in "iu" and (abs(column) > _LARGEST_EXACT).any():
        column = column.copy()
        column[changed] = [round(value) for value in dirty[changed].tolist()]
        return column
    return dirty
