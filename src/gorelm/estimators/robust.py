r"""One estimator for contaminated tables: it needs no parameter to be chosen.

Four steps, in each of which a row is judged by models that were not fitted to its target:

1. *Screen* (`screen`). A few networks with a bounded loss, fitted to folds. If their out-of-fold
   errors, as the mean over the targets of log(1 + |error|), form two clear groups, the rows of the
   upper group are set aside. If not, every row stays, and only the targets of rows far beyond all
   others are moved towards their predictions.
2. *Search* (`search`). Ridge paths of many hidden layers with few nodes, on the rows that stay (of
   many rows, on a sample), compared by leave-one-out. Layers whose nodes see few inputs are drawn
   again where their nodes explained most, as long as the score improves. The best few layers become
   the members of an ensemble; their predictions judge all rows again.
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
import zlib
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
from gorelm._features.activations import ACTIVATIONS
from gorelm._features.guide import SubsetGuide, explained_by_subset
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._solver.ridge import RidgePath, RidgeSums, ridge_coef
from gorelm._solver.threads import n_threads, one_blas_thread, ordered_map
from gorelm._typing import Array, Constraints, Indices, Mask, RandomState
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators._base import Weights, all_or_nothing, parameters
from gorelm.estimators._prepare import row_scores, usable_rows, validate_targets
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
INNER_FENCE, OUTER_FENCE = 1.5, 3.0  # Tukey's: where a pull is bounded; which rows are flagged
FAR_FENCE = 10.0  # beyond it the targets of even a single row are moved
# In spreads of the targets. For the first split into two groups, larger errors count as this; in a
# table of one group, no target with a smaller error is moved.
GROSS = 10.0
FARTHEST_INPUT = 10.0  # standard deviations; beyond, hidden nodes would extrapolate
FARTHEST_TARGET = 1e100  # spreads; a single estimator refuses larger ones
MUCH_WORSE = 1.25  # times the best layer's squared error: no member beyond
FEW_CHANGES = 0.01  # share of rows that may be set aside or come back without another search

# Penalties in units of the squared norm of H.
PATH = 2.0 ** -np.arange(0, 45, 2.0)
SCREEN_PATH = 2.0 ** -np.arange(4, 36, 3.0)
SCREEN_FOLDS, SCREEN_NODES, SCREEN_STEPS = 5, 200, 6
SCREEN_CLIP = 3.0  # spreads, of the targets that the bounded loss starts from
FOLDS_OF_MANY = 4  # for more rows than are searched
MOST_SUMS = 5  # folds whose H'H are held at a time
VALIDATION_ROWS = 2000  # of one fold, by which the penalty for all rows is chosen
GUIDING = 2.0  # times the best layer's squared error: what nodes beyond explain guides no draw
REDRAWN = 6  # sparse layers that are drawn again in every round after the second
BLOCK_ROWS = 2048  # of H at a time


# -- what is compared -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A hidden layer to try; `spread` is the standard deviation of its nodes' inputs."""

    activation: str
    spread: float
    direct_link: bool
    n_inputs: int | None = None  # that a node sees; None: all

    @property
    def linear(self) -> bool:
        """Whether there are no hidden nodes."""
        return self.activation == "linear"

    def settings(self, n_hidden: int, n_features: int, seed: int) -> dict[str, object]:
        """Return the parameters of an estimator with this layer, for scaled rows."""
        n_seen = min(self.n_inputs or n_features, n_features)
        radial = not self.linear and ACTIVATIONS[self.activation].radial
        return {
            "n_hidden": 0 if self.linear else n_hidden,
            "activation": "tanh" if self.linear else self.activation,
            # Uniform weights on [-1, 1] have variance 1/3, inputs variance 1.
            "weight_scale": self.spread if radial else self.spread * np.sqrt(3.0 / n_seen),
            "direct_link": self.direct_link,
            "n_inputs": self.n_inputs,
            # Every layer draws weights of its own, so that averaging lowers their variance.
            "random_state": (seed + zlib.crc32(repr(self).encode())) % 2**31,
        }

    def draw(self, n_hidden: int, seed: int, X: Array, guide: SubsetGuide | None) -> HiddenLayer:
        """Draw the layer for scaled rows X; radial nodes have some of them as centres."""
        settings = self.settings(n_hidden, X.shape[1], seed)
        return HiddenLayer.draw(settings.pop("n_hidden"), X.shape[1], X=X, guide=guide, **settings)


