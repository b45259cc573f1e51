"""Rows and cells judged by predictions of fits without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._robust.cells import (
    OUTER_FENCE,
    TWO_GROUPS,
    JudgedCells,
    judge_cells,
    split_sizes,
)
from gorelm.estimators._robust.task import RobustTask

# Few rows often form two groups by chance: the models of the search must explain, of n rows,
# TWO_GROUPS + BY_CHANCE / n.
BY_CHANCE = 2.4
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones


@dataclass(frozen=True)
class Screened:
    """Result of the screen."""

    contaminated: bool  # whether the errors of rows form two clear groups
    groups: Mask  # (m,): whether those of a target's cells do
    kept: Mask  # rows that stay
    wrong: Mask  # (n, m): cells that are left out, in rows that stay
    judging: Mask  # targets by whose errors rows are judged
    T: Array  # as given, but for cells far beyond all others
    expected: Array  # predictions in the units of y

    @property
    def dirty(self) -> bool:
        """Whether rows or cells are left out."""
        return self.contaminated or bool(self.groups.any())

    def known(self, wrong: Mask) -> Array:
        """Return the targets to fit: without cells that are wrong."""
        return np.where(wrong, np.nan, self.T)


@dataclass(frozen=True)
class Judged:
    """All rows, judged by predictions of fits without them."""

    expected: Array  # predictions in the units of y; NaN where no fold tests
    scores: Array  # NaN where no fold tests
    threshold: float
    flagged: Mask
    kept: Mask  # rows that stay
    two_groups: bool  # whether the errors of rows form two clear groups
    cells: JudgedCells
    wrong: Mask  # (n, m): cells that are left out, in rows that stay


def judge(task: RobustTask, screened: Screened, expected: Array) -> Judged:
    """Judge all rows by their errors, in spreads of the targets, and all cells."""
    T, w = task.T, task.w
    tested = task.tested & ~np.isnan(expected).any(axis=1)
    spread = Scaling.fit("robust", screened.T[task.usable], w[task.usable]).scale
    with np.errstate(over="ignore"):
        errors = np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    errors[~tested] = np.nan
    by = tested & task.usable
    cells = judge_cells(
        errors,
        np.where(by, w, 0.0),
        expected / spread,
        special=~screened.judging,
        groups=screened.groups,
    )
    if T.shape[1] == 1:
        return _one_target(task, screened, expected, cells)
    judging = screened.judging if screened.judging.any() else slice(None)
    sizes = log_sizes(errors[:, judging])
    threshold, explained = split_sizes(sizes[by], w[by])
    if not screened.contaminated:
        threshold = outlier_threshold(sizes[by], w[by], whisker=OUTER_FENCE)
    # A row most of whose targets are right is judged by these.
    off = cells.mask & screened.judging
    known = (~np.isnan(errors) & screened.judging).sum(axis=1)
    right = (off.sum(axis=1) > 0) & (2 * off.sum(axis=1) <= known)
    sizes = np.where(right, log_sizes(np.where(off, np.nan, errors)[:, judging]), sizes)
    flagged = tested & (sizes > threshold)
    kept = task.usable & ~(flagged & screened.contaminated)
    return Judged(
        expected=np.where(tested[:, None], expected, np.nan),
        scores=np.where(tested, np.expm1(sizes), np.nan),
        threshold=float(np.expm1(threshold)),
        flagged=flagged,
        kept=kept,
        two_groups=explained >= least_explained(task),
        cells=cells,
        wrong=_left_out(task, cells.mask & screened.groups, kept),
    )


def _one_target(
    task: RobustTask, screened: Screened, expected: Array, cells: JudgedCells
) -> Judged:
    """Judge rows of one cell."""
    flagged = cells.mask[:, 0]
    return Judged(
        expected=np.where(np.isnan(cells.scores), np.nan, expected),
        scores=cells.scores[:, 0],
        threshold=float(cells.thresholds[0]),
        flagged=flagged,
        kept=task.usable & ~(flagged & screened.contaminated),
        two_groups=bool(cells.explained[0] >= least_explained(task)),
        cells=cells,
        wrong=np.zeros(cells.mask.shape, dtype=bool),
    )


def _left_out(task: RobustTask, wrong: Mask, kept: Mask) -> Mask:
    """Return the wrong cells of rows that stay, but for targets of which none would be left."""
    wrong = wrong & kept[:, None]
    some_left = (~wrong & ~np.isnan(task.T) & kept[:, None]).any(axis=0)
    return wrong & some_left


def least_explained(task: RobustTask) -> float:
    """Return the share of variance that two groups of rows must explain to be two in the end.

    Of equal rows only one counts, so that a weight of 2 is the row twice.
    """
    n = int(task.usable.sum())
    if n <= task.effort.search_rows:
        n = len(np.unique(np.column_stack([task.X, task.T])[task.usable], axis=0))
    return TWO_GROUPS + BY_CHANCE / n


def log_sizes(errors: Array) -> Array:
    """Mean of log(1 + |error|) over the known targets; no single target can rule it."""
    known = ~np.isnan(errors)
    logs = np.log1p(np.abs(np.nan_to_num(errors)))
    return np.asarray(logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
