"""One estimator for contaminated tables: it needs no parameter to be chosen.

Its four steps, screen, search, refine and fit, are in `gorelm.estimators._robust`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, validate_params
from gorelm._solver.threads import n_threads, one_blas_thread
from gorelm._typing import Array, Constraints, RandomState
from gorelm.backends.inputs import within_reach
from gorelm.estimators._base import all_or_nothing, parameters
from gorelm.estimators._prepare import require_same_inputs
from gorelm.estimators._robust.layers import PATH, Trial
from gorelm.estimators._robust.members import fit_members, refine
from gorelm.estimators._robust.owners import Given, given
from gorelm.estimators._robust.screen import screen
from gorelm.estimators._robust.search import search
from gorelm.estimators._robust.task import EFFORTS, RobustTask
from gorelm.estimators.batch import RELMRegressor
from gorelm.selection import folds_of
from gorelm.stream import RowBlocks

__all__ = ["RobustELMRegressor"]


@parameters
class RobustELMRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Robust multi-target regression without a parameter to choose.

    Scales inputs and targets, sets aside rows whose targets nothing explains, searches hidden
    layers and penalties out of sample on the others, and averages the best few networks
    (the guide has the whole story).

    Parameters
    ----------
    effort : {"fast", "default", "high"}, default="default"
        How much is tried: rows, nodes and draws of the search, number and nodes of the networks.
        From 1000 rows on "fast" takes about a quarter of the time of "default", "high" twice as
        much and more.
    n_hidden : int or "auto", default="auto"
        Hidden nodes of every network. "auto": 1000; with more than `search_rows` rows, more by the
        fifth root of the rows beyond 2000 and by the square root of inputs times targets beyond
        40, up to 3000 ("fast": 300, up to 1000; "high": 2000, up to 6000).
    n_members : int, default=None
        Most networks to average (one fewer above `search_rows` rows); those with more than 1.25
        times the squared error of the best are left out. By default 4 ("fast": 2; "high": 6).
    cv : int, splitter or iterable of splits, default=None
        Folds by which layers are compared and rows judged. By default every row is left out by
        itself, or, with more than `search_rows` rows, with a quarter of the others.
    search_rows : int, default=None
        Layers and penalties are compared on a random sample of so many rows when there are more;
        the best of them are then fitted to all. By default 1000 ("fast": 500; "high": 2000).
    missing_targets : {"error", "ignore"}, default="error"
        What NaN in y means: a mistake, or a cell to leave out.
    n_jobs : int, default=None
        Threads to share the layers or the rows among, -1 for all cores; by default as many as BLAS
        would use. The result is the same to the last digit for every number.
    progress : bool, default=False
        Show a progress bar (needs ``gorelm[progress]``).
    random_state : int, RandomState instance or None, default=None
        Seed of folds and hidden layers; pass an int for reproducible results.

    Attributes
    ----------
    members_ : list of RELMRegressor
        The fitted networks, on scaled inputs and targets.
    contaminated_ : bool
        Whether the errors of rows, or of a target's cells, fell into two clear groups, so that
        those of the upper group were set aside.
    outlier_scores_ : ndarray of shape (n_samples,)
        Typical size e of each row's out-of-sample errors, in units of the targets' spread:
        1 + e is the geometric mean of 1 + abs(error) over the targets, without wrong cells of a row
        that is right (NaN where `cv` never tests). With one target, the cells' scores.
    outlier_threshold_ : float
        Scores above it are flagged.
    outlier_mask_ : ndarray of bool, shape (n_samples,)
        The flagged rows, most of whose targets are off; they had no part in the fit if
        `contaminated_`.
    cell_scores_ : ndarray of shape (n_samples, n_targets)
        Absolute out-of-sample error of each cell, in units of the error that is usual for its
        target at such a prediction and beside such errors of the row's other targets (NaN where
        the cell is unknown or `cv` never tests).
    cell_thresholds_ : ndarray of shape (n_targets,)
        Scores above it are flagged.
    cell_mask_ : ndarray of bool, shape (n_samples, n_targets)
        The flagged cells, in flagged rows and in others; with one target ``outlier_mask_``.
    out_of_fold_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        What the networks, fitted without the row (or its fold), predict for each row, in the units
        of y (NaN where `cv` never tests). ``y - out_of_fold_`` tells which of a row's targets are
        off, and by how much.
    cv_results_ : dict of arrays
        Settings and score (larger is better) in the search of every layer at its best penalty.
    timings_ : dict of str to float
        Seconds of each step.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of str
        Names of the inputs, when X was a frame with string column names.

    Examples
    --------
    >>> from gorelm import RobustELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.3, random_state=0)
    >>> model = RobustELMRegressor(n_hidden=100, random_state=0).fit(data.X, data.T)
    >>> bool(model.outlier_mask_[data.planted].mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "effort": [StrOptions(set(EFFORTS))],
        "n_hidden": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_members": [Interval(Integral, 1, None, closed="left"), None],
        "cv": ["cv_object"],
        "search_rows": [Interval(Integral, 2, None, closed="left"), None],
        "missing_targets": RELMRegressor._parameter_constraints["missing_targets"],
        "n_jobs": [Integral, None],
        "progress": ["boolean"],
        "random_state": ["random_state"],
    }

    n_hidden: int | str = "auto"
    effort: str = "default"
    n_members: int | None = None
    cv: object = None
    search_rows: int | None = None
    missing_targets: str = "error"
    n_jobs: int | None = None
    progress: bool = False
    random_state: RandomState = None

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Screen, search, refine and fit.

        Parameters
        ----------
        X : array or RowBlocks of shape (n_samples, n_features)
            Inputs; :class:`~gorelm.stream.RowBlocks` are read a block at a time, and need not fit
            in memory.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            threads = n_threads(self.n_jobs)
            with one_blas_thread():
                self._fit(given(self, X, y, sample_weight), threads)
        return self

    def _fit(self, table: Given, threads: int) -> None:
        usable = table.usable
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        chosen = {"n_members": self.n_members, "search_rows": self.search_rows}
        effort = replace(
            EFFORTS[self.effort], **{name: n for name, n in chosen.items() if n is not None}
        )
        task = RobustTask(
            table.rows,
            table.T,
            table.w,
            usable,
            None if self.cv is None else folds_of(self.cv, table.inputs, table.T, seed),
            seed,
            effort,
            None if isinstance(self.n_hidden, str) else self.n_hidden,
            threads,
            self.progress,
        )
        if self.cv is None and usable.sum() < 2:
            raise ValueError(
                "a row cannot be left out of one: at least 2 rows with a positive weight and a "
                f"known target are needed; here n_samples = {int(usable.sum())}"
            )
        if not usable[task.tested].any():
            raise ValueError("cv tests no row that has a positive weight and a known target")
        clock = Clock()
        screened = screen(task)
        clock.lap("screen")
        found = search(task, screened)
        clock.lap("search")
        refined = refine(task, found)
        clock.lap("refine")
        members = fit_members(task, found.screened, refined)
        clock.lap("fit")

        judged = refined.judged
        self.contaminated_ = found.screened.dirty
        self.cv_results_ = _results(found.trials)
        self.out_of_fold_ = judged.expected[:, 0] if self._one_target else judged.expected
        self.outlier_scores_ = judged.scores
        self.outlier_threshold_ = judged.threshold
        self.outlier_mask_ = judged.flagged
        self.cell_scores_ = judged.cells.scores
        self.cell_thresholds_ = judged.cells.thresholds
        self.cell_mask_ = judged.cells.mask
        self.members_ = members
        self.timings_ = clock.laps
        self._input_scaling, self._target_scaling = table.scaling, refined.scaling

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows: the average of the members.

        Parameters
        ----------
        X : array or RowBlocks of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        if isinstance(X, RowBlocks):
            require_same_inputs(self, X.shape[1], X.feature_names)
            return np.concatenate([self._predict(x.astype(np.float64)) for _, x in X])
        inputs: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return self._predict(inputs)

    def _predict(self, inputs: Array) -> Array:
        scaled = within_reach(self._input_scaling, inputs)
        mean = np.mean([member.predict(scaled) for member in self.members_], axis=0)
        y = self._target_scaling.undo(mean.reshape(len(scaled), -1))
        return np.asarray(y[:, 0] if self._one_target else y)


@dataclass
class Clock:
    """Seconds of the steps of a fit."""

    laps: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        """Note how long a step has taken."""
        now = time.perf_counter()
        self.laps[step], self._last = now - self._last, now


def _results(trials: Sequence[Trial]) -> dict[str, Array]:
    """Return settings and scores as columns, best first."""
    trials = sorted(trials, key=lambda trial: trial.score)
    return {
        "activation": np.array([one.layer.activation for one in trials]),
        "spread": np.array([one.layer.spread for one in trials]),
        "direct_link": np.array([one.layer.direct_link for one in trials]),
        "n_inputs": np.array([one.hidden.A.shape[1] for one in trials]),
        "guided": np.array([one.guide is not None for one in trials]),
        "penalty": PATH[[one.lam for one in trials]],
        "mean_test_score": np.array([-one.score for one in trials]),
    }
