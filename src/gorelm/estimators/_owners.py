"""Batch estimators for rows in any place: which owner of rows a fit uses, and predictions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from numbers import Real
from types import ModuleType
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from gorelm._compat import Interval
from gorelm._extras import needs
from gorelm._features.scaling import Scaling, fit_scaling
from gorelm._solver.admm import Settings
from gorelm._solver.far_targets import bring_near
from gorelm._solver.prepared import solve_rows
from gorelm._typing import Array, Constraints, Inputs
from gorelm.backends import NamedInputs
from gorelm.backends.dask.source import Partitioned
from gorelm.backends.streamed import HiddenBlocks, StreamedRows, source_of, summarise
from gorelm.estimators._base import BaseELM, IterativeELM, SizedELM, parameters
from gorelm.estimators._prepare import (
    Targets,
    in_bytes,
    is_tensor,
    require_same_inputs,
    row_scores,
    take_names,
    usable_rows,
    validate_targets,
)
from gorelm.stream import RowBlocks

_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")  # names of devices, as PyTorch writes them


class PredictsAnywhere(BaseELM):
    """Predictions for arrays, blocks, dask collections and tensors."""

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows.

        Parameters
        ----------
        X : array, sparse matrix, RowBlocks, dask collection or tensor (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Predictions, in the shape that y had; of a tensor, a tensor on its device; of a dask
            collection, a dask array in its partitions, computed when it is asked for.
        """
        if is_tensor(X):
            predicted: Array = torch_backend(self).predict(self, X)
        elif is_dask(X):
            from gorelm.backends.dask.fit import predict

            predicted = predict(self, X)
        else:
            predicted = super().predict(X)
        return predicted

    def _validate_new(self, X: object) -> Inputs | RowBlocks:
        if not isinstance(X, RowBlocks):
            return super()._validate_new(X)
        require_same_inputs(self, X.shape[1], X.feature_names)
        return X

    def _outputs(self, X: Inputs | RowBlocks) -> Array:
        if not isinstance(X, RowBlocks):
            return super()._outputs(X)
        out = np.empty((len(X), self.coef_.shape[1]))
        for rows, x in X:
            out[rows] = super()._outputs(x)
        return out


@parameters
class LargeELM(PredictsAnywhere, SizedELM, IterativeELM):
    """A batch method that streams its rows when their hidden outputs would not fit in memory."""

    _parameter_constraints: ClassVar[Constraints] = {
        **SizedELM._parameter_constraints,
        **IterativeELM._parameter_constraints,
        "memory_budget": [Interval(Real, 0, None, closed="neither"), str, None],
        "device": [str, None],
    }

    memory_budget: float | str | None = None
    device: str | None = None

    # Two settings that make the digits of a fit depend on the place of its rows: iterations between
    # the first checks, and the precision of hidden outputs that are made in blocks. A search sets
    # them, so that its model is the same in every place.
    _check_every: ClassVar[int | None] = None
    _block_dtype: ClassVar[npt.DTypeLike] = np.float32

    def _settings(self) -> Settings:
        return replace(super()._settings(), check_every=self._check_every)

    def _fit(self, X: object, y: object, sample_weight: object) -> None:
        require_device(self, X)
        if self.device is not None or is_tensor(X):
            torch_backend(self).fit(self, X, y, sample_weight)
        elif is_on_cluster(X):
            from gorelm.backends.dask.fit import fit

            fit(self, X, y, sample_weight)
        elif isinstance(X, RowBlocks):
            self._take_names(X)
            T, w = validate_targets(self, X, y, sample_weight)
            self._fit_blocks(X, T, w, in_bytes(self.memory_budget))
        else:
            super()._fit(X, y, sample_weight)

    def _fit_rows(self, X: Inputs, T: Array, w: Array) -> None:
        budget = in_bytes(self.memory_budget)
        n_outputs = self.n_hidden + (X.shape[1] if self.direct_link else 0)
        if X.shape[0] * n_outputs * X.dtype.itemsize <= budget:
            super()._fit_rows(X, T, w)
        else:
            self._fit_blocks(RowBlocks.from_array(X), T, w, budget)

    def _fit_blocks(self, X: RowBlocks, T: Array, w: Array, budget: float) -> None:
        """Fit with H in blocks; what the loop's arrays leave of the budget is for kept blocks."""
        self._require_streamable()
        used = usable_rows(T, w)
        in_blocks = partial(summarise, X, w, used)
        self._input_scaling = fit_scaling(self.input_scaling, X.shape[1], in_blocks)
        self._target_scaling = Scaling.fit(self.target_scaling, T[used], w[used])
        targets = Targets.scaled(self._target_scaling, T[used], w[used])
        omega, size = targets.omega, targets.typical_size()
        rows = source_of(X, used, self._input_scaling)
        self.hidden_ = self._draw(X.shape[1], rows=rows, w=w[used])

        loop = 44 * targets.T.size + 24 * self.hidden_.n_outputs**2 + X.nbytes
        H = HiddenBlocks(
            X,
            used,
            self._input_scaling,
            self.hidden_,
            omega,
            memory=budget - loop,
            dtype=self._block_dtype,
        )
        problem = self.problem()
        T_near = bring_near(targets.T, problem, omega, H.dtype)
        owner = StreamedRows(H, T_near, omega, targets.observed)
        found = solve_rows(owner, problem, settings=self._settings(), callback=self.callback)
        del owner, H, targets, T_near
        self._take_solution(found)
        self._score(row_scores(self._residuals(X, T), T), used, w[used], size)

    def _require_streamable(self, remedy: str = "raise memory_budget") -> None:
        """Raise if the method needs all of H in memory."""

    def _take_names(self, X: NamedInputs) -> None:
        take_names(self, X)


def is_dask(X: object) -> bool:
    """Whether X is a dask collection, without importing dask to find out."""
    return "dask" in type(X).__module__ and hasattr(X, "__dask_graph__")


def is_on_cluster(X: object) -> bool:
    """Whether the rows of X are partitions on the workers of a cluster."""
    return is_dask(X) or isinstance(X, Partitioned)


def is_elsewhere(X: object) -> bool:
    """Whether the rows of X are read in blocks, or are on the workers of a cluster."""
    return isinstance(X, RowBlocks) or is_on_cluster(X)


class _OnDevice(Protocol):
    device: str | None


def require_device(model: _OnDevice, X: object, *, takes_blocks: bool = False) -> None:
    """Raise unless the model's device is a name, and X can be brought there."""
    if model.device is None:
        return
    if not _DEVICE.fullmatch(model.device):
        raise ValueError(
            f"device={model.device!r} is not the name of a device; PyTorch's are such as 'cpu', "
            "'cuda', 'cuda:1' and 'mps'"
        )
    if is_on_cluster(X) or (isinstance(X, RowBlocks) and not takes_blocks):
        kind = "on a cluster" if is_on_cluster(X) else "in blocks"
        pass_instead = "an array, blocks or a tensor" if takes_blocks else "an array or a tensor"
        raise TypeError(
            f"rows {kind} cannot be fitted on a device (device={model.device!r}): pass "
            f"{pass_instead}, or leave out device"
        )


def torch_backend(model: BaseELM) -> ModuleType:
    """Return the module that fits and predicts on devices."""
    with needs(f"{type(model).__name__} on a device needs PyTorch", "torch"):
        from gorelm.backends.torch import fit
    return fit
