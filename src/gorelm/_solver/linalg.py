"""Solve (H'H + s I) X = R for any shift s > 0: the one linear system of every method.

lam, l1_ratio and rho enter only through the shift. `CholeskyFactor` refactorises when the shift
changes (cheapest for one fit); `EighFactor` decomposes once and serves every shift (for batches of
problems); `WideFactor` turns a wide H to the N x N side of either.

When the network grows by nodes whose outputs are dH, G = H'H gets a border: K = H'dH to the right
and D = dH'dH in the corner. `CholeskyFactor` extends what it has instead of starting again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.linalg import blas

from gorelm._typing import Array

Indices = npt.NDArray[np.intp]

_BLOCK_ROWS = 1024
# Relative to the trace of HH'. Above it Woodbury's identity leaves gaps of 1e-3 well within reach.
_SMALL_SHIFT = 5e-9


class Factor(Protocol):
    """Anything that solves (G + s_p I) X_p = R_p for each problem p of a batch."""

    def prepare(self, shifts: Array) -> None:
        """Make ready for solving with shifts (P,), where that is worth doing ahead."""
        ...

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for shifts (P,) and right-hand sides (L, P, m); returns (L, P, m)."""
        ...

    def times(self, X: Array) -> Array | None:
        """Return G X for X (L, P, m), where that takes less than a product with H."""
        ...


