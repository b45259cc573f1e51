"""Scaled inputs on a PyTorch device: hidden outputs, their sums and the systems are solved there.

Everything is float64: sums of squares in float32 (let alone TF32) lose the small eigenvalues of H'H
that a penalty chosen out of sample needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gorelm._features.joint import HiddenOutputs, JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling, fit_scaling
from gorelm._features.target_transforms import TargetTransforms
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices, Mask
from gorelm.backends import FittedModel
from gorelm.backends.inputs import FARTHEST_INPUT, ScaledRows
from gorelm.backends.torch.fit import checked_new, naming_lack_of_memory
from gorelm.backends.torch.layer import DeviceLayer

BLOCK_BYTES = 2**31  # of hidden outputs at a time
LEAST_ROWS = 1024

Result = TypeVar("Result")


class Member(Protocol):
    """One network of an ensemble."""

    hidden_: HiddenLayer
    coef_: Array
    intercept_: Array


class Ensemble(FittedModel, Protocol):
    """Networks on scaled inputs and targets, whose mean is the prediction."""

    members_: Sequence[Member]
    _input_scaling: Scaling


@dataclass(frozen=True)
class DeviceSums(RidgeSums):
    """H'H and H'T as tensors."""

    def coef(self, lam: float) -> Array:
        """Return the output weights (L, m); see `RidgeSums.coef`."""
        G, C = torch.as_tensor(self.G), torch.as_tensor(self.C)
        unit = self.trace or 1.0
        shifted = G.clone()
        shifted.diagonal().add_(max(lam, 1e-14) * unit)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed):
            raise np.linalg.LinAlgError("H'H is not positive definite")
        return np.asarray(torch.cholesky_solve(C, factor).cpu().numpy())


class TorchInputs:
    """Scaled inputs as a tensor (N, d), and what a hidden layer makes of them.

    Parameters
    ----------
    X : tensor (N, d)
        Inputs in float64, not scaled; on the device where everything happens.
    scaling : Scaling
        Of the inputs.
    """

    def __init__(self, X: Tensor, scaling: Scaling) -> None:
        scaled: Tensor = scaling.dense(X)
        self._X = scaled.clamp_(-FARTHEST_INPUT, FARTHEST_INPUT)
        # PyTorch loads its linear algebra at the first call, which fails in two threads at once.
        torch.linalg.cholesky_ex(self._X.new_ones((1, 1)))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return len(self._X), self._X.shape[1]

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given, on the host."""
        chosen = rows if isinstance(rows, slice) else self._there(rows)
        return np.asarray(self._X[chosen].cpu().numpy())

    def sample(self, rows: Indices) -> TorchInputs:
        """Return some rows by themselves, on the device."""
        some = copy(self)
        some._X = self._X[self._there(rows)]
        return some

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        del n_threads  # the device has its own
        outputs, n = DeviceOutputs(hidden, self._X), hidden.n_outputs + 1
        weights, targets = self._there(omega)[:, None], self._there(T)

        def of_group(group: Indices, size: int) -> RidgeSums:
            G, C = self._X.new_zeros((n, n)), self._X.new_zeros((n, T.shape[1]))
            for rows in self._there(group).split(size):
                H = outputs(self._X[rows]).mul_(weights[rows])
                C.addmm_(H.T, weights[rows] * targets[rows])
                # Strips of the lower triangle, large enough to fill the device.
                for start in range(0, n, 512):
                    strip = slice(start, start + 512)
                    G[start:, strip].addmm_(H[:, start:].T, H[:, strip])
            return DeviceSums(G.tril() + G.tril(-1).T, C)

        size = _block_rows(self._X, n)
        return [_in_fitting_blocks(partial(of_group, group), size) for group in groups]

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        del n_threads
        pairs = zip(groups, coefs, strict=True)
        found = [self.outputs_there(hidden, self._there(group), coef) for group, coef in pairs]
        return [np.asarray(one.cpu().numpy()) for one in found]

    def outputs_there(self, hidden: HiddenOutputs, rows: Tensor, coef: Array) -> Tensor:
        """Return H B of some rows as a tensor."""
        outputs, B = DeviceOutputs(hidden, self._X), self._there(coef)

        def in_blocks(size: int) -> Tensor:
            return torch.cat([outputs(self._X[part]) @ B for part in rows.split(size)])

        return _in_fitting_blocks(in_blocks, _block_rows(self._X, len(B)))

    def _there(self, values: Array | Indices) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self._X.device)


