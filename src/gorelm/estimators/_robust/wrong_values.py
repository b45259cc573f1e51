r"""How likely a cell is wrong, given its error, its value, and what wrong values look like.

The cells of a target are a mixture. With probability :math:`1 - \pi_j` a cell is right, and its
error :math:`e_{ij}` has Student's density :math:`f`, with two degrees of freedom and the scale
:math:`s_{ij}` that is usual there; with probability :math:`\pi_j` it is wrong, and its *value*
:math:`t_{ij}` has a density :math:`g_j`. The probability that it is wrong is then

.. math:: r_{ij} = \frac{\pi_j\, g_j(t_{ij})}
    {\pi_j\, g_j(t_{ij}) + (1 - \pi_j)\, f(e_{ij} / s_{ij}) / s_{ij}}.

:math:`g_j` is a kernel density of the target's values with the weights :math:`r_{ij}`: a value
where most are wrong needs a smaller error to be doubted than one among right values. Expectation
maximisation finds both. Half of a density, and of a share :math:`\pi_j`, is the target's own, half
that of all targets, since few wrong values of one target tell little. Values and errors are in
spreads of their target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.special import gammaln, ndtri, stdtrit

from gorelm._features.scaling import weighted_quantiles
from gorelm._typing import Array, Indices, Mask

FARTHEST_VALUE = 8.0  # spreads from the median; values farther off count as this
BIN = 0.05  # spreads: width of the bins that densities are computed on
BANDWIDTH = 0.65  # spreads, of the density of one value; it shrinks with the fifth root of more
POOLED = 0.5  # weight of all targets in the density of wrong values
OF_ALL = 0.03  # weight of all values, right ones included: not all wrong ones are known
LEAST_WRONG, MOST_WRONG = 1e-3, 0.5  # share of the cells
LEAST_DENSITY = 1e-6  # of a value that no other wrong row has
DEGREES = 2.0  # of freedom, of the errors of right rows; steps in which their scatter is found
SCATTER_STEPS = 10
MANY_TARGETS = 200  # beyond which errors are taken for independent
STEPS, STEADY = 15, 1e-3  # at most; largest change of a probability at which they end
USUAL_MEDIAN = float(ndtri(0.75))  # of scores, which have the unit of a normal distribution
STUDENT_MEDIAN = float(stdtrit(2, 0.75))  # of absolute errors with density `_student`


@dataclass(frozen=True)
class DoubtedCells:
    """Cells (n, m) of targets some of whose cells are wrong."""

    values: Array  # NaN: unknown
    scores: Array  # errors, in usual ones, or their sizes; NaN: unknown, or not tested
    usual: Array  # error
    off: Mask  # by a first guess

    def of_targets(self, targets: Mask | slice) -> DoubtedCells:
        """Return the cells of some targets."""
        of = targets
        return DoubtedCells(
            self.values[:, of], self.scores[:, of], self.usual[:, of], self.off[:, of]
        )


@dataclass(frozen=True)
class WrongValues:
    """What the wrong values of targets look like, and how many there are."""

    centre: Array  # (m,)
    scale: Array  # (m,): of the errors of right cells, in usual ones
    share: Array  # (m,): of wrong cells
    density: Array  # (m, bins): of the values of wrong cells
    kernel: Array  # (m,): what one wrong cell of weight 1 adds to the density at its own value
    pooled_kernel: float  # what it adds to those of the other targets, at the same value
    pooled_width: float  # deviation of that

    @classmethod
    def learn(cls, cells: DoubtedCells, w: Array) -> WrongValues:
        """Learn from the cells of rows that have a weight."""
        known = ~np.isnan(cells.scores) & (w > 0)[:, None]
        doubt = (cells.off & known).astype(float)
        found = cls._given(doubt, cells, np.where(known, w[:, None], 0.0))
        for _ in range(STEPS):
            before, doubt = doubt, np.where(known, found.doubt(cells, w), 0.0)
            found = cls._given(doubt, cells, np.where(known, w[:, None], 0.0))
            if np.abs(doubt - before).max(initial=0.0) < STEADY:
                break
        return found

    @classmethod
    def of_rows(cls, cells: DoubtedCells, w: Array) -> WrongValues:
        """Learn from rows that have a weight; the cells of wrong ones are off."""
        known = ~np.isnan(cells.scores)
        return cls._given(cells.off.astype(float), cells, np.where(known, w[:, None], 0.0))

    @classmethod
    def _given(cls, doubt: Array, cells: DoubtedCells, weights: Array) -> WrongValues:
        """Return it, given how likely each cell is wrong."""
        centre = _medians(cells.values, weights)
        bins = _bins(cells.values - centre)
        wrong, every = _counts(bins, weights * doubt), _counts(bins, weights)
        own, of_own, _ = _smooth(wrong)
        pooled, of_pooled, (width,) = _smooth(wrong.sum(axis=0, keepdims=True))
        shares = wrong.sum(axis=1) / np.maximum(every.sum(axis=1), 1e-300)
        return cls(
            centre,
            np.maximum(
                _medians(np.abs(cells.scores), weights * (1.0 - doubt)) / USUAL_MEDIAN, 1e-12
            ),
            np.clip((shares + shares.mean()) / 2.0, LEAST_WRONG, MOST_WRONG),
            (1.0 - OF_ALL) * _mix(own, pooled) + OF_ALL * _smooth(every)[0],
            (1.0 - OF_ALL) * _mix(of_own, of_pooled),
            float((1.0 - OF_ALL) * POOLED * of_pooled[0]),
            float(width),
        )

    def doubt(self, cells: DoubtedCells, w: Array) -> Array:
        """Return how likely each cell (n, m) is wrong; NaN where its score is.

        `w` are the weights with which cells of the rows were learnt from, as so many repeats: what
        one of them adds to the density of wrong values is taken away, else its error would count
        twice.
        """
        wrong, right = self._densities(cells)
        itself = np.minimum(w, 1.0)[:, None] * self._posterior(wrong, right) * self.kernel
        return self._posterior(np.maximum(wrong - itself, 0.0), right)

    def log_odds(self, cells: DoubtedCells, w: Array) -> Array:
        """Return log(density of a value in wrong cells / density of its error in right cells).

        (n, m); 0 where the score is NaN. The sum over a row tells wrong rows from right ones that
        are hard to predict: the errors of these are as large, but they have other values.

        `w` as for `doubt`, of rows all of whose cells were taken for wrong: what they add to the
        densities is taken away.
        """
        wrong, right = self._densities(cells)
        known = ~np.isnan(cells.scores)
        values = np.clip(cells.values - self.centre, -FARTHEST_VALUE, FARTHEST_VALUE)
        beside = np.full(values.shape, -1.0)  # kernels of the row's other cells
        for of_other, is_known in zip(values.T, known.T, strict=True):
            kernels = np.exp(-0.5 * ((values - of_other[:, None]) / self.pooled_width) ** 2)
            beside += np.where(is_known[:, None], kernels, 0.0)
        itself = np.minimum(w, 1.0)[:, None] * (self.kernel + self.pooled_kernel * beside)
        wrong = np.maximum(wrong - itself, LEAST_DENSITY)
        return np.where(known, np.log(wrong) - np.log(np.where(known, right, 1.0)), 0.0)

    def log_odds_of_rows(
        self, cells: DoubtedCells, odds: Array, right: RightErrors | None
    ) -> Array:
        """Return the same of whole rows, (n,), whose errors depend on each other if they are right.

        `odds` are those of their cells, `right` what the errors of right rows look like; None: as
        if they were independent.
        """
        if right is None:
            return np.asarray(odds.sum(axis=1))
        known = ~np.isnan(cells.scores)
        _, alone = self._densities(cells)
        alone = np.log(np.where(known, alone, 1.0)).sum(axis=1)
        units = np.where(known, np.log(self._unit * cells.usual), 0.0).sum(axis=1)
        together = right.log_density(cells.scores / self._unit) - units
        return np.asarray(odds.sum(axis=1) + alone - together)

    def right_errors(self, cells: DoubtedCells, w: Array) -> RightErrors | None:
        """Return what the errors of rows look like that have a weight and whose cells are right.

        None if there are none, or too many targets.
        """
        if not w.any() or not 1 < cells.scores.shape[1] <= MANY_TARGETS:
            return None
        return RightErrors.learn(cells.scores / self._unit, w)

    @property
    def _unit(self) -> Array:
        """Scale (m,) of Student's density of the errors of right cells, in usual errors."""
        return np.asarray(USUAL_MEDIAN / STUDENT_MEDIAN * self.scale)

    def _densities(self, cells: DoubtedCells) -> tuple[Array, Array]:
        """Return the densities of cells (n, m) if they are wrong, and if they are right."""
        right = _student(cells.scores / self._unit) / (self._unit * cells.usual)
        bins = _bins(cells.values - self.centre)
        return np.take_along_axis(self.density, bins.T, axis=1).T, right

    def _posterior(self, wrong: Array, right: Array) -> Array:
        wrong, right = self.share * wrong, (1.0 - self.share) * right
        return np.asarray(wrong / (wrong + right + 1e-300))


