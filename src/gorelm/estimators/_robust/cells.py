r"""Cells judged by out-of-sample errors: pure functions over arrays.

The error :math:`e_{ij}` of row i and target j is compared with the error that is *usual* for its
target at such a prediction,

.. math:: s_{ij} = \frac{\operatorname{med}_i |e_{ij}|}{0.6745}\, g_j(p_{ij}),

:math:`g_j` being a quadratic regression of log |error| on the prediction where that explains a
clear share of the errors' sizes (else 1). Of :math:`z_{ij} = e_{ij} / s_{ij}` is then taken what
the row's other errors do not explain,

.. math:: \operatorname{score}_{ij} =
    \min_\psi \frac{|z_{ij} - \sum_{k \ne j} B_{kj}\, \psi(z_{ik})|}{\sigma_j},

for the targets whose usual error that lowers (else :math:`|z_{ij}|`). :math:`\psi(z)` is z, or 0
where z is large: a wrong cell says nothing about the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._robust.wrong_values import DoubtedCells

# Share of the variance of log errors that two groups must explain to be two; a normal distribution
# cut in two has 0.64.
TWO_GROUPS = 0.75
# By how much less they may explain if more than this share of the targets has two groups: a table
# with wrong cells mostly has them in several targets.
BESIDE_OTHERS, MOST_TARGETS = 0.05, 0.5
OUTER_FENCE = 3.0  # Tukey's: which rows and cells are flagged
FARTHEST_SCORE = 100.0  # larger ones count as this
FEW_ERRORS = 4.0  # usual errors: beyond, a cell may be wrong whatever the target's spread
LEAST_VARIANCE = 0.01  # of the log scores of a group
# Where there are two groups: share of the flagged cells that may be right, if the errors of right
# cells have the tails of Student's t with so many degrees of freedom.
FALSE_DISCOVERIES, RIGHT_TAILS = 0.1, 3.0
# In spreads of the targets. For the first split into two groups, larger errors count as this.
GROSS = 10.0
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal number
# Targets of few values, or with one value in their middle half: a rare value is no mistake. Their
# usual error is the one that RARE of the cells stay below, in units of the normal distribution's.
RARE, NORMAL_RARE, RARE_FENCE = 0.98, 2.326, 5.0
MOST_CELLS = 0.9
LEAST_ERROR = 1e-3  # spreads of the target: smaller errors count as usual
DEPENDENT = 0.1  # share of the variance of log errors that the prediction must explain
CORRELATED = 0.9  # times the usual error: what other targets must lower it to
USELESS_ERROR = 2.0  # usual errors, from which on an error says nothing about other targets
MANY_TARGETS = 200  # beyond which their errors are taken one by one


@dataclass(frozen=True)
class JudgedCells:
    """Every cell, judged by predictions of fits without its row."""

    scores: Array  # (n, m), in usual errors; NaN where the cell is unknown or not tested
    thresholds: Array  # (m,)
    mask: Mask  # (n, m): beyond the threshold
    explained: Array  # (m,): share of the variance of log errors that two groups explain
    rules: CellRules  # by which they were judged


@dataclass(frozen=True)
class CellRules:
    """Rules learnt from the errors of some rows: usual sizes, and thresholds.

    By these rules the cells of any rows can be judged, some at a time.
    """

    groups: Mask  # (m,): targets whose errors form two groups
    splits: Array  # (m,): where they meet, in log(1 + |error|)
    explained: Array  # (m,): share of the variance of log errors that two groups explain
    curves: tuple[UsualError, ...]  # of every target
    others: OtherErrors | None  # of the row, if they tell something
    apart: Array  # (m,): scores beyond are clearly those of wrong cells
    thresholds: Array  # (m,): scores beyond are more likely those of wrong cells than of right ones

    @classmethod
    def learn(
        cls,
        errors: Array,
        w: Array,
        expected: Array,
        *,
        special: Mask,
        groups: Mask | None = None,
        local: bool = True,
    ) -> CellRules:
        """Learn from the rows that have a weight.

        Parameters
        ----------
        errors : array (n, m)
            Target less prediction, in spreads of the target; NaN: unknown, or not tested.
        w : array (n,)
            Weights; nothing is learnt from rows of weight 0.
        expected : array (n, m)
            Predictions, in the same units.
        special : array of bool (m,)
            Targets of few values, or with one value in their middle half.
        groups : array of bool (m,), optional
            Targets whose errors form two groups; by default those of which two groups explain at
            least `TWO_GROUPS`.
        local : bool, default=True
            Whether the usual error may depend on the prediction.
        """
        splits, explained = split_cells(errors, w, ~special)
        groups = explained >= TWO_GROUPS if groups is None else groups & ~special
        off = (np.log1p(np.abs(errors)) > splits) & groups
        curves = usual_errors(errors, w, expected if local else None, special=special, off=off)
        usual = _at(curves, expected)
        others = OtherErrors.learn(errors / usual, w, off)
        scores = _scores(errors / usual, off, others)
        meet = np.where(groups, np.expm1(splits) / np.median(usual, axis=0), np.inf)
        apart = np.array(
            [
                _threshold(column, w, split=split, special=is_special)
                for column, split, is_special in zip(scores.T, meet, special, strict=True)
            ]
        )
        thresholds = apart
        if errors.shape[1] > 1:  # with one target, rows are flagged that are left out
            each = zip(scores.T, apart, groups, strict=True)
            thresholds = np.array(
                [discovery_threshold(z, w, t) if two else t for z, t, two in each]
            )
        return cls(groups, splits, explained, curves, others, apart, thresholds)

    def usual(self, expected: Array) -> Array:
        """Return the error that is usual for each target at each prediction, (n, m)."""
        return _at(self.curves, expected)

    def scores(self, errors: Array, expected: Array) -> Array:
        """Return the scores of cells (n, m), of their errors and of the predictions."""
        off = (np.log1p(np.abs(errors)) > self.splits) & self.groups
        return _scores(errors / self.usual(expected), off, self.others)

    def cells(self, errors: Array, expected: Array, off: Mask) -> DoubtedCells:
        """Return all cells, with errors as they are: nothing is explained by the row's others."""
        usual = self.usual(expected)
        return DoubtedCells(expected - errors, errors / usual, usual, off)

    def doubted(self, errors: Array, expected: Array, scores: Array) -> DoubtedCells:
        """Return the cells of targets whose errors form two groups."""
        usual = self.usual(expected)
        if self.others is not None:
            usual = usual / self.others.lowered_by
        off = np.log1p(np.abs(errors)) > self.splits
        return DoubtedCells(expected - errors, scores, usual, off).of_targets(self.groups)


