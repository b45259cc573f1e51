"""Models as ONNX graphs, for runtimes other than Python's.

The graph does what `predict` does, in its order: inputs scaled and kept within bounds, hidden
layer, output weights, targets unscaled. Only operators that onnxruntime has for float64 are used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from gorelm import __version__
from gorelm.activations import ACTIVATIONS
from gorelm.estimators.base import BaseELM
from gorelm.estimators.robust import FARTHEST_INPUT, RobustELMRegressor
from gorelm.hidden import HiddenLayer
from gorelm.io import write_whole
from gorelm.scaling import Scaling

__all__ = ["export_onnx", "to_onnx"]

_OPSET, _IR_VERSION = 17, 8  # of 2022: runtimes since then read them
_DOUBLE = np.dtype(np.float64)

DType = Literal["float64", "float32"]


def to_onnx(model: Any, dtype: DType = "float64") -> Any:
    """Return a fitted model as one ONNX graph, from raw inputs to targets in their own units.

    Parameters
    ----------
    model : estimator
        A fitted estimator of gorelm; a pipeline that ends in one, of `StandardScaler`,
        `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler` and `SimpleImputer`; or a scikit-learn search
        over such.
    dtype : {"float64", "float32"}, default="float64"
        Type of the graph's input and output. With "float32" the hidden layer works in float32 too,
        as `predict` does for float32 inputs; scalings and output weights stay float64.

    Returns
    -------
    graph : onnx.ModelProto
        Input ``X`` of shape (N, n_features) for any N, output ``y`` of the shape that `predict`
        gives. Its metadata name the versions of gorelm, the estimator, and the features and
        targets where the model knows their names.

    Raises
    ------
    TypeError
        If the model, or a step of a pipeline, has no counterpart here.

    Notes
    -----
    `predict` refuses NaN and infinity; a graph has no way to, and passes NaN on.

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
    onnx = _onnx()
    check_is_fitted(model)
    if dtype not in ("float64", "float32"):
        raise ValueError(f'dtype must be "float64" or "float32", got {dtype!r}')
    graph = _Graph(np.dtype(dtype))
    outputs, regressor = _outputs(model, graph, "X")
    y = graph.cast(outputs, graph.dtype)
    shape: list[Any] = ["N", len(regressor._target_scaling.scale)]
    if regressor._one_target:
        y, shape = graph("Squeeze", y, np.array([1])), shape[:1]
    graph.nodes[-1].output[0] = "y"  # the last of them made it
    kind = onnx.helper.np_dtype_to_tensor_dtype(graph.dtype)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            type(regressor).__name__,
            [onnx.helper.make_tensor_value_info("X", kind, ["N", int(model.n_features_in_)])],
            [onnx.helper.make_tensor_value_info("y", kind, shape)],
            graph.constants,
        ),
        producer_name="gorelm",
        producer_version=__version__,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    onnx.helper.set_model_props(proto, _metadata(model, regressor))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def export_onnx(model: Any, path: str | os.PathLike[str], dtype: DType = "float64") -> Path:
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


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError('exporting models needs onnx: pip install "gorelm[onnx]"') from error
    return onnx


def _metadata(model: Any, regressor: Any) -> dict[str, str]:
    about = {"gorelm_version": __version__, "estimator": type(regressor).__name__}
    for key, names in (
        ("feature_names", getattr(model, "feature_names_in_", None)),
        ("target_names", getattr(model, "target_names_", None)),
    ):
        if names is not None:
            about[key] = json.dumps([str(name) for name in names])
    return about


class _Graph:
    """Nodes and constants of a graph that is being written, for inputs of type `dtype`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._onnx = _onnx()
        self._dtypes = {"X": dtype}

    def __call__(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node; inputs are names, or constants that take the type of the first.

        The name of a comparison stands for the type of what it compares.
        """
        dtype = self._dtypes[inputs[0]]
        names = [self._named(value, dtype) for value in inputs]
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(op, names, [name], **attributes))
        self._dtypes[name] = dtype
        return name

    def cast(self, x: str, dtype: np.dtype[Any]) -> str:
        if self._dtypes[x] == dtype:
            return x
        name = self("Cast", x, to=self._onnx.helper.np_dtype_to_tensor_dtype(dtype))
        self._dtypes[name] = dtype
        return name

    def dtype_of(self, x: str) -> np.dtype[Any]:
        return self._dtypes[x]

    def _named(self, value: Any, dtype: np.dtype[Any]) -> str:
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(dtype)
        name = f"constant_{len(self.constants)}"
        tensor = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.constants.append(tensor)
        return name


# -- estimators: each turns the name of its inputs into that of its outputs, (N, m) in float64 ----


@singledispatch
def _outputs(model: Any, graph: _Graph, x: str) -> tuple[str, Any]:
    """Add a model to a graph; returns its outputs and the regressor that they come from."""
    raise TypeError(
        f"{type(model).__name__} cannot be written as ONNX: only gorelm's regressors, pipelines "
        "that end in one, and searches over these can. gorelm.save stores other models"
    )


@_outputs.register
def _(model: Pipeline, graph: _Graph, x: str) -> tuple[str, Any]:
    *transformers, (_, regressor) = model.steps
    for name, step in transformers:
        if step is None or step == "passthrough":
            continue
        write = _TRANSFORMERS.get(type(step))
        if write is None:
            known = ", ".join(kind.__name__ for kind in _TRANSFORMERS)
            raise TypeError(
                f"step {name!r} of the pipeline, a {type(step).__name__}, cannot be written as "
                f"ONNX (known: {known}): apply it before the graph"
            )
        x = graph.cast(write(graph, step, graph.cast(x, _DOUBLE)), graph.dtype)
    return _outputs(regressor, graph, x)


