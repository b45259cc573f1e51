"""Steps of scikit-learn pipelines as nodes of ONNX graphs.

Scalers and imputers become the arithmetic that they do. Encoders of categories, with the steps
around them, are called with every category, with a missing value and with an unknown category; the
graph looks the results up. Why not skl2onnx: docs/results/ablation.md.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from gorelm._compat import input_columns
from gorelm._typing import Array
from gorelm.onnx.graph import DOUBLE, TEXT, Graph

_ENCODERS = (OneHotEncoder, OrdinalEncoder, TargetEncoder)

Steps: TypeAlias = list[tuple[str, BaseEstimator | str | None]]  # text and None: passthrough
Category: TypeAlias = str | float | None


def write_steps(graph: Graph, steps: Steps, x: str) -> str:
    """Add transformers of numbers, one after the other."""
    dtype = graph.dtype_of(x)
    for name, step in steps:
        if step is None or isinstance(step, str):  # passthrough
            continue
        if type(step) not in _TRANSFORMERS:
            raise _unknown(name, step)
        x = graph.cast(_TRANSFORMERS[type(step)](graph, step, graph.cast(x, DOUBLE)), dtype)
    return x


def _unknown(name: str, step: object) -> TypeError:
    known = ", ".join(kind.__name__ for kind in [*_TRANSFORMERS, ColumnTransformer, *_ENCODERS])
    return TypeError(
        f"step {name!r} of the pipeline, a {type(step).__name__}, cannot be written as ONNX "
        f"(known: {known}): apply it before the graph"
    )


# -- numbers, in float64 -------------------------------------------------------------------------


def _centred(graph: Graph, x: str, centre: Array | None, scale: Array | None) -> str:
    x = x if centre is None else graph("Sub", x, centre)
    return x if scale is None else graph("Div", x, scale)


def _min_max(graph: Graph, step: MinMaxScaler, x: str) -> str:
    x = graph("Add", graph("Mul", x, step.scale_), step.min_)
    return graph("Clip", x, *map(float, step.feature_range)) if step.clip else x


def _imputed(graph: Graph, step: SimpleImputer, x: str) -> str:
    if not (isinstance(step.missing_values, float) and np.isnan(step.missing_values)):
        raise TypeError("a SimpleImputer can be written as ONNX only with NaN for missing values")
    filled = np.asarray(step.statistics_, dtype=float)
    kept = np.flatnonzero(~np.isnan(filled))
    # columns that were empty in the fit are left out
    cells = graph("Gather", x, kept, axis=1) if len(kept) < len(filled) else x
    parts = [graph("Where", graph("IsNaN", cells), filled[kept], cells)]
    if step.add_indicator and len(step.indicator_.features_):
        marked = graph("Gather", x, step.indicator_.features_.astype(np.int64), axis=1)
        parts.append(graph("Where", graph("IsNaN", marked), 1.0, 0.0))
    return graph("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def _same(graph: Graph, step: FunctionTransformer, x: str) -> str:
    if step.func is not None:
        raise _unknown(step.func.__name__, step)
    return x


_TRANSFORMERS: dict[type, Callable[[Graph, BaseEstimator, str], str]] = {
    FunctionTransformer: _same,
    MaxAbsScaler: lambda graph, step, x: _centred(graph, x, None, step.scale_),
    MinMaxScaler: _min_max,
    RobustScaler: lambda graph, step, x: _centred(graph, x, step.center_, step.scale_),
    SimpleImputer: _imputed,
    StandardScaler: lambda graph, step, x: _centred(
        graph, x, step.mean_ if step.with_mean else None, step.scale_
    ),
}


# -- tables --------------------------------------------------------------------------------------


def write_columns(graph: Graph, table: ColumnTransformer) -> tuple[str, list[str]]:
    """Add a column transformer with its inputs; returns its outputs and the names of X's columns.

    Columns of strings are inputs of their own, named like the column, (N, 1). All others that are
    used, in their order, are the columns of the input X.
    """
    names = [str(n) for n in getattr(table, "feature_names_in_", range(table.n_features_in_))]
    blocks = list(_blocks(table))
    texts = {
        column
        for _, columns, encoder in blocks
        if encoder is not None
        for column, values in zip(columns, encoder.categories_, strict=True)
        if values.dtype.kind not in "biuf"
    }
    used = {column for _, columns, _ in blocks for column in columns}
    numbers = sorted(used - texts)
    if numbers:
        graph.input("X", graph.dtype, len(numbers))
    columns_of_X = {column: place for place, column in enumerate(numbers)}
    inputs = {column: graph.input(names[column], TEXT, 1) for column in sorted(texts)}
    parts = []
    for steps, columns, encoder in blocks:
        if encoder is not None:
            cells = [
                inputs[c] if c in texts else _column(graph, [columns_of_X[c]]) for c in columns
            ]
            parts.append(graph.cast(_looked_up(graph, steps, encoder, cells), graph.dtype))
        else:
            block = _column(graph, [columns_of_X[c] for c in columns])
            parts.append(write_steps(graph, steps, block))
    whole = graph("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return whole, [names[column] for column in numbers]


def _blocks(table: ColumnTransformer) -> Iterator[tuple[Steps, list[int], BaseEstimator | None]]:
    """Yield steps, columns and encoder (None: numbers only) of each part of a table."""
    for name, block, _ in table.transformers_:
        columns = [int(column) for column in input_columns(table)[name]]
        if not columns or (isinstance(block, str) and block == "drop"):
            continue
        steps = block.steps if isinstance(block, Pipeline) else [(name, block)]
        encoders = [step for _, step in steps if isinstance(step, _ENCODERS)]
        yield steps, columns, encoders[0] if encoders else None


def _column(graph: Graph, places: list[int]) -> str:
    return graph("Gather", "X", np.array(places, dtype=np.int64), axis=1)


def _looked_up(graph: Graph, steps: Steps, encoder: BaseEstimator, cells: list[str]) -> str:
    """Add the results of steps with an encoder, each of which depends on one column only.

    With the first category of every column as the base, the result for other categories is the base
    plus the sum over the columns of the differences that their categories make.
    """
    for name, step in steps:
        if type(step) not in (*_TRANSFORMERS, *_ENCODERS):
            raise _unknown(name, step)
    first = [values[0] for values in encoder.categories_]
    base = _transformed(steps, [first])
    assert base is not None
    indicators, answers, refused = [], [], []
    for place, (cell, values) in enumerate(zip(cells, encoder.categories_, strict=True)):
        known = [value for value in values if not _is_missing(value)]
        rows = [[*first[:place], value, *first[place + 1 :]] for value in known]
        made = _transformed(steps, rows)
        assert made is not None
        present, missing, other = _indicators(graph, cell, known)
        indicators.append(present)
        answers.append(made - base)
        for indicator, value in ((missing, np.nan), (other, _unheard_of(known))):
            made = _transformed(steps, [[*first[:place], value, *first[place + 1 :]]])
            indicators.append(indicator)
            answers.append(np.zeros_like(base) if made is None else made - base)
            refused += [indicator] if made is None else []
    every = graph("Concat", *indicators, axis=1)
    out = graph("Add", graph("MatMul", every, np.concatenate(answers)), base)
    if refused:  # NaN where `transform` would raise
        out = graph("Where", graph("Greater", graph("Sum", *refused), 0.5), np.nan, out)
    return out


def _indicators(graph: Graph, cell: str, known: list[Category]) -> tuple[str, str, str]:
    """Return columns of 0 and 1: one for every known category; for missing; for any other."""
    if graph.dtype_of(cell) == TEXT:
        coded = graph.one_hot(cell, [*map(str, known), *([] if "" in known else [""])])
        present = graph("Gather", coded, np.arange(len(known)), axis=1)
        # An empty string is a missing one, unless it is a category.
        last = graph("Gather", coded, np.array([len(known)]), axis=1) if "" not in known else None
        missing = last or graph("Mul", graph("Gather", coded, np.array([0]), axis=1), 0.0)
    else:
        wide = graph.cast(cell, DOUBLE)
        present = graph("Where", graph("Equal", wide, np.array([known], dtype=float)), 1.0, 0.0)
        missing = graph("Where", graph("IsNaN", wide), 1.0, 0.0)
    found = graph("Add", graph("ReduceSum", present, np.array([1])), missing)
    return present, missing, graph("Add", graph("Neg", found), 1.0)


def _transformed(steps: Steps, rows: list[list[Category]]) -> Array | None:
    """Return rows after all steps; None if a step raises ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = np.array(rows, dtype=object)
            for _, step in steps:
                made = made if step is None or isinstance(step, str) else step.transform(made)
        dense = made.toarray() if sparse.issparse(made) else np.asarray(made)
        return np.asarray(dense, dtype=float)
    except ValueError:
        return None


def _is_missing(value: Category) -> bool:
    return value is None or (isinstance(value, float) and bool(np.isnan(value)))


def _unheard_of(known: list[Category]) -> Category:
    """Return a category that is not among the known ones."""
    numbers = [float(value) for value in known if isinstance(value, int | float | np.number)]
    return max(numbers) + 1.0 if known and len(numbers) == len(known) else uuid.uuid4().hex
