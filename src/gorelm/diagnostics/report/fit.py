"""The page about one fit: its words, tables and pictures, and how it is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from gorelm._compat import num_samples
from gorelm._files import write_whole
from gorelm._typing import Array, Indices, Mask, Record
from gorelm._version import __version__
from gorelm.diagnostics.convergence import ConvergenceDisplay
from gorelm.diagnostics.drawing import MANY_POINTS, number
from gorelm.diagnostics.fitted import (
    Predictor,
    RowScores,
    as_table,
    attribute,
    innermost,
    layer_in_words,
    names_of_targets,
    out_of_fold,
    row_scores,
    within,
)
from gorelm.diagnostics.growth import GrowthDisplay
from gorelm.diagnostics.outliers import OutlierDisplay
from gorelm.diagnostics.paths import PathDisplay, searching
from gorelm.diagnostics.predictions import PredictedObservedDisplay
from gorelm.diagnostics.report.html import figure_to_svg, new_figure, render, style
from gorelm.diagnostics.report.rows import SHOWN_TARGETS, suspicious_rows, wrong_cells
from gorelm.diagnostics.report.tables import Cell, Table
from gorelm.findings import Ranking, ranking
from gorelm.metrics import rrmse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_ERRORS = 200

_DOTS_PER_INCH = 160.0  # of points drawn as an image


def write_fit_report(
    model: Predictor,
    X: object,
    y: object,
    path: str | PathLike[str],
    *,
    target_names: Sequence[object] | None = None,
    title: str | None = None,
    row_names: Sequence[object] | None = None,
) -> Path:
    """Write one HTML page about one fit.

    It says what was fitted, which settings were chosen, how far from the optimum the fit is proven
    to be, how large the errors are relative to those of the mean, and which rows to distrust. It
    shows those displays of :mod:`gorelm.diagnostics` for which the model has data. The page needs
    nothing from outside: it can be mailed, archived and printed.

    Parameters
    ----------
    model : fitted estimator
        Of this library, or a pipeline or another meta-estimator around one.
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        Inputs of the fit.
    y : array or frame of shape (n_samples,) or (n_samples, n_targets)
        Targets of the fit; NaN is unknown.
    path : path-like
        Of the page. Its folder is made if it is not there; a file is overwritten.
    target_names : sequence of str, optional
        What to call the targets; by default the columns of y.
    title : str, optional
        Of the page.
    row_names : sequence of str, optional
        What to call the rows beside their numbers; by default the index of a pandas X, if it is
        not their number anyway.

    Returns
    -------
    Path
        Of the page.

    Raises
    ------
    ImportError
        If jinja2 or matplotlib, of the extra ``report``, is not installed.
    ValueError
        If X and y are not the rows of the fit.

    Notes
    -----
    Predictions by models that did not see the row are used where the model keeps them
    (`out_of_fold_`); the page says which it shows. However many rows there are, the page stays
    small: it lists the hundred largest scores, and draws thousands of points as an image.

    Examples
    --------
    >>> import tempfile
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import write_fit_report
    >>> data = make_multitarget(100, outlier_ratio=0.1, random_state=0)
    >>> model = GORELMRegressor(lam=0.1, n_hidden=30, random_state=0).fit(data.X, data.T)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_fit_report(model, data.X, data.T, f"{folder}/fit.html").name
    'fit.html'
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name the file to write, such as fit.html")
    fit = Fit.of(model, X, y, target_names, row_names)
    text = render(
        "diagnostics/report/fit.html",
        extra="report",
        title=title or f"{fit.name} fitted to {len(fit.observed):,} rows",
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headlines=headlines(fit),
        settings=settings(fit),
        solver=solver_facts(fit),
        rows=suspicious_rows(fit),
        errors=error_table(fit),
        layers=layer_table(fit),
        versions=version_table(),
        outliers=_outliers(fit),
        predictions=_predictions(fit),
        pictures=[p for p in (_path(fit), _convergence(fit), _growth(fit)) if p is not None],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode("utf-8", "backslashreplace"))  # file names may be no text
    return path


