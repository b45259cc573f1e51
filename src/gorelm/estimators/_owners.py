"""Batch estimators for more rows than fit in memory: the same fit with another owner of rows."""

from __future__ import annotations

import os
import re
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gorelm._compat import Interval
from gorelm._features.layer import ACTIVATIONS
from gorelm._features.scaling import Scaling
from gorelm._solver.prepared import solve_rows
from gorelm._solver.targets import bring_near
from gorelm._typing import Array
from gorelm.backends.dask.source import Partitioned
from gorelm.backends.streamed import HiddenBlocks, StreamedRows, fit_input_scaling
from gorelm.estimators._base import IterativeELM, SizedELM, parameters
from gorelm.estimators._prepare import typical_size, usable_rows, validate_targets
from gorelm.stream import RowBlocks

__all__ = ["LargeELM", "in_bytes", "is_tensor"]


@parameters
class LargeELM(SizedELM, IterativeELM):
    """A batch method that streams its rows when their hidden outputs would not fit in memory."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SizedELM._parameter_constraints,
        **IterativeELM._parameter_constraints,
        "memory_budget": [Interval(Real, 0, None, closed="neither"), str, None],
        "device": [str, None],
    }

    memory_budget: float | str | None = None
    device: str | None = None

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if self.device is not None and (is_dask(X) or isinstance(X, RowBlocks | Partitioned)):
            raise TypeError(
                f"rows in blocks cannot be fitted on a device (device={self.device!r}): pass an "
                "array or a tensor, or leave out device"
            )
        if self.device is not None or is_tensor(X):
            device_of(self).fit(self, X, y, sample_weight)
        elif is_dask(X) or isinstance(X, Partitioned):
            from gorelm.backends.dask.fit import fit

            fit(self, X, y, sample_weight)
        elif isinstance(X, RowBlocks):
            self._take_names(X)
            T, w = validate_targets(self, X, y, sample_weight)
            self._fit_blocks(X, T, w, in_bytes(self.memory_budget))
        else:
            super()._fit(X, y, sample_weight)

    def _fit_rows(self, X: Any, T: Array, w: Array) -> None:
        budget = in_bytes(self.memory_budget)
        n_outputs = self.n_hidden + (X.shape[1] if self.direct_link else 0)
        if X.shape[0] * n_outputs * X.dtype.itemsize <= budget:
            super()._fit_rows(X, T, w)
        else:
            self._fit_blocks(RowBlocks.from_array(X), T, w, budget)

    def _fit_blocks(self, X: RowBlocks, T: Array, w: Array, budget: float) -> None:
        """Fit with H in blocks; within the budget come first what the loop needs, then blocks."""
        self._require_streamable()
        used = usable_rows(T, w)
        self._input_scaling = fit_input_scaling(self.input_scaling, X, w, used)
        T_used, w_used = T[used], w[used]
        self._target_scaling = Scaling.fit(self.target_scaling, T_used, w_used)
        T_scaled, omega, observed = self._scaled_targets(T_used, w_used)
        self.hidden_ = self._draw(X.shape[1])

        n_rows, n_targets, n_hidden = *T_used.shape, self.hidden_.n_outputs
        loop = 44 * n_rows * n_targets + 24 * n_hidden**2 + X.nbytes
        H = HiddenBlocks(X, used, self._input_scaling, self.hidden_, omega, memory=budget - loop)
        size = typical_size(T_scaled, w_used, omega)
        problem = self._problem()
        T_scaled = bring_near(T_scaled, problem, omega, H.dtype)
        rows = StreamedRows(H, T_scaled, omega, observed)
        found = solve_rows(
            rows, problem, settings=self._settings(), callback=self.callback, near=True
        )
        del rows, H, T_scaled
        self._remember(self._weights_of(found))
        self._score(self._residuals(X, T), T, used, w_used, size)

    def _require_streamable(self, remedy: str = "raise memory_budget") -> None:
        if ACTIVATIONS[self.activation].radial:
            raise ValueError(
                f"{self.activation!r} nodes take rows of the data as centres, which needs all of "
                f"H in memory: use another activation, or {remedy}"
            )

    def _take_names(self, X: Any) -> None:
        self.n_features_in_ = X.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if X.feature_names is not None:
            self.feature_names_in_ = np.array(X.feature_names, dtype=object)

    def predict(self, X: Any) -> Any:
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
            return device_of(self).predict(self, X)
        if is_dask(X):
            from gorelm.backends.dask.fit import predict

            return predict(self, X)
        return super().predict(X)

    def _validate_new(self, X: Any) -> Any:
        if not isinstance(X, RowBlocks):
            return super()._validate_new(X)
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if X.shape[1] != self.n_features_in_ or (
            X.feature_names is not None and names is not None and X.feature_names != list(names)
        ):
            raise ValueError(
                f"X has inputs {X.feature_names or X.shape[1]}; the model was fitted with "
                f"{self.n_features_in_ if names is None else list(names)}"
            )
        return X

    def _outputs(self, X: Any) -> Array:
        if not isinstance(X, RowBlocks):
            return super()._outputs(X)
        out = np.empty((len(X), self.coef_.shape[1]))
        for rows, x in X:
            out[rows] = super()._outputs(x)
        return out


def is_tensor(X: Any) -> bool:
    """Whether X is an array of PyTorch's or CuPy's."""
    return type(X).__module__.split(".")[0] in ("torch", "cupy")


def device_of(model: Any) -> Any:
    """Return the module that fits on devices."""
    try:
        from gorelm.backends.torch import fit as torch_fit
    except ImportError as error:
        raise ImportError(
            f'{type(model).__name__} on a device needs PyTorch: pip install "gorelm[torch]"'
        ) from error
    return torch_fit


def is_dask(X: Any) -> bool:
    """Whether X is a dask collection, without importing dask to find out."""
    return "dask" in type(X).__module__ and hasattr(X, "__dask_graph__")


def in_bytes(budget: float | str | None) -> float:
    """Return a memory budget in bytes.

    Parameters
    ----------
    budget : float, str or None
        Bytes; or a number and a unit, as in ``"4GB"``; or None for half of the machine's memory.
    """
    if budget is None:
        try:
            return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):  # not on this system
            return np.inf
    if not isinstance(budget, str):
        return float(budget)
    match = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)\s*([kmgt]?)(i?)b?", budget.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"memory_budget={budget!r} is not a size; write bytes, or such as '4GB'")
    base = 1024.0 if match[3] else 1000.0
    return float(match[1]) * base ** ("kmgt".find(match[2]) + 1 if match[2] else 0)
