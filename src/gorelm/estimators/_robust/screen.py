"""Step 1 of a robust fit: the screen, by networks with a bounded or trimmed loss, by folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gorelm._features.layer import HiddenLayer
from gorelm._solver.ridge import RidgePath
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.inputs import with_constant
from gorelm.estimators._robust.cells import (
    RARE,
    TWO_GROUPS,
    has_few_values,
    has_spread,
    split_cells,
    split_sizes,
    two_groups,
)
from gorelm.estimators._robust.judge import FARTHEST_TARGET, Screened, judge, log_sizes
from gorelm.estimators._robust.layers import MANY_TARGETS, Layer
from gorelm.estimators._robust.task import RobustTask
from gorelm.selection import Fold

SCREEN_PATH = 2.0 ** -np.arange(4, 36, 3.0)  # penalties in units of the squared norm of H
SCREEN_FOLDS, SCREEN_NODES, SCREEN_STEPS = 5, 200, 6
TRIMMED_STEPS = 5  # in which errors outside of the shortest half have no pull
CLEARER = 0.05  # by how much groups of a trimmed loss are clearer, where it is used
CHOOSING_FOLDS = 2  # of them, by which a layer is chosen
SCREEN_ROWS = 5000  # of more rows, a sample is screened by folds, and predicts the others
HEAVIER = 8.0 ** np.arange(4)  # times the penalty, for squared errors
# Median errors, beyond which errors count alike when losses are compared: usual ones, and far ones,
# of which squares may explain this much more in the logarithm, on average over the targets.
CUT_OFF, FAR_CUT_OFF, CLEARLY_BETTER = 5.0, 40.0, 0.06
SCREEN_CLIP = 3.0  # spreads, of the targets that the bounded loss starts from
SCREEN_LAYERS = (
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
)


def screen(task: RobustTask) -> Screened:
    """Set rows and cells aside that no model explains."""
    T, w, usable = task.T, task.w, task.usable
    scaling = task.robust_scaling
    # A target whose middle half is one value has no spread to judge a row by (the rows off
    # that value would all be outliers), and two or three values are labels.
    judging = np.array([has_spread(column[usable]) for column in T.T])
    few = [has_few_values(column[usable], w[usable]) for column in T.T]
    special = ~judging | np.array(few)
    scaled = scaling.dense(T)
    near = np.clip(scaled, -FARTHEST_TARGET, FARTHEST_TARGET)
    predicted, heavy, trimmed = _predictions(task, near, judging)
    del near  # of many rows, as large as all targets
    learnt = usable & task.tested & task.learning
    sizes = log_sizes((predicted[learnt] - scaled[learnt])[:, judging])
    del scaled
    expected = scaling.undo(np.nan_to_num(predicted, copy=False))
    del predicted
    nothing = np.zeros(T.shape, dtype=bool)
    screened = Screened(
        False, nothing[0], usable, nothing, heavy & ~special, T, judging, special, expected, trimmed
    )
    if judging.any():
        explained = split_sizes(sizes, w[learnt])[1]
        screened = replace(screened, contaminated=explained >= TWO_GROUPS)
    if T.shape[1] > 1:  # groups of cells in rows that are right
        cells = judge(task, screened, expected, with_scores=False, by_values=False).cells
        screened = replace(screened, groups=two_groups(cells.explained))
    return judged_by_screen(task, screened)


def judged_by_screen(task: RobustTask, screened: Screened) -> Screened:
    """Return the screen without the rows and cells that are wrong by its predictions."""
    judged = judge(task, screened, screened.expected, with_scores=False, by_values=False)
    return replace(screened, kept=judged.kept, wrong=judged.wrong, T=judged.T)


def _predictions(task: RobustTask, T: Array, judging: Mask) -> tuple[Array, Mask, bool]:
    """Return predictions of every row by robust networks that did not see it.

    They are those of a bounded loss, unless a trimmed one sees two groups of errors more clearly:
    where nearly half of the cells are off to the same side, a bounded pull moves the predictions
    between both groups. Where both see them about as clearly, the bounded loss stays: the trimmed
    one uses half of the cells only.

    Returned as well: the targets that the bounded loss predicts better than squares do, and whether
    the predictions are those of the trimmed loss.
    """
    model = _screen_model(task, T, ~judging)
    every = model.by_folds(task, T, also=Also(trimmed=True, squared=model.lam * HEAVIER))
    of_losses, squared = every[:, :2], every[:, 2:]
    heavy = _heavy(task, model.rows, T[model.rows], of_losses[:, 0], squared)
    trimmed = judging.any() and _trimmed_is_clearer(task, model.rows, T, of_losses, judging)
    loss = np.where(judging & trimmed, 1, 0)
    return model.predictions(task, T, of_losses, loss), heavy, bool(trimmed)


def _trimmed_is_clearer(
    task: RobustTask, rows: Indices, T: Array, of_losses: Array, judging: Mask
) -> bool:
    """Whether the trimmed loss sees two groups, and the bounded one none or less clear ones."""
    by = (task.usable & task.tested)[rows]
    if not by.any():
        return False
    w, errors = task.w[rows][by], of_losses[by] - T[rows][by][:, None]
    bounded, trimmed = (clarity(errors[:, k][:, judging], w) for k in (0, 1))
    clearer = bounded < TWO_GROUPS or trimmed >= bounded + CLEARER
    return trimmed >= TWO_GROUPS and clearer


def clarity(errors: Array, w: Array) -> float:
    """Return the share of variance that two groups explain, of rows or of cells."""
    every = np.ones(errors.shape[1], dtype=bool)
    return max(split_sizes(log_sizes(errors), w)[1], float(split_cells(errors, w, every)[1].mean()))


def bounded_predictions(task: RobustTask, T: Array, special: Mask) -> Array:
    """Return predictions of every row by a network with a bounded loss that did not see it."""
    model = _screen_model(task, T, special)
    return model.predictions(task, T, model.by_folds(task, T), np.zeros(T.shape[1], dtype=int))


@dataclass(frozen=True)
class Also:
    """Losses whose fits share the decompositions of bounded ones."""

    trimmed: bool = False
    squared: Array = field(default_factory=lambda: np.empty(0))  # at these penalties


BOUNDED = Also()  # alone


@dataclass(frozen=True)
class ScreenModel:
    """The layer and the penalty of the screen, and the rows that it is fitted to."""

    hidden: HiddenLayer
    rows: Indices  # by whose folds all are screened
    H: Array  # hidden outputs of these
    lam: float
    level: Array  # (m,)

    def by_folds(self, task: RobustTask, T: Array, also: Also = BOUNDED) -> Array:
        """Return predictions of the rows with folds: of the bounded loss, and of others."""
        rows, lams, n_threads = self.rows, np.array([self.lam]), task.n_threads
        return bounded_by_folds(
            task, rows, self.H, T[rows], lams, self.level, also=also, n_threads=n_threads
        )

    def predictions(self, task: RobustTask, T: Array, of_losses: Array, loss: Indices) -> Array:
        """Return predictions of every row, each target's by a loss: `by_folds`, or a fit to all."""
        predicted: Array = np.empty(T.shape)
        if len(self.rows) < len(T):
            w, lams = task.w[self.rows], np.array([self.lam])
            path = RidgePath(np.sqrt(w)[:, None] * self.H, lams)
            fit = bounded_fit(path, T[self.rows], w, self.level)
            coef = fit.coefs()[:, 0]
            if loss.any():
                coef = np.where(loss, fit.trimmed(T[self.rows], w, self.level).coefs()[:, 0], coef)
            all_rows = [np.arange(len(T))]
            (predicted,) = task.rows.outputs(self.hidden, all_rows, [coef], task.n_threads)
        predicted[self.rows] = of_losses[:, loss, np.arange(T.shape[1])]
        return predicted


