r"""Which cells of a stream are wrong, for `online_robust.py`: Tukey's fences for recent errors.

Errors a here are those of models that had not seen the row, absolute, and divided by
:math:`\sqrt{1 + h}`, where h is the row's leverage: noise of one size then gives errors of one
size, however much the model knew when the row came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gorelm._typing import Array, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._prepare import known_cells, patterns

_NORMAL = 0.6744897501960817  # median of the absolute values of a standard normal variable
_OUTER = 3.0  # whisker of Tukey's outer fence
_INNER = 1.5
_NAMED = 1.3  # times that fence: what is beyond is called wrong, not only left out
_CLEAR = 0.75  # share of the variance that two groups explain; a single bell has 0.64
_FEW_ROWS = 10  # say nothing about which of them is wrong
_GROSS = 100.0  # beyond, one error would be a group of its own, beside which others look right
_HUBER = 1.345
_CS = (1.0, 0.1, 0.01, 1e-3)  # times C: few rows want a larger penalty than many
_LARGEST = 1e100  # errors in units of usual ones; their squares must not overflow


@dataclass(frozen=True)
class Fences:
    """Usual sizes of errors, and the fences beyond which they are wrong."""

    scales: Array  # (m,), usual errors of the targets
    cells: Array  # (m,), in units of `scales`
    gaps: Array  # (m,), in these units: where another group of errors begins; infinite: nowhere
    row: float  # norm of a row, in these units

    @classmethod
    def of(cls, errors: Array, w: Array, smallest: Array, whisker: float = _OUTER) -> Fences:
        """Read the fences off errors (n, m), NaN where unknown, of rows of weight w.

        Each target's errors are divided by their median. The fence of a target is Tukey's outer
        one, with quartiles taken again without what lies beyond the fence of all; that of the rows
        is the one for the norms of their cells within the fences. What is beyond 1.3 times a fence
        is wrong. Cells are apart if the logarithms of 1 + errors form two groups. All of this holds
        as long as fewer than half of a target's cells are wrong.
        """
        scales = np.maximum(medians(errors, w) / _NORMAL, smallest)
        sizes = relative(errors, scales)
        cells = np.array([_fence(*_known(column, w), whisker) for column in sizes.T])
        gaps = np.maximum(cells, [_gap(*_known(column, w)) for column in sizes.T])
        if len(cells) == 1:
            return cls(scales, cells, gaps, float(cells[0]))
        right = np.where(sizes <= cells, sizes, np.nan)
        return cls(scales, cells, gaps, _fence(*_known(norms(right), w), whisker))

    def judge(self, errors: Array) -> Verdict:
        """Judge rows by their errors (n, m), NaN where unknown."""
        sizes = relative(errors, self.scales)
        with np.errstate(divide="ignore", invalid="ignore"):
            cells = np.nan_to_num(sizes / self.cells, nan=0.0)
            together = np.nan_to_num(norms(sizes) / self.row, nan=0.0)
        # Several targets may each be off less than its fence, and together more than theirs.
        alone = (cells > _NAMED).any(axis=1)
        wrong = (cells > _NAMED) | ((together > _NAMED) & ~alone)[:, None] & known_cells(errors)
        scores = np.maximum(cells.max(axis=1), together) / _NAMED
        return Verdict(scores, wrong, cells, sizes > self.gaps)


class Verdict(NamedTuple):
    """The judgement of some rows."""

    scores: Array  # (n,), a row is wrong above 1; 0 if no target is known
    wrong: Mask  # (n, m)
    cells: Array  # (n, m), errors in units of their fences; 0 where unknown
    apart: Mask  # (n, m), cells of another group


def relative(errors: Array, scales: Array) -> Array:
    """Return errors in units of the targets' usual ones."""
    return np.asarray(np.minimum(errors / scales, _LARGEST))


def norms(sizes: Array) -> Array:
    """Return the rows' norms, as if unknown cells (NaN) were like the others; NaN if all are."""
    known = ~np.isnan(sizes)
    squares = np.where(known, sizes, 0.0) ** 2
    with np.errstate(invalid="ignore"):
        mean = squares.sum(axis=1) / known.sum(axis=1)
    return np.asarray(np.sqrt(sizes.shape[1] * mean))


def _known(column: Array, w: Array) -> tuple[Array, Array]:
    known = ~np.isnan(column)
    return column[known], w[known]


def medians(A: Array, w: Array) -> Array:
    """Return the weighted median of each column, NaN left out; 0 if nothing is left.

    As `weighted_quantiles`, for all columns at once.
    """
    known = known_cells(A)
    order = np.argsort(np.where(known, A, np.inf), axis=0)
    below = np.cumsum(np.take_along_axis(np.where(known, w[:, None], 0.0), order, axis=0), axis=0)
    half = np.argmax(below >= (0.5 - 1e-12) * below[-1:], axis=0)[None]
    middle = np.take_along_axis(A, np.take_along_axis(order, half, axis=0), axis=0)[0]
    return np.where(known.any(axis=0), middle, 0.0)


def _gap(sizes: Array, w: Array) -> float:
    if w.sum() < _FEW_ROWS:
        return np.inf
    threshold, explained = split_in_two(np.log1p(np.minimum(sizes, _GROSS)), w)
    return float(np.expm1(threshold)) if explained >= _CLEAR else np.inf


def _fence(sizes: Array, w: Array, whisker: float) -> float:
    if w.sum() < _FEW_ROWS:
        return np.inf
    first = outlier_threshold(sizes, w, whisker=whisker)
    inside = sizes <= first
    return outlier_threshold(sizes[inside], w[inside], whisker=whisker)


# -- the first rows ------------------------------------------------------------------------------


