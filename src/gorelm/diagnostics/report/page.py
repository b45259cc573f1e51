"""One page about one fit, which works offline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gorelm._files import write_whole
from gorelm.diagnostics.convergence import ConvergenceDisplay
from gorelm.diagnostics.drawing import MANY_POINTS
from gorelm.diagnostics.fitted import attribute
from gorelm.diagnostics.growth import GrowthDisplay
from gorelm.diagnostics.outliers import OutlierDisplay
from gorelm.diagnostics.paths import PathDisplay, searching
from gorelm.diagnostics.predictions import PredictedObservedDisplay
from gorelm.diagnostics.report.facts import (
    SHOWN_TARGETS,
    Fit,
    error_table,
    headlines,
    settings,
    suspicious_table,
    version_table,
    worst_targets,
)
from gorelm.diagnostics.report.render import render
from gorelm.diagnostics.report.svg import figure_to_svg, new_figure, style

__all__ = ["write_fit_report"]

_DOTS_PER_INCH = 160.0  # of points drawn as an image


class Picture(NamedTuple):
    """An SVG, its heading and what to see in it."""

    heading: str
    svg: str
    caption: str


def write_fit_report(
    model: Any,
    X: Any,
    y: Any,
    path: str | PathLike[str],
    *,
    target_names: Sequence[Any] | None = None,
    title: str | None = None,
    row_names: Sequence[Any] | None = None,
) -> Path:
    """Write one HTML page about one fit.

    It says what was fitted, which settings were chosen, how far from the optimum the fit is proven
    to be, how large the errors are beside those of the mean, and which rows to distrust; and it
    shows the displays of :mod:`gorelm.diagnostics` that the model has something to show in. The
    page needs nothing from outside: it can be mailed, archived and printed.

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
        "diagnostics/report/page.html",
        extra="report",
        title=title or f"{fit.name} fitted to {len(fit.observed):,} rows",
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headlines=headlines(fit),
        settings=settings(fit),
        rows=suspicious_table(fit),
        errors=error_table(fit),
        versions=version_table(),
        outliers=_outliers(fit),
        predictions=_predictions(fit),
        pictures=[p for p in (_path(fit), _convergence(fit), _growth(fit)) if p is not None],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode("utf-8", "backslashreplace"))  # file names may be no text
    return path


def _outliers(fit: Fit) -> Picture:
    rows = fit.rows
    display = OutlierDisplay(
        rows.scores, rows.threshold, rows.flagged, unseen=rows.unseen, row_names=fit.row_names
    )
    with style(extra="report"):
        figure = new_figure(9.0, 3.8, layout="constrained")
        display.plot(ax=figure.subplots())
        svg = _svg(figure, "outliers", "Outlier score of every row")
    caption = "Every training row. The ten largest scores carry the number or name of their row."
    return Picture("Scores", svg, caption + _image_note(len(fit.observed)))


def _predictions(fit: Fit) -> Picture:
    count = len(fit.target_names)
    _, errors = fit.relative_errors
    worst = np.sort(worst_targets(errors, SHOWN_TARGETS))
    display = PredictedObservedDisplay(
        fit.observed,
        fit.predicted,
        flagged=fit.rows.flagged,
        target_names=fit.target_names,
        unseen=fit.unseen,
    )
    across = min(4, len(worst))
    down = -(-len(worst) // across)
    with style(extra="report"):
        figure = new_figure(0.6 + 2.6 * max(across, 1.7), 0.7 + 2.6 * down, layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        for spare in grid.flat[len(worst) :]:
            spare.remove()
        display.plot(ax=grid.flat[: len(worst)], targets=worst.tolist())
        svg = _svg(figure, "predictions", "Predicted against observed values of every target")
    by = "models that did not see the row" if fit.unseen else "the model, which saw these rows"
    caption = f"Predictions by {by}."
    if count > len(worst):
        caption += f" Shown are the {len(worst)} of {count:,} targets with the largest ratio above."
    note = _image_note(len(worst) * len(fit.observed))
    return Picture("Predicted and observed", svg, caption + note)


def _path(fit: Fit) -> Picture | None:
    search = searching(fit.model)
    if search is None:
        return None
    display = PathDisplay(search.cv_results_, int(search.best_index_), scoring=search.scoring)
    with style(extra="report"):
        count = display.n_panels
        figure = new_figure(8.0, 0.8 + 2.3 * count, layout="constrained")
        display.plot(ax=figure.subplots(count, 1, sharex=True))
        svg = _svg(figure, "path", "Cross-validated error against the penalty")
    caption = "Bands reach one standard error of the mean over the folds to each side."
    return Picture("How the penalty was chosen", svg, caption)


def _convergence(fit: Fit) -> Picture | None:
    display = ConvergenceDisplay.of(fit.model)
    if not display.histories:
        return None
    with style(extra="report"):
        figure = new_figure(10.0, 3.4, layout="constrained")
        display.plot(ax=figure.subplots(1, 3))
        svg = _svg(figure, "convergence", "Dual gap, residuals and penalties of the iterations")
    caption = "The gap is proven: the objective is at most that share above its optimum."
    return Picture("How the fit converged", svg, caption)


def _growth(fit: Fit) -> Picture | None:
    growth = attribute(fit.model, "growth_")
    if growth is None:
        return None
    with style(extra="report"):
        figure = new_figure(7.0, 3.4, layout="constrained")
        GrowthDisplay(growth).plot(ax=figure.subplots())
        svg = _svg(figure, "growth", "Error against the number of hidden nodes")
    return Picture("How the network grew", svg, "1 is the error of predicting every median.")


def _svg(figure: Any, prefix: str, title: str) -> str:
    return figure_to_svg(figure, prefix=prefix, title=title, dpi=_DOTS_PER_INCH)


def _image_note(n_points: int) -> str:
    many = n_points > MANY_POINTS
    return " Points are drawn as an image, to keep this page small." if many else ""
