"""A user's own table: CSV, Parquet or ARFF."""

import csv
import gzip
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from gorelm.datasets.arff import Column, read_arff
from gorelm.datasets.bunch import import_pandas, make_bunch
from gorelm.datasets.fetch import suggest

__all__ = ["load_table"]

Values = NDArray[np.float64]

_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
_ARFF = (".arff", ".arff.gz")
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
    the separator is none. Empty cells, ``?``, ``NA`` and the like are missing.

    Parameters
    ----------
    path : path-like
        The file.
    targets : list of str, str or int
        Names of the target columns, as a list or separated by commas; or the number of targets,
        which are then the last columns of the file.
    features : list of str or str, optional
        Names of the feature columns. By default all columns that are no targets.
    drop_missing : bool, default=False
        Leave out the rows with a missing value in any feature or target. If False they are kept,
        with NaN.
    as_frame : bool, default=False
        Return pandas frames instead of arrays, with nominal features as categoricals. Their index
        is the number of the row in the file, from 0.

    Returns
    -------
    Bunch
        As that of :func:`~gorelm.datasets.load_mulan`. A feature column of words becomes the
        index of the word among the sorted words of the column, which are in ``categories``;
        truth values become 0 and 1.

    Raises
    ------
    ValueError
        If a column is unknown or unfit (a target of words, a feature of dates), or the file
        cannot be read or is of an unknown kind.
    FileNotFoundError
        If there is no such file.
    ImportError
        If a package of the extra ``data`` is needed and not installed.

    Warns
    -----
    UserWarning
        If a column is taken for words though most of its values are numbers.

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
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    name = path.name.lower()
    if name.endswith(_ARFF):
        _, columns, table = read_arff(path)
        names = [column.name for column in columns]
        chosen = _choose(names, targets, features, path)
    elif name.endswith(_TEXT + _PARQUET):
        frame = _read_csv(path) if name.endswith(_TEXT) else _read_parquet(path)
        names = [str(column) for column in frame.columns]
        chosen = _choose(names, targets, features, path)
        columns, table = _encode(frame, names, chosen, path)
    else:
        known = ", ".join(_TEXT + _PARQUET + _ARFF)
        raise ValueError(f"{path} is of an unknown kind; a table's name ends in one of {known}.")
    return make_bunch(
        columns,
        table,
        *chosen,
        title=f"Table {path.name!r}.",
        path=path,
        drop_missing=drop_missing,
        as_frame=as_frame,
    )