class DeviceOutputs:
    """The outputs of a hidden layer, or of several, and a last column of ones, in float64."""

    def __init__(self, hidden: HiddenOutputs, like: Tensor) -> None:
        if isinstance(hidden, HiddenLayer):
            hidden = JointLayer((hidden,), np.ones(1))
        if not isinstance(hidden, JointLayer):
            raise TypeError(f"{type(hidden).__name__} is not available on a device")
        self._n = hidden.n_outputs + 1
        layers = (DeviceLayer(part, like) for part in hidden.parts)
        self._parts = list(zip(layers, hidden.scales.tolist(), hidden.columns, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the outputs of scaled rows."""
        H = x.new_empty((len(x), self._n))
        for layer, scale, columns in self._parts:
            layer(x, H[:, columns])
            if scale != 1.0:
                H[:, columns] *= scale
        H[:, -1] = 1.0
        return H


def _in_fitting_blocks(work: Callable[[int], Result], size: int) -> Result:
    """Do work in blocks of so many rows, or of fewer if the device has no room for these."""
    while size > LEAST_ROWS:
        try:
            return work(size)
        except torch.cuda.OutOfMemoryError:
            pass  # not in the handler: the error's traceback holds the block
        torch.cuda.empty_cache()
        size = max(size // 4, LEAST_ROWS)
    with naming_lack_of_memory():
        return work(size)


def _block_rows(X: Tensor, n_outputs: int) -> int:
    """Return how many rows of hidden outputs are made at a time."""
    room = float(BLOCK_BYTES)
    if X.is_cuda:  # a few copies of a block, beside the sums
        room = min(room, torch.cuda.mem_get_info(X.device)[0] / 8)
    return max(int(room / (8 * n_outputs)), LEAST_ROWS)


def scaled_inputs(X: Tensor, w: Array, used: Mask) -> tuple[TorchInputs, Scaling]:
    """Return scaled inputs on their device, and the scaling by the rows that are used."""
    with naming_lack_of_memory():
        X = X.double()
        weights = torch.as_tensor(w, device=X.device)
        counted = slice(None) if used.all() else torch.as_tensor(used, device=X.device)
        there, weights = X[counted], weights[counted]
        scaling = fit_scaling("standard", X.shape[1], lambda summary: summary(there, weights))
        return TorchInputs(X, scaling), scaling


def predict(model: Ensemble, X: object) -> Tensor:
    """Return the mean prediction of the members for a tensor, on its device."""
    inputs = checked_new(model, X).double()
    if (check := getattr(model, "_input_check", None)) is not None:  # a few sums, on the host
        inputs = torch.as_tensor(check.of(inputs.cpu().numpy())[0], device=inputs.device)
    rows = TorchInputs(inputs, model._input_scaling)
    every = torch.arange(len(inputs), device=inputs.device)
    of_members = [
        rows.outputs_there(one.hidden_, every, np.vstack([one.coef_, one.intercept_]))
        for one in model.members_
    ]
    y: Tensor = model._target_scaling.undo(torch.stack(of_members).mean(0))
    if hasattr(model, "_target_transforms"):
        y = _untransformed(model._target_transforms, y)
    return y[:, 0] if model._one_target else y


def _untransformed(transforms: TargetTransforms, Z: Tensor) -> Tensor:
    """Return predictions in units of the targets; see `TargetTransforms.undo`."""
    low, high = (torch.as_tensor(end, device=Z.device) for end in (transforms.low, transforms.high))
    T = Z.clamp(low, high)
    for j, kind in enumerate(transforms.kinds):
        if kind == "sqrt":
            T[:, j] = T[:, j].clamp(min=0.0) ** 2
        elif kind == "log":
            T[:, j] = T[:, j].exp()
    return T


if TYPE_CHECKING:
    _implements: type[ScaledRows] = TorchInputs
