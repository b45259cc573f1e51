"""Rows and cells judged by predictions of fits without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom
from sklearn.metrics import euclidean_distances

from gorelm._progress import doing
from gorelm._typing import Array, Indices, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._robust.cells import (
    OUTER_FENCE,
    TWO_GROUPS,
    CellRules,
    JudgedCells,
    split_sizes,
)
from gorelm.estimators._robust.task import RobustTask
from gorelm.estimators._robust.wrong_values import WrongValues

# Few rows often form two groups by chance: the models of the search must explain, of n rows,
# TWO_GROUPS + BY_CHANCE / n.
BY_CHANCE = 2.4
# Spreads of the target: in a table of one group, no cell with a smaller error is left out.
FAR = 10.0
# The same in a table with wrong rows, where wrong cells are likely, too; and on the scale of
# logarithms or roots, which was taken because errors have no long tails there, and where a value
# ten times too large is some spreads off.
FAR_OF_DIRTY = 3.0
# Share of the wrong cells in rows that are right, beside that of cells wrong independently: below,
# rows are at fault, not cells.
TOGETHER = 0.6
HEAVY = 1.5  # usual errors, beyond which the pull of a cell does not grow where tails are heavy
# The same where wrong cells form a group, some of which are not far enough off to be left out, and
# predictions are too poor to tell what wrong values look like: in thresholds beyond which they are.
NEARLY_APART = 0.5
LIKELY_WRONG = 0.5  # where wrong cells form a group: how likely those are wrong that are left out
CLEARLY_WRONG = 4.0  # log odds of a cell that is left out of a row that looks right
VALUE_STEPS = 3  # in which what wrong rows look like, and which rows are wrong, are found in turn
REGION_ROWS = 2000  # of more rows, nearest neighbours are searched in a sample
BY_CHANCE_BESIDE = 0.005  # significance level of the test whether mistakes are neighbours
JUDGED_ROWS = 65_536  # at a time
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
    expected: Array  # predictions in the units of y; none once the search has better ones
    trimmed: bool = False  # whether they are those of a trimmed loss, instead of a bounded one

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


def judge(
    task: RobustTask,
    screened: Screened,
    expected: Array,
    *,
    with_scores: bool = True,
    by_values: bool = True,
) -> Judged:
    """Judge all rows by their errors, in spreads of the targets, and all cells.

    Which cells are left out depends on their values, too, if asked for: predictions must be good
    enough to tell what wrong values look like.

    Rules are learnt from `task.learning`, and applied to some rows at a time: of many rows, only
    what is returned is held for all of them; the scores of cells only if asked for.
    """
    with doing("judge", *expected.shape):
        return _judge(task, screened, expected, with_scores, by_values)


def _judge(
    task: RobustTask, screened: Screened, expected: Array, with_scores: bool, by_values: bool
) -> Judged:
    w, judging, groups, spread = (
        task.w,
        screened.judging,
        screened.groups,
        task.robust_scaling.scale,
    )
    tested = task.tested & ~np.isnan(expected).any(axis=1)
    by = tested & task.usable
    (sample,) = np.nonzero(task.learning)
    learnt = by[sample]

    def errors_of(rows: Indices | slice) -> tuple[Array, Array]:
        """Return the errors of some rows, and their predictions, in spreads."""
        with np.errstate(over="ignore"):
            errors = np.clip(
                (expected[rows] - task.T[rows]) / spread, -FARTHEST_TARGET, FARTHEST_TARGET
            )
        errors[~tested[rows]] = np.nan
        return errors, expected[rows] / spread

    seen, seen_at = errors_of(sample)

    def rules_by(which: Mask, groups: Mask) -> CellRules:
        weights = np.where(which, w[sample], 0.0)
        local = task.T.shape[1] > 1  # with one target, rows and cells have the same scale
        return CellRules.learn(
            seen, weights, seen_at, special=screened.special, groups=groups, local=local
        )

    def flagged_like_right(
        rules: CellRules, flagged: Mask, targets: Mask | slice
    ) -> tuple[Indices, Mask]:
        """Return the flagged rows whose targets look more like those of right rows.

        And which of these targets clearly look wrong.
        """
        off = np.repeat(flagged[sample, None], seen.shape[1], axis=1)
        cells = rules.cells(seen, seen_at, off).of_targets(targets)
        wrong_rows = WrongValues.of_rows(cells, np.where(learnt, w[sample], 0.0))
        right = wrong_rows.right_errors(cells, np.where(learnt & ~flagged[sample], w[sample], 0.0))
        (doubted,) = np.nonzero(flagged)
        found: list[tuple[Indices, Mask]] = []
        for part in some_rows(len(doubted)):
            rows = doubted[part]
            errors, at = errors_of(rows)
            cells = rules.cells(errors, at, np.ones(errors.shape, dtype=bool)).of_targets(targets)
            odds = wrong_rows.log_odds(cells, w[rows] * task.learning[rows])
            of_rows = wrong_rows.log_odds_of_rows(cells, odds, right)
            like_right = (of_rows <= 0) | _mostly_right(odds, ~np.isnan(cells.scores))
            gross = np.zeros(errors[like_right].shape, dtype=bool)
            gross[:, targets] = odds[like_right] > CLEARLY_WRONG
            found.append((rows[like_right], gross))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([g for _, g in found])

    # If wrong rows were not known, cells would be off in as many rows.
    rules = rules_by(learnt, judging if screened.contaminated else groups)
    one_target, sizes = task.T.shape[1] == 1, np.empty(len(expected))
    alone = np.zeros(task.T.shape, dtype=bool)  # cells that are wrong in rows that are right
    if one_target:
        threshold = float(rules.thresholds[0] * rules.curves[0].at(np.zeros(1))[0])
        explained = float(rules.explained[0])
        mask = np.zeros(expected.shape, dtype=bool)
    else:
        rowwise = judging if judging.any() else slice(None)
        mask, others = np.empty(expected.shape, dtype=bool), np.empty(len(expected))
        for rows in some_rows(len(expected)):
            errors, at = errors_of(rows)
            mask[rows] = rules.scores(errors, at) > rules.apart
            mask[rows] &= task.doubted[rows, None]
            sizes[rows] = log_sizes(errors[:, rowwise])
            off = mask[rows] & judging
            others[rows] = log_sizes(np.where(off, np.nan, errors)[:, rowwise])
        weights = w[sample][learnt]
        threshold, explained = split_sizes(sizes[sample][learnt], weights)
        if not screened.contaminated:
            threshold = outlier_threshold(sizes[sample][learnt], weights, whisker=OUTER_FENCE)
        # A row most of whose targets are right is judged by these.
        off, known = mask & judging, ~np.isnan(task.T) & tested[:, None] & judging
        right = off.any(axis=1) & (2 * off.sum(axis=1) <= known.sum(axis=1))
        if screened.contaminated and _together(off[by], known[by], right[by]):
            # Wrong rows alone, with some targets near those expected.
            right[:], groups = False, np.zeros_like(groups)
        flagged = tested & task.doubted & (np.where(right, others, sizes) > threshold)
        flagged &= sizes > threshold
        threshold = float(np.expm1(threshold))
        if screened.contaminated:
            rules = rules_by(learnt & ~flagged[sample], groups)
            for _ in range(VALUE_STEPS if by_values and flagged.any() else 0):
                like_right, gross = flagged_like_right(rules, flagged, rowwise)
                if not len(like_right):
                    break
                flagged[like_right], alone[like_right] = False, gross
                if not flagged.any():
                    break
                rules = rules_by(learnt & ~flagged[sample], groups)
            learnt &= ~flagged[sample]
            mask &= flagged[:, None]
        else:
            mask[:] = False
    weights = np.zeros(len(expected))
    weights[sample] = np.where(learnt, w[sample], 0.0)
    wrong_values = None
    if by_values and groups.any():
        of_seen = rules.doubted(seen, seen_at, rules.scores(seen, seen_at))
        wrong_values = WrongValues.learn(of_seen, weights[sample])
    cell_scores, to_fit = np.empty(expected.shape if with_scores else (0, 0)), task.T
    heavy = (groups | screened.heavy) & (not screened.contaminated)
    wrong, clearer = np.zeros(expected.shape, dtype=bool), task.transformed | screened.contaminated
    for rows in some_rows(len(expected)):
        errors, at = errors_of(rows)
        scores = rules.scores(errors, at)
        mask[rows] |= (scores > rules.thresholds) & task.doubted[rows, None]
        if with_scores:
            cell_scores[rows] = scores
        # A right cell that is hard to predict teaches more than a wrong one that is near its
        # prediction spoils: only what is clearly apart is left out.
        far = np.abs(errors) > np.where(clearer, FAR_OF_DIRTY, FAR)
        off = (scores > rules.apart) & (groups | far)
        if wrong_values is not None:
            doubt = wrong_values.doubt(rules.doubted(errors, at, scores), weights[rows])
            off[:, groups] = doubt > LIKELY_WRONG
        wrong[rows] = (off | alone[rows]) & task.doubted[rows, None]
        if one_target:
            sizes[rows] = np.abs(errors[:, 0])
        if heavy.any():
            most = np.where(groups, np.maximum(NEARLY_APART * rules.apart, HEAVY), HEAVY)
            most = most * rules.usual(at)
            excess = errors - np.clip(errors, -most, most)
            if wrong_values is not None:
                excess[:, groups] = doubt * errors[:, groups]
            moved = heavy & (by & task.doubted)[rows, None] & ~np.isnan(excess)
            to_fit = task.T.copy() if to_fit is task.T else to_fit
            with np.errstate(over="ignore"):
                to_fit[rows] = np.where(moved, task.T[rows] + excess * spread, task.T[rows])
    if one_target:
        flagged, scores = mask[:, 0], sizes
    else:
        scores = np.expm1(sizes, out=sizes)
    kept = task.usable & ~(flagged & screened.dirty)
    for j in np.flatnonzero(wrong.any(axis=0) & ~groups):
        if in_one_region(task, wrong[:, j] & kept, kept):
            wrong[:, j] &= alone[:, j]
    wrong = _left_out(task, wrong, kept)
    if wrong.any():
        to_fit = task.T.copy() if to_fit is task.T else to_fit
        to_fit[wrong] = np.nan
    scores[~tested] = np.nan
    if not tested.all():
        expected = np.where(tested[:, None], expected, np.nan)
    return Judged(
        expected=expected,
        scores=scores,
        threshold=threshold,
        flagged=flagged,
        kept=kept,
        two_groups=bool(explained >= least_explained(task)),
        cells=JudgedCells(cell_scores, rules.thresholds, mask, rules.explained, rules),
        wrong=wrong,
        T=to_fit,
    )


def some_rows(n_rows: int) -> Iterator[slice]:
    """Yield all rows, some at a time."""
    for start in range(0, n_rows, JUDGED_ROWS):
        yield slice(start, start + JUDGED_ROWS)


def _mostly_right(odds: Array, known: Mask) -> Mask:
    """Whether at most half of a row's targets look wrong, if three or more are known.

    The value of one target may look so wrong that it outweighs all others; it is left out alone.
    """
    n_known = known.sum(axis=1)
    return np.asarray((n_known > 2) & (2 * (odds > 0).sum(axis=1) <= n_known))


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


def in_one_region(
    task: RobustTask, off: Mask, among: Mask | None = None, share: float = 0.5
) -> bool:
    """Whether the rows that are off lie beside each other in the space of the inputs.

    Mistakes do not depend on the inputs. If more than a share of those that are off have another
    one as nearest row, beyond what chance explains, the models cannot follow the targets there.

    Parameters
    ----------
    task : RobustTask
        The fit.
    off : array of bool (N,)
        Rows that are off.
    among : array of bool (N,), optional
        Rows to look for neighbours in; by default all that are usable.
    share : float, default=0.5
        How many of those that are off need a neighbour that is.
    """
    if off.sum() < 3:
        return False
    rows = np.union1d(task.sample(REGION_ROWS), np.flatnonzero(off)[:REGION_ROWS])
    rows = rows[(task.usable if among is None else among)[rows]]
    X = task.rows.take(rows)
    # A repeated row lies beside itself.
    _, first = np.unique(np.column_stack([X, task.T[rows]]), axis=0, return_index=True)
    X, off = X[first], off[rows[first]]
    if off.sum() < 3:
        return False
    places = np.flatnonzero(off)
    distances = euclidean_distances(X[places], X)
    distances[np.arange(len(places)), places] = np.inf
    beside = int(off[np.argmin(distances, axis=1)].sum())
    expected = (off.sum() - 1) / (len(off) - 1)
    by_chance = binom.sf(beside - 1, off.sum(), expected)
    most = expected + share * (1 - expected)
    return bool(beside > most * off.sum() and by_chance < BY_CHANCE_BESIDE)


def log_sizes(errors: Array) -> Array:
    """Mean of log(1 + |error|) over the known targets; no single target can rule it."""
    known = ~np.isnan(errors)
    logs = np.log1p(np.abs(np.nan_to_num(errors)))
    return np.asarray(logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
