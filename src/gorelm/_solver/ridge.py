r"""Ridge regressions at many penalties, and what they predict for rows that they did not see.

.. math:: B_\lambda = (H'H + \lambda I)^{-1} H'T

One decomposition of H serves every penalty, and gives the prediction of each row by the regression
on all *other* rows (leave-one-out) in closed form. With the eigenvectors of the smaller side,

.. math::
    HH' = V \operatorname{diag}(s) V': \quad
        e = V (f \circ V'T) \,/\, (V^{\circ 2} f), \qquad f = \lambda / (s + \lambda) \\
    H'H = Q \operatorname{diag}(s) Q',\ A = HQ: \quad
        e = (T - A (g \circ A'T)) \,/\, (1 - A^{\circ 2} g), \qquad g = 1 / (s + \lambda)

e is the target less the leave-one-out prediction. For many rows, `RidgeSums` has H'H and H'T of
groups of rows: the regression without one group is a difference of sums and a Cholesky factor.
For some thousand rows and more outputs than rows, `DualRidge` has a Cholesky factor of HH' + lam I.

Decompositions and products release the lock of the interpreter: layers and folds are fitted in
threads.

Penalties are in units of :math:`\|H\|_F^2`, so that one path fits every layer.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from gorelm._solver import lapack
from gorelm._typing import Array, Indices


class RidgePath:
    """Ridge regressions of one H in memory, at every penalty of a path.

    Parameters
    ----------
    H : array (n, L)
        Hidden outputs, times the square roots of the rows' weights.
    lams : array (P,)
        Positive penalties, in units of the squared norm of H.
    """

    def __init__(self, H: Array, lams: Array) -> None:
        self._H = H
        self._wide = len(H) <= H.shape[1]
        self._unit = float(np.vdot(H, H)) or 1.0
        self._s, vectors = np.linalg.eigh(H @ H.T if self._wide else H.T @ H)
        if self._wide:
            self._rows = vectors
        else:
            self._Q, self._rows = vectors, H @ vectors
        self._penalise(lams)

    def at(self, lams: Array) -> Self:
        """Return the regressions at other penalties, with the same decomposition."""
        other = copy(self)
        other._penalise(lams)
        return other

    def _penalise(self, lams: Array) -> None:
        self._shifts = np.maximum(self._s, 0.0)[:, None] + lams * self._unit
        if self._wide:
            # Written as it stands: a floor under 1 - leverage would make layers that interpolate
            # look perfect.
            self._filter = lams * self._unit / self._shifts
            self._slack = self._rows**2 @ self._filter
        else:
            self._filter = 1.0 / self._shifts
            self._slack = 1.0 - self._rows**2 @ self._filter
            # A row that alone decides a direction has no prediction without it but that of B = 0.
            np.maximum(self._slack, np.finfo(float).eps, out=self._slack)

    def errors(self, T: Array, penalties: slice = slice(None)) -> Array:
        """Return the targets less what the regressions on all other rows predict, (n, P, m).

        Parameters
        ----------
        T : array (n, m) or (n, P, m)
            Targets (times the square roots of the weights); their own for each penalty, or shared.
        penalties : slice, optional
            Of the path; by default all P of them.
        """
        filters = self._filter[:, penalties, None]
        P = filters.shape[1]
        T = np.broadcast_to(T[:, None] if T.ndim == 2 else T, (len(T), P, T.shape[-1]))
        filtered = self._times_rows(filters * self._projected(T))
        errors = filtered if self._wide else np.subtract(T, filtered, out=filtered)
        errors /= self._slack[:, penalties, None]
        return np.asarray(errors)

    def left_out(self, T: Array) -> Array:
        """Return the prediction of each row by the regressions on all others, (n, P, m).

        Parameters
        ----------
        T : array (n, m) or (n, P, m)
            As for `errors`.
        """
        return np.asarray((T[:, None] if T.ndim == 2 else T) - self.errors(T))

    def coefs(self, T: Array) -> Array:
        """Return the output weights at every penalty, (L, P, m), for targets as in `errors`."""
        P = self._filter.shape[1]
        T = np.broadcast_to(T[:, None] if T.ndim == 2 else T, (len(T), P, T.shape[-1]))
        solved = self._projected(T) / self._shifts[:, :, None]
        flat = solved.reshape(len(solved), -1)
        coefs = self._H.T @ (self._rows @ flat) if self._wide else self._Q @ flat
        return np.asarray(coefs.reshape(-1, *solved.shape[1:]))

    def coef(self, T: Array, penalties: Indices) -> Array:
        """Return the output weights (L, m) of targets (n, m), each at its penalty of the path."""
        solved = (self._rows.T @ T) / self._shifts[:, penalties]
        return np.asarray(self._H.T @ (self._rows @ solved) if self._wide else self._Q @ solved)

    def _projected(self, T: Array) -> Array:
        """Rows' @ T, (r, P, m); targets that all penalties share are multiplied once."""
        if T.strides[1] == 0:
            return np.asarray((self._rows.T @ T[:, 0])[:, None])
        return np.asarray((self._rows.T @ T.reshape(len(T), -1)).reshape(-1, *T.shape[1:]))

    def _times_rows(self, C: Array) -> Array:
        return np.asarray((self._rows @ C.reshape(len(C), -1)).reshape(-1, *C.shape[1:]))


