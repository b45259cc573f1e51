"""Decisions of reviewers about rows, in SQLite: each is one INSERT, committed before it counts.

Nothing is ever updated or deleted, so that two pages or two processes on one file cannot lose each
other's decisions: the last one about a row holds, and the earlier ones stay in its history.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from gorelm._files import place_of

if TYPE_CHECKING:
    import pandas

VERDICTS = ("wrong", "cells", "right", "unsure", "")  # "cells": some targets of it; "": withdrawn
LONGEST_NOTE = 10_000  # characters
_COLUMNS = "version, row, verdict, cells, note, time"


@dataclass(frozen=True)
class Decision:
    """What was decided about a row.

    Attributes
    ----------
    row : str
        Fingerprint of the row.
    verdict : str
        One of `VERDICTS`.
    cells : tuple of str
        The targets that are wrong, if the verdict is "cells".
    note : str
        Of the reviewer.
    time : str
        When, as ISO 8601 in UTC.
    version : int
        Number of the entry in the file; 0: there is none about the row.
    """

    row: str
    verdict: str = ""
    cells: tuple[str, ...] = ()
    note: str = ""
    time: str = ""
    version: int = 0


class Decisions:
    """The decisions in one file.

    An entry may set the verdict, the note or both; what it does not set stays as it was. So a note
    from one page keeps the verdict that another page has given meanwhile.

    Parameters
    ----------
    path : path-like
        The file; made if it is not there.

    Raises
    ------
    ValueError
        If the file is there and does not hold decisions.
    OSError
        If the file cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = place_of(path)
        self._lock = RLock()
        self._current: dict[str, Decision] = {}
        self._seen = 0
        self._db = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
        try:
            self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        try:
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master")}
            if tables and "decisions" not in tables:
                raise ValueError(f"{self.path} is a database of something else; name another file.")
            if tables:
                self._db.execute(f"SELECT {_COLUMNS} FROM decisions LIMIT 1")
            # A decision survives the power going: the log is synced before a commit returns.
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._db:
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS decisions (version INTEGER PRIMARY KEY "
                    "AUTOINCREMENT, row TEXT NOT NULL, verdict TEXT, cells TEXT, note TEXT, "
                    "time TEXT NOT NULL)"
                )
                self._db.execute("CREATE INDEX IF NOT EXISTS by_row ON decisions (row)")
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such column" not in str(error):
                raise  # locked, read-only, disk full: says so itself
            raise ValueError(f"{self.path} does not hold decisions ({error}).") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Decisions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(
        self,
        row: str,
        verdict: str | None = None,
        cells: Sequence[str] = (),
        note: str | None = None,
    ) -> Decision:
        """Write a decision down for good, and return what holds for the row now.

        Parameters
        ----------
        row : str
            Fingerprint of the row.
        verdict : str, optional
            One of `VERDICTS`; None leaves it as it is.
        cells : sequence of str
            The targets that are wrong; needed by the verdict "cells", and only by it.
        note : str, optional
            None leaves it as it is.
        """
        if verdict is not None and verdict not in VERDICTS:
            raise ValueError(f"verdict {verdict!r} is none of {', '.join(map(repr, VERDICTS))}")
        if (verdict == "cells") != bool(cells):
            raise ValueError("the verdict 'cells' names the wrong cells, and no other one does")
        if note is not None and len(note) > LONGEST_NOTE:
            raise ValueError(f"a note may have {LONGEST_NOTE} characters; this has {len(note)}")
        if verdict is None and note is None:
            raise ValueError("a decision needs a verdict or a note")
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        listed = json.dumps(list(cells)) if verdict is not None else None
        with self._lock, self._db:
            self._db.execute(
                "INSERT INTO decisions (row, verdict, cells, note, time) VALUES (?, ?, ?, ?, ?)",
                (row, verdict, listed, note, time),
            )
        return self.current()[row]

    def current(self) -> dict[str, Decision]:
        """Return what holds now, by row; entries of other processes included."""
        with self._lock:
            entries = self._db.execute(
                f"SELECT {_COLUMNS} FROM decisions WHERE version > ? ORDER BY version",
                (self._seen,),
            )
            for entry in entries:
                before = self._current.get(entry[1], Decision(entry[1]))
                self._current[entry[1]] = _after(before, entry)
                self._seen = entry[0]
            return dict(self._current)

    def history(self, row: str) -> list[Decision]:
        """Return what held for a row after each of its entries, the oldest first."""
        with self._lock:
            entries = self._db.execute(
                f"SELECT {_COLUMNS} FROM decisions WHERE row = ? ORDER BY version", (row,)
            ).fetchall()
        states = [Decision(row)]
        for entry in entries:
            states.append(_after(states[-1], entry))
        return states[1:]


def _after(
    before: Decision, entry: tuple[int, str, str | None, str | None, str | None, str]
) -> Decision:
    version, _, verdict, cells, note, time = entry
    state = replace(before, version=version, time=time)
    if verdict is not None:
        state = replace(state, verdict=verdict, cells=tuple(json.loads(cells or "[]")))
    return state if note is None else replace(state, note=note)


def fingerprints(frame: pandas.DataFrame) -> list[str]:
    """Return a key of the content of every row: the names and the values of all its columns.

    Rows of equal content are told apart by their order. The index has no part in it, so that a
    table from which rows were removed or to which rows were added keeps its decisions.
    """
    names = json.dumps([str(name) for name in frame.columns]).encode()
    columns = [_texts(frame.iloc[:, j]) for j in range(frame.shape[1])]
    seen: dict[str, int] = {}
    keys = []
    for cells in zip(*columns, strict=True):
        digest = hashlib.sha256(names)
        for cell in cells:
            text = cell.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(text) + text)  # its length: "ab", "c" is not "a", "bc"
        key = digest.hexdigest()[:32]
        number = seen[key] = seen.get(key, 0) + 1
        keys.append(key if number == 1 else f"{key}-{number}")
    return keys


def _texts(series: pandas.Series) -> list[str]:
    missing = series.isna().to_numpy()
    return ["" if gone else _text(cell) for cell, gone in zip(series, missing, strict=True)]


def _text(cell: object) -> str:
    # A column of whole numbers becomes one of floats when one of its cells is blanked.
    whole = isinstance(cell, float) and cell.is_integer()
    return f"={int(cell) if whole else cell}"  # type: ignore[call-overload]
