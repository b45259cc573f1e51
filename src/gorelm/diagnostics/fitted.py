"""What a fitted estimator, or the one inside it, has to tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from gorelm._typing import Array

__all__ = ["RowScores", "attribute", "innermost", "out_of_fold", "require", "row_scores", "within"]

# Where meta-estimators keep the fitted estimator that does their work.
_INNER = ("regressor_", "best_estimator_", "estimator_")


def within(estimator: Any) -> Iterator[Any]:
    """Yield an estimator, then what it wraps: pipelines, searches and other meta-estimators."""
    while estimator is not None:
        yield estimator
        if isinstance(estimator, Pipeline):
            inner = estimator.steps[-1][1]
        else:
            inner = next((getattr(estimator, n) for n in _INNER if hasattr(estimator, n)), None)
        estimator = inner if hasattr(inner, "predict") else None


def innermost(estimator: Any) -> Any:
    """Return the estimator that no other one is inside of."""
    return list(within(estimator))[-1]


def attribute(estimator: Any, name: str, default: Any = None) -> Any:
    """Return the outermost attribute of that name."""
    return next((getattr(e, name) for e in within(estimator) if hasattr(e, name)), default)


def require(estimator: Any, name: str, remedy: str) -> Any:
    """Return an attribute, or say why there is none."""
    check_is_fitted(estimator)
    value = attribute(estimator, name)
    if value is None:
        raise ValueError(f"{type(innermost(estimator)).__name__} has no {name}: {remedy}")
    return value


@dataclass(frozen=True)
class RowScores:
    """How far off every training row is.

    Parameters
    ----------
    scores : array (N,)
        NaN: not judged.
    threshold : float
        Rows above it are flagged; infinite if nothing stands out.
    flagged : boolean array (N,)
        Those rows.
    unseen : bool
        Whether the models that judged a row had not seen it.
    """

    scores: Array
    threshold: float
    flagged: npt.NDArray[np.bool_]
    unseen: bool


def row_scores(estimator: Any) -> RowScores:
    """Return an estimator's outlier scores, preferring those of models that did not see the row."""
    from gorelm.estimators.robust import RobustELMRegressor  # it imports this package

    check_is_fitted(estimator)
    unseen = attribute(estimator, "cv_outlier_scores_") is not None
    prefix = "cv_" if unseen else ""
    remedy = "only the regressors of gorelm, and what wraps them, judge rows"
    return RowScores(
        np.asarray(require(estimator, f"{prefix}outlier_scores_", remedy), dtype=float),
        float(require(estimator, f"{prefix}outlier_threshold_", remedy)),
        np.asarray(require(estimator, f"{prefix}outlier_mask_", remedy), dtype=bool),
        unseen or any(isinstance(e, RobustELMRegressor) for e in within(estimator)),
    )


def out_of_fold(estimator: Any) -> Array | None:
    """Return predictions by models that did not see the row, (N, m), if the estimator has any."""
    for one in within(estimator):
        if hasattr(one, "out_of_fold_"):
            return np.asarray(one.out_of_fold_, dtype=float).reshape(len(one.out_of_fold_), -1)
        if isinstance(one, TransformedTargetRegressor):
            return None  # what is inside predicts other targets
    return None
