"""Pictures of a report, as SVG elements of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gorelm.diagnostics.report.html import figure_to_svg, new_figure, style
from gorelm.experiments.report.runs import Runs, percent
from gorelm.experiments.statistics import cliques

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# both are readable on white and on near-black
_PAPER = "#2a8fd0"
_MEDIAN = "#e0681a"
_GREY = "#888888"


def boxplots(runs: Runs, ratio: float, *, prefix: str) -> str | None:
    """Draw the test errors of the repeats, one panel for each data set; None without any."""
    datasets = [
        d
        for d in runs.datasets
        if any(runs.values(d, ratio, c, "arrmse_test") for c in runs.columns)
    ]
    if not datasets:
        return None
    across = min(4, len(datasets))
    down = -(-len(datasets) // across)
    labels = [c.label for c in runs.columns]
    side = 0.3 + 0.075 * max(map(len, labels))
    panel = 0.1 + 0.2 * len(labels)
    width, height = side + 2.3 * across, 0.05 + (0.55 + panel) * down
    with style(extra="experiments"):
        figure = new_figure(width, height)
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        # in inches; a layout engine would take as long as the drawing
        figure.subplots_adjust(
            left=side / width,
            right=1 - 0.15 / width,
            top=1 - 0.3 / height,
            bottom=0.3 / height,
            wspace=0.12,
            hspace=0.55 / panel,
        )
        for axes in grid.flat[len(datasets) :]:
            axes.remove()
        for axes, dataset in zip(grid.flat, datasets, strict=False):
            _boxes(axes, runs, ratio, dataset)
        grid[0, 0].set_yticks(range(len(labels)), labels)
        grid[0, 0].set_ylim(len(labels) - 0.4, -0.6)
        title = f"Boxplots of the test aRRMSE, {percent(ratio)} outliers"
        return figure_to_svg(figure, prefix=prefix, title=title)


def critical_difference(
    labels: Sequence[str], ranks: ArrayLike, distance: float, *, prefix: str, title: str
) -> str:
    """Draw mean ranks of methods, with bars over those within Nemenyi's critical distance."""
    values = np.asarray(ranks, dtype=float)
    k = len(values)
    order = np.argsort(values, kind="stable")
    groups = cliques(values, distance)
    half = (k + 1) // 2
    first_text = 0.45 + 0.16 * len(groups)
    depth = first_text + 0.27 * half
    # room for a name and its rank in the widest of the fonts a reader may have
    margin = 0.65 + 0.095 * max(map(len, labels))
    with style(extra="experiments"):
        figure = new_figure(4.6 + 2 * margin, depth + 0.95)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        # data units are inches, so that rows of text keep their distance
        width = 4.6 + 2 * margin
        axes.set_xlim(0, width)
        axes.set_ylim(depth + 0.05, -0.9)

        def place(rank: float) -> float:
            return float(margin + 4.6 * (rank - 1) / max(k - 1, 1))

        axes.plot([place(1), place(k)], [0, 0], color="black", lw=1.2)
        for rank in range(1, k + 1):
            axes.plot([place(rank)] * 2, [0, -0.08], color="black", lw=1.2)
            axes.text(place(rank), -0.13, str(rank), ha="center", va="bottom")
        end = min(1 + distance, k)
        axes.plot([place(1), place(end)], [-0.5, -0.5], color=_PAPER, lw=2)
        cut = "" if 1 + distance <= k else " (longer than the axis)"
        axes.text(
            (place(1) + place(end)) / 2,
            -0.55,
            f"critical distance {distance:.2f}{cut}",
            ha="center",
            va="bottom",
        )
        for i, group in enumerate(groups):
            y = 0.2 + 0.16 * i
            span = [place(values[group[0]]) - 0.04, place(values[group[-1]]) + 0.04]
            axes.plot(span, [y, y], color=_MEDIAN, lw=3.5, solid_capstyle="round")
        for i, j in enumerate(order):
            left = i < half
            y = first_text + 0.27 * (i if left else k - 1 - i)
            x = margin - 0.08 if left else width - margin + 0.08
            axes.plot([place(values[j])] * 2 + [x], [0, y, y], color="black", lw=0.8)
            text = f"{labels[j]} {values[j]:.2f}" if left else f"{values[j]:.2f} {labels[j]}"
            axes.text(
                x - 0.05 if left else x + 0.05, y, text, ha="right" if left else "left", va="center"
            )
        return figure_to_svg(figure, prefix=prefix, title=title)


def _boxes(axes: Axes, runs: Runs, ratio: float, dataset: str) -> None:
    for i, column in enumerate(runs.columns):
        values = runs.values(dataset, ratio, column, "arrmse_test")
        if values:
            axes.boxplot(
                [values],
                positions=[i],
                widths=0.6,
                orientation="horizontal",
                manage_ticks=False,
                medianprops={"color": _MEDIAN, "linewidth": 1.8},
                boxprops={"linewidth": 0.8},
                whiskerprops={"linewidth": 0.8},
                capprops={"linewidth": 0.8},
                flierprops={"marker": "o", "markersize": 2.5, "markeredgecolor": _GREY},
            )
        published = runs.published(dataset, ratio, column.method, "test")
        if published is not None and values:
            axes.plot([published["mean"]], [i], "D", color=_PAPER, markersize=3.5, zorder=3)
    axes.set_title(dataset, fontsize=9, fontweight="bold", loc="left")
    axes.grid(axis="x", color=_GREY, alpha=0.3, linewidth=0.6)
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(labelsize=8)
