"""How large targets are, and how large they may be: a row that is far off must not cost digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gorelm._solver.problem import Problem
from gorelm._typing import Array

__all__ = ["NormSummary", "bring_near", "farthest", "refuse_huge", "typical_norm", "within"]


class NormSummary(NamedTuple):
    """Norms of targets by their binary exponents: summaries of several rows' owners add up."""

    weights: Array  # summed over the norms of an exponent
    logs: Array  # weighted logarithms, summed likewise

    @classmethod
    def of(cls, T: Array, problem: Problem, omega: Array | None) -> NormSummary:
        """Summarise the norms of T, taken back to rows of weight 1; zeros are left out."""
        r = problem.residual_norms(T)
        omega = np.ones(len(r)) if omega is None else omega
        omega = np.broadcast_to(_column(omega, r), r.shape)
        known = (r > 0) & (omega > 0)
        sizes, weights = (r[known] / omega[known]).astype(float), omega[known] ** 2
        exponents = np.frexp(sizes)[1] + EXPONENTS // 2
        logs = weights * np.log(sizes)
        sums = (np.bincount(exponents, values, EXPONENTS) for values in (weights, logs))
        return cls(*(np.asarray(values, dtype=float) for values in sums))

    @property
    def typical(self) -> float:
        """Geometric mean of the norms, a scale that a few rows cannot move far.

        What beside the ninth decile is rounding of zeros is left out.
        """
        total = self.weights.sum()
        if not total:
            return 1.0
        ninth_decile = int(np.argmax(np.cumsum(self.weights) >= 0.9 * total))
        sound = slice(max(0, ninth_decile - _ROUNDING), None)
        return float(np.exp(self.logs[sound].sum() / self.weights[sound].sum()))


EXPONENTS = 2200  # of float64, subnormal numbers included
_ROUNDING = 43  # binary orders: 1e-13


def typical_norm(T: Array, problem: Problem, omega: Array | None) -> float:
    """Return the geometric mean of the norms of T; see `NormSummary.typical`."""
    return NormSummary.of(T, problem, omega).typical


def within(T: Array, problem: Problem, omega: Array | None, limit: float) -> Array:
    """Shorten what of T has a norm beyond `limit` to that norm; T itself if there is none."""
    r = problem.residual_norms(T)
    limits = limit if omega is None else limit * _column(omega, r)
    if not (r > limits).any():
        return T
    factor = limits / np.maximum(r, limits)
    return np.asarray(T * _column(factor, T), dtype=T.dtype)


ROUNDS = 2  # of shortening targets: while some are 1e40 away, they move the typical size too


def farthest(dtype: npt.DTypeLike) -> float:
    """Return how many typical sizes away a target may be, for rows of this precision.

    Robust losses see only the direction of one further off (to half the digits); its length would
    only cost digits of everything else.
    """
    return 1e4 if np.dtype(dtype) == np.float32 else 1e8


def bring_near(T: Array, problem: Problem, omega: Array | None, dtype: npt.DTypeLike) -> Array:
    """Shorten the targets that are too far away for rows of this precision, before they have it."""
    for _ in range(ROUNDS if problem.loss != "squared" else 0):
        T = within(T, problem, omega, farthest(dtype) * typical_norm(T, problem, omega))
    refuse_huge(T, "y", np.dtype(dtype), "set target_scaling or rescale y")
    return T


def refuse_huge(A: Array, name: str, dtype: np.dtype[Any], remedy: str) -> None:
    """Refuse values whose sums of squares come too near the end of the range of `dtype`."""
    limit = float(np.finfo(dtype).max) ** (1 / 3)
    if A.size and float(np.nanmax(np.abs(A))) > limit:
        raise ValueError(
            f"{name} has values above {limit:.0e} after scaling, whose squares overflow in "
            f"{dtype}; {remedy}"
        )


def _column(values: Array, like: Array) -> Array:
    """Shape values per row (or per cell) so that they broadcast against `like`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))
