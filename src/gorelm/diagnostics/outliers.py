"""The display of every row's outlier score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gorelm._typing import Array, Mask
from gorelm.diagnostics.drawing import (
    BLUE,
    INK,
    MANY_POINTS,
    VERMILLION,
    legend_above,
    log_axis,
    number,
    opacity,
    panels,
    shortened,
    spans_decades,
)
from gorelm.diagnostics.fitted import row_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


class OutlierDisplay:
    """Outlier map: the score of every training row, and the threshold that flags it.

    Make one with :meth:`from_estimator`. Flagged rows differ in colour and mark. The axis of scores
    is logarithmic where they span decades.

    Parameters
    ----------
    scores : array of shape (n_samples,)
        Outlier score of every row; NaN where no model has scored it.
    threshold : float
        Rows above it are flagged; infinite if nothing stands out.
    flagged : boolean array of shape (n_samples,)
        The flagged rows.
    unseen : bool, default=False
        Whether the models that scored a row were fitted without it.
    row_names : sequence of str, optional
        What to call the rows; by default their numbers, from 0.

    Attributes
    ----------
    ax_, figure_
        Where it was plotted.
    points_, flagged_points_ : matplotlib collections
        The rows.
    threshold_line_ : matplotlib line or None
        None if the threshold is infinite.
    labels_ : list of matplotlib annotations
        Names of the rows with the largest scores, as far as there is room for them.

    See Also
    --------
    outlier_threshold : Where the threshold comes from.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import OutlierDisplay
    >>> data = make_multitarget(200, outlier_ratio=0.1, random_state=0)
    >>> model = GORELMRegressor(lam=0.1, n_hidden=50, random_state=0).fit(data.X, data.T)
    >>> display = OutlierDisplay.from_estimator(model)
    >>> bool(display.flagged[data.planted].mean() > 0.9)
    True
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        scores: Array,
        threshold: float,
        flagged: Mask,
        *,
        unseen: bool = False,
        row_names: Sequence[object] | None = None,
    ) -> None:
        if row_names is not None and len(row_names) != len(scores):
            raise ValueError(f"{len(row_names)} row_names for {len(scores)} rows")
        self.scores, self.threshold, self.flagged = scores, threshold, flagged
        self.unseen, self.row_names = unseen, row_names

    @classmethod
    def from_estimator(
        cls,
        estimator: object,
        *,
        ax: object = None,
        n_labels: int = 10,
        row_names: Sequence[object] | None = None,
    ) -> OutlierDisplay:
        """Plot the scores of a fitted estimator's training rows.

        Parameters
        ----------
        estimator : fitted estimator
            Of this library, or a pipeline or another meta-estimator around one. Scores by models
            that did not see the row are preferred where there are both (`cv_outlier_scores_`).
        ax : matplotlib axes, optional
            Where to plot; by default a new figure.
        n_labels : int, default=10
            How many of the largest scores to label, where there is room.
        row_names : sequence of str, optional
            What to call the rows; by default their numbers, from 0.

        Returns
        -------
        display : OutlierDisplay
        """
        rows = row_scores(estimator)
        display = cls(
            rows.scores, rows.threshold, rows.flagged, unseen=rows.unseen, row_names=row_names
        )
        return display.plot(ax=ax, n_labels=n_labels)

    def plot(self, *, ax: object = None, n_labels: int = 10) -> OutlierDisplay:
        """Plot; see :meth:`from_estimator`."""
        (own,) = panels(ax, 1, across=1, size=(8.0, 4.0))
        self.ax_: Axes = own
        self.figure_ = self.ax_.figure
        scored = np.isfinite(self.scores)
        flagged = scored & self.flagged
        many = len(self.scores) > MANY_POINTS
        self.points_ = self._scatter(scored & ~flagged, many, BLUE, "o", "row")
        self.flagged_points_ = self._scatter(flagged, many, VERMILLION, "^", "flagged row")
        self.threshold_line_ = None
        if np.isfinite(self.threshold):
            self.threshold_line_ = self.ax_.axhline(
                self.threshold,
                color=INK,
                linewidth=1.2,
                linestyle="--",
                label=f"threshold {number(self.threshold)}",
            )
        self._finish_axes(scored)
        self._label_largest(scored, n_labels)
        return self

    def _scatter(
        self, rows: Mask, many: bool, colour: str, marker: str, what: str
    ) -> PathCollection:
        (index,) = np.nonzero(rows)
        return self.ax_.scatter(
            index,
            self.scores[index],
            s=(6 if marker == "^" else 3) if many else (26 if marker == "^" else 12),
            marker=marker,
            color=colour,
            linewidths=0,
            label=f"{len(index):,} {what}{'s' * (len(index) != 1)}",
            rasterized=many,
            zorder=3 if marker == "^" else 2,
            alpha=opacity(len(index)) if many else None,
        )

    def _label_largest(self, scored: Mask, n_labels: int) -> None:
        """Name the largest scores; a name that would cover a larger one or its mark is left out."""
        count = min(n_labels, int(scored.sum()))
        largest = np.argsort(-np.where(scored, self.scores, -np.inf), kind="stable")[:count]
        marks = self.ax_.transData.transform(np.c_[largest, self.scores[largest]])
        self.labels_: list[Annotation] = []
        taken: list[Bbox] = []
        for i in largest:
            name = str(i) if self.row_names is None else shortened(str(self.row_names[i]))
            across = i / len(self.scores)
            label = self.ax_.annotate(
                name,
                (i, self.scores[i]),
                xytext=(0, 4),
                textcoords="offset points",
                ha="left" if across < 0.15 else "right" if across > 0.85 else "center",
                va="bottom",
                fontsize=8,
                parse_math=False,
            )
            box = label.get_window_extent().padded(2)
            if box.count_contains(marks) or box.count_overlaps(taken):
                label.remove()
            else:
                taken.append(box)
                self.labels_.append(label)

    def _finish_axes(self, scored: Mask) -> None:
        from matplotlib.artist import setp

        ax, scores = self.ax_, self.scores[scored]
        ax.margins(x=0.02, y=0.12)
        if spans_decades(scores):
            floor = 1e-3 * float(np.median(scores[scores > 0]))
            reached = scores.min() < floor  # by rows that the model fits exactly
            ax.set_ylim(0.0 if reached else 0.7 * scores.min(), 3.0 * scores.max())
            log_axis(ax.yaxis, linear_below=floor if reached else None)
        else:
            ax.set_ylim(bottom=0.0)
        ax.set_xlabel("training row" + ("" if scored.all() else f" ({(~scored).sum()} not judged)"))
        models = "models that did not see the row" if self.unseen else "the model fitted to them"
        ax.set_ylabel(f"outlier score (of scaled targets),\nby {models}")
        legend_above(ax)
        legend = ax.get_legend()
        assert legend is not None
        for handle in filter(None, legend.legend_handles[:2]):
            setp(handle, alpha=1.0, sizes=[26])  # as they are with few points