def product(H: Array, T: Array) -> Array:
    """Return H'T in float64 whatever H is; float32 rows are converted block by block.

    Computed as (T'H)', which takes BLAS two thirds of the time; in Fortran order.
    """
    T = np.ascontiguousarray(T)  # whose order in memory would show in the last digit
    if H.dtype == np.float64:
        return np.asarray((T.T @ H).T)
    total = np.zeros((T.shape[1], H.shape[1]))
    for start in range(0, len(H), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        total += T[rows].T @ H[rows].astype(np.float64)
    return total.T


def gram(H: Array) -> Array:
    """Return H'H, lower triangle only, in float64 whatever H is.

    float32 rows are converted block by block: the product of float32 rows would lose the small
    eigenvalues that the shift is compared with.
    """
    if H.dtype == np.float64 and H.flags.c_contiguous and H.size:
        return np.asarray(blas.dsyrk(1.0, H.T, lower=1))
    total = GramSum(H.shape[1])
    for start in range(0, len(H), _BLOCK_ROWS):
        total.add(H[start : start + _BLOCK_ROWS])
    return total.G


class GramSum:
    """H'H (lower triangle, float64), a block of rows at a time."""

    def __init__(self, n_hidden: int) -> None:
        self.G: Array = np.zeros((n_hidden, n_hidden), order="F")

    def add(self, H: Array) -> None:
        """Add the share of some rows."""
        rows = np.ascontiguousarray(H, dtype=np.float64)
        if rows.size:
            self.G = blas.dsyrk(1.0, rows.T, beta=1.0, c=self.G, lower=1, overwrite_c=1)


def gram_rows(H: Array) -> Array:
    """Return HH' (the small side of a wide H), lower triangle only, in float64."""
    rows = np.ascontiguousarray(H, dtype=np.float64)
    return np.asarray(blas.dsyrk(1.0, rows.T, trans=1, lower=1)) if rows.size else rows @ rows.T


class _Gram:
    """G with pending borders, which are written only when the whole matrix is needed."""

    def __init__(self, G: Array) -> None:
        self._G, self._borders = G, list[tuple[Array, Array]]()

    def whole(self) -> Array:
        if self._borders:
            G = np.empty((self.size, self.size), order="F")
            G[: len(self._G), : len(self._G)] = self._G
            end = len(self._G)
            for K, D in self._borders:
                start, end = end, end + len(D)
                G[start:end, :start], G[start:end, start:end] = K.T, D
            self._G, self._borders = G, []
        return self._G

    @property
    def size(self) -> int:
        return len(self._G) + sum(len(D) for _, D in self._borders)

    def extend(self, K: Array, D: Array) -> None:
        self._borders.append((K, D))

    def keep(self, nodes: Indices) -> None:
        self._G = np.asfortranarray(self.whole()[np.ix_(nodes, nodes)])

    def times(self, X: Array) -> Array:
        flat = np.asfortranarray(X.reshape(len(X), -1))
        return np.ascontiguousarray(blas.dsymm(1.0, self.whole(), flat, lower=1)).reshape(X.shape)

    def shifted(self, shift: float) -> Array:
        """Return a copy of G + s I."""
        shifted = self.whole().copy(order="F")
        shifted.flat[:: len(shifted) + 1] += shift
        return shifted


class CholeskyFactor:
    """Cholesky of G + s I, kept while the shift stays the same.

    Parameters
    ----------
    G : array (L, L)
        Gram matrix; only the lower triangle is read.
    """

    def __init__(self, G: Array) -> None:
        self._gram = _Gram(G)
        self._shift = np.nan
        self._chol: Array | None = None
        self._fallback: EighFactor | None = None

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for every problem; problems with equal shifts share a factorisation."""
        X = np.empty(R.shape)
        for p, shift in enumerate(shifts):
            X[:, p] = self._solve_one(float(shift), R[:, p])
        return X

    def prepare(self, shifts: Array) -> None:
        """Leave the work to `solve`."""

    def times(self, X: Array) -> Array | None:
        """Multiply by G."""
        return self._gram.times(X)

    def factorise(self, shift: float) -> None:
        """Make ready for solving with one shift."""
        if shift == self._shift:
            return
        self._shift = shift
        shifted = self._gram.shifted(shift)
        self._chol, failed = linalg.lapack.dpotrf(shifted, lower=1, clean=0, overwrite_a=1)
        if failed:  # the shift drowns in the rounding of G
            self._chol = None

    def _solve_one(self, shift: float, R: Array) -> Array:
        self.factorise(shift)
        if self._chol is None:
            self._fallback = self._fallback or EighFactor(self._gram.whole())
            return self._fallback.solve(np.array([shift]), R[:, None])[:, 0]
        X, _ = linalg.lapack.dpotrs(self._chol, R, lower=1)
        return np.asarray(X)

    def extend(self, K: Array, D: Array) -> None:
        r"""Border the factor C of the old part by W, where CW = K, and S.

        .. math:: \begin{pmatrix} C & 0 \\ W' & S \end{pmatrix}, \qquad SS' = D + sI - W'W .
        """
        old, new = len(K), len(D)
        self._gram.extend(K, D)
        self._fallback = None
        if self._chol is None:
            self._shift = np.nan
            return
        W = blas.dtrsm(1.0, self._chol, K, lower=1)
        corner = np.array(D, order="F")
        corner.flat[:: new + 1] += self._shift
        corner = blas.dsyrk(-1.0, W, beta=1.0, c=corner, trans=1, lower=1, overwrite_c=1)
        S, failed = linalg.lapack.dpotrf(corner, lower=1, clean=0, overwrite_a=1)
        if failed:
            self._chol, self._shift = None, np.nan
            return
        chol = np.empty((old + new, old + new), order="F")
        chol[:old, :old], chol[old:, :old], chol[old:, old:] = self._chol, W.T, S
        self._chol = chol

    def keep(self, nodes: Indices) -> None:
        """Keep some rows and columns of G; the factor is made anew when next needed."""
        self._gram.keep(nodes)
        self._chol, self._shift, self._fallback = None, np.nan, None


def above_rounding(values: Array) -> Array:
    """Raise eigenvalues, in their order, that are noise beside the largest and may be negative."""
    floor = len(values) * np.finfo(float).eps * float(values[-1])
    return np.maximum(values, max(floor, np.finfo(float).tiny))


class EighFactor:
    """One eigendecomposition of G for every shift.

    Parameters
    ----------
    G : array (L, L)
        Gram matrix; only the lower triangle is read.
    """

    def __init__(self, G: Array) -> None:
        values, self._vectors = linalg.eigh(G, lower=True, driver="evd", check_finite=False)
        self._values = above_rounding(values)

    def prepare(self, shifts: Array) -> None:
        """Do nothing: one decomposition serves every shift."""

    def leading(self, count: int) -> tuple[Array, Array]:
        """Return the eigenvectors (L, count) of G with the largest eigenvalues, and these."""
        return np.ascontiguousarray(self._vectors[:, -count:]), self._values[-count:]

    def solve(self, shifts: Array, R: Array) -> Array:
        """Solve for every problem at the price of two products with the eigenvectors."""
        return self._scaled(R, 1.0 / (self._values[:, None] + shifts))

    def times(self, X: Array) -> Array | None:
        """Multiply by G, at the same price."""
        return self._scaled(X, self._values[:, None])

    def _scaled(self, X: Array, scales: Array) -> Array:
        """Multiply X (L, P, m) along each eigenvector."""
        rotated = (self._vectors.T @ X.reshape(len(X), -1)).reshape(X.shape)
        rotated *= scales[..., None]
        # The transposed product is faster than the product with the vectors on the left.
        scaled = rotated.reshape(len(X), -1).T @ self._vectors.T
        return np.ascontiguousarray(scaled.T).reshape(X.shape)


class WideFactor:
    r"""Wide H: factor an N x N matrix instead of H'H (L x L).

    Woodbury's identity needs no more than HH',

    .. math:: (H'H + sI)^{-1} x = \bigl(x - H'(HH' + sI)^{-1} Hx\bigr) / s ,

    but as s shrinks its difference loses digits. For small s, or when every digit is wanted, the
    QR decomposition H' = QR takes over, with :math:`c = x - QQ'x`:

    .. math:: (H'H + sI)^{-1} x = Q (RR' + sI)^{-1} Q'x + c / s .

    `factor` is applied to the N x N matrix, and `exact` says whether every digit is wanted.
    """

    def __init__(
        self, H: Array, factor: Callable[[Array], Factor] = CholeskyFactor, *, exact: bool = True
    ) -> None:
        self._factor, self._exact = factor, exact
        self._use(H, gram_rows(H))

    def _use(self, H: Array, K: Array) -> None:
        self._H, self._K = H.astype(np.float64, copy=False), K
        self._outer = self._factor(K)
        self._smallest = np.inf if self._exact else _SMALL_SHIFT * float(np.trace(K))
        self._Q: Array | None = None

    def widen(self, H: Array, n_new: int) -> None:
        """Go on with an H that has `n_new` more columns at its end."""
        self._use(H, self._K + gram_rows(H[:, -n_new:]))

    def prepare(self, shifts: Array) -> None:
        """Leave the work to `solve`."""

    def times(self, X: Array) -> Array | None:
        """Leave it to H."""
        return None

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


# -- wide H: coordinates in its row space ----------------------------------------------------------

_QR_BLOCK = 32


class RowSpace:
    r"""Coordinates C of weights B in the row space of a wide H (N, L), N <= L.

    With :math:`H' = QR`, weights outside the range of Q only cost penalty, so B = QC with
    :math:`HB = R'C` and :math:`\|B\|_F = \|C\|_F`: the square :math:`R'` stands for H.

    New nodes put rows under R. The QR decomposition of that triangle with rows below it (LAPACK's
    tpqrt) costs 2 N^2 operations for a node, whatever L is, and Q is kept as a product of the
    original and the small ones.
    """

    def __init__(self, H: Array) -> None:
        (self._packed, self._reflectors), R = linalg.qr(
            H.T.astype(np.float64, copy=False), mode="raw", check_finite=False
        )
        self._R = np.asfortranarray(R[: len(H)])
        self._steps: list[tuple[Array, Array]] = []

    @property
    def H(self) -> Array:
        """The square matrix R' that stands for H."""
        return np.ascontiguousarray(self._R.T)

    def extend(self, dH: Array) -> None:
        """Follow H to [H, dH]."""
        block = max(1, min(_QR_BLOCK, len(self._R)))
        R, v, t, failed = linalg.lapack.dtpqrt(
            0, block, self._R, np.asfortranarray(dH.T, dtype=np.float64)
        )
        _require(not failed)
        self._R = np.asfortranarray(np.triu(R))
        self._steps.append((v, t))

    def expand(self, C: Array) -> Array:
        """Return the weights B = QC, (L, ...) for C (N, ...)."""
        top, parts = np.asfortranarray(C.reshape(len(C), -1)), []
        for v, t in reversed(self._steps):
            empty = np.zeros((len(v), top.shape[1]), order="F")
            top, part, failed = linalg.lapack.dtpmqrt(0, v, t, top, empty, side="L", trans="N")
            _require(not failed)
            parts.append(part)
        padded = np.zeros((len(self._packed), top.shape[1]), order="F")
        padded[: len(top)] = top
        parts.append(self._first("N", padded))
        return np.concatenate(parts[::-1]).reshape(-1, *C.shape[1:])

    def shrink(self, B: Array) -> Array:
        """Return the coordinates C = Q'B of weights B (L, ...)."""
        flat = np.asfortranarray(B.reshape(len(B), -1))
        end = len(self._packed)
        top = np.asfortranarray(self._first("T", flat[:end])[: len(self._R)])
        for v, t in self._steps:
            start, end = end, end + len(v)
            top, _, failed = linalg.lapack.dtpmqrt(
                0, v, t, top, np.asfortranarray(flat[start:end]), side="L", trans="T"
            )
            _require(not failed)
        return np.ascontiguousarray(top).reshape(-1, *B.shape[1:])

    def _first(self, trans: str, columns: Array) -> Array:
        """Multiply by the Q of the first decomposition, or its transpose."""
        work = max(1, columns.shape[1]) * 64
        product, _, failed = linalg.lapack.dormqr(
            "L", trans, self._packed, self._reflectors, columns, work
        )
        _require(not failed)
        return np.asarray(product)


def _require(worked: bool) -> None:
    if not worked:
        raise linalg.LinAlgError("LAPACK could not make or apply a QR factor")
