"""A table under review: its findings, the decisions about them, and fits that respect these."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gorelm._typing import Array, Indices, Mask
from gorelm.cleaning import apply_to_file, write_log
from gorelm.datasets.columns import columns_of
from gorelm.findings import Names, findings
from gorelm.metrics import rrmse
from gorelm.review.similar import Similar
from gorelm.review.store import Decision, Decisions, fingerprints
from gorelm.selection import listening

if TYPE_CHECKING:
    import pandas

    from gorelm.estimators.table import TableRegressor

Json: TypeAlias = dict[str, Any]

SHOWN = ("todo", "flagged", "all", "wrong", "right", "unsure", "noted")
MOST_ROWS = 200  # of one page
N_SIMILAR = 6
N_POINTS = 300  # of the plots' background


@dataclass(frozen=True)
class Table:
    """What is reviewed.

    Attributes
    ----------
    path : Path
        The file.
    frame : pandas.DataFrame
        All its columns, by which its rows are known again.
    X, y : pandas.DataFrame
        Inputs and targets.
    lines : array of int or None
        Line of the file on which each row starts.
    ids : pandas.Index or None
        Ids of the rows.
    """

    path: Path
    frame: pandas.DataFrame
    X: pandas.DataFrame
    y: pandas.DataFrame
    lines: npt.NDArray[np.intp] | None
    ids: pandas.Index | None

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [str(name) for name in self.X.columns]

    @property
    def targets(self) -> list[str]:
        """Names of the targets."""
        return [str(name) for name in self.y.columns]


class File(NamedTuple):
    """A file to download."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Findings:
    """What a fit says about all rows of the table, in their order there."""

    order: Indices  # rows, the most suspicious first
    score: Array
    quality: Array
    flagged: Mask
    certain: Mask
    kind: list[str]
    twin: Indices  # row that each contradicts, -1: none
    expected: Array  # (n, m)
    off_by: Array
    spreads: Array
    cell_score: Array
    cell_flagged: Mask

    @property
    def rank(self) -> Indices:
        """Place of every row in `order`."""
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(len(self.order))
        return rank


class Stopped(Exception):
    """The fit was told to stop."""


