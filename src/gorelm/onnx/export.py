"""Fitted models as ONNX graphs, for runtimes other than Python.

The graph does what `predict` does, in its order: inputs scaled and kept within bounds, hidden
layer, output weights, targets unscaled. Only operators that onnxruntime has for float64 are used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from gorelm._features.activations import ACTIVATIONS
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._features.target_transforms import TargetTransforms
from gorelm._files import write_whole
from gorelm._typing import Array
from gorelm._version import __version__
from gorelm.backends.inputs import FARTHEST_INPUT
from gorelm.estimators._base import BaseELM
from gorelm.estimators.robust import RobustELMRegressor
from gorelm.estimators.screened import ScreenedRegressor
from gorelm.intervals import ConformalRegressor
from gorelm.onnx.graph import DOUBLE, Graph, Shape
from gorelm.onnx.steps import write_columns, write_steps

if TYPE_CHECKING:
    from onnx import ModelProto

Precision: TypeAlias = Literal["float64", "float32"]
Regressor: TypeAlias = BaseELM | RobustELMRegressor | ScreenedRegressor


def to_onnx(model: object, dtype: Precision = "float64") -> ModelProto:
    """Return a fitted model as one ONNX graph, from raw inputs to targets in their own units.

    Parameters
    ----------
    model : estimator
        A fitted estimator of gorelm; a pipeline that ends in one, of `StandardScaler`,
        `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler` and `SimpleImputer`, which may begin with a
        `ColumnTransformer` of these and of encoders of categories; a
        :class:`~gorelm.ConformalRegressor` or :class:`~gorelm.ScreenedRegressor` around such; or a
        scikit-learn search over such.
    dtype : {"float64", "float32"}, default="float64"
        Type of the graph's input and output. With "float32" the hidden layer works in float32 too,
        as `predict` does for float32 inputs; scalings and output weights stay float64.

    Returns
    -------
    graph : onnx.ModelProto
        Input ``X`` of shape (N, n_features) for any N, output ``y`` of the shape that `predict`
        gives; for a :class:`~gorelm.ConformalRegressor` also outputs ``lower`` and ``upper`` of
        that shape, the intervals at its `confidence_level`. Columns of strings (categories) are
        inputs of their own, of shape (N, 1) and named like the column, and an empty string is NaN;
        ``X`` then has the other columns in use. Metadata name the version of gorelm, the estimator,
        and the features (those of ``X`` in "columns_of_X") and targets where the model knows their
        names.

    Raises
    ------
    TypeError
        If there is no converter for the model or for a step of its pipeline.

    Notes
    -----
    `predict` refuses NaN and infinity, and encoders may refuse categories that they do not know; a
    graph has no way to, and gives NaN.

    Examples
    --------
    >>> from gorelm import RELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.onnx import to_onnx
    >>> data = make_multitarget(100, random_state=0)
    >>> graph = to_onnx(RELMRegressor(n_hidden=20, random_state=0).fit(data.X, data.T)).graph
    >>> [node.op_type for node in graph.node]
    ['Div', 'Sub', 'Clip', 'MatMul', 'Add', 'Sigmoid', 'MatMul', 'Add']
    """
    graph = Graph(np.dtype(_checked(dtype)))
    check_is_fitted(model)
    outputs, regressor = _outputs(model, graph, None)
    tensors = {"y": outputs}
    if graph.half_width is not None:
        tensors["lower"] = graph("Sub", outputs, graph.half_width)
        tensors["upper"] = graph("Add", outputs, graph.half_width)
    tensors = {name: graph.cast(tensor, graph.dtype) for name, tensor in tensors.items()}
    shape: Shape = ["N", _n_targets(regressor)]
    if regressor._one_target:
        flat = {name: graph("Squeeze", one, np.array([1])) for name, one in tensors.items()}
        tensors, shape = flat, shape[:1]
    about = _metadata(model, regressor, graph)
    return graph.finish(tensors, shape, type(regressor).__name__, __version__, about)


def export_onnx(model: object, path: str | os.PathLike[str], dtype: Precision = "float64") -> Path:
    """Write a fitted model to an ONNX file.

    Parameters
    ----------
    model, dtype
        See :func:`to_onnx`.
    path : path
        Where to; an existing file is replaced, by a whole one or not at all.

    Returns
    -------
    path : Path
        Where it is.
    """
    path = Path(path)
    write_whole(path, to_onnx(model, dtype).SerializeToString())
    return path


def _checked(dtype: str) -> str:
    if dtype not in ("float64", "float32"):
        raise ValueError(f'dtype must be "float64" or "float32", got {dtype!r}')
    return dtype


def _n_targets(regressor: Regressor) -> int:
    if isinstance(regressor, ScreenedRegressor):
        return int(regressor.fitted_mask_.shape[1])
    return len(regressor._target_scaling.scale)


def _metadata(model: object, regressor: Regressor, graph: Graph) -> dict[str, str]:
    about = {"gorelm_version": __version__, "estimator": type(regressor).__name__}
    about |= graph.metadata
    named = model.estimator_ if isinstance(model, ConformalRegressor) else model
    for key, names in (
        ("feature_names", getattr(named, "feature_names_in_", None)),
        ("columns_of_X", graph.numbers),
        ("target_names", getattr(named, "target_names_", None)),
    ):
        if names is not None:
            about[key] = json.dumps([str(name) for name in names])
    return about


# -- estimators: each turns the name of its inputs into that of its outputs, (N, m) in float64 ----


@singledispatch
def _outputs(model: object, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    """Add a model to a graph; returns the name of its outputs, and its regressor.

    `x` is the name of its inputs; with None the inputs are added, too. An estimator that is a
    pipeline under another name returns that pipeline by a method `_as_pipeline`.
    """
    if hasattr(model, "_as_pipeline"):
        return _outputs(model._as_pipeline(), graph, x)
    raise TypeError(
        f"{type(model).__name__} cannot be written as ONNX: only gorelm's regressors, pipelines "
        "that end in one, and searches over these can. gorelm.save stores other models"
    )


def _all_inputs(model: BaseEstimator, graph: Graph) -> str:
    return graph.input("X", graph.dtype, int(model.n_features_in_))


@_outputs.register
def _(model: Pipeline, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    *steps, (_, regressor) = model.steps
    if steps and isinstance(steps[0][1], ColumnTransformer):
        if x is not None:
            raise TypeError(
                "a ColumnTransformer (or a TableRegressor) can be written as ONNX only as the "
                "first step of a graph: put the other models into it"
            )
        x, graph.numbers = write_columns(graph, steps.pop(0)[1])
    if steps:
        x = write_steps(graph, steps, x or _all_inputs(model, graph))
    return _outputs(regressor, graph, x)


@_outputs.register
def _(
    model: GridSearchCV | RandomizedSearchCV, graph: Graph, x: str | None
) -> tuple[str, Regressor]:
    return _outputs(model.best_estimator_, graph, x)


@_outputs.register
def _(model: ConformalRegressor, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    if model.adaptive is not False:
        raise TypeError(
            "intervals with adaptive widths cannot be written as ONNX: set adaptive=False, or "
            "export estimator_, which predicts without intervals"
        )
    graph.half_width = model._half_widths()
    graph.metadata["confidence_level"] = f"{model.confidence_level:g}"
    return _outputs(model.estimator_, graph, x)


@_outputs.register
def _(model: ScreenedRegressor, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    if len(model.estimators_) == 1:
        return _outputs(model.estimators_[0], graph, x)[0], model
    x = x or _all_inputs(model, graph)
    parts = [_outputs(one, graph, x)[0] for one in model.estimators_]
    return graph("Concat", *parts, axis=1), model


@_outputs.register
def _(model: BaseELM, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    x = x or _all_inputs(model, graph)
    return _network(graph, model, x, model._target_scaling), model


@_outputs.register
def _(model: RobustELMRegressor, graph: Graph, x: str | None) -> tuple[str, Regressor]:
    if getattr(model, "_input_check", None) is not None:
        raise TypeError("a graph cannot check inputs; fit the model without check_inputs")
    x = x or _all_inputs(model, graph)
    x = _scaled(graph, model._input_scaling, graph.cast(x, DOUBLE))
    x = graph("Clip", x, -FARTHEST_INPUT, FARTHEST_INPUT)
    share, count = model._target_scaling, len(model.members_)
    share = Scaling(share.centre / count, share.scale / count)
    y = graph("Sum", *(_network(graph, member, x, share) for member in model.members_))
    if any(kind != "none" for kind in getattr(model, "target_transforms_", ())):
        y = _untransformed(graph, model._target_transforms, y)
    return y, model


def _untransformed(graph: Graph, transforms: TargetTransforms, z: str) -> str:
    """Add the way back from the scales on which targets were fitted."""
    parts, order = list[str](), list[int]()
    for kind in sorted(set(transforms.kinds)):
        columns = np.flatnonzero(np.array(transforms.kinds) == kind)
        part = graph("Gather", z, columns.astype(np.int64), axis=1)
        if kind != "none":
            part = graph("Max", part, transforms.low[columns])
            part = graph("Min", part, transforms.high[columns])
        if kind == "log":
            part = graph("Exp", part)
        elif kind == "sqrt":
            part = graph("Max", part, 0.0)
            part = graph("Mul", part, part)
        parts.append(part)
        order.extend(columns)
    y = graph("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return graph("Gather", y, np.argsort(order).astype(np.int64), axis=1)


def _network(graph: Graph, model: BaseELM, x: str, targets: Scaling) -> str:
    """Add a network and the scaling of its outputs back to the units of the targets.

    The scaling is part of the weights: onnxruntime would fuse a product with a single number into
    the matrix product before it, and round that number to float32.
    """
    H = _hidden(graph, model.hidden_, _scaled(graph, model._input_scaling, x))
    y = graph("MatMul", graph.cast(H, DOUBLE), model.coef_ * targets.scale)
    return graph("Add", y, targets.undo(model.intercept_))


# -- their parts ---------------------------------------------------------------------------------


def _scaled(graph: Graph, scaling: Scaling, x: str) -> str:
    dtype = graph.dtype_of(x)
    limit = float(np.finfo(str(dtype)).max) ** 0.48
    x = graph("Div", graph.cast(x, DOUBLE), scaling.scale)
    x = graph("Sub", x, scaling.centre / scaling.scale)
    return graph.cast(graph("Clip", x, -limit, limit), dtype)


def _hidden(graph: Graph, layer: HiddenLayer, x: str) -> str:
    parts = []
    if len(layer.inputs) or not layer.n_nodes:  # a layer of nothing is no columns of x
        parts.append(graph("Gather", x, layer.inputs.astype(np.int64), axis=1))
    act = ACTIVATIONS[layer.activation]
    S = layer.subsets
    if layer.n_nodes and act.cityblock and S is not None:
        D = graph.distances_within(x, S, layer.A)
        H = _ACTIVATIONS[layer.activation](graph, D, layer.b)
        parts.append(graph.cast(H, graph.dtype_of(x)))
    elif layer.n_nodes and act.cityblock:
        H = _ACTIVATIONS[layer.activation](graph, graph.distances(x, layer.A), layer.b)
        parts.append(graph.cast(H, graph.dtype_of(x)))
    elif layer.n_nodes and act.radial:
        # Differences of squares lose half the digits: distances are float64 for any x.
        wide = graph.cast(x, DOUBLE)
        if S is None:
            squares = graph("ReduceSumSquare", wide, axes=[1])
        else:
            seen = layer.scattered(np.ones_like(layer.A)).T
            squares = graph("MatMul", graph("Mul", wide, wide), seen)
        C = layer.scattered(layer.A)
        D2 = graph("Add", graph("MatMul", wide, -2 * C.T), (layer.A**2).sum(axis=1))
        D2 = graph("Max", graph("Add", D2, squares), 0.0)
        H = _ACTIVATIONS[layer.activation](graph, D2, layer.b)
        parts.append(graph.cast(H, graph.dtype_of(x)))
    elif layer.n_nodes:
        Z = graph("Add", graph("MatMul", x, layer.scattered(layer.A).T), layer.b)
        parts.append(_ACTIVATIONS[layer.activation](graph, Z))
    return graph("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def _softplus(graph: Graph, Z: str) -> str:
    """max(z, 0) + log(1 + exp(−|z|)): no exponential overflows."""
    tail = graph("Exp", graph("Neg", graph("Abs", Z)))
    return graph("Add", graph("Max", Z, 0.0), graph("Log", graph("Add", tail, 1.0)))


def _hardlim(graph: Graph, Z: str) -> str:
    return graph("Where", graph("GreaterOrEqual", Z, 0.0), 1.0, 0.0)


def _gaussian(graph: Graph, D2: str, w: Array) -> str:
    return graph("Exp", graph("Div", D2, -np.maximum(w * w, np.finfo(w.dtype).tiny)))


_ACTIVATIONS: dict[str, Callable[..., str]] = {
    "sigmoid": lambda graph, Z: graph("Sigmoid", Z),
    "tanh": lambda graph, Z: graph("Tanh", Z),
    "relu": lambda graph, Z: graph("Relu", Z),
    "leaky_relu": lambda graph, Z: graph("Max", Z, graph("Mul", Z, 0.01)),
    "softplus": _softplus,
    "hardlim": _hardlim,
    "sine": lambda graph, Z: graph("Sin", Z),
    "cosine": lambda graph, Z: graph("Cos", Z),
    "gaussian": _gaussian,
    "multiquadric": lambda graph, D2, w: graph("Sqrt", graph("Add", D2, w * w)),
    "laplace": lambda graph, D, w: graph(
        "Exp", graph("Div", D, -np.maximum(w, np.finfo(w.dtype).tiny))
    ),
}
