"""Fit and predict where PyTorch's tensors are: X is scaled, mapped and solved for on its device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gorelm._features.scaling import ROBUST_LEVELS, Scaling, robust_numbers, weighted_quantiles
from gorelm._solver.prepared import solve_rows
from gorelm._typing import Array
from gorelm.backends.torch.rows import (
    ACTIVATIONS,
    BLOCK_ROWS,
    DeviceLayer,
    TorchRows,
    bring_near,
    held,
    hidden_outputs,
)
from gorelm.estimators._prepare import require_targets

__all__ = ["fit", "predict"]

Tensor = Any
_FREE = 0.8  # share of a device's free memory that H may take


def fit(model: Any, X: Any, y: Any, sample_weight: Any) -> None:
    """Fit a batch estimator on a device; see `LargeELM`."""
    X, T, w = _inputs(model, X, y, sample_weight)
    _require_activation(model.activation)
    model._require_streamable("leave out device, pass arrays")
    known = ~torch.isnan(T)
    used = (w > 0) & known.any(1)
    require_targets(known[used].cpu().numpy())
    rows = slice(None) if bool(used.all()) else used
    X_used, T_used, w_used, known = X[rows], T[rows], w[rows], known[rows]
    model._input_scaling = _input_scaling(model.input_scaling, X_used, w_used)
    model._target_scaling = _target_scaling(model.target_scaling, T_used, w_used, known)
    model.hidden_ = model._draw(X.shape[1])

    scaled = _scaled(model._input_scaling, X_used)
    T_scaled = (T_used - _like(T, model._target_scaling.centre)) / _like(
        T, model._target_scaling.scale
    )
    T_scaled = torch.where(known, T_scaled, 0.0)
    remedy = "set target_scaling, or mark as NaN what cannot be measured"
    _refuse_huge(scaled, "X", "set input_scaling or rescale X")
    _refuse_huge(T_scaled, "y", remedy)
    size = float(weighted_quantiles(_host(T_scaled.norm(dim=1)), 0.5, _host(w_used)))
    omega = None if bool((w_used == 1).all()) else w_used.sqrt()
    problem, settings = model._problem(), model._settings()
    T_scaled = T_scaled if omega is None else T_scaled * omega[:, None]
    T_scaled = bring_near(T_scaled, problem, omega, X)
    _refuse_huge(T_scaled, "y", remedy)
    omega = None if omega is None else omega.to(X.dtype)
    H = _hidden(model.hidden_, scaled, omega)
    observed = None if bool(known.all()) else known
    owner: Any = TorchRows(H, T_scaled, model.hidden_.n_outputs, omega, observed)
    with torch.cuda.device_of(X):  # where graphs are captured and kernels run
        solution = solve_rows(owner, problem, settings=settings, callback=model.callback, near=True)
    del H, owner
    model._remember(model._weights_of(solution))
    model._judge(_scores(model, X, T), _host(used), _host(w_used), size)


def predict(model: Any, X: Any) -> Tensor:
    """Predict on the device of X; returns a tensor there."""
    check_is_fitted(model)
    _require_activation(model.hidden_.activation)
    X = _tensor(X, None)
    if X.ndim != 2 or X.shape[1] != model.n_features_in_:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; the model was fitted with {model.n_features_in_} inputs"
        )
    _require_finite(X, "X")
    outputs = _outputs(model, X)
    scaling = model._target_scaling
    y = outputs * _like(outputs, scaling.scale) + _like(outputs, scaling.centre)
    return y[:, 0] if model._one_target else y


def _require_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{name!r} nodes are not available on a device; pass arrays, or use one of "
            f"{', '.join(ACTIVATIONS)}"
        )


def _inputs(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Check what was given, and bring it to the device."""
    if _is_tensor(X):
        X = _tensor(X, model.device)
        if X.ndim != 2 or not len(X):
            raise ValueError(f"X must be a tensor with rows and columns, got {tuple(X.shape)}")
        _require_finite(X, "X")
        model.n_features_in_ = X.shape[1]
        model.__dict__.pop("feature_names_in_", None)
    else:
        X, T, w = model._validate(X, y, sample_weight)
        if not isinstance(X, np.ndarray):
            raise TypeError("sparse inputs cannot be fitted on a device: pass a dense array")
        X = torch.as_tensor(_writeable(X), device=_device(model.device))
        return X, _like(X, _writeable(T), torch.float64), _like(X, w, torch.float64)
    if y is None:
        raise ValueError(
            f"{type(model).__name__} requires y to be passed, but the target y is None"
        )
    T = (
        _tensor(y, X.device).double()
        if _is_tensor(y)
        else _like(X, np.array(y, float), torch.float64)
    )
    if T.ndim not in (1, 2) or not T.numel():
        raise ValueError(f"y must have one or two dimensions and a value, got {tuple(T.shape)}")
    model._one_target = T.ndim == 1
    T = T.reshape(len(T), -1)
    if len(T) != len(X):
        raise ValueError(f"X has {len(X)} rows and y {len(T)}")
    if model.missing_targets != "ignore":
        _require_finite(T, "y")
    elif bool(torch.isinf(T).any()):
        raise ValueError("y has an infinite value")
    w = torch.ones(len(X), dtype=torch.float64, device=X.device)
    if sample_weight is not None:
        given = sample_weight if _is_tensor(sample_weight) else np.asarray(sample_weight, float)
        w = torch.as_tensor(given, dtype=torch.float64, device=X.device)
        if w.shape != (len(X),) or not bool(((w >= 0) & torch.isfinite(w)).all()):
            raise ValueError("sample_weight must hold one number for each row, none negative")
    return X, T, w


