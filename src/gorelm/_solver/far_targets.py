r"""Shorten far targets, so that extreme outliers do not cost the other rows digits.

A robust loss uses only the direction of a far outlier. Targets whose norm exceeds 1e8 typical norms
(1e4 for float32 rows) are therefore shortened to that norm, in float64, before T is converted to
the precision of H. Each owner of rows makes a `NormSummary` of its rows; summaries of blocks
are added, and the limit follows from their sum (`NormSummary.limit`).

Only operators and methods that NumPy arrays share with PyTorch's tensors are used, so that these
functions serve every owner of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gorelm._solver.problem import Problem
from gorelm._typing import Array

_EXPONENTS = 2200  # of float64, subnormal numbers included
_ROUNDING = 43  # binary orders: 1e-13


class NormSummary(NamedTuple):
    """Histogram of the norms of targets over their binary exponents; summaries of blocks add up."""

    weights: Array  # sums of the sample weights
    logs: Array  # sums of the weighted logarithms of the norms

    @classmethod
    def of(cls, T: Array, problem: Problem, omega: Array | None) -> NormSummary:
        """Summarise the norms of T divided by omega; zeros are left out.

        The loss of the problem decides whether norms are those of rows or of cells.
        """
        r = problem.residual_norms(T)
        roots = r**0 if omega is None else r**0 * _column(omega, r)
        known = (r > 0) & (roots > 0)
        sizes, weights = r[known] / roots[known], roots[known] ** 2
        if not isinstance(sizes, np.ndarray):  # histogram on the device, sums on the host
            exponents = sizes.frexp()[1] + _EXPONENTS // 2
            sums = [
                exponents.bincount(values, _EXPONENTS).cpu().numpy()
                for values in (weights.double(), weights.double() * sizes.double().log())
            ]
            return cls(*sums)
        sizes = sizes.astype(float)
        exponents = np.frexp(sizes)[1] + _EXPONENTS // 2
        values = (weights, weights * np.log(sizes))
        return cls(*(np.bincount(exponents, v, _EXPONENTS).astype(float) for v in values))

    @property
    def typical(self) -> float:
        """Geometric mean of the norms, which a few rows cannot change much.

        Where at least half of the norms are ordinary, between 1e-13 and 1e13 as those of scaled
        targets are, only they count. Norms below 1e-13 of the ninth decile are rounding errors of
        zeros, and left out.
        """
        weights, logs = self
        exponents = np.arange(_EXPONENTS) - _EXPONENTS // 2
        ordinary = np.abs(exponents) <= _ROUNDING
        if weights @ ordinary >= 0.5 * weights.sum():
            weights, logs = weights * ordinary, logs * ordinary
        total = weights.sum()
        if not total:
            return 1.0
        ninth_decile = int(np.argmax(np.cumsum(weights) >= 0.9 * total))
        sound = slice(max(0, ninth_decile - _ROUNDING), None)
        return float(np.exp(logs[sound].sum() / weights[sound].sum()))

    def limit(self, problem: Problem, dtype: npt.DTypeLike) -> float:
        """Return the norm to which targets are shortened, for rows of this precision.

        Two rounds: before the first, far norms move the typical norm too.
        """
        if problem.loss == "squared":  # which sees the length of every target
            return float("inf")
        once = farthest(dtype) * self.typical
        shortened = self._replace(logs=np.minimum(self.logs, self.weights * np.log(once)))
        return farthest(dtype) * shortened.typical


def farthest(dtype: npt.DTypeLike) -> float:
    """Return the largest norm of a target in typical norms, for rows of this precision.

    Of a longer target a robust loss uses only the direction (to half the digits), while its length
    would cost digits in all sums.
    """
    return 1e4 if np.dtype(dtype) == np.float32 else 1e8


def within(T: Array, problem: Problem, omega: Array | None, limit: float) -> Array:
    """Return T with norms beyond `limit` shortened to it; T itself if there are none."""
    r = problem.residual_norms(T)
    limits = limit if omega is None else limit * _column(omega, r)
    if not (r > limits).any():
        return T
    return T * _column(limits / r.clip(min=limits), T)


def shorten(
    T: Array, problem: Problem, omega: Array | None, limit: float, dtype: npt.DTypeLike
) -> Array:
    """Return `within` of targets in float64, and refuse what is still too large for `dtype`."""
    T = within(T, problem, omega, limit)
    refuse_huge(T, "y", dtype, "set target_scaling or rescale y")
    return T


def bring_near(T: Array, problem: Problem, omega: Array | None, dtype: npt.DTypeLike) -> Array:
    """Shorten the targets that are too far away for rows of this precision; T is all targets."""
    limit = NormSummary.of(T, problem, omega).limit(problem, dtype)
    return shorten(T, problem, omega, limit, dtype)


def refuse_huge(A: Array, name: str, dtype: npt.DTypeLike, remedy: str) -> None:
    """Raise if values are so large that sums of their squares may overflow in `dtype`."""
    limit = float(np.finfo(np.dtype(dtype)).max) ** (1 / 3)
    if (abs(A) > limit).any():
        raise ValueError(
            f"{name} has values above {limit:.0e} after scaling, whose squares overflow in "
            f"{np.dtype(dtype)}; {remedy}"
        )


def _column(values: Array, like: Array) -> Array:
    """Shape values per row (or per cell) so that they broadcast against `like`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))
