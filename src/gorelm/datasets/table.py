"""A user's own table: CSV, Parquet or ARFF."""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from gorelm.datasets.arff import Column, read_arff
from gorelm.datasets.bunch import import_pandas, make_bunch, make_frame
from gorelm.datasets.fetch import suggest
from gorelm.datasets.files import arff_lines, csv_lines, encoding_of, open_text, require_file

if TYPE_CHECKING:
    import pandas

Values = NDArray[np.float64]

_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
_ARFF = (".arff", ".arff.gz")
_LONGEST_HEADER = 10**7  # characters
_MOST_COLUMNS = 10**5
_MOST_PARQUET_BYTES = 1 << 30  # beyond a hundred times the size of the file
# A column of text is one of numbers with damage if this share of its known cells are numbers.
_MOSTLY = 0.8
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?|[+-]?\d+(e[+-]?\d+)?", re.IGNORECASE)


def load_table(
    path: str | os.PathLike[str],
    targets: str | Sequence[str] | int,
    *,
    features: str | Sequence[str] | None = None,
    drop_missing: bool = False,
    as_frame: bool = False,
) -> Bunch:
    r"""Load features and targets from a file.

    The kind of file is told by the end of its name: ``.csv`` or ``.tsv`` (also with ``.gz``),
    ``.parquet`` or ``.pq``, ``.arff`` or ``.arff.gz``. A CSV file starts with a line of column
    names; comma, semicolon, tab and bar are recognised as separators, and decimal commas where
    the separator is none. Empty cells, ``?``, ``NA`` and the like are missing. A first column
    without a name, as ``DataFrame.to_csv`` writes it, holds the ids of the rows: it is neither a
    feature nor a target, and frames have it as their index. Other columns without a name are called
    ``column 3`` and the like, by their place.

    Parameters
    ----------
    path : path-like
        The file.
    targets : list of str, str or int
        Names of the target columns, as a list or separated by commas (a name with a comma in
        double quotes); or the number of targets, which are then the last columns of the file.
    features : list of str or str, optional
        Names of the feature columns. By default all columns that are no targets.
    drop_missing : bool, default=False
        Leave out the rows with a missing value in any feature or target. If False they are kept,
        with NaN.
    as_frame : bool, default=False
        Return pandas frames instead of arrays, with nominal features as categoricals. Their index
        is the id of the row, or, in a file without ids, its number, from 0.

    Returns
    -------
    Bunch
        As that of :func:`~gorelm.datasets.load_mulan`. A feature column of categories becomes
        the index of the category among the sorted ones of the column, which are in ``categories``;
        Booleans become 0 and 1.

    Raises
    ------
    ValueError
        If a column is unknown or unfit (a target of text, a feature of dates), or the file
        cannot be read or is of an unknown kind.
    FileNotFoundError
        If there is no such file.
    ImportError
        If a package of the extra ``data`` is needed and not installed.

    Warns
    -----
    UserWarning
        If a column is read as categories though most of its values are numbers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from gorelm.datasets import load_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "mine.csv")
    ...     _ = path.write_text("size,colour,price,weight\n1,red,10,2.5\n2,blue,20,3.5\n")
    ...     mine = load_table(path, "price, weight")
    >>> mine.data.tolist(), mine.target.tolist()
    ([[1.0, 1.0], [2.0, 0.0]], [[10.0, 2.5], [20.0, 3.5]])
    >>> mine.categories
    {'colour': ['blue', 'red']}
    """
    path = _known_kind(path)
    ids: pandas.Index | None = None
    if is_arff(path):
        _, columns, table = read_arff(path)
        names = [column.name for column in columns]
        chosen = choose_columns(names, targets, features, path)
    else:
        frame = _read_frame(path)
        names = list(frame.columns)
        chosen = choose_columns(names, targets, features, path)
        columns, table = _encode(frame, names, chosen, path)
        ids = frame.index
    return make_bunch(
        columns,
        table,
        *chosen,
        title=f"Table {path.name!r}.",
        path=path,
        drop_missing=drop_missing,
        as_frame=as_frame,
        ids=ids,
    )


