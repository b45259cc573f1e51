"""The display of how a network grew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gorelm._typing import Array, Record
from gorelm.diagnostics.drawing import SERIES, Style, legend_above, log_axis, panels, spans_decades
from gorelm.diagnostics.fitted import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


class GrowthDisplay:
    """Errors of a growing network against its size.

    Make one with :meth:`from_estimator`; it follows scikit-learn's conventions for displays.

    Parameters
    ----------
    growth : list of dict
        The `growth_` of a growing estimator.

    Attributes
    ----------
    ax_, figure_
        Where it was plotted.
    lines_ : list of matplotlib lines
        What was plotted.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from gorelm import IGORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import GrowthDisplay
    >>> data = make_multitarget(100, outlier_ratio=0.1, random_state=0)
    >>> model = IGORELMRegressor(lam=0.1, n_initial=10, n_step=10, max_hidden=30, random_state=0)
    >>> display = GrowthDisplay.from_estimator(model.fit(data.X, data.T))
    >>> plt.close(display.figure_)
    """

    def __init__(self, growth: list[Record]) -> None:
        self.growth = growth

    @classmethod
    def from_estimator(
        cls, estimator: object, *, ax: object = None, **line_kw: object
    ) -> GrowthDisplay:
        """Plot how a fitted estimator has grown.

        Parameters
        ----------
        estimator : fitted growing estimator
            One with a `growth_`, or a meta-estimator around one.
        ax : matplotlib axes, optional
            Where to plot; by default a new figure.
        **line_kw
            For matplotlib's ``plot``.

        Returns
        -------
        display : GrowthDisplay
        """
        remedy = "only growing estimators, such as IGORELMRegressor, have grown"
        return cls(require(estimator, "growth_", remedy)).plot(ax=ax, **line_kw)

    def plot(self, *, ax: object = None, **line_kw: object) -> GrowthDisplay:
        """Plot; see :meth:`from_estimator`."""
        (own,) = panels(ax, 1, across=1, size=(6.4, 4.0))
        self.ax_: Axes = own
        self.figure_ = self.ax_.figure
        self.lines_: list[Line2D] = []
        sizes = [record["n_hidden"] for record in self.growth]
        labels = {"error": "training rows", "validation_error": "rows not seen"}
        drawn: list[Array] = []
        for (name, label), style in zip(labels.items(), SERIES, strict=False):
            errors = np.array([record[name] for record in self.growth])
            if np.isfinite(errors).any():
                options: Style = {**style, "markersize": 4.5, "label": label, **line_kw}
                self.lines_ += self.ax_.plot(sizes, errors, **options)
                drawn.append(errors)
        self.ax_.set_xlabel("hidden nodes")
        self.ax_.set_ylabel("mean error norm / that of the medians")
        if drawn and spans_decades(np.concatenate(drawn)):
            log_axis(self.ax_.yaxis)
        legend_above(self.ax_)
        return self
