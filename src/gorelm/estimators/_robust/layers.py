r"""Hidden layers compared out of sample, by ridge regressions of the targets on their outputs.

`compare` predicts every row by fits without it: by leave-one-out in closed form, or by the folds
that are given. `FoldedFit` does so for more rows than H can be held for, by folds whose fits are
differences of sums over blocks of rows. Layers whose nodes see few inputs can be drawn again where
their nodes explained most (`pooled_guides`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, zip_longest
from typing import TypeGuard

import numpy as np

from gorelm._features.activations import ACTIVATIONS
from gorelm._features.guide import (
    DirectionGuide,
    SubsetGuide,
    directions_by_gradients,
    explained_by_subset,
)
from gorelm._features.interactions import acting_together
from gorelm._features.joint import JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._solver.ridge import RidgePath, RidgeSums, ridge_coef
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.inputs import ScaledRows, scaled_rows, with_constant
from gorelm.estimators._robust.products import RowProducts
from gorelm.estimators.batch import RELMRegressor
from gorelm.selection import Fold

PATH = 2.0 ** -np.arange(0, 45, 2.0)  # penalties in units of the squared norm of H
FILLINGS = 5  # rounds of predictions of unknown cells
GUIDING = 2.0  # times the best layer's squared error: what nodes beyond explain guides no draw
FOLDS_OF_MANY = 4  # for more rows than are searched
MOST_SUMS = 5  # folds whose H'H are held at a time
SCORED_ROWS = 65_536  # at a time
VALIDATION_ROWS = 2000  # of one fold, by which the penalty for all rows is chosen
DIRECTING = 2  # regressions that teach directions, each on nodes that look in those of the last
FEWEST_TO_LEARN = 8  # rows of a half, from which directions are learnt
MANY_TARGETS = 32  # beyond which layers are compared by so many random sums of the targets


# -- layers, and the rows on which they are compared ---------------------------------------------


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions learnt from all rows, and from each half, by which the other half is judged.

    They are learnt from the targets, and of many inputs much can be learnt from few rows: a fit
    without a row, in directions that its target has taught, would seem too good.
    """

    whole: DirectionGuide
    halves: tuple[DirectionGuide, DirectionGuide]
    half: Indices  # (n,): in which each row of the search is, 0 or 1


Guide = SubsetGuide | DirectionGuide | Directions


@dataclass(frozen=True)
class Layer:
    """A hidden layer to try; `spread` is the standard deviation of its nodes' inputs."""

    activation: str
    spread: float
    direct_link: bool
    n_inputs: int | None = None  # that a node sees; None: all
    # Whether nodes look in the directions in which a model of the targets changes.
    directed: bool = field(default=False, repr=False)

    @property
    def linear(self) -> bool:
        """Whether there are no hidden nodes."""
        return self.activation == "linear"

    def estimator(self, n_hidden: int, n_features: int, seed: int) -> RELMRegressor:
        """Return an estimator with this layer, for scaled rows; not fitted."""
        n_seen = min(self.n_inputs or n_features, n_features)
        radial = not self.linear and ACTIVATIONS[self.activation].radial
        return RELMRegressor(
            n_hidden=0 if self.linear else n_hidden,
            activation="tanh" if self.linear else self.activation,
            # Uniform weights on [-1, 1] have variance 1/3, inputs variance 1.
            weight_scale=self.spread if radial else float(self.spread * np.sqrt(3.0 / n_seen)),
            direct_link=self.direct_link,
            n_inputs=self.n_inputs,
            # Every layer draws weights of its own, so that averaging lowers their variance.
            random_state=(seed + zlib.crc32(repr(self).encode())) % 2**31,
            input_scaling=None,
            target_scaling=None,
        )

    def draw(
        self,
        n_hidden: int,
        seed: int,
        X: Array,
        guide: Guide | None = None,
        sample_weight: Array | None = None,
    ) -> HiddenLayer:
        """Draw the layer for scaled rows X; radial nodes have some of them as centres."""
        guide = guide.whole if isinstance(guide, Directions) else guide
        model = self.estimator(n_hidden, X.shape[1], seed)
        return HiddenLayer.draw(
            model.n_hidden,
            X.shape[1],
            activation=model.activation,
            weight_scale=model.weight_scale,
            direct_link=model.direct_link,
            random_state=model.random_state,
            X=X,
            sample_weight=sample_weight,
            n_inputs=model.n_inputs,
            guide=guide,
        )