@dataclass(frozen=True)
class RightErrors:
    r"""Errors of right rows: all targets together have Student's distribution.

    .. math:: f(z) \propto |S|^{-1/2} (1 + z' S^{-1} z / 2)^{-(2 + m) / 2}

    A row that is hard to predict has large errors in all targets, and errors of related targets go
    together: they are no independent evidence that the row is wrong.
    """

    scatter: Array  # (m, m)

    @classmethod
    def learn(cls, z: Array, w: Array) -> RightErrors:
        """Learn from errors (n, m) of rows with weights, in units of each target's own."""
        known = ~np.isnan(z)
        m, total = z.shape[1], w.sum()
        shrink = m / (m + np.count_nonzero(w))
        z = np.nan_to_num(z) * (w > 0)[:, None]
        n_known = known.sum(axis=1)
        scatter = np.eye(m)
        for _ in range(SCATTER_STEPS):
            pull = w * (DEGREES + n_known) / (DEGREES + _quadratic(z, scatter))
            scatter = (z * pull[:, None]).T @ z / total
            scatter = (1.0 - shrink) * scatter + shrink * np.diag(np.diag(scatter))
            scatter.flat[:: m + 1] = np.maximum(np.diag(scatter), 1e-6)
        return cls(scatter)

    def log_density(self, z: Array) -> Array:
        """Return the logarithm of the density of the known errors of rows, (n,); NaN: unknown."""
        known = ~np.isnan(z)
        patterns, which = np.unique(known, axis=0, return_inverse=True)
        found = np.zeros(len(z))
        for k, of in enumerate(patterns):
            rows, m = which.ravel() == k, int(of.sum())
            if not m:
                continue
            scatter = self.scatter[np.ix_(of, of)]
            constant = gammaln((DEGREES + m) / 2) - gammaln(DEGREES / 2)
            constant -= m / 2 * np.log(DEGREES * np.pi) + np.linalg.slogdet(scatter)[1] / 2
            distances = _quadratic(z[np.ix_(rows, of)], scatter)
            found[rows] = constant - (DEGREES + m) / 2 * np.log1p(distances / DEGREES)
        return found


