r"""One estimator for people with dirty tables: no parameter needs to be known.

Three steps, each on rows that the models judging them have not seen:

1. *Screen.* A few GOR-ELMs (l2,1 loss: bounded pull of every row) over a coarse path. Their
   out-of-fold errors, as the mean over the targets of log(1 + |error|), either fall into two clear
   groups, then the upper one is set aside, or they do not, then every row stays, and only what is
   far beyond all others is pulled in towards its prediction.
2. *Search.* Ridge paths (closed form) of many hidden layers on the rows that stay; the best few
   layers, each at its best penalty, become the members of an ensemble. Their out-of-fold errors
   judge all rows again: what the screen missed goes, what it took wrongly comes back. Of many
   rows only a sample is searched; the best of it are fitted to all, and compared again.
3. *Fit.* The members are fitted on all rows that stay, with the Huberised l2,1 loss where rows
   were set aside, so that an outlier that hides among them has a bounded pull too.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, num_samples, validate_params
from gorelm._features.scaling import Scaling
from gorelm._solver.threads import one_blas_thread
from gorelm._typing import Array
from gorelm.diagnostics.scores import outlier_threshold, split_in_two
from gorelm.estimators._base import all_or_nothing, parameters
from gorelm.estimators._prepare import Mask, require_targets, row_norms, validate_targets
from gorelm.estimators._search import (
    SCREEN_LAYERS,
    SEARCH_LAMS,
    SEARCH_LAYERS,
    Member,
    Rows,
    every,
    table,
)
from gorelm.estimators.batch import GORELMRegressor, RELMRegressor
from gorelm.selection import Fold, folds_of

__all__ = ["RobustELMRegressor"]

# `benchmarks/defaults.py` chose TWO_GROUPS, INNER_FENCE, FAR_FENCE, GROSS, FARTHEST_INPUT,
# SCREEN_MEMBERS and MUCH_WORSE, on tables that no comparison uses; the others bound the cost.

# Share of the variance of the rows' mean log errors that two groups must explain to be two; a bell
# has 0.64.
TWO_GROUPS = 0.75
INNER_FENCE, OUTER_FENCE = 1.5, 3.0  # Tukey's: where the loss bends, which rows are named
FAR_FENCE = 10.0  # beyond it even a single row is pulled in
# Spreads of the targets. Looking for two groups, larger errors count as this at first; where there
# is one group, smaller errors are no reason to doubt a row.
GROSS = 10.0
FEW_ROWS = 5000
FARTHEST_INPUT = 10.0  # standard deviations; beyond, hidden nodes would extrapolate
NODES, MOST_NODES = 1000, 3000
MANY_CELLS = 10**8  # of H, rows times nodes, from which on there are no more nodes than NODES
# How far from the best penalty of a sample to look for that of all rows: more data need less.
STEPS_FROM_SAMPLE = np.arange(-1, 4)
FINALISTS = 8
SCREEN_MEMBERS = 1  # layers whose average judges the rows at first
FEW_CHANGES = 0.01  # share of rows that may change sides without another search
MUCH_WORSE = 1.25  # times the best layer's squared error: too much for a member


@parameters
class RobustELMRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Robust multi-target regression without a parameter to choose.

    Scales inputs and targets, sets aside rows whose targets nothing explains, searches hidden
    layers and penalties by cross-validation on the others, and averages the best few networks
    (:mod:`gorelm.estimators.robust` has the whole story).

    Parameters
    ----------
    n_hidden : int or "auto", default="auto"
        Hidden nodes of every member. "auto": 1000, and with more than 2000 rows half as many nodes
        as rows, up to 3000 (fewer again from 33,000 rows on, to bound the memory).
    n_members : int, default=4
        Most networks to average; those with more than 1.25 times the squared error of the best are
        left out.
    cv : int, splitter or iterable of splits, default=5
        Folds of the search.
    search_rows : int, default=1000
        Layers and penalties are first compared on a random sample of so many rows when there are
        more; the best of them are then fitted to all, and compared again on the first folds.
    missing_targets : {"error", "ignore"}, default="error"
        What NaN in y means: a mistake, or a cell to leave out.
    n_jobs : int, default=None
        Processes to share the folds and layers among; the result is the same.
    progress : bool, default=False
        Show a progress bar (needs ``gorelm[progress]``).
    random_state : int, RandomState instance or None, default=None
        Seed of folds and hidden layers; pass an int for reproducible results.

    Attributes
    ----------
    members_ : list of estimators
        The fitted networks, on scaled inputs and targets.
    contaminated_ : bool
        Whether the errors fell into two clear groups, so that rows were set aside.
    outlier_scores_ : ndarray of shape (n_samples,)
        Typical size e of each row's out-of-fold errors, in units of the targets' spread:
        1 + e is the geometric mean of 1 + abs(error) over the targets (NaN where `cv` never tests).
    outlier_threshold_ : float
        Scores above it are flagged.
    outlier_mask_ : ndarray of bool, shape (n_samples,)
        The flagged rows; they had no part in the fit if `contaminated_`.
    out_of_fold_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        What the best layers and penalties of the search (with no more than `search_rows` rows,
        the members'), fitted without the row's fold, predict for each row, in the units of y (NaN
        where `cv` never tests). ``y - out_of_fold_`` tells which of a row's targets are off, and
        by how much.
    cv_results_ : dict of arrays
        Settings and score (larger is better) in the search of every layer at its best penalty.
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_hidden": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "cv": ["cv_object"],
        "search_rows": [Interval(Integral, 2, None, closed="left")],
        "missing_targets": RELMRegressor._parameter_constraints["missing_targets"],
        "n_jobs": [Integral, None],
        "progress": ["boolean"],
        "random_state": ["random_state"],
    }

    n_hidden: int | str = "auto"
    n_members: int = 4
    cv: Any = 5
    search_rows: int = 1000
    missing_targets: str = "error"
    n_jobs: int | None = None
    progress: bool = False
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Screen, search and fit.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row.

        Returns
        -------
        self : object
        """
        with all_or_nothing(self), _few_threads(X):
            validate_params(self)
            self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X = validate_data(self, X, dtype=np.float64)
        T, w = validate_targets(self, X, y, sample_weight)
        usable = (w > 0) & ~np.isnan(T).all(axis=1)
        require_targets(~np.isnan(T[usable]))
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        folds = folds_of(self.cv, X, T, seed)
        if not usable[_tested(folds, len(T))].any():
            raise ValueError("cv tests no row that has a positive weight and a known target")
        self._input_scaling = Scaling.fit("standard", X[usable], w[usable])
        X = self._scaled(X)

        kept, telling, near = self._screen(X, T, w, folds, usable, seed)
        ranked, kept = self._search(X, T, near, w, folds, kept, telling, seed)
        members = self._refined(X, near, w, folds, ranked, kept, seed)
        self._fit_members(X, near, w, members, kept, seed)

    def _scaled(self, X: Array) -> Array:
        scaled, _ = self._input_scaling.apply(X)
        return np.asarray(np.clip(scaled, -FARTHEST_INPUT, FARTHEST_INPUT))

    # -- the three steps -------------------------------------------------------------------------

    def _screen(
        self, X: Array, T: Array, w: Array, folds: list[Fold], usable: Mask, seed: int
    ) -> tuple[Mask, Mask, Array]:
        """Return the rows that stay, the targets that can tell, and T with far rows pulled in."""
        scaling = Scaling.fit("robust", T[usable], w[usable])
        # A target whose middle half is one value has no spread to judge an error by (the rows off
        # that value would all be outliers), and two or three values are labels.
        telling = np.array([_has_spread(column[usable]) for column in T.T])
        self.contaminated_ = False
        if not telling.any():
            return usable, telling, T
        scaled = scaling.apply(T)[0][:, telling]
        rows = self._rows(X, scaled, w, self._n_nodes(), seed)
        known = ~np.isnan(scaled) & usable[:, None]
        # Robust paths take longer than ridges, and their layers need not be the very best.
        sample = self._sample(usable, known, folds, seed, max(self.search_rows // 2, 2))
        members = rows.best(every(SCREEN_LAYERS), "l21", usable, sample, "screening rows")
        members = members[:SCREEN_MEMBERS]
        errors = rows.average(members, "l21", usable, sample, folds) - rows.T
        tested = usable & _tested(folds, len(T))
        sizes = log_sizes(errors)
        threshold, explained = _split(sizes[tested], w[tested])
        self.contaminated_ = explained >= TWO_GROUPS
        if self.contaminated_:
            return usable & ~(tested & (sizes > threshold)), telling, T
        norms = _known_norms(errors)
        # Where errors are tiny, many times their spread is still no reason to doubt a row.
        far = max(outlier_threshold(norms[tested], w[tested], whisker=FAR_FENCE), GROSS)
        excess = np.where(tested & (norms > far), 1.0 - far / np.maximum(norms, 1e-100), 0.0)
        T = T.copy()
        T[:, telling] += excess[:, None] * errors * scaling.scale[telling]
        return usable, telling, T

    def _search(
        self,
        X: Array,
        T: Array,
        near: Array,
        w: Array,
        folds: list[Fold],
        kept: Mask,
        telling: Mask,
        seed: int,
    ) -> tuple[list[Member], Mask]:
        """Return the layers, best first, and the rows that stay; fits `near`, judges by `T`."""
        usable = (w > 0) & ~np.isnan(T).all(axis=1)
        known_to_folds = _tested(folds, len(T))
        tested = usable & known_to_folds
        spread = Scaling.fit("robust", near[usable], w[usable]).scale
        for _ in range(2 if self.contaminated_ else 1):
            scaling = Scaling.fit("standard", *_without_gaps(near, kept, w))
            rows = self._rows(X, scaling.apply(near)[0], w, self._n_nodes(), seed)
            known = ~np.isnan(T) & kept[:, None]
            sample = self._sample(usable, known, folds, seed, self.search_rows)
            ranked = rows.best(every(SEARCH_LAYERS), "squared", kept, sample, "searching layers")
            self.cv_results_ = table(ranked)
            members = self._members(ranked)
            predicted = rows.average(members, "squared", kept, sample, folds)
            fitted = kept & tested
            norms = _known_norms(predicted - rows.T)[fitted]
            self._delta = outlier_threshold(norms, w[fitted], whisker=INNER_FENCE)
            judged = telling if telling.any() else slice(None)
            expected = scaling.undo(predicted)
            sizes = log_sizes(((expected - T) / spread)[:, judged])
            if self.contaminated_:
                threshold, _ = _split(sizes[tested], w[tested])
            else:
                threshold = outlier_threshold(sizes[tested], w[tested], whisker=OUTER_FENCE)
            self._target_scaling = scaling
            expected = np.where(known_to_folds[:, None], expected, np.nan)
            self.out_of_fold_ = expected[:, 0] if self._one_target else expected
            self.outlier_scores_ = np.where(known_to_folds, np.expm1(sizes), np.nan)
            self.outlier_threshold_ = float(np.expm1(threshold))
            self.outlier_mask_ = known_to_folds & (sizes > threshold)
            if not self.contaminated_:
                break
            before, kept = kept, usable & ~self.outlier_mask_
            if (before != kept).mean() <= FEW_CHANGES:
                break
        return ranked, kept

    def _refined(
        self,
        X: Array,
        T: Array,
        w: Array,
        folds: list[Fold],
        ranked: list[Member],
        kept: Mask,
        seed: int,
    ) -> list[Member]:
        """Return the members; of those best on a sample, the best when fitted to all rows."""
        rows = self._rows(X, self._target_scaling.apply(T)[0], w, self._n_nodes(kept), seed)
        # One row that nothing explains would decide; it is fitted, but no judge.
        judges = kept & ~self.outlier_mask_
        judging, n_judges = list[Fold](), 0
        for fold in folds:
            if n_judges < max(self.search_rows // 2, 1) and judges[fold.test].any():
                judging.append(fold)
                n_judges += int(judges[fold.test].sum())
        sampled = ((w > 0) & ~np.isnan(T).all(axis=1)).sum() > self.search_rows
        if judging and (sampled or rows.n_hidden != self._n_nodes()):
            last = len(SEARCH_LAMS) - 1
            finalists = [
                (c.layer, np.unique(np.clip(c.lam + STEPS_FROM_SAMPLE, 0, last)))
                for c in ranked[: max(FINALISTS, self.n_members)]
            ]
            ranked = rows.best(finalists, "squared", kept, judging, "comparing the best", judges)
        return self._members(ranked)

    def _members(self, ranked: list[Member]) -> list[Member]:
        """Return the best, without those that are much worse than the first."""
        least = MUCH_WORSE * ranked[0].score
        return [c for c in ranked[: self.n_members] if c is ranked[0] or c.score >= least]

    def _fit_members(
        self, X: Array, T: Array, w: Array, members: list[Member], kept: Mask, seed: int
    ) -> None:
        scaled = self._target_scaling.apply(T)[0]
        rows = self._rows(X, scaled, w, self._n_nodes(kept), seed)
        self.members_ = []
        for member in members:
            _, H, omega = rows.draw(member.layer, kept)
            lam = float(rows.lams("squared", H, scaled[kept], omega)[member.lam])
            settings = member.layer.settings(rows.n_hidden, X.shape[1], seed)
            settings |= {"missing_targets": self.missing_targets}
            model: Any = RELMRegressor(1.0 / lam, **settings)
            if self.contaminated_:
                # tau r^2 / (2 delta) with tau = delta is the ridge's loss, up to the threshold.
                delta = self._delta or 1.0
                model = GORELMRegressor(lam, tau=delta, delta=delta, **settings)
            with warnings.catch_warnings():  # its advice would be about parameters of the member
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.members_.append(model.fit(X[kept], scaled[kept], w[kept]))

    # -- what they share -------------------------------------------------------------------------

    def _n_nodes(self, kept: Mask | None = None) -> int:
        """Return the number of nodes for a sample, or for the rows of the last fit."""
        if not isinstance(self.n_hidden, str):
            return self.n_hidden
        n_rows = 1 if kept is None else max(int(kept.sum()), 1)
        return max(NODES, min(n_rows // 2, MOST_NODES, MANY_CELLS // n_rows))

    def _rows(self, X: Array, T: Array, w: Array, nodes: int, seed: int) -> Rows:
        return Rows(X, T, w, nodes, seed, self.n_jobs, self.progress)

    def _sample(
        self, usable: Mask, known: Mask, folds: list[Fold], seed: int, size: int
    ) -> list[Fold]:
        """Return the folds; with more than `search_rows` rows, thinned to some `size` rows.

        `known` are the cells of the targets to fit.
        """
        if usable.sum() <= self.search_rows:
            return folds
        chosen = np.zeros(len(usable), dtype=bool)
        rng = np.random.default_rng(seed)
        chosen[rng.choice(np.flatnonzero(usable), size, replace=False)] = True
        thinned = []
        for fold in folds:
            train = fold.train[chosen[fold.train]]
            enough = known[train].any(axis=0).all()  # a value of every target
            thinned.append(Fold(train if enough else fold.train, fold.test[chosen[fold.test]]))
        scored = any(known[fold.test].any() for fold in thinned)
        return thinned if scored else folds

    # -- using it --------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """Predict the targets of new rows: the average of the members.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        X = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        mean = np.mean([member.predict(X) for member in self.members_], axis=0)
        y = self._target_scaling.undo(mean.reshape(len(X), -1))
        return np.asarray(y[:, 0] if self._one_target else y)


def _tested(folds: list[Fold], n_rows: int) -> Mask:
    """Return which rows some fold tests."""
    return np.isin(np.arange(n_rows), np.concatenate([fold.test for fold in folds]))


def _known_norms(errors: Array) -> Array:
    """Norms of rows of errors, as if unknown ones (NaN) were like the known."""
    known = ~np.isnan(errors)
    share = np.where(known.any(axis=1), known.mean(axis=1), 1.0)
    return row_norms(np.nan_to_num(errors)) / np.sqrt(share)


def log_sizes(errors: Array) -> Array:
    """Mean of log(1 + |error|) over the known targets; no single target can rule it."""
    known = ~np.isnan(errors)
    logs = np.log1p(np.abs(np.nan_to_num(errors)))
    return np.asarray(logs.sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def _split(sizes: Array, w: Array) -> tuple[float, float]:
    """Split as `split_in_two` does, first with gross errors shortened, then as they are.

    One row that is off by 1e6 is a group of its own, beside which all other wrong rows look right.
    """
    for limit in (np.log1p(GROSS), np.inf):
        threshold, explained = split_in_two(np.minimum(sizes, limit), w)
        if explained >= TWO_GROUPS:
            break
    return threshold, explained


def _has_spread(column: Array) -> bool:
    known = column[~np.isnan(column)]
    low, high = np.quantile(known, [0.25, 0.75])
    return bool(high > low) and len(np.unique(known)) > 3


def _without_gaps(T: Array, kept: Mask, w: Array) -> tuple[Array, Array]:
    """Return kept rows with unknown cells at their column's mean, and their weights."""
    T, w = T[kept], w[kept]
    known = ~np.isnan(T)
    means = (w @ np.nan_to_num(T)) / np.maximum(w @ known, np.finfo(float).tiny)
    return np.where(known, T, means), w


def _few_threads(X: Any) -> AbstractContextManager[Any]:
    """Hold BLAS to one thread where there are few rows: its threads would wait for each other."""
    try:
        few = num_samples(X) <= FEW_ROWS
    except TypeError:  # which the validation will explain
        few = False
    return one_blas_thread() if few else nullcontext()
