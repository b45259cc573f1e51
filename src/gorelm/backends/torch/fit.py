"""Fit and predict where PyTorch's tensors are: X is scaled, mapped and solved for on its device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gorelm._features.layer import HiddenLayer, RowSource
from gorelm._features.scaling import Scaling, fit_robust, fit_scaling, on_host, weighted_quantiles
from gorelm._solver.far_targets import bring_near, refuse_huge
from gorelm._solver.prepared import solve_rows
from gorelm._solver.state import Solution
from gorelm._typing import Array, Indices
from gorelm.backends import BatchModel, FittedModel, TakesTable
from gorelm.backends.torch.layer import ACTIVATIONS, BLOCK_ROWS, RADIAL, DeviceLayer
from gorelm.backends.torch.rows import TorchRows, held
from gorelm.estimators._prepare import (
    Targets,
    is_tensor,
    known_cells,
    scores_of_norms,
    usable_rows,
)
from gorelm.stream import RowBlocks

_FREE = 0.8  # share of a device's free memory that H may take


def fit(model: BatchModel, X: object, y: object, sample_weight: object) -> None:
    """Fit a batch estimator on a device; see `LargeELM`."""
    with naming_lack_of_memory():
        _fit(model, *checked(model, X, y, sample_weight))


@contextmanager
def naming_lack_of_memory() -> Iterator[None]:
    """Say what to do when a device has no memory left."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # they hold tensors
        raise MemoryError(
            f"the device ran out of memory ({str(error).partition(chr(10))[0]}); use fewer nodes "
            "or float32 inputs, free what else is on the device, or fit on the host: arrays or "
            "gorelm.stream.RowBlocks without device"
        ) from None


def _fit(model: BatchModel, X: torch.Tensor, T: torch.Tensor, w: torch.Tensor) -> None:
    _require_activation(model.activation)
    model._require_streamable("leave out device, pass arrays")
    used = usable_rows(T, w)
    counted = slice(None) if used.all() else used
    X_used, T_used, w_used = X[counted], T[counted], w[counted]
    model._input_scaling = fit_scaling(
        model.input_scaling, X.shape[1], lambda summary: summary(X_used, w_used)
    )
    model._target_scaling = _target_scaling(model.target_scaling, T_used, w_used)

    def take(at: Indices) -> Array:
        chosen = on_host(X_used[torch.as_tensor(at, device=X.device)])
        return model._input_scaling.apply(chosen)[0]

    rows = RowSource(len(X_used), take)
    model.hidden_ = model._draw(X.shape[1], rows=rows, w=on_host(w_used))

    scaled, dtype = model._input_scaling.dense(X_used), f"f{X.element_size()}"
    refuse_huge(scaled, "X", dtype, "set input_scaling or rescale X")
    targets = Targets.scaled(model._target_scaling, T_used, w_used)
    size = float(weighted_quantiles(on_host(targets.sizes()), 0.5, on_host(w_used)))
    problem = model.problem()
    T_near = _like(X, bring_near(targets.T, problem, targets.omega, dtype)).contiguous()
    omega = None if targets.omega is None else _like(X, targets.omega)
    observed = targets.observed
    del targets

    def solved(in_blocks: bool) -> Solution:
        make = _blocks if in_blocks else held
        H = make(model.hidden_, scaled, omega)
        owner = TorchRows(H, T_near, model.hidden_.n_outputs, omega, observed)
        with torch.cuda.device_of(X):  # where graphs are captured and kernels run
            return solve_rows(owner, problem, settings=model._settings(), callback=model.callback)

    model._take_solution(_in_memory_or_blocks(solved, _has_room(model.hidden_, scaled)))
    model._score(_scores(model, X, T), on_host(used), on_host(w_used), size)


def predict(model: BatchModel, X: torch.Tensor) -> torch.Tensor:
    """Predict on the device of X; returns a tensor there."""
    check_is_fitted(model)
    _require_activation(model.hidden_.activation)
    with naming_lack_of_memory():
        X = checked_new(model, X)
        y = model._target_scaling.undo(_outputs(model, X))
    return y[:, 0] if model._one_target else y


def checked_new(model: FittedModel, X: torch.Tensor) -> torch.Tensor:
    """Return new rows to predict, checked."""
    X = _tensor(X, None)
    if X.ndim != 2 or X.shape[1] != model.n_features_in_:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; the model was fitted with {model.n_features_in_} inputs"
        )
    _require_finite(X, "X")
    return X


def _require_activation(name: str) -> None:
    if name not in (*ACTIVATIONS, *RADIAL):
        raise ValueError(
            f"{name!r} nodes are not available on a device; pass arrays, or use one of "
            f"{', '.join([*ACTIVATIONS, *RADIAL])}"
        )