def spread_of(model: RELMRegressor) -> float:
    """Return the `spread` of the layer that a fitted estimator has its settings from."""
    radial = ACTIVATIONS[model.activation].radial
    n_seen = min(model.n_inputs or model.n_features_in_, model.n_features_in_)
    return float(model.weight_scale * (1.0 if radial else np.sqrt(n_seen / 3.0)))


LINEAR = Layer("linear", 1.0, True)
# In the order in which `benchmarks/defaults.py` chose them: each is the one that, added to those
# before it, lowers the error most on tables that no comparison uses.
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

    def nodes_for(self, n_rows: int) -> int:
        """Return the nodes of a member: they grow with the fifth root of the rows."""
        grown = self.nodes * max(n_rows / 2000, 1.0) ** 0.2
        return int(min(grown, self.most_nodes))


EFFORTS = {
    "fast": Effort(500, 200, 2, 4, 1000, 300, 2, 300, 1000),
    "default": Effort(1000, 300, 4, 8, 2500, 600, 4, 1000, 4000),
    "high": Effort(2000, 500, 6, 12, 6000, 1500, 6, 2000, 6000),
}


@dataclass(frozen=True)
class Part:
    """Rows on which layers are compared."""

    X: Array  # scaled
    T: Array  # scaled; NaN: unknown
    filled: Array  # the same with predictions for what is unknown
    w: Array
    kept: Mask  # rows that are fitted
    folds: Sequence[Fold] | None  # None: leave one out

    def mean_squares(self, predicted: Array, rows: Mask | Indices) -> Array:
        """Return the mean squared norm of the errors of some rows, of predictions (n, P, m)."""
        errors = np.nan_to_num(predicted - self.T[rows][:, None])
        w = self.w[rows]
        return np.asarray(np.einsum("n,npm,npm->p", w, errors, errors) / w.sum())


@dataclass(frozen=True, eq=False)
class Trial:
    """A drawn layer at the best of its penalties."""

    layer: Layer
    hidden: HiddenLayer
    guide: SubsetGuide | None  # by which it was drawn
    lam: int  # index in the path
    score: float  # mean squared norm of the errors: smaller is better
    predicted: Array  # (rows, m): by fits without the row; NaN where no fold tests it
    coef: Array  # fitted to all rows that are kept; the last row is the intercept
    sums: tuple[RidgeSums, Mask] | None = None  # of many rows: H'H, H'T, and the rows in them

    def outputs(self, X: Array) -> Array:
        """Return the predictions for other scaled rows."""
        out = np.empty((len(X), self.coef.shape[1]))
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            out[rows] = with_constant(self.hidden, X[rows]) @ self.coef
        return out


def with_constant(hidden: HiddenLayer, X: Array) -> Array:
    """Return the hidden outputs of scaled rows, and a last column of ones.

    Without it, rows centred at their mean that are fewer than their inputs would tell each other's
    targets: each is minus the sum of the others.
    """
    H = np.empty((len(X), hidden.n_outputs + 1))
    hidden.transform(X, out=H[:, :-1])
    H[:, -1] = 1.0
    return H


def compare(part: Part, layer: Layer, hidden: HiddenLayer, guide: SubsetGuide | None) -> Trial:
    """Fit a drawn layer to the kept rows at every penalty, and predict each row without it."""
    H, omega, kept = with_constant(hidden, part.X), np.sqrt(part.w)[:, None], part.kept
    if part.folds is None:
        path = RidgePath(omega[kept] * H[kept], PATH)
        T = omega[kept] * part.filled[kept]
        left_out = path.left_out(T) / omega[kept][:, None]
        squares = part.mean_squares(left_out, kept)
        best = int(np.argmin(squares))
        coef = path.coef(T, best)
        predicted = H @ coef
        predicted[kept] = left_out[:, best]
    else:
        of_folds = _by_folds(part, H, omega)
        scored = kept & ~np.isnan(of_folds[:, 0, 0])
        squares = part.mean_squares(of_folds[scored], scored)
        best = int(np.argmin(squares))
        coef = ridge_coef(omega[kept] * H[kept], omega[kept] * part.filled[kept], PATH[best])
        predicted = of_folds[:, best]
    return Trial(layer, hidden, guide, best, float(squares[best]), predicted, coef)