def _scores(z: Array, off: Mask, others: OtherErrors | None) -> Array:
    return np.abs(z if others is None else others.taken_from(z, off))


def split_cells(errors: Array, w: Array, judging: Mask) -> tuple[Array, Array]:
    """Split the log(1 + |error|) of each target's cells in two.

    Returns the thresholds, and the mean of what the groups of the target and of all targets
    explain: a table with wrong cells mostly has them in several targets, and one of many targets
    looks so by chance.
    """
    thresholds, explained = np.full(errors.shape[1], np.inf), np.zeros(errors.shape[1])
    for j in np.flatnonzero(judging):
        by = (w > 0) & ~np.isnan(errors[:, j])
        if by.any():
            # A few cells that are off by 1e6 are no group.
            sizes = np.minimum(np.log1p(np.abs(errors[by, j])), np.log1p(GROSS))
            thresholds[j], explained[j] = split_in_two(sizes, w[by])
    if judging.any():
        explained[judging] = (explained[judging] + explained[judging].mean()) / 2.0
    return thresholds, explained


def two_groups(explained: Array, least: float = TWO_GROUPS) -> Mask:
    """Return the targets whose errors form two groups, by the share of variance these explain."""
    if np.mean(explained >= least) > MOST_TARGETS:
        least -= BESIDE_OTHERS
    return explained >= least