def checked(
    model: TakesTable, X: object, y: object, sample_weight: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check what was given, and bring it to the device."""
    if not is_tensor(X):
        checked, T, w = model._validate(X, y, sample_weight)
        if not isinstance(checked, np.ndarray):
            raise TypeError("sparse inputs cannot be fitted on a device: pass a dense array")
        inputs = torch.as_tensor(_writeable(checked), device=available(model.device))
        return inputs, *(_like(inputs, _writeable(A), torch.float64) for A in (T, w))
    inputs = _tensor(X, model.device)
    if inputs.ndim != 2 or not len(inputs):
        raise ValueError(f"X must be a tensor with rows and columns, got {tuple(inputs.shape)}")
    _require_finite(inputs, "X")
    model.n_features_in_ = inputs.shape[1]
    vars(model).pop("feature_names_in_", None)
    if y is None:
        raise ValueError(
            f"{type(model).__name__} requires y to be passed, but the target y is None"
        )
    targets = _float64(inputs, y)
    if targets.ndim not in (1, 2) or not targets.numel():
        raise ValueError(
            f"y must have one or two dimensions and a value, got {tuple(targets.shape)}"
        )
    model._one_target = targets.ndim == 1
    targets = targets.reshape(len(targets), -1)
    if len(targets) != len(inputs):
        raise ValueError(f"X has {len(inputs)} rows and y {len(targets)}")
    if model.missing_targets != "ignore":
        _require_finite(targets, "y")
    elif torch.isinf(targets).any():
        raise ValueError("y has an infinite value")
    if sample_weight is None:
        return inputs, targets, inputs.new_ones(len(inputs), dtype=torch.float64)
    weights = _float64(inputs, sample_weight)
    if weights.shape != (len(inputs),) or not ((weights >= 0) & torch.isfinite(weights)).all():
        raise ValueError("sample_weight must hold one number for each row, none negative")
    return inputs, targets, weights


def gathered(X: RowBlocks, device: str | None) -> torch.Tensor:
    """Return all rows of inputs that are read in blocks, on a device, in one pass."""
    rows = torch.empty(X.shape, dtype=torch.float64, device=available(device))
    for where, x in X:
        rows[where] = torch.as_tensor(x).to(rows)
    return rows


def _float64(like: torch.Tensor, values: object) -> torch.Tensor:
    """Return a tensor or what NumPy can read, in float64 on the device of `like`."""
    if is_tensor(values):
        return _tensor(values, like.device).double()
    return _like(like, np.array(values, dtype=float), torch.float64)


def _writeable(values: Array) -> Array:
    """Return the array, or a copy where PyTorch would warn that it must not be written to."""
    return values if values.flags.writeable else values.copy()


def _tensor(values: torch.Tensor, device: str | torch.device | None) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):  # CuPy's, without a copy
        values = torch.from_dlpack(values)
    if device is not None:
        values = values.to(available(device))
    values = values.detach()
    return values if values.dtype == torch.float32 else values.double()


def available(name: str | torch.device | None) -> torch.device:
    """Return a device; raises if there is none of that name."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={str(name)!r} is not available: {error}") from error
    return device


def _require_finite(values: torch.Tensor, name: str) -> None:
    if not torch.isfinite(values).all():
        raise ValueError(f"{name} has NaN or infinite values; impute or remove them")


def _like(values: torch.Tensor, numbers: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=dtype or values.dtype, device=values.device)


def _target_scaling(kind: str | None, T: torch.Tensor, w: torch.Tensor) -> Scaling:
    """Return `Scaling.fit`, robust numbers of rows without weights read off on the device."""
    if kind != "robust" or not (w == 1).all():
        return Scaling.fit(kind, on_host(T), on_host(w))
    return fit_robust(T, w, _quantiles)


def _quantiles(values: torch.Tensor, levels: Sequence[float], w: torch.Tensor) -> Array:
    """Return `weighted_quantiles` of values of weight 1, sorted on their device."""
    del w
    at = [max(int(np.ceil(level * len(values) - 1e-9)) - 1, 0) for level in levels]
    return on_host(values.sort().values[torch.tensor(at, device=values.device)])


def _has_room(layer: HiddenLayer, X: torch.Tensor) -> bool:
    """Whether the device has room for H."""
    if not X.is_cuda:
        return True
    free, _ = torch.cuda.mem_get_info(X.device)
    return bool(len(X) * layer.n_outputs * X.element_size() <= _FREE * free)


def _in_memory_or_blocks(solved: Callable[[bool], Solution], has_room: bool) -> Solution:
    """Solve with all of H on the device, or, where that does not fit, with blocks of it."""
    if has_room:
        try:
            return solved(False)
        except torch.cuda.OutOfMemoryError:
            pass  # not in the handler: the error's traceback holds H
        torch.cuda.empty_cache()
    return solved(True)


def _blocks(
    layer: HiddenLayer, X: torch.Tensor, omega: torch.Tensor | None
) -> Callable[[slice], torch.Tensor]:
    """Return what makes H of a block of rows."""
    make = DeviceLayer(layer, X)

    def block(rows: slice) -> torch.Tensor:
        H = make(X[rows])
        return H if omega is None else H * omega[rows, None]

    return block


def _outputs(model: BatchModel, X: torch.Tensor) -> torch.Tensor:
    """Return outputs in units of the scaled targets, in float64, a block of rows at a time."""
    coef, intercept = _like(X, model.coef_), _like(X, model.intercept_, torch.float64)
    out = torch.empty((len(X), coef.shape[1]), dtype=torch.float64, device=X.device)
    layer = DeviceLayer(model.hidden_, X)
    for start in range(0, len(X), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        out[rows] = layer(model._input_scaling.dense(X[rows])) @ coef
    return out + intercept


def _scores(model: BatchModel, X: torch.Tensor, T: torch.Tensor) -> Array:
    known: torch.Tensor = known_cells(T)
    residuals = _outputs(model, X) - model._target_scaling.dense(T)
    residuals[~known] = 0.0
    return scores_of_norms(on_host(residuals.norm(dim=1)), on_host(known.double().mean(1)))
