"""The display of how a penalty was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from gorelm._typing import Array, Mask
from gorelm.diagnostics.drawing import (
    INK,
    SERIES,
    Style,
    legend_above,
    log_axis,
    number,
    panels,
    spans_decades,
)
from gorelm.diagnostics.fitted import innermost, within
from gorelm.selection import ROBUST_SCORES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import FillBetweenPolyCollection
    from matplotlib.lines import Line2D

Results: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


@runtime_checkable
class Search(Protocol):
    """A fitted search, such as `GORELMRegressorCV` or `GridSearchCV`."""

    cv_results_: Results
    best_index_: int
    scoring: object


class PathDisplay:
    """Regularisation path: cross-validated error and nodes kept against the penalty.

    Make one with :meth:`from_estimator`. There is a line for each `l1_ratio`; what else was
    searched (layers, `delta`) is held at what was chosen.

    Parameters
    ----------
    cv_results : dict of arrays
        The `cv_results_` of a search.
    best_index : int
        Which candidate was chosen.
    scoring : str, optional
        What the scores are; names that mean losses are plotted as errors.

    Attributes
    ----------
    axes_ : array of matplotlib axes
        Error, and nodes if their number is known and not always the same.
    ax_, figure_
        The first of them, and their figure.
    lines_, node_lines_ : dict of float to matplotlib line
        Error and nodes, by `l1_ratio`.
    bands_ : dict of float to matplotlib collection
        One standard error of the mean over the folds to each side.
    chosen_ : matplotlib line
        The chosen candidate.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import GORELMRegressorCV
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import PathDisplay
    >>> data = make_multitarget(100, outlier_ratio=0.1, random_state=0)
    >>> search = GORELMRegressorCV(n_hidden=30, n_lams=5, l1_ratios=[0, 0.5], random_state=0)
    >>> display = PathDisplay.from_estimator(search.fit(data.X, data.T))
    >>> sorted(display.lines_)
    [0.0, 0.5]
    >>> plt.close(display.figure_)
    """

    def __init__(self, cv_results: Results, best_index: int, *, scoring: object = None) -> None:
        self.cv_results, self.best_index, self.scoring = cv_results, best_index, scoring
        self._key = _penalty(cv_results)
        self.penalty = self._key.removeprefix("param_").split("__")[-1]
        if not self._key:
            raise ValueError(
                "there is no path to show: the search must have tried several lam or C, and kept "
                "the scores of its folds"
            )

    @classmethod
    def from_estimator(cls, estimator: object, *, ax: object = None) -> PathDisplay:
        """Plot the path of a fitted search.

        Parameters
        ----------
        estimator : fitted search
            `GORELMRegressorCV` and the like, or scikit-learn's `GridSearchCV` over `lam` or `C`.
        ax : matplotlib axes or array of axes, optional
            Where to plot; by default a new figure.

        Returns
        -------
        display : PathDisplay
        """
        search = searching(estimator)
        if search is None:
            raise ValueError(
                f"{type(innermost(estimator)).__name__} has not searched a path: choose the "
                "penalty with one of the regressors whose names end in CV"
            )
        display = cls(search.cv_results_, int(search.best_index_), scoring=search.scoring)
        return display.plot(ax=ax)

    @property
    def n_panels(self) -> int:
        """Number of axes it takes: 2 if the number of nodes is known and varies, otherwise 1."""
        nodes = self.cv_results.get("mean_n_active")
        return 1 if nodes is None or np.ptp(nodes[self._grid()[2]]) == 0 else 2

    def plot(self, *, ax: object = None) -> PathDisplay:
        """Plot; see :meth:`from_estimator`."""
        values, ratios, shown = self._grid()
        nodes = self.cv_results["mean_n_active"] if self.n_panels == 2 else None
        self.axes_ = panels(ax, self.n_panels, across=1, size=(7.0, 3.0), sharex=True)
        self.ax_: Axes = self.axes_[0]
        self.figure_ = self.ax_.figure
        self.lines_: dict[float, Line2D] = {}
        self.node_lines_: dict[float, Line2D] = {}
        self.bands_: dict[float, FillBetweenPolyCollection] = {}
        errors, deviations, label = self._errors()
        for ratio, style in zip(np.unique(ratios[shown]), cycle(SERIES), strict=False):
            (rows,) = np.nonzero(shown & (ratios == ratio) & np.isfinite(errors))
            rows = rows[np.argsort(values[rows])]
            line: Style = {**style, "markersize": 3.5, "linewidth": 1.4}
            (self.lines_[float(ratio)],) = self.ax_.plot(
                values[rows], errors[rows], label=f"l1_ratio = {ratio:g}", **line
            )
            low, high = errors[rows] - deviations[rows], errors[rows] + deviations[rows]
            self.bands_[float(ratio)] = self.ax_.fill_between(
                values[rows], low, high, color=style["color"], alpha=0.15, linewidth=0
            )
            if nodes is not None:
                (self.node_lines_[float(ratio)],) = self.axes_[1].plot(
                    values[rows], nodes[rows], **line
                )
        best = self.best_index
        mark: Style = {"marker": "o", "markersize": 11, "fillstyle": "none", "linestyle": "none"}
        mark |= {"color": INK, "markeredgewidth": 1.5, "zorder": 5}
        chosen = f"chosen: {self.penalty} = {number(values[best])}"
        (self.chosen_,) = self.ax_.plot([values[best]], [errors[best]], label=chosen, **mark)
        if nodes is not None:
            self.axes_[1].plot([values[best]], [nodes[best]], **mark)
            self.axes_[1].set_ylabel("nodes kept\n(mean over the folds)")
            self.axes_[1].set_ylim(bottom=0, top=1.1 * max(float(np.max(nodes[shown])), 1.0))
        self._finish_axes(errors[shown], label)
        return self

    def _grid(self) -> tuple[Array, Array, Mask]:
        """Return penalties, l1_ratios and which candidates are like the chosen one otherwise."""
        table, best = self.cv_results, self.best_index
        ratio_key = self._key.removesuffix(self.penalty) + "l1_ratio"
        values = _floats(table[self._key])
        ratios = _floats(table.get(ratio_key, np.zeros(len(values))))
        shown = np.isfinite(values)
        for name, column in table.items():
            if name.startswith("param_") and name not in (self._key, ratio_key):
                shown &= np.array([repr(value) == repr(column[best]) for value in column])
        return values, np.nan_to_num(ratios), shown

    def _errors(self) -> tuple[Array, Array, str]:
        folds = [k for k in self.cv_results if k.startswith("split") and k.endswith("_test_score")]
        scores = np.stack([np.asarray(self.cv_results[k], dtype=float) for k in folds])
        deviations = scores.std(axis=0, ddof=min(1, len(folds) - 1)) / np.sqrt(len(folds))
        means = np.asarray(self.cv_results["mean_test_score"], dtype=float)
        name = self.scoring if isinstance(self.scoring, str) else "score"
        if name in ROBUST_SCORES:
            what = name.replace("_norm", " norm of errors")
            return -means, deviations, f"{what},\nscaled targets, rows not seen"
        if name.startswith("neg_"):
            return -means, deviations, f"{name[4:].replace('_', ' ')}\nof rows not seen"
        return means, deviations, f"{name.replace('_', ' ')} of rows not seen\n(larger is better)"

    def _finish_axes(self, errors: Array, label: str) -> None:
        self.ax_.set_ylabel(label)
        finite = errors[np.isfinite(errors)]
        if finite.min() > 0 and spans_decades(finite, factor=15.0):
            self.ax_.set_ylim(0.8 * finite.min(), 1.25 * finite.max())
            log_axis(self.ax_.yaxis)
        for axes in self.axes_:
            log_axis(axes.xaxis, base=2)
        meaning = {"lam": "larger: smoother", "C": "weight of the errors; smaller: smoother"}
        self.axes_[-1].set_xlabel(f"{self.penalty} ({meaning[self.penalty]})")
        legend_above(self.ax_)


def searching(estimator: object) -> Search | None:
    """Return the part of a fitted estimator that has searched a path, None if none has."""
    check_is_fitted(estimator)
    for one in within(estimator):
        if isinstance(one, Search):
            return one if _penalty(one.cv_results_) else None
    return None


def _penalty(cv_results: Results) -> str:
    """Return the column of the penalty whose path was searched, empty if there is none."""
    if "split0_test_score" in cv_results:
        for name in ("lam", "C"):
            for key in cv_results:
                if key == f"param_{name}" or (
                    key.startswith("param_") and key.endswith(f"__{name}")
                ):
                    return key
    return ""


def _floats(column: npt.NDArray[np.generic]) -> Array:
    """Return numbers; NaN where a candidate has no such parameter (scikit-learn masks it)."""
    return np.ma.filled(np.ma.asarray(column).astype(float), np.nan)
