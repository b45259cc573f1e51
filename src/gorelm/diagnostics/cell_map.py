"""The display of every cell's score: rows by targets, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gorelm._typing import Array, Indices, Mask
from gorelm.diagnostics.drawing import (
    INK,
    VERMILLION,
    Style,
    legend_above,
    number,
    panels,
    shortened,
)
from gorelm.diagnostics.fitted import attribute, names_of_targets, require

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# In thresholds: scores below and above these have the colours of these.
LEAST, MOST = 0.1, 10.0
COLOURS = "YlOrBr"  # lightness falls from end to end
NOT_JUDGED = "#BBBBBB"
OUTLINE: Style = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.3}
ROW_MARK: Style = {"linestyle": "none", "marker": "<", "markersize": 5.5, "color": VERMILLION}
LINE = 11.0  # points between two lines of names


class CellMapDisplay:
    r"""Cell map: the scores of the worst rows' cells, and which cells are flagged.

    Make one with :meth:`from_estimator`. The colour of row i and target j is its score in units of
    the target's threshold, :math:`s_{ij} / \tau_j`, on a logarithmic scale. Flagged cells are
    outlined, flagged rows have a triangle. A wrong row is a line of dark cells, a wrong cell is
    dark alone, and a target that is off in many rows is a dark column.

    Parameters
    ----------
    scores : array of shape (n_samples, n_targets)
        Score of every cell; NaN where it is unknown or not judged.
    thresholds : array of shape (n_targets,)
        Cells above it are flagged.
    flagged : boolean array of shape (n_samples, n_targets)
        The flagged cells.
    flagged_rows : boolean array of shape (n_samples,), optional
        The rows that are flagged as a whole.
    target_names : sequence of str, optional
        What to call the targets; by default their numbers, from 1.
    row_names : sequence of str, optional
        What to call the rows; by default their numbers, from 0.

    Attributes
    ----------
    ax_, figure_
        Where it was plotted.
    rows_, targets_ : arrays of int
        What was plotted: the worst rows, worst first, and the targets in their order.
    cells_ : matplotlib mesh
        The cells.
    outlines_ : matplotlib collection
        Outlines of the flagged cells.
    row_marks_ : matplotlib line
        The marks of flagged rows.
    colorbar_ : matplotlib colorbar
        Its scale.

    See Also
    --------
    judge : Scores of cells from the predictions of any model.
    OutlierDisplay : Scores of rows.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import RobustELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import CellMapDisplay
    >>> data = make_multitarget(100, outlier_ratio=0.0, random_state=0)
    >>> data.T[7, 1] += 100.0
    >>> model = RobustELMRegressor(effort="fast", n_hidden=50, random_state=0)
    >>> display = CellMapDisplay.from_estimator(model.fit(data.X, data.T), n_rows=20)
    >>> int(display.rows_[0]), display.flagged[7].tolist()
    (7, [False, True, False])
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        scores: Array,
        thresholds: Array,
        flagged: Mask,
        *,
        flagged_rows: Mask | None = None,
        target_names: Sequence[object] | None = None,
        row_names: Sequence[object] | None = None,
    ) -> None:
        self.scores = np.asarray(scores, dtype=float)
        if self.scores.ndim != 2:
            raise ValueError(f"scores have {self.scores.ndim} dimensions; 2 were expected")
        self.thresholds = np.asarray(thresholds, dtype=float)
        self.flagged = np.asarray(flagged, dtype=bool)
        n_rows, n_targets = self.scores.shape
        if self.flagged.shape != self.scores.shape or self.thresholds.shape != (n_targets,):
            raise ValueError(
                f"scores have shape {self.scores.shape}, flagged {self.flagged.shape}, "
                f"thresholds {self.thresholds.shape}"
            )
        if row_names is not None and len(row_names) != n_rows:
            raise ValueError(f"{len(row_names)} row_names for {n_rows} rows")
        none = np.zeros(n_rows, dtype=bool)
        self.flagged_rows = none if flagged_rows is None else np.asarray(flagged_rows, dtype=bool)
        self.target_names = names_of_targets(self.scores, target_names)
        self.row_names = row_names

    @classmethod
    def from_estimator(
        cls,
        estimator: object,
        *,
        n_rows: int = 30,
        n_targets: int = 40,
        target_names: Sequence[object] | None = None,
        row_names: Sequence[object] | None = None,
        ax: object = None,
    ) -> CellMapDisplay:
        """Plot the scores of the cells of a fitted estimator's training rows.

        Parameters
        ----------
        estimator : fitted estimator
            :class:`~gorelm.RobustELMRegressor`, or what wraps one.
        n_rows : int, default=30
            How many rows to show: those with flagged cells first, the largest score of a cell in
            thresholds first.
        n_targets : int, default=40
            How many targets to show, of more those with the largest scores in these rows.
        target_names : sequence of str, optional
            What to call the targets; by default their names in the table, or numbers from 1.
        row_names : sequence of str, optional
            What to call the rows; by default their numbers, from 0.
        ax : matplotlib axes, optional
            Where to plot; by default a new figure. The scale of colours takes its room from it.

        Returns
        -------
        display : CellMapDisplay
        """
        remedy = "only RobustELMRegressor, and what wraps one, judges cells"
        scores, thresholds, flagged = (
            require(estimator, f"cell_{what}_", remedy) for what in ("scores", "thresholds", "mask")
        )
        if target_names is None:
            target_names = attribute(estimator, "target_names_")
        display = cls(
            scores,
            thresholds,
            flagged,
            flagged_rows=attribute(estimator, "outlier_mask_"),
            target_names=target_names,
            row_names=row_names,
        )
        return display.plot(ax=ax, n_rows=n_rows, n_targets=n_targets)

    def plot(self, *, ax: object = None, n_rows: int = 30, n_targets: int = 40) -> CellMapDisplay:
        """Plot; see :meth:`from_estimator`."""
        ratios = self._in_thresholds()
        self.rows_ = _worst(ratios, self.flagged, n_rows)
        shown = ratios[self.rows_].T, self.flagged[self.rows_].T
        self.targets_ = np.sort(_worst(*shown, n_targets))
        down, across = len(self.rows_), len(self.targets_)
        (own,) = panels(ax, 1, across=1, size=(3.4 + 0.32 * across, 1.6 + 0.19 * down))
        self.ax_: Axes = own
        self.figure_ = self.ax_.figure
        part = np.ix_(self.rows_, self.targets_)
        self._cells(ratios[part])
        self._marks(self.flagged[part])
        self._names()
        self._legend(bool(np.isnan(ratios[part]).any()))
        return self

    def _in_thresholds(self) -> Array:
        """Return scores over thresholds; where that is 0, a score above it is infinite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = self.scores / self.thresholds
        return np.where(self.scores == 0, 0.0, ratios)

    def _cells(self, ratios: Array) -> None:
        import matplotlib
        from matplotlib.colors import LogNorm
        from matplotlib.ticker import FuncFormatter

        colours = matplotlib.colormaps[COLOURS].with_extremes(bad=NOT_JUDGED)
        # pcolormesh would leave out what is infinite.
        self.cells_ = self.ax_.pcolormesh(
            np.ma.masked_invalid(np.clip(ratios, LEAST, MOST)),
            cmap=colours,
            norm=LogNorm(LEAST, MOST),
            edgecolors="white",
            linewidth=0.6,
        )
        self.ax_.invert_yaxis()
        self.colorbar_ = self.figure_.colorbar(
            self.cells_,
            ax=self.ax_,
            extend="both",
            label="score of the cell, in thresholds",
            ticks=[0.1, 0.3, 1.0, 3.0, 10.0],
            format=FuncFormatter(lambda value, _: number(value)),
            fraction=0.08,
            aspect=30,
        )
        self.colorbar_.ax.axhline(1.0, color=INK, linewidth=1.4)
        self.colorbar_.ax.minorticks_off()

    def _marks(self, flagged: Mask) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle
        from matplotlib.transforms import ScaledTranslation

        # So that the outlines of neighbours can be told apart.
        dx, dy = np.minimum(1.2 * np.array(flagged.shape[::-1]) / self._points(), 0.2)
        boxes = [
            Rectangle((j + dx, i + dy), 1 - 2 * dx, 1 - 2 * dy) for i, j in np.argwhere(flagged)
        ]
        self.outlines_ = self.ax_.add_collection(PatchCollection(boxes, zorder=3, **OUTLINE))
        (rows,) = np.nonzero(self.flagged_rows[self.rows_])
        # Off the right edge, whatever the width of a cell.
        inches = self.figure_.dpi_scale_trans
        beside = self.ax_.get_yaxis_transform() + ScaledTranslation(6 / 72, 0, inches)
        (self.row_marks_,) = self.ax_.plot(
            np.ones(len(rows)),
            rows + 0.5,
            transform=beside,
            clip_on=False,
            **ROW_MARK,
        )

    def _names(self) -> None:
        n_rows, n_targets = self.scores.shape
        rows = [str(i if self.row_names is None else self.row_names[i]) for i in self.rows_]
        targets = [self.target_names[j] for j in self.targets_]
        width, height = self._points()
        long = 5.0 * max(map(len, targets)) * len(targets) > width
        for axis, names, room, rotation in (
            (self.ax_.yaxis, rows, height, 0),
            (self.ax_.xaxis, targets, width, 90 if long else 0),
        ):
            every = int(np.ceil(LINE * len(names) / room))
            axis.set_ticks(
                np.arange(0, len(names), every) + 0.5,
                [shortened(name, 20) for name in names[::every]],
                fontsize=8,
                parse_math=False,
                rotation=rotation,
            )
        self.ax_.tick_params(length=0)
        for side in self.ax_.spines.values():
            side.set_visible(False)
        part = "" if len(rows) == n_rows else f", the worst {len(rows):,} of {n_rows:,}"
        self.ax_.set_ylabel(f"training row{part}")
        if len(targets) < n_targets:
            self.ax_.set_xlabel(f"the worst {len(targets):,} of {n_targets:,} targets")

    def _points(self) -> Array:
        """Return the width and height of the axes."""
        return np.asarray(self.ax_.get_window_extent().size / self.figure_.dpi * 72.0)

    def _legend(self, some_unknown: bool) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        cells, rows = int(self.flagged.sum()), int(self.flagged_rows.sum())
        label = f"{cells:,} flagged cell{'s' * (cells != 1)}"
        handles: list[Artist] = [Patch(label=label, **OUTLINE)]
        if rows:
            label = f"{rows:,} flagged row{'s' * (rows != 1)}"
            handles.append(Line2D([], [], label=label, **ROW_MARK))
        if some_unknown:
            handles.append(Patch(facecolor=NOT_JUDGED, label="unknown or not judged"))
        legend_above(self.ax_, handles=handles)


def _worst(ratios: Array, flagged: Mask, count: int) -> Indices:
    """Return up to `count` lines with the largest cell, those with flagged cells first."""
    if count < 1:
        raise ValueError(f"at least 1 row and target must be shown, not {count}")
    largest = np.where(np.isnan(ratios), -1.0, ratios).max(axis=1)
    return np.lexsort([-largest, ~flagged.any(axis=1)])[:count]