def _choose(
    names: list[str],
    targets: str | Sequence[str] | int,
    features: str | Sequence[str] | None,
    path: Path,
) -> tuple[list[int], list[int]]:
    """Return the indices of the features and of the targets."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has more than one column named {twice[0]!r}.")
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
        feature_columns = [j for j in range(len(names)) if j not in set(target_columns)]
    if both := [names[j] for j in feature_columns if j in target_columns]:
        raise ValueError(f"Column {both[0]!r} of {path} is to be both a feature and a target.")
    if not feature_columns:
        raise ValueError(f"{path} has no column left for a feature; all are targets.")
    return feature_columns, target_columns


def _indices(what: str, wanted: str | Sequence[str], names: list[str], path: Path) -> list[int]:
    if isinstance(wanted, str):
        # a name may have a comma of its own
        wanted = [wanted] if wanted in names else [word.strip() for word in wanted.split(",")]
    wanted = list(wanted)
    if not wanted:
        raise ValueError(f"No {what} is named.")
    for word in wanted:
        if word not in names:
            hint = suggest(str(word), names)
            columns = "" if hint.startswith("known") else f" Its columns: {', '.join(names)}."
            raise ValueError(f"{path} has no column {word!r}; {hint}{columns}")
        if wanted.count(word) > 1:
            raise ValueError(f"The {what} {word!r} is named twice.")
    return [names.index(word) for word in wanted]


def _read_csv(path: Path) -> Any:
    pandas = import_pandas("Reading CSV files")
    header, separator = _sniff(path)

    def read(decimal: str) -> Any:
        with warnings.catch_warnings():
            # rows longer than the header would be cut, or shift the columns, with only a warning
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(
                path,
                sep=separator,
                header=0,
                names=header,
                index_col=False,
                na_values=["?"],
                skipinitialspace=True,
                decimal=decimal,
                low_memory=False,  # types by whole columns, not by chunks
                encoding="utf-8-sig",
            )

    try:
        frame = read(".")
        if separator != "," and any(_has_decimal_commas(frame[column]) for column in frame):
            frame = read(",")
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return frame


def _sniff(path: Path) -> tuple[list[str], str]:
    """Return column names and separator: the one that cuts the first line into most pieces."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with cast(TextIO, opener(path, "rt", encoding="utf-8-sig", newline="")) as file:
            first = file.readline()
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    cuts = {
        separator: next(csv.reader([first], delimiter=separator, skipinitialspace=True), [])
        for separator in (",", ";", "\t", "|")
    }
    separator = max(cuts, key=lambda key: len(cuts[key]))
    header = [name.strip() for name in cuts[separator]]
    if not any(header):
        raise ValueError(f"{path} does not start with a line of column names.")
    if all(_is_number(name) for name in header):
        raise ValueError(
            f"{path} starts with numbers; its first line must hold the names of the columns."
        )
    for j, name in enumerate(header, 1):
        if not name:
            # most often row numbers that were written along, which must not become a feature
            raise ValueError(f"Column {j} of {path} has no name; name it, or remove it.")
        if header.index(name) != j - 1:
            raise ValueError(f"{path} has more than one column named {name!r}.")
    return header, separator


def _read_parquet(path: Path) -> Any:
    pandas = import_pandas("Reading Parquet files")
    try:
        return pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "gorelm[data]"') from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error


def _encode(
    frame: Any, names: list[str], chosen: tuple[list[int], list[int]], path: Path
) -> tuple[list[Column], Values]:
    """Return columns and their numbers; those not chosen stay NaN, whatever they hold."""
    columns = [Column(name) for name in names]
    table = np.full(frame.shape, np.nan)
    for j in chosen[0] + chosen[1]:
        table[:, j], categories = _numbers(frame.iloc[:, j], f"Column {names[j]!r} of {path}")
        columns[j] = Column(names[j], categories)
    return columns, table


def _numbers(series: Any, what: str) -> tuple[Values, list[str] | None]:
    """Return numbers, or codes and the words they stand for."""
    pandas = import_pandas("Reading tables")
    kind = pandas.api.types.infer_dtype(series, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "boolean", "decimal", "empty"):
        return series.to_numpy(np.float64, na_value=np.nan), None
    if kind == "categorical":
        words = [str(word) for word in series.cat.categories]
        codes = series.cat.codes.to_numpy(np.float64)
        return np.where(codes < 0, np.nan, codes), words
    if kind != "string":
        raise ValueError(f"{what} holds neither numbers nor words but {kind}; leave it out.")
    known = series[series.notna()]
    numeric = pandas.to_numeric(known, errors="coerce").notna()
    if numeric.mean() > 0.5:
        warnings.warn(
            f"{what} is taken for words, for it has {known[~numeric].iloc[0]!r} among its numbers."
            if not numeric.all()
            else f"{what} is taken for words, for its numbers are stored as text.",
            UserWarning,
            stacklevel=4,
        )
    codes, uniques = pandas.factorize(series, sort=True)
    return np.where(codes < 0, np.nan, codes).astype(np.float64), [str(word) for word in uniques]


def _has_decimal_commas(series: Any) -> bool:
    if series.dtype.kind in "biufc":
        return False
    words = [word for word in series if isinstance(word, str)]
    return any("," in word for word in words) and all(map(_DECIMAL_COMMA.fullmatch, words))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
