r"""One estimator for contaminated tables: it needs no parameter to be chosen.

Four steps, in each of which a row is judged by models that were not fitted to its target:

1. *Screen* (`screen`). A few networks with a bounded loss, fitted to folds. If their out-of-fold
   errors, as the mean over the targets of log(1 + |error|), form two clear groups, the rows of the
   upper group are set aside. If not, every row stays, and only the targets of rows far beyond all
   others are moved towards their predictions.
2. *Search* (`search`). Ridge paths of many hidden layers with few nodes, on the rows that stay (of
   many rows, on a sample), compared by leave-one-out. Layers whose nodes see few inputs are drawn
   again where their nodes explained most, as long as the score improves. The best few layers become
   the members of an ensemble; their predictions judge all rows again. If they, or better layers
   than the screen's fitted to all rows, see one group, no row is set aside.
3. *Refine* (`refine`). The members get all their nodes and all rows, and judge all rows once more.
4. *Fit* (`fit_members`). The members are fitted to the rows that stay. If rows were set aside, the
   targets of the others are first brought within a fence around their predictions, so that an
   outlier that was not found has a bounded influence, too.

Leave-one-out predictions have a closed form (`gorelm._solver.ridge`). Of more than `search_rows`
rows, the members' predictions in step 3 are those of folds, whose fits are differences of sums over
blocks of rows: the hidden outputs H are never held whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, validate_params
from gorelm._features.guide import SubsetGuide
from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._solver.ridge import RidgePath, ridge_coef
from gorelm._solver.threads import n_threads, one_blas_thread, ordered_map
from gorelm._typing import Array, Constraints, Indices, Mask, RandomState
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._base import Weights, all_or_nothing, parameters
from gorelm.estimators._layers import (
    PATH,
    FoldedFit,
    Layer,
    Part,
    Trial,
    blocks,
    compare,
    complementary,
    lam_for_more,
    pooled_guides,
    sketch_of,
    with_constant,
)
from gorelm.estimators._prepare import (
    naming_table_regressor,
    row_scores,
    usable_rows,
    validate_targets,
)
from gorelm.estimators.batch import RELMRegressor
from gorelm.selection import Fold, folds_of, track

__all__ = ["RobustELMRegressor"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# `benchmarks/defaults.py` chose TWO_GROUPS, INNER_FENCE, FAR_FENCE, GROSS, FARTHEST_INPUT, the
# layers and MUCH_WORSE, on tables that no comparison uses; the others bound the cost.

# Share of the variance of the rows' mean log errors that two groups must explain to be two; a
# normal distribution cut in two has 0.64.
TWO_GROUPS = 0.75
# Few rows often form two groups by chance: the models of the search must explain, of n rows,
# TWO_GROUPS + BY_CHANCE / n.
BY_CHANCE = 2.4
INNER_FENCE, OUTER_FENCE = 1.5, 3.0  # Tukey's: where a pull is bounded; which rows are flagged
FAR_FENCE = 10.0  # beyond it the targets of even a single row are moved, to the outer fence
# In spreads of the targets. For the first split into two groups, larger errors count as this; in a
# table of one group, no target with a smaller error is moved.
GROSS = 10.0
FARTHEST_INPUT = 10.0  # standard deviations; beyond, hidden nodes would extrapolate
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones
MUCH_WORSE = 1.25  # times the best layer's squared error: no member beyond
FEW_CHANGES = 0.01  # share of rows that may be set aside or come back without another search

SCREEN_PATH = 2.0 ** -np.arange(4, 36, 3.0)  # penalties in units of the squared norm of H
SCREEN_FOLDS, SCREEN_NODES, SCREEN_STEPS = 5, 200, 6
SCREEN_ROWS = 20_000  # of more rows, a sample is screened by folds, and predicts the others
SCREEN_CLIP = 3.0  # spreads, of the targets that the bounded loss starts from
REDRAWN = 6  # sparse layers that are drawn again in every round after the second


# -- what is compared -----------------------------------------------------------------------------


LINEAR = Layer("linear", 1.0, True)
# In the order of their choice: each is the one that, added to those before it, lowers the error
# most on tables that no comparison uses (docs/results/defaults.md).
SEARCH_LAYERS = (
    LINEAR,
    Layer("relu", 1.0, True, 3),
    Layer("cosine", 2.0, True, 2),
    Layer("multiquadric", 2.0, True, 2),
    Layer("cosine", 1.0, True, 3),
    Layer("cosine", 0.125, True),
    Layer("tanh", 1.0, True, 3),
    Layer("laplace", 0.25, True, 3),
    Layer("cosine", 1.0, True, 5),
    Layer("tanh", 4.0, True, 2),
    Layer("cosine", 0.5, False),
    Layer("laplace", 1.0, True, 2),
    Layer("cosine", 2.0, True, 1),
    Layer("tanh", 1.0, True, 2),
    Layer("tanh", 8.0, True, 3),
    Layer("tanh", 4.0, True, 3),
    # Dense layers, for what depends on all inputs at once.
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
    Layer("tanh", 2.0, False),
)
SCREEN_LAYERS = (
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
)


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    search_rows: int  # up to which all rows are searched; of more, a sample
    few_nodes: int  # of the layers in the search
    rounds: int  # of draws guided by what the nodes of earlier ones explained
    # Of more rows than are searched, this many layers are compared on more rows with more nodes.
    n_middle: int
    middle_rows: int
    middle_nodes: int
    n_members: int
    nodes: int  # of the members, for up to 2000 rows
    most_nodes: int

    def nodes_for(self, n_rows: int, n_inputs: int, n_targets: int) -> int:
        """Return the nodes of a member: they grow with the rows, and of many with the columns.

        The time of a fit grows with the square of the nodes, that of boosted trees with inputs
        times targets: the square root keeps pace.
        """
        wider = self.columns_factor(n_inputs, n_targets) if n_rows > self.search_rows else 1.0
        return int(min(self.nodes * max(n_rows / 2000, 1.0) ** 0.2 * wider, self.most_nodes))

    @staticmethod
    def columns_factor(n_inputs: int, n_targets: int) -> float:
        """Return how many times the nodes of a table of 10 inputs and 4 targets one needs."""
        return float(np.sqrt(max(n_inputs * n_targets / 40, 1.0)))


EFFORTS = {
    "fast": Effort(500, 200, 2, 4, 1000, 300, 2, 300, 1000),
    "default": Effort(1000, 300, 4, 10, 2500, 600, 4, 1000, 3000),
    "high": Effort(2000, 500, 6, 12, 6000, 1500, 6, 2000, 6000),
}


# -- the task -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RobustTask:
    """What every step reads: the checked table, its folds, and the estimator's parameters."""

    X: Array  # scaled
    T: Array  # as given; NaN: unknown
    w: Array
    usable: Mask  # rows with a weight and a known target
    folds: Sequence[Fold] | None  # None: leave one out
    seed: int
    effort: Effort
    n_hidden: int | None
    n_threads: int
    progress: bool

    @cached_property
    def tested(self) -> Mask:
        """Which rows get predictions by fits without them."""
        if self.folds is None:
            return np.ones(len(self.T), dtype=bool)
        return np.isin(np.arange(len(self.T)), np.concatenate([f.test for f in self.folds]))

    @cached_property
    def two_groups(self) -> float:
        """The share of variance that two groups of rows must explain to be two in the end.

        Of equal rows only one counts, so that a weight of 2 is the row twice.
        """
        n = int(self.usable.sum())
        if n <= self.effort.search_rows:
            n = len(np.unique(np.column_stack([self.X, self.T])[self.usable], axis=0))
        return TWO_GROUPS + BY_CHANCE / n

    @property
    def few_nodes(self) -> int:
        """The nodes of a layer in the search."""
        return min(self.effort.few_nodes, self.n_hidden or self.effort.few_nodes)

    def nodes_for(self, n_rows: int) -> int:
        """Return the nodes of a member fitted to so many rows."""
        return self.n_hidden or self.effort.nodes_for(n_rows, self.X.shape[1], self.T.shape[1])

    @property
    def many(self) -> bool:
        """Whether only a sample of the rows is searched."""
        return bool(self.usable.sum() > self.effort.search_rows)

    def sample(self, size: int) -> Indices:
        """Return up to `size` usable rows, in order; fewer rows than that: all, usable or not."""
        usable = np.flatnonzero(self.usable)
        if len(usable) <= size:
            return np.arange(len(self.T))
        rng = np.random.default_rng(self.seed)
        chosen = rng.choice(usable, size, replace=False)
        # A value of every target, however rare.
        known = ~np.isnan(self.T) & self.usable[:, None]
        rare = [int(np.argmax(known[:, j])) for j in np.flatnonzero(~known[chosen].any(axis=0))]
        return np.unique(np.concatenate([chosen, np.array(rare, dtype=np.intp)]))

    def folds_of_sample(self, rows: Indices) -> Sequence[Fold] | None:
        """Return the folds of some rows, numbered among them."""
        if self.folds is None or len(rows) == len(self.T):
            return self.folds
        place = np.full(len(self.T), -1)
        place[rows] = np.arange(len(rows))
        thinned = [
            Fold(*(place[part][place[part] >= 0] for part in (fold.train, fold.test)))
            for fold in self.folds
        ]
        return [fold for fold in thinned if len(fold.train) and len(fold.test)] or None

    def part(self, T: Array, expected: Array, kept: Mask, rows: Indices) -> tuple[Part, Scaling]:
        """Return rows to compare layers on, and the scaling of their targets.

        Parameters
        ----------
        T : array (N, m)
            Targets to fit.
        expected : array (N, m)
            Predictions, which stand for unknown targets.
        kept : array of bool (N,)
            Rows to fit.
        rows : array of int
            Rows of the part.
        """
        filled = np.where(np.isnan(T), expected, T)
        scaling = Scaling.fit("standard", filled[kept], self.w[kept])
        folds = self.folds_of_sample(rows)
        if folds is not None and not kept[rows][np.concatenate([f.test for f in folds])].any():
            folds = None  # nothing to compare by
        part = Part(
            self.X[rows],
            scaling.dense(T[rows]),
            scaling.dense(filled[rows]),
            self.w[rows],
            kept[rows],
            folds,
            sketch_of(T.shape[1], self.seed),
        )
        return part, scaling

    def each(
        self, work: Callable[[Item], Result], items: Sequence[Item], what: str
    ) -> list[Result]:
        """Return ``work(item)`` of every item, computed by threads, with a progress bar."""
        results = ordered_map(work, items, self.n_threads)
        return list(track(results, len(items), what, show=self.progress))


