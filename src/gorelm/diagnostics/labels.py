"""Labels beside points that do not lie on one another, wherever the points end up on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from gorelm._typing import Array
from gorelm.diagnostics.drawing import INK

__all__ = ["PointLabels"]

_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1))
_DISTANCES = (5.0, 10.0, 17.0, 26.0, 37.0, 50.0, 65.0, 82.0, 101.0, 122.0)  # points


class PointLabels(Artist):
    """Names of some points, placed anew whenever the figure is drawn.

    Parameters
    ----------
    ax : matplotlib axes
        Which it adds itself to.
    points : array (n, 2)
        In data coordinates, the most important first: they get the best places.
    names : sequence of str
        What to write.
    others : array (n, 2), optional
        Points that labels had better not cover.

    Attributes
    ----------
    texts : list of matplotlib texts
        Those for which there was no place are invisible.
    """

    def __init__(
        self, ax: Any, points: Array, names: Sequence[str], others: Array | None = None
    ) -> None:
        super().__init__()
        self._others = np.zeros((0, 2)) if others is None else np.asarray(others, dtype=float)
        self._ax = ax
        self._points = np.asarray(points, dtype=float)
        style: dict[str, Any] = {"fontsize": 8, "color": INK, "parse_math": False}
        self.texts = [Text(0, 0, name, va="center", ha="center", **style) for name in names]
        self._leaders = [Line2D([], [], color=INK, linewidth=0.5) for _ in names]
        self.set_zorder(4)
        self.set_in_layout(False)  # always inside the axes
        ax.add_artist(self)
        for part in (*self.texts, *self._leaders):
            part.set_figure(ax.get_figure())
            part.set_transform(IdentityTransform())

    def draw(self, renderer: Any) -> None:
        """Find places in pixels, and draw."""
        if not self.get_visible():
            return
        frame = self._ax.get_window_extent(renderer)
        points = self._ax.transData.transform(self._points)
        others = self._ax.transData.transform(self._others)
        unit = renderer.points_to_pixels(1.0)
        taken = [Bbox.from_extents(x, y, x, y).padded(3 * unit) for x, y in points]
        for text, leader, point in zip(self.texts, self._leaders, points, strict=True):
            text.set_visible(True)
            extent = text.get_window_extent(renderer)
            half = np.array([extent.width, extent.height]) / 2 + unit
            place = _free_place(point, half, frame, taken, others, unit)
            if place is None:
                place = _free_place(point, half, frame, taken, others[:0], unit)
            text.set_visible(place is not None)
            if place is None:
                continue
            box, distance = place
            taken.append(box)
            text.set_position(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
            if distance > _DISTANCES[1]:
                end = np.clip(point, box.min, box.max)
                leader.set_data([point[0], end[0]], [point[1], end[1]])
                leader.draw(renderer)
            text.draw(renderer)
        self.stale = False


def _free_place(
    point: Array, half: Array, frame: Bbox, taken: list[Bbox], others: Array, unit: float
) -> tuple[Bbox, float] | None:
    """Return the nearest free box of half-sizes `half` beside a point, and how far it is."""
    for distance in _DISTANCES:
        for direction in _DIRECTIONS:
            centre = point + np.array(direction) * (half + distance * unit)
            box = Bbox([centre - half, centre + half])
            if not (frame.contains(*box.min) and frame.contains(*box.max)):
                continue
            covers = (np.abs(others - centre) < half + 2 * unit).all(axis=1).any()
            if not covers and not any(box.overlaps(other) for other in taken):
                return box, distance
    return None