@_outputs.register(GridSearchCV)
@_outputs.register(RandomizedSearchCV)
def _(model: Any, graph: _Graph, x: str) -> tuple[str, Any]:
    return _outputs(model.best_estimator_, graph, x)


@_outputs.register
def _(model: BaseELM, graph: _Graph, x: str) -> tuple[str, Any]:
    return _network(graph, model, x, model._target_scaling), model


@_outputs.register
def _(model: RobustELMRegressor, graph: _Graph, x: str) -> tuple[str, Any]:
    x = _scaled(graph, model._input_scaling, graph.cast(x, _DOUBLE))
    x = graph("Clip", x, -FARTHEST_INPUT, FARTHEST_INPUT)
    share, count = model._target_scaling, len(model.members_)
    share = Scaling(share.centre / count, share.scale / count)
    return graph("Sum", *(_network(graph, member, x, share) for member in model.members_)), model


def _network(graph: _Graph, model: BaseELM, x: str, targets: Scaling) -> str:
    """Add a network whose targets are unscaled so.

    The scaling is in the weights: onnxruntime would join a product with a single number to the
    matrix product before it, and round that number to float32.
    """
    H = _hidden(graph, model.hidden_, _scaled(graph, model._input_scaling, x))
    y = graph("MatMul", graph.cast(H, _DOUBLE), model.coef_ * targets.scale)
    return graph("Add", y, targets.undo(model.intercept_))


# -- their parts ---------------------------------------------------------------------------------


def _scaled(graph: _Graph, scaling: Scaling, x: str) -> str:
    dtype = graph.dtype_of(x)
    limit = float(np.finfo(dtype).max) ** 0.48
    x = graph("Div", graph.cast(x, _DOUBLE), scaling.scale)
    x = graph("Sub", x, scaling.centre / scaling.scale)
    return graph.cast(graph("Clip", x, -limit, limit), dtype)


def _hidden(graph: _Graph, layer: HiddenLayer, x: str) -> str:
    parts = []
    if len(layer.inputs) or not layer.n_nodes:  # a layer of nothing is no columns of x
        parts.append(graph("Gather", x, layer.inputs.astype(np.int64), axis=1))
    if layer.n_nodes and ACTIVATIONS[layer.activation].radial:
        # Differences of squares lose half the digits: distances are float64 for any x.
        wide = graph.cast(x, _DOUBLE)
        squares = graph("ReduceSumSquare", wide, axes=[1])
        D2 = graph("Add", graph("MatMul", wide, -2 * layer.A.T), (layer.A**2).sum(axis=1))
        D2 = graph("Max", graph("Add", D2, squares), 0.0)
        H = _ACTIVATIONS[layer.activation](graph, D2, layer.b)
        parts.append(graph.cast(H, graph.dtype_of(x)))
    elif layer.n_nodes:
        Z = graph("Add", graph("MatMul", x, layer.A.T), layer.b)
        parts.append(_ACTIVATIONS[layer.activation](graph, Z))
    return graph("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def _softplus(graph: _Graph, Z: str) -> str:
    """max(z, 0) + log(1 + exp(−|z|)), which nothing overflows."""
    tail = graph("Exp", graph("Neg", graph("Abs", Z)))
    return graph("Add", graph("Max", Z, 0.0), graph("Log", graph("Add", tail, 1.0)))


def _hardlim(graph: _Graph, Z: str) -> str:
    return graph("Where", graph("GreaterOrEqual", Z, 0.0), 1.0, 0.0)


def _gaussian(graph: _Graph, D2: str, w: npt.NDArray[np.float64]) -> str:
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
}


# -- steps of pipelines, on float64 --------------------------------------------------------------


def _centred(graph: _Graph, x: str, centre: Any, scale: Any) -> str:
    x = x if centre is None else graph("Sub", x, centre)
    return x if scale is None else graph("Div", x, scale)


def _min_max(graph: _Graph, step: MinMaxScaler, x: str) -> str:
    x = graph("Add", graph("Mul", x, step.scale_), step.min_)
    return graph("Clip", x, *map(float, step.feature_range)) if step.clip else x


def _imputed(graph: _Graph, step: SimpleImputer, x: str) -> str:
    missing_is_nan = isinstance(step.missing_values, float) and np.isnan(step.missing_values)
    if not missing_is_nan or step.add_indicator:
        raise TypeError(
            "a SimpleImputer can be written as ONNX only with NaN for missing values and without "
            "add_indicator"
        )
    filled = np.asarray(step.statistics_, dtype=float)
    kept = np.flatnonzero(~np.isnan(filled))
    if len(kept) < len(filled):  # columns that were empty in the fit are left out
        x = graph("Gather", x, kept, axis=1)
    return graph("Where", graph("IsNaN", x), filled[kept], x)


_TRANSFORMERS: dict[type, Callable[[_Graph, Any, str], str]] = {
    MaxAbsScaler: lambda graph, step, x: _centred(graph, x, None, step.scale_),
    MinMaxScaler: _min_max,
    RobustScaler: lambda graph, step, x: _centred(graph, x, step.center_, step.scale_),
    SimpleImputer: _imputed,
    StandardScaler: lambda graph, step, x: _centred(
        graph, x, step.mean_ if step.with_mean else None, step.scale_
    ),
}
