"""Layers of a fit to very many rows, chosen together by forward selection.

What a layer adds to others shows in a regression on the nodes of all of them: one whose own error
is large may explain just what the others cannot, such as an effect of three inputs at once. So the
layers of the search are drawn with some nodes each, and H'H of all of them is summed over a share
of the rows. Layers are added while the error of rows that were not summed falls; that solves
systems of equations with parts of H'H, and goes over no row again.

The same regressions tell which inputs nodes should see: before the selection, that of all layers,
whose nodes with three inputs need not explain what those with two do; after it, that of the chosen
layers, with more nodes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import numpy as np

from gorelm._features.guide import SubsetGuide, explained_by_subset
from gorelm._features.joint import JointLayer
from gorelm._progress import doing
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import ScaledRows, with_constant
from gorelm.estimators._robust.layers import (
    PATH,
    Guide,
    Layer,
    Part,
    Trial,
    guide_of,
    mixed,
    pooled_guides,
    sees_few,
    trusted,
)
from gorelm.estimators._robust.plan import layers_compared, rows_compared
from gorelm.estimators._robust.task import CENTRE_ROWS, RobustTask

VALIDATION_ROWS = 3000
TEACHING_ROWS = 10_000  # that tell which inputs act together
GUIDE_ROWS = 2000  # that tell what a subset of the inputs explains
STEP = 4.0  # between penalties
SUMMED_APART = 4  # groups of rows, for threads to share
GAIN = 0.99  # times the squared error: a layer that lowers it by less is not added


@dataclass(frozen=True)
class _SomeRows:
    """Rows on which layers are compared: some of those that stay."""

    part: Part
    train: Indices  # to sum over
    rows: ScaledRows  # these
    valid: Indices  # to judge by
    X_valid: Array
    sets: dict[int, SubsetGuide]  # of inputs that act together, by their size

    @classmethod
    def of(cls, task: RobustTask, part: Part) -> Self:
        """Draw the rows; with given folds, those of one fold judge."""
        kept = np.flatnonzero(part.kept)
        size = max(rows_compared(len(kept)), task.effort.middle_rows)
        sample = np.random.default_rng(task.seed).permutation(kept)[:size]
        valid, train = np.split(sample, [min(size // 4, VALIDATION_ROWS)])
        if part.folds is not None:
            fold = max(part.folds, key=lambda fold: int(part.kept[fold.test].sum()))
            tested, trained = (sample[np.isin(sample, of)] for of in (fold.test, fold.train))
            if len(tested) and len(trained):
                valid, train = tested[:VALIDATION_ROWS], trained
        train, valid = np.sort(train), np.sort(valid)
        (X, _), centres = task.centres, task.sample(CENTRE_ROWS)  # which have been read
        teaching = np.flatnonzero(part.kept[centres] & ~np.isin(centres, valid))
        chosen = np.random.default_rng(task.seed).permutation(len(teaching))[:TEACHING_ROWS]
        teaching = teaching[np.sort(chosen)]
        sets = part.sets_of(X[teaching], centres[teaching])
        return cls(part, train, part.rows.sample(train), valid, part.rows.take(valid), sets)


@dataclass(frozen=True)
class Chosen:
    """Layers for one regression on their nodes."""

    layers: tuple[Layer, ...]
    scales: Array  # (K,): of each layer's outputs
    penalty: float  # of the weights of scaled outputs
    guides: dict[int | None, Guide]  # by the number of inputs of a node; None: directions

    def draw(self, n_nodes: int, seed: int, X: Array, w: Array) -> JointLayer:
        """Draw each layer with so many nodes; radial ones have rows of X as centres."""
        parts = [
            layer.draw(n_nodes, seed, X, guide_of(layer, self.guides), w) for layer in self.layers
        ]
        return JointLayer(tuple(parts), self.scales)

    def trusted(self) -> Self:
        """Return the layers for the last draw."""
        return replace(self, guides=trusted(self.guides))

    def start(self, joint: JointLayer, X: Array, weight: float) -> int:
        """Return where in the path the penalty is, for rows like X of this weight in all."""
        H = with_constant(joint, X)
        units = np.log(self.penalty / (np.vdot(H, H) / len(X) * weight))
        return int(np.argmin(np.abs(np.log(PATH) - units)))


def choose_together(
    task: RobustTask, searched: Sequence[Trial], of_search: Part, part: Part
) -> Chosen:
    """Return the layers that lower the error of one regression, each with those before it.

    Parameters
    ----------
    task : RobustTask
        The fit.
    searched : sequence of Trial
        Layers of the search, best first.
    of_search : Part
        Rows of the search.
    part : Part
        All rows.
    """
    shape = *part.rows.shape, part.T.shape[1]
    n_layers, n_nodes = layers_compared(task.effort, task.n_hidden, *shape)
    some = _SomeRows.of(task, part)
    every = _as_searched(task, mixed(searched, n_layers), of_search, n_nodes)
    every = _guided(task, some, every, n_nodes, of_round=0)
    chosen = _selected(task, some, every, n_nodes, of_round=1)
    return _guided(task, some, chosen, n_layers * n_nodes // len(chosen.layers), of_round=2)


def _as_searched(task: RobustTask, tried: Sequence[Trial], of_search: Part, n_nodes: int) -> Chosen:
    """Return layers with the guides and the penalties of the search."""
    (X, w), guides = task.centres, pooled_guides(tried, of_search.sets)
    hidden = [t.layer.draw(n_nodes, task.seed, X, guide_of(t.layer, guides), w) for t in tried]
    norms = [np.vdot(H, H) / len(H) for H in (with_constant(h, X[:GUIDE_ROWS]) for h in hidden)]
    # With these scales the penalties that the layers chose alone are one and the same.
    alone = PATH[[trial.lam for trial in tried]] * norms
    penalty = float(of_search.w[of_search.kept].sum() * alone.min())
    scales = np.sqrt(alone.min() / alone)
    return Chosen(tuple(trial.layer for trial in tried), scales, penalty, guides)


def _guided(
    task: RobustTask, some: _SomeRows, chosen: Chosen, n_nodes: int, of_round: int
) -> Chosen:
    """Return the layers with guides by what their nodes explain in one regression."""
    joint = chosen.draw(n_nodes, task.seed + of_round, *task.centres)
    fits, every = _JointFits(task, some, joint), range(len(chosen.layers))
    penalty = fits.descend(every, chosen.penalty)[1]
    found = _guides_of(task, some, fits.coef(every, penalty), joint)
    return replace(chosen, penalty=penalty, guides=chosen.guides | found)


def _selected(
    task: RobustTask, some: _SomeRows, every: Chosen, n_nodes: int, of_round: int
) -> Chosen:
    """Return the layers that forward selection adds."""
    joint = every.draw(n_nodes, task.seed + of_round, *task.centres)
    fits = _JointFits(task, some, joint)
    added, penalty = _forward(task, fits, len(every.layers), every.penalty)
    kept = JointLayer(tuple(joint.parts[k] for k in added), every.scales[added])
    found = _guides_of(task, some, fits.coef(added, penalty), kept)
    largest = kept.scales.max()
    return Chosen(
        tuple(every.layers[k] for k in added),
        kept.scales / largest,
        penalty / largest**2,
        every.guides | found,
    )


def _forward(
    task: RobustTask, fits: _JointFits, n_layers: int, penalty: float
) -> tuple[list[int], float]:
    """Return the chosen layers, best first, and the penalty of all of them."""
    chosen: list[int] = []
    least = np.inf
    while len(chosen) < min(task.most_layers, n_layers):
        more = [[*chosen, k] for k in range(n_layers) if k not in chosen]
        losses = task.each(partial(fits.loss, penalty=penalty), more, "choosing layers")
        best = more[int(np.argmin(losses))]
        loss, penalty_of_best = fits.descend(best, penalty)
        if loss >= GAIN * least:
            break
        chosen, least, penalty = best, loss, penalty_of_best
    return chosen, penalty


class _JointFits:
    """Regressions on the outputs of some of the layers of a joint layer, by one sum over rows."""

    def __init__(self, task: RobustTask, some: _SomeRows, joint: JointLayer) -> None:
        self._some, self._joint = some, joint
        omega, T = np.sqrt(some.part.w[some.train]), some.part.filled[some.train]
        # A group of rows is summed by one thread.
        groups = np.array_split(np.arange(len(T)), SUMMED_APART)
        with doing("compare", len(T), joint.n_outputs):
            self._sums, *others = some.rows.sums(joint, groups, omega, T, task.n_threads)
            while others:  # each is given back once it is added
                self._sums += others.pop(0)
        self._H_valid = with_constant(joint, some.X_valid)

    @cached_property
    def _columns(self) -> list[Indices]:
        return [np.arange(of.start, of.stop) for of in self._joint.columns]

    def _outputs(self, layers: Sequence[int]) -> Indices:
        constant = [self._H_valid.shape[1] - 1]
        return np.concatenate([*(self._columns[k] for k in layers), constant]).astype(np.intp)

    def coef(self, layers: Sequence[int], penalty: float) -> Array:
        """Return the output weights of some layers, and the intercept."""
        sums: RidgeSums = self._sums.of_outputs(self._outputs(layers))
        return sums.coef(penalty / (sums.trace or 1.0))

    def loss(self, layers: Sequence[int], penalty: float) -> float:
        """Return the mean squared norm of the errors of rows that were not summed."""
        predicted = self._H_valid[:, self._outputs(layers)] @ self.coef(layers, penalty)
        return float(self._some.part.mean_squares(predicted[:, None], self._some.valid).sum())

    def descend(self, layers: Sequence[int], penalty: float) -> tuple[float, float]:
        """Return the least loss by steps of the penalty, and the penalty."""
        least = self.loss(layers, penalty)
        for step in (STEP, 1 / STEP):
            moved = False
            while (other := self.loss(layers, penalty * step)) < least:
                least, penalty, moved = other, penalty * step, True
            if moved:
                break
        return least, penalty


def _guides_of(
    task: RobustTask, some: _SomeRows, coef: Array, joint: JointLayer
) -> dict[int | None, Guide]:
    """Return the sets of inputs that act together, of each number of inputs.

    Where none is known, what the nodes explain in a regression on all of them.
    """
    X, w = (rows[:GUIDE_ROWS] for rows in task.centres)
    explained: dict[int, list[SubsetGuide]] = {}
    for layer, scale, columns in zip(joint.parts, joint.scales, joint.columns, strict=True):
        if sees_few(layer):
            linked = len(layer.inputs)
            weights = scale * coef[columns][linked:]
            guide = explained_by_subset(layer, layer.transform(X)[:, linked:], weights, w)
            explained.setdefault(layer.A.shape[1], []).append(guide)
    found: dict[int | None, Guide] = {
        n_inputs: SubsetGuide.pooled(guides).by_deviation()
        for n_inputs, guides in explained.items()
    }
    return found | some.sets
