"""Least squares in closed form: minimum norm, and updates for new columns or new rows.

`minimum_norm` is for ELM. `GrowingLeastSquares` (EM-ELM) and `ResidualFitting` (I-ELM) are updated
with new columns of H, `RecursiveRidge` (OS-ELM) with new rows. (Ridge and robust losses on a
growing H are in `gorelm._solver.prepared.Prepared`.)
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from gorelm._solver.linalg import Indices
from gorelm._typing import Array


def minimum_norm(H: Array, T: Array, cond: float | None = None) -> Array:
    """Return the least-squares weights of smallest norm, the pseudo-inverse of H times T.

    Singular values up to `cond` times the largest (default: rounding) count as 0.

    Works in the memory of `H` when that is float64 and in Fortran order (scipy's lstsq would copy
    it, however asked), and leaves it overwritten.
    """
    n_rows, n_hidden = H.shape
    right = np.zeros((max(H.shape), T.shape[1]), order="F")
    right[:n_rows] = T
    cond = max(H.shape) * np.finfo(float).eps if cond is None else cond
    lwork, iwork, _ = linalg.lapack.dgelsd_lwork(n_rows, n_hidden, T.shape[1], cond)
    B, _, _, failed = linalg.lapack.dgelsd(
        H, right, int(lwork), int(iwork), cond, overwrite_a=1, overwrite_b=1
    )
    if failed:
        raise linalg.LinAlgError("the singular value decomposition of the hidden outputs failed")
    return np.asarray(B[:n_hidden])


_EPS = float(np.finfo(float).eps)
_REFINE = 1e-9  # relative residual within the span of H from which on rounding is taken out


class GrowingLeastSquares:
    r"""Least squares of smallest norm, for columns that come in groups (EM-ELM).

    Kept are an orthonormal basis Q of the columns so far and their coordinates, H = QC; so
    :math:`H^\dagger = C^\dagger Q'`, and the N rows are touched only to take the projection on Q
    out of new columns, twice, for rounding. What then remains of a column, if more than rounding,
    extends the basis: H may have any rank.
    """

    def __init__(self, H: Array, T: Array) -> None:
        self._Q = np.empty((len(H), 0))
        self._C = np.empty((0, 0))
        self._QtT = np.empty((0, T.shape[1]))
        self._outside = T.astype(np.float64)  # T less its projection on Q
        self.extend(H)

    def extend(self, dH: Array) -> None:
        """Add columns."""
        rest = dH.astype(np.float64)
        inside = np.zeros((self._Q.shape[1], rest.shape[1]))
        for _ in range(2):
            projection = self._Q.T @ rest
            rest -= self._Q @ projection
            inside += projection
        size = max(_largest(self._C), _largest(dH))
        new, triangle, order = linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        # What is left of a column in the span of the others is rounding of the column's own size.
        steps = np.abs(np.diag(triangle))
        rank = int(np.count_nonzero(steps > 4 * _EPS * size * np.sqrt(len(dH))))
        rank = min(rank, len(dH) - len(inside))
        below = np.zeros((rank, rest.shape[1]))
        below[:, order] = triangle[:rank]
        self._Q = np.hstack([self._Q, new[:, :rank]])
        left = np.vstack([self._C, np.zeros((rank, self._C.shape[1]))])
        self._C = np.hstack([left, np.vstack([inside, below])])
        inside_T = new[:, :rank].T @ self._outside
        self._outside = self._outside - new[:, :rank] @ inside_T
        self._QtT = np.vstack([self._QtT, inside_T])

    def keep(self, columns: Indices) -> None:
        """Keep some columns, by their increasing indices."""
        self._C = self._C[:, columns]

    def solve(self) -> tuple[Array, float]:
        """Return the weights (L, m), and half the sum of their squared errors."""
        coef = self._smallest(self._QtT)
        inside = self._C @ coef - self._QtT
        if np.linalg.norm(inside) > _REFINE * np.linalg.norm(self._QtT):
            coef -= self._smallest(inside)
            inside = self._C @ coef - self._QtT
        return coef, 0.5 * float(np.vdot(inside, inside) + np.vdot(self._outside, self._outside))

    def _smallest(self, right: Array) -> Array:
        """Return the smallest of the best solutions of CX = right."""
        if not len(self._C):
            return np.zeros((self._C.shape[1], right.shape[1]))
        # The same cutoff of singular values as in a decomposition of H itself.
        cond = max(len(self._Q), self._C.shape[1]) * _EPS
        return minimum_norm(np.array(self._C, order="F"), right, cond=cond)

    def outputs(self, coef: Array) -> Array:
        """Return H times weights."""
        return np.asarray(self._Q @ (self._C @ coef))


class ResidualFitting:
    r"""Nodes fitted one after the other, each to the residual of those before it (I-ELM).

    .. math:: \beta_j = \frac{h_j' e_{j-1}}{h_j' h_j}, \qquad e_j = e_{j-1} - h_j \beta_j

    For a group of nodes the recursion is a triangular system, :math:`\mathrm{tril}(H'H)\,\beta =
    H'e`, as :math:`h_j'e_{j-1} = h_j'e - \sum_{i<j} h_j'h_i\beta_i`: a matrix product for the group
    instead of a pass over the rows for every node.
    """

    def __init__(self, H: Array, T: Array) -> None:
        self._T, self._residual = T, T.astype(np.float64)
        self._coef = np.empty((0, T.shape[1]))
        self.extend(H)

    def extend(self, dH: Array) -> None:
        """Fit new columns to the residual, in their order."""
        dH = dH.astype(np.float64, copy=False)
        G = dH.T @ dH
        right = dH.T @ self._residual
        silent = np.diag(G) == 0  # a node that is 0 in every row gets no weight
        G[silent, silent], right[silent] = 1.0, 0.0
        beta = linalg.solve_triangular(G, right, lower=True, check_finite=False)
        self._residual = self._residual - dH @ beta
        self._coef = np.vstack([self._coef, beta])

    def keep(self, columns: Indices) -> None:
        """Keep some columns, by their increasing indices; the others must have weights of 0."""
        self._coef = self._coef[columns]

    def solve(self) -> tuple[Array, float]:
        """Return the weights (L, m), and half the sum of their squared errors."""
        return self._coef, 0.5 * float(np.vdot(self._residual, self._residual))

    def outputs(self, coef: Array) -> Array:
        """Return H times the weights that `solve` gave (no others: H is not kept)."""
        return np.asarray(self._T - self._residual)


def _largest(A: Array) -> float:
    """Norm of the longest column."""
    return float(np.sqrt(np.einsum("ij,ij->j", A, A).max(initial=0.0)))


_QR_BLOCK = 32
_CHUNK_ROWS = 512


class RecursiveRidge:
    r"""The triangle R and the right-hand side z of all rows so far, RB = z.

    .. math:: R'R = H'H + I/C, \qquad R'z = H'T + B_0/C

    Rows are absorbed by orthogonal transformations (LAPACK's tpqrt), which lose fewer digits than
    updates of :math:`H'H` or of its inverse, and need no first chunk of any size: before the first
    row :math:`R = I/\sqrt{C}` and :math:`B = B_0`, which is 0 unless given.

    Old rows can be faded. The ridge fades with them, and is restored when less than half of it is
    left: in between it is at least :math:`I/(2C)`.
    """

    # Not in files of earlier versions, in which nothing has faded.
    _ridge: float = 0.0
    _left: float = 1.0
    _start: Array | None = None

    def __init__(self, n_hidden: int, n_targets: int, C: float, start: Array | None = None) -> None:
        self._R: Array = np.asfortranarray(np.eye(n_hidden) / np.sqrt(C))
        self._z: Array = np.zeros((n_hidden, n_targets), order="F")
        self._ridge, self._start = 1.0 / C, start
        if start is not None:
            self._z += start / np.sqrt(C)

    def absorbed(self, H: Array, T: Array) -> RecursiveRidge:
        """Return the recursion after rows with hidden outputs H (N, L) and targets T (N, m)."""
        if not len(self._R):
            return self
        R, z = self._R, self._z
        block = min(_QR_BLOCK, len(R))
        for start in range(0, len(H), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            below = np.asfortranarray(H[rows], dtype=np.float64)
            R, v, t, failed = linalg.lapack.dtpqrt(0, block, R, below)
            if not failed:
                right = np.asfortranarray(T[rows], dtype=np.float64)
                z, _, failed = linalg.lapack.dtpmqrt(0, v, t, z, right, side="L", trans="T")
            if failed:
                raise linalg.LinAlgError("LAPACK could not absorb the rows")
        return self._with(R, z)

    def faded(self, share: float) -> RecursiveRidge:
        """Return the recursion with all rows so far weighted by a share in [0, 1]."""
        after = self._with(self._R * np.sqrt(share), self._z * np.sqrt(share))
        after._left = self._left * share
        if after._left >= 0.5:
            return after
        missing = np.sqrt((1.0 - after._left) * self._ridge)
        ridge = missing * np.eye(len(self._R))
        towards = np.zeros_like(self._z) if self._start is None else missing * self._start
        after = after.absorbed(ridge, towards)
        after._left = 1.0
        return after

    def take(self, targets: Indices) -> RecursiveRidge:
        """Return the recursion of some targets alone."""
        part = self._with(self._R, np.asfortranarray(self._z[:, targets]))
        part._start = None if self._start is None else self._start[:, targets]
        return part

    def keep(self, nodes: Indices) -> RecursiveRidge:
        """Return the recursion of some weights, by their increasing indices; others must be 0."""
        Q, R = linalg.qr(self._R[:, nodes], mode="economic", check_finite=False)
        part = self._with(np.asfortranarray(R), np.asfortranarray(Q.T @ self._z))
        part._start = None if self._start is None else self._start[nodes]
        return part

    def weights(self) -> Array:
        """Return B (L, m)."""
        return np.asarray(linalg.solve_triangular(self._R, self._z, check_finite=False))

    def predicted(self, H: Array) -> tuple[Array, Array]:
        """Return HB (N, m), and the rows' leverages h(R'R)^{-1}h' (N,).

        A new row's error has 1 + leverage times the variance of the noise.
        """
        if not len(self._R):
            return np.zeros((len(H), self._z.shape[1])), np.zeros(len(H))
        V: Array = linalg.solve_triangular(
            self._R, H.T.astype(float), trans="T", check_finite=False
        )
        return V.T @ self._z, np.einsum("ln,ln->n", V, V)

    def _with(self, R: Array, z: Array) -> RecursiveRidge:
        """Return a recursion of the same ridge with another triangle."""
        other = object.__new__(RecursiveRidge)
        vars(other).update(vars(self))
        other._R, other._z = R, z
        return other
