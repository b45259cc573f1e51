"""Solve (H'H + s I) X = R on a device, in float64.

Shifts are numbers of the host, so that whether to factorise again is known without waiting for the
device. Right-hand sides may be of the host too; solutions are where they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gorelm._typing import Array

__all__ = ["InverseFactor", "SpectralFactor"]

Tensor = Any
# Shifts from which on, in units of the trace of G, an inverse has digits to spare: its error is at
# most the rounding divided by this (shifts move by a factor of some ten in a fit).
REFINED_BELOW = 1e-6


class InverseFactor:
    r"""The inverse J of G + s I, from its Cholesky factor; for small s with a step of refinement.

    .. math:: X = JR, \qquad X \leftarrow X + J (R - (G + sI) X)

    Triangular systems with few right-hand sides are slow on a GPU; products are not, and the
    second line takes back the rounding of the inverse.

    Parameters
    ----------
    G : tensor (L, L)
        Gram matrix; only the lower triangle is read.
    rows : TorchRows
        Where arrays of the host are brought to.
    """

    def __init__(self, G: Tensor, rows: Any) -> None:
        self._rows = rows
        self._G = torch.tril(G) + torch.tril(G, -1).T
        # A captured step reads these where they are: they are only ever overwritten.
        self._shifted, self._inverse = torch.empty_like(G), torch.empty_like(G)
        self._shift = np.nan
        self._spectrum: SpectralFactor | None = None
        self._trace = float(self._G.trace())
        self._refine: bool | None = None

    def prepare(self, shifts: Array) -> None:
        """Factorise for the shift of one problem."""
        shift = float(shifts[0])
        if shift == self._shift:
            return
        self._shift = shift
        if self._refine is None:  # for good: a captured step does what it did
            self._refine = shift < REFINED_BELOW * self._trace
        self._shifted.copy_(self._G).diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(self._shifted)
        if int(failed):  # the shift drowns in the rounding of G
            self._spectrum = self._spectrum or SpectralFactor(self._G, self._rows)
            self._inverse.copy_(self._spectrum.inverse(shift))
        else:
            self._inverse.copy_(torch.cholesky_inverse(factor))

    def times(self, X: Any) -> None:
        """Leave it to the rows."""

    def solve(self, shifts: Array, R: Any) -> Any:
        """Solve for one problem, R (L, 1, m)."""
        if isinstance(R, np.ndarray):
            return self._rows.get_one(self.solve(shifts, self._rows.put_one(R)))
        self.prepare(shifts)
        flat = R[:, 0]
        X = self._inverse @ flat
        if self._refine:
            X = X + self._inverse @ (flat - self._shifted @ X)
        return X[:, None]


class SpectralFactor:
    """One eigendecomposition of G for every shift; see `gorelm._solver.linalg.EighFactor`.

    Parameters
    ----------
    G : tensor (L, L)
        Gram matrix; only the lower triangle is read.
    rows : TorchRows
        Where arrays of the host are brought to.
    """

    def __init__(self, G: Tensor, rows: Any) -> None:
        self._rows = rows
        values, self._vectors = torch.linalg.eigh(G, UPLO="L")
        floor = len(G) * np.finfo(float).eps * values[-1].clip(min=np.finfo(float).tiny)
        self._values = torch.maximum(values, floor)
        self._shifts: Array | None = None

    def prepare(self, shifts: Array) -> None:
        """Bring the shifts to the device."""
        if self._shifts is not shifts:
            self._shifts, self._there = shifts, self._rows.put_one(shifts)

    def times(self, X: Any) -> None:
        """Leave it to the rows."""

    def solve(self, shifts: Array, R: Any) -> Any:
        """Solve for every problem, R (L, P, m)."""
        if isinstance(R, np.ndarray):
            return self._rows.get_one(self.solve(shifts, self._rows.put_one(R)))
        self.prepare(shifts)
        flat = R.reshape(len(R), -1)
        rotated = (self._vectors.T @ flat).reshape(R.shape)
        rotated = rotated / (self._values[:, None] + self._there)[..., None]
        return (self._vectors @ rotated.reshape(flat.shape)).reshape(R.shape)

    def inverse(self, shift: float) -> Tensor:
        """Return (G + s I)^-1."""
        return (self._vectors / (self._values + shift)) @ self._vectors.T