# -- what the page is about ------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A fitted model, its training rows, its predictions of them and their names."""

    model: Predictor
    X: object  # inputs, as given
    observed: Array  # (N, m), NaN: unknown
    predicted: Array  # (N, m)
    unseen: bool  # whether the models that predicted a row were fitted without it
    rows: RowScores
    target_names: list[str]
    row_names: list[str] | None  # None: rows have only numbers
    n_features: int | None  # None: the model does not know

    @classmethod
    def of(
        cls,
        model: Predictor,
        X: object,
        y: object,
        target_names: Sequence[object] | None,
        row_names: Sequence[object] | None,
    ) -> Fit:
        """Collect; see `write_fit_report` for the parameters."""
        rows = row_scores(model)
        observed, names = as_table(y), names_of_targets(y, target_names)
        n_rows = len(rows.scores)
        for what, count in {"X": num_samples(X), "y": len(observed)}.items():
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
        return cls(model, X, observed, predicted, unseen, rows, names, named, n_features)

    @property
    def name(self) -> str:
        """The estimator, from the outside in."""
        return " → ".join(type(e).__name__ for e in within(self.model))

    @property
    def residuals(self) -> Array:
        """Observed less predicted."""
        return self.observed - self.predicted

    @cached_property
    def wrong(self) -> Mask:
        """Which cells of the targets are wrong."""
        return wrong_cells(self.model, self.observed, self.predicted, self.rows)

    @cached_property
    def judged(self) -> bool:
        """Whether the model judges rows by fits without them, as findings need it."""
        return attribute(self.model, "contaminated_") is not None and self.unseen

    @cached_property
    def findings(self) -> Ranking:
        """What is wrong with the rows: the findings of the model, or what its scores say."""
        if self.judged:
            judge: Any = next(one for one in within(self.model) if hasattr(one, "contaminated_"))
            X = self.X if hasattr(self.X, "columns") else np.asarray(self.X)
            return ranking(judge, self.observed, None if sparse.issparse(self.X) else X)
        kind = np.select([self.rows.flagged, self.wrong.any(axis=1)], ["row", "cell"], "")
        scores = np.nan_to_num(self.rows.scores, nan=-np.inf)
        order = np.lexsort([-scores, kind == ""])
        return Ranking(kind, scores, kind != "", self.wrong, order)

    @cached_property
    def relative_errors(self) -> tuple[Array, Array]:
        """RRMSE of every target, over all cells and over `right`; NaN: no cell."""
        return self._rrmse(np.isfinite(self.residuals)), self._rrmse(self.right)

    @property
    def right(self) -> Mask:
        """Which cells are known and not flagged, alone or with their row."""
        return np.isfinite(self.residuals) & ~self.rows.flagged[:, None] & ~self.wrong

    def _rrmse(self, cells: Mask) -> Array:
        errors = np.full(cells.shape[1], np.nan)
        patterns, which = np.unique(cells, axis=1, return_inverse=True)
        for pattern, rows in enumerate(patterns.T):
            block = np.ix_(rows, np.flatnonzero(which.ravel() == pattern))
            if rows.any():
                errors[block[1].ravel()] = rrmse(self.observed[block], self.predicted[block])
        return errors


def _row_names(X: object, given: Sequence[object] | None, n_rows: int) -> list[str] | None:
    if given is not None:
        if len(given) != n_rows:
            raise ValueError(f"{len(given)} row_names for {n_rows} rows")
        return [str(name) for name in given]
    index = getattr(X, "index", None)  # of pandas; lists have a method of that name
    if index is None or callable(index) or list(index) == list(range(n_rows)):
        return None
    return [str(name) for name in index]


class _Network(Protocol):
    """A fitted network: what the headlines use."""

    dual_gap_: float
    n_iter_: int
    converged_: bool
    history_: list[Record]
    n_active_: int
    direct_link: bool
    coef_: Array


def headlines(fit: Fit) -> list[tuple[str, str, str]]:
    """Return what a reader asks first, as what, figure, remark: how good, and what to check."""
    to_check = fit.findings.kind != ""
    _, kept = fit.relative_errors
    by = "models that did not see the row" if fit.unseen else "the model that saw them (optimistic)"
    error = float(np.nanmean(kept)) if np.isfinite(kept).any() else np.nan
    n_cells, n_known = int(fit.wrong.sum()), int((~np.isnan(fit.observed)).sum())
    facts = [
        (
            "relative RMSE",
            number(error) if np.isfinite(error) else "unknown",
            f"without wrong rows and cells, predicted by {by}; 0 is perfect, 1 no better than the "
            "mean",
        ),
        ("rows with findings", f"{to_check.sum():,}", _of_rows(fit)),
    ]
    if len(fit.target_names) > 1:
        of_cells = f"of {n_known:,} known target values, those of wrong rows included"
        facts.append(("cells to check", f"{n_cells:,}", of_cells))
    parts = _networks(fit)
    if not all(getattr(part, "converged_", True) for part in parts):
        facts.append(("NOT converged", *_certificate(parts)))
    return facts


