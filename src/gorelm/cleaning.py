"""From a table with wrong rows and cells to one without, with a log to undo the changes.

:func:`clean` finds what is wrong in a frame and takes it out. Its steps, for decisions of your own:
:func:`plan` says what should change, :func:`apply` changes a frame, :func:`restore` undoes it, and
:func:`apply_to_file` and :func:`restore_file` do the same with a file, of which every byte that
is not changed stays.

A log is a frame with one line a change: ``line`` (of the file), ``row`` (from 0, of the table as it
was), ``id``, ``column`` (empty: the whole row is dropped), ``old``, ``new`` (empty: blank) and
``why``. Cells are as they stand in a text file, or as JSON where the table is a frame.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, clone

from gorelm._extras import needs
from gorelm.datasets.raw import RawTable
from gorelm.datasets.table import choose_columns, read_table
from gorelm.estimators.table import TableRegressor
from gorelm.findings import Names

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Cleaned",
    "apply",
    "apply_to_file",
    "clean",
    "plan",
    "read_log",
    "restore",
    "restore_file",
    "write_log",
]

LOG = ["line", "row", "id", "column", "old", "new", "why"]
_LARGEST_EXACT = 2**53
_CHECK = "check"  # why of the last line of a file's log: checksums of the table before and after


class Cleaned(NamedTuple):
    """A cleaned table, and how it came about."""

    table: pandas.DataFrame
    log: pandas.DataFrame
    findings: pandas.DataFrame
    model: BaseEstimator


def clean(
    table: pandas.DataFrame,
    targets: Sequence[str] | str | int,
    *,
    features: Sequence[str] | str | None = None,
    rows: str = "drop",
    cells: str = "blank",
    suspicious: str = "keep",
    estimator: BaseEstimator | None = None,
    random_state: int | None = 0,
) -> Cleaned:
    """Drop the wrong rows of a table, and blank its wrong cells.

    By default only what is certain changes (``gorelm.certain`` of the findings): rows and cells
    that form a clear group, and those far beyond the limit. Isolated findings near it stay.

    Parameters
    ----------
    table : pandas.DataFrame
        The table; it stays as it is.
    targets : list of str, str or int
        Names of the target columns, as a list or separated by commas; or how many, the last.
    features : list of str or str, optional
        Names of the inputs. By default all columns that are no targets.
    rows : {"drop", "keep"}, default="drop"
        What becomes of wrong rows. Rows of which only some cells are wrong are never dropped, nor
        are duplicates, of which it is not known which one is wrong.
    cells : {"blank", "expected", "keep"}, default="blank"
        What becomes of wrong target cells in rows that stay. "expected" takes what models that did
        not see the row expect, with as many decimals as the column has.
    suspicious : {"keep", "change"}, default="keep"
        What becomes of findings that are not certain: they stay, or change as the others do.
    estimator : estimator, optional
        What judges the rows: a regressor with `findings`. By default a :class:`TableRegressor`.
    random_state : int, default=0
        Seed of that :class:`TableRegressor`.

    Returns
    -------
    Cleaned
        ``table``, ``log`` (see :mod:`gorelm.cleaning`), ``findings`` and the fitted ``model``.
        ``restore(table, log)`` is the table as it was.

    Examples
    --------
    >>> import pandas as pd
    >>> import gorelm
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(80, n_targets=1, outlier_ratio=0, random_state=0)
    >>> table = pd.DataFrame(data.X).assign(price=data.T[:, 0])
    >>> table.loc[17, "price"] = 100.0
    >>> cleaned = gorelm.clean(table, "price")
    >>> 17 in cleaned.table.index, 17 in cleaned.log["row"].tolist()
    (False, True)
    >>> gorelm.cleaning.restore(cleaned.table, cleaned.log).equals(table)
    True
    """
    named = table.set_axis([str(name) for name in table.columns], axis=1)
    inputs, outputs = choose_columns(list(named.columns), targets, features, Path("the table"))
    X, y = named.iloc[:, inputs], named.iloc[:, outputs]
    model = TableRegressor(random_state=random_state) if estimator is None else clone(estimator)
    model.fit(X, y)
    found = model.findings(X, y)
    changes = plan(found, Names([*X, *y]), list(y), rows=rows, cells=cells, suspicious=suspicious)
    changed, log = apply(table, changes)
    return Cleaned(changed, log, found, model)


def plan(
    found: pandas.DataFrame,
    names: Names,
    targets: Collection[str],
    *,
    rows: str = "drop",
    cells: str = "blank",
    suspicious: str = "keep",
) -> pandas.DataFrame:
    """Return what should change in a table, from its findings.

    Parameters
    ----------
    found : pandas.DataFrame
        As :func:`gorelm.findings.findings` makes it. Rows of the kind "row" are wrong, and cells
        whose ``flagged.T`` is true.
    names : Names
        Of the columns of `found`.
    targets : collection of str
        Names of the targets.
    rows : {"drop", "keep"}, default="drop"
        What becomes of wrong rows.
    cells : {"blank", "expected", "keep"}, default="blank"
        What becomes of wrong cells in rows that stay.
    suspicious : {"keep", "change"}, default="keep"
        What becomes of findings that are not certain (``certain`` is false).

    Returns
    -------
    pandas.DataFrame
        ``row``, ``line``, ``id``, ``column`` (empty: the row is dropped), ``given`` (NaN for
        rows), ``new`` (NaN: blank) and ``why``, in the order of the rows.
    """
    import pandas

    for name, value, known in (
        ("rows", rows, ("drop", "keep")),
        ("cells", cells, ("blank", "expected", "keep")),
        ("suspicious", suspicious, ("keep", "change")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    entries = []
    flags = found[[names.flagged_of(name) for name in targets]].to_numpy(dtype=bool)
    is_wrong = (found[names.kind] == "row").to_numpy()
    concerned = is_wrong | flags.any(axis=1)
    if suspicious == "keep":
        concerned &= found[names.certain].to_numpy(dtype=bool)
    for i in np.flatnonzero(concerned):
        one = found.iloc[i]
        off = [name for name, flag in zip(targets, flags[i], strict=True) if flag]
        where = [one[names.row], one[names.line] if names.line in found else "", found.index[i]]
        if is_wrong[i] and rows == "drop":
            named = off or _worst(one, names, targets)
            why = "; ".join(_why(one, names, name) for name in named) or "its targets are off"
            entries.append([*where, "", np.nan, np.nan, f"wrong row: {why}"])
        elif cells != "keep":
            for name in off:
                new = one[names.expected(name)] if cells == "expected" else np.nan
                why = f"wrong cell: {_why(one, names, name)}"
                entries.append([*where, name, one[name], new, why])
    changes = pandas.DataFrame(
        entries, columns=["row", "line", "id", "column", "given", "new", "why"]
    )
    return changes.sort_values("row", kind="stable", ignore_index=True)


def _worst(one: pandas.Series, names: Names, targets: Iterable[str]) -> list[str]:
    """Return the target that is farthest off, of a row that is wrong and none of whose cells is."""
    known = [name for name in targets if not np.isnan(one[names.score_of(name)])]
    return sorted(known, key=lambda name: float(one[names.score_of(name)]))[-1:]


def _why(one: pandas.Series, names: Names, target: str) -> str:
    given, expected = one[target], one[names.expected(target)]
    digits = digits_apart(given, expected)
    return f"{target} {_as_written(given, 6)}, expected {_as_written(expected, digits)}"


def _as_written(value: float, digits: int) -> str:
    """Return a number as people write it: 1967000 rather than 1.967e+06."""
    if not 1e-4 <= abs(value) < 1e8:
        return f"{value:.{digits}g}"
    return np.format_float_positional(value, digits, fractional=False, trim="-")


def digits_apart(given: float, expected: float) -> int:
    """Return how many digits of what was expected show that it is not what was given."""
    size, gap = abs(expected), abs(given - expected)
    if not 0 < gap < size < np.inf:
        return 4
    return int(np.clip(np.log10(size / gap) + 2, 4, 8))


# -- frames --------------------------------------------------------------------------------------


def apply(
    table: pandas.DataFrame, changes: pandas.DataFrame
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return a changed copy of a frame, and the log.

    Parameters
    ----------
    table : pandas.DataFrame
        The table.
    changes : pandas.DataFrame
        As :func:`plan` makes them.

    Returns
    -------
    table, log : pandas.DataFrame

    Raises
    ------
    ValueError
        If a row is to be dropped that has cells which the log cannot hold (lists, bytes).
    """
    stay = _staying(len(table), changes)
    new, log, styles = table.copy(), [], dict[int, _Style]()
    for name in {*changes.loc[changes["new"].isna(), "column"]} - {""}:
        j = _place(table, name)
        new.isetitem(j, _with_room(new.iloc[:, j]))
    for change in changes.itertuples(index=False):
        row = int(change.row)
        if change.column:
            j = _place(table, change.column)
            if j not in styles:
                styles[j] = _style_of(table.iloc[:, j])
            value = _like(change.new, table.iloc[row, j], table.dtypes.iloc[j], styles[j])
            is_float = new.dtypes.iloc[j].kind == "f" and value is not None
            new.iloc[row, j] = float(value) if is_float else value
            old, now = _json(table.iloc[row, j]), _json(new.iloc[row, j])
        else:
            cells = (table.index[row], *table.iloc[row])
            old, now = f"[{', '.join(_json(cell) for cell in cells)}]", ""
        log.append([*_where(change), change.column, old, now, change.why])
    return new.iloc[stay], _log(log)


