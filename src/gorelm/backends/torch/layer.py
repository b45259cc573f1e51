"""Hidden layers on a PyTorch device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gorelm._features.activations import ACTIVATIONS as HOST_ACTIVATIONS
from gorelm._features.layer import HiddenLayer
from gorelm._typing import Array, Indices

# Rows per block of what is computed beside the outputs: distances in float64, for one.
BLOCK_ROWS = 65536

_TINY = torch.finfo(torch.float64).tiny

# As `gorelm._features.activations.ACTIVATIONS`; the argument may be overwritten.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "leaky_relu": lambda Z: torch.maximum(Z, 0.01 * Z),
    "softplus": lambda Z: Z.clamp(min=0) + torch.log1p(torch.exp(-Z.abs())),
    "hardlim": lambda Z: (Z >= 0).to(Z.dtype),
    "sine": torch.sin_,
    "cosine": torch.cos_,
}
RADIAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gaussian": lambda D2, w: torch.exp_(D2.div_(-(w * w).clamp(min=_TINY))),
    "multiquadric": lambda D2, w: torch.sqrt_(D2.add_(w * w)),
    "laplace": lambda D, w: torch.exp_(D.div_(-w.clamp(min=_TINY))),
}


class DeviceLayer:
    """A hidden layer with its weights on the device, and in the precision, of `like`."""

    def __init__(self, layer: HiddenLayer, like: Tensor) -> None:
        there = {"dtype": like.dtype, "device": like.device}
        self._inputs = torch.as_tensor(layer.inputs, device=like.device)
        self._n_outputs = layer.n_outputs
        self._distances = None
        if layer.activation in RADIAL:
            self._distances = _Distances(layer, like)
        else:
            self._A = torch.as_tensor(np.ascontiguousarray(layer.scattered(layer.A).T), **there)
            self._b = torch.as_tensor(layer.b, **there)
            self._activation = ACTIVATIONS[layer.activation]
        self._limit = torch.finfo(like.dtype).max ** 0.48

    def __call__(self, X: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute the outputs for (scaled) rows, in the first columns of `out` if it is given."""
        n_inputs = len(self._inputs)
        out = X.new_empty((len(X), self._n_outputs)) if out is None else out
        for start in range(0, len(X), BLOCK_ROWS):
            x, block = X[start : start + BLOCK_ROWS], out[start : start + BLOCK_ROWS]
            if n_inputs:
                block[:, :n_inputs] = x[:, self._inputs]
            x = x.clamp(-self._limit, self._limit)
            if self._distances is not None:
                block[:, n_inputs : self._n_outputs] = self._distances(x)
            else:
                nodes = self._activation(torch.addmm(self._b, x, self._A))
                block[:, n_inputs : self._n_outputs] = nodes
        return out


class _Distances:
    """Radial nodes, in float64: differences of squares lose half of the digits."""

    def __init__(self, layer: HiddenLayer, like: Tensor) -> None:
        def there(values: Array | Indices) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(values), device=like.device)

        self._cityblock = HOST_ACTIVATIONS[layer.activation].cityblock
        self._apply = RADIAL[layer.activation]
        self._C, self._w = there(layer.A).double(), there(layer.b).double()
        self._subsets = None if layer.subsets is None else there(layer.subsets)
        if not self._cityblock:
            seen = layer.scattered(np.ones_like(layer.A))
            self._seen = there(np.broadcast_to(seen, (len(layer.A), like.shape[1])).T).double()
            self._minus_2C = there(-2.0 * layer.scattered(layer.A).T).double()
            self._norms = (self._C**2).sum(1)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.double()
        if not self._cityblock:
            D = torch.addmm(self._norms, x * x, self._seen).addmm_(x, self._minus_2C).clamp_(min=0)
        elif self._subsets is None:
            D = torch.cdist(x, self._C, p=1)
        else:
            D = x.new_zeros((len(x), len(self._C)))
            for r in range(self._subsets.shape[1]):
                D += (x[:, self._subsets[:, r]] - self._C[:, r]).abs_()
        return self._apply(D, self._w)
