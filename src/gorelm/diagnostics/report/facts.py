"""What a page says about a fit, in words and tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from gorelm._typing import Array
from gorelm.diagnostics.drawing import number
from gorelm.diagnostics.fitted import (
    RowScores,
    attribute,
    innermost,
    out_of_fold,
    row_scores,
    within,
)
from gorelm.diagnostics.paths import searching
from gorelm.diagnostics.report.tables import Cell, Table
from gorelm.diagnostics.targets import as_table, names_of_targets
from gorelm.metrics import rrmse

__all__ = [
    "Fit",
    "error_table",
    "headlines",
    "settings",
    "suspicious_table",
    "version_table",
    "worst_targets",
]

SHOWN_ROWS = 100
SHOWN_ERRORS = 200
SHOWN_TARGETS = 12  # in pictures, and with a column of their own


@dataclass(frozen=True)
class Fit:
    """A fitted model and its training rows, with everything in its place.

    Parameters
    ----------
    model : fitted estimator
        Of this library, or a meta-estimator around one.
    observed, predicted : array (N, m)
        NaN: unknown.
    unseen : bool
        Whether the models that predicted a row had not seen it.
    rows : RowScores
        How far off every row is.
    target_names : list of str
        Of all targets.
    row_names : list of str or None
        None: rows have only numbers.
    n_features : int or None
        Number of inputs, if the model knows.
    """

    model: Any
    observed: Array
    predicted: Array
    unseen: bool
    rows: RowScores
    target_names: list[str]
    row_names: list[str] | None
    n_features: int | None

    @classmethod
    def of(
        cls,
        model: Any,
        X: Any,
        y: Any,
        target_names: Sequence[Any] | None,
        row_names: Sequence[Any] | None,
    ) -> Fit:
        """Collect; see `write_fit_report` for the parameters."""
        rows = row_scores(model)
        observed, names = as_table(y), names_of_targets(y, target_names)
        n_rows = len(rows.scores)
        for what, count in {"X": np.shape(X)[0], "y": len(observed)}.items():
            if count != n_rows:
                raise ValueError(
                    f"{what} has {count} rows, but the model keeps the scores of {n_rows}: pass "
                    "the rows of its (last) fit"
                )
        predicted = out_of_fold(model)
        unseen = predicted is not None
        if predicted is None:
            predicted = as_table(model.predict(X))
        if predicted.shape != observed.shape:
            raise ValueError(
                f"y has {observed.shape[1]} targets, but the model was fitted to "
                f"{predicted.shape[1]}"
            )
        named = _row_names(X, row_names, n_rows)
        n_features = attribute(model, "n_features_in_")
        return cls(model, observed, predicted, unseen, rows, names, named, n_features)

    @property
    def name(self) -> str:
        """The estimator, from the outside in."""
        return " → ".join(type(e).__name__ for e in within(self.model))

    @property
    def residuals(self) -> Array:
        """Observed less predicted."""
        return self.observed - self.predicted

    @cached_property
    def relative_errors(self) -> tuple[Array, Array]:
        """RRMSE of every target, over all rows and over those not flagged; NaN: no row."""
        known = np.isfinite(self.residuals)
        kept = known & ~self.rows.flagged[:, None]
        return self._rrmse(known), self._rrmse(kept)

    def _rrmse(self, cells: npt.NDArray[np.bool_]) -> Array:
        errors = np.full(cells.shape[1], np.nan)
        patterns, which = np.unique(cells, axis=1, return_inverse=True)
        for pattern, rows in enumerate(patterns.T):
            block = np.ix_(rows, np.flatnonzero(which.ravel() == pattern))
            if rows.any():
                errors[block[1].ravel()] = rrmse(self.observed[block], self.predicted[block])
        return errors


def _row_names(X: Any, given: Sequence[Any] | None, n_rows: int) -> list[str] | None:
    if given is not None:
        if len(given) != n_rows:
            raise ValueError(f"{len(given)} row_names for {n_rows} rows")
        return [str(name) for name in given]
    index = getattr(X, "index", None)  # of pandas; lists have a method of that name
    if index is None or callable(index) or list(index) == list(range(n_rows)):
        return None
    return [str(name) for name in index]


def headlines(fit: Fit) -> list[tuple[str, str, str]]:
    """Return the few figures that a reader wants first: what, figure, remark."""
    flagged, n_rows = int(fit.rows.flagged.sum()), len(fit.rows.scores)
    _, kept = fit.relative_errors
    by = "models that did not see the row" if fit.unseen else "the model that saw them (optimistic)"
    error = float(np.nanmean(kept)) if np.isfinite(kept).any() else np.nan
    said = [
        ("rows flagged", f"{flagged:,}", f"of {n_rows:,} ({100 * flagged / n_rows:.1f} %)"),
        (
            "error / error of the mean",
            number(error) if np.isfinite(error) else "unknown",
            f"rows not flagged, predicted by {by}; below 1 is better than the mean",
        ),
    ]
    parts = attribute(fit.model, "members_") or [innermost(fit.model)]
    if all(hasattr(part, "dual_gap_") for part in parts):
        said.append(("distance from the optimum", *_certificate(parts)))
    if all(hasattr(part, "n_active_") for part in parts):
        said.append(("hidden nodes kept", *_nodes(parts)))
    return said


def _certificate(parts: Sequence[Any]) -> tuple[str, str]:
    gap = max(float(part.dual_gap_) for part in parts)
    iterations = max(int(part.n_iter_) for part in parts)
    if not any(part.history_ for part in parts):
        return "0", "closed form, exact to rounding"
    if all(part.converged_ for part in parts):
        state = "converged"
    else:
        state = "NOT converged: raise max_iter or tol"
    several = " (the largest of its members)" if len(parts) > 1 else ""
    return f"≤ {number(gap)}", f"proven, relative{several}; {iterations} iterations, {state}"


def _nodes(parts: Sequence[Any]) -> tuple[str, str]:
    kept = [int(part.n_active_) for part in parts]
    links = "; linked inputs included" if any(part.direct_link for part in parts) else ""
    if len(parts) > 1:
        return f"{sum(kept):,}", f"in {len(kept)} networks: {', '.join(map(str, kept))}{links}"
    return f"{kept[0]:,}", f"of {len(parts[0].coef_):,} have a weight{links}"


def settings(fit: Fit) -> list[tuple[str, str]]:
    """Return what was fitted, and with which settings."""
    n_rows, n_targets = fit.observed.shape
    inputs = "" if fit.n_features is None else f", {fit.n_features:,} inputs"
    unknown = int(np.isnan(fit.observed).sum())
    said = [
        ("Model", fit.name),
        (
            "Data",
            f"{n_rows:,} rows{inputs}, {n_targets:,} target{'s' * (n_targets != 1)}"
            + (f"; {unknown:,} target cells unknown" if unknown else ""),
        ),
        ("Settings given", ", ".join(_given(innermost(fit.model))) or "none: all defaults"),
    ]
    chosen = ", ".join(_chosen(fit.model))
    if chosen:
        said.append(("Settings chosen", chosen))
    if attribute(fit.model, "contaminated_") is not None:
        flagged = int(fit.rows.flagged.sum())
        two = f"in two groups: {flagged:,} rows were set aside"
        one = "in one group: no row was set aside"
        said.append(("Errors fell", two if attribute(fit.model, "contaminated_") else one))
    if attribute(fit.model, "stopped_by_") is not None:
        said.append(("Growth stopped by", str(attribute(fit.model, "stopped_by_"))))
    threshold = fit.rows.threshold
    judges = "models that did not see the row" if fit.rows.unseen else "the model fitted to them"
    flagging = f"score above {number(threshold)}" if np.isfinite(threshold) else "none stands out"
    said.append(("Rows flagged if", f"{flagging}; rows are judged by {judges}"))
    return said


def _given(estimator: Any) -> list[str]:
    """Return the parameters that are not at their defaults."""
    defaults = type(estimator)().get_params(deep=False)
    return [
        f"{name} = {_short(value)}"
        for name, value in estimator.get_params(deep=False).items()
        if repr(value) != repr(defaults.get(name))
    ]


def _chosen(model: Any) -> list[str]:
    names = ("lam_", "C_", "l1_ratio_", "delta_")
    values = {name[:-1]: attribute(model, name) for name in names}
    said = [f"{name} = {number(value)}" for name, value in values.items() if value is not None]
    search = searching(model)
    if search is not None:
        for key, column in search.cv_results_.items():
            name = key.removeprefix("param_")
            if key.startswith("param_") and values.get(name) is None and len(column) > 1:
                tried = {_short(value) for value in column}
                said += [f"{name} = {_short(column[search.best_index_])}"] * (len(tried) > 1)
    for member in attribute(model, "members_") or []:
        layer = "linear" if member.n_hidden == 0 else f"{member.n_hidden} {member.activation}"
        link = " + linear" if member.direct_link and member.n_hidden else ""
        said.append(layer + link)
    return said


def _short(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    text = plain if isinstance(plain, str) else " ".join(repr(plain).split())
    return text if len(text) <= 80 else text[:77] + "..."


def error_table(fit: Fit) -> Table:
    """Return the error of every target, beside that of a predictor of its mean."""
    every, kept = fit.relative_errors
    rows = []
    for k in np.sort(worst_targets(kept, SHOWN_ERRORS)):
        cells = np.isfinite(fit.residuals[:, k]) & ~fit.rows.flagged
        own = mean = None
        if cells.any():
            values = fit.observed[cells, k]
            own = float(np.sqrt(np.mean(fit.residuals[cells, k] ** 2)))
            mean = float(np.sqrt(np.mean((values - values.mean()) ** 2)))
        figures = [Cell(own, spec="3"), Cell(mean, spec="3"), Cell(_finite(kept[k]))]
        name = Cell(fit.target_names[k])
        rows.append([name, Cell(int(cells.sum())), *figures, Cell(_finite(every[k]))])
    seen = "models that did not see the row" if fit.unseen else "the model, which saw these rows"
    footer = []
    if len(every) > 1:
        blank = [Cell("")] * 3
        means = [Cell(_finite(_mean(kept))), Cell(_finite(_mean(every)))]
        footer = [[Cell("mean"), *blank, *means]]
    caption = (
        f"Root mean square errors of predictions by {seen}. The mean that they are compared with "
        "is that of the same rows."
    )
    if len(rows) < len(every):
        caption += f" Listed are the {len(rows)} of {len(every):,} targets with the largest ratio."
    return Table(
        "errors",
        caption,
        ["target", "rows not flagged", "error", "error of the mean", "ratio", "ratio, all rows"],
        rows,
        footer,
    )


def suspicious_table(fit: Fit) -> Table:
    """Return the rows with the largest scores, and how far off each target is."""
    scores, residuals = fit.rows.scores, fit.residuals
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    order = order[: min(SHOWN_ROWS, int(np.isfinite(scores).sum()))]
    flagged = int(fit.rows.flagged.sum())
    caption = f"The {len(order):,} rows with the largest scores, counted from 0"
    if flagged > len(order):
        caption += f"; {flagged:,} are flagged in all"
    columns = len(fit.target_names) <= SHOWN_TARGETS
    names = [] if fit.row_names is None else ["name"]
    header = ["row", *names, "score", "flagged"]
    if columns:
        caption += ". Targets: observed less predicted."
        header += fit.target_names
    else:
        caption += (
            ". Worst target: the one whose residual, observed less predicted, is largest beside "
            "those of other rows."
        )
        header += ["worst target", "its residual"]
    sizes = _relative_sizes(fit) if not columns else residuals
    rows = []
    for i in order:
        cells = [Cell(int(i))] + ([] if fit.row_names is None else [Cell(fit.row_names[i])])
        cells += [Cell(float(scores[i]), spec="3"), Cell("yes" if fit.rows.flagged[i] else "no")]
        if columns:
            cells += [Cell(_finite(value), spec="3") for value in residuals[i]]
        elif np.isfinite(sizes[i]).any():
            worst = int(np.nanargmax(np.abs(sizes[i])))
            cells += [Cell(fit.target_names[worst]), Cell(_finite(residuals[i, worst]), spec="3")]
        else:
            cells += [Cell(None), Cell(None)]
        rows.append(cells)
    return Table("suspicious-rows", caption, header, rows)


def worst_targets(errors: Array, count: int) -> npt.NDArray[np.intp]:
    """Return the targets with the largest errors, worst first; NaN is least."""
    return np.argsort(-np.nan_to_num(errors, nan=-1.0), kind="stable")[:count]


def _relative_sizes(fit: Fit) -> Array:
    """Residuals in units of what is usual for their target among rows not flagged."""
    kept = np.where(fit.rows.flagged[:, None], np.nan, fit.residuals)
    if np.isnan(kept).all(axis=0).any():
        kept = fit.residuals
    usual = np.nanmedian(np.abs(kept), axis=0)
    return np.asarray(fit.residuals / np.where(usual > 0, usual, 1.0))


def version_table() -> Table:
    """Return the versions of what a fit depends on."""
    packages = ("gorelm", "numpy", "scipy", "scikit-learn", "matplotlib")
    rows = [[Cell("Python"), Cell(".".join(map(str, sys.version_info[:3])))]]
    rows += [[Cell(name), Cell(_version(name))] for name in packages]
    return Table("versions", "Software that wrote this page.", ["package", "version"], rows)


def _version(name: str) -> str:
    if name == "gorelm":  # also where it runs without being installed
        from gorelm._version import __version__

        return __version__
    return version(name)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: Array) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan
