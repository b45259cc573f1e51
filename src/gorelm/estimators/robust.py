r"""One estimator for contaminated tables: it needs no parameter to be chosen.

Three steps, in each of which a row is judged by models that were not fitted to it:

1. *Screen* (`screen`). A few GOR-ELMs (l2,1 loss: the pull of every row is bounded) over a coarse
   path. If their out-of-fold errors, as the mean over the targets of log(1 + |error|), form two
   clear groups, the rows of the upper group are set aside. If not, every row stays, and only the
   targets of rows far beyond all others are moved towards their predictions.
2. *Search* (`search`, `refine`). Ridge paths (closed form) of many hidden layers on the rows that
   stay; the best few layers, each at its best penalty, become the members of an ensemble. Their
   out-of-fold errors judge all rows again: rows that the screen missed are set aside, and rows that
   it set aside wrongly come back. Of many rows only a sample is searched; the best candidates are
   then fitted to all rows and compared again.
3. *Fit* (`fit_members`). The members are fitted to all rows that stay, with the Huberised l2,1 loss
   if rows were set aside, so that the pull of an outlier that was not found is bounded, too.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, validate_params
from gorelm._features.activations import ACTIVATIONS
from gorelm._features.scaling import Scaling
from gorelm._solver.threads import one_blas_thread
from gorelm._typing import Array, Constraints, Indices, Mask, RandomState
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._base import IterativeELM, all_or_nothing, parameters
from gorelm.estimators._prepare import row_scores, usable_rows, validate_targets
from gorelm.estimators._search import (
    Candidate,
    FoldPrediction,
    SearchTable,
    out_of_fold,
)
from gorelm.estimators.batch import GORELMRegressor, RELMRegressor
from gorelm.selection import Fold, folds_of

__all__ = ["RobustELMRegressor"]

# `benchmarks/defaults.py` chose TWO_GROUPS, INNER_FENCE, FAR_FENCE, GROSS, FARTHEST_INPUT,
# SCREEN_MEMBERS and MUCH_WORSE, on tables that no comparison uses; the others bound the cost.

# Share of the variance of the rows' mean log errors that two groups must explain to be two; a
# normal distribution cut in two has 0.64.
TWO_GROUPS = 0.75
INNER_FENCE, OUTER_FENCE = 1.5, 3.0  # Tukey's: where the loss turns linear; which rows are flagged
FAR_FENCE = 10.0  # beyond it the targets of even a single row are moved
# In spreads of the targets. For the first split into two groups, larger errors count as this; in a
# table of one group, no target with a smaller error is moved.
GROSS = 10.0
FEW_ROWS = 5000  # up to which threads of BLAS wait for each other more than they gain
FARTHEST_INPUT = 10.0  # standard deviations; beyond, hidden nodes would extrapolate
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones
NODES, MOST_NODES = 1000, 3000
MANY_CELLS = 10**8  # of H, rows times nodes, from which on there are no more nodes than NODES
# Steps on the path from the best penalty of a sample, to search for that of all rows: more rows
# need less.
STEPS_FROM_SAMPLE = np.arange(-1, 4)
FINALISTS = 8
SCREEN_MEMBERS = 1  # layers whose average judges the rows at first
FEW_CHANGES = 0.01  # share of rows that may be set aside or come back without another search
MUCH_WORSE = 1.25  # times the best layer's squared error: no member beyond

SCREEN_TOL, SCREEN_ITERATIONS = 3e-3, 300
# Penalties: of the screen in units of the lam that empties the model, of the search in units of
# the squared norm of H.
PATHS = {"l21": 2.0 ** -np.arange(-1, 19, 2.0), "squared": 2.0 ** -np.linspace(0, 38, 20)}
FEW_LAMS = 5  # so many Cholesky factors take less than the eigenvectors


# -- what is compared -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A hidden layer to try; `spread` is the standard deviation of its nodes' inputs."""

    activation: str
    spread: float
    direct_link: bool

    def settings(self, n_hidden: int, n_features: int, seed: int) -> dict[str, object]:
        """Return the parameters of an estimator with this layer, for scaled rows."""
        linear = self.activation == "linear"
        radial = not linear and ACTIVATIONS[self.activation].radial
        return {
            "n_hidden": 0 if linear else n_hidden,
            "activation": "tanh" if linear else self.activation,
            # Uniform weights on [-1, 1] have variance 1/3, inputs variance 1.
            "weight_scale": self.spread if radial else self.spread * np.sqrt(3.0 / n_features),
            "direct_link": self.direct_link,
            # Every layer draws weights of its own, so that averaging lowers their variance.
            "random_state": (seed + zlib.crc32(repr(self).encode())) % 2**31,
            "input_scaling": None,
            "target_scaling": None,
        }


