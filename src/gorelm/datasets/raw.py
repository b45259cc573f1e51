"""A text table byte by byte: remove rows, change cells, and restore both.

What is not changed keeps every byte: quotes, blanks, line ends, blank lines, comments, the mark of
the encoding.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gorelm.datasets.files import content_of, encoding_of
from gorelm.datasets.table import is_arff, is_text, sniff

_LINE_ENDS = ("\r\n", "\n", "\r")


@dataclass
class RawTable:
    """A text file in parts, which joined are the file.

    Attributes
    ----------
    head : str
        The names of the columns, or all that stands before the first row of an ARFF file, without
        its line end.
    rows : list of tuple of str
        What stands between the row and the one before (a line end, blank lines, comments), and the
        row without its line end.
    tail : str
        What stands behind the last row.
    separator : str
        What is between the cells.
    encoding : str
        How the text becomes bytes.
    has_ids : bool
        Whether the first cell of every row is its id.
    """

    head: str
    rows: list[tuple[str, str]]
    tail: str
    separator: str
    encoding: str
    has_ids: bool = False
    arff: bool = False

    @staticmethod
    def read(path: str | os.PathLike[str]) -> RawTable | None:
        """Return the parts of a CSV, TSV or ARFF file, gzipped or not; None for other kinds."""
        path = Path(path).expanduser()
        if not (is_text(path) or is_arff(path)):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said when the table was read
            encoding = encoding_of(path)
            header, separator, _ = sniff(path) if is_text(path) else ([""], ",", "")
        content = content_of(path)
        # The mark at the beginning stays a part of the text.
        if encoding == "utf-16":
            encoding = "utf-16-le" if content.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
        encoding = encoding.removesuffix("-sig")
        text = content.decode(encoding)
        if is_arff(path):
            return RawTable(*_in_parts(_arff_records(text)), ",", encoding, arff=True)
        parts = _in_parts(_csv_records(text, separator))
        return RawTable(*parts, separator, encoding, has_ids=not header[0])

    def content(self) -> bytes:
        """Return the bytes of the file (unzipped)."""
        parts = [self.head, *(part for row in self.rows for part in row), self.tail]
        return "".join(parts).encode(self.encoding)

    @property
    def blank(self) -> str:
        """What stands in a cell without a value."""
        return "?" if self.arff else ""

    def between(self) -> str | None:
        """Return what stands before every row, if that is the same before all."""
        found = {before for before, _ in self.rows}
        return found.pop() if len(found) == 1 else None

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell, without quotes and blanks before it."""
        start, end = self._place(row, column)
        return self.rows[row][1][start:end]

    def has_cell(self, row: int, column: int) -> bool:
        """Return whether a row has so many cells."""
        return column + self.has_ids < len(self._places(row))

    def set_cell(self, row: int, column: int, text: str) -> None:
        """Replace the text of a cell; quotes around it stay."""
        start, end = self._place(row, column)
        before, cells = self.rows[row]
        self.rows[row] = (before, cells[:start] + text + cells[end:])

    def _place(self, row: int, column: int) -> tuple[int, int]:
        places = self._places(row)
        column += self.has_ids
        if column >= len(places):
            raise ValueError(
                f"row {row} has no cell {column + 1} of its own: {self.rows[row][1]!r}"
            )
        return places[column]

    def _places(self, row: int) -> list[tuple[int, int]]:
        cells = self.rows[row][1]
        if self.arff and cells.lstrip().startswith("{"):
            return []  # a sparse row
        return _places(cells, self.separator, "'\"" if self.arff else '"')


def _in_parts(
    records: Iterator[tuple[str, bool]],
) -> tuple[str, list[tuple[str, str]], str]:
    head, end = _cut_line_end(next(records, ("", False))[0])
    rows = []
    for raw, is_row in records:
        if not is_row:
            end += raw
            continue
        cells, after = _cut_line_end(raw)
        rows.append((end, cells))
        end = after
    return head, rows, end


def _csv_records(text: str, separator: str) -> Iterator[tuple[str, bool]]:
    """Yield the raw text of every record, the first of which has names, and whether it is a row."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    try:
        for cells in csv.reader(lines(), delimiter=separator, skipinitialspace=True):
            yield "".join(taken), len(cells) > 1 or any(cell.strip() for cell in cells)
            taken.clear()
    except csv.Error as error:
        raise ValueError(f"its cells cannot be told apart: {error}") from error


def _arff_records(text: str) -> Iterator[tuple[str, bool]]:
    head: list[str] = []
    lines = iter(io.StringIO(text, newline=""))
    for line in lines:
        head.append(line)
        if line.strip().lower().startswith("@data"):
            break
    yield "".join(head), False
    for line in lines:
        yield line, bool(line.strip()) and not line.strip().startswith("%")


def _cut_line_end(text: str) -> tuple[str, str]:
    end = next((end for end in _LINE_ENDS if text.endswith(end)), "")
    return text[: len(text) - len(end)], end


def _places(cells: str, separator: str, quotes: str) -> list[tuple[int, int]]:
    """Return where each cell of a row starts and ends, within quotes if it has some."""
    places, at = [], 0
    while True:
        while cells[at : at + 1] == " " != separator:
            at += 1
        quote = cells[at : at + 1]
        if quote and quote in quotes:
            end = _closing(cells, at + 1, quote)
            after = cells.find(separator, end + 1)
            after = len(cells) if after < 0 else after
            # What follows the closing quote belongs to the cell as well, quotes and all.
            plain = not cells[end + 1 : after].strip(" ")
            places.append((at + 1, end) if plain else (at, after))
        else:
            after = cells.find(separator, at)
            after = len(cells) if after < 0 else after
            places.append((at, after))
        if after >= len(cells):
            return places
        at = after + 1


def _closing(cells: str, at: int, quote: str) -> int:
    """Return where a quoted cell ends; a doubled quote is a part of it."""
    while (end := cells.find(quote, at)) >= 0:
        if cells[end + 1 : end + 2] != quote:
            return end
        at = end + 2
    return len(cells)
