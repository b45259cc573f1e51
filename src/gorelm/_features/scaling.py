"""Affine scaling of inputs and targets, by rules under which a weight of two is the row twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import ndtri
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from gorelm._typing import Array

__all__ = [
    "INPUT_SCALINGS",
    "ROBUST_LEVELS",
    "TARGET_SCALINGS",
    "Scaling",
    "robust_numbers",
    "weighted_quantiles",
]

INPUT_SCALINGS = ("minmax", "standard")
TARGET_SCALINGS = ("robust", "minmax")

# Where the middle half of a target is one value (counts, mostly zero), the spread of ever more of
# it is taken; divided by the normal distribution's so that all agree on normal data.
_TAILS = (0.25, 0.1, 0.05, 0.01)
ROBUST_LEVELS = (0.5, *_TAILS, *(1 - np.array(_TAILS)))


@dataclass(frozen=True)
class Scaling:
    """The map x -> (x - centre) / scale, column by column."""

    centre: Array
    scale: Array

    @classmethod
    def fit(cls, kind: str | None, A: Any, weights: Array) -> Scaling:
        """Read centre and scale off the rows of `A` (NaN: unknown cell; may be sparse).

        Parameters
        ----------
        kind : {"minmax", "standard", "robust", None}
            Onto [-1, 1]; to mean 0 and deviation 1; to median 0 and interquartile range 1.349; or
            unchanged.
        A : array or sparse matrix (N, d)
            Columns to scale.
        weights : array (N,)
            Positive sample weights.
        """
        if kind is None:
            return cls(np.zeros(A.shape[1]), np.ones(A.shape[1]))
        return cls.of(*_RULES[kind](A, weights))

    @classmethod
    def of(cls, centre: Array, scale: Array) -> Scaling:
        """Return the scaling with these numbers, but for columns without a spread."""
        # A column that is constant up to rounding has nothing to scale.
        constant = ~(scale > np.maximum(10 * np.finfo(float).eps * np.abs(centre), _TINY))
        return cls(centre, np.where(constant, 1.0, scale))

    def apply(self, A: Any) -> tuple[Any, Array | None]:
        """Scale dense `A`; a sparse one is divided only, and the offset left to add returned."""
        dtype = A.dtype if A.dtype == np.float32 else np.dtype(np.float64)
        # A row far beyond those that were fitted may leave the floats; it need not go so far.
        limit = float(np.finfo(dtype).max) ** 0.48
        with np.errstate(over="ignore"):
            if sparse.issparse(A):
                scaled = _divided(A, self.scale)
                np.clip(scaled.data, -limit, limit, out=scaled.data)
                return scaled.astype(dtype, copy=False), -self.centre / self.scale
            # Divided before subtracting, so that +-1e308 cannot overflow.
            scaled = np.divide(A, self.scale, dtype=np.float64)
            scaled -= self.centre / self.scale
            np.clip(scaled, -limit, limit, out=scaled)
        return scaled.astype(dtype, copy=False), None

    def undo(self, A: Array) -> Array:
        """Return A * scale + centre."""
        return np.asarray(A * self.scale + self.centre)


_TINY = float(np.finfo(np.float64).tiny)


def _divided(A: Any, scale: Array) -> Any:
    """Divide the columns of a CSR matrix (a reciprocal of 1e-310 would overflow)."""
    return type(A)((A.data / scale[A.indices], A.indices, A.indptr), shape=A.shape)


def _minmax(A: Any, weights: Array) -> tuple[Array, Array]:
    if sparse.issparse(A):
        low, high = (np.asarray(x, dtype=float) for x in min_max_axis(A, axis=0))
    else:
        low, high = np.nanmin(A, axis=0).astype(float), np.nanmax(A, axis=0).astype(float)
    return low / 2 + high / 2, high / 2 - low / 2


def _standard(A: Any, weights: Array) -> tuple[Array, Array]:
    # In units of the largest entry: squares of 1e300 and 1e-300 leave the floats.
    if sparse.issparse(A):
        unit = np.asarray(abs(A).max(axis=0).todense(), dtype=float).ravel()
        unit[unit == 0] = 1.0
        scaled = _divided(A, unit)
        mean, variance = mean_variance_axis(scaled, axis=0, weights=weights)
        return mean * unit, np.sqrt(variance) * unit
    unit = np.abs(A).max(axis=0).astype(float)
    unit[unit == 0] = 1.0
    scaled = A / unit
    mean = np.average(scaled, axis=0, weights=weights)
    variance = np.average((scaled - mean) ** 2, axis=0, weights=weights)
    return mean * unit, np.sqrt(variance) * unit


def _robust(A: Array, weights: Array) -> tuple[Array, Array]:
    centre, scale = np.empty(A.shape[1]), np.empty(A.shape[1])
    for j, column in enumerate(A.T):
        known = ~np.isnan(column)
        values, w = column[known].astype(float), weights[known]
        quantiles = weighted_quantiles(values, ROBUST_LEVELS, w)
        deviation = _standard(values[:, None], w)[1].item()
        centre[j], scale[j] = robust_numbers(quantiles, deviation)
    return centre, scale


def robust_numbers(quantiles: Array, deviation: float) -> tuple[float, float]:
    """Return centre and scale from the quantiles at `ROBUST_LEVELS` and the deviation."""
    median, *ends = quantiles
    low, high = np.split(np.array(ends), 2)
    spreads = (high / 2 - low / 2) / -ndtri(_TAILS)
    # A spread that is nothing beside the next wider one is rounding, as good as 0.
    rounding = 1e-14 * np.append(spreads[1:], 0.0)
    rounding = np.maximum(rounding, 10 * np.finfo(float).eps * abs(median))
    usable = np.append(spreads > rounding, True)
    return float(median), float(np.append(spreads, deviation)[np.argmax(usable)])


_RULES = {"minmax": _minmax, "standard": _standard, "robust": _robust}


# == src/gorelm/quantiles.py
# """Quantiles under which a weight of two is the value twice."""


def weighted_quantiles(values: Array, levels: Any, weights: Array) -> Array:
    """Quantiles by the inverted distribution function: repeated rows and weights agree exactly.

    Parameters
    ----------
    values : array (N,)
        Numbers.
    levels : float or array
        Which quantiles, in [0, 1].
    weights : array (N,)
        Positive weights; always given, as NumPy rounds differently without.
    """
    return np.asarray(np.quantile(values, levels, method="inverted_cdf", weights=weights))