def spread_of(model: RELMRegressor | GORELMRegressor) -> float:
    """Return the `spread` of the layer that a fitted estimator has its settings from."""
    radial = ACTIVATIONS[model.activation].radial
    factor = 1.0 if radial else np.sqrt(model.n_features_in_ / 3.0)
    return float(model.weight_scale * factor)


LINEAR = Layer("linear", 1.0, True)
# In the order in which `benchmarks/defaults.py` chose them: each is the one that, added to those
# before it, lowers the error most on tables that no comparison uses.
SEARCH_LAYERS = (
    LINEAR,
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
    Layer("tanh", 2.0, False),
    Layer("laplace", 0.25, True),
    Layer("cosine", 1.0, False),
    Layer("relu", 1.0, True),
    Layer("laplace", 2.0, False),
    Layer("tanh", 2.0, True),
    Layer("tanh", 0.125, False),
)
SCREEN_LAYERS = SEARCH_LAYERS[:5]


@dataclass(frozen=True)
class RankedLayer:
    """A layer at the best of its penalties, with its out-of-fold predictions."""

    layer: Layer
    lam: int  # index in the path
    score: float  # larger is better
    predicted: Array  # of the folds' test rows, one fold after the other


@dataclass(frozen=True)
class Comparison:
    """Layers compared on scaled rows: by row norms of errors ("l21"), or by their squares."""

    table: SearchTable
    loss: Literal["l21", "squared"]
    n_hidden: int
    seed: int
    n_jobs: int | None = None
    progress: bool = False

    def candidate(self, layer: Layer, lams: Indices) -> Candidate:
        """Return a layer with some penalties of the path."""
        screening = GORELMRegressor(tol=SCREEN_TOL, max_iter=SCREEN_ITERATIONS)
        model = RELMRegressor() if self.loss == "squared" else screening
        model.set_params(**layer.settings(self.n_hidden, self.table.X.shape[1], self.seed))
        path, zero = PATHS[self.loss][lams], np.zeros(1)
        return Candidate(model, path, zero, zero, relative=True, eigenvectors=len(path) > FEW_LAMS)

    def whole_path(self, layers: Sequence[Layer]) -> list[tuple[Layer, Indices]]:
        """Return layers, each with all penalties of the path."""
        return [(layer, np.arange(len(PATHS[self.loss]))) for layer in layers]

    def rank(
        self,
        trials: Sequence[tuple[Layer, Indices]],
        folds: Sequence[Fold],
        what: str,
        scored: Mask | None = None,
    ) -> list[RankedLayer]:
        """Return layers, each at the best of its penalties, best first.

        The score is minus the mean error of the rows `scored`; default: of all that may be fitted.
        """
        tested = np.concatenate([fold.test for fold in folds])
        counts = (self.table.kept if scored is None else scored)[tested]
        T, w = self.table.T[tested][counts], self.table.w[tested][counts]
        ranked = []
        runs = self._predictions(trials, folds, what)
        for (layer, lams), parts in zip(trials, runs, strict=True):
            predicted = np.concatenate(parts)
            errors = np.nan_to_num(predicted[counts] - T[:, None])
            squares = np.einsum("npm,npm->np", errors, errors)
            losses = w @ (squares if self.loss == "squared" else np.sqrt(squares))
            best = int(np.argmin(losses))
            score = -float(losses[best] / w.sum())
            ranked.append(RankedLayer(layer, int(lams[best]), score, predicted[:, best]))
        return sorted(ranked, key=lambda one: -one.score)

    def average(
        self, members: Sequence[RankedLayer], sample: Sequence[Fold], folds: Sequence[Fold]
    ) -> Array:
        """Return the members' average prediction of every row that `folds` test, 0 of others.

        `sample` are the folds on which the members were ranked.
        """
        total, count = np.zeros(self.table.T.shape), np.zeros(len(self.table.T))
        if sum(len(f.test) for f in sample) == sum(len(f.test) for f in folds):
            tested = np.concatenate([fold.test for fold in folds])
            for member in members:
                np.add.at(total, tested, member.predicted)
            np.add.at(count, tested, float(len(members)))
        else:
            trials = [(member.layer, np.array([member.lam])) for member in members]
            for parts in self._predictions(trials, folds, "judging rows"):
                for fold, predicted in zip(folds, parts, strict=True):
                    total[fold.test] += predicted[:, 0]
                    count[fold.test] += 1.0
        return np.asarray(total / np.maximum(count, 1.0)[:, None])

    def _predictions(
        self, trials: Sequence[tuple[Layer, Indices]], folds: Sequence[Fold], what: str
    ) -> Iterator[list[Array]]:
        return out_of_fold(
            [self.candidate(layer, lams) for layer, lams in trials],
            self.table,
            folds,
            _predicted,
            one_thread=len(self.table.T) <= FEW_ROWS,
            n_jobs=self.n_jobs,
            progress=self.progress,
            what=what,
        )