def spread_of(model: RELMRegressor) -> float:
    """Return the `spread` of the layer that a fitted estimator has its settings from."""
    radial = ACTIVATIONS[model.activation].radial
    n_seen = min(model.n_inputs or model.n_features_in_, model.n_features_in_)
    return float(model.weight_scale * (1.0 if radial else np.sqrt(n_seen / 3.0)))


def sketch_of(n_targets: int, seed: int) -> Array | None:
    """Return a random map of many targets to few that keeps squared norms on average, or None.

    Penalties and layers are compared by squared norms, for which a few dozen sums of the targets
    do as well as hundreds of targets.
    """
    if n_targets <= MANY_TARGETS:
        return None
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal((n_targets, MANY_TARGETS)) / np.sqrt(MANY_TARGETS))


@dataclass(frozen=True)
class Part:
    """Rows on which layers are compared."""

    given: Array | ScaledRows  # inputs, scaled
    T: Array  # scaled; NaN: unknown
    filled: Array  # the same with predictions for what is unknown
    w: Array
    kept: Mask  # rows that are fitted
    folds: Sequence[Fold] | None  # None: leave one out
    sketch: Array | None = None  # of many targets
    cut: Array | float = np.inf  # (m,): larger errors count as this, so that no row rules a score
    # Whether all targets share one penalty. They do in the joint fit of many rows; draws guided by
    # fits with other penalties would not suit it.
    one_penalty: bool = False

    @property
    def X(self) -> Array:
        """Scaled inputs as an array, of a part that is small enough."""
        return self.rows.take(slice(None))

    @cached_property
    def rows(self) -> ScaledRows:
        """Scaled inputs of rows that may be too many for an array."""
        return scaled_rows(self.given)

    @cached_property
    def sets(self) -> dict[int, SubsetGuide]:
        """Sets of inputs that act together, by their size, in the rows that are fitted."""
        return self.sets_of(self.X[self.kept], np.flatnonzero(self.kept))

    def sets_of(self, X: Array, rows: Indices) -> dict[int, SubsetGuide]:
        """Return sets of inputs that act together in some rows, whose inputs are X."""
        T = self.filled[rows]
        return acting_together(X, T if self.sketch is None else T @ self.sketch, self.w[rows])

    def mean_squares(self, predicted: Array, rows: Mask | Indices) -> Array:
        """Return the mean squared errors (P, m) of some rows, of predictions (n, P, m)."""
        errors = np.nan_to_num(predicted - self.T[rows][:, None])
        np.clip(errors, -self.cut, self.cut, out=errors)
        w = self.w[rows]
        return np.asarray(np.einsum("n,npm,npm->pm", w, errors, errors) / w.sum())

    def mean_squares_of_many(self, predicted: Array, rows: Indices) -> Array:
        """Return the mean squared errors (m,) of some rows, of predictions (N, m).

        Without copies of the size of all targets.
        """
        total = np.zeros(self.T.shape[1])
        for start in range(0, len(rows), SCORED_ROWS):
            some = rows[start : start + SCORED_ROWS]
            total += self.mean_squares(predicted[some][:, None], some)[0] * self.w[some].sum()
        return np.asarray(total / self.w[rows].sum())


@dataclass(frozen=True, eq=False)
class Trial:
    """A drawn layer, each target at the best of its penalties."""

    layer: Layer
    hidden: HiddenLayer | JointLayer
    guide: Guide | None  # by which it was drawn
    lam: int  # index in the path: best for all targets together
    lams: Indices  # (m,): for each of them
    scores: Array  # (m,): mean squared errors of the targets
    predicted: Array  # (rows, m): by fits without the row; NaN where no fold tests it
    coef: Array  # fitted to all rows that are kept; the last row is the intercept
    sums: tuple[RidgeSums, Mask] | None = None  # of many rows: H'H, H'T, and the rows in them
    wide: RowProducts | None = None  # of a joint layer with more nodes than rows: HH'
    layers: tuple[Layer, ...] = ()  # of a joint layer
    explained: SubsetGuide | None = None  # by the nodes of each subset of the inputs, if asked for

    @property
    def score(self) -> float:
        """Mean squared norm of the errors: smaller is better."""
        return float(self.scores.sum())

    def outputs(self, X: Array | ScaledRows, n_threads: int = 1) -> Array:
        """Return the predictions for other scaled rows."""
        rows = scaled_rows(X)
        return rows.outputs(self.hidden, [np.arange(rows.shape[0])], [self.coef], n_threads)[0]


