"""Before step 1, on request: wrong cells of the inputs are found and filled in.

How far a cell may be off is a matter of the table: real inputs have long tails. So the cutoffs
compete with leaving all inputs as they are, by the errors of the screen's networks out of sample,
and must win clearly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gorelm._typing import Array, Mask
from gorelm.backends.inputs import InMemory
from gorelm.estimators._robust.cells import has_spread
from gorelm.estimators._robust.inputs import TRIMMED, CellCheck, Filling, InputCheck, cutoff_of
from gorelm.estimators._robust.judge import FARTHEST_TARGET, log_sizes
from gorelm.estimators._robust.owners import Given
from gorelm.estimators._robust.screen import bounded_predictions
from gorelm.estimators._robust.task import RobustTask

QUANTILES = (0.9999, 0.99)  # cutoffs; of clean normal cells, 1 - quantile are beyond
# A cutoff must lower the mean log error to this share; of n rows, to WORTH - BY_CHANCE / n.
WORTH, BY_CHANCE = 0.94, 2.4
DRAWS = 3  # of networks, each of which must agree; one, of more rows than are searched
FARTHEST_ERROR = 5.0  # spreads; errors beyond, which wrong targets have, count as this
BEYOND = 3.0  # in a table without wrong cells, new ones must be this many times farther than all


@dataclass(frozen=True)
class CheckedInputs:
    """Inputs of the training rows with their wrong cells filled in."""

    X: Array
    scores: Array
    wrong: Mask
    of_new_rows: InputCheck


def checked_inputs(table: Given, task: RobustTask) -> CheckedInputs:
    """Find and fill wrong cells of the inputs of a table in memory."""
    if not isinstance(table.rows, InMemory):
        raise ValueError(
            "check_inputs=True needs X in the memory of this process: no RowBlocks, no dask "
            "collection, no tensor, and no device"
        )
    X, usable, w = table.inputs, table.usable, np.where(table.usable, table.w, 0.0)
    scores = _check_of(np.hstack([X, table.T]), w).scores(np.hstack([X, table.T]))[:, : X.shape[1]]
    alone = _check_of(X, w)
    known, worth = max(int((~np.isnan(scores)).sum()), 1), WORTH - BY_CHANCE / usable.sum()
    filled, wrong, best = X, np.zeros(X.shape, dtype=bool), Errors.of(task)
    for quantile in QUANTILES:
        beyond = (np.nan_to_num(scores) > cutoff_of(quantile)) & task.doubted[:, None]
        if beyond.sum() / known <= 1 - quantile:  # as many as chance makes
            continue
        replaced = Filling.fit(X, beyond, w, alone.scaling).fill(X, beyond)
        errors = Errors.of(replace(task, X=table.with_inputs(replaced).rows))
        if errors.clearly_below(best, worth):
            filled, wrong, best = replaced, beyond, errors
    kept = np.where(wrong | ~usable[:, None], 0.0, np.nan_to_num(alone.scores(X)))
    limits = np.maximum(kept.max(axis=0) * (1.0 if wrong.any() else BEYOND), TRIMMED)
    of_new_rows = InputCheck(alone, Filling.fit(X, wrong, w, alone.scaling), limits)
    return CheckedInputs(filled, scores, wrong, of_new_rows)


def _check_of(A: Array, w: Array) -> CellCheck:
    return CellCheck.fit(A[w > 0], w[w > 0])


@dataclass(frozen=True)
class Errors:
    """Out of sample, in spreads, of several draws of networks; each a mean over the rows.

    Of targets of few values, which the screen does not judge by, nothing is said.
    """

    logs: Array  # (draws,): of log(1 + error)
    squares: Array  # (draws,): of squared errors, cut off

    @classmethod
    def of(cls, task: RobustTask) -> Errors:
        by, scaled = task.usable & task.tested, task.robust_scaling.dense(task.T)
        near = np.clip(scaled, -FARTHEST_TARGET, FARTHEST_TARGET)
        judging = np.array([has_spread(column[task.usable]) for column in task.T.T])
        logs, squares = [], []
        for draw in range(1 if task.many else DRAWS):
            # With the few nodes that a user may ask for, chance would decide. The loss is the same
            # for all candidates, so that their errors can be compared.
            few = replace(task, n_hidden=None, seed=task.seed + draw)
            off = (bounded_predictions(few, near, ~judging) - scaled)[by][:, judging]
            cut = np.minimum(np.abs(np.nan_to_num(off)), FARTHEST_ERROR) ** 2
            logs.append(np.average(log_sizes(off), weights=task.w[by]))
            squares.append(np.average(cut.sum(axis=1), weights=task.w[by]))
        return cls(np.array(logs), np.array(squares))

    def clearly_below(self, other: Errors, worth: float) -> bool:
        """Whether every draw has smaller errors, their mean is small enough, and squares agree.

        Where targets are skewed, inputs without their large values may predict most rows better,
        and large targets worse: the squares tell.
        """
        return bool(
            self.logs.mean() < worth * other.logs.mean()
            and (self.logs < other.logs).all()
            and self.squares.mean() < other.squares.mean()
        )
