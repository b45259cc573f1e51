"""Scores of new rows and cells, on the scale of the fit."""

from __future__ import annotations

import numpy as np

from gorelm._typing import Array, Mask
from gorelm.estimators._robust.cells import CellRules
from gorelm.estimators._robust.judge import FARTHEST_TARGET, log_sizes
from gorelm.estimators._robust.task import RobustTask

_KNOTS = 101  # at which the usual error is kept; it is a smooth function of the prediction


def spread_of(task: RobustTask) -> Array:
    """Return the robust spread of every target, in which errors of the fit were measured."""
    return task.robust_scaling.scale


def usual_curves(expected: Array, rules: CellRules, spread: Array) -> Array:
    """Return the usual error of each target as a function of its prediction: (2, knots, m)."""
    curves = np.empty((2, _KNOTS, expected.shape[1]))
    for j, (column, curve) in enumerate(zip(expected.T, rules.curves, strict=True)):
        known = np.sort(column[~np.isnan(column)])
        knots = known[np.linspace(0, len(known) - 1, _KNOTS).round().astype(int)]
        curves[:, :, j] = knots, curve.at(knots / spread[j])
    return curves


def cell_scores(expected: Array, T: Array, spread: Array, curves: Array) -> Array:
    """Return the errors of new cells in errors usual there; NaN where the target is unknown.

    Unlike at the fit, the part that the row's other errors explain is not subtracted.
    """
    usual = np.column_stack(
        [np.interp(expected[:, j], *curves[:, :, j]) for j in range(expected.shape[1])]
    )
    return np.asarray(np.abs(_errors(expected, T, spread)) / usual)


def row_scores(expected: Array, T: Array, spread: Array, judging: Mask, off: Mask) -> Array:
    """Return outlier scores of new rows of several targets, of which the cells `off` are wrong.

    As at the fit, a row most of whose targets are right is judged by these.
    """
    errors = _errors(expected, T, spread)
    by = judging if judging.any() else np.ones_like(judging)
    off, known = off & by, ~np.isnan(errors) & by
    right = 2 * off.sum(axis=1) <= known.sum(axis=1)
    errors = np.where(off & right[:, None], np.nan, errors)
    scores = np.expm1(log_sizes(errors[:, by]))
    return np.where(np.isnan(T).all(axis=1), np.nan, scores)


def _errors(expected: Array, T: Array, spread: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
