"""Solve (H'H + s I) X = R for any shift s > 0: the one linear system of every method.

lam, l1_ratio and rho enter only through the shift. `CholeskyFactor` refactorises when the shift
changes (cheapest for one fit); `EighFactor` decomposes once and serves every shift (for batches of
problems); `WideFactor` turns a wide H to the N x N side of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy import linalg
from scipy.linalg import blas

from gorelm.prox import Array

__all__ = [
    "CholeskyFactor",
    "EighFactor",
    "Factor",
    "WideFactor",
    "gram",
    "gram_rows",
    "product",
]

_BLOCK_ROWS = 1024
# Relative to the trace of HH'. Above it Woodbury's identity leaves gaps of 1e-3 well within reach.
_SMALL_SHIFT = 5e-9


class Factor(Protocol):
    """Anything that solves (G + s_p I) X_p = R_p for each problem p of a batch."""

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for shifts (P,) and right-hand sides (L, P, m); returns (L, P, m)."""
        ...


def product(H: Array, T: Array) -> Array:
    """Return H'T in float64 whatever H is; float32 rows are converted block by block."""
    if H.dtype == np.float64:
        return np.asarray(H.T @ T)
    total = np.zeros((H.shape[1], T.shape[1]))
    for start in range(0, len(H), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        total += H[rows].T.astype(np.float64) @ T[rows]
    return total


def gram(H: Array) -> Array:
    """Return H'H, lower triangle only, in float64 whatever H is.

    float32 rows are converted block by block: the product of float32 rows would lose the small
    eigenvalues that the shift is compared with.
    """
    if H.dtype == np.float64 and H.flags.c_contiguous and H.size:
        return np.asarray(blas.dsyrk(1.0, H.T, lower=1))
    G = np.zeros((H.shape[1], H.shape[1]), order="F")
    for start in range(0, len(H), _BLOCK_ROWS):
        rows = np.ascontiguousarray(H[start : start + _BLOCK_ROWS], dtype=np.float64)
        G = blas.dsyrk(1.0, rows.T, beta=1.0, c=G, lower=1, overwrite_c=1)
    return G


def gram_rows(H: Array) -> Array:
    """Return HH' (the small side of a wide H), lower triangle only, in float64."""
    rows = np.ascontiguousarray(H, dtype=np.float64)
    return np.asarray(blas.dsyrk(1.0, rows.T, trans=1, lower=1)) if rows.size else rows @ rows.T


class CholeskyFactor:
    """Cholesky of G + s I, kept while the shift stays the same.

    Parameters
    ----------
    G : array (L, L)
        Gram matrix; only the lower triangle is read.
    """

    def __init__(self, G: Array) -> None:
        self._G = G
        self._shift = np.nan
        self._chol: Array | None = None
        self._fallback: EighFactor | None = None

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for every problem; problems with equal shifts share a factorisation."""
        X = np.empty(R.shape)
        for p, shift in enumerate(shifts):
            X[:, p] = self._solve_one(float(shift), R[:, p])
        return X

    def _solve_one(self, shift: float, R: Array) -> Array:
        if shift != self._shift:
            self._shift = shift
            shifted = self._G.copy(order="F")
            shifted.flat[:: len(shifted) + 1] += shift
            self._chol, failed = linalg.lapack.dpotrf(shifted, lower=1, clean=0, overwrite_a=1)
            if failed:  # the shift drowns in the rounding of G
                self._chol = None
        if self._chol is None:
            self._fallback = self._fallback or EighFactor(self._G)
            return self._fallback.solve(np.array([shift]), R[:, None])[:, 0]
        X, _ = linalg.lapack.dpotrs(self._chol, R, lower=1)
        return np.asarray(X)


class EighFactor:
    """One eigendecomposition of G for every shift.

    Parameters
    ----------
    G : array (L, L)
        Gram matrix; only the lower triangle is read.
    """

    def __init__(self, G: Array) -> None:
        values, self._vectors = linalg.eigh(G, lower=True, driver="evd", check_finite=False)
        # Eigenvalues below the rounding of the largest are noise, and may be negative.
        floor = len(G) * np.finfo(float).eps * max(float(values[-1]), np.finfo(float).tiny)
        self._values = np.maximum(values, floor)

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for every problem at the price of two products with the eigenvectors."""
        flat = R.reshape(len(R), -1)
        rotated = (self._vectors.T @ flat).reshape(R.shape)
        rotated /= (self._values[:, None] + shifts)[..., None]
        return np.asarray((self._vectors @ rotated.reshape(flat.shape)).reshape(R.shape))


class WideFactor:
    r"""Wide H: factor an N x N matrix instead of H'H (L x L).

    Woodbury's identity needs no more than HH',

    .. math:: (H'H + sI)^{-1} x = \bigl(x - H'(HH' + sI)^{-1} Hx\bigr) / s ,

    but as s shrinks its difference loses digits. For small s, or when every digit is wanted, the
    QR decomposition H' = QR takes over, with :math:`c = x - QQ'x`:

    .. math:: (H'H + sI)^{-1} x = Q (RR' + sI)^{-1} Q'x + c / s .

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs, N < L.
    factor : callable
        `CholeskyFactor` or `EighFactor`, applied to the N x N matrix.
    exact : bool, default=True
        Whether every digit is wanted.
    """

    def __init__(
        self, H: Array, factor: Callable[[Array], Factor] = CholeskyFactor, *, exact: bool = True
    ) -> None:
        self._H = H.astype(np.float64, copy=False)
        self._factor = factor
        K = gram_rows(self._H)
        self._outer = factor(K)
        self._smallest = np.inf if exact else _SMALL_SHIFT * float(np.trace(K))
        self._Q: Array | None = None

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for every problem."""
        by = self._woodbury if shifts.min() >= self._smallest else self._orthogonal
        return np.asarray(by(shifts, R.reshape(len(R), -1), R.shape))

    def _woodbury(self, shifts: Array, flat: Array, shape: tuple[int, ...]) -> Array:
        small = (self._H @ flat).reshape(-1, *shape[1:])
        solved = self._outer.solve(shifts, small).reshape(len(small), -1)
        return (flat - self._H.T @ solved).reshape(shape) / shifts[:, None]

    def _orthogonal(self, shifts: Array, flat: Array, shape: tuple[int, ...]) -> Array:
        if self._Q is None:
            self._Q, triangle = linalg.qr(self._H.T, mode="economic", check_finite=False)
            self._inner = self._factor(gram_rows(triangle))
        Q = self._Q
        inside = Q.T @ flat
        rest = flat - Q @ inside
        again = Q.T @ rest  # the rounding of the first projection, taken out too
        small = inside.reshape(-1, *shape[1:])
        solved = self._inner.solve(shifts, small) - again.reshape(small.shape) / shifts[:, None]
        X = (Q @ solved.reshape(inside.shape)).reshape(shape)
        return X + rest.reshape(shape) / shifts[:, None]
