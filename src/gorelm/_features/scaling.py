"""Affine scaling of inputs and targets; a row of weight 2 counts exactly as the row twice.

"minmax" and "standard" are computed from summaries (`Ends`, `Moments`) of blocks of rows, which are
merged: so they serve files that are read in blocks, the partitions of a cluster, and tensors on a
device. `fit_scaling` is the one rule for all owners of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import ndtri
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from gorelm._typing import Array, Inputs

__all__ = [
    "INPUT_SCALINGS",
    "TARGET_SCALINGS",
    "Ends",
    "Moments",
    "Scaling",
    "Summary",
    "fit_robust",
    "fit_scaling",
    "merge",
    "on_host",
    "weighted_quantiles",
]

INPUT_SCALINGS = ("minmax", "standard")
TARGET_SCALINGS = ("robust", "minmax")

# Where the middle half of a target is one value (counts, mostly zero), the spread of ever more of
# it is taken; divided by the normal distribution's so that all agree on normal data.
_TAILS = (0.25, 0.1, 0.05, 0.01)
ROBUST_LEVELS = (0.5, *_TAILS, *(1 - np.array(_TAILS)))
_ORDINARY = 1e13  # measurements spread over less than this, and more than its reciprocal
_TINY = float(np.finfo(np.float64).tiny)
_BLOCK_ROWS = 65536  # scaled at a time, so that copies in float64 stay small


@dataclass(frozen=True)
class Scaling:
    """The map x -> (x - centre) / scale, column by column."""

    centre: Array
    scale: Array

    @classmethod
    def fit(cls, kind: str | None, A: Inputs, weights: Array) -> Scaling:
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
        if kind == "robust":
            return fit_robust(np.asarray(A, dtype=float), weights)
        return fit_scaling(kind, A.shape[1], lambda summary: summary(A, weights))

    @classmethod
    def of(cls, centre: Array, scale: Array) -> Scaling:
        """Return the scaling with these numbers, but for columns without a spread."""
        # A column that is constant up to rounding has nothing to scale.
        constant = ~(scale > np.maximum(10 * np.finfo(float).eps * np.abs(centre), _TINY))
        return cls(centre, np.where(constant, 1.0, scale))

    def apply(self, A: Inputs) -> tuple[Inputs, Array | None]:
        """Scale an array or a tensor in float64; the result has the precision of `A`.

        A sparse matrix is divided only, and the offset left to add returned.
        """
        if sparse.issparse(A):
            dtype = _precision(A)
            scaled = _divided(A, self.scale)
            np.clip(scaled.data, -_limit(dtype), _limit(dtype), out=scaled.data)
            return scaled.astype(dtype, copy=False), -self.centre / self.scale
        return self.dense(A), None

    def dense(self, A: Array) -> Array:
        """Scale an array or a tensor in float64; the result has the precision of `A`."""
        if isinstance(A, np.ndarray):
            out = np.empty(A.shape, _precision(A))
        else:
            out = A.new_empty(A.shape)
        # A row far beyond those that were fitted may leave the floats; it need not go so far.
        limit = _limit(_precision(out))
        scale, shift = on_device_of(A, self.scale), on_device_of(A, self.centre / self.scale)
        with np.errstate(over="ignore"):
            for start in range(0, len(A), _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                # Divided before subtracting, so that +-1e308 cannot overflow.
                out[rows] = (A[rows] / scale - shift).clip(-limit, limit)
        return out

    def undo(self, A: Array) -> Array:
        """Return A * scale + centre, of an array or a tensor."""
        return A * on_device_of(A, self.scale) + on_device_of(A, self.centre)


# -- summaries of rows ---------------------------------------------------------------------------


class Ends(NamedTuple):
    """Smallest and largest value of every column."""

    low: Array
    high: Array

    @classmethod
    def of(cls, A: Inputs, weights: Array) -> Self:
        """Summarise the rows of an array (NaN: unknown cell), a sparse matrix or a tensor."""
        del weights  # all are positive
        if not A.shape[0]:
            low, high = (np.full(A.shape[1], end) for end in (np.inf, -np.inf))
        elif isinstance(A, np.ndarray):
            low, high = np.fmin.reduce(A, axis=0), np.fmax.reduce(A, axis=0)
        elif sparse.issparse(A):
            low, high = min_max_axis(A, axis=0)
        else:
            low, high = on_host(A.amin(0)), on_host(A.amax(0))
        return cls(low.astype(float), high.astype(float))

    def merged(self, other: Self) -> Self:
        """Return the summary of both sets of rows."""
        return self._replace(
            low=np.minimum(self.low, other.low), high=np.maximum(self.high, other.high)
        )

    def scaling(self) -> Scaling:
        """Return the scaling onto [-1, 1]."""
        return Scaling.of(self.low / 2 + self.high / 2, self.high / 2 - self.low / 2)


class Moments(NamedTuple):
    """Weights, means, and sums of squared distances from the means, in given units."""

    weight: float
    mean: Array
    squares: Array

    @classmethod
    def of(cls, A: Inputs, weights: Array, unit: Array) -> Self:
        """Summarise the rows of an array, a sparse matrix or a tensor, its columns over `unit`."""
        total = float(weights.sum())
        if not total:
            return cls(0.0, np.zeros(len(unit)), np.zeros(len(unit)))
        if sparse.issparse(A):
            mean, variance = mean_variance_axis(_divided(A, unit), axis=0, weights=weights)
            return cls(total, mean, variance * total)
        x = A / on_device_of(A, unit)
        mean = weights @ x / total
        return cls(total, on_host(mean), on_host(weights @ (x - mean) ** 2))

    def merged(self, other: Self) -> Self:
        """Return the summary of both sets of rows."""
        total = self.weight + other.weight
        share, step = other.weight / (total or 1.0), other.mean - self.mean
        between = self.weight * share * step**2
        return self._replace(
            weight=total,
            mean=self.mean + share * step,
            squares=self.squares + other.squares + between,
        )

    def scaling(self, unit: Array) -> Scaling:
        """Return the scaling to mean 0 and deviation 1."""
        return Scaling.of(self.mean * unit, np.sqrt(self.squares / self.weight) * unit)


Summary = TypeVar("Summary", Ends, Moments)


def merge(one: Summary, other: Summary) -> Summary:
    """Return the summary of both sets of rows."""
    return one.merged(other)


class Summarise(Protocol):
    """An owner of rows: make a summary of each block of X and w, and merge them."""

    def __call__(self, summary: Callable[[Inputs, Array], Summary]) -> Summary:
        """Return the summary of all rows that count."""
        ...


def fit_scaling(kind: str | None, n_columns: int, summarise: Summarise) -> Scaling:
    """Compute a scaling of rows in any place, in at most two passes.

    Parameters
    ----------
    kind : {"minmax", "standard", None}
        See `Scaling.fit`.
    n_columns : int
        Number of columns.
    summarise : callable
        Called with a function that makes a summary of inputs and weights; returns that of all rows.
    """
    if kind is None:
        return Scaling(np.zeros(n_columns), np.ones(n_columns))
    if kind not in INPUT_SCALINGS:
        raise KeyError(kind)
    ends = summarise(Ends.of)
    if kind == "minmax":
        return ends.scaling()
    # In units of the largest entry: squares of 1e300 and 1e-300 leave the floats.
    unit = np.maximum(np.abs(ends.low), np.abs(ends.high))
    unit[unit == 0] = 1.0
    return summarise(partial(Moments.of, unit=unit)).scaling(unit)


# -- the robust rule -----------------------------------------------------------------------------


def weighted_quantiles(values: Array, levels: float | Sequence[float], weights: Array) -> Array:
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


def fit_robust(
    A: Array,
    weights: Array,
    quantiles: Callable[[Array, Sequence[float], Array], Array] = weighted_quantiles,
) -> Scaling:
    """Read the robust scaling off an array or a tensor; `quantiles` are those of a column."""
    columns = []
    for column in A.T:
        known = column == column  # not NaN
        values, w = column[known], weights[known]
        deviation = Scaling.fit("standard", values[:, None], w).scale.item()
        columns.append(_robust_numbers(quantiles(values, ROBUST_LEVELS, w), deviation))
    centre, scale = np.array(columns).T
    return Scaling.of(centre, scale)


def _robust_numbers(quantiles: Array, deviation: float) -> tuple[float, float]:
    """Return centre and scale from the quantiles at `ROBUST_LEVELS` and the deviation."""
    median, *ends = quantiles
    low, high = np.split(np.array(ends), 2)
    spreads = (high / 2 - low / 2) / -ndtri(_TAILS)
    # A spread below 1e-14 of the next wider one is that of rounding errors, and counts as 0. But an
    # ordinary one beside one beyond 1e13 is that of the measurements, and the wider one that of
    # fill values (1e20, 1e36).
    wider = np.append(spreads[1:], 0.0)
    filled = (spreads >= 1 / _ORDINARY) & (spreads <= _ORDINARY) & (wider > _ORDINARY)
    rounding = np.where(filled, 0.0, 1e-14 * wider)
    rounding = np.maximum(rounding, 10 * np.finfo(float).eps * abs(median))
    usable = np.append(spreads > rounding, True)
    return float(median), float(np.append(spreads, deviation)[np.argmax(usable)])


# -- arrays and tensors alike --------------------------------------------------------------------

Values = TypeVar("Values", bound=npt.NDArray[np.generic])


def on_device_of(A: Array, numbers: Array) -> Array:
    """Return numbers in float64; if A is a tensor, as a tensor on its device."""
    return numbers if isinstance(A, np.ndarray) else A[:0].double().new_tensor(numbers)


def on_host(values: Values) -> Values:
    """Return the values of an array or a tensor as an array."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _precision(A: Inputs) -> npt.DTypeLike:
    return np.float32 if str(A.dtype).endswith("float32") else np.float64


def _limit(dtype: npt.DTypeLike) -> float:
    return float(float(np.finfo(np.dtype(dtype)).max) ** 0.48)


def _divided(A: sparse.csr_array, scale: Array) -> sparse.csr_array:
    """Divide the columns of a CSR matrix (a reciprocal of 1e-310 would overflow)."""
    with np.errstate(over="ignore"):
        data = A.data / scale[A.indices]
    return type(A)((data, A.indices, A.indptr), shape=A.shape)
