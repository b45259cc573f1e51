r"""Which targets are fitted on another scale: those whose errors grow with their size.

A target is a candidate if it has no negative value and its upper tail is longer,

.. math:: \frac{(q_{90} - q_{50}) - (q_{50} - q_{10})}{q_{90} - q_{10}} \ge 0.2,

with quantiles, which a few wrong values do not move. Fits with a bounded loss then predict the
candidates out of sample on every scale (as given, roots, logarithms). The rows are parted into six
groups of equal size by their prediction, and the *growth* of a scale is the logarithm of the ratio
between the median absolute errors of the upper two groups and the lower two (Tukey's plot of
spread against level). A target is transformed if its errors more than double, if the growth on the
other scale is less than half of that, and if the fits on that scale do not predict much worse in
the given units, by mean absolute and by mean squared error: exponentials of predictions that are
off are far off. Of two such scales the one with less growth is taken. A table of fewer than 200
rows, or 3 for each input, is left as it is.

All of it is a function of the table: sample, folds and hidden layers are drawn from seeds of their
own, and the predictions are medians over several draws, so that neither the seed of a fit nor its
effort changes the scale on which rows are judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._features.target_transforms import TRANSFORMS, TargetTransforms
from gorelm._typing import Array
from gorelm.estimators._robust.cells import has_spread
from gorelm.estimators._robust.judge import FARTHEST_TARGET
from gorelm.estimators._robust.screen import bounded_predictions
from gorelm.estimators._robust.task import EFFORTS, RobustTask

SKEWED = 0.2
DOUBLED = np.log(2.0)
FEWEST_ROWS, MOST_ROWS = 200, 1000  # to decide by
SEED, DRAWS = 0, 5  # of folds and hidden layers
FEWEST_PER_INPUT = 3  # rows; with fewer, simple fits say little about good ones
GROUPS = 6
MUCH_WORSE = 1.1  # times the error in the given units, by chance or for the median
LEAST_ERROR = 1e-3  # spreads of the target: smaller errors count as this
FEW_ZEROS = 0.01  # share of zeros up to which logarithms are an option


def choose_transforms(task: RobustTask) -> list[str]:
    """Return the transform of every target, "none" for most."""
    kinds = ["none"] * task.T.shape[1]
    task = replace(task, seed=SEED, effort=EFFORTS["default"], n_hidden=None)
    rows = task.sample(MOST_ROWS)
    rows = rows[task.usable[rows]]
    few = replace(
        task,
        X=task.rows.take(rows),
        T=task.T[rows],
        w=task.w[rows],
        usable=task.usable[rows],
        folds=None,  # shuffled ones do to compare scales
    )
    # Negative values may be in rows that are not in the sample.
    candidates = [
        j
        for j in range(len(kinds))
        if is_skewed(few.T[:, j], few.w) and not np.any(task.T[task.usable, j] < 0)
    ]
    if not candidates or len(rows) < max(FEWEST_ROWS, FEWEST_PER_INPUT * task.rows.shape[1]):
        return kinds
    given = _trial(few, few.T[:, candidates], "none")
    if not (given.growth > DOUBLED).any():
        return kinds
    others = [_trial(few, few.T[:, candidates], kind) for kind in TRANSFORMS if kind != "none"]
    for k, j in enumerate(candidates):
        few_zeros = np.mean(task.T[task.usable, j] == 0) <= FEW_ZEROS
        better = [
            other
            for other in others
            if abs(other.growth[k]) < given.growth[k] / 2
            and other.mean_error[k] <= MUCH_WORSE * given.mean_error[k]
            and other.root_mean_square[k] <= MUCH_WORSE * given.root_mean_square[k]
            and (few_zeros or other.kind != "log")
        ]
        if better and given.growth[k] > DOUBLED:
            kinds[j] = min(better, key=lambda one: abs(one.growth[k])).kind
    return kinds


@dataclass(frozen=True)
class Scale:
    """Out-of-sample errors of fits on one scale, for each target."""

    kind: str
    growth: Array  # with the size of the target, on that scale
    mean_error: Array  # absolute, in the units of y
    root_mean_square: Array


def is_skewed(column: Array, w: Array) -> bool:
    """Whether a target without negative values has the longer tail above its median."""
    known = ~np.isnan(column)
    column, w = column[known], w[known]
    if not len(column) or column.min() < 0 or not has_spread(column):
        return False
    low, middle, high = weighted_quantiles(column, [0.1, 0.5, 0.9], w)
    return bool((high - middle) - (middle - low) >= SKEWED * (high - low))


def _trial(task: RobustTask, T: Array, kind: str) -> Scale:
    transforms = TargetTransforms.fit([kind] * T.shape[1], T)
    Z = transforms.apply(T)
    scaling = Scaling.fit("robust", Z, task.w)
    scaled = np.clip(scaling.dense(Z), -FARTHEST_TARGET, FARTHEST_TARGET)
    none = np.zeros(T.shape[1], dtype=bool)
    draws = [bounded_predictions(replace(task, seed=SEED + k), scaled, none) for k in range(DRAWS)]
    predicted = np.median(draws, axis=0)
    errors = predicted - scaled
    growth = [growth_of(p, e, task.w) for p, e in zip(predicted.T, errors.T, strict=True)]
    off = np.abs(transforms.undo(scaling.undo(predicted)) - T)
    off[np.isnan(off)] = 0.0  # the same cells on every scale
    return Scale(kind, np.array(growth), task.w @ off, np.sqrt(task.w @ off**2))


def growth_of(predicted: Array, errors: Array, w: Array) -> float:
    """Return the log ratio of the median errors where predictions are large and small."""
    known = ~np.isnan(errors)
    predicted, sizes, w = predicted[known], np.maximum(np.abs(errors[known]), LEAST_ERROR), w[known]
    ends = weighted_quantiles(predicted, list(np.arange(1, GROUPS) / GROUPS), w)
    group = np.searchsorted(ends, predicted)
    medians = [
        float(np.log(weighted_quantiles(sizes[group == k], 0.5, w[group == k])))
        for k in range(GROUPS)
        if (group == k).any()
    ]
    if len(medians) < 4:
        return 0.0
    return float(np.mean(medians[-2:]) - np.mean(medians[:2]))