def _threshold(scores: Array, w: Array, *, split: float, special: bool) -> float:
    """Return the score beyond which a cell is clearly wrong.

    `split` is infinite if there is one group.
    """
    by = (w > 0) & ~np.isnan(scores)
    if special or not by.any():
        return RARE_FENCE
    sizes = np.log1p(np.minimum(scores[by], FARTHEST_SCORE))
    if np.isfinite(split):
        return float(max(np.expm1(least_error_split(sizes, w[by])), min(split, FEW_ERRORS)))
    return float(np.expm1(outlier_threshold(sizes, w[by], whisker=OUTER_FENCE)))


def least_error_split(sizes: Array, w: Array) -> float:
    r"""Return where two groups meet that differ in their spread and in their number.

    The threshold minimises :math:`\sum_k p_k \log (\sigma_k / p_k)` over the shares and deviations
    of both groups (Kittler's rule: where two normal distributions fitted to them cross) between the
    means of the groups of `split_in_two`.
    """
    split, _ = split_in_two(sizes, w)
    if not np.isfinite(split):
        return split
    order = np.argsort(sizes, kind="stable")
    x, weights = sizes[order], w[order]
    low, high = (np.average(x[part], weights=weights[part]) for part in (x <= split, x > split))
    total = weights.sum()
    cost = np.zeros(len(x) - 1)
    for values, share in ((x, weights), (x[::-1], weights[::-1])):
        n, mean = np.cumsum(share), np.cumsum(share * values)
        square = np.cumsum(share * values**2)
        variance = np.maximum(square / n - (mean / n) ** 2, LEAST_VARIANCE)
        terms = (n / total * (np.log(variance) / 2 - np.log(n / total)))[:-1]
        cost += terms if values is x else terms[::-1]
    middle = (x[1:] + x[:-1]) / 2
    half = np.cumsum(weights)[:-1] >= total / 2
    allowed = half & (x[1:] > x[:-1]) & (middle >= low) & (middle <= high)
    if not allowed.any():
        return split
    return float(middle[np.argmin(np.where(allowed, cost, np.inf))])


def discovery_threshold(scores: Array, w: Array, apart: float) -> float:
    r"""Return the lowest threshold, at most `apart`, beyond which few cells are right.

    With many wrong cells, one that is a little off is more likely wrong than right; the threshold
    of `least_error_split` is too high for it, since it takes the groups for two that end there.
    If the errors of right cells have the distribution of a variable :math:`V`, then beyond a
    threshold :math:`t` there are

    .. math:: n_0 \, P(|V| > t / s)

    right cells, where :math:`n_0` scores, of median :math:`s \operatorname{med} |V|`, are below
    `apart`. Of those beyond, at most `FALSE_DISCOVERIES` may be right if V has Student's
    distribution with few degrees of freedom. Of those between the threshold and `apart`, at most
    half may be, and not by chance, if V is normal: else there are none but right ones.
    """
    by = (w > 0) & ~np.isnan(scores)
    order = np.argsort(scores[by], kind="stable")
    z, weights = scores[by][order], w[by][order]
    below = z <= apart
    if not below.any():
        return apart
    median = max(masked_quantile(z[below], weights[below], 0.5), 1e-12)
    n_right, n_apart, z = weights[below].sum(), weights[~below].sum(), z[below]
    n_beyond = np.cumsum(weights[::-1])[::-1][below]  # each score itself included

    def n_normal(beyond: Array | float) -> Array:
        return np.asarray(2.0 * n_right * ndtr(-beyond * NORMAL_MEDIAN / median))

    n_false = 2.0 * n_right * stdtr(RIGHT_TAILS, -z * stdtrit(RIGHT_TAILS, 0.75) / median)
    many = n_false > FALSE_DISCOVERIES * n_beyond
    lowest = int(np.flatnonzero(many)[-1]) + 1 if many.any() else 0
    expected = n_normal(z) - n_normal(apart)
    between = n_beyond - n_apart
    surely = between - 2.0 * np.sqrt(between)  # two deviations of their number fewer
    wrong = np.flatnonzero(expected[lowest:] <= surely[lowest:] / 2.0)
    if not len(wrong):
        return apart
    first = lowest + int(wrong[0])
    return float(z[first - 1] if first else z[0] / 2.0)