# -- rows in memory --------------------------------------------------------------------------------


def compare(
    part: Part,
    layer: Layer,
    hidden: HiddenLayer | JointLayer,
    guide: Guide | None,
    *,
    explain: bool = False,
) -> Trial:
    """Fit a drawn layer to the kept rows at every penalty, and predict each row without it.

    With `explain`, also tell what its nodes explain, to guide other draws.
    """
    H = with_constant(hidden, part.X)
    if part.folds is None:
        trial = compare_by(part, layer, hidden, guide, H, decomposed(part, H))
    else:
        trial = _compare_by_folds(part, layer, hidden, guide, H)
    if explain:
        return replace(trial, explained=explained(part, hidden, H[part.kept], trial.coef))
    return trial


def decomposed(part: Part, H: Array) -> RidgePath:
    """Return the regressions of the kept rows at every penalty, before targets are known."""
    return RidgePath(np.sqrt(part.w[part.kept])[:, None] * H[part.kept], PATH)


def compare_by(
    part: Part,
    layer: Layer,
    hidden: HiddenLayer | JointLayer,
    guide: Guide | None,
    H: Array,
    path: RidgePath,
) -> Trial:
    """Predict each row without it, by a decomposition of the rows that are kept."""
    omega, kept = np.sqrt(part.w)[:, None], part.kept
    T = _filled_in(part, path)
    if part.sketch is None:
        errors = path.errors(T)
        known = ~np.isnan(part.T[kept])
        counted = errors if known.all() else errors * known[:, None]
        cut = (omega[kept] * part.cut)[:, None]
        counted = np.clip(counted, -cut, cut)
    else:
        errors = counted = path.errors(T @ part.sketch)
    squares = np.einsum("npm,npm->pm", counted, counted) / part.w[kept].sum()
    best, targets = int(np.argmin(squares.sum(axis=1))), np.arange(T.shape[1])
    if part.sketch is None:
        lams = np.full(len(targets), best) if part.one_penalty else penalty_of_each(squares)
        left_out, scores = T - errors[:, lams, targets], squares[lams, targets]
    else:
        lams = np.full(len(targets), best)
        errors = path.errors(T, slice(best, best + 1))[:, 0]
        left_out = T - errors
        errors = np.where(np.isnan(part.T[kept]), 0.0, errors)
        scores = (errors**2).sum(axis=0) / part.w[kept].sum()
    coef = path.coef(T, lams)
    predicted = np.asarray(H @ coef)
    predicted[kept] = left_out / omega[kept]
    return Trial(layer, hidden, guide, best, lams, scores, predicted, coef)


@dataclass(frozen=True)
class Repeated:
    """A layer that is fitted to the same rows several times, with other targets."""

    drawn: Trial
    H: Array
    path: RidgePath | None  # None: folds are given

    @classmethod
    def of(cls, part: Part, drawn: Trial) -> Repeated:
        """Decompose the outputs of the rows that are kept."""
        H = with_constant(drawn.hidden, part.X)
        return cls(drawn, H, decomposed(part, H) if part.folds is None else None)

    def trial(self, part: Part) -> Trial:
        """Predict each row without it, with the targets of this part."""
        drawn = self.drawn.layer, self.drawn.hidden, self.drawn.guide
        if self.path is None:
            return _compare_by_folds(part, *drawn, self.H)
        return compare_by(part, *drawn, self.H, self.path)


