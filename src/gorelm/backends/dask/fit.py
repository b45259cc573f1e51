"""Fit and predict with rows spread over the workers of a cluster."""

from __future__ import annotations

import warnings
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from gorelm._extras import needs
from gorelm._features.layer import RowSource
from gorelm._features.scaling import Scaling, fit_scaling, merge, weighted_quantiles
from gorelm._solver.prepared import solve_rows
from gorelm._typing import Array, Indices, Mask
from gorelm.backends import BatchModel, FittedModel
from gorelm.backends.dask.coordinator import Coordinator
from gorelm.backends.dask.partition import Description
from gorelm.backends.dask.rows import DaskRows
from gorelm.backends.dask.source import DaskSource, Partitioned, delayed_parts
from gorelm.backends.dask.workers import Options
from gorelm.estimators._prepare import require_same_inputs, require_targets

if TYPE_CHECKING:
    import dask.array
    import dask.dataframe
    from distributed import Client

# Cells of y that the coordinator gathers to read the scaling of the targets off; of more, it
# gathers every k-th row.
_GATHERED = 100_000_000

# Results with an entry per row, and names, which are checked before.
_UNSENT = (
    *("history_", "outlier_scores_", "outlier_mask_", "cell_scores_", "cell_mask_"),
    *("out_of_fold_", "input_scores_", "input_mask_", "feature_names_in_"),
)

_FAULTS = {
    "bad_input": "X has a NaN or an infinite value; impute or remove it",
    "infinite": "y has an infinite value; remove it",
    "missing": 'y contains NaN; remove the row, or set missing_targets="ignore"',
    "bad_weight": "sample_weight is negative or not finite",
}

Second = TypeVar("Second", Array, Mask)
Model = TypeVar("Model", bound="FittedModel")


def fit(model: BatchModel, X: object, y: object, sample_weight: object = None) -> None:
    """Fit a batch estimator, its parameters checked, to dask collections.

    Targets and weights may be arrays or pandas frames in memory.
    """
    client = active_client()
    if y is None:
        raise ValueError(f"{type(model).__name__} needs y, but the target y is None")
    model._require_streamable("use arrays in memory instead of dask collections")
    source, options = DaskSource(X, y, sample_weight), Options.from_config()
    model._take_names(source)
    model._one_target = source.one_target
    with Coordinator(client, source, options) as coordinator:
        lengths, n_used, n_targets = _accepted(
            coordinator, source, ignore=model.missing_targets == "ignore"
        )
        model._input_scaling = fit_scaling(
            model.input_scaling,
            source.shape[1],
            lambda summary: coordinator.call("summary", summary, merge=merge),
        )
        model._target_scaling = _target_scaling(
            coordinator, model.target_scaling, lengths, n_targets
        )
        parts, summary = coordinator.call("target_sizes", _without_results(model))
        sizes, weights = _joined(parts)
        rows = _source(coordinator, model._input_scaling, [len(part[0]) for part in parts])
        model.hidden_ = model._draw(source.shape[1], rows=rows, w=weights)
        size = float(weighted_quantiles(sizes, 0.5, weights))
        problem = model.problem()
        limit = summary.limit(problem, source.dtype)
        coordinator.call("prepare", _without_results(model), limit, mutates=True, setup=True)
        shape = (n_used, model.hidden_.n_outputs, n_targets)
        every = options.checkpoint_every
        owner = DaskRows(coordinator, *shape, checkpoint_every=every)
        found = solve_rows(owner, problem, settings=model._settings(), callback=model.callback)
        model._take_solution(found)
        scores, used = _joined(coordinator.call("scores", _without_results(model)))
        model._score(scores, used, weights, size)


def predict(model: FittedModel, X: dask.array.Array) -> dask.array.Array:
    """Predict the targets of a dask collection, lazily, in its partitions."""
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    require_same_inputs(model, int(X.shape[1]) if names is None else len(names), names)
    n_targets = len(model._target_scaling.centre)
    if names is not None or hasattr(X, "columns"):
        return _of_partitions(_without_results(model), X, n_targets)
    X = X.rechunk({1: -1})
    predict = partial(X.map_blocks, _predicted, _without_results(model), dtype=np.float64)
    if model._one_target:
        return predict(drop_axis=1, meta=np.empty(0))
    return predict(chunks=(X.chunks[0], (n_targets,)), meta=np.empty((0, n_targets)))


def _of_partitions(
    model: FittedModel, X: dask.dataframe.DataFrame, n_targets: int
) -> dask.array.Array:
    """Predict the targets of a dataframe, in its partitions, whose lengths are not known yet."""
    import dask
    import dask.array as da

    predict, there = dask.delayed(_predicted, pure=False), dask.delayed(model, pure=False)
    shape = (np.nan,) if model._one_target else (np.nan, n_targets)
    parts = (predict(part, there) for part in delayed_parts(X))
    return da.concatenate([da.from_delayed(part, shape, np.float64) for part in parts])


