"""Steps 3 and 4 of a robust fit: the members with all their nodes, on all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from gorelm._features.joint import JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._progress import settle
from gorelm._solver.ridge import ridge_coef
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array
from gorelm.backends.inputs import with_constant
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._base import Weights
from gorelm.estimators._robust.cells import NORMAL_MEDIAN, RIGHT_TAILS, masked_quantile
from gorelm.estimators._robust.forward import choose_together
from gorelm.estimators._robust.judge import Judged, Screened, in_one_region, judge, some_rows
from gorelm.estimators._robust.layers import (
    PATH,
    FoldedFit,
    Guide,
    Layer,
    Part,
    Trial,
    compare,
    draw_and_compare,
    forward_selection,
    guide_of,
    lam_for_more,
    pooled_guides,
    rescored,
    trusted,
)
from gorelm.estimators._robust.plan import FORWARD_NODES, FORWARD_ROWS, JOINT_NODES
from gorelm.estimators._robust.search import Ensemble, Found, changed, ensemble, filling_of
from gorelm.estimators._robust.task import RobustTask
from gorelm.estimators._robust.wide import fitted_wide, wide_again, wide_coef
from gorelm.estimators.batch import RELMRegressor

ROWS_PER_NODE = 2.5  # at least, of a joint fit
SCALING_ROWS = 2000  # that tell how large the outputs of a layer are
INNER_FENCE = 1.5  # Tukey's: where the pull of a row that stays is bounded
LEAST_SPREAD = 0.02  # of log(1 + score), of wrong rows and of right ones
NEIGHBOURS = 0.25  # of the rows beyond the fence, if they are so because models cannot follow them


# -- step 3: all nodes, all rows ------------------------------------------------------------------


@dataclass(frozen=True)
class Refined:
    """Members compared on all rows that stay."""

    screened: Screened
    trials: list[Trial]  # of the search
    members: Ensemble
    part: Part  # all rows
    scaling: Scaling  # of the targets
    judged: Judged


def refine(task: RobustTask, found: Found) -> Refined:
    """Give the best layers all their nodes and all rows, and judge all rows once more.

    Frees the results of the search on the way, if nothing else refers to them.
    """
    screened, every = found.screened, np.arange(len(task.T))
    filling, kept, wrong = filling_of(found.judged, screened), found.judged.kept, found.judged.wrong
    part, scaling = task.part(found.judged.T, filling, kept, every)
    searched, of_search = found.trials, found.part
    if len(kept) >= FORWARD_ROWS and task.many:
        del found, filling
        trials = [_fitted_together(task, searched, of_search, part)]
    elif nodes := task.wide_nodes(int(kept.sum())):
        del found, filling
        trials = [fitted_wide(task, searched, of_search, part, nodes)]
    elif task.many:
        some = task.part(found.judged.T, filling, kept, task.sample(task.middle_rows))[0]
        del found, filling
        trials = _grown_by_sums(task, searched, of_search, some, part)
    else:
        before = found.scaling
        del found, filling
        trials = _grown(task, searched, before, part, scaling)
    members, judged = _members(task, screened, scaling, trials)
    del trials
    again = screened.dirty and changed(judged, kept, wrong)
    settle("refine", float(again))
    if again:
        part, scaling = task.part(judged.T, filling_of(judged, screened), judged.kept, every)
        del judged
        trials = [_fitted_again(task, part, trial) for trial in members.trials]
        members, judged = _members(task, screened, scaling, trials)
    part = replace(part, T=part.filled)  # what is known and what is not has been told
    return Refined(screened, searched, members, part, scaling, judged)


def _members(
    task: RobustTask, screened: Screened, scaling: Scaling, trials: list[Trial]
) -> tuple[Ensemble, Judged]:
    """Return the best of trials on all rows, and all rows judged by their average.

    Frees the trials, with their predictions of all rows.
    """
    members = ensemble(trials, task.effort.n_members)
    trials.clear()
    expected = scaling.undo(members.predicted)
    nothing = np.empty((0, task.T.shape[1]))
    of_members = [replace(trial, predicted=nothing) for trial in members.trials]
    members = replace(members, trials=of_members)
    return members, judge(task, screened, expected)


def _fitted_again(task: RobustTask, part: Part, trial: Trial) -> Trial:
    """Compare a drawn layer once more, on other rows."""
    if trial.wide is not None:
        return wide_again(trial, trial.wide, part)
    if trial.sums is None:
        return compare(part, trial.layer, trial.hidden, trial.guide)
    return FoldedFit(
        part,
        trial.layer,
        trial.hidden,
        trial.guide,
        trial.lam,
        seed=task.seed,
        n_threads=task.n_threads,
        layers=trial.layers,
    ).trial()


def _grown(
    task: RobustTask,
    searched: Sequence[Trial],
    before: Scaling,
    part: Part,
    scaling: Scaling,
) -> list[Trial]:
    """Compare the best layers with all their nodes, and all as they were.

    `before` and `scaling` are those of the targets in the search and of all rows.
    """
    guides = trusted(pooled_guides(searched, part.sets))
    nodes = task.nodes_for(int(part.kept.sum()))

    def grown(trial: Trial) -> Trial:
        guide = guide_of(trial.layer, guides) if trial.guide is not None else None
        return draw_and_compare(part, trial.layer, nodes, task.seed, guide)

    best = ensemble(searched, task.effort.n_members).trials[: task.effort.n_members]
    # Few nodes may do better than many; the scores by the same rows tell.
    few = [
        replace(
            rescored(trial, part, scaling.dense(before.undo(trial.predicted))),
            coef=np.empty((0, part.T.shape[1])),  # for targets on the scale of the search
        )
        for trial in searched
    ]
    return [*task.each(grown, best, "fitting"), *few]


def _grown_by_sums(
    task: RobustTask, searched: Sequence[Trial], of_search: Part, some: Part, part: Part
) -> list[Trial]:
    """Compare good layers with more nodes on some rows, and fit the best ones to all rows.

    With many rows a node, the bias of the layers is larger than their variance: one regression on
    the nodes of several layers has less of it than the average of as many regressions.
    """
    guides = pooled_guides(searched, some.sets)
    effort, guided = task.effort, {t.layer for t in searched if t.guide is not None}

    def drawn(layer: Layer, nodes: int, X: Array, w: Array) -> tuple[HiddenLayer, Guide | None]:
        guide = guide_of(layer, guides) if layer in guided else None
        return layer.draw(nodes, task.seed, X, guide, w), guide

    def on_some(trial: Trial) -> tuple[FoldedFit, Trial]:
        start = lam_for_more(trial.lam, more)
        found = drawn(trial.layer, nodes, some.X, some.w)
        fit = FoldedFit(some, trial.layer, *found, start, seed=task.seed, n_threads=1)
        return fit, fit.on_judging_fold()

    wider = min(effort.columns_factor(part.rows.shape[1], part.T.shape[1]), 2.0)
    nodes = task.n_hidden or int(effort.middle_nodes * wider)
    more = (some.kept.sum() * nodes) / (of_search.kept.sum() * task.few_nodes)
    compared = task.each(on_some, searched[: effort.n_middle], "comparing")
    middle, explaining = zip(*compared, strict=True)
    guides |= pooled_guides(explaining, some.sets)
    for n_inputs, known in some.sets.items():
        guides[n_inputs] = known  # of so many rows more exact than what nodes explain
    best = _best_average(middle, effort.n_members)
    # With these scales the penalties that the layers chose are one and the same.
    scales = np.array([one.penalty**-0.5 for one in best])
    layers, lams = tuple(one.layer for one in best), [one.lam for one in best]
    del compared, middle, best  # and the sums that they hold
    guides = trusted(guides)
    n_kept = int(part.kept.sum())
    n_nodes = task.nodes_for(n_kept)
    joint_nodes = task.n_hidden or int(JOINT_NODES * n_nodes / len(layers))  # of each layer
    together = n_kept >= ROWS_PER_NODE * joint_nodes * len(layers)
    n_drawn = joint_nodes if together else n_nodes
    parts = [drawn(layer, n_drawn, *task.centres) for layer in layers]
    more = n_kept * n_drawn / (some.kept.sum() * nodes)
    starts = [lam_for_more(lam, more) for lam in lams]
    fit = partial(FoldedFit, part, seed=task.seed, n_threads=task.n_threads)
    if not together:
        each = zip(layers, parts, starts, strict=True)
        return [fit(layer, *of, start).trial() for layer, of, start in each]
    joint = JointLayer(tuple(hidden for hidden, _ in parts), scales / scales.max())
    return [fit(layers[0], joint, None, starts[int(np.argmax(scales))], layers=layers).trial()]


def _best_average(fits: Sequence[FoldedFit], n_members: int) -> list[FoldedFit]:
    """Return the fits with the best average on the validation rows, added while that helps.

    Layers of small scale are useful although they rank low with few nodes: their errors are little
    correlated with those of the others.
    """
    on_valid = [one.on_valid for one in fits]

    def loss(chosen: Sequence[int]) -> float:
        return fits[0].loss_of(np.mean([on_valid[k] for k in chosen], axis=0))

    return [fits[k] for k in forward_selection(len(fits), loss, n_members)]


def _fitted_together(
    task: RobustTask, searched: Sequence[Trial], of_search: Part, part: Part
) -> Trial:
    """Choose layers by what they add to each other, and fit the nodes of all of them together."""
    chosen, (X, w) = choose_together(task, searched, of_search, part), task.centres
    nodes = task.n_hidden or int(FORWARD_NODES * task.nodes_for(int(part.kept.sum())))
    if task.n_hidden is None:
        nodes //= len(chosen.layers)
    joint = chosen.trusted().draw(nodes, task.seed, X, w)
    start = chosen.start(joint, X[:SCALING_ROWS], float(part.w[part.kept].sum()))
    return FoldedFit(
        part,
        chosen.layers[0],
        joint,
        None,
        start,
        seed=task.seed,
        n_threads=task.n_threads,
        layers=chosen.layers,
    ).trial()


# -- step 4: the fit ------------------------------------------------------------------------------


def fit_members(task: RobustTask, refined: Refined) -> list[RELMRegressor]:
    """Fit the members to all rows that stay."""
    part, judged = refined.part, refined.judged
    kept, omega = judged.kept, np.sqrt(part.w)
    target, alone = _targets_to_fit(task, refined), len(refined.members.trials) == 1
    n_models = sum(max(len(trial.layers), 1) for trial in refined.members.trials)
    # Whether the members were compared on just what they are fitted to.
    same = (kept == part.kept).all() and not np.isnan(judged.T[kept]).any()
    same = same and bool((target[kept] == part.filled[kept]).all())

    def fitted(member: tuple[Trial, Array]) -> list[RELMRegressor]:
        trial, share = member
        # The estimator predicts by the plain mean of its members.
        share = share * n_models / max(len(trial.layers), 1)
        if trial.wide is not None:
            coef = trial.coef if same else wide_coef(trial, trial.wide, target, kept)
            return _as_estimators(task, trial, share * coef, float(trial.wide.K.trace()))
        if trial.sums is None:
            scale = omega[kept][:, None]
            H = scale * with_constant(trial.hidden, part.X[kept])
            coef, unit = trial.coef, np.vdot(H, H)
            if not same or not len(coef):
                coef = ridge_coef(H, scale * target[kept], PATH[trial.lams])
            return _as_estimators(task, trial, share * coef, float(unit))
        sums, before = trial.sums
        # What is new in the sums: rows that came, rows that went, targets that were moved.
        stayed = kept & before & (target != part.filled).any(axis=1)
        groups = [np.flatnonzero(rows) for rows in (kept & ~before, before & ~kept, stayed)]
        newcomers = target[groups[0]]
        # In place if nothing else needs the targets: for many rows, a copy is large.
        changes = np.subtract(target, part.filled, out=target if alone else None)
        changes[groups[0]], changes[groups[1]] = newcomers, part.filled[groups[1]]
        came, went, moved = part.rows.sums(trial.hidden, groups, omega, changes, task.n_threads)
        sums = (sums + came - went).with_targets_of(moved)
        return _as_estimators(task, trial, share * sums.coef(PATH[trial.lam]), sums.trace)

    # Sums are made with all threads, one member after the other.
    members = list(zip(refined.members.trials, refined.members.shares, strict=True))
    of_trials = ordered_map(fitted, members, 1 if task.many else task.n_threads)
    return [member for members in of_trials for member in members]


def _targets_to_fit(task: RobustTask, refined: Refined) -> Array:
    """Return the scaled targets, predictions where unknown.

    If rows or groups of cells were set aside, the targets of the others are moved towards their
    predictions, so that an outlier that was not found has little influence: by how likely the row
    is wrong, and to a fence around them; but not to the fence if the rows beyond it are neighbours,
    where the models cannot follow right targets.
    """
    part, judged, scaling = refined.part, refined.judged, refined.scaling
    target, tested = (
        np.empty(part.filled.shape),
        judged.kept & ~np.isnan(judged.expected).any(axis=1),
    )
    sizes = np.zeros(len(target))
    for rows in some_rows(len(target)):
        expected, T = scaling.dense(judged.expected[rows]), scaling.dense(judged.T[rows])
        known = np.where(np.isnan(expected), part.filled[rows], expected)
        target[rows] = np.where(np.isnan(T), known, T)
        errors = np.where(tested[rows, None], target[rows] - expected, 0.0)
        sizes[rows] = np.sqrt(np.einsum("nm,nm->n", errors, errors))
    if not refined.screened.dirty:
        return target
    shares = _doubt_of_rows(task, refined)  # of the way to the prediction
    fence = outlier_threshold(sizes[tested], part.w[tested], whisker=INNER_FENCE)
    beyond = tested & task.doubted & (sizes > fence)
    if not in_one_region(task, beyond, tested, NEIGHBOURS):
        shares[beyond] = np.maximum(shares[beyond], 1.0 - fence / sizes[beyond])
    moved = np.flatnonzero(tested & (shares > 0))
    expected = scaling.dense(judged.expected[moved])
    target[moved] += shares[moved, None] * (expected - target[moved])
    return target


def _doubt_of_rows(task: RobustTask, refined: Refined) -> Array:
    """Return how likely each row that stays is wrong, by the size of its errors.

    The sizes log(1 + score) of wrong rows are taken for normal, those of right rows for Student's
    with few degrees of freedom, since some right rows are hard to predict.
    """
    judged, w = refined.judged, task.w
    known = task.usable & task.doubted & ~np.isnan(judged.scores)
    wrong, right = known & judged.flagged, known & judged.kept
    doubt = np.zeros(len(w))
    if not (refined.screened.contaminated and wrong.any() and right.any()):
        return doubt
    sizes = np.log1p(judged.scores)
    centre = masked_quantile(sizes[right], w[right], 0.5)
    spread = masked_quantile(np.abs(sizes[right] - centre), w[right], 0.5) / NORMAL_MEDIAN
    mean = np.average(sizes[wrong], weights=w[wrong])
    deviation = np.sqrt(np.average((sizes[wrong] - mean) ** 2, weights=w[wrong]))
    as_wrong = norm.pdf(sizes[right], mean, max(deviation, LEAST_SPREAD)) * w[wrong].sum()
    as_right = student.pdf(sizes[right], RIGHT_TAILS, centre, max(spread, LEAST_SPREAD))
    doubt[right] = as_wrong / (as_wrong + as_right * w[right].sum())
    return doubt


def _as_estimators(task: RobustTask, trial: Trial, coef: Array, unit: float) -> list[RELMRegressor]:
    """Return a fitted R-ELM for each layer of a trial; their average has these output weights."""
    penalty, joint = float(PATH[trial.lam]) * unit, trial.hidden
    if isinstance(joint, HiddenLayer):
        return [_as_estimator(task, trial.layer, joint, coef, penalty)]
    models = []
    for layer, hidden, scale, columns in zip(
        trial.layers, joint.parts, joint.scales, joint.columns, strict=True
    ):
        own = np.vstack([coef[columns] * (scale * len(trial.layers)), coef[-1:]])
        models.append(_as_estimator(task, layer, hidden, own, penalty / scale**2))
    return models


def _as_estimator(
    task: RobustTask, layer: Layer, hidden: HiddenLayer, coef: Array, penalty: float
) -> RELMRegressor:
    """Return a fitted R-ELM with a layer and these output weights."""
    n_features = task.rows.shape[1]
    model = layer.estimator(hidden.n_nodes, n_features, task.seed)
    model.C = 1.0 / max(penalty, np.finfo(float).tiny)
    model.n_features_in_, model._one_target = n_features, False
    model._input_scaling = Scaling(np.zeros(n_features), np.ones(n_features))
    model._target_scaling = Scaling(np.zeros(coef.shape[1]), np.ones(coef.shape[1]))
    model.hidden_ = hidden
    model._remember(Weights(coef[:-1], coef[-1]))
    return model
