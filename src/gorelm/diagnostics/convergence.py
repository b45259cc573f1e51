"""The display of how iterative fits converged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gorelm.diagnostics.drawing import INK, SERIES, Style, fills, legend_above, log_axis, panels
from gorelm.diagnostics.fitted import Network, attribute, innermost, layer_in_words, require

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

History: TypeAlias = Sequence[Mapping[str, float]]


class ConvergenceDisplay:
    """How iterative fits approached their optimum.

    Three panels over the iterations: the proven relative distance from the optimum, the primal and
    dual residuals, and the penalties of the iteration. Make one with :meth:`from_estimator`.

    Parameters
    ----------
    histories : dict of str to list of dict
        The `history_` of each fit, by its name.
    tol : float, optional
        The gap at which the fits were to stop.

    Attributes
    ----------
    axes_ : array of three matplotlib axes
        Gap, residuals, penalties.
    ax_, figure_
        The first of them, and their figure.
    lines_ : dict of str to list of matplotlib lines
        For each of "dual_gap", "primal_residual", "dual_residual", "rho" and "sigma".
    tolerance_line_ : matplotlib line or None
        Where the gap was to get.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import ConvergenceDisplay
    >>> data = make_multitarget(200, outlier_ratio=0.1, random_state=0)
    >>> model = GORELMRegressor(lam=0.1, n_hidden=50, random_state=0).fit(data.X, data.T)
    >>> display = ConvergenceDisplay.from_estimator(model)
    >>> len(display.axes_)
    3
    >>> plt.close(display.figure_)
    """

    def __init__(self, histories: Mapping[str, History], *, tol: float | None = None) -> None:
        self.histories, self.tol = dict(histories), tol

    @classmethod
    def from_estimator(cls, estimator: object, *, ax: object = None) -> ConvergenceDisplay:
        """Plot the history of a fitted estimator, or those of its members.

        Parameters
        ----------
        estimator : fitted estimator
            One whose weights came out of an iteration, or an ensemble of such. (The members of
            :class:`~gorelm.RobustELMRegressor` have a closed form, except in files of earlier
            versions.)
        ax : matplotlib axes or array of three axes, optional
            Where to plot; by default a new figure.

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        ValueError
            If the fit was a closed form, which has nothing to show.
        """
        display = cls.of(estimator)
        if not display.histories:
            raise ValueError(
                f"{type(innermost(estimator)).__name__} was fitted in closed form: there are no "
                "iterations to show"
            )
        return display.plot(ax=ax)

    @classmethod
    def of(cls, estimator: object) -> ConvergenceDisplay:
        """Return the display of an estimator, not yet plotted; a closed form has no history."""
        check_is_fitted(estimator)
        members = attribute(estimator, "members_")
        models = {"": innermost(estimator)} if members is None else _named_members(members)
        histories: dict[str, History] = {}
        for name, model in models.items():
            remedy = "it does not record its iterations"
            for part, run in enumerate(_runs(require(model, "history_", remedy))):
                histories[f"{name} part {part + 1}".strip() if part else name] = run
        # The paper's solver stops by its number of iterations, not by the gap.
        adaptive = getattr(model, "solver", "adaptive") == "adaptive"
        return cls(histories, tol=getattr(model, "tol", None) if adaptive else None)

    def plot(self, *, ax: object = None) -> ConvergenceDisplay:
        """Plot; see :meth:`from_estimator`."""
        self.axes_ = panels(ax, 3, across=3, size=(3.7, 3.6))
        self.ax_: Axes = self.axes_[0]
        self.figure_ = self.ax_.figure
        names = ("dual_gap", "primal_residual", "dual_residual", "rho", "sigma")
        self.lines_: dict[str, list[Line2D]] = {name: [] for name in names}
        gap, residuals, penalties = self.axes_
        self._draw(gap, "dual_gap")
        self._draw(residuals, "primal_residual")
        self._draw(residuals, "dual_residual", dashed=True)
        self._draw(penalties, "rho")
        self._draw(penalties, "sigma", dashed=True)
        self.tolerance_line_ = None
        if self.tol is not None:
            self.tolerance_line_ = gap.axhline(
                self.tol, color=INK, linewidth=1.2, linestyle="--", label=f"tol = {self.tol:g}"
            )
        gap.set_ylabel("proven relative distance\nfrom the optimum (dual gap)")
        residuals.set_ylabel("norm of the residual,\nin units of the scaled targets")
        penalties.set_ylabel("penalty of the iteration")
        for axes in self.axes_:
            axes.set_xlabel("iteration")
            _log_where_positive(axes)
            if self._last() > 300:
                log_axis(axes.xaxis)
            else:
                axes.locator_params(axis="x", integer=True)
        self._legends()
        return self

    def _last(self) -> float:
        return max(record["iteration"] for run in self.histories.values() for record in run)

    def _draw(self, axes: Axes, name: str, *, dashed: bool = False) -> None:
        for run, style in zip(self.histories.values(), cycle(SERIES), strict=False):
            values = np.array([record[name] for record in run])
            if not np.any(values > 0):
                continue  # no such split, or nothing left to show on a logarithmic axis
            options: Style = {
                **style,
                "linestyle": "--" if dashed else "-",
                "fillstyle": "none" if dashed else "full",
                "markersize": 3.5,
                "linewidth": 1.3,
                "markevery": None if len(run) <= 60 else 0.06,  # of the panel: marks stay apart
            }
            iterations = [record["iteration"] for record in run]
            self.lines_[name] += axes.plot(iterations, values, **options)

    def _legends(self) -> None:
        from matplotlib.lines import Line2D

        gap, residuals, penalties = self.axes_
        several = len(self.histories) > 1
        handles: list[Artist] = [] if self.tolerance_line_ is None else [self.tolerance_line_]
        if several:
            for name, style in zip(self.histories, cycle(SERIES), strict=False):
                solid: Style = {**style, "linestyle": "-", "markersize": 3.5}
                handles.append(Line2D([], [], label=name or "part 1", **solid))
        if several and fills(self.figure_, self.axes_):
            self.figure_.legend(
                handles=handles, loc="outside upper left", ncols=min(6, len(handles)), frameon=False
            )
        elif handles:
            legend_above(gap, handles=handles)
        kinds = {residuals: ("primal", "dual"), penalties: ("rho (rows)", "sigma (nodes)")}
        drawn = {residuals: ("primal_residual", "dual_residual"), penalties: ("rho", "sigma")}
        colour = INK if several else SERIES[0]["color"]
        for axes, labels in kinds.items():
            entries = [
                Line2D([], [], color=colour, dashes=dashes, label=label)
                for dashes, label, name in zip(((1, 0), (4, 2)), labels, drawn[axes], strict=True)
                if self.lines_[name]
            ]
            if entries:
                legend_above(axes, handles=entries)


def _named_members(members: Sequence[Network]) -> dict[str, object]:
    return {f"{k} {layer_in_words(member)}": member for k, member in enumerate(members, 1)}


def _runs(history: History) -> list[History]:
    """Split records where the iterations begin again: targets known in other rows."""
    if not history:
        return []
    steps = np.diff([record["iteration"] for record in history])
    cuts = [0, *(np.flatnonzero(steps <= 0) + 1).tolist(), len(history)]
    return [history[a:b] for a, b in pairwise(cuts)]


def _log_where_positive(axes: Axes) -> None:
    if any(np.any(np.asarray(line.get_ydata()) > 0) for line in axes.lines):
        log_axis(axes.yaxis)
    else:
        axes.annotate(
            "nothing to show", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center"
        )