def _compare_by_folds(
    part: Part, layer: Layer, hidden: HiddenLayer | JointLayer, guide: Guide | None, H: Array
) -> Trial:
    """Predict each row by fits without its fold."""
    omega, kept = np.sqrt(part.w)[:, None], part.kept
    of_folds = _by_folds(part, H, omega)
    scored = kept & ~np.isnan(of_folds[:, 0, 0])
    squares = part.mean_squares(of_folds[scored], scored)
    best, targets = int(np.argmin(squares.sum(axis=1))), np.arange(squares.shape[1])
    lams = np.full(len(targets), best) if part.one_penalty else penalty_of_each(squares)
    scores, predicted = squares[lams, targets], np.asarray(of_folds[:, lams, targets])
    coef = ridge_coef(omega[kept] * H[kept], omega[kept] * part.filled[kept], PATH[lams])
    return Trial(layer, hidden, guide, best, lams, scores, predicted, coef)


def draw_and_compare(
    part: Part, layer: Layer, n_nodes: int, seed: int, guide: Guide | None, *, explain: bool = False
) -> Trial:
    """Draw a layer and compare it; each half of the rows by directions that the other taught."""
    hidden = layer.draw(n_nodes, seed, part.X, guide, part.w)
    trial = compare(part, layer, hidden, guide, explain=explain)
    return by_halves(part, trial, guide, n_nodes, seed) if isinstance(guide, Directions) else trial


def by_halves(part: Part, trial: Trial, guide: Directions, n_nodes: int, seed: int) -> Trial:
    """Return a trial of directions that all rows taught, judged by those that each half taught."""
    first, second = (
        draw_and_compare(part, trial.layer, n_nodes, seed, of_half).predicted
        for of_half in guide.halves
    )
    predicted = np.where(guide.half[:, None] == 0, second, first)
    return rescored(replace(trial, guide=guide), part, predicted)


def learn_directions(part: Part, teacher: Layer, n_nodes: int, seed: int) -> DirectionGuide | None:
    """Return the directions in which a regression on a layer changes; None: in none."""
    part, guide = replace(part, folds=None), None  # only output weights are asked for
    X, w = part.X[part.kept], part.w[part.kept]
    for _ in range(DIRECTING):
        hidden = teacher.draw(n_nodes, seed, part.X, guide, part.w)
        coef = compare(part, teacher, hidden, guide).coef[:-1]
        coef = coef if part.sketch is None else coef @ part.sketch
        guide = directions_by_gradients(hidden, X, coef, w)
        if guide is None:
            break
    return guide


def learn_by_halves(
    part: Part, teacher: Layer, whole: DirectionGuide, n_nodes: int, seed: int
) -> Directions | None:
    """Return directions with those that each half of the rows teaches; None: too few rows."""
    half = _halves(part, seed)
    of_halves = [part.kept & (half == k) for k in (0, 1)]
    if min(rows.sum() for rows in of_halves) < FEWEST_TO_LEARN:
        return None
    first, second = (
        learn_directions(replace(part, kept=rows), teacher, n_nodes, seed) for rows in of_halves
    )
    if first is None or second is None:
        return None
    return Directions(whole, (first, second), half)


def _halves(part: Part, seed: int) -> Indices:
    """Return in which half each row is; rows that folds test together are in the same."""
    if part.folds is None:
        return np.random.default_rng(seed).permutation(len(part.T)) % 2
    half = np.zeros(len(part.T), dtype=np.intp)
    for k, fold in enumerate(part.folds):
        half[fold.test] = k % 2
    return half


def penalty_of_each(squares: Array) -> Indices:
    """Return the best penalty of each target, by squared errors (P, m).

    Their sum over all targets counts for half: the errors of one target in few rows would choose a
    penalty by chance.
    """
    tiny = np.finfo(float).tiny
    own, together = (np.log(s + tiny) for s in (squares, squares.sum(axis=1, keepdims=True)))
    return np.asarray(np.argmin(own + together, axis=0))


def rescored(trial: Trial, part: Part, predicted: Array) -> Trial:
    """Return a trial with its predictions on the scale of other rows to fit, and scored by them."""
    scored = part.kept & ~np.isnan(predicted).any(axis=1)
    scores = part.mean_squares(predicted[scored][:, None], scored)[0]
    return replace(trial, predicted=predicted, scores=scores)


