"""Fewer rows than nodes: work in the space that the rows span, and follow it as nodes are added."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from gorelm.prox import Array

__all__ = ["RowSpace"]

_BLOCK = 32


class RowSpace:
    r"""Coordinates C of weights B in the row space of a wide H (N, L), N <= L.

    With :math:`H' = QR`, weights outside the range of Q only cost penalty, so B = QC with
    :math:`HB = R'C` and :math:`\|B\|_F = \|C\|_F`: the square :math:`R'` stands for H.

    New nodes put rows under R. The QR decomposition of that triangle with rows below it (LAPACK's
    tpqrt) costs 2 N^2 operations for a node, whatever L is, and Q is kept as a product of the
    original and the small ones.

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs, N <= L.
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
        block = max(1, min(_BLOCK, len(self._R)))
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