def has_spread(column: Array) -> bool:
    """Whether a target has more than three values, and more than one in its middle half."""
    known = column[~np.isnan(column)]
    low, high = np.quantile(known, [0.25, 0.75])
    return bool(high > low) and len(np.unique(known)) > 3


def has_few_values(column: Array, w: Array) -> bool:
    """Whether the ten most frequent values are nearly all: counts, classes, levels."""
    known = ~np.isnan(column) & (w > 0)
    _, value = np.unique(column[known], return_inverse=True)
    weights = np.sort(np.bincount(value, weights=w[known]))
    return bool(weights[-10:].sum() >= MOST_CELLS * weights.sum())


def split_sizes(sizes: Array, w: Array) -> tuple[float, float]:
    """Split as `split_in_two` does, first with gross errors shortened, then as they are.

    One row that is off by 1e6 is a group of its own, beside which all other wrong rows look right.
    """
    for limit in (np.log1p(GROSS), np.inf):
        threshold, explained = split_in_two(np.minimum(sizes, limit), w)
        if explained >= TWO_GROUPS:
            break
    return threshold, explained


@dataclass(frozen=True)
class UsualError:
    """The error that is usual for a target, as a function of its prediction."""

    typical: float
    shape: ErrorShape | None = None  # None: the same everywhere

    def at(self, expected: Array) -> Array:
        """Return it at each prediction."""
        if self.shape is None:
            return np.full(len(expected), max(self.typical, LEAST_ERROR))
        return np.asarray(np.maximum(self.typical * self.shape.at(expected), LEAST_ERROR))


def _at(curves: Sequence[UsualError], expected: Array) -> Array:
    return np.column_stack([curve.at(x) for curve, x in zip(curves, expected.T, strict=True)])


def usual_errors(
    errors: Array, w: Array, expected: Array | None, *, special: Mask, off: Mask
) -> tuple[UsualError, ...]:
    """Return the error that is usual for each target, by default the same at every prediction.

    `off` are cells that are known to be wrong; nothing is learnt from them.
    """
    curves = []
    for j, column in enumerate(np.abs(errors).T):
        by = (w > 0) & ~np.isnan(column) & ~off[:, j]
        if not by.any():
            curves.append(UsualError(1.0))
            continue
        level, normal = (RARE, NORMAL_RARE) if special[j] else (0.5, NORMAL_MEDIAN)
        if special[j]:  # gross errors are no rare values
            near = by & (column <= GROSS)
            by = near if near.any() else by
        typical = max(masked_quantile(column[by], w[by], level) / normal, LEAST_ERROR)
        shape = None
        if expected is not None and not special[j] and by.sum() > 20:
            shape = ErrorShape.learn(column[by], w[by], expected[by, j], typical)
            sizes = column[by] if shape is None else column[by] / shape.at(expected[by, j])
            typical = max(masked_quantile(sizes, w[by], level) / normal, LEAST_ERROR)
        curves.append(UsualError(typical, shape))
    return tuple(curves)


def masked_quantile(values: Array, w: Array, level: float) -> float:
    """Return the weighted quantile by the inverted distribution function."""
    return float(np.quantile(values, level, method="inverted_cdf", weights=w))


