r"""Cells of the inputs that the other columns contradict, after DetectDeviatingCells.

Rousseeuw and Van den Bossche, "Detecting deviating data cells", Technometrics 60 (2018). The steps
of `CellCheck` are theirs; scales are quantiles, so that rows may have weights. With :math:`z` the
columns in units of their robust spread, :math:`u` the same without the cells beyond :math:`c`, and
:math:`K_j` the columns whose correlation with column :math:`j` is at least 0.5 in absolute value,

.. math::

    \hat z_{ij} = a_j \frac{\sum_{k \in K_j} |r_{jk}|\, b_{jk} u_{ik}}
                          {\sum_{k \in K_j} |r_{jk}|},
    \qquad
    s_{ij} = \frac{|z_{ij} - \hat z_{ij}|}{\operatorname{spread}_i (z_{ij} - \hat z_{ij})},

sums over the known :math:`u_{ik}` (:math:`\hat z_{ij} = 0` where there are none). :math:`b_{jk}` is
the slope of column :math:`j` on column :math:`k`, :math:`a_j` undoes the shrinkage of the average.
On clean normal data :math:`s_{ij}^2` exceeds a quantile of the chi-square distribution with one
degree of freedom as often as the quantile says.

A wrong cell is filled in with what all right cells of its row say: its conditional mean under the
covariance of the inputs (`Filling`). Targets help to find wrong cells, but not to fill them: a
model would be fitted to its own answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask

LEAST_CORRELATION = 0.5
MOST_PARTNERS = 50  # of a column; those with the largest correlations
FEWEST_VALUES = 4  # a column with fewer different ones holds labels: neither checked nor used
RIDGE = 0.03  # of the covariance, in units of its diagonal
FARTHEST = 10.0  # spreads; cells that are right but farther count as this in the covariance


def cutoff_of(quantile: float) -> float:
    """Return the score that a share of 1 - quantile of clean normal cells exceeds."""
    return float(np.sqrt(chi2.ppf(quantile, 1)))


TRIMMED = cutoff_of(0.99)  # cells beyond it predict no others


@dataclass(frozen=True)
class CellCheck:
    """Correlations and slopes between the columns of a table."""

    scaling: Scaling
    judged: Mask  # columns that are checked and used
    weights: Array  # (p, p), column j: absolute correlations with its partners, else 0
    slopes: Array  # (p, p), column j: its slopes on its partners
    deshrinkage: Array  # (p,)
    spreads: Array  # (p,) of the residuals

    @staticmethod
    def fit(A: Array, w: Array) -> CellCheck:
        """Learn from the rows of a table (NaN: unknown) with their weights."""
        p, scaling = A.shape[1], Scaling.fit("robust", A, w)
        Z = scaling.dense(A)
        judged = np.array([_n_values(column) >= FEWEST_VALUES for column in A.T])
        U = _trimmed(Z, judged)
        weights = np.abs(_correlations(U, w))
        slopes = np.zeros((p, p))
        for j in np.flatnonzero(weights.any(axis=0)):
            partners = np.flatnonzero(weights[:, j])
            slopes[partners, j] = _slopes(U[:, j], U[:, partners], w)
        raw = CellCheck(scaling, judged, weights, slopes, np.ones(p), np.ones(p))
        predicted, deshrinkage, spreads = raw._predicted(U), np.ones(p), np.ones(p)
        for j in np.flatnonzero(weights.any(axis=0)):
            [deshrinkage[j]] = _slopes(Z[:, j], predicted[:, [j]], w)
        off = Z - predicted * deshrinkage
        if judged.any():
            spreads[judged] = Scaling.fit("robust", off[:, judged], w).scale
        return CellCheck(scaling, judged, weights, slopes, deshrinkage, spreads)

    def scores(self, A: Array) -> Array:
        """Return how far each cell is off; NaN if it is unknown, or its column is not checked."""
        Z = self.scaling.dense(A)
        predicted = self._predicted(_trimmed(Z, self.judged)) * self.deshrinkage
        return np.where(self.judged, np.abs(Z - predicted) / self.spreads, np.nan)

    def _predicted(self, U: Array) -> Array:
        total = (~np.isnan(U)).astype(float) @ self.weights
        sums = np.nan_to_num(U) @ (self.weights * self.slopes)
        return np.asarray(np.divide(sums, total, out=np.zeros_like(sums), where=total > 0))


@dataclass(frozen=True)
class Filling:
    """Mean and precision (inverse covariance) of scaled columns."""

    scaling: Scaling
    mean: Array
    precision: Array

    @staticmethod
    def fit(X: Array, wrong: Mask, w: Array, scaling: Scaling) -> Filling:
        """Learn from the cells that are not wrong; the others are filled in, and used once more."""
        Z = np.clip(scaling.dense(X), -FARTHEST, FARTHEST)
        weights = w[:, None] * ~wrong
        mean = (weights * Z).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
        filled = np.where(wrong, mean, Z)
        for _ in range(2):
            off = filled - mean
            S = (w[:, None] * off).T @ off / w.sum()
            S[np.diag_indices_from(S)] += RIDGE * np.diag(S) + 1e-6
            found = Filling(scaling, mean, np.linalg.inv(S))
            filled = found._filled(Z, wrong)
        return found

    def fill(self, X: Array, wrong: Mask) -> Array:
        """Return X with its wrong cells replaced by their conditional means given the others."""
        rows = wrong.any(axis=1)
        filled = X.copy()
        Z = np.clip(self.scaling.dense(X[rows]), -FARTHEST, FARTHEST)
        means = self.scaling.undo(self._filled(Z, wrong[rows]))
        filled[rows] = np.where(wrong[rows], means, X[rows])
        return filled

    def _filled(self, Z: Array, wrong: Mask) -> Array:
        filled, off = Z.copy(), Z - self.mean
        patterns, which = np.unique(np.packbits(wrong, axis=1), axis=0, return_inverse=True)
        for k in range(len(patterns)):
            rows = np.flatnonzero(which.ravel() == k)
            cells = wrong[rows[0]]
            if cells.any():
                Q = self.precision[cells]
                others = off[np.ix_(rows, ~cells)] @ Q[:, ~cells].T
                filled[np.ix_(rows, cells)] = (
                    self.mean[cells] - np.linalg.solve(Q[:, cells], others.T).T
                )
        return filled


@dataclass(frozen=True)
class InputCheck:
    """What is needed to check the inputs of new rows, whose targets are not known."""

    check: CellCheck
    filling: Filling
    limits: Array  # (d,); larger scores are wrong

    def of(self, X: Array) -> tuple[Array, Mask]:
        """Return inputs with their wrong cells filled in, and which these are."""
        with np.errstate(invalid="ignore"):
            wrong = np.asarray(self.check.scores(X) > self.limits)
        return self.filling.fill(X, wrong), wrong


def _n_values(column: Array) -> int:
    return len(np.unique(column[~np.isnan(column)]))


def _trimmed(Z: Array, judged: Mask) -> Array:
    """Return the cells to predict others by; NaN: none."""
    with np.errstate(invalid="ignore"):
        return np.where(judged & (np.abs(Z) <= TRIMMED), Z, np.nan)


def _correlations(U: Array, w: Array) -> Array:
    """Return correlations over rows that know both columns; column j has those of its partners."""
    known, V = (~np.isnan(U)).astype(float), np.nan_to_num(U)
    products = (w[:, None] * V).T @ V
    squares = (w[:, None] * V**2).T @ known
    with np.errstate(invalid="ignore", divide="ignore"):
        R = np.nan_to_num(products / np.sqrt(squares * squares.T))
    np.fill_diagonal(R, 0.0)
    R[np.abs(R) < LEAST_CORRELATION] = 0.0
    if len(R) > MOST_PARTNERS:
        R[np.abs(R) < -np.partition(-np.abs(R), MOST_PARTNERS - 1, axis=0)[MOST_PARTNERS - 1]] = 0.0
    return np.asarray(R)


def _slopes(y: Array, X: Array, w: Array) -> Array:
    """Return the slopes of y on each column of X, through 0, without rows far off the first."""
    both = ~np.isnan(y)[:, None] & ~np.isnan(X)
    v, X = np.nan_to_num(y)[:, None], np.nan_to_num(X)
    weights = w[:, None] * both

    def slope(weights: Array) -> Array:
        squares = (weights * X**2).sum(axis=0)
        products = (weights * X * v).sum(axis=0)
        return np.asarray(
            np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
        )

    first = slope(weights * (np.abs(v) <= TRIMMED))
    off = np.abs(v - X * first)
    usual = np.quantile(off, 0.5, axis=0, weights=weights, method="inverted_cdf") / 0.6745
    return slope(weights * (off <= TRIMMED * np.maximum(usual, 1e-12)))