def _filled_in(part: Part, path: RidgePath) -> Array:
    """Return the kept rows' targets, times the roots of their weights, without gaps.

    What is unknown is predicted by the layer itself, without the row; the predictions of a few
    rounds come near those of regressions on the known cells alone.
    """
    kept, omega = part.kept, np.sqrt(part.w)[part.kept][:, None]
    T, unknown = omega * part.filled[kept], np.isnan(part.T[kept])
    if not unknown.any():
        return np.asarray(T)
    squares = part.mean_squares(path.left_out(T) / omega[:, None], kept)
    best = int(np.argmin(squares.sum(axis=1)))
    for _ in range(FILLINGS):
        T = np.where(unknown, T - path.errors(T, slice(best, best + 1))[:, 0], T)
    return np.asarray(T)


def _by_folds(part: Part, H: Array, omega: Array) -> Array:
    """Return the mean prediction by the folds that test a row, (n, P, m); NaN where none does."""
    kept, weighted, T = part.kept, omega * H, omega * part.filled
    total = np.zeros((len(H), len(PATH), T.shape[1]))
    count = np.zeros(len(H))
    tall = int(kept.sum()) > H.shape[1]
    whole = _sums(weighted[kept], T[kept]) if tall else None
    for fold in part.folds or ():
        train = fold.train[kept[fold.train]]
        coefs: Array
        if not len(train):
            coefs = np.zeros((H.shape[1], *total.shape[1:]))
        elif whole is None:
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


# -- where nodes help ------------------------------------------------------------------------------


def pooled_guides(
    trials: Sequence[Trial], sets: Mapping[int, SubsetGuide]
) -> dict[int | None, Guide]:
    """Return what the nodes with each number of inputs explain, on average over good trials.

    Sets that are known to act together count as much as all that nodes say. Of nodes that see all
    inputs (None): the directions in which they look, if some are directed.
    """
    guides: dict[int | None, Guide] = {}
    for n_inputs in {trial.layer.n_inputs for trial in trials if trial.explained is not None}:
        same = [trial for trial in trials if trial.layer.n_inputs == n_inputs]
        most = GUIDING * min(trial.score for trial in same)
        good = [trial.explained for trial in same if trial.score <= most]
        nodes = SubsetGuide.pooled([guide for guide in good if guide is not None])
        known = known_sets(n_inputs, sets)
        guides[n_inputs] = SubsetGuide.pooled([nodes, known]) if known else nodes
    for trial in trials:
        if isinstance(trial.guide, Directions):
            guides[None] = trial.guide
    return guides


def known_sets(n_inputs: int | None, sets: Mapping[int, SubsetGuide]) -> SubsetGuide | None:
    """Return the sets of so many inputs that act together; None: none is known."""
    return sets.get(n_inputs) if n_inputs is not None else None


def guide_of(layer: Layer, guides: dict[int | None, Guide]) -> Guide | None:
    """Return the guide by which a layer is drawn."""
    return guides.get(layer.n_inputs) if layer.n_inputs is not None or layer.directed else None


def trusted(guides: dict[int | None, Guide]) -> dict[int | None, Guide]:
    """Return guides for a last draw: few nodes look for what no guide has seen."""
    return {
        n_inputs: guide.trusted() if isinstance(guide, SubsetGuide) else guide
        for n_inputs, guide in guides.items()
    }


def sees_few(hidden: HiddenLayer | JointLayer) -> TypeGuard[HiddenLayer]:
    """Whether the nodes of one layer see fewer inputs than there are."""
    return isinstance(hidden, HiddenLayer) and hidden.subsets is not None


def explained(
    part: Part, hidden: HiddenLayer | JointLayer, H: Array, coef: Array
) -> SubsetGuide | None:
    """Return the subsets of inputs that nodes see, each as probable as what they explain.

    H are the outputs of the rows that are kept. None if the nodes see all inputs.
    """
    if not sees_few(hidden):
        return None
    nodes = slice(len(hidden.inputs), hidden.n_outputs)
    weights = coef[nodes] if part.sketch is None else coef[nodes] @ part.sketch
    return explained_by_subset(hidden, H[:, nodes], weights, part.w[part.kept])