class Session:
    """Everything that the page asks for.

    Parameters
    ----------
    table : Table
        What is reviewed.
    decisions : Decisions
        Where the decisions are kept.
    new_model : callable
        Returns an unfitted `TableRegressor` around a model whose `fit` takes `sample_weight` and
        `trusted`.
    """

    def __init__(
        self, table: Table, decisions: Decisions, new_model: Callable[[], TableRegressor]
    ) -> None:
        self.table = table
        self.decisions = decisions
        self.rows = fingerprints(table.frame)
        self.given = np.column_stack([column.numbers()[0] for column in columns_of(table.y)])
        self._new_model = new_model
        self._digest = _digest(table.path)
        self._row_of = {key: row for row, key in enumerate(self.rows)}
        self._labels = self._make_labels()
        self._similar = Similar(table.X)
        self._usual = [_usual(table.X[name]) for name in table.X]
        self._lock = threading.RLock()
        self._found: Findings | None = None
        self._rank: Indices | None = None
        self._fit_at = 0  # version of the decisions that the last fit knew
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress: Json = {"state": "idle"}

    # -- fits ------------------------------------------------------------------------------------

    def refit(self) -> bool:
        """Begin a fit that respects the decisions; False: one is at work already."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return False
            self._progress = {"state": "fitting", "step": "reading", "done": 0, "total": 1}
            self._progress["since"] = time.monotonic()
            # A daemon: the process ends without it.
            self._thread = threading.Thread(target=self._fit, name="fit", daemon=True)
            self._thread.start()
            return True

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the fit that is at work."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Stop the fit at its next step, and say whether it has ended; closes the decisions."""
        self._stop.set()
        self.wait(seconds)
        self.decisions.close()
        return self._thread is None or not self._thread.is_alive()

    def _tell(self, step: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._progress = {**self._progress, "step": step, "done": done, "total": total}

    def _fit(self) -> None:
        try:
            decided = self.decisions.current()
            X, y, weight, trusted = self._with_decisions(decided)
            with warnings.catch_warnings(), listening(self._tell):
                warnings.simplefilter("ignore", UserWarning)  # its notes say the same
                model = self._new_model()
                asked: Json = {} if weight.all() else {"sample_weight": weight}
                asked |= {"trusted": trusted} if trusted.any() else {}
                model.fit(X, y, **asked)
                found = findings_of(model, X, y, self.given)
        except Stopped:
            self._progress = {"state": "stopped"}
        except Exception as error:  # whatever it is, the page has to say it
            message = " ".join(str(error).split()) or type(error).__name__
            self._progress = {"state": "failed", "message": message[:500]}
        else:
            seconds = time.monotonic() - self._progress["since"]
            with self._lock:
                self._found, self._rank = found, found.rank
                self._fit_at = max((d.version for d in decided.values()), default=0)
                self._progress = {
                    "state": "done",
                    "seconds": round(seconds, 1),
                    "notes": list(model.notes_),
                    "contaminated": bool(getattr(model, "contaminated_", False)),
                    "errors": self._errors(found, decided),
                }

    def _with_decisions(
        self, decided: Mapping[str, Decision]
    ) -> tuple[pandas.DataFrame, pandas.DataFrame, Array, Mask]:
        """Return inputs, targets without the wrong cells, weights, and the rows to trust."""
        X, y = self.table.X, self.table.y
        rejected, wrong = self._rejected(decided)
        verdicts = self._verdicts(decided)
        weight = np.where(rejected, 0.0, 1.0)
        return X, y.mask(wrong) if wrong.any() else y, weight, verdicts == "right"

    def _rejected(self, decided: Mapping[str, Decision]) -> tuple[Mask, Mask]:
        """Return which rows were found wrong, and which cells of other rows."""
        rows, cells = np.zeros(len(self.rows), dtype=bool), np.zeros(self.given.shape, dtype=bool)
        for key, decision in decided.items():
            if key in self._row_of:
                row = self._row_of[key]
                rows[row] = decision.verdict == "wrong"
                if decision.verdict == "cells":
                    cells[row] = [name in decision.cells for name in self.table.targets]
        return rows, cells & ~np.isnan(self.given)

    def _verdicts(self, decided: Mapping[str, Decision]) -> npt.NDArray[np.str_]:
        verdicts = np.zeros(len(self.rows), dtype="U6")
        for key, decision in decided.items():
            if key in self._row_of:
                verdicts[self._row_of[key]] = decision.verdict
        return verdicts

    def _errors(self, found: Findings, decided: Mapping[str, Decision]) -> list[float | None]:
        """Return the relative RMSE of every target, without flagged and wrong rows and cells."""
        rows, cells = self._rejected(decided)
        whole = rows | (found.flagged & (np.array(found.kind) != "cell"))
        known = ~(np.isnan(self.given - found.expected) | found.cell_flagged | cells)
        known &= ~whole[:, None]
        errors: list[float | None] = []
        for j, keep in enumerate(known.T):
            value = rrmse(self.given[keep, j], found.expected[keep, j])[0] if keep.sum() > 1 else 0
            errors.append(round(float(value), 4) if keep.sum() > 1 else None)
        return errors

    # -- what the page shows ---------------------------------------------------------------------

    def state(self) -> Json:
        """Return what the page says about the whole table."""
        with self._lock:
            decided, found, progress = self.decisions.current(), self._found, dict(self._progress)
            verdicts = self._verdicts(decided)
            fit_at = self._fit_at
        if "since" in progress:
            progress["seconds"] = round(time.monotonic() - progress.pop("since"), 1)
        here = [decision for key, decision in decided.items() if key in self._row_of]
        counts = {name: int((verdicts == name).sum()) for name in ("right", "unsure")}
        counts["wrong"] = int(((verdicts == "wrong") | (verdicts == "cells")).sum())
        counts["noted"] = sum(bool(decision.note) for decision in here)
        counts["all"] = len(self.rows)
        if found is not None:
            counts["flagged"] = int(found.flagged.sum())
            counts["certain"] = int(found.certain.sum())
            counts["todo"] = int((found.flagged & (verdicts == "")).sum())
        return {
            "name": self.table.path.name,
            "targets": self.table.targets,
            "inputs": self.table.inputs,
            "usual": self._usual,
            "counts": counts,
            "fit": progress,
            "fitted": found is not None,
            "since_fit": sum(decision.version > fit_at for decision in here),
            "version": max((decision.version for decision in decided.values()), default=0),
            "elsewhere": len(decided) - len(here),
            "file": str(self.decisions.path),
        }

    def page(
        self,
        show: str = "todo",
        *,
        after: int | None = None,
        before: int | None = None,
        count: int = 50,
        find: str = "",
    ) -> Json:
        """Return rows in the order of suspicion.

        Parameters
        ----------
        show : str
            Which rows, one of `SHOWN`.
        after, before : int, optional
            Only rows behind or ahead of this place in the order. Places do not move when a row is
            decided and is shown no more, so that no row is skipped.
        count : int
            Most rows to return.
        find : str
            Only rows whose id, line or number contains this.
        """
        if show not in SHOWN:
            raise ValueError(f"show is one of {', '.join(SHOWN)}")
        with self._lock:
            found, decided = self._found, self.decisions.current()
        if found is None:
            return {"rows": [], "total": 0, "first": 0, "more": False}
        matching = self._matching(show, found, decided)[found.order]
        if find:
            matching &= np.array([find in label for label in self._labels])[found.order]
        places = np.flatnonzero(matching)
        count = max(1, min(count, MOST_ROWS))
        if before is not None:
            end = int(np.searchsorted(places, before))
            start = max(end - count, 0)
        else:
            start = 0 if after is None else int(np.searchsorted(places, after, side="right"))
        chosen = places[start : start + count]
        return {
            "rows": [self._row(int(found.order[place]), found, decided) for place in chosen],
            "total": len(places),
            "first": start,
            "more": start + count < len(places),
        }

    def _matching(self, show: str, found: Findings, decided: Mapping[str, Decision]) -> Mask:
        verdicts = self._verdicts(decided)
        if show == "todo":
            return np.asarray(found.flagged & (verdicts == ""), dtype=bool)
        if show == "flagged":
            return found.flagged.copy()
        if show == "wrong":
            return np.isin(verdicts, ["wrong", "cells"])
        if show == "noted":
            noted = np.zeros(len(self.rows), dtype=bool)
            noted[[self._row_of[k] for k, d in decided.items() if d.note and k in self._row_of]] = 1
            return noted
        return np.asarray((verdicts == show) | (show == "all"), dtype=bool)

    def _row(self, row: int, found: Findings, decided: Mapping[str, Decision]) -> Json:
        decision = decided.get(self.rows[row], Decision(self.rows[row]))
        assert self._rank is not None
        return {
            "row": row,
            "place": int(self._rank[row]),
            "line": self._line(row),
            "id": self._id(row),
            "score": _plain(found.score[row]),
            "quality": _plain(found.quality[row]),
            "flagged": bool(found.flagged[row]),
            "certain": bool(found.certain[row]),
            "kind": found.kind[row],
            "twin": None if found.twin[row] < 0 else int(found.twin[row]),
            "given": [_plain(value) for value in self.given[row]],
            "expected": [_plain(value) for value in found.expected[row]],
            "off_by": [_plain(value) for value in found.off_by[row]],
            "spreads": [_plain(value) for value in found.spreads[row]],
            "scores": [_plain(value) for value in found.cell_score[row]],
            "off": found.cell_flagged[row].tolist(),
            "decision": _of_page(decision),
        }

    def detail(self, row: int) -> Json:
        """Return everything about one row."""
        self._require(row)
        with self._lock:
            found, decided = self._found, self.decisions.current()
        if found is None:
            raise LookupError("the first fit is still at work")
        near, distances = self._similar.nearest(row, N_SIMILAR)
        return {
            **self._row(row, found, decided),
            "inputs": self._inputs(row),
            "similar": [
                {
                    **self._row(int(other), found, decided),
                    "inputs": self._inputs(int(other)),
                    "distance": _plain(distance),
                }
                for other, distance in zip(near, distances, strict=True)
            ],
            "history": [_of_page(one) for one in self.decisions.history(self.rows[row])],
        }

    def decisions_about(self, rows: Sequence[int]) -> Json:
        """Return what holds now for some rows, by their numbers; nothing for undecided ones."""
        decided = self.decisions.current()
        known = {row: decided.get(self.rows[row]) for row in rows if 0 <= row < len(self.rows)}
        return {"decisions": {str(r): _of_page(one) for r, one in known.items() if one is not None}}

    def points(self) -> Json:
        """Return expected and given values of some rows, by target, to draw behind a row."""
        with self._lock:
            found = self._found
        if found is None:
            return {"expected": [], "given": []}
        calm = np.flatnonzero(~found.flagged)
        some = calm[:: max(1, -(-len(calm) // N_POINTS))]
        columns = {"expected": found.expected[some].T, "given": self.given[some].T}
        return {
            name: [[_plain(value) for value in column] for column in table]
            for name, table in columns.items()
        }

    def decide(
        self,
        row: int,
        verdict: str | None = None,
        cells: Sequence[str] = (),
        note: str | None = None,
        seen: int = 0,
    ) -> Json:
        """Write a decision down; returns it, and the one that it replaced unseen, if any.

        `seen` is the version of the row's last decision that the page knew.
        """
        self._require(row)
        given = dict(zip(self.table.targets, self.given[row], strict=True))
        for name in cells:
            if name not in given:
                raise ValueError(f"{name!r} is no target")
            if np.isnan(given[name]):
                raise ValueError(f"{name!r} of row {row} is missing already")
        with self._lock:
            before = self.decisions.current().get(self.rows[row], Decision(self.rows[row]))
            now = self.decisions.decide(self.rows[row], verdict, cells, note)
        unseen = before.version > seen and before.verdict != now.verdict
        return {"decision": _of_page(now), "replaced": _of_page(before) if unseen else None}

    # -- files -----------------------------------------------------------------------------------

    def cleaned(self, *, drop_flagged: bool = False) -> tuple[File, File]:
        """Return the table without the wrong rows, the wrong cells blank, and the log of changes.

        `drop_flagged`: also without the rows that are flagged and not yet decided about.

        Raises
        ------
        ValueError
            If the table's file is not the one that the review began with.
        """
        if _digest(self.table.path) != self._digest:
            raise ValueError(
                f"{self.table.path.name} has changed since the review began; start it again"
            )
        content, log = apply_to_file(self.table.path, self._changes(drop_flagged=drop_flagged))
        if not isinstance(content, bytes):
            parquet = io.BytesIO()
            content.to_parquet(parquet)
            content = parquet.getvalue()
        stem, dot, ending = self.table.path.name.partition(".")
        ending = f"{dot}{ending}".removesuffix(".gz")
        return File(f"{stem}.clean{ending}", content), File(f"{stem}.changes.csv", write_log(log))

    def _changes(self, *, drop_flagged: bool) -> pandas.DataFrame:
        """Return what the decisions change, as `gorelm.cleaning.plan` does for findings."""
        import pandas

        with self._lock:
            decided, found = self.decisions.current(), self._found
        rows, cells = self._rejected(decided)
        undecided = np.zeros_like(rows)
        if drop_flagged and found is not None:
            undecided = found.flagged & (self._verdicts(decided) == "")
        entries: list[list[object]] = []
        for row in np.flatnonzero(rows | undecided | cells.any(axis=1)).tolist():
            note = decided[self.rows[row]].note if self.rows[row] in decided else ""
            why = "flagged, not decided" if undecided[row] else f"reviewed: {note or 'wrong'}"
            where = [row, self._line(row) or "", self._id(row) or ""]
            if rows[row] or undecided[row]:
                entries.append([*where, "", np.nan, np.nan, why])
            else:
                for j in np.flatnonzero(cells[row]):
                    name, given = self.table.targets[j], self.given[row, j]
                    entries.append([*where, name, given, np.nan, why])
        names = ["row", "line", "id", "column", "given", "new", "why"]
        return pandas.DataFrame(entries, columns=names)

    def decided(self) -> File:
        """Return the decisions, a line for each row that has one."""
        import pandas

        with self._lock:
            decided = self.decisions.current()
        lines = []
        for key, decision in decided.items():
            row = self._row_of.get(key)
            place: Json = {"line": "", "row": "", "id": ""}
            if row is not None:
                place = {"line": self._line(row) or "", "row": row, "id": self._id(row) or ""}
            entry = asdict(decision) | {"fingerprint": key, "cells": ",".join(decision.cells)}
            lines.append({**place, **{k: v for k, v in entry.items() if k != "row"}})
        names = ["line", "row", "id", "verdict", "cells", "note", "time", "version", "fingerprint"]
        text = pandas.DataFrame(lines, columns=names).to_csv(index=False, lineterminator="\n")
        stem = self.table.path.name.partition(".")[0]
        return File(f"{stem}.decisions.csv", text.encode("utf-8", "backslashreplace"))

    # -- rows ------------------------------------------------------------------------------------

    def _id(self, row: int) -> str | None:
        return None if self.table.ids is None else str(self.table.ids[row])

    def _line(self, row: int) -> int | None:
        return None if self.table.lines is None else int(self.table.lines[row])

    def _make_labels(self) -> list[str]:
        """Return what each row can be found by."""
        lines = self.table.lines
        where = range(len(self.rows)) if lines is None else lines.tolist()
        if self.table.ids is None:
            return [str(line) for line in where]
        return [f"{key}\n{line}" for key, line in zip(self.table.ids, where, strict=True)]

    def _inputs(self, row: int) -> list[Any]:
        return [_shown(cell) for cell in self.table.X.iloc[row]]

    def _require(self, row: int) -> None:
        if not 0 <= row < len(self.rows):
            raise LookupError(f"there is no row {row}")


def findings_of(
    model: TableRegressor, X: pandas.DataFrame, y: pandas.DataFrame, given: Array
) -> Findings:
    """Return what a fitted model says about its rows, whose targets are `given` in the table.

    Cells that y lacks were rejected: they stay flagged.
    """
    frame = findings(model, X, y)
    names = Names([*map(str, X.columns), *map(str, y.columns)])
    order = frame[names.row].to_numpy(dtype=np.intp)

    def column(name: str) -> npt.NDArray[Any]:
        values = frame[name].to_numpy()
        sorted_back: npt.NDArray[Any] = np.empty_like(values)
        sorted_back[order] = values
        return sorted_back

    def columns(name_of: Callable[[str], str]) -> npt.NDArray[Any]:
        return np.asarray(np.column_stack([column(name_of(str(t))) for t in y.columns]))

    expected = columns(names.expected).astype(float)
    rejected = np.isnan(columns(str).astype(float)) & ~np.isnan(given)
    off_by = given - expected
    # Logarithms or roots, where the targets were judged by these.
    on_scale = getattr(model, "_on_scale", np.asarray)
    with np.errstate(invalid="ignore", over="ignore"):
        off = (on_scale(given) - on_scale(expected)) / model.target_spreads_
        spreads = np.nan_to_num(off, nan=np.nan)
    twins = frame[names.twin].fillna(-1).to_numpy(dtype=np.intp)
    return Findings(
        order=order,
        score=column(names.score).astype(float),
        quality=column(names.quality).astype(float),
        flagged=column(names.flagged).astype(bool) | rejected.any(axis=1),
        certain=column(names.certain).astype(bool) | rejected.any(axis=1),
        kind=[str(kind) for kind in column(names.kind)],
        twin=twins[np.argsort(order)],
        expected=expected,
        off_by=off_by,
        spreads=spreads,
        cell_score=columns(names.score_of).astype(float),
        cell_flagged=columns(names.flagged_of).astype(bool) | rejected,
    )


def _plain(value: Any) -> float | None:
    """Return a number as JSON has it."""
    return float(value) if np.isfinite(value) else None


def _shown(cell: Any) -> Any:
    """Return a cell as JSON has it: a number, a truth value, text or nothing."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, bool | str):
        return cell
    if isinstance(cell, int | float):
        return cell if abs(cell) < 2**53 else (str(cell) if cell == cell else None)
    text = "" if cell is None else str(cell)
    return None if text in ("", "NaT", "<NA>") else text


def _usual(column: pandas.Series) -> Any:
    """Return the median of a column of numbers, the most frequent value of another."""
    if column.dtype.kind in "iuf":
        return _shown(column.median())
    frequent = column.mode()
    return _shown(frequent.iloc[0]) if len(frequent) else None


def _of_page(decision: Decision) -> Json:
    return {name: value for name, value in asdict(decision).items() if name != "row"}


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