# -- step 1: the screen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Screened:
    """Result of the screen."""

    contaminated: bool  # whether the errors form two clear groups
    kept: Mask  # rows that stay
    judging: Mask  # targets by whose errors rows are judged
    T: Array  # to fit: as given, but for rows far beyond all others
    expected: Array  # predictions in the units of y


def screen(task: RobustTask) -> Screened:
    """Set rows aside whose targets no model explains, or move the targets of a few far rows."""
    T, w, usable = task.T, task.w, task.usable
    scaling = Scaling.fit("robust", T[usable], w[usable])
    # A target whose middle half is one value has no spread to judge an error by (the rows off
    # that value would all be outliers), and two or three values are labels.
    judging = np.array([_has_spread(column[usable]) for column in T.T])
    expected = np.broadcast_to(scaling.centre, T.shape).copy()
    if not judging.any():
        return Screened(False, usable, judging, T, expected)
    scaled = scaling.dense(T)[:, judging]
    near = np.clip(scaled, -FARTHEST_TARGET, FARTHEST_TARGET)
    predicted = _bounded_predictions(task, near)
    expected[:, judging] += np.nan_to_num(predicted) * scaling.scale[judging]
    errors = predicted - scaled
    tested = usable & task.tested
    sizes = log_sizes(errors)
    threshold, explained = _split(sizes[tested], w[tested])
    if explained >= TWO_GROUPS:
        kept = usable & ~(tested & (sizes > threshold))
        return Screened(True, kept, judging, T, expected)
    norms = row_scores(np.nan_to_num(errors), errors)
    # Where errors are tiny, many times their spread is still no reason to doubt a row.
    far = max(outlier_threshold(norms[tested], w[tested], whisker=FAR_FENCE), GROSS)
    fence = outlier_threshold(norms[tested], w[tested], whisker=OUTER_FENCE)
    excess = np.where(tested & (norms > far), 1.0 - fence / np.maximum(norms, 1e-100), 0.0)
    T = T.copy()
    T[:, judging] += excess[:, None] * np.nan_to_num(errors) * scaling.scale[judging]
    return Screened(False, usable, judging, T, expected)