def _screen_model(task: RobustTask, T: Array, special: Mask) -> ScreenModel:
    nodes = min(SCREEN_NODES, task.n_hidden or SCREEN_NODES)
    layer, lam = _screen_layer(task, T, nodes, special)
    rows = task.sample(SCREEN_ROWS)
    X = task.rows.take(rows)
    hidden = layer.draw(nodes, task.seed, X, None, task.w[rows])
    return ScreenModel(hidden, rows, with_constant(hidden, X), lam, levels_of(special))


def _heavy(task: RobustTask, rows: Indices, T: Array, bounded: Array, squared: Array) -> Mask:
    """Return the targets that the bounded loss predicts better than the square.

    Squared errors get heavier penalties to choose from, too. Both are compared by the mean of
    errors that are cut off, so that no outlier decides. Noise with heavy tails makes squares worse
    wherever the cut is; if they predict far errors clearly better, the tails can be predicted.
    """
    errors = np.abs(np.concatenate([bounded[:, None], squared], axis=1) - T[:, None])
    w = np.where(task.usable[rows][:, None] & ~np.isnan(errors).any(axis=1), task.w[rows, None], 0)
    errors = np.nan_to_num(errors)
    median = quantiles_of_columns(errors[:, :1], w, np.full(T.shape[1], 0.5))

    def log_ratios(cut_off: float) -> Array:
        losses = np.einsum("npm,nm->pm", np.minimum(errors, cut_off * median) ** 2, w)
        bounded, squared = np.maximum(losses[0], 1e-300), np.maximum(losses[1:].min(axis=0), 1e-300)
        return np.asarray(np.log(bounded / squared))

    usual = log_ratios(CUT_OFF)
    better = (usual + usual.mean()) / 2 < 0.0  # as for groups of cells
    return np.asarray(better & (log_ratios(FAR_CUT_OFF).mean() < CLEARLY_BETTER))


