"""Rows that were not there at the fit, scored as those that were."""

from __future__ import annotations

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask
from gorelm.estimators._robust.judge import FARTHEST_TARGET, log_sizes
from gorelm.estimators._robust.task import RobustTask


def spread_of(task: RobustTask) -> Array:
    """Return the robust spread of every target, in which errors of the fit were measured."""
    usable = task.usable
    return Scaling.fit("robust", task.T[usable], task.w[usable]).scale


def row_scores(expected: Array, T: Array, spread: Array, judging: Mask) -> Array:
    """Return outlier scores by the formula of `judge`; NaN where no target is known."""
    with np.errstate(over="ignore"):
        errors = np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    scores = np.expm1(log_sizes(errors[:, judging if judging.any() else slice(None)]))
    return np.where(np.isnan(T).all(axis=1), np.nan, scores)