def read_table(path: str | os.PathLike[str], *, words: Iterable[str] = ()) -> pandas.DataFrame:
    r"""Read all columns of a file as they are, for :class:`gorelm.TableRegressor`.

    Nothing is encoded, and no column needs to be a target. The kinds of files are those of
    :func:`load_table`.

    Parameters
    ----------
    path : path-like
        The file.
    words : iterable of str, optional
        Columns of a CSV file to read as text even if all of them look like numbers.

    Returns
    -------
    pandas.DataFrame
        Numbers and text; nominal columns of ARFF files as categoricals. The index is the first
        column of a CSV file if that has no name, the index that a Parquet file was written with,
        and otherwise the number of the row, from 0.

    Raises
    ------
    ValueError
        If the file cannot be read, or is of an unknown kind.
    FileNotFoundError, IsADirectoryError
        If there is no such file.
    ImportError
        If a package of the extra ``data`` is needed and not installed.

    Warns
    -----
    UserWarning
        If a CSV file is not UTF-8.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from gorelm.datasets import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "mine.csv")
    ...     _ = path.write_text("size,colour\n1,red\n,blue\n")
    ...     read_table(path)
       size colour
    0   1.0    red
    1   NaN   blue
    """
    path = _known_kind(path)
    if not is_arff(path):
        return _read_frame(path, words)
    _, columns, table = read_arff(path)
    return make_frame(columns, table)


class TextTable(NamedTuple):
    """The cells of a CSV file, as they are written there."""

    cells: pandas.DataFrame  # of str, the index too if the file has ids
    separator: str
    decimal: str


def read_text(path: str | os.PathLike[str]) -> TextTable | None:
    """Read all cells of a CSV or TSV file as text; None for other kinds of files."""
    path = _known_kind(path)
    if not is_text(path):
        return None
    header, separator, encoding = sniff(path)
    cells = _parse(path, header, separator, encoding, as_text=True)
    commas = separator != "," and any(_has_decimal_commas(cells[name]) for name in cells)
    return TextTable(cells, separator, "," if commas else ".")


def line_numbers(path: str | os.PathLike[str], n_rows: int) -> NDArray[np.intp] | None:
    """Return the line of a text file, from 1, on which each of its `n_rows` rows starts.

    None for files without lines, and where rows and lines cannot be brought together.
    """
    path = _known_kind(path)
    if path.name.lower().endswith(_PARQUET):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said when the file was read
            if is_arff(path):
                lines = list(arff_lines(path, encoding_of(path)))
            else:
                _, separator, encoding = sniff(path)
                lines = list(csv_lines(path, encoding, separator))
    except csv.Error:
        return None
    return np.array(lines, dtype=np.intp) if len(lines) == n_rows else None


def _known_kind(path: str | os.PathLike[str]) -> Path:
    path = Path(path).expanduser()
    require_file(path)
    if not path.name.lower().endswith(_TEXT + _PARQUET + _ARFF):
        known = ", ".join(_TEXT + _PARQUET + _ARFF)
        raise ValueError(f"{path} is of an unknown kind; a table's name ends in one of {known}.")
    return path


def is_arff(path: Path) -> bool:
    """Return whether the name of a file says that it is ARFF."""
    return path.name.lower().endswith(_ARFF)


def is_text(path: Path) -> bool:
    """Return whether the name of a file says that it is CSV or TSV."""
    return path.name.lower().endswith(_TEXT)


def _read_frame(path: Path, words: Iterable[str] = ()) -> pandas.DataFrame:
    if is_text(path):
        return _read_csv(path, words)
    frame = _read_parquet(path)
    if frame.index.nlevels > 1:
        frame = frame.reset_index(drop=True)
    frame.index.name = None
    frame.columns = [str(name) for name in frame.columns]
    _require_unique(list(frame.columns), path)
    return frame


def _require_unique(names: list[str], path: Path) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{path} has more than one column named {twice[0]!r}.")