def _by_folds(part: Part, H: Array, omega: Array) -> Array:
    """Return the mean prediction by the folds that test a row, (n, P, m); NaN where none does."""
    kept, weighted, T = part.kept, omega * H, omega * part.filled
    total = np.zeros((len(H), len(PATH), T.shape[1]))
    count = np.zeros(len(H))
    tall = int(kept.sum()) > H.shape[1]
    whole = _sums(weighted[kept], T[kept]) if tall else None
    for fold in part.folds or ():
        train = fold.train[kept[fold.train]]
        if whole is None:
            coefs = RidgePath(weighted[train], PATH).coefs(T[train])
        elif is_complement(fold, len(H)):
            test = fold.test[kept[fold.test]]
            coefs = (whole - _sums(weighted[test], T[test])).coefs(PATH)
        else:
            coefs = _sums(weighted[train], T[train]).coefs(PATH)
        predicted = H[fold.test] @ coefs.reshape(len(coefs), -1)
        total[fold.test] += predicted.reshape(-1, *coefs.shape[1:])
        count[fold.test] += 1.0
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(count, count, np.nan)[:, None, None])


def _sums(H: Array, T: Array) -> RidgeSums:
    sums = RidgeSums.zero(H.shape[1], T.shape[1])
    sums.add(H, T)
    return sums


