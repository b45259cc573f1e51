"""One regression on more nodes than rows, of the layers of all members, for some thousand rows.

The errors of smooth functions of many inputs fall with every node, far beyond one for each row.
With N rows and L > N nodes, HH' has fewer entries than H'H, and its Cholesky factor gives the
prediction of every row by the regression without it (`gorelm._solver.ridge.DualRidge`): one
regression on the nodes of several layers takes less time than folds of each layer with fewer nodes.
H is never held whole: HH' is summed over some of its columns at a time.

HH' of several layers is the sum of theirs. So the layers are chosen by forward selection on some
rows: first the one with the smallest error, then the one that lowers it most, while that helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gorelm._features.joint import JointLayer
from gorelm._solver.ridge import DualRidge
from gorelm._typing import Array, Indices, Mask
from gorelm.estimators._robust.forward import Chosen
from gorelm.estimators._robust.layers import (
    PATH,
    Layer,
    Part,
    Trial,
    descend,
    forward_selection,
    guide_of,
    lam_for_more,
    mixed,
    pooled_guides,
)
from gorelm.estimators._robust.products import RowProducts
from gorelm.estimators._robust.task import RobustTask

COMPARED, COMPARED_ROWS = 8, 1500  # layers to choose from, and rows by which they are chosen
GAIN = 0.995  # times the squared error: a layer that lowers it by less is not added
SPARE = 1.5  # nodes of a layer that is compared, in those that it would get as one of many
VALIDATION_ROWS = 1000  # at most, and a quarter of all, by which the penalty is chosen
FIRST = 3  # the share of the rows, 1 in so many, by which it is first guessed


def fitted_wide(
    task: RobustTask, searched: Sequence[Trial], of_search: Part, part: Part, n_nodes: int
) -> Trial:
    """Choose layers by what they add to each other, and fit the nodes of all of them together.

    Parameters
    ----------
    task : RobustTask
        The fit.
    searched : sequence of Trial
        Layers of the search, best first.
    of_search : Part
        Rows of the search.
    part : Part
        All rows; those that are kept are fitted.
    n_nodes : int
        Nodes of all layers together.
    """
    guides, X = pooled_guides(searched, part.sets), part.X
    rows = np.random.default_rng(task.seed).permutation(np.flatnonzero(part.kept))
    some, most = rows[:COMPARED_ROWS], task.effort.n_members
    n_compared = max(int(SPARE * n_nodes / most * len(some) / len(rows)), 1)
    more = n_compared * len(some) / (task.few_nodes * of_search.kept.sum())

    def compared(trial: Trial) -> _Candidate:
        guide = guide_of(trial.layer, guides) if trial.guide is not None else None
        hidden = trial.layer.draw(n_compared, task.seed, X[some], guide, part.w[some])
        products = RowProducts.of(JointLayer((hidden,), np.ones(1)), X, part.w, some, 1)
        return _Candidate.of(part, trial.layer, products, lam_for_more(trial.lam, more))

    candidates = [trial for trial in mixed(searched, COMPARED + 1) if not trial.layer.linear]
    best = _selected(part, some, task.each(compared, candidates[:COMPARED], "comparing"), most)
    # With these scales all penalties are one and the same, however many nodes a layer has.
    nodes = n_nodes // len(best)
    scales = np.array([(one.penalty * nodes / n_compared) ** -0.5 for one in best])
    layers, unit = tuple(one.layer for one in best), scales.max()
    chosen = Chosen(layers, scales / unit, float(unit**-2), guides)
    del best  # and the products that they hold
    hidden = chosen.trusted().draw(nodes, task.seed, *task.centres)
    return fit_wide(part, layers, hidden, chosen.penalty, rows, task.n_threads)


@dataclass(frozen=True)
class _Candidate:
    """A layer to choose."""

    layer: Layer
    K: Array  # HH' of the rows by which it is compared, in units of the penalty
    penalty: float

    @classmethod
    def of(cls, part: Part, layer: Layer, products: RowProducts, start: int) -> _Candidate:
        """Choose the penalty, from a first guess."""
        unit = float(products.K.trace()) or 1.0
        penalty = PATH * unit
        lam, _ = descend(lambda k: _error(part, products.rows, products.K / penalty[k]), start)
        return cls(layer, products.K / penalty[lam], float(penalty[lam]))


def _selected(
    part: Part, rows: Indices, every: Sequence[_Candidate], most: int
) -> list[_Candidate]:
    """Return the layers that lower the error of one regression, each with those before it."""

    def error(chosen: Sequence[int]) -> float:
        return _error(part, rows, np.sum([every[k].K for k in chosen], axis=0))

    return [every[k] for k in forward_selection(len(every), error, most, GAIN)]


def _error(part: Part, rows: Indices, K: Array) -> float:
    """Return the squared error of some rows by regressions without them, at a penalty of 1."""
    return _squares(part, rows, DualRidge(K, _targets(part, rows), 1.0 / float(K.trace())).errors())


def _targets(part: Part, rows: Indices) -> Array:
    """Return the targets of some rows, or sums of many, times the roots of their weights."""
    T = np.sqrt(part.w[rows])[:, None] * part.filled[rows]
    return T if part.sketch is None else T @ part.sketch


def _squares(part: Part, rows: Indices, errors: Array) -> float:
    """Return the mean squared norm of the errors of these targets."""
    if part.sketch is not None:
        return float(np.vdot(errors, errors) / part.w[rows].sum())
    predicted = part.filled[rows] - errors / np.sqrt(part.w[rows])[:, None]
    return float(part.mean_squares(predicted[:, None], rows).sum())


def fit_wide(
    part: Part,
    layers: tuple[Layer, ...],
    hidden: JointLayer,
    penalty: float,
    rows: Indices,
    n_threads: int,
) -> Trial:
    """Choose the penalty by some rows, and predict each row by a regression without it.

    Parameters
    ----------
    part : Part
        Rows; those that are kept are fitted.
    layers, hidden
        The layers, and the nodes of all of them.
    penalty : float
        First guess.
    rows : array of int
        Those that are kept, in any order: the last ones choose the penalty.
    n_threads : int
        To share the work among.
    """
    products = RowProducts.of(hidden, part.X, part.w, rows, n_threads)
    n_valid = max(min(VALIDATION_ROWS, len(rows) // 4), 1)

    def lam_by_last(n: int, start: int) -> int:
        """Choose by regressions on the last rows."""
        K, T = products.K[-n:, -n:], _targets(part, rows[-n:])
        return descend(
            lambda lam: _squares(
                part, rows[-n_valid:], DualRidge(K, T, float(PATH[lam])).errors(n_valid)
            ),
            start,
        )[0]

    # A guess by fewer rows takes a small part of the time.
    few = max(len(rows) // FIRST, n_valid)
    units = np.log(penalty / products.K[-few:, -few:].trace())
    guess = lam_by_last(few, int(np.argmin(np.abs(np.log(PATH) - units))))
    lam = lam_by_last(len(rows), lam_for_more(guess, len(rows) / few))
    return _trial(products, layers, lam, part)


def wide_again(trial: Trial, products: RowProducts, part: Part) -> Trial:
    """Predict each row by a regression without it, of other rows or targets at the same penalty."""
    products = products.of_rows(np.flatnonzero(part.kept))
    return _trial(products, trial.layers, trial.lam, part)


def wide_coef(trial: Trial, products: RowProducts, target: Array, kept: Mask) -> Array:
    """Return output weights fitted to all rows that are kept."""
    products = products.of_rows(np.flatnonzero(kept))
    return products.output_weights(_regression(products, target, trial.lam).dual)


def _regression(products: RowProducts, targets: Array, lam: int) -> DualRidge:
    return DualRidge(products.K, products.omega * targets[products.rows], float(PATH[lam]))


def _trial(products: RowProducts, layers: tuple[Layer, ...], lam: int, part: Part) -> Trial:
    rows, hidden, ridge = products.rows, products.hidden, _regression(products, part.filled, lam)
    predicted = np.empty(part.T.shape)
    predicted[rows] = part.filled[rows] - ridge.errors() / products.omega
    coef = products.output_weights(ridge.dual)
    others = np.flatnonzero(~part.kept)
    if len(others):
        (predicted[others],) = part.rows.outputs(hidden, [others], [coef], products.n_threads)
    lams = np.full(part.T.shape[1], lam)
    scores = part.mean_squares_of_many(predicted, np.sort(rows))
    return Trial(
        layers[0], hidden, None, lam, lams, scores, predicted, coef, wide=products, layers=layers
    )