def restore(table: pandas.DataFrame, log: pandas.DataFrame) -> pandas.DataFrame:
    """Undo what a log says was changed in a frame.

    Parameters
    ----------
    table : pandas.DataFrame
        The cleaned table.
    log : pandas.DataFrame
        Its log.

    Returns
    -------
    pandas.DataFrame
        The table as it was.

    Raises
    ------
    ValueError
        If the table is not the one that the log was written for.
    """
    import pandas

    log = log.astype({"row": int})
    gone = log[log["column"] == ""]
    stay = _staying(len(table) + len(gone), log)
    place = {row: i for i, row in enumerate(stay)}
    columns = [table.index, *(table.iloc[:, j] for j in range(table.shape[1]))]
    content = [list(column) for column in columns]
    types = [column.dtype for column in columns]
    for change in log[log["column"] != ""].itertuples():
        j = 1 + _place(table, change.column)
        old = json.loads(change.old)
        if _json(content[j][place[change.row]]) != change.new:
            raise ValueError(f"{change.column!r} of row {change.row} is not {change.new}")
        content[j][place[change.row]] = old
        if types[j].kind == "f" and isinstance(old, int):  # a blank made floats of them
            types[j] = np.dtype(bool if isinstance(old, bool) else np.int64)
    for change in gone.sort_values("row").itertuples():
        for column, cell in zip(content, json.loads(change.old), strict=True):
            column.insert(change.row, cell)
    index, *rest = (
        pandas.Series(cells, dtype=object).astype(kind)
        for cells, kind in zip(content, types, strict=True)
    )
    restored = pandas.DataFrame(dict(enumerate(rest)))
    restored.columns = table.columns
    return restored.set_axis(pandas.Index(index, name=table.index.name))


