"""Step 2 of a robust fit: the search, which compares hidden layers and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._progress import foresee, settle
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.inputs import with_constant
from gorelm.estimators._robust.cells import (
    MOST_TARGETS,
    masked_quantile,
    split_cells,
    two_groups,
)
from gorelm.estimators._robust.judge import (
    FARTHEST_TARGET,
    Judged,
    Screened,
    in_one_region,
    judge,
    least_explained,
    log_sizes,
)
from gorelm.estimators._robust.layers import (
    GUIDING,
    PATH,
    Directions,
    Guide,
    Layer,
    Part,
    Repeated,
    Trial,
    by_halves,
    compare,
    draw_and_compare,
    known_sets,
    learn_by_halves,
    learn_directions,
    pooled_guides,
    rescored,
)
from gorelm.estimators._robust.screen import (
    CHOOSING_FOLDS,
    SCREEN_PATH,
    Also,
    bounded_by_folds,
    judged_by_screen,
    levels_of,
    quantiles_of_columns,
)
from gorelm.estimators._robust.task import RobustTask

MUCH_WORSE = 1.25  # times the best layer's squared error: no member beyond
# Steps in which flagged rows are fitted, too, and the quantile of the errors of the other rows
# beyond which their pull does not grow.
TOGETHER_STEPS, PULLED = 6, 0.9
FEW_CHANGES = 0.01  # share of rows that may be set aside or come back without another search
# Far errors of the screen, in its median errors; times these, what better models lower them to.
FAR_ERRORS, REDUCIBLE = 3.0, 0.85
# If what seems wrong is right, models that know it lower its errors to this share. (Mistakes to one
# side explain each other in part.)
EXPLAINED = 0.5
CONFIRMING = 3  # layers that must see two groups of cells
AGAIN = 3  # searches of tables with wrong cells, each of which fills them in better
# Chance that many rows change sides once more if few, or many, did; only to tell how long it takes.
LIKELY = (0.05, 0.5)
REDRAWN = 6  # sparse layers that are drawn again in every round after the second

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
# Layers whose nodes look in the directions in which regressions on another one change.
TEACHER = Layer("tanh", 1.0, True)
DIRECTED = (
    Layer("cosine", 0.5, True, directed=True),
    Layer("cosine", 1.0, True, directed=True),
    Layer("tanh", 1.0, True, directed=True),
    Layer("relu", 1.0, True, directed=True),
)


@dataclass(frozen=True)
class Found:
    """Result of the search."""

    screened: Screened  # as the search found it to be
    trials: list[Trial]  # best first
    part: Part
    scaling: Scaling  # of its targets
    judged: Judged


def search(task: RobustTask, screened: Screened, *, sure: bool = False) -> Found:
    """Compare the layers on what stays and judge all rows and cells; again if many changed sides.

    Unless `sure`, the groups that the screen saw must be seen by better models, too; if it saw them
    in most targets, these models may see them in others.
    """
    rows = task.sample(task.effort.search_rows)
    part, scaling = task.part(screened.T, screened.expected, screened.kept, rows)
    trials = compare_layers(task, part)
    judged = _judge_by(task, screened, scaling, trials, rows)
    if screened.dirty and not sure:
        contaminated, groups = _still_two(task, screened, judged, trials, rows)
        if contaminated is not screened.contaminated or (groups != screened.groups).any():
            # Better models explain what the screen set aside. (Rarely the other way round: the
            # errors of good models have long tails, and what is set aside for them seems wrong ever
            # after.)
            found = replace(screened, contaminated=contaminated, groups=groups)
            return search(task, judged_by_screen(task, found), sure=True)
    heavy = screened.heavy & ~_reducible(task, screened.expected, judged.expected)
    if not screened.dirty and (heavy != screened.heavy).any():
        screened = replace(screened, heavy=heavy)
        judged = _judge_by(task, screened, scaling, trials, rows)
    many = screened.dirty and changed(judged, screened.kept, screened.wrong)
    if screened.contaminated:
        together = explained_together(task, screened, judged, trials, rows)
        many, judged = many or bool((together.kept ^ judged.kept).any()), together
    settle("search", float(many))
    settle("refine", LIKELY[many] if screened.dirty else 0.0)
    foresee("refine", "sums", float(judged.kept.sum()))
    rounds = AGAIN if screened.groups.any() else 1
    while many and rounds:
        rounds -= 1
        before, seen = scaling, judged
        part, scaling = task.part(judged.T, filling_of(judged, screened), judged.kept, rows)
        trials = _compared_again(task, part, trials, before, scaling)
        judged = _judge_by(task, screened, scaling, trials, rows)
        many = changed(judged, seen.kept, seen.wrong)
    if not np.isnan(judged.expected).any():
        # What a better model has replaced is given back: of many rows it is large.
        nothing = np.empty((0, task.T.shape[1]))
        screened = replace(screened, T=task.T, expected=nothing)
    return Found(screened, trials, part, scaling, judged)


def _compared_again(
    task: RobustTask, part: Part, trials: list[Trial], before: Scaling, scaling: Scaling
) -> list[Trial]:
    """Return the trials on other rows and cells, best first; only the best are fitted to them."""
    again = task.each(
        lambda t: compare_again(part, t, task.seed),
        trials[: 2 * task.effort.n_members],
        "searching again",
    )
    others = [
        rescored(trial, part, scaling.dense(before.undo(trial.predicted)))
        for trial in trials[len(again) :]
    ]
    return sorted([*again, *others], key=lambda trial: trial.score)


def explained_together(
    task: RobustTask, screened: Screened, judged: Judged, trials: Sequence[Trial], rows: Indices
) -> Judged:
    r"""Keep flagged rows after all if models that are fitted to them, too, predict them.

    A right row far from all others seems wrong to models that know none of its kind. So the best
    layers are fitted to the flagged rows of the search, too, with the bounded pull of Huber's loss:
    the targets of these rows are

    .. math:: t_{ij}^* = p_{ij} + \max(-\delta_j, \min(\delta_j, t_{ij} - p_{ij})),

    :math:`p_{ij}` being the prediction of the row by the last fits without it, and :math:`\delta_j`
    an error that few other rows have. Right rows pull the predictions of rows like them in the same
    direction, step by step; wrong rows do not explain each other, unless they are off to one side:
    where the screen needs its trimmed loss, nothing is taken back.
    """
    off = task.usable & task.doubted & judged.flagged
    (right,) = np.nonzero(judged.kept & task.tested & task.learning)
    if screened.trimmed or not off[rows].any() or not len(right):
        return judged
    errors = np.abs(judged.T[right] - judged.expected[right])
    known = np.where(np.isnan(errors), 0.0, task.w[right, None])
    (most,) = quantiles_of_columns(
        np.nan_to_num(errors)[:, None], known, np.full(errors.shape[1], PULLED)
    )
    pulled = judged.expected + np.clip(task.T - judged.expected, -most, most)
    T, filling = np.where(off[:, None], pulled, judged.T), filling_of(judged, screened)
    part, scaling = task.part(T, filling, judged.kept | off, rows)
    n_members = task.effort.n_members
    best = ensemble(trials, n_members).trials
    # Directions that all rows have taught know the targets of rows that the screen had kept.
    others = [trial for trial in best if not isinstance(trial.guide, Directions)]
    fits = task.each(partial(Repeated.of, part), others or best, "searching again")
    given, predicted = scaling.dense(task.T[rows]), scaling.dense(judged.expected[rows])
    most, doubted = most / scaling.scale, off[rows, None]
    for _ in range(TOGETHER_STEPS):
        T = np.where(doubted, predicted + np.clip(given - predicted, -most, most), part.T)
        filled = np.where(np.isnan(T), np.where(doubted, predicted, part.filled), T)
        part = replace(part, T=T, filled=filled)
        again = list(ordered_map(partial(Repeated.trial, part=part), fits, task.n_threads))
        predicted = ensemble(again, n_members).predicted
    now = _judge_by(task, screened, scaling, again, rows)
    back = off & ~now.flagged
    cells = back[:, None]  # of such rows single ones may be wrong
    return replace(
        judged,
        kept=judged.kept | back,
        wrong=np.where(cells, now.wrong, judged.wrong),
        T=np.where(cells, now.T, judged.T),
    )


def _reducible(task: RobustTask, before: Array, after: Array) -> Mask:
    """Whether better models explain the far errors of a target: these are no heavy tails.

    Targets that are moved towards the predictions of a poor model would teach its errors. Noise
    stays as far off, whatever the model.
    """
    (sample,) = np.nonzero(task.usable & task.learning & ~np.isnan(after).any(axis=1))
    T, w = task.T[sample], task.w[sample][:, None]
    errors = np.nan_to_num(np.abs(np.stack([before[sample], after[sample]], axis=1) - T[:, None]))
    half, known = np.full(T.shape[1], 0.5), np.where(np.isnan(T), 0.0, w)
    (median,) = quantiles_of_columns(errors[:, :1], known, half)
    far = errors[:, 0] > FAR_ERRORS * median
    left = errors[:, 1:] / np.maximum(errors[:, :1], np.finfo(float).tiny)
    (ratio,) = quantiles_of_columns(left, np.where(far, known, 0.0), half)
    return np.asarray((ratio < REDUCIBLE) & (known * far).any(axis=0))


def changed(judged: Judged, kept: Mask, wrong: Mask) -> bool:
    """Whether many rows or cells changed sides, or many cells can be filled in better."""
    sides = (judged.wrong ^ wrong) | (judged.kept ^ kept)[:, None]
    filled = judged.wrong & judged.kept[:, None]
    return bool(max(sides.mean(), filled.mean()) > FEW_CHANGES)


def _still_two(
    task: RobustTask,
    screened: Screened,
    judged: Judged,
    trials: Sequence[Trial],
    rows: Indices,
) -> tuple[bool, Mask]:
    """Return whether the errors of rows, and of each target's cells, are still two groups."""
    least = least_explained(task, int(screened.judging.sum()))
    contaminated = screened.contaminated and judged.two_groups and bool(judged.flagged.any())
    groups = two_groups(judged.cells.explained, least)
    if screened.groups.mean() <= MOST_TARGETS:  # else others may have such cells, too
        groups &= screened.groups
    if contaminated or groups.any():
        of_rows, of_cells = explained_by_others(task, screened, judged, trials, rows)
        contaminated, groups = contaminated and not of_rows, groups & ~of_cells
        if not contaminated:
            groups &= judged.wrong.any(axis=0)
        if groups.any():
            groups &= confirmed(task, screened, trials)
    contaminated = contaminated and not in_one_region(task, judged.flagged)
    for j in np.flatnonzero(groups):
        groups[j] = not in_one_region(task, judged.wrong[:, j])
    return contaminated, groups


