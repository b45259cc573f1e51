"""Search: hidden layers over paths of penalties, each fitted and tested on every fold.

The engine of the `*RegressorCV` estimators, for every loss: they declare `Candidate`s, and pass
the function that scores predictions. The unit of work is one candidate on one fold, with all its
penalties. (`RobustELMRegressor` compares ridge regressions by leave-one-out: `_robust/layers.py`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from gorelm._processes import watched
from gorelm._solver.prepared import Prepared
from gorelm._solver.problem import Problem
from gorelm._solver.threads import one_blas_thread
from gorelm._typing import Array, Indices, Inputs, Mask
from gorelm.estimators._base import IterativeELM
from gorelm.estimators._elsewhere import CheckedTable
from gorelm.estimators._prepare import Design, patterns
from gorelm.path import solve_path
from gorelm.selection import Fold, track

__all__ = [
    "Candidate",
    "FoldPrediction",
    "SearchTable",
    "out_of_fold",
    "require_known_targets",
    "sampled",
    "thinned",
]

Result = TypeVar("Result")


@dataclass(frozen=True)
class SearchTable:
    """A table, its weights, and the rows that may be fitted."""

    X: Inputs
    T: Array  # NaN: unknown
    w: Array
    kept: Mask

    @classmethod
    def of(cls, given: CheckedTable, usable: Mask, rows: Indices | None) -> SearchTable:
        """Return some rows (None: all) in memory, their weights such as to stand for all rows.

        A weight of 2 is the row twice: so a penalty is as strong on the sample as on all rows.
        """
        if rows is None:
            return cls(given.whole(), given.T, given.w, usable)
        w = given.w[rows] * (given.w[usable].sum() / given.w[rows].sum())
        return cls(given.take(rows), given.T[rows], w, usable[rows])


def sampled(usable: Mask, most: int | None, seed: int) -> Indices | None:
    """Return up to `most` usable rows at random, in increasing order; None: all rows, no sample."""
    (rows,) = np.nonzero(usable)
    if most is None or len(rows) <= most:
        return None
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def thinned(folds: Sequence[Fold], rows: Indices, n_rows: int) -> list[Fold]:
    """Return the folds of some of the rows, numbered among them, but for those without any."""
    place = np.full(n_rows, -1)
    place[rows] = np.arange(len(rows))
    parts = [(place[fold.train], place[fold.test]) for fold in folds]
    found = [Fold(train[train >= 0], test[test >= 0]) for train, test in parts]
    found = [fold for fold in found if len(fold.train) and len(fold.test)]
    if not found:
        raise ValueError("no fold of cv has rows among those that are searched: raise search_rows")
    return found


@dataclass(frozen=True)
class Candidate:
    """A hidden layer and a loss, with the penalties to try: every delta, l1_ratio and lam."""

    model: IterativeELM  # not fitted; gives the layer, the scalings, the loss and the tolerance
    lams: Array  # decreasing
    l1_ratios: Array
    deltas: Array

    def penalties(self) -> list[tuple[float, float, float]]:
        """Return (delta, l1_ratio, lam) of every point of the grid, lam fastest."""
        return list(product(self.deltas.tolist(), self.l1_ratios.tolist(), self.lams.tolist()))

    def problem(self, delta: float = 0.0) -> Problem:
        """Return the problem with penalties of weight 1."""
        declared = self.model.problem()
        tau = np.ones(2)  # the solver takes a batch for a whole path
        return Problem(declared.loss, tau, 1.0, 1.0, delta, declared.grouped)

    def solve(self, H: Array, design: Design) -> Array:
        """Return the output weights at every penalty, shape (L, penalties, m)."""
        closed_form = self.problem().loss == "squared" and not self.l1_ratios.any()
        # Ridges treat targets separately; with unknown cells they would take many iterations.
        known, apart = (None, design.observed) if closed_form else (design.observed, None)
        settings, n_targets = self.model._settings(), design.T.shape[1]
        coefs = np.empty((H.shape[1], len(self.penalties()), n_targets))
        for rows, targets in patterns(apart, n_targets):
            omega = None if design.omega is None else design.omega[rows]
            T = np.take(design.T[rows], targets, axis=1)
            prepared = Prepared(H[rows], T, self.problem(), omega, known, tol=self.model.tol)
            paths = (
                solve_path(prepared, self.problem(delta), self.lams, self.l1_ratios, settings)
                for delta in self.deltas.tolist()
            )
            found = np.stack([path.coefs for path in paths])
            coefs[..., targets] = np.moveaxis(found.reshape(-1, *found.shape[-2:]), 0, 1)
        return coefs


class FoldPrediction(NamedTuple):
    """Test rows of a fold, with what a candidate fitted to its training rows predicts for them."""

    rows: Indices
    predicted: Array  # (rows, penalties, targets), in the units of the targets
    n_active: Indices  # hidden outputs with a nonzero weight, for each penalty


def out_of_fold(
    candidates: Sequence[Candidate],
    table: SearchTable,
    folds: Sequence[Fold],
    score: Callable[[SearchTable, FoldPrediction], Result],
    *,
    one_thread: bool,
    n_jobs: int | None,
    progress: bool,
    what: str,
) -> Iterator[list[Result]]:
    """Yield each candidate's results of `score`, one for every fold.

    Processes share the candidates and folds; `what` names the progress bar. Sums of BLAS round
    differently with another number of threads, and processes of joblib's have fewer: only with
    `one_thread`, which holds BLAS to one, are results the same to the last digit for every number
    of processes.
    """
    tasks = [
        delayed(_evaluate)(candidate, table, fold, score, one_thread=one_thread)
        for candidate in candidates
        for fold in folds
    ]
    work = Parallel(n_jobs=n_jobs, return_as="generator", **watched())(tasks)
    scores: list[Result] = []
    for one in track(work, len(tasks), what, show=progress):
        scores.append(one)
        if len(scores) == len(folds):
            yield scores
            scores = []


def require_known_targets(T: Array) -> None:
    """Raise unless every target is known in some training row of a fold."""
    if np.isnan(T).all(axis=0).any():
        raise ValueError(
            "a target is unknown in all training rows of a fold; use fewer folds or other ones, or "
            "raise search_rows if there are more rows"
        )


def _evaluate(
    candidate: Candidate,
    table: SearchTable,
    fold: Fold,
    score: Callable[[SearchTable, FoldPrediction], Result],
    *,
    one_thread: bool,
) -> Result:
    """Fit all penalties to a fold's kept training rows, predict and score its test rows."""
    train = fold.train[table.kept[fold.train]]
    require_known_targets(table.T[train])
    model = copy(candidate.model)
    with one_blas_thread() if one_thread else nullcontext():
        H, design = model._drawn(table.X[train], table.T[train], table.w[train])
        coefs = candidate.solve(H, design)
        model.coef_, model.intercept_ = coefs.reshape(len(coefs), -1), np.zeros(1)
        outputs = model._outputs(table.X[fold.test]).reshape(len(fold.test), *coefs.shape[1:])
        predicted = model._target_scaling.undo(outputs)
        n_active = np.count_nonzero(coefs.any(axis=2), axis=0)
        return score(table, FoldPrediction(fold.test, predicted, n_active))