def _screen_layer(task: RobustTask, T: Array, nodes: int, special: Mask) -> tuple[Layer, float]:
    """Return the layer and the penalty whose bounded fits predict some rows best."""
    rows = task.sample(max(task.effort.search_rows // 2, 2))
    some = _some_targets(T[rows], special, task.seed)
    T, level = T[rows][:, some], levels_of(special[some])
    X = task.rows.take(rows)
    # Leave-one-out would choose layers that follow wrong cells: the pseudo-observations of a row's
    # neighbours depend on its own.
    n_folds = CHOOSING_FOLDS if task.folds is None else None

    def losses(layer: Layer) -> Array:
        hidden = layer.draw(nodes, task.seed, X, None, task.w[rows])
        H = with_constant(hidden, X)
        predicted = bounded_by_folds(task, rows, H, T, SCREEN_PATH, level, n_folds)
        scored = task.usable[rows] & ~np.isnan(predicted[:, 0, 0])
        errors = np.nan_to_num(predicted[scored] - T[scored][:, None])
        return np.asarray(task.w[rows][scored] @ np.abs(errors).sum(axis=2))

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


def bounded_by_folds(
    task: RobustTask,
    rows: Indices,
    H: Array,
    T: Array,
    lams: Array,
    level: Array,
    n_folds: int | None = None,
    *,
    also: Also = BOUNDED,
    n_threads: int = 1,
) -> Array:
    """Return predictions of some rows, (n, P, m), by bounded fits without their fold.

    Those of other losses follow, if asked for. Only the first `n_folds` are predicted, the others
    are NaN.
    """

    def of_fold(fold: Fold) -> Array:
        train = fold.train[task.usable[rows[fold.train]]]
        if task.folds is not None and np.isnan(T[train]).all(axis=0).any():
            raise ValueError(
                "a target is unknown in all training rows of a fold; use fewer folds or other ones"
            )
        w = task.w[rows[train]]
        omega = np.sqrt(w)[:, None]
        path = RidgePath(omega * H[train], lams)
        fit = bounded_fit(path, T[train], w, level)
        coefs = [fit.coefs()]
        if also.trimmed:
            coefs.append(fit.trimmed(T[train], w, level).coefs())
        if len(also.squared):
            path = path.at(also.squared)
            if np.isnan(T[train]).any():  # a fit that bounds no error fills the gaps
                coefs.append(bounded_fit(path, T[train], w, np.ones(T.shape[1])).coefs())
            else:
                coefs.append(path.coefs(omega * T[train]))
        outputs = H[fold.test] @ np.concatenate(coefs, axis=1).reshape(H.shape[1], -1)
        return np.asarray(outputs.reshape(len(fold.test), -1, T.shape[1]))

    folds = _screen_folds(task, rows)[:n_folds]
    n_fits = len(lams) * (1 + also.trimmed) + len(also.squared)
    predicted = np.full((len(H), n_fits, T.shape[1]), np.nan)
    for fold, outputs in zip(folds, ordered_map(of_fold, folds, n_threads), strict=True):
        predicted[fold.test] = outputs
    return predicted


@dataclass(frozen=True)
class BoundedFit:
    """Regressions on which every cell has a bounded pull."""

    left_out: Array  # (n, P, m): predictions without the row
    path: RidgePath
    pseudo: Array  # (n, P, m): pseudo-observations, times the square roots of the weights

    def coefs(self) -> Array:
        """Return the output weights (L, P, m)."""
        return self.path.coefs(self.pseudo)

    def trimmed(self, T: Array, w: Array, level: Array) -> BoundedFit:
        r"""Return regressions on which only cells in the densest half of the errors pull.

        Least trimmed squares, started from this fit: the steps of `bounded_fit` with
        :math:`t_{ij}^* = p_{ij} + c_j` where the error is outside of :math:`c_j \pm d_j`, the
        shortest interval with half of the target's errors. Its middle follows the right cells
        where wrong ones to one side have moved the start.
        """
        return _stepped(self, T, w, level, TRIMMED_STEPS, _trimmed_pull)


def bounded_fit(path: RidgePath, T: Array, w: Array, level: Array) -> BoundedFit:
    r"""Fit output weights on which every cell has a bounded pull, at every penalty of a path.

    Huber's loss of the error of each cell, by pseudo-observations: ridge regressions of

    .. math:: t_{ij}^* = p_{ij} + \min(1, \delta_j / |t_{ij} - p_{ij}|)\,(t_{ij} - p_{ij})

    :math:`p_{ij}` being the leave-one-out prediction of the last regression and :math:`\delta_j`
    a quantile of the target's errors. All of them share one decomposition of H.
    """
    omega = np.sqrt(w)[:, None]
    pseudo = omega * np.clip(np.nan_to_num(T), -SCREEN_CLIP, SCREEN_CLIP)
    start = BoundedFit(path.left_out(pseudo) / omega[:, None], path, pseudo)
    return _stepped(start, T, w, level, SCREEN_STEPS, _bounded_pull)


def _stepped(
    fit: BoundedFit,
    T: Array,
    w: Array,
    level: Array,
    n_steps: int,
    pull: Callable[[Array, Array, Array], Array],
) -> BoundedFit:
    """Return the fit after some steps; `pull` tells what the errors become."""
    omega, known = np.sqrt(w)[:, None], ~np.isnan(T)
    weights, T = np.where(known, w[:, None], 0.0), np.nan_to_num(T)
    predicted, pseudo = fit.left_out, fit.pseudo
    for _ in range(n_steps):
        errors = np.where(known[:, None], T[:, None] - predicted, 0.0)
        pseudo = omega[:, None] * (predicted + pull(errors, weights, level))
        predicted = fit.path.left_out(pseudo) / omega[:, None]
    return BoundedFit(predicted, fit.path, pseudo)


def _bounded_pull(errors: Array, w: Array, level: Array) -> Array:
    delta = quantiles_of_columns(np.abs(errors), w, level)
    return np.clip(errors, -delta, delta)


def _trimmed_pull(errors: Array, w: Array, level: Array) -> Array:
    low, high = shortest_intervals(errors, w, level)
    return np.where((low <= errors) & (errors <= high), errors, (low + high) / 2.0)


def shortest_intervals(values: Array, w: Array, level: Array) -> tuple[Array, Array]:
    """Return the ends (P, m) of the shortest intervals with that share of values (n, P, m)."""
    ends = np.empty((2, *values.shape[1:]))
    for k, j in np.ndindex(*values.shape[1:]):
        order = np.argsort(values[:, k, j], kind="stable")
        ordered, weights = values[order, k, j], w[order, j]
        reached = np.cumsum(weights)
        needed = reached - weights + level[j] * reached[-1] * (1.0 - 1e-12)
        first = np.flatnonzero(needed <= reached[-1])
        last = np.searchsorted(reached, needed[first])
        best = np.argmin(ordered[last] - ordered[first])
        ends[:, k, j] = ordered[first[best]], ordered[last[best]]
    return ends[0], ends[1]


def quantiles_of_columns(values: Array, w: Array, level: Array) -> Array:
    """Return quantiles (P, m) of values (n, P, m) with weights (n, m), at the level of each m."""
    if w.min() == w.max():  # no need to sort
        n = len(values)
        places = np.clip(np.ceil(level * n * (1.0 - 1e-12)).astype(int) - 1, 0, n - 1)
        parted = np.partition(values, np.unique(places), axis=0)
        return np.asarray(parted[places, :, np.arange(len(places))].T)
    order = np.argsort(values, axis=0, kind="stable")
    weights = np.take_along_axis(np.broadcast_to(w[:, None], values.shape), order, axis=0)
    reached = np.cumsum(weights, axis=0)
    first = np.argmax(reached >= level * reached[-1] * (1.0 - 1e-12), axis=0)
    return np.asarray(
        np.take_along_axis(np.take_along_axis(values, order, axis=0), first[None], axis=0)[0]
    )


def levels_of(special: Mask) -> Array:
    """Return the quantile of each target's errors beyond which the pull does not grow.

    The median of a target that is mostly one value is no prediction.
    """
    return np.where(special, RARE, 0.5)


def _some_targets(T: Array, special: Mask, seed: int) -> Indices:
    """Return the targets by which layers are compared: all, or a random few of many."""
    known = np.flatnonzero(~np.isnan(T).all(axis=0))
    ordinary = known[~special[known]]
    known = ordinary if len(ordinary) else known
    if len(known) <= MANY_TARGETS:
        return known
    return np.sort(np.random.default_rng(seed).choice(known, MANY_TARGETS, replace=False))
