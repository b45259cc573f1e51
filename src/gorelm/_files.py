"""Atomic writing of files: every file of the library is written completely or not at all."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return where a file of that name is or will be, with symbolic links followed.

    Raises
    ------
    OSError
        If something else than a regular file is there (a folder, a device, a pipe, a socket), if
        the file may not be written to, or if there is no folder to write it to.
    """
    place = Path(os.path.realpath(path))
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        for folder in (Path(path).parent, place.parent):  # the second is where a link leads
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"There is no folder {str(folder)!r} to write {place.name} to."
                ) from None
        return place
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{str(path)!r} is a folder, not a file.")
    if not stat.S_ISREG(mode):
        raise OSError(f"{str(path)!r} is not a regular file; only such files are written to.")
    if not os.access(place, os.W_OK):
        raise PermissionError(f"{str(path)!r} is write-protected.")
    return place


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to write to, which takes its place when the block ends without an error.

    Written is a temporary file in the same folder, ``.<hex digits>.part``, which is synced to the
    disk and then renamed. Whatever fails before, the old file stays as it is, and the temporary
    one goes; only a killed process leaves it. A symbolic link stays, and its target is replaced;
    the permissions and, where possible, the owner of an existing file are kept.

    Raises
    ------
    OSError
        As `place_of`; or if writing fails. The error has the name of the file.
    """
    place = place_of(path)
    beside = place.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            before = place.stat()
            with suppress(AttributeError, PermissionError):  # Windows; another's file
                os.chown(beside, before.st_uid, before.st_gid)
            beside.chmod(before.st_mode & 0o777)
        os.replace(beside, place)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_whole(path: str | os.PathLike[str], *parts: bytes) -> None:
    """Write a file completely or not at all; see `whole_file`."""
    with whole_file(path) as file:
        file.writelines(parts)