# -- many rows -------------------------------------------------------------------------------------


class FoldedFit:
    """A layer fitted without each of a few folds, by differences of sums over blocks of rows.

    The penalty is searched from a first guess, on some rows of the largest fold.

    Parameters
    ----------
    part : Part
        Rows; without folds of their own they are shuffled into a few.
    layer, hidden, guide
        The layer, drawn by the guide.
    start : int
        First guess of the penalty, as an index in the path.
    seed, n_threads : int
        Of the shuffled folds; to share the rows among.
    layers : tuple of Layer
        Of a joint layer, whose first `layer` is.

    Attributes
    ----------
    lam : int
        The penalty, as an index in the path.
    loss : float
        Mean squared norm of the errors of these rows.
    """

    def __init__(
        self,
        part: Part,
        layer: Layer,
        hidden: HiddenLayer | JointLayer,
        guide: Guide | None,
        start: int,
        *,
        seed: int,
        n_threads: int,
        layers: tuple[Layer, ...] = (),
    ) -> None:
        self.layer, self._hidden, self._guide, self._part = layer, hidden, guide, part
        self._layers = layers
        self._n_threads, self._omega, n_rows = n_threads, np.sqrt(part.w), len(part.T)
        folds = part.folds or ()
        self._tests = [fold.test for fold in folds] or shuffled(n_rows, FOLDS_OF_MANY, seed)
        # Training rows, unless they are just those that are not tested.
        complements = all(is_complement(fold, n_rows) for fold in folds)
        self._trains = None if complements else [fold.train for fold in folds]
        partition = complements and sum(map(len, self._tests)) == n_rows
        self._held: list[RidgeSums] | None = None
        if partition and len(self._tests) <= MOST_SUMS:
            self._held = self._sums([self._kept(test) for test in self._tests])
            self._whole = sum(self._held[1:], start=self._held[0])
        else:
            (self._whole,) = self._sums([np.flatnonzero(part.kept)])
        # The fold with most rows: one of a single row could not choose.
        self._judging = int(np.argmax([len(self._kept(test)) for test in self._tests]))
        self._valid = self._kept(self._tests[self._judging])[:VALIDATION_ROWS]
        self._H_valid = with_constant(hidden, part.rows.take(self._valid))
        self._coefs: dict[int, Array] = {}  # without that fold, for each penalty tried
        loss = partial(self._loss, self._sums_without(self._judging))
        self.lam, self.loss = descend(loss, start, n_threads)

    def _kept(self, rows: Indices) -> Indices:
        return rows[self._part.kept[rows]]

    def _sums(self, groups: Sequence[Indices]) -> list[RidgeSums]:
        rows, T = self._part.rows, self._part.filled
        return rows.sums(self._hidden, groups, self._omega, T, self._n_threads)

    def _sums_without(self, fold: int) -> RidgeSums:
        if self._held is not None:
            return self._whole - self._held[fold]
        if self._trains is None:
            return self._whole - self._sums([self._kept(self._tests[fold])])[0]
        return self._sums([self._kept(self._trains[fold])])[0]

    def _loss(self, sums: RidgeSums, lam: int) -> float:
        self._coefs[lam] = sums.coef(PATH[lam])
        return self.loss_of(self._H_valid @ self._coefs[lam])

    def loss_of(self, predicted: Array) -> float:
        """Return the mean squared norm of the errors of predictions of the validation rows."""
        return float(self._part.mean_squares(predicted[:, None], self._valid).sum())

    @property
    def on_valid(self) -> Array:
        """Predictions of the validation rows."""
        return np.asarray(self._H_valid @ self._coefs[self.lam])

    @property
    def penalty(self) -> float:
        """The penalty in units of the weights, not of the squared norm of H."""
        return float(PATH[self.lam]) * self._whole.trace

    def on_judging_fold(self) -> Trial:
        """Return the fit without the fold that chose the penalty, and what its nodes explain."""
        part, nothing = self._part, np.empty((0, self._part.T.shape[1]))
        scores = part.mean_squares(self.on_valid[:, None], self._valid)[0]
        found = self._trial(scores, nothing, self._coefs[self.lam])
        if not sees_few(self._hidden):
            return found
        H = self._hidden.transform(part.X[part.kept])
        return replace(found, explained=explained(part, self._hidden, H, found.coef))

    def trial(self) -> Trial:
        """Fit without every fold."""
        part, lam = self._part, self.lam

        def coef_without(fold: int) -> Array:
            known = fold == self._judging
            return self._coefs[lam] if known else self._sums_without(fold).coef(PATH[lam])

        # Sums that are not held are made with all threads, one fold after the other.
        threads = self._n_threads if self._held is not None else 1
        coefs = list(ordered_map(coef_without, range(len(self._tests)), threads))
        tests = list(self._tests)
        of_folds = part.rows.outputs(self._hidden, tests, coefs, self._n_threads)
        predicted, count = np.zeros(part.T.shape), np.zeros((len(part.T), 1))
        while of_folds:  # each is given back once it is added
            test = tests.pop(0)
            predicted[test] += of_folds.pop(0)
            count[test] += 1.0
        with np.errstate(invalid="ignore"):
            predicted /= np.where(count, count, np.nan)
        scored = part.kept & (count[:, 0] > 0)
        scores = part.mean_squares_of_many(predicted, np.flatnonzero(scored))
        nothing = np.empty((0, part.T.shape[1]))  # the last fit has weights of its own
        found = self._trial(scores, predicted, nothing)
        return replace(found, sums=(self._whole, part.kept), layers=self._layers)

    def _trial(self, scores: Array, predicted: Array, coef: Array) -> Trial:
        lams = np.full(len(scores), self.lam)
        drawn = self.layer, self._hidden, self._guide
        return Trial(*drawn, self.lam, lams, scores, predicted, coef)