def choose_columns(
    names: list[str],
    targets: str | Sequence[str] | int,
    features: str | Sequence[str] | None,
    path: Path,
) -> tuple[list[int], list[int]]:
    """Return the indices of the features and of the targets."""
    _require_unique(names, path)
    if isinstance(targets, str) or not isinstance(targets, (int, np.integer)):
        target_columns = _indices("target", targets, names, path)
    elif isinstance(targets, bool) or not 1 <= targets < len(names):
        raise ValueError(
            f"targets must name columns or be a number from 1 to {len(names) - 1}, as {path} has "
            f"{len(names)} columns; got {targets!r}."
        )
    else:
        target_columns = list(range(len(names) - int(targets), len(names)))

    if features is not None:
        feature_columns = _indices("feature", features, names, path)
    else:
        taken = set(target_columns)
        feature_columns = [j for j in range(len(names)) if j not in taken]
    if both := [names[j] for j in feature_columns if j in target_columns]:
        raise ValueError(f"Column {both[0]!r} of {path} is to be both a feature and a target.")
    if not feature_columns:
        raise ValueError(f"{path} has no column left for a feature; all are targets.")
    return feature_columns, target_columns


def _indices(what: str, wanted: str | Sequence[str], names: list[str], path: Path) -> list[int]:
    wanted = split_names(wanted, names) if isinstance(wanted, str) else list(wanted)
    if not wanted:
        raise ValueError(f"No {what} is named.")
    place = {name: j for j, name in enumerate(names)}
    counts = Counter(wanted)
    for word in wanted:
        if word not in place:
            hint = suggest(str(word), names)
            columns = "" if hint.startswith("known") else f" Its columns: {', '.join(names)}."
            raise ValueError(f"{path} has no column {word!r}; {hint}{columns}")
        if counts[word] > 1:
            raise ValueError(f"The {what} {word!r} is named twice.")
    return [place[word] for word in wanted]


def split_names(text: str, names: Collection[str]) -> list[str]:
    """Return the names in a list separated by commas; those with a comma are in double quotes.

    The whole text is one name if it is among the `names`, comma or not.
    """
    return [text] if text in names else [name.strip() for name in _cut(text, ",")]


def _read_csv(path: Path, words: Iterable[str] = ()) -> pandas.DataFrame:
    header, separator, encoding = sniff(path)
    words = set(words) & set(header)
    frame = _parse(path, header, separator, encoding, words=words)
    if separator == ",":
        return frame
    commas = [n for n in frame if n not in words and _has_decimal_commas(frame[n])]
    if commas:
        frame = frame.copy()
        again = _parse(path, header, separator, encoding, words=words, decimal=",")
        for name in commas:
            column = again[name]
            if column.dtype.kind not in "iuf":  # a cell is no number: with points, as elsewhere
                column = column.map(_with_point, na_action="ignore")
            frame[name] = column
    return frame


def _parse(
    path: Path,
    header: list[str],
    separator: str,
    encoding: str,
    *,
    words: Iterable[str] = (),
    decimal: str = ".",
    as_text: bool = False,
) -> pandas.DataFrame:
    pandas = import_pandas("Reading CSV files")
    read = partial(
        pandas.read_csv,
        path,
        sep=separator,
        header=0,
        names=header,
        index_col=False,
        skipinitialspace=True,
        decimal=decimal,
        low_memory=False,  # types by whole columns, not by chunks
        encoding=encoding,
    )
    try:
        with warnings.catch_warnings():
            # rows longer than the header would be cut, or shift the columns, with only a warning
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            if as_text:
                frame = read(dtype=str, na_filter=False)
            else:
                frame = read(dtype=dict.fromkeys(words, str), na_values=["?"])
            if not header[0]:
                del frame[""]
                ids = read(dtype=str, na_filter=False, usecols=[""])[""]  # NA is an id like others
                frame.index = pandas.Index(ids if as_text else _typed(ids), name=None)
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return frame


def _typed(ids: pandas.Series) -> pandas.Series:
    """Return ids as numbers if they are written as numbers are: not 007, not 1.50."""
    numbers = import_pandas("Reading CSV files").to_numeric(ids, errors="coerce")
    return numbers if (numbers.astype(str) == ids).all() else ids


