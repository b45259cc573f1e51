"""Text files: their encoding, and refusal of those that cannot be read safely."""

from __future__ import annotations

import codecs
import csv
import gzip
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

_CHUNK = 1 << 20
# What a compressed file may unfold to; tables of numbers shrink to a tenth, hardly ever to a
# hundredth, and a few kilobytes can be made to fill any memory.
_SMALL = 1 << 26
_LARGEST_RATIO = 100
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def require_file(path: Path) -> None:
    """Raise if there is no such file, or a folder instead."""
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder, not a file.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file, gzipped or not: UTF-8, UTF-16 or Latin-1.

    Raises
    ------
    ValueError
        If it is no text, or a broken or absurdly compressed gzip file.

    Warns
    -----
    UserWarning
        If it is not UTF-8, and no mark says what it is.
    """
    encoding = "utf-8-sig"  # Windows editors put a mark before the first line
    decoder = codecs.getincrementaldecoder(encoding)()
    sound, first = True, True
    for chunk in _chunks(path):
        if first and chunk.startswith(_UTF16):
            encoding, decoder = "utf-16", codecs.getincrementaldecoder("utf-16")()
        first = False
        if encoding != "utf-16" and b"\0" in chunk:
            raise ValueError(f"{path} is no text file: it has NUL bytes.")
        sound = sound and _decodes(decoder, chunk)
    sound = sound and _decodes(decoder, b"", final=True)
    if sound:
        return encoding
    if encoding == "utf-16":
        raise ValueError(f"{path} is no text file: it is marked as UTF-16, and is none.")
    warnings.warn(
        f"{path} is not UTF-8; read as Latin-1 (letters with accents may come out wrong).",
        UserWarning,
        stacklevel=4,
    )
    return "latin-1"


def _decodes(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError:
        return False
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content, unzipped, and raise where there is far too much of it."""
    limit = _SMALL + _LARGEST_RATIO * path.stat().st_size
    n_bytes = 0
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as file:
        while True:
            try:
                chunk = file.read(_CHUNK)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path} is a broken gzip file: {error}") from error
            if not chunk:
                return
            n_bytes += len(chunk)
            if n_bytes > limit:
                raise ValueError(
                    f"{path} expands to more than {_LARGEST_RATIO} times its size; if you trust "
                    "it, unzip it yourself and pass the unzipped file."
                )
            yield chunk


def content_of(path: Path) -> bytes:
    """Return the content of a file, unzipped."""
    return b"".join(_chunks(path))


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def open_text(path: Path, encoding: str) -> TextIO:
    """Open a text file, gzipped or not, with its line ends as they are."""
    opener = gzip.open if _is_gzip(path) else open
    return cast(TextIO, opener(path, "rt", encoding=encoding, newline=""))


def csv_lines(path: Path, encoding: str, separator: str) -> Iterator[int]:
    """Yield the line, from 1, on which each row of a CSV file starts; blank lines are no rows."""
    with open_text(path, encoding) as file:
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
        before = 0
        for number, record in enumerate(reader):
            if number and (len(record) > 1 or any(cell.strip() for cell in record)):
                yield before + 1
            before = reader.line_num


def arff_lines(path: Path, encoding: str) -> Iterator[int]:
    """Yield the line, from 1, of each row of an ARFF file."""
    in_data = False
    with open_text(path, encoding) as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if in_data and text and not text.startswith("%"):
                yield number
            in_data = in_data or text.lower().startswith("@data")