def explained_by_others(
    task: RobustTask,
    screened: Screened,
    judged: Judged,
    trials: Sequence[Trial],
    rows: Indices,
) -> tuple[bool, Mask]:
    """Whether models fitted to all rows predict those that seem wrong; and each target's cells.

    Mistakes tell nothing about each other: without its row, a model that knows all other rows
    predicts a wrong one as badly as a model that knows right rows only. Right rows that depend on
    the inputs in another way than those that the models have seen are predicted far better.
    """
    part, scaling = task.part(task.T, screened.expected, task.usable, rows)
    layers = [trial.layer for trial in trials if not trial.layer.directed]
    of_all = compare_layers(task, part, layers[: task.effort.n_members])
    T, w = task.T[rows], task.w[rows]
    with_all = scaling.undo(ensemble(of_all, task.effort.n_members).predicted)
    with np.errstate(over="ignore"):
        before, after = (
            np.minimum(np.abs(predicted - T) / task.robust_scaling.scale, FARTHEST_TARGET)
            for predicted in (judged.expected[rows], with_all)
        )

    def explained(before: Array, after: Array, off: Mask) -> bool:
        off = off & ~np.isnan(before + after) & (w > 0)
        with np.errstate(over="ignore"):
            ratios = after[off] / np.maximum(before[off], np.finfo(float).tiny)
        return bool(off.any()) and masked_quantile(ratios, w[off], 0.5) < EXPLAINED

    kept, by = judged.kept[rows], screened.judging
    flagged = judged.flagged[rows]
    of_rows = explained(log_sizes(before[:, by]), log_sizes(after[:, by]), flagged)
    # If its rows are right, their cells may be wrong.
    wrong = kept[:, None] & judged.wrong[rows]
    if of_rows:
        wrong |= ~kept[:, None] & judged.cells.mask[rows]
    columns = zip(before.T, after.T, wrong.T, strict=True)
    return of_rows, np.array([explained(*column) for column in columns])


