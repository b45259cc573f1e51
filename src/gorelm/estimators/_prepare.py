"""Training rows: what is checked about them, and what the solvers see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array, check_consistent_length

from gorelm._compat import check_sample_weight
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import weighted_quantiles
from gorelm._typing import Array

__all__ = [
    "Design",
    "Mask",
    "require_targets",
    "row_norms",
    "row_scores",
    "typical_size",
    "usable_rows",
    "validate_targets",
]

Mask = npt.NDArray[np.bool_]


@dataclass
class Design:
    """Training rows, scaled, as the solvers take them: T multiplied by omega, unknown cells 0."""

    X: Any
    offset: Array | None  # what is left to add to a sparse X
    T: Array
    w: Array  # sample weights, all positive
    omega: Array | None  # their square roots; None: all 1
    observed: Mask | None  # known cells of T; None: all

    def times_omega(self, H: Array) -> Array:
        """Multiply the rows of hidden outputs by omega, in their own memory."""
        if self.omega is not None:
            H *= self.omega[:, None].astype(H.dtype)
        return H

    def hidden(self, layer: HiddenLayer) -> Array:
        """Return what a layer makes of the rows, times omega."""
        return self.times_omega(layer.transform(self.X, offset=self.offset))

    def take(self, rows: Any) -> Design:
        """Return some of the rows."""
        return replace(
            self,
            X=self.X[rows],
            T=self.T[rows],
            w=self.w[rows],
            omega=None if self.omega is None else self.omega[rows],
            observed=None if self.observed is None else self.observed[rows],
        )

    def typical_size(self) -> float:
        """Return the median norm of a row of targets."""
        return typical_size(self.T, self.w, self.omega)

    def residuals(self, outputs: Array, intercept: Array | float = 0.0) -> Array:
        """Return outputs (times omega) less targets, with omega taken out; 0 where unknown."""
        residuals: Array = outputs - self.T
        if self.omega is not None:
            residuals /= self.omega[:, None]
        residuals += intercept
        if self.observed is not None:
            residuals *= self.observed
        return residuals


def validate_targets(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array]:
    """Return T (N, m) and the rows' weights for a checked X; the model remembers if y was 1-d."""
    if y is None:
        raise ValueError(
            f"This {type(model).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    finite: Any = "allow-nan" if model.missing_targets == "ignore" else True
    T = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite=finite, input_name="y")
    check_consistent_length(X, T)
    model._one_target = T.ndim == 1
    w = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return T.reshape(len(T), -1), w


def usable_rows(T: Array, w: Array) -> Mask:
    """Return which rows have a weight and a known target; raises if these are too few."""
    known = ~np.isnan(T)
    used: Mask = (w > 0) & known.any(axis=1)
    require_targets(known[used])
    return used


def require_targets(known: Mask) -> None:
    """Raise unless every target is known in some of the rows that count."""
    if not len(known):
        raise ValueError("no row has both a positive sample weight and a known target")
    if not known.any(axis=0).all():
        empty = np.flatnonzero(~known.any(axis=0)).tolist()
        raise ValueError(f"no value of target column(s) {empty} is known (of positive weight)")


def typical_size(T: Array, w: Array, omega: Array | None) -> float:
    """Return the median norm of a row of targets T, which are multiplied by omega."""
    sizes = row_norms(T) if omega is None else row_norms(T) / omega
    return float(weighted_quantiles(sizes, 0.5, w))


def row_norms(A: Array) -> Array:
    """Norm of every row, in float64."""
    return np.asarray(np.sqrt(np.einsum("nm,nm->n", A, A, dtype=float)))


def row_scores(residuals: Array, T: Array) -> Array:
    """Return norms of residuals (0 where T is NaN), as if all targets of a row were known."""
    share_known = (~np.isnan(T)).mean(axis=1)
    return np.asarray(row_norms(residuals) / np.sqrt(np.where(share_known, share_known, 1)))