def _of_rows(fit: Fit) -> str:
    found, n_rows = fit.findings, len(fit.rows.scores)
    text = f"of {n_rows:,} ({(found.kind != '').mean():.1%})"
    n_cells = int(found.cells_off[found.kind == "cell"].sum())
    counts = [
        f"{count:,} {name}{'s' * (count != 1)}"
        for count, name in (
            (int((found.kind == "row").sum()), "wrong row"),
            (n_cells, "wrong cell"),
            (int((found.kind == "input").sum()), "wrong input"),
            (int((found.kind == "duplicate").sum()), "contradicting duplicate"),
        )
        if count
    ]
    text += f": {', '.join(counts)}" if counts else ""
    if not fit.judged or attribute(fit.model, "contaminated_"):
        return text
    return f"{text}; {f'{found.certain.sum():,}' if found.certain.any() else 'none'} certain"


def _networks(fit: Fit) -> list[_Network]:
    return list(attribute(fit.model, "members_") or [innermost(fit.model)])


def solver_facts(fit: Fit) -> list[tuple[str, str]]:
    """Return how near to its optimum the fit is, and of how many nodes it consists."""
    members, parts = attribute(fit.model, "members_"), _networks(fit)
    facts = []
    if all(hasattr(part, "dual_gap_") for part in parts):
        facts.append(("Distance from the optimum", ", ".join(_certificate(parts))))
    if members:
        nodes = sum(member.n_hidden for member in members)
        facts.append(("Networks averaged", f"{len(members)}, {nodes:,} hidden nodes in all"))
    elif hasattr(parts[0], "n_active_"):
        facts.append(("Hidden nodes kept", " ".join(_nodes(parts[0]))))
    return facts


def _certificate(parts: Sequence[_Network]) -> tuple[str, str]:
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


def _nodes(part: _Network) -> tuple[str, str]:
    links = "; linked inputs included" if part.direct_link else ""
    return f"{int(part.n_active_):,}", f"of {len(part.coef_):,} have a weight{links}"