def _predicted(table: SearchTable, test: FoldPrediction) -> Array:
    return test.predicted


# -- the three steps ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RobustTask:
    """What every step reads: the checked table, its folds, and the estimator's parameters."""

    X: Array  # scaled
    T: Array  # as given; NaN: unknown
    w: Array
    usable: Mask  # rows with a weight and a known target
    folds: Sequence[Fold]
    seed: int
    n_hidden: int | str
    n_members: int
    search_rows: int
    missing_targets: str
    n_jobs: int | None
    progress: bool

    @cached_property
    def in_a_fold(self) -> Mask:
        """Which rows some fold tests."""
        tested = np.concatenate([fold.test for fold in self.folds])
        return np.isin(np.arange(len(self.T)), tested)

    def compare(
        self, T: Array, kept: Mask, loss: Literal["l21", "squared"], n_hidden: int
    ) -> Comparison:
        """Return the comparison of layers on scaled targets T."""
        table = SearchTable(self.X, T, self.w, kept)
        return Comparison(table, loss, n_hidden, self.seed, self.n_jobs, self.progress)

    def sample(self, known: Mask, size: int) -> Sequence[Fold]:
        """Return the folds; with more than `search_rows` usable rows, thinned to `size` of them.

        `known` are the cells of the targets to fit.
        """
        if self.usable.sum() <= self.search_rows:
            return self.folds
        chosen = np.zeros(len(self.usable), dtype=bool)
        rng = np.random.default_rng(self.seed)
        chosen[rng.choice(np.flatnonzero(self.usable), size, replace=False)] = True
        thinned = []
        for fold in self.folds:
            train = fold.train[chosen[fold.train]]
            enough = known[train].any(axis=0).all()  # a value of every target
            thinned.append(Fold(train if enough else fold.train, fold.test[chosen[fold.test]]))
        return thinned if any(known[fold.test].any() for fold in thinned) else self.folds


@dataclass(frozen=True)
class Screened:
    """Result of the first step."""

    contaminated: bool  # whether the errors form two clear groups
    kept: Mask  # rows that stay
    judging: Mask  # targets by whose errors rows are judged
    T: Array  # to fit: as given, but for rows far beyond all others


@dataclass(frozen=True)
class Found:
    """Result of the second step."""

    ranked: list[RankedLayer]  # best first
    kept: Mask  # rows that stay
    scaling: Scaling  # of the targets
    delta: float  # norm of scaled errors up to which most rows lie
    out_of_fold: Array  # predictions in the units of y; NaN where no fold tests
    scores: Array  # of all rows; NaN where no fold tests
    threshold: float
    flagged: Mask


