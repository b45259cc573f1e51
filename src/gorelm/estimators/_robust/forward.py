"""Layers of a fit to very many rows, chosen together by forward selection.

What a layer adds to others shows in a regression on the nodes of all of them: one whose own error
is large may explain just what the others cannot, such as an effect of three inputs at once. So the
best layers of the search are drawn with some nodes each, H'H of all of them is summed over a share
of the rows, and layers are added while the error of rows that were not summed falls. Each step
solves a few systems of equations with a part of H'H, and goes over no row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from gorelm._features.guide import SubsetGuide, explained_by_subset
from gorelm._features.joint import JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import with_constant
from gorelm.estimators._robust.layers import PATH, Layer, Part, Trial, pooled_guides, sees_few
from gorelm.estimators._robust.plan import FORWARD_SHARE, layers_compared
from gorelm.estimators._robust.task import RobustTask

VALIDATION_ROWS = 3000
GUIDE_ROWS = 2000  # that tell what a subset of the inputs explains
STEP = 4.0  # between penalties
GAIN = 0.99  # times the squared error: a layer that lowers it by less is not added


@dataclass(frozen=True)
class Chosen:
    """Layers for one regression on their nodes."""

    layers: tuple[Layer, ...]
    scales: Array  # (K,): of each layer's outputs
    penalty: float  # of the weights of scaled outputs
    guides: dict[int | None, SubsetGuide]  # by the number of inputs of a node

    def draw(self, n_nodes: int, seed: int, X: Array, w: Array) -> JointLayer:
        """Draw each layer with so many nodes; radial ones have rows of X as centres."""
        parts = [
            layer.draw(n_nodes, seed, X, self.guides.get(layer.n_inputs), w)
            for layer in self.layers
        ]
        return JointLayer(tuple(parts), self.scales)

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
    tried = searched[:n_layers]
    guides, (X, w) = pooled_guides(of_search, searched), task.centres
    guided = {trial.layer.n_inputs for trial in tried if trial.guide is not None}
    guides = {n_inputs: guide for n_inputs, guide in guides.items() if n_inputs in guided}
    # With these scales the penalties that the layers chose alone are one and the same.
    hidden = [t.layer.draw(n_nodes, task.seed, X, guides.get(t.layer.n_inputs), w) for t in tried]
    norms = [np.vdot(H, H) / len(H) for H in (with_constant(h, X[:GUIDE_ROWS]) for h in hidden)]
    alone = PATH[[trial.lam for trial in tried]] * norms
    scales = np.sqrt(alone.min() / alone)
    joint = JointLayer(tuple(hidden), scales)
    fits = _JointFits(task, part, joint)
    start = float(of_search.w[of_search.kept].sum() * alone.min())
    chosen, penalty = _forward(task, fits, len(tried), start)
    found = _guides_of(
        task, fits.coef(chosen, penalty), [hidden[k] for k in chosen], scales[chosen]
    )
    largest = scales[chosen].max()
    return Chosen(
        tuple(tried[k].layer for k in chosen),
        scales[chosen] / largest,
        penalty / largest**2,
        guides | found,
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

    def __init__(self, task: RobustTask, part: Part, joint: JointLayer) -> None:
        self._part, self._joint = part, joint
        train, self._valid = _split(task, part)
        omega = np.sqrt(part.w)
        (self._sums,) = part.rows.sums(joint, [train], omega, part.filled, task.n_threads)
        self._H_valid = with_constant(joint, part.rows.take(self._valid))

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
        return float(self._part.mean_squares(predicted[:, None], self._valid).sum())

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


def _split(task: RobustTask, part: Part) -> tuple[Indices, Indices]:
    """Return rows to sum over, and rows to judge by: a share of those that stay."""
    rng = np.random.default_rng(task.seed)
    kept = np.flatnonzero(part.kept)
    size = max(int(FORWARD_SHARE * len(kept)), task.effort.middle_rows)
    sample = rng.permutation(kept)[:size]
    if part.folds is None:
        valid, train = np.split(sample, [min(size // 4, VALIDATION_ROWS)])
    else:
        fold = part.folds[0]
        valid = sample[np.isin(sample, fold.test)][:VALIDATION_ROWS]
        train = sample[np.isin(sample, fold.train)]
    return np.sort(train), np.sort(valid)


def _guides_of(
    task: RobustTask, coef: Array, hidden: Sequence[HiddenLayer], scales: Array
) -> dict[int | None, SubsetGuide]:
    """Return what the nodes with each number of inputs explain in a joint fit."""
    X, w = (rows[:GUIDE_ROWS] for rows in task.centres)
    joint, found = JointLayer(tuple(hidden), scales), dict[int | None, list[SubsetGuide]]()
    for layer, scale, columns in zip(hidden, scales, joint.columns, strict=True):
        if sees_few(layer):
            linked = len(layer.inputs)
            weights = scale * coef[columns][linked:]
            guide = explained_by_subset(layer, layer.transform(X)[:, linked:], weights, w)
            found.setdefault(layer.A.shape[1], []).append(guide)
    return {n_inputs: SubsetGuide.pooled(guides) for n_inputs, guides in found.items()}
