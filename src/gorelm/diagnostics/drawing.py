"""Shared drawing code: colours and marks that are safe for colour blindness and grey print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gorelm._extras import needs
from gorelm._typing import Array

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

Style: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib's functions

# Okabe and Ito's colours, those that can be told from white and from near-black. INK is black,
# which a page replaces by the colour of its text.
BLUE, VERMILLION, GREEN, PURPLE, INK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
SERIES: tuple[Style, ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILLION, "linestyle": "--", "marker": "s"},
    {"color": GREEN, "linestyle": "-.", "marker": "^"},
    {"color": PURPLE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "D"},
    {"color": INK, "linestyle": ":", "marker": "v"},
)
MANY_POINTS = 3000  # beyond, points are drawn as one image: smaller files, faster viewers

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def panels(
    ax: object, count: int, *, across: int, size: tuple[float, float], sharex: bool = False
) -> npt.NDArray[np.object_]:
    """Return `count` axes to draw on, in rows of `across`.

    None makes a figure with axes of `size` inches; a single axes is divided; as many as are needed
    are taken as they are. `sharex`: new axes share their horizontal axis.
    """
    down = -(-count // across)
    if ax is None:
        with needs("plotting needs matplotlib", "plot"):
            import matplotlib.pyplot as plt
        _, grid = plt.subplots(
            down,
            across,
            squeeze=False,
            sharex=sharex,
            figsize=(across * size[0], down * size[1]),
            layout="constrained",
        )
        for spare in grid.flat[count:]:
            spare.remove()
        return np.asarray(grid.flat[:count])
    given = np.asarray(ax, dtype=object).reshape(-1)
    if len(given) == count:
        return given
    place = given[0].get_subplotspec() if len(given) == 1 else None
    if place is None:
        raise ValueError(
            f"{count} axes are needed, {len(given)} given: pass so many, or one that "
            "plt.subplots made, or none"
        )
    given[0].set_axis_off()
    figure = given[0].get_figure()
    room = {} if figure.get_layout_engine() is not None else {"wspace": 0.7, "hspace": 0.6}
    cells = place.subgridspec(down, across, **room)
    made: list[Axes] = []
    for k in range(count):
        shared = made[0] if sharex and made else None
        made.append(figure.add_subplot(cells[divmod(k, across)], sharex=shared))
    return np.asarray(made, dtype=object)


def legend_above(ax: Axes, *, handles: Sequence[Artist] | None = None) -> None:
    """Put the legend above the axes, where no data are, in as many columns as fit."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    if handles is None:
        handles, _ = ax.get_legend_handles_labels()
    if not handles:
        return
    letters = max(len(str(handle.get_label())) for handle in handles)
    # In units of the letters' size: line, gaps, and letters a little over half as wide as high.
    column = 2.2 + 0.8 + 1.4 + 0.58 * letters
    size = FontProperties(size=rcParams["legend.fontsize"]).get_size_in_points()
    across = ax.get_window_extent().width / ax.figure.dpi * 72.0 / size
    ncols = int(np.clip(across // column, 1, len(handles)))
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=ncols,
        frameon=False,
        borderaxespad=0.2,
        handlelength=2.2,
        columnspacing=1.4,
    )


def fills(figure: Figure, axes: npt.NDArray[np.object_]) -> bool:
    """Whether a figure is laid out by itself and holds nothing but these axes."""
    engine = figure.get_layout_engine()
    return (
        engine is not None and engine.adjust_compatible is False and len(figure.axes) == len(axes)
    )


def spans_decades(values: Array, *, factor: float = 30.0) -> bool:
    """Whether the largest value would leave no room for the others on a linear axis."""
    positive = values[np.isfinite(values) & (values > 0)]
    return bool(len(positive) and positive.max() > factor * np.median(positive))


def log_axis(axis: XAxis | YAxis, *, base: int = 10, linear_below: float | None = None) -> None:
    """Make an axis logarithmic, once all is drawn; ticks are at powers of `base`, in plain text.

    Values under `linear_below` are drawn to a linear scale, so that 0 has a place.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    set_scale = getattr(axis.axes, f"set_{axis.axis_name}scale")
    if linear_below is None:
        set_scale("log", base=base)
        low, high = sorted(axis.get_view_interval())
        few = base == 10 and high < 30 * low
        locator = LogLocator(base=base, subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=8)
        axis.set_major_locator(locator)
    else:
        set_scale("symlog", base=base, linthresh=linear_below, linscale=0.4)
        lowest = math.ceil(math.log(2.0 * linear_below, base))
        highest = math.floor(math.log(max(axis.get_view_interval()), base))
        step = max(1, (highest - lowest) // 6)
        axis.set_ticks([0.0, *(float(base) ** k for k in range(lowest, highest + 1, step))])

    def text(value: float, _: object) -> str:
        low, high = sorted(np.abs(axis.get_view_interval()))
        readable = base == 10 and (linear_below or low) > 1e-4 and high <= 1e5
        return number(value) if readable else powers(value, base)

    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def powers(value: float, base: int = 10) -> str:
    """Print powers of the base as such, and other numbers as numbers."""
    exponent = math.log(value, base) if value > 0 else math.inf
    if not math.isfinite(exponent) or abs(exponent - round(exponent)) > 1e-6:
        return number(value)
    return f"{base}{str(round(exponent)).translate(_SUPERSCRIPTS)}"


def shortened(name: str, letters: int = 26) -> str:
    """Return a name that leaves room for the drawing: its beginning and its end."""
    if len(name) <= letters:
        return name
    return f"{name[: letters // 2]}…{name[len(name) - letters // 2 + 1 :]}"


def opacity(count: int) -> float:
    """Return how opaque many points should be, so that dense regions look denser."""
    return float(np.clip(4e3 / max(count, 1), 0.12, 0.6))


def number(value: float) -> str:
    """Print a number with three digits, without an exponent where it can be read without."""
    if value and not 0.999e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
