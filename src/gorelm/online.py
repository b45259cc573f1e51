"""Ridge over rows that keep coming, none of which is kept."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from gorelm.factor import Indices
from gorelm.prox import Array

__all__ = ["RecursiveRidge"]

_BLOCK = 32
_BLOCK_ROWS = 512


class RecursiveRidge:
    r"""The triangle R and the right-hand side z of all rows so far, RB = z.

    .. math:: R'R = H'H + I/C, \qquad R'z = H'T

    Rows are absorbed by orthogonal transformations (LAPACK's tpqrt), which lose fewer digits than
    updates of :math:`H'H` or of its inverse, and need no first chunk of any size: before the first
    row :math:`R = I/\sqrt{C}`.

    Parameters
    ----------
    n_hidden, n_targets : int
        Numbers of weights and targets.
    C : float
        Weight of the errors against the penalty.
    """

    def __init__(self, n_hidden: int, n_targets: int, C: float) -> None:
        self._R = np.asfortranarray(np.eye(n_hidden) / np.sqrt(C))
        self._z = np.zeros((n_hidden, n_targets), order="F")

    def absorbed(self, H: Array, T: Array) -> RecursiveRidge:
        """Return what rows with hidden outputs H (N, L) and targets T (N, m) make of it."""
        if not len(self._R):
            return self
        after = object.__new__(RecursiveRidge)
        R, z = self._R, self._z
        block = min(_BLOCK, len(R))
        for start in range(0, len(H), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            below = np.asfortranarray(H[rows], dtype=np.float64)
            R, v, t, failed = linalg.lapack.dtpqrt(0, block, R, below)
            if not failed:
                right = np.asfortranarray(T[rows], dtype=np.float64)
                z, _, failed = linalg.lapack.dtpmqrt(0, v, t, z, right, side="L", trans="T")
            if failed:
                raise linalg.LinAlgError("LAPACK could not absorb the rows")
        after._R, after._z = R, z
        return after

    def take(self, targets: Indices) -> RecursiveRidge:
        """Return the recursion of some targets alone."""
        part = object.__new__(RecursiveRidge)
        part._R, part._z = self._R, np.asfortranarray(self._z[:, targets])
        return part

    def keep(self, nodes: Indices) -> RecursiveRidge:
        """Return the recursion of some weights, by their increasing indices; others must be 0."""
        Q, R = linalg.qr(self._R[:, nodes], mode="economic", check_finite=False)
        part = object.__new__(RecursiveRidge)
        part._R, part._z = np.asfortranarray(R), np.asfortranarray(Q.T @ self._z)
        return part

    def weights(self) -> Array:
        """Return B (L, m)."""
        return np.asarray(linalg.solve_triangular(self._R, self._z, check_finite=False))