def sniff(path: Path) -> tuple[list[str], str, str]:
    """Return column names, separator (it cuts the first line into most pieces) and encoding."""
    encoding = encoding_of(path)
    with open_text(path, encoding) as file:
        first = file.readline(_LONGEST_HEADER)
    if len(first) == _LONGEST_HEADER:
        raise ValueError(f"{path} is no table: its first line has no end.")
    cuts = {separator: _cut(first, separator) for separator in (",", ";", "\t", "|")}
    separator = max(cuts, key=lambda key: len(cuts[key]))
    header = [name.strip() for name in cuts[separator]]
    if len(header) > _MOST_COLUMNS:
        raise ValueError(f"{path} has {len(header):,} columns; at most {_MOST_COLUMNS:,} are read.")
    if not any(header):
        raise ValueError(f"{path} does not start with a line of column names.")
    # ids, then 0, 1, ...: a frame without names, as pandas writes it
    counted = header == ["", *map(str, range(len(header) - 1))]
    if not counted and all(_is_number(name) for name in header if name):
        raise ValueError(
            f"{path} starts with numbers; its first line must hold the names of the columns."
        )
    header = [header[0], *_named(header[1:], path)]  # the first one may hold the ids of the rows
    _require_unique(header, path)
    return header, separator, encoding


def _named(names: list[str], path: Path) -> list[str]:
    """Return the names of the second column and those behind it, with names for those without."""
    named = [name or f"column {j}" for j, name in enumerate(names, 2)]
    if given := [new for name, new in zip(names, named, strict=True) if not name]:
        more = f" and {len(given) - 3} more" if len(given) > 3 else ""
        warnings.warn(
            f"{path} has columns without a name; they are called {', '.join(given[:3])}{more}.",
            UserWarning,
            stacklevel=6,
        )
    return named


def _cut(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:  # a piece of more than 131072 characters
        return []


def _read_parquet(path: Path) -> pandas.DataFrame:
    pandas = import_pandas("Reading Parquet files")
    try:
        _refuse_parquet_bomb(path)
        return pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "gorelm[data]"') from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error


def _refuse_parquet_bomb(path: Path) -> None:
    from pyarrow import parquet

    content = parquet.read_metadata(path)
    n_bytes = 8 * content.num_rows * content.num_columns
    if n_bytes > _MOST_PARQUET_BYTES + 100 * path.stat().st_size:
        raise ValueError(f"its {content.num_rows} rows expand to more than 100 times its size.")


def _encode(
    frame: pandas.DataFrame, names: list[str], chosen: tuple[list[int], list[int]], path: Path
) -> tuple[list[Column], Values]:
    """Return columns and their numbers; those not chosen stay NaN, whatever they hold."""
    columns = [Column(name) for name in names]
    table = np.full(frame.shape, np.nan)
    for j in chosen[0] + chosen[1]:
        table[:, j], categories = _numbers(frame.iloc[:, j], f"Column {names[j]!r} of {path}")
        columns[j] = Column(names[j], categories)
    return columns, table


def _numbers(series: pandas.Series, what: str) -> tuple[Values, list[str] | None]:
    """Return numbers, or codes and the words they stand for."""
    pandas = import_pandas("Reading tables")
    kind = pandas.api.types.infer_dtype(series, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "boolean", "decimal", "empty"):
        try:
            return series.to_numpy(np.float64, na_value=np.nan), None
        except OverflowError as error:
            raise ValueError(f"{what} holds an integer beyond all floats.") from error
    if kind == "categorical":
        words = [str(word) for word in series.cat.categories]
        codes = series.cat.codes.to_numpy(np.float64)
        return np.where(codes < 0, np.nan, codes), words
    if kind != "string":
        raise ValueError(f"{what} holds neither numbers nor text but {kind}; leave it out.")
    known = series[series.notna()]
    numeric = pandas.to_numeric(known, errors="coerce").notna()
    if numeric.mean() > 0.5:
        warnings.warn(
            f"{what} is read as categories: {known[~numeric].iloc[0]!r} is not a number."
            if not numeric.all()
            else f"{what} is read as categories: its numbers are stored as text.",
            UserWarning,
            stacklevel=4,
        )
    codes, uniques = pandas.factorize(series, sort=True)
    return np.where(codes < 0, np.nan, codes).astype(np.float64), [str(word) for word in uniques]


def _has_decimal_commas(series: pandas.Series) -> bool:
    if series.dtype.kind in "biufc":
        return False
    words = [word.strip() for word in series if isinstance(word, str) and word.strip()]
    n_numbers = sum(_DECIMAL_COMMA.fullmatch(word) is not None for word in words)
    return any("," in word for word in words) and n_numbers >= _MOSTLY * len(words)


def _with_point(word: str) -> str:
    return word.replace(",", ".") if _DECIMAL_COMMA.fullmatch(word.strip()) else word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