def _quadratic(z: Array, scatter: Array) -> Array:
    """Return z' S^-1 z of every row."""
    return np.asarray(np.einsum("nm,mn->n", z, np.linalg.solve(scatter, z.T)))


def _student(x: Array) -> Array:
    """Density of Student's distribution with two degrees of freedom."""
    return np.asarray((2.0 + x**2) ** -1.5)


def _mix(own: Array, pooled: Array) -> Array:
    return (1.0 - POOLED) * own + POOLED * pooled


def _counts(bins: Indices, weights: Array) -> Array:
    """Return the weight of the cells in each bin, (m, bins)."""
    n_bins = 1 + int(_bins(np.inf))
    columns = zip(bins.T, weights.T, strict=True)
    return np.array([np.bincount(b, weights=w, minlength=n_bins) for b, w in columns])


def _smooth(counts: Array) -> tuple[Array, Array, Array]:
    """Return kernel densities of values counted in bins, and one kernel's height and width."""
    totals = counts.sum(axis=1)
    widths = BANDWIDTH * np.maximum(totals, 1.0) ** -0.2
    totals = np.where(totals > 0, totals, 1.0)
    smoothed = [
        gaussian_filter1d(row, width / BIN, mode="constant")
        for row, width in zip(counts, widths, strict=True)
    ]
    heights = 1.0 / (totals * widths * np.sqrt(2.0 * np.pi))
    return np.array(smoothed) / (totals * BIN)[:, None], heights, widths


def _medians(values: Array, weights: Array) -> Array:
    columns = zip(values.T, weights.T, strict=True)
    return np.array(
        [weighted_quantiles(v[w > 0], 0.5, w[w > 0]) if w.any() else 0.0 for v, w in columns]
    )


def _bins(values: Array | float) -> Indices:
    near = np.clip(np.nan_to_num(values), -FARTHEST_VALUE, FARTHEST_VALUE)
    return np.asarray(np.rint((near + FARTHEST_VALUE) / BIN)).astype(int)