def from_arrays(
    X: object,
    y: object,
    sample_weight: object = None,
    *,
    client: Client | None = None,
    n_partitions: int | None = None,
) -> tuple[object, ...]:
    """Mark rows in this process's memory as to be fitted by the workers of a cluster.

    Partitions are sent to their workers when the fit begins, and again if one is lost.

    Parameters
    ----------
    X : array or pandas frame (N, d)
        Inputs.
    y : array or pandas frame (N,) or (N, m)
        Targets.
    sample_weight : array (N,), optional
        Weights.
    client : distributed.Client, optional
        Connection to the cluster; by default the one that is open.
    n_partitions : int, optional
        Number of partitions; by default one for each thread of the workers.

    Returns
    -------
    X, y : object
        To pass to `fit`; with `sample_weight`, that is the third.

    Examples
    --------
    >>> from distributed import Client
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.backends.dask import from_arrays
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(400, outlier_ratio=0.2, random_state=0)
    >>> with Client(n_workers=2, processes=False, dashboard_address=":0") as client:
    ...     X, y = from_arrays(data.X, data.T, n_partitions=4)
    ...     model = GORELMRegressor(lam=0.1, n_hidden=50, random_state=0).fit(X, y)
    >>> model.predict(data.X).shape
    (400, 3)
    """
    client = active_client() if client is None else client
    count = sum(client.nthreads().values()) if n_partitions is None else n_partitions
    if count < 1:
        raise ValueError(
            "the cluster has no worker to count threads of; give n_partitions"
            if n_partitions is None
            else f"n_partitions={n_partitions} is not positive"
        )
    return tuple(v for v in (Partitioned(X, count), y, sample_weight) if v is not None)


def active_client() -> Client:
    """Return the client that is connected to a cluster."""
    with needs("fits on a cluster need dask and distributed", "dask"):
        from distributed import get_client
    try:
        client = get_client()
    except ValueError as error:
        raise RuntimeError(
            "dask collections are fitted by the workers of a cluster, and no client is connected "
            "to one: make one first, as in client = distributed.Client(n_workers=2), or with the "
            "address of a scheduler; or pass arrays in memory"
        ) from error
    if client.asynchronous:
        raise RuntimeError("the client is asynchronous; fit with one that is not")
    return client


def _without_results(model: Model) -> Model:
    """Return a copy of the model to send to workers: without large results and the callback."""
    other = copy(model)
    if hasattr(other, "callback"):
        other.callback = None
    for name in _UNSENT:
        vars(other).pop(name, None)
    return other


def _accepted(
    coordinator: Coordinator, source: DaskSource, *, ignore: bool
) -> tuple[list[int], int, int]:
    """Check all rows; returns the partitions' numbers of rows, of rows that count, of targets."""
    parts: list[Description] = coordinator.call("describe")
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    filled = [part for part in parts if part.n_rows]
    if not filled:
        raise ValueError("X has no rows")
    for number, part in enumerate(parts):
        if part.n_rows and part.shape != filled[0].shape:
            raise ValueError(
                f"partition {number} has {part.shape} inputs and targets, others have "
                f"{filled[0].shape}"
            )
        for fault, remedy in _FAULTS.items():
            row = part.first_bad[fault]
            if row is not None and not (ignore and fault == "missing"):
                raise ValueError(f"row {starts[number] + row}: {remedy}")
    n_inputs, n_targets = filled[0].shape
    if n_inputs != source.shape[1]:
        raise ValueError(f"X has {n_inputs} columns instead of {source.shape[1]}")
    n_used = sum(part.n_used for part in parts)
    known = [part.known for part in filled if part.n_used]
    require_targets(np.array(known, dtype=bool).reshape(-1, n_targets))
    return [part.n_rows for part in parts], n_used, n_targets


def _target_scaling(
    coordinator: Coordinator, kind: str | None, lengths: list[int], n_targets: int
) -> Scaling:
    """Read the target scaling off the gathered targets, or off every k-th row of very many."""
    starts = np.cumsum([0, *lengths])
    every = -(-int(starts[-1]) * n_targets // _GATHERED)
    T, w = _joined(coordinator.call("targets", starts[:-1].tolist(), max(every, 1)))
    return Scaling.fit(kind, T, w)


def _source(coordinator: Coordinator, scaling: Scaling, lengths: list[int]) -> RowSource:
    """Return where to fetch scaled rows, of the numbers of used ones in every partition."""
    starts = np.cumsum([0, *lengths]).tolist()

    def take(at: Indices) -> Array:
        places, inputs = zip(*coordinator.call("inputs_at", starts, at), strict=True)
        rows, _ = scaling.apply(np.concatenate(inputs)[np.argsort(np.concatenate(places))])
        return rows

    return RowSource(starts[-1], take)


def _joined(parts: list[tuple[Array, Second]]) -> tuple[Array, Second]:
    first, second = zip(*[part for part in parts if len(part[0])], strict=True)
    return np.concatenate(first), np.concatenate(second)


def _predicted(x: npt.ArrayLike, model: FittedModel) -> Array:
    rows = np.asarray(x)
    if not len(rows):
        return np.empty((0,) if model._one_target else (0, len(model._target_scaling.centre)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # checked before
        return np.asarray(model.predict(rows))
