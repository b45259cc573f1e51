"""Solve (H'H + s I) X = R on a device, in float64.

Shifts are numbers of the host, so that whether to factorise again is known without waiting for the
device. Right-hand sides may be of the host too; solutions are where they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gorelm.prox import Array

__all__ = ["InverseFactor", "SpectralFactor"]

Tensor = Any


class InverseFactor:
    r"""The inverse J of G + s I, from its Cholesky factor, with a step of refinement.

    .. math:: X = JR, \qquad X \leftarrow X + J (R - (G + sI) X)

    Triangular systems with few right-hand sides are slow on a GPU; products are not, and the
    second line takes back the rounding of the inverse.

    Parameters
    ----------
    G : tensor (L, L)
        Gram matrix; only the lower triangle is read.
    rows : TorchRows
        Told when the inverse has changed.
    """

    def __init__(self, G: Tensor, rows: Any) -> None:
        self._G = torch.tril(G) + torch.tril(G, -1).T
        self._rows = rows
        self._shift = np.nan
        self._inverse: Tensor = None
        self._fallback: SpectralFactor | None = None

    def solve(self, shifts: Array, R: Any) -> Any:
        """Solve for one problem, R (L, 1, m)."""
        if isinstance(R, np.ndarray):
            return self._rows.get(self.solve(shifts, self._rows.put(R)))
        self._factorise(float(shifts[0]))
        if self._fallback is not None:
            return self._fallback.solve(shifts, R)
        flat = R[:, 0]
        X = self._inverse @ flat
        X = X + self._inverse @ (flat - (self._G @ X + self._shift * X))
        return X[:, None]

    def _factorise(self, shift: float) -> None:
        if shift == self._shift:
            return
        self._shift, self._fallback = shift, None
        self._rows.factor_version += 1
        shifted = self._G.clone()
        shifted.diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed):  # the shift drowns in the rounding of G
            self._fallback = SpectralFactor(self._G, self._rows)
        else:
            self._inverse = torch.cholesky_inverse(factor)


class SpectralFactor:
    """One eigendecomposition of G for every shift; see `gorelm.factor.EighFactor`.

    Parameters
    ----------
    G : tensor (L, L)
        Gram matrix; only the lower triangle is read.
    rows : TorchRows
        Where arrays of the host are brought to.
    """

    def __init__(self, G: Tensor, rows: Any) -> None:
        self._rows = rows
        rows.factor_version += 1
        values, self._vectors = torch.linalg.eigh(G, UPLO="L")
        floor = len(G) * np.finfo(float).eps * values[-1].clip(min=np.finfo(float).tiny)
        self._values = torch.maximum(values, floor)

    def solve(self, shifts: Array, R: Any) -> Any:
        """Solve for every problem, R (L, P, m)."""
        if isinstance(R, np.ndarray):
            return self._rows.get(self.solve(shifts, self._rows.put(R)))
        flat = R.reshape(len(R), -1)
        rotated = (self._vectors.T @ flat).reshape(R.shape)
        rotated = rotated / (self._values[:, None] + self._rows.put(shifts))[..., None]
        return (self._vectors @ rotated.reshape(flat.shape)).reshape(R.shape)