def _place(table: pandas.DataFrame, name: str) -> int:
    found = [j for j, column in enumerate(table.columns) if str(column) == name]
    if len(found) != 1:
        raise ValueError(f"the table has {len(found)} columns named {name!r}")
    return found[0]


def _with_room(column: pandas.Series) -> pandas.Series:
    """Return a column that may have missing values: integers become floats, if these are exact."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "iub":
        return column
    exact = column.dtype.kind == "b" or (column.abs() <= _LARGEST_EXACT).all()
    return column.astype("float64" if exact else "Int64")


def _like(value: float, old: Any, dtype: Any, style: _Style) -> Any:
    """Return a number as the cells of a column are: whole, or with as many decimals, or text."""
    if np.isnan(value):
        return None
    if dtype.kind in "iub":
        return bool(value > 0.5) if dtype.kind == "b" else round(value)
    text = style.write(value)
    return text if isinstance(old, str) else float(text)


def _style_of(column: pandas.Series) -> _Style:
    cells = column.dropna()
    return _Style.of(cell if isinstance(cell, str) else repr(float(cell)) for cell in cells)


def _json(cell: Any) -> str:
    """Return a cell as JSON; missing values are null."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell:
        return "null"
    if hasattr(cell, "isoformat"):
        cell = cell.isoformat()
    if not isinstance(cell, bool | int | float | str):
        kind = type(cell).__name__
        raise ValueError(f"rows that hold a {kind} cannot be logged; remove that column")
    return json.dumps(cell)


# -- files ---------------------------------------------------------------------------------------


def apply_to_file(
    path: str | os.PathLike[str], changes: pandas.DataFrame
) -> tuple[bytes | pandas.DataFrame, pandas.DataFrame]:
    """Return the changed content of a table's file, and the log.

    Parameters
    ----------
    path : path-like
        A CSV, TSV or ARFF file, gzipped or not, or a Parquet file.
    changes : pandas.DataFrame
        As :func:`plan` makes them.

    Returns
    -------
    content : bytes or pandas.DataFrame
        Of a text file the bytes (unzipped), with all that is not changed as it was; of a Parquet
        file the frame.
    log : pandas.DataFrame
        For a text file its last line has checksums of the table before and after, by which
        :func:`restore_file` knows whether it may, and whether it did.
    """
    import pandas

    raw = RawTable.read(path)
    if raw is None:
        return apply(pandas.read_parquet(path), changes)
    table = _quietly_read(path)
    if len(table) != len(raw.rows):
        raise ValueError(f"the rows of {path} cannot be told apart line by line")
    before, between = raw.content(), raw.between()
    stay = _staying(len(raw.rows), changes)
    log, styles = [], dict[int, _Style]()
    for change in changes.itertuples(index=False):
        row, new = int(change.row), ""
        if change.column:
            j = _place(table, change.column)
            old = raw.cell(row, j)
            if not _is_number(old, change.given):
                raise ValueError(
                    f"{change.column!r} of row {row} of {path} is {old!r}, not {change.given!r}"
                )
            new = raw.blank
            if not np.isnan(change.new):
                if j not in styles:
                    whole = (i for i in range(len(raw.rows)) if raw.has_cell(i, j))
                    styles[j] = _Style.of(text for i in whole if _is_number(text := raw.cell(i, j)))
                new = styles[j].write(change.new)
            raw.set_cell(row, j, new)
        else:
            start, cells = raw.rows[row]
            # With what stands before it, where the other rows do not tell.
            old = cells if start == between and len(stay) else start + cells
        log.append([*_where(change), change.column, old, new, change.why])
    raw.rows = [raw.rows[i] for i in stay]
    after = raw.content()
    log.append(["", "", "", "", _sha256(before), _sha256(after), _CHECK])
    return after, _log(log)