def settings(fit: Fit) -> list[tuple[str, str]]:
    """Return what was fitted, and with which settings."""
    n_rows, n_targets = fit.observed.shape
    inputs = "" if fit.n_features is None else f", {fit.n_features:,} inputs"
    unknown = int(np.isnan(fit.observed).sum())
    facts = [
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
        facts.append(("Settings chosen", chosen))
    if attribute(fit.model, "contaminated_") is not None:
        flagged = int(fit.rows.flagged.sum())
        cells = int((fit.wrong & ~fit.rows.flagged[:, None]).sum())
        of_cells = f", {cells:,} cells of other rows are flagged" if cells else ""
        two = f"in two groups: {flagged:,} rows were excluded from the training{of_cells}"
        one = f"in one group: no row was excluded from the training{of_cells}"
        facts.append(("Errors", two if attribute(fit.model, "contaminated_") else one))
    if attribute(fit.model, "stopped_by_") is not None:
        facts.append(("Growth stopped by", str(attribute(fit.model, "stopped_by_"))))
    threshold = fit.rows.threshold
    models = "models that did not see the row" if fit.rows.unseen else "the model fitted to them"
    flagging = f"score above {number(threshold)}" if np.isfinite(threshold) else "none stands out"
    facts.append(("Rows flagged if", f"{flagging}; rows are judged by {models}"))
    seconds = attribute(fit.model, "timings_")
    if seconds:
        steps = ", ".join(f"{step} {number(value)}" for step, value in seconds.items())
        facts.append(("Seconds of the fit", f"{number(sum(seconds.values()))} ({steps})"))
    return facts


def _given(estimator: BaseEstimator) -> list[str]:
    """Return the parameters that are not at their defaults."""
    defaults = type(estimator)().get_params(deep=False)
    return [
        f"{name} = {_short(value)}"
        for name, value in estimator.get_params(deep=False).items()
        if repr(value) != repr(defaults.get(name))
    ]


def _chosen(model: Predictor) -> list[str]:
    names = ("lam_", "C_", "l1_ratio_", "delta_")
    values = {name[:-1]: attribute(model, name) for name in names}
    facts = [f"{name} = {number(value)}" for name, value in values.items() if value is not None]
    search = searching(model)
    if search is not None:
        for key, column in search.cv_results_.items():
            name = key.removeprefix("param_")
            if key.startswith("param_") and values.get(name) is None and len(column) > 1:
                tried = {_short(value) for value in column}
                facts += [f"{name} = {_short(column[search.best_index_])}"] * (len(tried) > 1)
    for member in attribute(model, "members_") or []:
        nodes = f"{member.n_hidden} " if member.n_hidden else ""
        facts.append(nodes + layer_in_words(member))
    return facts


def _short(value: object) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    text = plain if isinstance(plain, str) else " ".join(repr(plain).split())
    return text if len(text) <= 80 else text[:77] + "..."


def error_table(fit: Fit) -> Table:
    """Return the error of every target, and that of predicting its mean."""
    every, kept = fit.relative_errors
    rows = []
    for k in np.sort(worst_targets(kept, SHOWN_ERRORS)):
        cells = fit.right[:, k]
        own = mean = None
        if cells.any():
            values = fit.observed[cells, k]
            own = float(np.sqrt(np.mean(fit.residuals[cells, k] ** 2)))
            mean = float(np.sqrt(np.mean((values - values.mean()) ** 2)))
        figures = [Cell(own, spec="n"), Cell(mean, spec="n"), Cell(_finite(kept[k]))]
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
        [
            "target",
            "cells not flagged",
            "RMSE",
            "RMSE of predicting the mean",
            "ratio",
            "ratio, all rows",
        ],
        rows,
        footer,
    )


def layer_table(fit: Fit) -> Table | None:
    """Return the layers that an ensemble was chosen from, or None."""
    found = attribute(fit.model, "cv_results_")
    if not attribute(fit.model, "members_") or "n_inputs" not in found:  # of earlier versions
        return None
    n_inputs, n_targets = found["n_inputs"], fit.observed.shape[1]
    rows = []
    for k, activation in enumerate(found["activation"]):
        linear = activation == "linear"
        seen = Cell(int(n_inputs[k])) if n_inputs[k] < n_inputs.max() else Cell("all")
        rows.append([
            Cell(str(activation)),
            Cell("all") if linear else seen,
            Cell(None if linear else float(found["spread"][k]), spec="3"),
            Cell("yes" if found["direct_link"][k] else "no"),
            Cell("yes" if found["guided"][k] else "no"),
            Cell(float(found["penalty"][k]), spec="3"),
            Cell(float(np.sqrt(-found["mean_test_score"][k] / n_targets))),
        ])  # fmt: skip
    caption = (
        f"{len(rows)} layers were compared in the search, each at its best penalty (in units of "
        "the squared norm of the hidden outputs), by their errors on rows that they were not "
        "fitted to: root mean square, in standard deviations of the targets. Guided: the nodes "
        "were drawn where those of earlier draws explained most."
    )
    header = ["layer", "inputs of a node", "spread", "linear part", "guided", "penalty", "error"]
    return Table("layers", caption, header, rows)


def worst_targets(errors: Array, count: int) -> Indices:
    """Return the targets with the largest errors, worst first; NaN is least."""
    return np.argsort(-np.nan_to_num(errors, nan=-1.0), kind="stable")[:count]


def version_table() -> Table:
    """Return the versions of what a fit depends on."""
    packages = ("numpy", "scipy", "scikit-learn", "matplotlib")
    rows = [[Cell("Python"), Cell(".".join(map(str, sys.version_info[:3])))]]
    rows += [[Cell("gorelm"), Cell(__version__)]]  # also where it is not installed
    rows += [[Cell(name), Cell(version(name))] for name in packages]
    return Table("versions", "Software that wrote this page.", ["package", "version"], rows)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: Array) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan


# -- pictures --------------------------------------------------------------------------------