def descend(loss: Callable[[int], float], start: int, n_threads: int = 1) -> tuple[int, float]:
    """Return where in the path neither neighbour has a smaller loss, and the loss there."""
    loss = cache(loss)
    if n_threads > 1:  # the first two that are needed
        list(ordered_map(loss, [start, min(start + 1, len(PATH) - 1)], n_threads))
    best, least = start, loss(start)
    for step in (1, -1):
        moved = False
        while 0 <= best + step < len(PATH) and (other := loss(best + step)) < least:
            best, least, moved = best + step, other, True
        if moved:
            break
    return best, least


def lam_for_more(lam: int, times: float) -> int:
    """Return a first guess of the penalty for a larger H, as an index in the path.

    In units of the squared norm of H, the best penalty falls in proportion to rows and nodes.
    """
    steps = int(np.rint(np.log(times) / np.log(PATH[0] / PATH[1])))
    return min(max(lam + steps, 0), len(PATH) - 1)


def forward_selection(
    n_items: int, loss: Callable[[Sequence[int]], float], most: int, gain: float = 1.0
) -> list[int]:
    """Return the items that lower the loss most, each with those before it, while that helps.

    An item is added if the loss becomes less than `gain` times what it was.
    """
    chosen: list[int] = []
    least = np.inf
    while len(chosen) < min(most, n_items):
        losses = {k: loss([*chosen, k]) for k in range(n_items) if k not in chosen}
        best = min(losses, key=lambda k: losses[k])
        if losses[best] >= gain * least:
            break
        chosen.append(best)
        least = losses[best]
    return chosen


def mixed(searched: Sequence[Trial], n_layers: int) -> list[Trial]:
    """Return trials of which some see one input, some two and so on, the best of each kind.

    By itself, a layer whose nodes see three inputs may do worse than all those with two.
    """
    kinds: dict[int | None, list[Trial]] = {}
    for trial in searched:
        kinds.setdefault(trial.layer.n_inputs, []).append(trial)
    in_turn = chain.from_iterable(zip_longest(*kinds.values()))
    return [trial for trial in in_turn if trial is not None][:n_layers]


def shuffled(n_rows: int, n_folds: int, seed: int) -> list[Indices]:
    """Return the rows in folds of equal size, each in the order of the rows."""
    group = np.random.default_rng(seed).permutation(n_rows) % n_folds
    return [np.flatnonzero(group == k) for k in range(n_folds)]