def is_complement(fold: Fold, n_rows: int) -> bool:
    """Whether a fold trains on just the rows that it does not test."""
    seen = np.bincount(np.concatenate([fold.train, fold.test]), minlength=n_rows)
    return bool((seen == 1).all())


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
        part = Part(
            self.X[rows],
            scaling.dense(T[rows]),
            scaling.dense(filled[rows]),
            self.w[rows],
            kept[rows],
            self.folds_of_sample(rows),
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
    expected[:, judging] = predicted * scaling.scale[judging] + scaling.centre[judging]
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
    excess = np.where(tested & (norms > far), 1.0 - far / np.maximum(norms, 1e-100), 0.0)
    T = T.copy()
    T[:, judging] += excess[:, None] * errors * scaling.scale[judging]
    return Screened(False, usable, judging, T, expected)


def _bounded_predictions(task: RobustTask, T: Array) -> Array:
    """Return predictions of every row by networks with a bounded loss that did not see it."""
    few = task.sample(max(task.effort.search_rows // 2, 2))
    folds = _screen_folds(task, few)
    nodes = min(SCREEN_NODES, task.n_hidden or SCREEN_NODES)

    def outputs(layer: Layer) -> Array:
        X = task.X[few]
        hidden = layer.draw(nodes, task.seed, X, None)
        return _bounded_by_folds(with_constant(hidden, X), T[few], task, few, folds, SCREEN_PATH)

    best: tuple[float, Layer, int] | None = None
    for layer, predicted in zip(
        SCREEN_LAYERS, task.each(outputs, SCREEN_LAYERS, "screening rows"), strict=True
    ):
        scored = task.usable[few] & ~np.isnan(predicted[:, 0, 0])
        errors = np.nan_to_num(predicted[scored] - T[few][scored][:, None])
        losses = task.w[few][scored] @ np.sqrt(np.einsum("npm,npm->np", errors, errors))
        p = int(np.argmin(losses))
        if best is None or losses[p] < best[0]:
            best = float(losses[p]), layer, p
    _, layer, p = best
    lams = SCREEN_PATH[[p]]
    rows = task.sample(task.effort.search_rows)
    hidden = layer.draw(nodes, task.seed, task.X[rows], None)
    H = with_constant(hidden, task.X[rows])
    predicted = np.empty(T.shape)
    used = task.usable[rows]
    if len(rows) < len(T):
        coef = bounded_fit(H[used], T[rows][used], task.w[rows][used], lams)[:, 0]
        predicted[...] = Trial(layer, hidden, None, p, 0.0, predicted, coef).outputs(task.X)
    by_folds = _bounded_by_folds(H, T[rows], task, rows, _screen_folds(task, rows), lams)[:, 0]
    predicted[rows] = by_folds
    return predicted


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


def _bounded_by_folds(
    H: Array, T: Array, task: RobustTask, rows: Indices, folds: Sequence[Fold], lams: Array
) -> Array:
    predicted = np.full((len(H), len(lams), T.shape[1]), np.nan)
    for fold in folds:
        train = fold.train[task.usable[rows[fold.train]]]
        if not len(train) or np.isnan(T[train]).all(axis=0).any():
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
    if screened.contaminated and not judged.two_groups:
        # A better model explains the rows that the screen set aside.
        return search(task, replace(screened, contaminated=False, kept=task.usable))
    if screened.contaminated and (judged.kept != screened.kept).mean() > FEW_CHANGES:
        part, scaling = task.part(screened.T, _filling(judged, screened), judged.kept, rows)
        best = trials[: 2 * task.effort.n_members]
        again = task.each(
            lambda t: compare(part, t.layer, t.hidden, t.guide), best, "searching again"
        )
        trials = sorted(again, key=lambda trial: trial.score)
        judged = _judge_by(task, screened, scaling, trials, rows)
    return Found(screened, trials, part, judged)


def compare_layers(task: RobustTask, part: Part) -> list[Trial]:
    """Return a trial of every layer, best first; sparse ones drawn where their nodes help."""
    nodes = min(task.effort.few_nodes, task.n_hidden or task.effort.few_nodes)
    sparse = [k for k, layer in enumerate(SEARCH_LAYERS) if is_sparse(layer, part.X.shape[1])]

    def draw(which: tuple[int, int, SubsetGuide | None]) -> Trial:
        k, of_round, guide = which
        layer = SEARCH_LAYERS[k]
        hidden = layer.draw(nodes, task.seed + of_round, part.X, guide)
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


def pooled_guides(part: Part, trials: Sequence[Trial]) -> dict[int | None, SubsetGuide]:
    """Return what the nodes with each number of inputs explain, on average over good trials."""
    guides: dict[int | None, SubsetGuide] = {}
    trials = [trial for trial in trials if trial.hidden.subsets is not None]
    for n_inputs in {trial.layer.n_inputs for trial in trials}:
        same = [trial for trial in trials if trial.layer.n_inputs == n_inputs]
        most = GUIDING * min(trial.score for trial in same)
        guides[n_inputs] = SubsetGuide.pooled(
            [guide_of(part, trial) for trial in same if trial.score <= most]
        )
    return guides


def guide_of(part: Part, trial: Trial) -> SubsetGuide:
    """Return the subsets of inputs of a trial's nodes, each as probable as what they explain."""
    n_linked = len(trial.hidden.inputs)
    H = trial.hidden.transform(part.X[part.kept])[:, n_linked:]
    return explained_by_subset(trial.hidden, H, trial.coef[n_linked:-1], part.w[part.kept])


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
    sizes = log_sizes(((expected - T) / spread)[:, judging])
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
        two_groups=explained >= TWO_GROUPS,
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
    screened = found.screened
    filling, kept = _filling(found.judged, screened), found.judged.kept
    part, scaling = task.part(screened.T, filling, kept, np.arange(len(task.T)))
    if task.many:
        some = task.sample(task.effort.middle_rows)
        trials = _grown_by_sums(task, found, task.part(screened.T, filling, kept, some)[0], part)
    else:
        trials = _grown(task, found, part)
    members = best_of(sorted(trials, key=lambda trial: trial.score), task.effort.n_members)
    predicted = np.mean([member.predicted for member in members], axis=0)
    return Refined(members, part, scaling, judge(task, screened, scaling.undo(predicted)))


def _grown(task: RobustTask, found: Found, part: Part) -> list[Trial]:
    """Compare the best layers with all their nodes, and as they were."""
    guides = pooled_guides(found.part, found.trials)
    nodes = task.n_hidden or task.effort.nodes_for(int(part.kept.sum()))

    def grown(trial: Trial) -> Trial:
        guide = guides[trial.layer.n_inputs] if trial.guide is not None else None
        hidden = trial.layer.draw(nodes, task.seed, part.X, guide)
        return compare(part, trial.layer, hidden, guide)

    best = best_of(found.trials, task.effort.n_members)
    # Few nodes may do better than many; the score of the same rows tells.
    same_rows = best if (part.kept == found.part.kept).all() else []
    return [*task.each(grown, best, "fitting"), *same_rows]


def _grown_by_sums(task: RobustTask, found: Found, some: Part, part: Part) -> list[Trial]:
    """Compare good layers with more nodes on some rows, the best of them with all on all."""
    guides = pooled_guides(found.part, found.trials)
    effort, guided = task.effort, {t.layer for t in found.trials if t.guide is not None}

    def fit(rows: Part, layer: Layer, nodes: int, start: int) -> FoldedFit:
        guide = guides[layer.n_inputs] if layer in guided else None
        hidden = layer.draw(nodes, task.seed, rows.X, guide)
        return FoldedFit(task, rows, layer, hidden, guide, start)

    nodes = task.n_hidden or effort.middle_nodes
    more = (some.kept.sum() * nodes) / (found.part.kept.sum() * effort.few_nodes)
    middle = [
        fit(some, trial.layer, nodes, lam_for_more(trial.lam, more))
        for trial in track(
            found.trials[: effort.n_middle], effort.n_middle, "comparing", show=task.progress
        )
    ]
    best = complementary(middle, max(effort.n_members - 1, 1))
    guides |= pooled_guides(some, [one.on_first_fold() for one in middle])
    most_nodes = task.n_hidden or effort.nodes_for(int(part.kept.sum()))
    more = (part.kept.sum() * most_nodes) / (some.kept.sum() * nodes)
    return [
        fit(part, one.layer, most_nodes, lam_for_more(one.lam, more)).trial()
        for one in track(best, len(best), "fitting", show=task.progress)
    ]


def complementary(fits: Sequence[FoldedFit], n_members: int) -> list[FoldedFit]:
    """Return the fits whose average is best on the first fold, added one by one while it helps.

    Many rows reward sharp layers, which few nodes rank low; but their errors are their own.
    """
    chosen: list[FoldedFit] = []
    least = np.inf
    while len(chosen) < min(n_members, len(fits)):
        losses = {
            k: fits[0].loss_of(np.mean([f.on_valid for f in (*chosen, one)], axis=0))
            for k, one in enumerate(fits)
            if one not in chosen
        }
        best = min(losses, key=lambda k: losses[k])
        if losses[best] >= least:
            break
        chosen.append(fits[best])
        least = losses[best]
    return chosen


def lam_for_more(lam: int, times: float) -> int:
    """Return a first guess of the penalty for a larger H, as an index in the path.

    In units of the squared norm of H, `times` as many rows or nodes bear so many times less.
    """
    steps = int(np.rint(np.log(times) / np.log(PATH[0] / PATH[1])))
    return min(max(lam + steps, 0), len(PATH) - 1)


def _filling(judged: Judged, screened: Screened) -> Array:
    """Return predictions of every row to stand for unknown targets."""
    return np.where(np.isnan(judged.expected), screened.expected, judged.expected)


class FoldedFit:
    """A layer fitted without each of a few folds, by differences of sums over blocks of rows.

    The penalty is searched from a first guess, on some rows of the first fold.

    Parameters
    ----------
    task : RobustTask
        For its threads and its seed.
    part : Part
        Rows; without folds of their own they are shuffled into a few.
    layer, hidden, guide
        The layer, drawn by the guide.
    start : int
        First guess of the penalty, as an index in the path.

    Attributes
    ----------
    lam : int
        The penalty, as an index in the path.
    loss : float
        Mean squared norm of the errors of the rows of the first fold.
    """

    def __init__(
        self,
        task: RobustTask,
        part: Part,
        layer: Layer,
        hidden: HiddenLayer,
        guide: SubsetGuide | None,
        start: int,
    ) -> None:
        self.layer, self._hidden, self._guide, self._part = layer, hidden, guide, part
        self._n_threads, self._omega = task.n_threads, np.sqrt(part.w)[:, None]
        self._folds = part.folds or shuffled_folds(len(part.X), FOLDS_OF_MANY, task.seed)
        self._complements = all(is_complement(fold, len(part.X)) for fold in self._folds)
        partition = self._complements and sum(len(f.test) for f in self._folds) == len(part.X)
        self._held: list[RidgeSums] | None = None
        if partition and len(self._folds) <= MOST_SUMS:
            tests = [self._kept(fold.test) for fold in self._folds]
            self._held = list(ordered_map(self._sums, tests, task.n_threads))
            self._whole = sum(self._held[1:], start=self._held[0])
        else:
            self._whole = self._sums(np.flatnonzero(part.kept))
        self._first = next(k for k, f in enumerate(self._folds) if len(self._kept(f.test)))
        self._valid = self._kept(self._folds[self._first].test)[:VALIDATION_ROWS]
        self._H_valid = with_constant(hidden, part.X[self._valid])
        self._coefs: dict[int, Array] = {}  # without the first fold, for each penalty tried
        self.lam, self.loss = _descend(self._loss, start)

    def _kept(self, rows: Indices) -> Indices:
        return rows[self._part.kept[rows]]

    def _sums(self, rows: Indices) -> RidgeSums:
        part, omega = self._part, self._omega
        sums = RidgeSums.zero(self._hidden.n_outputs + 1, part.T.shape[1])
        for block in blocks(rows):
            H = omega[block] * with_constant(self._hidden, part.X[block])
            sums.add(H, omega[block] * part.filled[block])
        return sums

    def _coef_without(self, fold: int, lam: int) -> Array:
        if self._held is not None:
            sums = self._whole - self._held[fold]
        elif self._complements:
            sums = self._whole - self._sums(self._kept(self._folds[fold].test))
        else:
            sums = self._sums(self._kept(self._folds[fold].train))
        return sums.coef(PATH[lam])

    def _loss(self, lam: int) -> float:
        self._coefs[lam] = self._coef_without(self._first, lam)
        return self.loss_of(self._H_valid @ self._coefs[lam])

    def loss_of(self, predicted: Array) -> float:
        """Return the mean squared norm of the errors of predictions of the validation rows."""
        return float(self._part.mean_squares(predicted[:, None], self._valid)[0])

    @property
    def on_valid(self) -> Array:
        """Predictions of the validation rows."""
        return np.asarray(self._H_valid @ self._coefs[self.lam])

    def on_first_fold(self) -> Trial:
        """Return the fit without the first fold."""
        nothing = np.empty((0, self._part.T.shape[1]))
        coef = self._coefs[self.lam]
        return Trial(self.layer, self._hidden, self._guide, self.lam, self.loss, nothing, coef)

    def trial(self) -> Trial:
        """Fit without every fold, and to all rows."""
        part, lam = self._part, self.lam

        def predictions(fold: int) -> Array:
            known = fold == self._first
            coef = self._coefs[lam] if known else self._coef_without(fold, lam)
            test = blocks(self._folds[fold].test)
            outputs = [with_constant(self._hidden, part.X[block]) @ coef for block in test]
            return np.concatenate(outputs)

        total, count = np.zeros(part.T.shape), np.zeros((len(part.T), 1))
        of_folds = ordered_map(predictions, range(len(self._folds)), self._n_threads)
        for fold, outputs in zip(self._folds, of_folds, strict=True):
            total[fold.test] += outputs
            count[fold.test] += 1.0
        with np.errstate(invalid="ignore"):
            predicted = np.asarray(total / np.where(count, count, np.nan))
        scored = part.kept & (count[:, 0] > 0)
        score = float(part.mean_squares(predicted[scored][:, None], scored)[0])
        coef, sums = self._whole.coef(PATH[lam]), (self._whole, part.kept)
        return Trial(self.layer, self._hidden, self._guide, lam, score, predicted, coef, sums)


def _descend(loss: Callable[[int], float], start: int) -> tuple[int, float]:
    """Return where in the path neither neighbour has a smaller loss, and the loss there."""
    best, least = start, loss(start)
    for step in (1, -1):
        moved = False
        while 0 <= best + step < len(PATH) and (other := loss(best + step)) < least:
            best, least, moved = best + step, other, True
        if moved:
            break
    return best, least


def blocks(rows: Indices) -> list[Indices]:
    """Return some rows in blocks."""
    return [rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS)]


def shuffled_folds(n_rows: int, n_folds: int, seed: int) -> list[Fold]:
    """Return folds of equal size, each test part in the order of the rows."""
    group = np.random.default_rng(seed).permutation(n_rows) % n_folds
    return [Fold(np.flatnonzero(group != k), np.flatnonzero(group == k)) for k in range(n_folds)]


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
    lam = max(float(PATH[trial.lam]) * unit, np.finfo(float).tiny)
    model = RELMRegressor(
        1.0 / lam,
        input_scaling=None,
        target_scaling=None,
        **trial.layer.settings(trial.hidden.n_nodes, n_features, task.seed),
    )
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
        "fast" takes a third of the time of "default", "high" several times as much.
    n_hidden : int or "auto", default="auto"
        Hidden nodes of every network. "auto": 1000, and more with more than 2000 rows, by the third
        root of their number, up to 3000 ("fast": 300 and 1000; "high": 2000 and 6000).
    n_members : int, optional
        Most networks to average; those with more than 1.25 times the squared error of the best are
        left out. By default 4 ("fast": 2; "high": 6).
    cv : int, splitter or iterable of splits, optional
        Folds by which layers are compared and rows judged. By default every row is left out by
        itself, or, with more than `search_rows` rows, with a quarter of the others.
    search_rows : int, optional
        Layers and penalties are compared on a random sample of so many rows when there are more;
        the best of them are then fitted to all. By default 1000 ("fast": 500; "high": 2000).
    missing_targets : {"error", "ignore"}, default="error"
        What NaN in y means: a mistake, or a cell to leave out.
    n_jobs : int, optional
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
    """Return settings and scores as columns."""
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
