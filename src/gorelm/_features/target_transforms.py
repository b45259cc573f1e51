r"""Transforms of targets whose errors grow with their size: prices, counts, concentrations.

==========  =============================  ==========================
"none"      :math:`z = y`                  :math:`y = z`
"sqrt"      :math:`z = \sqrt y`            :math:`y = \max(z, 0)^2`
"log"       :math:`z = \log \max(y, c)`    :math:`y = e^z`
==========  =============================  ==========================

c is a tenth of the smallest positive value, so that a few zeros do no harm. A prediction of z,
transformed back, is about the median of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gorelm._typing import Array

TRANSFORMS = ("none", "sqrt", "log")
FLOOR = 0.1  # of the smallest positive value


@dataclass(frozen=True)
class TargetTransforms:
    """One transform for each column of targets."""

    kinds: list[str]
    floor: Array  # (m,), for logarithms
    # (m,): predictions on the scale of z are held within, as exp of a prediction far from all
    # training rows would be absurd.
    low: Array
    high: Array

    @classmethod
    def fit(cls, kinds: Sequence[str], T: Array) -> TargetTransforms:
        """Read floors and limits off the columns of T (NaN: unknown cell).

        Raises
        ------
        ValueError
            If a column that is to be transformed has negative values, or only zeros.
        """
        for j, kind in enumerate(kinds):
            if kind != "none" and (np.nanmin(T[:, j]) < 0 or not np.nanmax(T[:, j]) > 0):
                raise ValueError(
                    f"target_transform={kind!r} needs values that are not negative, and some "
                    f"positive ones; target column {j} has values from {np.nanmin(T[:, j]):g} to "
                    f"{np.nanmax(T[:, j]):g}"
                )
        if all(kind == "none" for kind in kinds):
            nowhere = np.full(len(kinds), np.inf)
            return cls(list(kinds), np.ones(len(kinds)), -nowhere, nowhere)
        positive = np.where(np.nan_to_num(T) > 0, T, np.inf).min(axis=0)
        floor = np.where(np.isfinite(positive), FLOOR * positive, 1.0)
        open_ended = np.full(len(kinds), np.inf)
        Z = cls(list(kinds), floor, -open_ended, open_ended).apply(T)
        changed = np.array([kind != "none" for kind in kinds])
        low, high = np.nanmin(Z, axis=0), np.nanmax(Z, axis=0)
        span = np.full(len(kinds), np.inf)
        span[changed] = high[changed] - low[changed]  # of others it might overflow
        return cls(list(kinds), floor, low - span, high + span)

    def apply(self, T: Array) -> Array:
        """Return targets on the transformed scale; values out of range count as the nearest."""
        if all(kind == "none" for kind in self.kinds):
            return np.asarray(T, dtype=np.float64)  # no copy: it may be large
        Z = np.array(T, dtype=np.float64)
        for j, kind in enumerate(self.kinds):
            if kind == "sqrt":
                Z[:, j] = np.sqrt(np.maximum(T[:, j], 0.0))
            elif kind == "log":
                Z[:, j] = np.log(np.maximum(T[:, j], self.floor[j]))
        return Z

    def undo(self, Z: Array) -> Array:
        """Return targets, or predictions of them, in their own units."""
        if all(kind == "none" for kind in self.kinds):
            return np.asarray(Z)
        T = np.clip(Z, self.low, self.high)
        for j, kind in enumerate(self.kinds):
            if kind == "sqrt":
                T[:, j] = np.maximum(T[:, j], 0.0) ** 2
            elif kind == "log":
                T[:, j] = np.exp(T[:, j])
        return np.asarray(T)
