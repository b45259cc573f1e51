"""The display of predicted against observed values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gorelm._typing import Array, Mask
from gorelm.diagnostics.drawing import (
    BLUE,
    INK,
    MANY_POINTS,
    VERMILLION,
    Style,
    fills,
    opacity,
    panels,
    shortened,
)
from gorelm.diagnostics.fitted import (
    Predictor,
    as_table,
    attribute,
    names_of_targets,
    out_of_fold,
    row_scores,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection


class PredictedObservedDisplay:
    """Predicted against observed values, one panel for each target.

    Make one with :meth:`from_estimator` or :meth:`from_predictions`. Flagged rows and cells differ
    in colour and mark; those that would leave the others no room are drawn at the edge.

    Parameters
    ----------
    observed, predicted : array of shape (n_samples, n_targets)
        NaN: unknown, not drawn.
    flagged : boolean array of shape (n_samples,) or (n_samples, n_targets), optional
        Rows to mark, or cells.
    target_names : sequence of str, optional
        What to call the targets.
    unseen : bool or None, default=None
        Whether the models that predicted a row were fitted without it; None: not known.

    Attributes
    ----------
    axes_ : array of matplotlib axes
        One for each target.
    ax_, figure_
        The first of them, and their figure.
    points_, flagged_points_, beyond_points_ : lists of matplotlib collections
        What is not flagged, what is, and what is flagged and at the edge, one for each target.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import PredictedObservedDisplay
    >>> data = make_multitarget(200, outlier_ratio=0.1, random_state=0)
    >>> model = GORELMRegressor(lam=0.1, n_hidden=50, random_state=0).fit(data.X, data.T)
    >>> display = PredictedObservedDisplay.from_estimator(model, data.X, data.T)
    >>> len(display.axes_)
    3
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        observed: object,
        predicted: object,
        *,
        flagged: Mask | None = None,
        target_names: Sequence[str] | None = None,
        unseen: bool | None = None,
    ) -> None:
        self.target_names = names_of_targets(observed, target_names)
        self.observed, self.predicted = as_table(observed), as_table(predicted)
        if self.observed.shape != self.predicted.shape:
            raise ValueError(
                f"observed has shape {self.observed.shape}, predicted {self.predicted.shape}"
            )
        none = np.zeros(len(self.observed), dtype=bool)
        self.flagged = none if flagged is None else np.asarray(flagged, dtype=bool)
        if self.flagged.shape not in (none.shape, self.observed.shape):
            raise ValueError(
                f"flagged has shape {self.flagged.shape}: it needs one value a row, or the shape "
                f"{self.observed.shape} of observed"
            )
        self.unseen = unseen

    @classmethod
    def from_estimator(
        cls,
        estimator: Predictor,
        X: object,
        y: object,
        *,
        target_names: Sequence[str] | None = None,
        targets: Sequence[int] | None = None,
        ax: object = None,
    ) -> PredictedObservedDisplay:
        """Plot what a fitted estimator predicts.

        Parameters
        ----------
        estimator : fitted estimator
            Of this library, or a pipeline or another meta-estimator around one.
        X : array of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets. As many rows as in the fit are taken to be the rows of the fit: flagged ones
            are marked, and predictions by models that did not see the row are preferred
            (`out_of_fold_`) where the estimator has them. For other rows use
            :meth:`from_predictions`.
        target_names : sequence of str, optional
            What to call the targets; by default the columns of y.
        targets : sequence of int, optional
            Which targets to draw; by default all.
        ax : matplotlib axes or array of axes, optional
            One for each target, or one to divide; by default a new figure.

        Returns
        -------
        display : PredictedObservedDisplay
        """
        check_is_fitted(estimator)
        scored = attribute(estimator, "outlier_mask_") is not None
        flagged = _flagged(estimator) if scored else None
        of_the_fit = flagged is not None and len(flagged) == len(as_table(y))
        predicted = out_of_fold(estimator) if of_the_fit else None
        display = cls(
            y,
            estimator.predict(X) if predicted is None else predicted,
            flagged=flagged if of_the_fit else None,
            target_names=target_names,
            unseen=predicted is not None if of_the_fit else None,
        )
        return display.plot(ax=ax, targets=targets)

    @classmethod
    def from_predictions(
        cls,
        y: object,
        predicted: object,
        *,
        flagged: Mask | None = None,
        target_names: Sequence[str] | None = None,
        targets: Sequence[int] | None = None,
        ax: object = None,
    ) -> PredictedObservedDisplay:
        """Plot predictions of any origin.

        Parameters
        ----------
        y, predicted : array of shape (n_samples,) or (n_samples, n_targets)
            Observed and predicted values.
        flagged : boolean array of shape (n_samples,) or (n_samples, n_targets), optional
            Rows to mark, or cells.
        target_names, targets, ax
            See :meth:`from_estimator`.

        Returns
        -------
        display : PredictedObservedDisplay
        """
        display = cls(y, predicted, flagged=flagged, target_names=target_names)
        return display.plot(ax=ax, targets=targets)

    def plot(
        self, *, ax: object = None, targets: Sequence[int] | None = None
    ) -> PredictedObservedDisplay:
        """Plot; see :meth:`from_estimator`."""
        columns = range(self.observed.shape[1]) if targets is None else targets
        across = min(4, len(columns))
        size = (4.6, 4.8) if across == 1 else (3.3, 3.3)
        self.axes_ = panels(ax, len(columns), across=across, size=size)
        self.ax_: Axes = self.axes_[0]
        self.figure_ = self.ax_.figure
        self.points_: list[PathCollection] = []
        self.flagged_points_: list[PathCollection] = []
        self.beyond_points_: list[PathCollection] = []
        for axes, k in zip(self.axes_, columns, strict=True):
            flagged = self.flagged if self.flagged.ndim == 1 else self.flagged[:, k]
            self._panel(axes, self.observed[:, k], self.predicted[:, k], flagged)
            name = shortened(self.target_names[k])
            axes.set_title(name, fontsize="medium", loc="left", parse_math=False)
        predicted = {None: "predicted", True: "predicted (rows not seen)"}.get(
            self.unseen, "predicted (rows seen)"
        )
        alone = fills(self.figure_, self.axes_)
        if alone and len(self.axes_) > 1:
            self.figure_.supxlabel("observed", fontsize="medium")
            self.figure_.supylabel(predicted, fontsize="medium")
        else:
            for axes in self.axes_:
                axes.set(xlabel="observed", ylabel=predicted)
        self._legend(alone)
        return self

    def _panel(self, axes: Axes, observed: Array, predicted: Array, flagged: Mask) -> None:
        known = np.isfinite(observed) & np.isfinite(predicted)
        low, high = _frame(observed, predicted, known, flagged)
        outside = (np.fmin(observed, predicted) < low) | (np.fmax(observed, predicted) > high)
        beyond = known & outside
        many = len(observed) > MANY_POINTS
        as_image = len(observed) * len(self.axes_) > MANY_POINTS
        size = (3.0, 7.0) if many else (11.0, 22.0)

        def scatter(rows: Mask, style: Style) -> PathCollection:
            x, y = (np.clip(values[rows], low, high) for values in (observed, predicted))
            shade = {"alpha": opacity(int(rows.sum())) if many else 0.75, "rasterized": as_image}
            return axes.scatter(x, y, **{**shade, **style})

        axes.axline((low, low), slope=1, color=INK, linewidth=1.0, zorder=4)
        dot: Style = {"s": size[0], "c": BLUE, "linewidths": 0, "zorder": 2}
        self.points_.append(scatter(known & ~beyond & ~flagged, dot))
        # Thousands of flagged points are drawn below the others, which they would hide.
        mark: Style = {"s": size[1], "marker": "^", "zorder": 1.5 if many else 3}
        flag: Style = {**mark, "c": VERMILLION, "linewidths": 0}
        self.flagged_points_.append(scatter(known & ~beyond & flagged, flag))
        edge: Style = {"facecolors": "none", "edgecolors": VERMILLION, "linewidths": 0.9}
        edge |= {**mark, "clip_on": False, "alpha": 1.0}
        self.beyond_points_.append(scatter(beyond, edge))
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.locator_params(nbins=5)
        if (
            1e5 <= max(abs(low), abs(high)) < 1e15
        ):  # 1.5M; a power apart from the ticks hides titles
            from matplotlib.ticker import EngFormatter

            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    def _legend(self, alone: bool) -> None:
        from matplotlib.lines import Line2D

        dot: Style = {"linestyle": "none", "color": BLUE, "marker": "o", "markersize": 4}
        flag: Style = {"linestyle": "none", "color": VERMILLION, "marker": "^", "markersize": 5.5}
        handles: list[Artist] = [Line2D([], [], label="row", **dot)]
        if self.flagged.any():
            what = "flagged row" if self.flagged.ndim == 1 else "flagged"
            handles.append(Line2D([], [], label=what, **flag))
        if any(np.size(points.get_offsets()) for points in self.beyond_points_):
            hollow: Style = {**flag, "markerfacecolor": "none"}
            handles.append(Line2D([], [], label="beyond the frame", **hollow))
        handles.append(Line2D([], [], color=INK, linewidth=1.0, label="predicted = observed"))
        if alone:
            ncols = len(handles) if len(self.axes_) > 2 else 2
            self.figure_.legend(
                handles=handles, loc="outside upper left", ncols=ncols, frameon=False
            )
        else:
            self.ax_.legend(handles=handles, fontsize="small")


def _flagged(estimator: object) -> Mask:
    """Return which rows are flagged, or which cells, where the estimator judges these."""
    rows, cells = row_scores(estimator).flagged, attribute(estimator, "cell_mask_")
    if cells is None:
        return rows
    flagged: Mask = rows[:, None] | as_table(cells).astype(bool)
    return flagged


def _frame(observed: Array, predicted: Array, known: Mask, flagged: Mask) -> tuple[float, float]:
    """Return the range to show: all rows, unless flagged ones are so far off as to hide others."""
    if not known.any():
        return 0.0, 1.0
    both = np.stack([observed, predicted])
    everything = both[:, known]
    ordinary = both[:, known & ~flagged]
    low, high = float(everything.min()), float(everything.max())
    if ordinary.size:
        inner_low, inner_high = float(ordinary.min()), float(ordinary.max())
        room = inner_high - inner_low
        if high - low > 2.5 * room > 0:
            low, high = max(low, inner_low - 0.5 * room), min(high, inner_high + 0.5 * room)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return low - margin, high + margin