def confirmed(task: RobustTask, screened: Screened, trials: Sequence[Trial]) -> Mask:
    """Return the targets of whose cells fits like the screen's of the best layers see two groups.

    They are fitted to all cells. Right cells that the screen's layers cannot follow form a group as
    well, and no model explains them once they are all set aside.
    """
    rows, judging = task.sample(2 * task.effort.search_rows), screened.judging
    scaling = task.robust_scaling
    T = scaling.dense(task.T[rows])[:, judging]
    T = np.clip(T, -FARTHEST_TARGET, FARTHEST_TARGET)
    X, w, level = task.rows.take(rows), task.w[rows], levels_of(~judging[judging])

    n_folds = CHOOSING_FOLDS if task.folds is None else None

    def explained(trial: Trial) -> Array:
        H = with_constant(trial.hidden, X)
        # Wrong rows call for heavier penalties than those that the layer chose without them.
        lams = SCREEN_PATH[: 1 + np.count_nonzero(PATH[trial.lam] < SCREEN_PATH)]
        trimmed = screened.trimmed
        also = Also(trimmed=trimmed)
        predicted = bounded_by_folds(
            task, rows, H, T, lams, level, n_folds, also=also, n_threads=task.n_threads
        )
        predicted = predicted[:, len(lams) * trimmed :]
        errors = predicted - T[:, None]
        tested = task.usable[rows] & ~np.isnan(predicted[:, 0, 0])
        total = w[tested] @ np.abs(np.nan_to_num(errors[tested])).sum(axis=2)
        best = errors[:, int(np.argmin(total))]
        right, every = tested & screened.kept[rows], np.ones(best.shape[1], dtype=bool)
        return split_cells(best, np.where(right, w, 0.0), every)[1]

    # The folds of one layer are shared among threads.
    of_each = np.min([explained(trial) for trial in trials[:CONFIRMING]], axis=0)
    of_cells = np.zeros(len(judging), dtype=bool)
    of_cells[judging] = two_groups(of_each)
    return of_cells


