"""Attributes of fitted estimators that displays and pages read, and names of targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from gorelm._features.layer import HiddenLayer
from gorelm._typing import Array, Mask

# Where meta-estimators keep the fitted estimator that does their work.
_INNER = ("regressor_", "best_estimator_", "estimator_")


class Predictor(Protocol):
    """A fitted estimator: what displays of its predictions use."""

    def predict(self, X: object) -> Array:
        """Return predictions of shape (n_samples,) or (n_samples, n_targets)."""


class Network(Protocol):
    """A fitted network of an ensemble: what its description uses."""

    n_hidden: int
    activation: str
    direct_link: bool
    hidden_: HiddenLayer


def layer_in_words(network: Network) -> str:
    """Return what the hidden layer of a network is, such as ``cosine of 2 inputs + linear``."""
    if network.n_hidden == 0:
        return "linear"
    subsets = network.hidden_.subsets
    seen = "" if subsets is None else f" of {subsets.shape[1]} input{'s' * (subsets.shape[1] > 1)}"
    return f"{network.activation}{seen}{' + linear' if network.direct_link else ''}"


def within(estimator: object) -> Iterator[object]:
    """Yield an estimator, then what it wraps: pipelines, searches and other meta-estimators."""
    while estimator is not None:
        yield estimator
        if isinstance(estimator, Pipeline):
            inner = estimator.steps[-1][1]
        else:
            inner = next((getattr(estimator, n) for n in _INNER if hasattr(estimator, n)), None)
        estimator = inner if hasattr(inner, "predict") else None


def innermost(estimator: object) -> object:
    """Return the estimator that wraps no other one."""
    return list(within(estimator))[-1]


def attribute(estimator: object, name: str) -> Any:
    """Return the outermost attribute of that name, or None."""
    return next((getattr(e, name) for e in within(estimator) if hasattr(e, name)), None)


def require(estimator: object, name: str, remedy: str) -> Any:
    """Return an attribute, or raise ValueError with a remedy."""
    check_is_fitted(estimator)
    value = attribute(estimator, name)
    if value is None:
        raise ValueError(f"{type(innermost(estimator)).__name__} has no {name}: {remedy}")
    return value


@dataclass(frozen=True)
class RowScores:
    """Outlier scores of all training rows."""

    scores: Array  # (N,), NaN: no model scored the row
    threshold: float  # rows above it are flagged; infinite if nothing stands out
    flagged: Mask  # (N,)
    unseen: bool  # whether the models that scored a row were fitted without it


def row_scores(estimator: object) -> RowScores:
    """Return an estimator's outlier scores, preferring those of models fitted without the row."""
    check_is_fitted(estimator)
    of_folds = attribute(estimator, "cv_outlier_scores_") is not None
    prefix = "cv_" if of_folds else ""
    remedy = "only the regressors of gorelm, and what wraps them, judge rows"
    # RobustELMRegressor, the only one with `contaminated_`, scores rows by fits without them.
    unseen = of_folds or attribute(estimator, "contaminated_") is not None
    return RowScores(
        np.asarray(require(estimator, f"{prefix}outlier_scores_", remedy), dtype=float),
        float(require(estimator, f"{prefix}outlier_threshold_", remedy)),
        np.asarray(require(estimator, f"{prefix}outlier_mask_", remedy), dtype=bool),
        unseen,
    )


def out_of_fold(estimator: object) -> Array | None:
    """Return predictions by models fitted without the row, (N, m), if the estimator has any."""
    for one in within(estimator):
        if hasattr(one, "out_of_fold_"):
            return np.asarray(one.out_of_fold_, dtype=float).reshape(len(one.out_of_fold_), -1)
        if isinstance(one, TransformedTargetRegressor):
            return None  # the estimator that it wraps predicts transformed targets
    return None


def as_table(y: object) -> Array:
    """Return targets of shape (n_samples,) or (n_samples, n_targets) as columns of floats."""
    table = np.asarray(y, dtype=float)
    if table.ndim not in (1, 2):
        raise ValueError(f"targets have {table.ndim} dimensions; 1 or 2 were expected")
    return table.reshape(len(table), -1)


def names_of_targets(y: object, names: Sequence[object] | None = None) -> list[str]:
    """Return given names, the columns of a frame, or numbers."""
    count = as_table(y).shape[1]
    if names is not None:
        if len(names) != count:
            raise ValueError(f"{len(names)} target_names for {count} targets")
        return [str(name) for name in names]
    columns, name = getattr(y, "columns", None), getattr(y, "name", None)
    if columns is None and name is not None:
        columns = [name]
    if columns is not None:
        return [str(name) for name in columns]
    return [f"target {k + 1}" for k in range(count)] if count > 1 else ["target"]
