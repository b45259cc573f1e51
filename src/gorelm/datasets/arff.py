"""ARFF files, dense or sparse, with numeric and nominal columns, gzipped or not."""

import csv
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gorelm._extras import needs
from gorelm.datasets.files import encoding_of, open_text


class Column(NamedTuple):
    """Name of a column and, for a nominal one, the words its codes 0, 1, ... stand for."""

    name: str
    categories: list[str] | None = None

    @property
    def kind(self) -> str:
        """Either ``"numeric"`` or ``"nominal"``."""
        return "numeric" if self.categories is None else "nominal"


class _UnfitError(ValueError):
    """A sound ARFF file that holds what cannot be learnt from; the message is complete."""


def read_arff(
    path: str | os.PathLike[str],
) -> tuple[str, list[Column], NDArray[np.float64]]:
    """Return the name of an ARFF file's relation, its columns and its values.

    A value of a nominal column is the index of its category, and a missing one (``?``) is NaN.
    Raises ValueError if the file is no sound ARFF, or has a column of strings, dates or relations.
    """
    with needs("Reading ARFF files needs liac-arff", "data"):
        import arff

    path = Path(path)
    encoding = encoding_of(path)
    try:
        with open_text(path, encoding) as file:
            relation, names, header = _read_header(file, path)
            _refuse_endless(path, encoding, len(names))
            content = arff.load(chain(header, file), encode_nominal=True)
        # None, liac-arff's word for missing, becomes NaN
        table = np.array(content["data"], dtype=np.float64).reshape(-1, len(names))
    except _UnfitError:
        raise
    except (arff.ArffException, csv.Error, ValueError, OverflowError) as error:
        raise ValueError(f"{path} is not a readable ARFF file: {_reason(error)}") from error
    columns = [
        Column(name, kind if isinstance(kind, list) else None)
        for name, (_, kind) in zip(names, content["attributes"], strict=True)
    ]
    for column in columns:
        if column.categories and len(set(column.categories)) < len(column.categories):
            raise ValueError(f"Column {column.name!r} of {path} declares a category twice.")
    return relation, columns, table


# Sparse rows and lists of categories let a small file ask for any amount of memory and time.
_MOST_SPARSE_CELLS = 5 * 10**7
_MOST_CATEGORIES = 10**5
_LONGEST_REASON = 200

_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
# For lines without blanks around them: a pattern that looks for those takes quadratic time.
_RELATION = re.compile(r"@relation\b\s*(.*)$", re.IGNORECASE)
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]++)\s*+(\S.*)$", re.IGNORECASE)
_DATA = re.compile(r"\s*@data\b", re.IGNORECASE)
_CATEGORY = re.compile(rf"""\s*({_QUOTED}|[^\s,'"{{}}]++)\s*(?:,|$)""")


def _read_header(file: Iterator[str], path: Path) -> tuple[str, list[str], list[str]]:
    """Return relation, column names, and the lines up to @data as liac-arff reads them rightly.

    As they are, it would cut values of integer columns to whole numbers, refuse tabs, misread
    quotes within names, and take exponential time over a category with a blank but no quotes.
    """
    relation, names, lines = "", dict[str, int](), list[str]()  # a dict finds names fast
    for line in map(str.strip, file):
        if found := _RELATION.match(line):
            relation = _unquote(found[1])
            line = "@relation data"
        elif re.match(r"@attribute\b", line, re.IGNORECASE):
            found = _ATTRIBUTE.match(line)
            if not found:
                raise ValueError(f"line {len(lines) + 1} declares no column: {line!r}.")
            name = _unquote(found[1])
            if name in names:
                raise ValueError(f"two columns have the name {name!r}.")
            line = f"@attribute c{len(names)} {_clean_type(found[2], name, path)}"
            names[name] = len(names)
        lines.append(line)
        if _DATA.match(line):
            break
    return relation, list(names), lines


def _refuse_endless(path: Path, encoding: str, n_columns: int) -> None:
    """Raise if sparse rows, each as long as the table is wide, are too many."""
    with open_text(path, encoding) as file:
        n_cells = n_columns * sum(line.lstrip().startswith("{") for line in file)
    if n_cells > _MOST_SPARSE_CELLS:
        raise _UnfitError(
            f"{path} expands to {n_cells:,} cells of sparse rows, {n_columns} a row; more than "
            f"{_MOST_SPARSE_CELLS:,} are not read."
        )


def _clean_type(kind: str, name: str, path: Path) -> str:
    if kind.lower() in ("numeric", "real", "integer"):
        return "numeric"
    if not kind.startswith("{"):
        raise _UnfitError(
            f"Column {name!r} of {path} is not numeric (nor nominal) but {kind!r}; remove it, or "
            "turn it into numbers or categories."
        )
    if not kind.endswith("}"):
        raise ValueError(f"the categories of column {name!r} do not end in '}}'.")
    if kind.count(",") >= _MOST_CATEGORIES:
        raise _UnfitError(
            f"Column {name!r} of {path} declares more than {_MOST_CATEGORIES:,} categories; "
            "remove it."
        )
    inner, at, words = kind[1:-1].strip(), 0, list[str]()
    while at < len(inner):
        found = _CATEGORY.match(inner, at)
        if not found:
            raise ValueError(
                f"the categories of column {name!r} cannot be told apart from "
                f"{inner[at:][:40]!r} on; one with a blank needs quotes."
            )
        words.append(found[1])
        at = found.end()
    # some files list ? with the categories; there, too, it means missing
    return "{" + ",".join(word for word in words if word != "?") + "}"


def _unquote(name: str) -> str:
    if name[:1] in ("'", '"') and name[-1:] == name[0] and len(name) > 1:
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name


def _reason(error: Exception) -> str:
    try:
        reason = " ".join(str(error).split())
        return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
    except (TypeError, ValueError):  # liac-arff formats by %, stumbling over a % in the value
        return f"{type(error).__name__}, at line {getattr(error, 'line', '?')}."