def compare_layers(
    task: RobustTask, part: Part, some: Sequence[Layer] | None = None
) -> list[Trial]:
    """Return a trial of every layer, or of some; sparse ones drawn where their nodes help.

    Best first.
    """
    layers, nodes = layers_to_compare(task)
    if some is not None:
        layers, nodes = list(some), [task.few_nodes] * len(some)
    sparse = [k for k, layer in enumerate(layers) if is_sparse(layer, part.X.shape[1])]

    def draw(which: tuple[int, int, Guide | None]) -> Trial:
        k, of_round, guide = which
        layer = layers[k]
        hidden = layer.draw(nodes[k], task.seed + of_round, part.X, guide, part.w)
        return compare(part, layer, hidden, guide, explain=True)

    first: list[tuple[int, int, Guide | None]] = [(k, 0, None) for k in range(len(layers))]
    for k in sparse:
        first[k] = (k, 0, known_sets(layers[k].n_inputs, part.sets))
    trials = task.each(draw, first, "searching layers")
    for of_round in range(1, task.effort.rounds):
        sparse.sort(key=lambda k: trials[k].score)
        most = GUIDING * trials[sparse[0]].score if sparse else 0.0
        redrawn = [k for k in sparse if trials[k].score <= most]
        redrawn = redrawn if of_round == 1 else redrawn[:REDRAWN]
        guides = pooled_guides([trials[k] for k in sparse], part.sets)
        again = [(k, of_round, guides[layers[k].n_inputs]) for k in redrawn]
        for k, trial in zip(redrawn, task.each(draw, again, "redrawing layers"), strict=True):
            if trial.score < trials[k].score:
                trials[k] = trial
    if some is None:
        trials += _directed(task, part, trials)
    return sorted(trials, key=lambda trial: trial.score)


def layers_to_compare(task: RobustTask) -> tuple[list[Layer], list[int]]:
    """Return the layers and the nodes of each.

    Of more inputs than rows, sparse layers are tried without the inputs as outputs, too: a linear
    model of so many inputs fits every target, and beside it nodes have little to explain.
    """
    layers, nodes = list(SEARCH_LAYERS), [task.few_nodes] * len(SEARCH_LAYERS)
    if task.more_inputs_than_rows:
        sparse = [layer for layer in layers if is_sparse(layer, task.rows.shape[1])]
        layers += [replace(layer, direct_link=False) for layer in sparse]
        nodes += [task.wide_few_nodes] * len(sparse)
    return layers, nodes