def restore_file(path: str | os.PathLike[str], log: pandas.DataFrame) -> bytes | pandas.DataFrame:
    """Return the content of a file as it was before it was cleaned.

    Parameters
    ----------
    path : path-like
        The cleaned file.
    log : pandas.DataFrame
        Its log, as text (see :func:`read_log`).

    Returns
    -------
    bytes or pandas.DataFrame
        Of a text file the very bytes (unzipped); of a Parquet file the frame.

    Raises
    ------
    ValueError
        If the file is not the one that the log was written for.
    """
    import pandas

    raw = RawTable.read(path)
    if raw is None:
        return restore(pandas.read_parquet(path), log)
    if not len(log) or log["why"].iloc[-1] != _CHECK:
        raise ValueError("the log has no checksums; it is not that of a text file")
    check, log = log.iloc[-1], log.iloc[:-1].astype({"row": int})
    if _sha256(raw.content()) != check["new"]:
        raise ValueError(f"{path} is not as it was when the log was written")
    gone = log[log["column"] == ""]
    stay = _staying(len(raw.rows) + len(gone), log)
    place = {row: i for i, row in enumerate(stay)}
    table = _quietly_read(path)
    for change in log[log["column"] != ""].itertuples():
        raw.set_cell(place[change.row], _place(table, change.column), change.old)
    between = raw.between()
    for change in gone.sort_values("row").itertuples():
        start = "" if change.old.startswith(("\r", "\n")) else between or ""
        raw.rows.insert(change.row, (start, change.old))
    content = raw.content()
    if _sha256(content) != check["old"]:
        raise ValueError("the log does not belong to this table; was one of them changed?")
    return content


def read_log(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """Return a log from its CSV file, all cells as text."""
    with needs("reading a log needs pandas", "data"):
        import pandas

    log = pandas.read_csv(path, dtype=str, keep_default_na=False, lineterminator="\n")
    if list(log.columns) != LOG:
        raise ValueError(f"{path} is no log of changes; its columns should be {', '.join(LOG)}")
    return log


def write_log(log: pandas.DataFrame) -> bytes:
    """Return a log as the content of a CSV file."""
    quoting = csv.QUOTE_NONNUMERIC  # line ends of every kind within cells stay
    text: str = log.to_csv(index=False, lineterminator="\n", quoting=quoting)
    return text.encode()


def _quietly_read(path: str | os.PathLike[str]) -> pandas.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said when the file was read first
        return read_table(path)


def _is_number(text: str, number: float | None = None) -> bool:
    """Return whether a text is a number, or the one given (pandas may round its last digit)."""
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return False
    return number is None or bool(np.isclose(value, number, rtol=1e-9, atol=0))


class _Style(NamedTuple):
    """How the numbers of a column are written."""

    decimals: int | None  # None: as many as needed
    mark: str

    @staticmethod
    def of(texts: Iterable[str]) -> _Style:
        decimals, mark = 0, "."
        for text in texts:
            text = text.strip().lower()
            mark = "," if "," in text else mark
            if "e" in text:
                return _Style(None, mark)
            decimals = max(decimals, len(text.replace(",", ".").partition(".")[2]))
        return _Style(decimals, mark)

    def write(self, value: float) -> str:
        text = repr(float(value)) if self.decimals is None else f"{value:.{self.decimals}f}"
        return text.replace(".", self.mark)


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# -- logs ----------------------------------------------------------------------------------------


def _where(change: Any) -> list[Any]:
    return [change.line, int(change.row), change.id]


def _log(entries: list[list[Any]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(entries, columns=LOG)


def _staying(n_rows: int, changes: pandas.DataFrame) -> npt.NDArray[np.intp]:
    """Return the numbers of the rows that stay."""
    rows = changes["row"].to_numpy(dtype=np.intp)
    if not ((rows >= 0) & (rows < n_rows)).all():
        raise ValueError(f"changes of rows beyond the {n_rows} of the table")
    return np.setdiff1d(np.arange(n_rows), rows[changes["column"] == ""])
