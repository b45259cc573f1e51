"""One run: split, contaminate, fit, measure."""

from __future__ import annotations

import inspect
import json
import platform
import time
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from gorelm import estimators
from gorelm._typing import Array
from gorelm._version import __version__
from gorelm.datasets import contaminate, load_mulan
from gorelm.experiments.protocol import Config, Method, Run, Value
from gorelm.metrics import arrmse

# The paper's names of parameters, and ours.
_PUBLISHED = {"C": "C", "lambda": "lam", "alpha": "l1_ratio"}


class _Model(Protocol):
    def fit(self, X: Array, y: Array) -> object: ...
    def predict(self, X: Array) -> Array: ...


def execute(config: Config, run: Run, chosen: dict[str, float]) -> dict[str, Value]:
    """Do one run with one BLAS thread; an exception becomes a record of a failed run.

    `chosen` are the parameters that were selected, with "seconds" for what the selection took. The
    record has the columns of `gorelm.experiments.store.COLUMNS` that apply.
    """
    record: dict[str, Value] = {
        "dataset": run.dataset,
        "ratio": run.ratio,
        "method": run.method,
        "repeat": run.repeat,
        "config": config.name,
        "status": "done",
        "seed": config.seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": json.dumps(versions()),
    }
    try:
        with threadpool_limits(1):
            record |= _measured(config, run, chosen)
    except Exception as error:
        record |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return record


def _measured(config: Config, run: Run, chosen: dict[str, float]) -> dict[str, Value]:
    method = config.method(run.method)
    chosen = dict(chosen)
    seconds_select = chosen.pop("seconds", None)
    X, T, X_test, T_test = _split(config, run.dataset, run.repeat)
    seed = config.seed_of(run.dataset, run.repeat, "contaminate", run.ratio)
    T_dirty, planted = contaminate(T, run.ratio, kind=config.kind, random_state=seed)
    model = _make(method, config, {**method.params, **chosen}, run.dataset, run.repeat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` is in the record
        start = time.perf_counter()
        model.fit(X, T_dirty)
        fitted = time.perf_counter()
    predicted = model.predict(X_test)
    done = time.perf_counter()
    flagged = getattr(model, "outlier_mask_", None)
    record: dict[str, Value] = {
        "arrmse_train": arrmse(T_dirty, model.predict(X)),
        "arrmse_test": arrmse(T_test, predicted),
        "seconds_select": seconds_select,
        "seconds_fit": fitted - start,
        "seconds_predict": done - fitted,
        "n_iter": _number(model, "n_iter_"),
        "converged": _number(model, "converged_"),
        "dual_gap": _number(model, "dual_gap_"),
        "nodes": _number(model, "n_active_"),
        "n_rows": len(X),
        "n_features": X.shape[1],
        "n_targets": T.shape[1],
        "params": json.dumps(method.params | chosen | _found(model), default=str),
    }
    if flagged is not None and planted.any():
        record["outlier_recall"] = float(flagged[planted].mean())
        record["outlier_precision"] = float(planted[flagged].mean()) if flagged.any() else None
    return record


def select(config: Config, dataset: str, method_name: str) -> dict[str, float]:
    """Choose the parameters of a method for a data set, as the configuration says.

    The result also has "seconds", for what it took.
    """
    method, mode = config.method(method_name), config.selection.mode
    if mode == "none" or not method.search:
        return {}
    if mode == "published":
        return published_choice(dataset, method_name)
    X, T, _, _ = _split(config, dataset, 0)
    options = {name: value for name, value in method.search.items() if name != "estimator"}
    # Folds and layer are the data set's, so that methods are searched for alike.
    folds = KFold(config.selection.folds, shuffle=True, random_state=config.seed_of(dataset, "cv"))
    options |= {"cv": folds, "scoring": config.selection.scoring}
    searching = Method(method.name, str(method.search["estimator"]), options)
    model = _make(searching, config, options, dataset, 0)
    start = time.perf_counter()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, T)
    return {**_found(model), "seconds": time.perf_counter() - start}


def published_choice(dataset: str, method: str) -> dict[str, float]:
    """Return the parameters that the paper chose."""
    from gorelm.experiments.published import published_parameters

    rows = [
        row
        for row in published_parameters()
        if row["dataset"] == dataset and row["method"] == method and row["name"] in _PUBLISHED
    ]
    if not rows:
        raise ValueError(f"the paper has no parameters of {method} for {dataset}")
    return {_PUBLISHED[row["name"]]: row["value"] for row in rows}


def _split(config: Config, dataset: str, repeat: int) -> tuple[Array, Array, Array, Array]:
    data = _load(dataset)
    rng = np.random.RandomState(config.seed_of(dataset, repeat, "split"))
    rows = rng.permutation(len(data.data))
    train, test = np.split(rows, [round(len(rows) * (1 - config.test_size))])
    return data.data[train], data.target[train], data.data[test], data.target[test]


@lru_cache(maxsize=2)
def _load(dataset: str) -> Bunch:
    return load_mulan(dataset)


def _make(
    method: Method, config: Config, params: Mapping[str, object], dataset: str, repeat: int
) -> _Model:
    """Make an estimator; parameters common to the experiment are passed if it has them."""
    cls = getattr(estimators, method.estimator)
    known = inspect.signature(cls).parameters
    common = {name: value for name, value in config.common.items() if name in known}
    seed = config.seed_of(dataset, repeat, "layer")
    model: _Model = cls(**{**common, "random_state": seed, **params})
    return model


def _found(model: object) -> dict[str, float]:
    """Return what an estimator chose by itself."""
    found = {name: getattr(model, f"{name}_", None) for name in ("C", "lam", "l1_ratio")}
    return {name: float(value) for name, value in found.items() if value is not None}


def _number(model: object, name: str) -> float | None:
    value = getattr(model, name, None)
    return None if value is None else float(value)


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions that a figure may depend on."""
    import scipy
    import sklearn

    return {
        "gorelm": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