def _directed(task: RobustTask, part: Part, others: Sequence[Trial]) -> list[Trial]:
    """Return trials of layers whose nodes look in learnt directions, if one may be a member.

    Directions that all rows have taught flatter a layer. One that even so is much worse than the
    best of the other layers, whatever the target, need not be judged by halves of the rows.
    """
    nodes, seed = task.few_nodes, task.seed
    whole = learn_directions(part, TEACHER, nodes, seed)
    if whole is None:
        return []
    flattered = task.each(
        lambda layer: draw_and_compare(part, layer, nodes, seed, whole),
        DIRECTED,
        "directing layers",
    )
    limit = MUCH_WORSE * np.min([trial.scores for trial in others], axis=0)
    hopeful = [trial for trial in flattered if (trial.scores <= limit).any()]
    directions = learn_by_halves(part, TEACHER, whole, nodes, seed) if hopeful else None
    if directions is None:
        return []
    return task.each(
        lambda trial: by_halves(part, trial, directions, nodes, seed), hopeful, "directing layers"
    )


def compare_again(part: Part, trial: Trial, seed: int) -> Trial:
    """Compare the layer of a trial on other rows to fit."""
    if isinstance(trial.guide, Directions) and isinstance(trial.hidden, HiddenLayer):
        return draw_and_compare(part, trial.layer, trial.hidden.n_nodes, seed, trial.guide)
    return compare(part, trial.layer, trial.hidden, trial.guide, explain=True)


def is_sparse(layer: Layer, n_features: int) -> bool:
    """Whether the nodes of a layer see fewer inputs than there are."""
    return layer.n_inputs is not None and layer.n_inputs < n_features


@dataclass(frozen=True)
class Ensemble:
    """Trials whose weighted mean predicts, each target with weights of its own."""

    trials: list[Trial]
    shares: Array  # (trials, m): of each trial in the prediction of a target; their sum is 1

    @property
    def predicted(self) -> Array:
        """Predictions of the rows by fits without them."""
        each = zip(self.shares, self.trials, strict=True)
        return np.asarray(sum(share * trial.predicted for share, trial in each))


def ensemble(trials: Sequence[Trial], n_members: int) -> Ensemble:
    """Return the mean of the `n_members` best trials of each target.

    Those much worse than the best are left out. Of all trials, twice `n_members` are considered,
    those with the best places among the first `n_members` of the targets.
    """
    scores = np.array([trial.scores for trial in trials])
    places = np.argsort(np.argsort(scores, axis=0, kind="stable"), axis=0)
    total = np.minimum(places, n_members).sum(axis=1)
    chosen = np.argsort(total, kind="stable")[: 2 * n_members]
    scores = scores[chosen]
    order = np.argsort(scores, axis=0, kind="stable")
    first = np.argsort(order, axis=0) < n_members
    used = first & (scores <= MUCH_WORSE * scores.min(axis=0))
    some = used.any(axis=1)
    shares = used[some] / used.sum(axis=0)
    return Ensemble([trials[k] for k in chosen[some]], shares)


def _judge_by(
    task: RobustTask, screened: Screened, scaling: Scaling, trials: Sequence[Trial], rows: Indices
) -> Judged:
    """Judge all rows by the average of the best trials, which were fitted to some of them."""
    members = ensemble(trials, task.effort.n_members)
    predicted = np.zeros(task.T.shape)
    if len(rows) < len(predicted):
        for share, trial in zip(members.shares, members.trials, strict=True):
            predicted += share * trial.outputs(task.rows, task.n_threads)
    predicted[rows] = members.predicted
    return judge(task, screened, scaling.undo(predicted), with_scores=False)


def filling_of(judged: Judged, screened: Screened) -> Array:
    """Return predictions of every row to stand for unknown targets."""
    unknown = np.isnan(judged.expected)
    if not unknown.any():
        return judged.expected
    return np.where(unknown, screened.expected, judged.expected)