@dataclass(frozen=True)
class ErrorShape:
    """How many times the typical error is usual at each prediction."""

    centre: Scaling
    ends: tuple[float, float]  # of the predictions that were seen, on the scale of the regression
    coef: Array  # of 1, u and u^2
    mean: float

    @classmethod
    def learn(cls, sizes: Array, w: Array, expected: Array, typical: float) -> ErrorShape | None:
        """Learn it; None if the prediction does not explain enough of the errors' sizes."""
        centre = Scaling.fit("robust", expected[:, None], w)
        u = _log_like(centre, expected)
        # The logarithm of a tiny error is no large deviation; that of a wrong one must not be.
        logs = np.log(np.clip(sizes / typical, 0.1, 6.0))
        root, basis = np.sqrt(w), _quadratic(u)
        coef = np.linalg.lstsq(root[:, None] * basis, root * logs)[0]
        fitted, mean = basis @ coef, float(np.average(logs, weights=w))
        variance = np.average((logs - mean) ** 2, weights=w)
        explained = np.average((fitted - mean) ** 2, weights=w)
        if not explained > DEPENDENT * variance:
            return None
        return cls(centre, (float(u.min()), float(u.max())), coef, mean)

    def at(self, expected: Array) -> Array:
        """Return it at some predictions."""
        u = np.clip(_log_like(self.centre, expected), *self.ends)
        return np.asarray(np.exp(_quadratic(u) @ self.coef - self.mean))


def _log_like(centre: Scaling, expected: Array) -> Array:
    return np.asarray(np.arcsinh(centre.dense(np.nan_to_num(expected)[:, None]))[:, 0])


def _quadratic(u: Array) -> Array:
    return np.column_stack([np.ones_like(u), u, u**2])


@dataclass(frozen=True)
class OtherErrors:
    """Regressions of each error of a row on the row's other errors, in usual errors."""

    deviation: Array  # (m,)
    B: Array  # (m, m): regressions of each on the others
    ratio: Array  # (m,): usual errors before and after; NaN where others do not lower them

    @classmethod
    def learn(cls, z: Array, w: Array, off: Mask) -> OtherErrors | None:
        """Learn from errors (n, m) of rows with weights, without cells that are off."""
        n_targets = z.shape[1]
        if not 1 < n_targets <= MANY_TARGETS:
            return None
        useful = _useful(z, off)
        C = (useful * w[:, None]).T @ useful / w.sum()
        deviation = np.sqrt(np.maximum(np.diag(C), 1e-12))
        correlations = C / np.outer(deviation, deviation)
        # Shrunk, so that chance correlations of few rows with many targets do not add up.
        shrink = n_targets / (n_targets + (w > 0).sum())
        precision = np.linalg.inv((1.0 - shrink) * correlations + shrink * np.eye(n_targets))
        B = -precision / np.diag(precision)
        np.fill_diagonal(B, 0.0)
        found = cls(deviation, B, np.full(n_targets, np.nan))
        left = found._left(z, useful)
        for j in range(n_targets):
            by = (w > 0) & ~np.isnan(z[:, j]) & ~off[:, j]
            if not by.any():
                continue
            before = masked_quantile(np.abs(z[by, j]), w[by], 0.5)
            after = masked_quantile(np.abs(left[by, j]), w[by], 0.5)
            if 0 < after < CORRELATED * before:
                found.ratio[j] = before / after
        return found

    @property
    def lowered_by(self) -> Array:
        """Times by which the others lower the usual error of each target (m,)."""
        return np.nan_to_num(self.ratio, nan=1.0)

    def _left(self, z: Array, useful: Array) -> Array:
        # An error that is large says nothing if it is that of a wrong cell, and much if all errors
        # of the row are large: a cell is off if it is so either way.
        given = [
            z - (others / self.deviation) @ self.B * self.deviation
            for others in (useful, np.nan_to_num(z))
        ]
        return np.where(np.abs(given[0]) <= np.abs(given[1]), *given)

    def taken_from(self, z: Array, off: Mask) -> Array:
        """Return errors less what the others explain, in units of what is usual then."""
        lowered = ~np.isnan(self.ratio)
        if not lowered.any():
            return z
        return np.where(lowered, self._left(z, _useful(z, off)) * self.ratio, z)


def _useful(z: Array, off: Mask) -> Array:
    return np.where(off | ~(np.abs(z) <= USELESS_ERROR), 0.0, z)