def _writeable(values: Array) -> Array:
    """Return the array, or a copy where PyTorch would warn that it must not be written to."""
    return values if values.flags.writeable else values.copy()


def _is_tensor(values: Any) -> bool:
    return type(values).__module__.split(".")[0] in ("torch", "cupy")


def _tensor(values: Any, device: Any) -> Tensor:
    if not isinstance(values, torch.Tensor):  # CuPy's, without a copy
        values = torch.from_dlpack(values)
    if device is not None:
        values = values.to(_device(device))
    values = values.detach()
    return values if values.dtype == torch.float32 else values.double()


def _device(name: Any) -> Any:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={str(name)!r} is not available: {error}") from error
    return device


def _require_finite(values: Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} has NaN or infinite values; impute or remove them")


def _refuse_huge(values: Tensor, name: str, remedy: str) -> None:
    limit = torch.finfo(values.dtype).max ** (1 / 3)
    if bool((values.abs() > limit).any()):
        raise ValueError(f"{name} has values above {limit:.0e} after scaling; {remedy}")


def _like(values: Tensor, numbers: Array, dtype: Any = None) -> Tensor:
    return torch.as_tensor(numbers, dtype=dtype or values.dtype, device=values.device)


def _host(values: Tensor) -> Any:
    return values.cpu().numpy()


def _input_scaling(kind: str | None, X: Tensor, w: Tensor) -> Scaling:
    if kind is None:
        return Scaling.fit(None, X, np.ones(1))
    ends = torch.stack([X.amin(0), X.amax(0)]).double()
    if kind == "minmax":
        return Scaling.fit(kind, _host(ends), np.ones(2))
    unit = X.abs().amax(0).double()
    unit[unit == 0] = 1.0
    return _moments(X.double() / unit, w, unit)


def _moments(values: Tensor, w: Tensor, unit: Tensor) -> Scaling:
    mean = w @ values / w.sum()
    variance = w @ (values - mean) ** 2 / w.sum()
    return Scaling.of(_host(mean * unit), _host(variance.sqrt() * unit))


def _target_scaling(kind: str | None, T: Tensor, w: Tensor, known: Tensor) -> Scaling:
    if kind != "robust" or not bool((w == 1).all()):
        return Scaling.fit(kind, _host(T), _host(w))
    columns = []
    for column, there in zip(T.T, known.T, strict=True):
        values = column[there].sort().values
        at = [max(int(np.ceil(level * len(values) - 1e-9)) - 1, 0) for level in ROBUST_LEVELS]
        quantiles = _host(values[torch.tensor(at, device=T.device)])
        columns.append(robust_numbers(quantiles, float(values.std(correction=0))))
    centre, scale = np.array(columns).T
    return Scaling.of(centre, scale)


def _scaled(scaling: Scaling, X: Tensor) -> Tensor:
    """Scale in float64, block by block, as on the host."""
    out = torch.empty_like(X)
    limit = torch.finfo(X.dtype).max ** 0.48
    scale = _like(X, scaling.scale, torch.float64)
    offset = _like(X, scaling.centre / scaling.scale, torch.float64)
    for start in range(0, len(X), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        out[block] = (X[block].double() / scale - offset).clamp(-limit, limit)
    return out


def _hidden(layer: Any, X: Tensor, omega: Tensor | None) -> Any:
    """Return H, or what makes its blocks where the device has no room for it."""
    if X.is_cuda:
        free, _ = torch.cuda.mem_get_info(X.device)
        if len(X) * layer.n_outputs * X.element_size() > _FREE * free:
            make = DeviceLayer(layer, X)

            def block(rows: slice) -> Tensor:
                H = make(X[rows])
                return H if omega is None else H * omega[rows, None]

            return block
    return held(layer, X, omega)


def _outputs(model: Any, X: Tensor) -> Tensor:
    """Return outputs in units of the scaled targets, in float64, a block of rows at a time."""
    coef, intercept = _like(X, model.coef_), _like(X, model.intercept_, torch.float64)
    out = torch.empty((len(X), coef.shape[1]), dtype=torch.float64, device=X.device)
    for start in range(0, len(X), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        out[rows] = hidden_outputs(model.hidden_, _scaled(model._input_scaling, X[rows])) @ coef
    return out + intercept


def _scores(model: Any, X: Tensor, T: Tensor) -> Array:
    scaling, known = model._target_scaling, ~torch.isnan(T)
    residuals = _outputs(model, X) - (T - _like(T, scaling.centre)) / _like(T, scaling.scale)
    residuals[~known] = 0.0
    share = known.double().mean(1)
    return np.asarray(_host(residuals.norm(dim=1) / share.where(share > 0, 1.0).sqrt()))