class Picture(NamedTuple):
    """An SVG, its heading and what to see in it."""

    heading: str
    svg: str
    caption: str


def _picture(
    heading: str,
    caption: str,
    *,
    name: str,
    title: str,
    size: tuple[float, float],
    plot: Callable[[Figure], object],
) -> Picture:
    """Draw a figure of a size in inches; `title` is read out in its place."""
    with style(extra="report"):
        figure = new_figure(*size, layout="constrained")
        plot(figure)
        svg = figure_to_svg(figure, prefix=name, title=title, dpi=_DOTS_PER_INCH)
    return Picture(heading, svg, caption)


def _outliers(fit: Fit) -> Picture:
    rows = fit.rows
    display = OutlierDisplay(
        rows.scores, rows.threshold, rows.flagged, unseen=rows.unseen, row_names=fit.row_names
    )
    caption = "Every training row. The largest scores carry the number or name of their row."
    n_others = int((fit.wrong.any(axis=1) & ~rows.flagged).sum())
    if n_others:
        others = "other row has" if n_others == 1 else "other rows have"
        caption += f" {n_others:,} {others} flagged cells: only single targets are wrong there."
    return _picture(
        "Scores",
        caption + _image_note(len(fit.observed)),
        name="outliers",
        title="Outlier score of every row",
        size=(9.0, 3.8),
        plot=lambda figure: display.plot(ax=figure.subplots()),
    )


def _predictions(fit: Fit) -> Picture:
    count = len(fit.target_names)
    _, errors = fit.relative_errors
    worst = np.sort(worst_targets(errors, SHOWN_TARGETS))
    display = PredictedObservedDisplay(
        fit.observed,
        fit.predicted,
        flagged=fit.rows.flagged[:, None] | fit.wrong,
        target_names=fit.target_names,
        unseen=fit.unseen,
    )
    across = min(4, len(worst))
    down = -(-len(worst) // across)

    def plot(figure: Figure) -> None:
        grid = figure.subplots(down, across, squeeze=False)
        for spare in grid.flat[len(worst) :]:
            spare.remove()
        display.plot(ax=grid.flat[: len(worst)], targets=worst.tolist())

    by = "models that did not see the row" if fit.unseen else "the model, which saw these rows"
    caption = f"Predictions by {by}."
    if count > len(worst):
        caption += f" Shown are the {len(worst)} of {count:,} targets with the largest ratio above."
    return _picture(
        "Predicted and observed",
        caption + _image_note(len(worst) * len(fit.observed)),
        name="predictions",
        title="Predicted against observed values of every target",
        size=(0.6 + 2.6 * max(across, 1.7), 0.7 + 2.6 * down),
        plot=plot,
    )


def _path(fit: Fit) -> Picture | None:
    search = searching(fit.model)
    if search is None:
        return None
    display = PathDisplay(search.cv_results_, int(search.best_index_), scoring=search.scoring)
    count = display.n_panels
    return _picture(
        "How the penalty was chosen",
        "Bands reach one standard error of the mean over the folds to each side.",
        name="path",
        title="Cross-validated error against the penalty",
        size=(8.0, 0.8 + 2.3 * count),
        plot=lambda figure: display.plot(ax=figure.subplots(count, 1, sharex=True)),
    )


def _convergence(fit: Fit) -> Picture | None:
    display = ConvergenceDisplay.of(fit.model)
    if not display.histories:
        return None
    return _picture(
        "How the fit converged",
        "The gap is proven: the objective is at most that share above its optimum.",
        name="convergence",
        title="Dual gap, residuals and penalties of the iterations",
        size=(10.0, 3.4),
        plot=lambda figure: display.plot(ax=figure.subplots(1, 3)),
    )


def _growth(fit: Fit) -> Picture | None:
    growth = attribute(fit.model, "growth_")
    if growth is None:
        return None
    return _picture(
        "How the network grew",
        "1 is the error of predicting every median.",
        name="growth",
        title="Error against the number of hidden nodes",
        size=(7.0, 3.4),
        plot=lambda figure: GrowthDisplay(growth).plot(ax=figure.subplots()),
    )


def _image_note(n_points: int) -> str:
    many = n_points > MANY_POINTS
    return " Points are drawn as an image, to keep this page small." if many else ""