def _bounded_predictions(task: RobustTask, T: Array) -> Array:
    """Return predictions of every row by a network with a bounded loss that did not see it."""
    nodes = min(SCREEN_NODES, task.n_hidden or SCREEN_NODES)
    layer, lam = _screen_layer(task, T, nodes)
    rows = task.sample(SCREEN_ROWS)
    hidden = layer.draw(nodes, task.seed, task.X[rows], None, task.w[rows])
    H = with_constant(hidden, task.X[rows])
    predicted: Array = np.empty(T.shape)
    if len(rows) < len(T):
        coef = bounded_fit(H, T[rows], task.w[rows], np.array([lam]))[:, 0]
        for block in blocks(np.arange(len(T))):
            predicted[block] = with_constant(hidden, task.X[block]) @ coef
    predicted[rows] = _bounded_by_folds(task, rows, H, T[rows], np.array([lam]))[:, 0]
    return predicted


def _screen_layer(task: RobustTask, T: Array, nodes: int) -> tuple[Layer, float]:
    """Return the layer and the penalty whose bounded fits predict some rows best."""
    rows = task.sample(max(task.effort.search_rows // 2, 2))
    sketch = sketch_of(T.shape[1], task.seed)
    T = T[rows] if sketch is None else np.nan_to_num(T[rows]) @ sketch

    def losses(layer: Layer) -> Array:
        hidden = layer.draw(nodes, task.seed, task.X[rows], None, task.w[rows])
        H = with_constant(hidden, task.X[rows])
        predicted = _bounded_by_folds(task, rows, H, T, SCREEN_PATH)
        scored = task.usable[rows] & ~np.isnan(predicted[:, 0, 0])
        errors = np.nan_to_num(predicted[scored] - T[scored][:, None])
        norms = np.sqrt(np.einsum("npm,npm->np", errors, errors))
        return np.asarray(task.w[rows][scored] @ norms)

    table = np.array(task.each(losses, SCREEN_LAYERS, "screening rows"))
    best, lam = np.unravel_index(np.argmin(table), table.shape)
    return SCREEN_LAYERS[best], float(SCREEN_PATH[lam])


def _screen_folds(task: RobustTask, rows: Indices) -> Sequence[Fold]:
    """Return the folds of some rows; where rows are left out one by one, a few shuffled folds."""
    given = task.folds_of_sample(rows)
    if given is not None:
        return given
    usable = np.flatnonzero(task.usable[rows])
    order = np.random.default_rng(task.seed).permutation(usable)
    n = min(SCREEN_FOLDS, len(order))
    group = np.full(len(rows), -1)  # rows that cannot be fitted are tested with the first fold
    group[order] = np.arange(len(order)) % n
    return [
        Fold(
            np.flatnonzero((group != k) & (group >= 0)),
            np.flatnonzero((group == k) | (k == 0) & (group < 0)),
        )
        for k in range(n)
    ]


def _bounded_by_folds(task: RobustTask, rows: Indices, H: Array, T: Array, lams: Array) -> Array:
    """Return predictions of some rows, (n, P, m), by bounded fits without their fold."""
    predicted = np.full((len(H), len(lams), T.shape[1]), np.nan)
    for fold in _screen_folds(task, rows):
        train = fold.train[task.usable[rows[fold.train]]]
        if task.folds is not None and np.isnan(T[train]).all(axis=0).any():
            raise ValueError(
                "a target is unknown in all training rows of a fold; use fewer folds or other ones"
            )
        coefs = bounded_fit(H[train], T[train], task.w[rows[train]], lams)
        outputs = H[fold.test] @ coefs.reshape(len(coefs), -1)
        predicted[fold.test] = outputs.reshape(-1, *coefs.shape[1:])
    return predicted


def bounded_fit(H: Array, T: Array, w: Array, lams: Array) -> Array:
    r"""Return output weights (L, P, m) on which every row has a bounded pull.

    Huber's loss of the norm of a row's error, by pseudo-observations: ridge regressions of

    .. math:: t_i^* = p_i + \min(1, \delta / \|t_i - p_i\|)\,(t_i - p_i)

    :math:`p_i` being the leave-one-out prediction of the last regression and :math:`\delta` the
    median norm. All of them share one decomposition of H.
    """
    omega, known = np.sqrt(w)[:, None], ~np.isnan(T)
    path = RidgePath(omega * H, lams)
    T = np.nan_to_num(T)
    predicted = path.left_out(omega * np.clip(T, -SCREEN_CLIP, SCREEN_CLIP)) / omega[:, None]
    for _ in range(SCREEN_STEPS):
        errors = np.where(known[:, None], T[:, None] - predicted, 0.0)
        sizes = np.sqrt(np.einsum("npm,npm->np", errors, errors))
        delta = np.array([float(weighted_quantiles(column, 0.5, w)) for column in sizes.T])
        shorter = np.minimum(1.0, delta / np.maximum(sizes, 1e-300))
        pseudo = omega[:, None] * (predicted + shorter[:, :, None] * errors)
        predicted = path.left_out(pseudo) / omega[:, None]
    return path.coefs(pseudo)


# -- step 2: the search ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """All rows, judged by predictions of fits without them."""

    expected: Array  # predictions in the units of y; NaN where no fold tests
    scores: Array  # NaN where no fold tests
    threshold: float
    flagged: Mask
    kept: Mask  # rows that stay
    two_groups: bool  # whether the errors form two clear groups


@dataclass(frozen=True)
class Found:
    """Result of the search."""

    screened: Screened  # as the search found it to be
    trials: list[Trial]  # best first
    part: Part
    judged: Judged


def search(task: RobustTask, screened: Screened) -> Found:
    """Compare the layers on the rows that stay and judge all rows; again if many changed sides."""
    rows = task.sample(task.effort.search_rows)
    part, scaling = task.part(screened.T, screened.expected, screened.kept, rows)
    trials = compare_layers(task, part)
    judged = _judge_by(task, screened, scaling, trials, rows)
    if screened.contaminated and not (judged.two_groups and _confirmed(task, screened)):
        # Better models explain the rows that the screen set aside. (Never the other way round: the
        # errors of good models have long tails, and rows set aside for them seem wrong ever after.)
        return search(task, replace(screened, contaminated=False, kept=task.usable))
    if screened.contaminated and (judged.kept != screened.kept).mean() > FEW_CHANGES:
        part, scaling = task.part(screened.T, _filling(judged, screened), judged.kept, rows)
        best = trials[: 2 * task.effort.n_members]
        again = task.each(
            lambda t: compare(part, t.layer, t.hidden, t.guide), best, "searching again"
        )
        again.sort(key=lambda trial: trial.score)
        trials = [*again, *trials[len(again) :]]
        judged = _judge_by(task, screened, scaling, again, rows)
    return Found(screened, trials, part, judged)


def _confirmed(task: RobustTask, screened: Screened) -> bool:
    """Whether bounded fits of better layers to all rows see two groups, too.

    Rows of a region of the inputs that the screen's layers cannot follow form a group as well, and
    no model explains them once they are all set aside. Wrong rows do not explain each other.
    """
    rows = task.sample(task.effort.search_rows)
    part, _ = task.part(task.T, screened.expected, task.usable, rows)
    scaling = Scaling.fit("robust", task.T[task.usable], task.w[task.usable])
    T = scaling.dense(task.T[rows])[:, screened.judging]
    T = np.clip(T, -FARTHEST_TARGET, FARTHEST_TARGET)
    w = task.w[rows]

    def drawn(layer: Layer) -> Trial:
        hidden = layer.draw(task.few_nodes, task.seed, part.X, None, part.w)
        return compare(part, layer, hidden, None)

    def explained(trial: Trial) -> float:
        predicted = _bounded_by_folds(
            task, rows, with_constant(trial.hidden, part.X), T, SCREEN_PATH
        )
        errors, tested = predicted - T[:, None], part.kept & ~np.isnan(predicted[:, 0, 0])
        norms = np.linalg.norm(np.nan_to_num(errors[tested]), axis=2)
        sizes = log_sizes(errors[:, int(np.argmin(w[tested] @ norms))])
        return _split(sizes[tested], w[tested])[1]

    trials = sorted(task.each(drawn, SEARCH_LAYERS, "confirming"), key=lambda trial: trial.score)
    return bool(min(task.each(explained, trials[:3], "confirming")) >= TWO_GROUPS)


def compare_layers(task: RobustTask, part: Part) -> list[Trial]:
    """Return a trial of every layer, best first; sparse ones drawn where their nodes help."""
    nodes = task.few_nodes
    sparse = [k for k, layer in enumerate(SEARCH_LAYERS) if is_sparse(layer, part.X.shape[1])]

    def draw(which: tuple[int, int, SubsetGuide | None]) -> Trial:
        k, of_round, guide = which
        layer = SEARCH_LAYERS[k]
        hidden = layer.draw(nodes, task.seed + of_round, part.X, guide, part.w)
        return compare(part, layer, hidden, guide)

    first = [(k, 0, None) for k in range(len(SEARCH_LAYERS))]
    trials = task.each(draw, first, "searching layers")
    for of_round in range(1, task.effort.rounds):
        sparse.sort(key=lambda k: trials[k].score)
        redrawn = sparse if of_round == 1 else sparse[:REDRAWN]
        guides = pooled_guides(part, [trials[k] for k in sparse])
        again = [(k, of_round, guides[SEARCH_LAYERS[k].n_inputs]) for k in redrawn]
        for k, trial in zip(redrawn, task.each(draw, again, "redrawing layers"), strict=True):
            if trial.score < trials[k].score:
                trials[k] = trial
    return sorted(trials, key=lambda trial: trial.score)


def is_sparse(layer: Layer, n_features: int) -> bool:
    """Whether the nodes of a layer see fewer inputs than there are."""
    return layer.n_inputs is not None and layer.n_inputs < n_features


def best_of(trials: Sequence[Trial], n_members: int) -> list[Trial]:
    """Return the first `n_members`, without those that are much worse than the very first."""
    most = MUCH_WORSE * trials[0].score
    return [trials[0], *(one for one in trials[1:n_members] if one.score <= most)]


def _judge_by(
    task: RobustTask, screened: Screened, scaling: Scaling, trials: Sequence[Trial], rows: Indices
) -> Judged:
    """Judge all rows by the average of the best trials, which were fitted to some of them."""
    members = best_of(trials, task.effort.n_members)
    predicted = np.zeros(task.T.shape)
    for member in members:
        if len(rows) < len(predicted):
            predicted += member.outputs(task.X)
    predicted[rows] = sum(member.predicted for member in members)
    return judge(task, screened, scaling.undo(predicted / len(members)))


def judge(task: RobustTask, screened: Screened, expected: Array) -> Judged:
    """Judge all rows by their errors, in spreads of the targets."""
    T, w = task.T, task.w
    tested = task.tested & ~np.isnan(expected).any(axis=1)
    spread = Scaling.fit("robust", screened.T[task.usable], w[task.usable]).scale
    judging = screened.judging if screened.judging.any() else slice(None)
    with np.errstate(over="ignore"):
        errors = np.clip((expected - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    sizes = log_sizes(errors[:, judging])
    by = tested & task.usable
    threshold, explained = _split(sizes[by], w[by])
    if not screened.contaminated:
        threshold = outlier_threshold(sizes[by], w[by], whisker=OUTER_FENCE)
    flagged = tested & (sizes > threshold)
    return Judged(
        expected=np.where(tested[:, None], expected, np.nan),
        scores=np.where(tested, np.expm1(sizes), np.nan),
        threshold=float(np.expm1(threshold)),
        flagged=flagged,
        kept=task.usable & ~flagged if screened.contaminated else screened.kept,
        two_groups=explained >= task.two_groups,
    )


# -- step 3: all nodes, all rows ------------------------------------------------------------------


@dataclass(frozen=True)
class Refined:
    """Members compared on all rows that stay."""

    members: list[Trial]
    part: Part  # all rows
    scaling: Scaling  # of the targets
    judged: Judged


def refine(task: RobustTask, found: Found) -> Refined:
    """Give the best layers all their nodes and all rows, and judge all rows once more."""
    screened, every = found.screened, np.arange(len(task.T))
    filling, kept = _filling(found.judged, screened), found.judged.kept
    part, scaling = task.part(screened.T, filling, kept, every)
    if task.many:
        some = task.sample(task.effort.middle_rows)
        trials = _grown_by_sums(task, found, task.part(screened.T, filling, kept, some)[0], part)
    else:
        trials = _grown(task, found, part)
    members, judged = _members(task, screened, scaling, trials)
    if screened.contaminated and (judged.kept != kept).mean() > FEW_CHANGES:
        part, scaling = task.part(screened.T, _filling(judged, screened), judged.kept, every)
        trials = [_fitted_again(task, part, member) for member in members]
        members, judged = _members(task, screened, scaling, trials)
    return Refined(members, part, scaling, judged)


def _members(
    task: RobustTask, screened: Screened, scaling: Scaling, trials: Sequence[Trial]
) -> tuple[list[Trial], Judged]:
    """Return the best of trials on all rows, and all rows judged by their average."""
    members = best_of(sorted(trials, key=lambda trial: trial.score), task.effort.n_members)
    predicted = np.mean([member.predicted for member in members], axis=0)
    return members, judge(task, screened, scaling.undo(predicted))


def _fitted_again(task: RobustTask, part: Part, trial: Trial) -> Trial:
    """Compare a drawn layer once more, on other rows."""
    if not task.many:
        return compare(part, trial.layer, trial.hidden, trial.guide)
    return FoldedFit(
        part,
        trial.layer,
        trial.hidden,
        trial.guide,
        trial.lam,
        seed=task.seed,
        n_threads=task.n_threads,
    ).trial()


def _grown(task: RobustTask, found: Found, part: Part) -> list[Trial]:
    """Compare the best layers with all their nodes, and as they were."""
    guides = pooled_guides(found.part, found.trials)
    nodes = task.nodes_for(int(part.kept.sum()))

    def grown(trial: Trial) -> Trial:
        guide = guides[trial.layer.n_inputs] if trial.guide is not None else None
        hidden = trial.layer.draw(nodes, task.seed, part.X, guide, part.w)
        return compare(part, trial.layer, hidden, guide)

    best = best_of(found.trials, task.effort.n_members)
    # Few nodes may do better than many; the score of the same rows tells.
    same_rows = best if (part.kept == found.part.kept).all() else []
    return [*task.each(grown, best, "fitting"), *same_rows]


def _grown_by_sums(task: RobustTask, found: Found, some: Part, part: Part) -> list[Trial]:
    """Compare good layers with more nodes on some rows, the best of them with all on all."""
    guides = pooled_guides(found.part, found.trials)
    effort, guided = task.effort, {t.layer for t in found.trials if t.guide is not None}

    def fit(rows: Part, layer: Layer, nodes: int, start: int, n_threads: int) -> FoldedFit:
        guide = guides[layer.n_inputs] if layer in guided else None
        hidden = layer.draw(nodes, task.seed, rows.X, guide, rows.w)
        return FoldedFit(rows, layer, hidden, guide, start, seed=task.seed, n_threads=n_threads)

    wider = min(effort.columns_factor(part.X.shape[1], part.T.shape[1]), 2.0)
    nodes = task.n_hidden or int(effort.middle_nodes * wider)
    more = (some.kept.sum() * nodes) / (found.part.kept.sum() * task.few_nodes)
    middle = task.each(
        lambda trial: fit(some, trial.layer, nodes, lam_for_more(trial.lam, more), 1),
        found.trials[: effort.n_middle],
        "comparing",
    )
    guides |= pooled_guides(some, [one.on_judging_fold() for one in middle])
    best = [(o.layer, o.lam) for o in complementary(middle, max(effort.n_members - 1, 1))]
    del middle  # and the sums that it holds
    most_nodes = task.nodes_for(int(part.kept.sum()))
    more = (part.kept.sum() * most_nodes) / (some.kept.sum() * nodes)
    return [
        fit(part, layer, most_nodes, lam_for_more(lam, more), task.n_threads).trial()
        for layer, lam in track(best, len(best), "fitting", show=task.progress)
    ]


def _filling(judged: Judged, screened: Screened) -> Array:
    """Return predictions of every row to stand for unknown targets."""
    return np.where(np.isnan(judged.expected), screened.expected, judged.expected)


# -- step 4: the fit ------------------------------------------------------------------------------


def fit_members(task: RobustTask, screened: Screened, refined: Refined) -> list[RELMRegressor]:
    """Fit the members to all rows that stay."""
    part, judged = refined.part, refined.judged
    kept, omega = judged.kept, np.sqrt(part.w)[:, None]
    target = part.filled
    if screened.contaminated:
        target = bounded_targets(part, refined.scaling.dense(judged.expected), kept)

    def fitted(trial: Trial) -> RELMRegressor:
        if trial.sums is None:
            H = omega[kept] * with_constant(trial.hidden, part.X[kept])
            coef, unit = ridge_coef(H, omega[kept] * target[kept], PATH[trial.lam]), np.vdot(H, H)
            return _as_estimator(task, trial, coef, float(unit))
        sums, before = trial.sums
        for rows, sign in ((kept & ~before, 1.0), (before & ~kept, -1.0)):
            for block in blocks(np.flatnonzero(rows)):
                H = omega[block] * with_constant(trial.hidden, part.X[block])
                sums.add(H, omega[block] * part.filled[block], sign)
        for block in blocks(np.flatnonzero(kept & (target != part.filled).any(axis=1))):
            H = omega[block] * with_constant(trial.hidden, part.X[block])
            np.add(sums.C, H.T @ (omega[block] * (target - part.filled)[block]), out=sums.C)
        coef = sums.coef(PATH[trial.lam])
        return _as_estimator(task, trial, coef, float(np.trace(sums.G)))

    return list(ordered_map(fitted, refined.members, task.n_threads))


def bounded_targets(part: Part, predicted: Array, kept: Mask) -> Array:
    """Return the targets, none of those kept beyond a fence around its prediction."""
    tested = kept & ~np.isnan(predicted).any(axis=1)
    errors = np.where(tested[:, None], part.filled - predicted, 0.0)
    sizes = np.sqrt(np.einsum("nm,nm->n", errors, errors))
    fence = outlier_threshold(sizes[tested], part.w[tested], whisker=INNER_FENCE)
    beyond = tested & (sizes > fence)
    shorter = np.where(beyond, fence / np.maximum(sizes, 1e-300), 1.0)[:, None]
    return np.where(beyond[:, None], np.nan_to_num(predicted) + shorter * errors, part.filled)


def _as_estimator(task: RobustTask, trial: Trial, coef: Array, unit: float) -> RELMRegressor:
    """Return a fitted R-ELM with a trial's layer and these output weights."""
    n_features = task.X.shape[1]
    model = trial.layer.estimator(trial.hidden.n_nodes, n_features, task.seed)
    model.C = 1.0 / max(float(PATH[trial.lam]) * unit, np.finfo(float).tiny)
    model.n_features_in_, model._one_target = n_features, False
    model._input_scaling = Scaling(np.zeros(n_features), np.ones(n_features))
    model._target_scaling = Scaling(np.zeros(coef.shape[1]), np.ones(coef.shape[1]))
    model.hidden_ = trial.hidden
    model._remember(Weights(coef[:-1], coef[-1]))
    return model


# -- the estimator --------------------------------------------------------------------------------


@parameters
class RobustELMRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Robust multi-target regression without a parameter to choose.

    Scales inputs and targets, sets aside rows whose targets nothing explains, searches hidden
    layers and penalties out of sample on the others, and averages the best few networks
    (:mod:`gorelm.estimators.robust` has the whole story).

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
        Whether the errors fell into two clear groups, so that rows were set aside.
    outlier_scores_ : ndarray of shape (n_samples,)
        Typical size e of each row's out-of-sample errors, in units of the targets' spread:
        1 + e is the geometric mean of 1 + abs(error) over the targets (NaN where `cv` never tests).
    outlier_threshold_ : float
        Scores above it are flagged.
    outlier_mask_ : ndarray of bool, shape (n_samples,)
        The flagged rows; they had no part in the fit if `contaminated_`.
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
        X : array of shape (n_samples, n_features)
            Inputs.
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
            with naming_table_regressor():
                inputs: Array = validate_data(self, X, dtype=np.float64)
            threads = n_threads(self.n_jobs)
            with one_blas_thread():
                self._fit(inputs, y, sample_weight, threads)
        return self

    def _fit(self, X: Array, y: object, sample_weight: object, threads: int) -> None:
        T, w = validate_targets(self, X, y, sample_weight)
        usable = usable_rows(T, w)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        given = {"n_members": self.n_members, "search_rows": self.search_rows}
        effort = replace(
            EFFORTS[self.effort], **{name: n for name, n in given.items() if n is not None}
        )
        input_scaling = Scaling.fit("standard", X[usable], w[usable])
        task = RobustTask(
            _within_reach(input_scaling, X),
            T,
            w,
            usable,
            None if self.cv is None else folds_of(self.cv, X, T, seed),
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
        self.contaminated_ = found.screened.contaminated
        self.cv_results_ = _results(found.trials)
        self.out_of_fold_ = judged.expected[:, 0] if self._one_target else judged.expected
        self.outlier_scores_ = judged.scores
        self.outlier_threshold_ = judged.threshold
        self.outlier_mask_ = judged.flagged
        self.members_ = members
        self.timings_ = clock.laps
        self._input_scaling, self._target_scaling = input_scaling, refined.scaling

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


@dataclass
class Clock:
    """Seconds of the steps of a fit."""

    laps: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        """Note how long a step has taken."""
        now = time.perf_counter()
        self.laps[step], self._last = now - self._last, now


def _within_reach(scaling: Scaling, X: Array) -> Array:
    """Return scaled inputs, none farther than FARTHEST_INPUT."""
    return np.asarray(np.clip(scaling.dense(X), -FARTHEST_INPUT, FARTHEST_INPUT))


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
