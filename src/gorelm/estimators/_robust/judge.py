"""Rows judged by predictions of fits without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._robust.task import RobustTask

# Share of the variance of the rows' mean log errors that two groups must explain to be two; a
# normal distribution cut in two has 0.64.
TWO_GROUPS = 0.75
# Few rows often form two groups by chance: the models of the search must explain, of n rows,
# TWO_GROUPS + BY_CHANCE / n.
BY_CHANCE = 2.4
OUTER_FENCE = 3.0  # Tukey's: which rows are flagged
# In spreads of the targets. For the first split into two groups, larger errors count as this; in a
# table of one group, no target with a smaller error is moved.
GROSS = 10.0
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones


@dataclass(frozen=True)
class Screened:
    """Result of the screen."""

    contaminated: bool  # whether the errors form two clear groups
    kept: Mask  # rows that stay
    judging: Mask  # targets by whose errors rows are judged
    T: Array  # to fit: as given, but for rows far beyond all others
    expected: Array  # predictions in the units of y


@dataclass(frozen=True)
class Judged:
    """All rows, judged by predictions of fits without them."""

    expected: Array  # predictions in the units of y; NaN where no fold tests
    scores: Array  # NaN where no fold tests
    threshold: float
    flagged: Mask
    kept: Mask  # rows that stay
    two_groups: bool  # whether the errors form two clear groups


def judge(task: RobustTask, screened: Screened, expected: Array) -> Judged:
    """Judge all rows by their errors, in spreads of the targets."""
    T, w = task.T, task.w
    tested = task.tested & ~np.isnan(expected).any(axis=1)
    spread = Scaling.fit("robust", screened.T[task.usable], w[task.usable]).scale
    judging = screened.judging if screened.judging.any() else slice(None)
    with np.errstate(over="ignore"):
        errors = np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    sizes = log_sizes(errors[:, judging])
    by = tested & task.usable
    threshold, explained = split_sizes(sizes[by], w[by])
    if not screened.contaminated:
        threshold = outlier_threshold(sizes[by], w[by], whisker=OUTER_FENCE)
    flagged = tested & task.doubted & (sizes > threshold)
    return Judged(
        expected=np.where(tested[:, None], expected, np.nan),
        scores=np.where(tested, np.expm1(sizes), np.nan),
        threshold=float(np.expm1(threshold)),
        flagged=flagged,
        kept=task.usable & ~flagged if screened.contaminated else screened.kept,
        two_groups=explained >= least_explained(task),
    )


def least_explained(task: RobustTask) -> float:
    """Return the share of variance that two groups of rows must explain to be two in the end.

    Of equal rows only one counts, so that a weight of 2 is the row twice.
    """
    n = int(task.usable.sum())
    if n <= task.effort.search_rows:
        X = task.rows.take(np.flatnonzero(task.usable))
        n = len(np.unique(np.column_stack([X, task.T[task.usable]]), axis=0))
    return TWO_GROUPS + BY_CHANCE / n


def log_sizes(errors: Array) -> Array:
    """Mean of log(1 + |error|) over the known targets; no single target can rule it."""
    known = ~np.isnan(errors)
    logs = np.log1p(np.abs(np.nan_to_num(errors)))
    return np.asarray(logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def split_sizes(sizes: Array, w: Array) -> tuple[float, float]:
    """Split as `split_in_two` does, first with gross errors shortened, then as they are.

    One row that is off by 1e6 is a group of its own, beside which all other wrong rows look right.
    """
    for limit in (np.log1p(GROSS), np.inf):
        threshold, explained = split_in_two(np.minimum(sizes, limit), w)
        if explained >= TWO_GROUPS:
            break
    return threshold, explained