class Start(NamedTuple):
    """A first judgement of rows."""

    errors: Array  # (n, m), NaN where unknown
    verdict: Verdict
    expected: Array  # (n, m), predictions of each cell without it


def judge_first(
    H: Array, T: Array, w: Array, C: float, smallest: Array, n_rounds: int = 5
) -> Start:
    r"""Judge rows by each other: by ridge regressions on all others, with a bounded loss.

    With the leave-one-out predictions P of :math:`T^*`, by the ridge with penalty 1/C,

    .. math:: T^* \leftarrow P + \psi(T - P)

    where :math:`\psi` limits errors to 1.345 usual ones (Huber). When this has settled, cells
    beyond Tukey's inner fences for the errors T - P are left out, all are judged again by the ridge
    regressions on the others, and so on, until the same cells are left out. (The outer fences would
    miss too much while the model is poor; cells left out in vain are predicted all the same.)

    Parameters
    ----------
    H, T, w : arrays (n, L), (n, m), (n,)
        Hidden outputs, targets (NaN: unknown), and weights; a weight of 2 is the row twice.
    C : float
        Of the ridge.
    smallest : array (m,)
        Errors below are rounding.
    n_rounds : int
        Most rounds of leaving out.
    """
    H = np.asarray(H, dtype=float)
    omega = np.sqrt(w)
    H = H * omega[:, None]
    K = H @ H.T
    known = known_cells(T)
    trials = [(C * part, *_bounded(K, T, w, C * part, smallest)) for part in _CS]
    C, _, errors, expected = min(trials, key=lambda trial: trial[1])
    verdict = Fences.of(np.abs(errors), w, smallest, _INNER).judge(np.abs(errors))
    for _ in range(n_rounds):
        right = known & (verdict.cells <= 1.0)
        for rows, columns in patterns(right, T.shape[1]):
            own = np.arange(len(T))[rows]
            others = np.setdiff1d(np.arange(len(T)), own)
            ridge = _Ridge(K[rows][:, rows], w[rows], C)
            at, there = np.ix_(own, columns), np.ix_(others, columns)
            errors[at], expected[at] = ridge.left_out(T[at])
            errors[there], expected[there] = ridge.new(
                K[others][:, own], K[others, others], w[others], T[at], T[there]
            )
        before = verdict
        verdict = Fences.of(np.abs(errors), w, smallest, _INNER).judge(np.abs(errors))
        if ((before.cells > 1.0) == (verdict.cells > 1.0)).all():
            break
    fences = Fences.of(np.abs(errors), w, smallest)
    return Start(np.abs(errors), fences.judge(np.abs(errors)), expected)


def _bounded(K: Array, T: Array, w: Array, C: float, smallest: Array) -> tuple[float, Array, Array]:
    """Return the mean norm of the errors with a bounded loss, the errors, and predictions."""
    errors, expected = np.full(T.shape, np.nan), np.zeros(T.shape)
    for rows, columns in patterns(known_cells(T), T.shape[1]):
        at = np.ix_(np.arange(len(T))[rows], columns)
        ridge = _Ridge(K[rows][:, rows], w[rows], C)
        errors[at], expected[at] = ridge.bounded(T[at], smallest[columns])
    sizes = norms(np.minimum(np.abs(T - expected), _LARGEST))
    return float(np.average(sizes[~np.isnan(sizes)], weights=w[~np.isnan(sizes)])), errors, expected


class _Ridge:
    """The ridge of few rows: K = HH', both times the square roots of the weights."""

    def __init__(self, K: Array, w: Array, C: float) -> None:
        self._omega = np.sqrt(w)[:, None]
        self._C = C
        self._inverse = np.linalg.inv(K + np.eye(len(K)) / C)
        # 1 - h for the row's weight; a row of weight 2 is left out once.
        slack = np.diag(self._inverse) / C
        share = np.minimum(1.0, 1.0 / w)
        self._slack = np.where(share == 1.0, slack, 1.0 - share * (1.0 - slack))[:, None]
        np.maximum(self._slack, np.finfo(float).eps, out=self._slack)

    def without(self, T: Array) -> Array:
        """Return leave-one-out predictions."""
        residuals = self._inverse @ (T * self._omega) / (self._C * self._omega)
        return np.asarray(T - residuals / self._slack)

    def left_out(self, T: Array) -> tuple[Array, Array]:
        """Return errors and predictions of the rows, each left out."""
        expected = self.without(T)
        return (T - expected) * np.sqrt(self._slack), expected

    def new(self, K: Array, own: Array, w: Array, T: Array, T_new: Array) -> tuple[Array, Array]:
        """Return errors and predictions of other rows, by the regression on all of these."""
        omega = np.sqrt(w)[:, None]
        expected = K @ (self._inverse @ (T * self._omega)) / omega
        explained = np.einsum("ij,jk,ik->i", K, self._inverse, K, optimize=True)
        leverage = self._C * np.maximum(own - explained, 0.0) / w
        return (T_new - expected) / np.sqrt(1.0 + leverage)[:, None], expected

    def bounded(self, T: Array, smallest: Array) -> tuple[Array, Array]:
        """Return `left_out` of targets that are limited around their predictions."""
        w = self._omega[:, 0] ** 2
        expected = np.tile(medians(T, w), (len(T), 1))
        limited, unit = T, np.ones((len(T), 1))
        for _ in range(30):
            scales = np.maximum(medians(np.abs(T - expected) * unit, w) / _NORMAL, smallest)
            limit = _HUBER * scales / unit
            before, limited = limited, expected + np.clip(T - expected, -limit, limit)
            if (np.abs(limited - before) <= 1e-2 * limit).all():
                break
            expected, unit = self.without(limited), np.sqrt(self._slack)
        return (T - expected) * unit, expected
