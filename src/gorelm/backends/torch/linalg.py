"""Solve (H'H + s I) X = R on a device, in float64.

Shifts are on the host, so that no transfer is needed to know whether they have changed. A solution
is where its right-hand side is, on the host or on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gorelm._typing import Array

# Below this shift, in units of the trace of G, the inverse needs a refinement step: the relative
# error of the inverse is the rounding unit divided by it (in a fit, shifts vary tenfold).
REFINED_BELOW = 1e-6


def on_device(values: npt.ArrayLike, like: Tensor) -> Tensor:
    """Copy an array to the device of `like`, in float64."""
    # A copy: on the CPU the two must not share memory.
    return torch.tensor(np.asarray(values, dtype=np.float64), device=like.device)


def on_host(values: Tensor) -> Array:
    """Copy a tensor to the host, in float64."""
    return np.asarray(values.double().cpu().numpy())


class InverseFactor:
    r"""The inverse J of G + s I, from its Cholesky factor; for small s with iterative refinement.

    .. math:: X = JR, \qquad X \leftarrow X + J (R - (G + sI) X)

    Triangular systems with few right-hand sides are slow on a GPU; products are fast. The second
    line removes the rounding error of the inverse.
    """

    def __init__(self, G: Tensor) -> None:
        self._G = torch.tril(G) + torch.tril(G, -1).T
        # A CUDA graph reads these at fixed addresses: they are only overwritten.
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
        if self._refine is None:  # decided once: a CUDA graph repeats the same operations
            self._refine = shift < REFINED_BELOW * self._trace
        self._shifted.copy_(self._G).diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(self._shifted)
        if int(failed):  # the shift is below the rounding error of G
            self._spectrum = self._spectrum or SpectralFactor(self._G)
            self._inverse.copy_(self._spectrum.inverse(shift))
        else:
            self._inverse.copy_(torch.cholesky_inverse(factor))

    def times(self, X: Array | Tensor) -> None:
        """Return None: the rows compute G X."""

    def solve(self, shifts: Array, R: Array | Tensor) -> Array | Tensor:
        """Solve for one problem, R (L, 1, m)."""
        if isinstance(R, np.ndarray):
            return on_host(self.solve(shifts, on_device(R, self._inverse)))
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
    """

    def __init__(self, G: Tensor) -> None:
        values, self._vectors = torch.linalg.eigh(G, UPLO="L")
        floor = len(G) * np.finfo(float).eps * values[-1].clip(min=np.finfo(float).tiny)
        self._values = torch.maximum(values, floor)
        self._shifts: Array | None = None

    def prepare(self, shifts: Array) -> None:
        """Copy the shifts to the device."""
        if self._shifts is not shifts:
            self._shifts, self._there = shifts, on_device(shifts, self._values)

    def times(self, X: Array | Tensor) -> None:
        """Return None: the rows compute G X."""

    def solve(self, shifts: Array, R: Array | Tensor) -> Array | Tensor:
        """Solve for every problem, R (L, P, m)."""
        if isinstance(R, np.ndarray):
            return on_host(self.solve(shifts, on_device(R, self._values)))
        self.prepare(shifts)
        flat = R.reshape(len(R), -1)
        rotated = (self._vectors.T @ flat).reshape(R.shape)
        rotated = rotated / (self._values[:, None] + self._there)[..., None]
        return (self._vectors @ rotated.reshape(flat.shape)).reshape(R.shape)

    def inverse(self, shift: float) -> Tensor:
        """Return (G + s I)^-1."""
        return (self._vectors / (self._values + shift)) @ self._vectors.T
