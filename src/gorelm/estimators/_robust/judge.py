"""Rows and cells judged by predictions of fits without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom
from sklearn.metrics import euclidean_distances

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
# Spreads of the target: in a table of one group, no cell with a smaller error is left out.
FAR = 10.0
FAR_OF_DIRTY = 3.0  # the same in one where rows are wrong: there are mistakes
# Share of the wrong cells in rows that are right, beside that of cells wrong independently: below,
# rows are at fault, not cells.
TOGETHER = 0.6
HEAVY = 1.5  # usual errors, beyond which the pull of a cell does not grow where tails are heavy
FEW_ROWS = 100  # from which a model cannot learn what the other rows of a region tell
BY_CHANCE_BESIDE = 0.005  # probability of that many mistakes beside each other
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones


@dataclass(frozen=True)
class Screened:
    """Result of the screen."""

    contaminated: bool  # whether the errors of rows form two clear groups
    groups: Mask  # (m,): whether those of a target's cells do
    kept: Mask  # rows that stay
    wrong: Mask  # (n, m): cells that are left out, in rows that stay
    heavy: Mask  # (m,): targets whose errors have heavy tails
    T: Array  # to fit: NaN where wrong, brought nearer to the prediction where tails are heavy
    judging: Mask  # targets by whose errors rows are judged
    special: Mask  # targets of few values, or with one value in their middle half
    expected: Array  # predictions in the units of y

    @property
    def dirty(self) -> bool:
        """Whether rows or cells are left out."""
        return self.contaminated or bool(self.groups.any())


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
    T: Array  # to fit, as in `Screened`


def judge(task: RobustTask, screened: Screened, expected: Array) -> Judged:
    """Judge all rows by their errors, in spreads of the targets, and all cells."""
    T, w, judging, groups = task.T, task.w, screened.judging, screened.groups
    tested = task.tested & ~np.isnan(expected).any(axis=1)
    spread = task.robust_scaling.scale
    with np.errstate(over="ignore"):
        errors = np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    errors[~tested] = np.nan
    by = tested & task.usable
    learnt = by & task.learning

    def cells_by(rows: Mask, groups: Mask) -> JudgedCells:
        weights = np.where(rows, w, 0.0)
        found = judge_cells(
            errors,
            weights,
            expected / spread,
            special=screened.special,
            groups=groups,
            local=T.shape[1] > 1,  # with one target, rows and cells have the same scale
        )
        return replace(found, mask=found.mask & task.doubted[:, None])

    # If wrong rows were not known, cells would be off in as many rows.
    of_all = cells_by(learnt, judging if screened.contaminated else screened.groups)
    if T.shape[1] == 1:
        cells, scores = of_all, np.abs(errors[:, 0])
        threshold = float(of_all.thresholds[0] * of_all.usual[0, 0])
        explained = float(of_all.explained[0])
        flagged = of_all.mask[:, 0]
    else:
        rowwise = judging if judging.any() else slice(None)
        sizes = log_sizes(errors[:, rowwise])
        threshold, explained = split_sizes(sizes[learnt], w[learnt])
        if not screened.contaminated:
            threshold = outlier_threshold(sizes[learnt], w[learnt], whisker=OUTER_FENCE)
        # A row most of whose targets are right is judged by these.
        off, known = of_all.mask & judging, ~np.isnan(errors) & judging
        right = off.any(axis=1) & (2 * off.sum(axis=1) <= known.sum(axis=1))
        if screened.contaminated and _together(off[by], known[by], right[by]):
            # Wrong rows alone, with some targets near those expected.
            right[:], groups = False, np.zeros_like(groups)
        others = log_sizes(np.where(off, np.nan, errors)[:, rowwise])
        flagged = tested & task.doubted & (np.where(right, others, sizes) > threshold)
        flagged &= sizes > threshold
        scores, threshold = np.expm1(sizes), float(np.expm1(threshold))
        cells = of_all
        if screened.contaminated:
            cells = cells_by(learnt & ~flagged, groups)
            cells = replace(cells, mask=cells.mask | of_all.mask & flagged[:, None])
    kept = task.usable & ~(flagged & screened.dirty)
    gross = np.abs(errors) > (FAR_OF_DIRTY if screened.contaminated else FAR)
    wrong = _left_out(task, cells.mask & (groups | gross), kept)
    heavy = screened.heavy & (not screened.dirty)
    excess = errors - np.clip(errors, -HEAVY * cells.usual, HEAVY * cells.usual)
    moved = heavy & (by & task.doubted)[:, None] & ~np.isnan(excess)
    with np.errstate(over="ignore"):
        to_fit = np.where(moved, T + excess * spread, T)
    return Judged(
        expected=np.where(tested[:, None], expected, np.nan),
        scores=np.where(tested, scores, np.nan),
        threshold=threshold,
        flagged=flagged,
        kept=kept,
        two_groups=bool(explained >= least_explained(task)),
        cells=cells,
        wrong=wrong,
        T=np.where(wrong, np.nan, to_fit),
    )


def _together(off: Mask, known: Mask, right: Mask) -> bool:
    """Whether wrong cells are in the same rows more than if they were independent."""
    if not off.any():
        return False
    n_targets = int(np.median(known.sum(axis=1)))
    others = binom(max(n_targets - 1, 0), off.sum() / known.sum())
    independent = float(others.cdf(n_targets // 2 - 1))
    return bool(off[right].sum() < TOGETHER * independent * off.sum())


def _left_out(task: RobustTask, wrong: Mask, kept: Mask) -> Mask:
    """Return the wrong cells of rows that stay, but for targets of which none would be left."""
    wrong = wrong & kept[:, None]
    some_left = (~wrong & ~np.isnan(task.T) & kept[:, None]).any(axis=0)
    return wrong & some_left


def least_explained(task: RobustTask, n_targets: int = 1) -> float:
    """Return the share of variance that two groups must explain to be two in the end.

    For groups of cells, half of that share is the mean over so many targets.

    Of equal rows only one counts, so that a weight of 2 is the row twice.
    """
    n = int(task.usable.sum())
    if n <= task.effort.search_rows:
        X = task.rows.take(np.flatnonzero(task.usable))
        n = len(np.unique(np.column_stack([X, task.T[task.usable]]), axis=0))
    return TWO_GROUPS + BY_CHANCE / n * 2.0 / (1 + n_targets)


def in_one_region(task: RobustTask, off: Mask) -> bool:
    """Whether of few rows those that are off lie beside each other in the space of the inputs.

    Mistakes do not depend on the inputs. If most of those that are off have another one as nearest
    row, and hardly by chance, the models cannot follow the targets there. Of many rows some others
    lie in that region, too, and tell.
    """
    usable = np.flatnonzero(task.usable)
    off = off[usable]
    if len(usable) > FEW_ROWS or off.sum() < 3:
        return False
    X = task.rows.take(usable)
    distances = euclidean_distances(X)
    np.fill_diagonal(distances, np.inf)
    beside = int(off[np.argmin(distances, axis=1)][off].sum())
    expected = (off.sum() - 1) / (len(off) - 1)
    by_chance = binom.sf(beside - 1, off.sum(), expected)
    return bool(beside > (1 + expected) / 2 * off.sum() and by_chance < BY_CHANCE_BESIDE)


def log_sizes(errors: Array) -> Array:
    """Mean of log(1 + |error|) over the known targets; no single target can rule it."""
    known = ~np.isnan(errors)
    logs = np.log1p(np.abs(np.nan_to_num(errors)))
    return np.asarray(logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