def screen(task: RobustTask) -> Screened:
    """Set rows aside whose targets no model explains, or move the targets of a few far rows."""
    T, w, usable = task.T, task.w, task.usable
    scaling = Scaling.fit("robust", T[usable], w[usable])
    # A target whose middle half is one value has no spread to judge an error by (the rows off
    # that value would all be outliers), and two or three values are labels.
    judging = np.array([_has_spread(column[usable]) for column in T.T])
    if not judging.any():
        return Screened(False, usable, judging, T)
    scaled = scaling.dense(T)[:, judging]
    near = np.clip(scaled, -FARTHEST_TARGET, FARTHEST_TARGET)
    compared = task.compare(near, usable, "l21", nodes_for(task.n_hidden))
    # Robust paths take longer than ridges, and their layers need not be the very best.
    sample = task.sample(~np.isnan(scaled) & usable[:, None], max(task.search_rows // 2, 2))
    trials = compared.whole_path(SCREEN_LAYERS)
    members = compared.rank(trials, sample, "screening rows")[:SCREEN_MEMBERS]
    errors = compared.average(members, sample, task.folds) - scaled
    tested = usable & task.in_a_fold
    sizes = log_sizes(errors)
    threshold, explained = _split(sizes[tested], w[tested])
    if explained >= TWO_GROUPS:
        return Screened(True, usable & ~(tested & (sizes > threshold)), judging, T)
    norms = row_scores(np.nan_to_num(errors), errors)
    # Where errors are tiny, many times their spread is still no reason to doubt a row.
    far = max(outlier_threshold(norms[tested], w[tested], whisker=FAR_FENCE), GROSS)
    excess = np.where(tested & (norms > far), 1.0 - far / np.maximum(norms, 1e-100), 0.0)
    T = T.copy()
    T[:, judging] += excess[:, None] * errors * scaling.scale[judging]
    return Screened(False, usable, judging, T)


def search(task: RobustTask, screened: Screened) -> Found:
    """Rank the layers on the rows that stay and judge all rows; again if many changed sides."""
    found = _search_once(task, screened, screened.kept)
    if screened.contaminated and (found.kept != screened.kept).mean() > FEW_CHANGES:
        found = _search_once(task, screened, found.kept)
    return found


def _search_once(task: RobustTask, screened: Screened, kept: Mask) -> Found:
    """Rank the layers fitted to `screened.T`; judge rows by their errors of the targets given."""
    T, w, tested = task.T, task.w, task.usable & task.in_a_fold
    scaling = Scaling.fit("standard", *_filled(screened.T, kept, w))
    scaled = scaling.dense(screened.T)
    compared = task.compare(scaled, kept, "squared", nodes_for(task.n_hidden))
    sample = task.sample(~np.isnan(T) & kept[:, None], task.search_rows)
    ranked = compared.rank(compared.whole_path(SEARCH_LAYERS), sample, "searching layers")
    predicted = compared.average(best_of(ranked, task.n_members), sample, task.folds)
    fitted = kept & tested
    errors = (predicted - scaled)[fitted]
    norms = row_scores(np.nan_to_num(errors), errors)
    expected = scaling.undo(predicted)
    spread = Scaling.fit("robust", screened.T[task.usable], w[task.usable]).scale
    judging = screened.judging if screened.judging.any() else slice(None)
    sizes = log_sizes(((expected - T) / spread)[:, judging])
    if screened.contaminated:
        threshold, _ = _split(sizes[tested], w[tested])
    else:
        threshold = outlier_threshold(sizes[tested], w[tested], whisker=OUTER_FENCE)
    flagged = task.in_a_fold & (sizes > threshold)
    return Found(
        ranked,
        kept=task.usable & ~flagged if screened.contaminated else kept,
        scaling=scaling,
        delta=outlier_threshold(norms, w[fitted], whisker=INNER_FENCE),
        out_of_fold=np.where(task.in_a_fold[:, None], expected, np.nan),
        scores=np.where(task.in_a_fold, np.expm1(sizes), np.nan),
        threshold=float(np.expm1(threshold)),
        flagged=flagged,
    )


def refine(task: RobustTask, screened: Screened, found: Found) -> list[RankedLayer]:
    """Return the members; if a sample was searched, the best of it when fitted to all rows."""
    n_hidden = nodes_for(task.n_hidden, int(found.kept.sum()))
    # One row that nothing explains would decide; it is fitted, but not scored.
    scored = found.kept & ~found.flagged
    folds, n_scored = list[Fold](), 0
    for fold in task.folds:
        if n_scored < max(task.search_rows // 2, 1) and scored[fold.test].any():
            folds.append(fold)
            n_scored += int(scored[fold.test].sum())
    sampled = task.usable.sum() > task.search_rows
    ranked = found.ranked
    if folds and (sampled or n_hidden != nodes_for(task.n_hidden)):
        scaled = found.scaling.dense(screened.T)
        compared = task.compare(scaled, found.kept, "squared", n_hidden)
        last = len(PATHS["squared"]) - 1
        finalists = [
            (one.layer, np.unique(np.clip(one.lam + STEPS_FROM_SAMPLE, 0, last)))
            for one in ranked[: max(FINALISTS, task.n_members)]
        ]
        ranked = compared.rank(finalists, folds, "comparing the best", scored)
    return best_of(ranked, task.n_members)


def fit_members(
    task: RobustTask, screened: Screened, found: Found, members: Sequence[RankedLayer]
) -> list[IterativeELM]:
    """Fit the members to all rows that stay."""
    kept, scaled = found.kept, found.scaling.dense(screened.T)
    X, T, w = task.X[kept], scaled[kept], task.w[kept]
    n_hidden = nodes_for(task.n_hidden, len(X))
    compared = task.compare(scaled, kept, "squared", n_hidden)
    fitted = []
    for member in members:
        candidate = compared.candidate(member.layer, np.array([member.lam]))
        lam = float(candidate.lams[0] * candidate.lam_unit(*candidate.model._drawn(X, T, w)))
        model: IterativeELM = RELMRegressor(1.0 / lam)
        if screened.contaminated:
            # tau r^2 / (2 delta) with tau = delta is the ridge's loss, up to the threshold.
            delta = found.delta or 1.0
            model = GORELMRegressor(lam, tau=delta, delta=delta)
        model.set_params(
            missing_targets=task.missing_targets,
            **member.layer.settings(n_hidden, X.shape[1], task.seed),
        )
        with warnings.catch_warnings():  # its advice would be about parameters of the member
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.append(model.fit(X, T, w))
    return fitted


def nodes_for(n_hidden: int | str, n_rows: int = 1) -> int:
    """Return the number of nodes for a fit to so many rows (default: to a sample)."""
    if not isinstance(n_hidden, str):
        return n_hidden
    n_rows = max(n_rows, 1)
    return max(NODES, min(n_rows // 2, MOST_NODES, MANY_CELLS // n_rows))


def best_of(ranked: Sequence[RankedLayer], n_members: int) -> list[RankedLayer]:
    """Return the first `n_members`, without those that are much worse than the very first."""
    least = MUCH_WORSE * ranked[0].score
    return [ranked[0], *(one for one in ranked[1:n_members] if one.score >= least)]


# -- the estimator --------------------------------------------------------------------------------


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
        Processes to share the folds and layers among, -1 for all cores. Up to 5000 rows the result
        is the same to the last digit for every number; with more rows it is the same to rounding,
        as BLAS rounds differently with another number of threads.
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

    _parameter_constraints: ClassVar[Constraints] = {
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
    cv: object = 5
    search_rows: int = 1000
    missing_targets: str = "error"
    n_jobs: int | None = None
    progress: bool = False
    random_state: RandomState = None

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
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
        with all_or_nothing(self):
            validate_params(self)
            inputs: Array = validate_data(self, X, dtype=np.float64)
            with one_blas_thread() if len(inputs) <= FEW_ROWS else nullcontext():
                self._fit(inputs, y, sample_weight)
        return self

    def _fit(self, X: Array, y: object, sample_weight: object) -> None:
        T, w = validate_targets(self, X, y, sample_weight)
        usable = usable_rows(T, w)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        input_scaling = Scaling.fit("standard", X[usable], w[usable])
        task = RobustTask(
            _within_reach(input_scaling, X),
            T,
            w,
            usable,
            folds_of(self.cv, X, T, seed),
            seed,
            self.n_hidden,
            self.n_members,
            self.search_rows,
            self.missing_targets,
            self.n_jobs,
            self.progress,
        )
        if not usable[task.in_a_fold].any():
            raise ValueError("cv tests no row that has a positive weight and a known target")
        screened = screen(task)
        found = search(task, screened)
        members = fit_members(task, screened, found, refine(task, screened, found))

        self.contaminated_ = screened.contaminated
        self.cv_results_ = _results(found.ranked)
        self.out_of_fold_ = found.out_of_fold[:, 0] if self._one_target else found.out_of_fold
        self.outlier_scores_ = found.scores
        self.outlier_threshold_ = found.threshold
        self.outlier_mask_ = found.flagged
        self.members_ = members
        self._input_scaling, self._target_scaling = input_scaling, found.scaling
        self._delta = found.delta

    def predict(self, X: object) -> Array:
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
        inputs: Array = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = _within_reach(self._input_scaling, inputs)
        mean = np.mean([member.predict(scaled) for member in self.members_], axis=0)
        y = self._target_scaling.undo(mean.reshape(len(scaled), -1))
        return np.asarray(y[:, 0] if self._one_target else y)


def _within_reach(scaling: Scaling, X: Array) -> Array:
    """Return scaled inputs, none farther than FARTHEST_INPUT."""
    return np.asarray(np.clip(scaling.dense(X), -FARTHEST_INPUT, FARTHEST_INPUT))


def _results(ranked: Sequence[RankedLayer]) -> dict[str, Array]:
    """Return settings and scores as columns."""
    return {
        "activation": np.array([one.layer.activation for one in ranked]),
        "spread": np.array([one.layer.spread for one in ranked]),
        "direct_link": np.array([one.layer.direct_link for one in ranked]),
        "penalty": PATHS["squared"][[one.lam for one in ranked]],
        "mean_test_score": np.array([one.score for one in ranked]),
    }


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


def _filled(T: Array, kept: Mask, w: Array) -> tuple[Array, Array]:
    """Return kept rows with unknown cells at their column's mean, and their weights."""
    T, w = T[kept], w[kept]
    known = ~np.isnan(T)
    means = (w @ np.nan_to_num(T)) / np.maximum(w @ known, np.finfo(float).tiny)
    return np.where(known, T, means), w
