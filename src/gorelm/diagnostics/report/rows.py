"""The rows to check: what is given, what was expected, which cells are wrong, and the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Indices, Mask
from gorelm.diagnostics.fitted import RowScores, attribute
from gorelm.diagnostics.report.tables import MISSING

if TYPE_CHECKING:
    from gorelm.diagnostics.report.fit import Fit

SHOWN_ROWS = 100
SHOWN_TARGETS = 12  # with a column of their own
SHOWN_INPUTS = 40  # of a row

_EXACT, _ROUGH = 12, 4  # digits of what is given, and of what was computed


@dataclass(frozen=True)
class GivenExpected:
    """A target of a row."""

    target: str
    given: str
    expected: str
    off_by: float | None  # sorted by
    wrong: bool


@dataclass(frozen=True)
class SuspiciousRow:
    """A row of the table."""

    row: int
    name: str | None
    quality: float | None  # None: the model does not judge rows by fits without them
    score: float
    finding: str  # empty: none
    cells: list[GivenExpected]  # of every column
    more: list[GivenExpected]  # wrong ones without a column of their own
    inputs: list[tuple[str, str]]
    n_inputs: int  # of which the first are shown


@dataclass(frozen=True)
class SuspiciousRows:
    """The table of the rows with the largest scores."""

    caption: str
    targets: list[str] | None  # one column each; None: one column for the worst of each row
    named: bool  # whether rows have names beside their numbers
    judged: bool  # whether they have a quality; otherwise, a score
    rows: list[SuspiciousRow]


def wrong_cells(model: object, observed: Array, predicted: Array, rows: RowScores) -> Mask:
    """Return which cells are wrong: the model's `cell_mask_`, or those that make a row flagged.

    These are, in a flagged row, the cells that are off by more robust spreads of their target than
    the threshold of the rows; if none is, the one that is off most.
    """
    known = ~np.isnan(observed)
    mask = attribute(model, "cell_mask_")
    if mask is not None and np.shape(mask) == observed.shape:
        return np.asarray(mask, dtype=bool) & known
    some = known.any(axis=1)
    spread = Scaling.fit("robust", observed[some], np.ones(some.sum())).scale
    sizes = np.nan_to_num(np.abs(observed - predicted) / spread)
    beyond: Mask = sizes > rows.threshold
    largest: Mask = (sizes == sizes.max(axis=1, keepdims=True)) & (sizes > 0)
    none_beyond = ~beyond.any(axis=1, keepdims=True)
    return np.asarray(rows.flagged[:, None] & known & (beyond | (largest & none_beyond)))


def suspicious_rows(fit: Fit) -> SuspiciousRows:
    """Return the most suspicious rows, in the order of the table of findings."""
    scores, found = fit.rows.scores, fit.findings
    order = found.order[np.isfinite(scores[found.order])][:SHOWN_ROWS]
    caption = f"The {len(order):,} rows to check first, counted from 0"
    n_found = int((found.kind != "").sum())
    if n_found > len(order):
        caption += f"; there are findings in {n_found:,}"
    columns = len(fit.target_names) <= SHOWN_TARGETS
    caption += ". Targets: given → expected; wrong cells are marked."
    if fit.judged:
        caption += " Quality: 1 is best, below 0.5 is a finding."
    if not columns:
        caption += " Worst target: the one that is off most beside its errors in other rows."
    names, inputs = inputs_of(fit.X, order)
    sizes = _relative_sizes(fit)
    rows = []
    for i, values in zip(order, inputs, strict=True):
        every = [_given_expected(fit, int(i), k) for k in range(len(fit.target_names))]
        shown = every
        if not columns:
            known = np.isfinite(sizes[i]).any()
            shown = [every[int(np.nanargmax(np.abs(sizes[i])))]] if known else every[:1]
        texts = [value_in_print(value, _EXACT) for value in values[:SHOWN_INPUTS]]
        rows.append(
            SuspiciousRow(
                row=int(i),
                name=None if fit.row_names is None else fit.row_names[i],
                quality=float(np.exp2(-found.worst[i])) if fit.judged else None,
                score=float(scores[i]),
                finding=str(found.kind[i]),
                cells=shown,
                more=[cell for cell in every if cell.wrong and cell not in shown],
                inputs=list(zip(names, texts, strict=False)),
                n_inputs=len(values),
            )
        )
    targets = list(fit.target_names) if columns else None
    return SuspiciousRows(caption, targets, fit.row_names is not None, fit.judged, rows)


def _given_expected(fit: Fit, i: int, k: int) -> GivenExpected:
    off_by = fit.residuals[i, k]
    return GivenExpected(
        fit.target_names[k],
        value_in_print(fit.observed[i, k], _EXACT),
        value_in_print(fit.predicted[i, k], _ROUGH),
        float(off_by) if np.isfinite(off_by) else None,
        bool(fit.wrong[i, k]),
    )


def _relative_sizes(fit: Fit) -> Array:
    """Residuals in units of what is usual for their target among rows not flagged."""
    kept = np.where(fit.rows.flagged[:, None], np.nan, fit.residuals)
    if np.isnan(kept).all(axis=0).any():
        kept = fit.residuals
    usual = np.nanmedian(np.abs(kept), axis=0)
    return np.asarray(fit.residuals / np.where(usual > 0, usual, 1.0))


def inputs_of(X: Any, rows: Indices) -> tuple[list[str], Sequence[Sequence[object]]]:
    """Return the names of the inputs, and some rows of them as they were given."""
    columns = getattr(X, "columns", None)
    if hasattr(X, "iloc"):
        values = [list(row) for row in X.iloc[rows].itertuples(index=False, name=None)]
    elif columns is not None:  # polars
        values = [list(row) for row in X[rows.tolist()].rows()]
    else:
        array = X.tocsr()[rows].toarray() if sparse.issparse(X) else np.asarray(X)[rows]
        values = array.reshape(len(rows), -1).tolist()
    n_inputs = len(values[0]) if values else 0
    if columns is None:
        return [f"input {j}" for j in range(n_inputs)], values
    return [str(name) for name in columns], values


def value_in_print(value: object, digits: int) -> str:
    """Return a value as people write it: 18,280 and 0.31; a dash where there is none."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value != value or str(value) in ("", "<NA>", "NaT"):
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not 1e-4 <= abs(value) < 1e15 and value:
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    decimals = digits - 1 - int(np.floor(np.log10(abs(value)))) if value else 0
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
