"""Records of finished runs in SQLite; each run is committed once, when it ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gorelm.experiments.protocol import Run, RunRecord

KEY = ("dataset", "ratio", "method", "repeat")
COLUMNS = (
    *KEY,
    "config",
    "status",
    "reason",
    "arrmse_train",
    "arrmse_test",
    "seconds_select",
    "seconds_fit",
    "seconds_predict",
    "n_iter",
    "converged",
    "dual_gap",
    "nodes",
    "n_rows",
    "n_features",
    "n_targets",
    "outlier_recall",
    "outlier_precision",
    "params",
    "seed",
    "started",
    "versions",
)
_TEXT = ("dataset", "method", "config", "status", "reason", "params", "started", "versions")


class Busy(RuntimeError):
    """Another runner is at work in the folder."""


class Store:
    """The records of one experiment.

    Parameters
    ----------
    folder : path
        Where ``records.sqlite`` is or will be.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.folder / "records.sqlite", timeout=30)
        # A record survives the power going: the log is synced before a commit returns.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        columns = ", ".join(f"{name} {'TEXT' if name in _TEXT else 'NUMERIC'}" for name in COLUMNS)
        with self._db:
            self._db.execute(
                f"CREATE TABLE IF NOT EXISTS runs ({columns}, PRIMARY KEY ({', '.join(KEY)}))"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT)")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, record: RunRecord) -> None:
        """Write a record down for good; one of the same run that failed is replaced."""
        values = [record.get(name) for name in COLUMNS]
        marks = ", ".join("?" * len(COLUMNS))
        with self._db:
            self._db.execute(
                "DELETE FROM runs WHERE dataset=? AND ratio=? AND method=? AND repeat=? "
                "AND status='failed'",
                [record[name] for name in KEY],
            )
            self._db.execute(f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({marks})", values)

    def records(self) -> list[RunRecord]:
        """Return all records, in the order of their keys."""
        rows = self._db.execute(f"SELECT {', '.join(COLUMNS)} FROM runs ORDER BY {', '.join(KEY)}")
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def finished(self, *, failed: bool) -> set[Run]:
        """Return the runs that need not be done (again); `failed`: those that failed too."""
        return {run for run, (status, _) in self.outcomes().items() if failed or status == "done"}

    def outcomes(self) -> dict[Run, tuple[str, str]]:
        """Return status and reason of every run that there is a record of."""
        rows = self._db.execute(f"SELECT status, reason, {', '.join(KEY)} FROM runs")
        return {Run(*key): (status, reason) for status, reason, *key in rows}

    def note(self, name: str, value: object) -> None:
        """Keep something by its name, as JSON."""
        with self._db:
            self._db.execute("REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value)))

    def noted(self, name: str) -> Any:
        """Return what was kept by that name, or None."""
        row = self._db.execute("SELECT text FROM notes WHERE name=?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only runner in the folder, or raise `Busy`.

        The lock is a transaction on a file of its own, which ends with the process, however that
        ends.
        """
        lock = sqlite3.connect(self.folder / "runner.lock", timeout=0, isolation_level=None)
        try:
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                raise Busy(
                    f"another runner is at work in {self.folder}; wait for it or choose another "
                    "folder"
                ) from error
            yield
        finally:
            with suppress(sqlite3.Error):
                lock.rollback()
            lock.close()