class DualRidge:
    r"""A ridge regression with fewer rows than outputs, by a Cholesky factor of HH'.

    .. math:: B = H'a, \quad a = (HH' + \lambda I)^{-1} T, \quad
        e_i = a_i \,/\, [(HH' + \lambda I)^{-1}]_{ii}

    For some thousand rows, a factor at each of a few penalties takes less time than eigenvectors,
    which serve all of them.

    Parameters
    ----------
    K : array (n, n)
        HH', of which the lower triangle is read; rows of H are multiplied by the square roots of
        their weights.
    T : array (n, m)
        Targets, times the square roots of the weights.
    lam : float
        Penalty, in units of the squared norm of H.

    Attributes
    ----------
    dual : array (n, m)
        a.
    """

    def __init__(self, K: Array, T: Array, lam: float) -> None:
        unit = float(K.trace()) or 1.0
        self._factor = _factor(K, lam * unit, unit)
        self.dual = lapack.solve(self._factor, T)

    def errors(self, n_last: int | None = None) -> Array:
        """Return the targets less what the regressions on all other rows predict, (n, m).

        Of the last rows only, if asked for: these need the last rows of the factor alone.
        """
        n = len(self._factor) if n_last is None else n_last
        inverse = lapack.inverse(self._factor[-n:, -n:])
        return np.asarray(self.dual[-n:] / np.einsum("ij,ij->j", inverse, inverse)[:, None])


@dataclass(frozen=True)
class RidgeSums:
    """H'H and H'T of some rows, which add and subtract."""

    G: Array  # (L, L)
    C: Array  # (L, m)

    @classmethod
    def zero(cls, n_outputs: int, n_targets: int) -> Self:
        """Return the sums of no rows."""
        return cls(np.zeros((n_outputs, n_outputs)), np.zeros((n_outputs, n_targets)))

    def add(self, H: Array, T: Array) -> None:
        """Add the share of some rows, in place."""
        if len(H):
            np.add(self.G, H.T @ H, out=self.G)  # NumPy calls syrk
            np.add(self.C, H.T @ T, out=self.C)

    def __add__(self, other: Self) -> Self:
        return replace(self, G=self.G + other.G, C=self.C + other.C)

    def __iadd__(self, other: Self) -> Self:
        G, C = self.G, self.C  # frozen, but for what is in the arrays
        G += other.G
        C += other.C
        return self

    def __sub__(self, other: Self) -> Self:
        return replace(self, G=self.G - other.G, C=self.C - other.C)

    def with_targets_of(self, other: Self) -> Self:
        """Return the same H'H, and the sum of both H'T: more targets of the same rows."""
        return replace(self, C=self.C + other.C)

    def of_outputs(self, columns: Indices) -> Self:
        """Return the sums of some columns of H alone."""
        return replace(self, G=self.G[columns][:, columns], C=self.C[columns])

    @property
    def trace(self) -> float:
        """Squared norm of H."""
        return float(self.G.trace())

    def coef(self, lam: float) -> Array:
        """Return the output weights (L, m) at a penalty in units of the squared norm of H."""
        unit = self.trace or 1.0
        return _solved(self.G, lam * unit, self.C, unit)

    def coefs(self, lams: Array) -> Array:
        """Return the output weights at every penalty, (L, P, m), by one decomposition."""
        s, Q = np.linalg.eigh(self.G)
        unit = self.trace or 1.0
        shifts = np.maximum(s, 0.0)[:, None] + np.maximum(lams, 1e-14) * unit
        solved = (Q.T @ self.C)[:, None] / shifts[:, :, None]
        return np.asarray((Q @ solved.reshape(len(Q), -1)).reshape(solved.shape))


def ridge_coef(H: Array, T: Array, lams: Array) -> Array:
    """Return the output weights (L, m), each target at its penalty.

    Penalties (m,) are in units of the squared norm of H.
    """
    tall, unit = len(H) > H.shape[1], float(np.vdot(H, H)) or 1.0
    G, R = (H.T @ H, H.T @ T) if tall else (H @ H.T, T)
    solved = np.empty_like(R)
    for lam in np.unique(lams):
        same = lams == lam
        solved[:, same] = _solved(G, float(lam) * unit, R[:, same], unit)
    return solved if tall else np.asarray(H.T @ solved)


def _solved(G: Array, shift: float, R: Array, trace: float) -> Array:
    """Return (G + shift I)^-1 R."""
    return lapack.solve(_factor(G, shift, trace), R)


def _factor(G: Array, shift: float, trace: float) -> Array:
    """Return the Cholesky factor of G + shift I.

    Shifts below rounding are raised: the matrix need not be definite.
    """
    shifted = np.array(G, order="C")
    shifted.flat[:: len(G) + 1] += max(shift, 1e-14 * trace)
    return lapack.factor(shifted)
