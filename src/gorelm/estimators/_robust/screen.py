"""Step 1 of a robust fit: the screen, by networks with a bounded loss fitted to folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._solver.ridge import RidgePath
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import with_constant
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._prepare import row_scores
from gorelm.estimators._robust.judge import (
    FARTHEST_TARGET,
    GROSS,
    OUTER_FENCE,
    TWO_GROUPS,
    Screened,
    log_sizes,
    split_sizes,
)
from gorelm.estimators._robust.layers import Layer, sketch_of
from gorelm.estimators._robust.task import RobustTask
from gorelm.selection import Fold

FAR_FENCE = 10.0  # beyond it the targets of even a single row are moved, to the outer fence
SCREEN_PATH = 2.0 ** -np.arange(4, 36, 3.0)  # penalties in units of the squared norm of H
SCREEN_FOLDS, SCREEN_NODES, SCREEN_STEPS = 5, 200, 6
SCREEN_ROWS = 5000  # of more rows, a sample is screened by folds, and predicts the others
SCREEN_CLIP = 3.0  # spreads, of the targets that the bounded loss starts from
SCREEN_LAYERS = (
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
)


def screen(task: RobustTask) -> Screened:
    """Set rows aside whose targets no model explains, or move the targets of a few far rows."""
    T, w, usable = task.T, task.w, task.usable
    scaling = Scaling.fit("robust", T[usable], w[usable])
    # A target whose middle half is one value has no spread to judge an error by (the rows off
    # that value would all be outliers), and two or three values are labels.
    judging = np.array([has_spread(column[usable]) for column in T.T])
    expected = np.broadcast_to(scaling.centre, T.shape).copy()
    if not judging.any():
        return Screened(False, usable, judging, T, expected)
    scaled = scaling.dense(T)[:, judging]
    near = np.clip(scaled, -FARTHEST_TARGET, FARTHEST_TARGET)
    predicted = bounded_predictions(task, near)
    expected[:, judging] += np.nan_to_num(predicted) * scaling.scale[judging]
    errors = predicted - scaled
    tested = usable & task.tested
    sizes = log_sizes(errors)
    threshold, explained = split_sizes(sizes[tested], w[tested])
    if explained >= TWO_GROUPS:
        kept = usable & ~(tested & task.doubted & (sizes > threshold))
        return Screened(True, kept, judging, T, expected)
    norms = row_scores(np.nan_to_num(errors), errors)
    # Where errors are tiny, many times their spread is still no reason to doubt a row.
    far = max(outlier_threshold(norms[tested], w[tested], whisker=FAR_FENCE), GROSS)
    fence = outlier_threshold(norms[tested], w[tested], whisker=OUTER_FENCE)
    beyond = tested & task.doubted & (norms > far)
    excess = np.where(beyond, 1.0 - fence / np.maximum(norms, 1e-100), 0.0)
    T = T.copy()
    T[:, judging] += excess[:, None] * np.nan_to_num(errors) * scaling.scale[judging]
    return Screened(False, usable, judging, T, expected)


def bounded_predictions(task: RobustTask, T: Array) -> Array:
    """Return predictions of every row by a network with a bounded loss that did not see it."""
    nodes = min(SCREEN_NODES, task.n_hidden or SCREEN_NODES)
    layer, lam = _screen_layer(task, T, nodes)
    rows = task.sample(SCREEN_ROWS)
    X = task.rows.take(rows)
    hidden = layer.draw(nodes, task.seed, X, None, task.w[rows])
    H = with_constant(hidden, X)
    predicted: Array = np.empty(T.shape)
    if len(rows) < len(T):
        coef = bounded_fit(H, T[rows], task.w[rows], np.array([lam])).coefs()[:, 0]
        every = np.arange(len(T))
        (predicted,) = task.rows.outputs(hidden, [every], [coef], task.n_threads)
    predicted[rows] = bounded_by_folds(task, rows, H, T[rows], np.array([lam]))[:, 0]
    return predicted


def _screen_layer(task: RobustTask, T: Array, nodes: int) -> tuple[Layer, float]:
    """Return the layer and the penalty whose bounded fits predict some rows best."""
    rows = task.sample(max(task.effort.search_rows // 2, 2))
    sketch = sketch_of(T.shape[1], task.seed)
    T = T[rows] if sketch is None else np.nan_to_num(T[rows]) @ sketch
    X = task.rows.take(rows)

    def losses(layer: Layer) -> Array:
        hidden = layer.draw(nodes, task.seed, X, None, task.w[rows])
        H = with_constant(hidden, X)
        predicted = bounded_left_out(task, rows, H, T)
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


def bounded_left_out(task: RobustTask, rows: Indices, H: Array, T: Array) -> Array:
    """Return predictions of some rows, (n, P, m), at every penalty of the screen.

    By bounded fits without the row's fold where folds are given, else by leave-one-out. The latter
    needs one decomposition, but the other rows' pseudo-observations depend a little on the row left
    out: good enough to compare layers, not to judge the row.
    """
    if task.folds is not None:
        return bounded_by_folds(task, rows, H, T, SCREEN_PATH)
    usable = task.usable[rows]
    predicted = np.full((len(H), len(SCREEN_PATH), T.shape[1]), np.nan)
    predicted[usable] = bounded_fit(
        H[usable], T[usable], task.w[rows][usable], SCREEN_PATH
    ).left_out
    return predicted


def bounded_by_folds(task: RobustTask, rows: Indices, H: Array, T: Array, lams: Array) -> Array:
    """Return predictions of some rows, (n, P, m), by bounded fits without their fold."""
    predicted = np.full((len(H), len(lams), T.shape[1]), np.nan)
    for fold in _screen_folds(task, rows):
        train = fold.train[task.usable[rows[fold.train]]]
        if task.folds is not None and np.isnan(T[train]).all(axis=0).any():
            raise ValueError(
                "a target is unknown in all training rows of a fold; use fewer folds or other ones"
            )
        coefs = bounded_fit(H[train], T[train], task.w[rows[train]], lams).coefs()
        outputs = H[fold.test] @ coefs.reshape(len(coefs), -1)
        predicted[fold.test] = outputs.reshape(-1, *coefs.shape[1:])
    return predicted


@dataclass(frozen=True)
class BoundedFit:
    """Regressions on which every row has a bounded pull."""

    left_out: Array  # (n, P, m): predictions without the row
    path: RidgePath
    pseudo: Array  # (n, P, m): pseudo-observations, times the square roots of the weights

    def coefs(self) -> Array:
        """Return the output weights (L, P, m)."""
        return self.path.coefs(self.pseudo)


def bounded_fit(H: Array, T: Array, w: Array, lams: Array) -> BoundedFit:
    r"""Fit output weights on which every row has a bounded pull, at every penalty.

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
        delta = _medians(sizes, w)
        shorter = np.minimum(1.0, delta / np.maximum(sizes, 1e-300))
        pseudo = omega[:, None] * (predicted + shorter[:, :, None] * errors)
        predicted = path.left_out(pseudo) / omega[:, None]
    return BoundedFit(predicted, path, pseudo)


def _medians(columns: Array, w: Array) -> Array:
    """Return the weighted median of every column, as `weighted_quantiles` does."""
    order = np.argsort(columns, axis=0)
    below = np.cumsum(w[order], axis=0)
    at = np.argmax(below >= below[-1] / 2, axis=0)
    return np.asarray(np.take_along_axis(columns, order, axis=0)[at, np.arange(columns.shape[1])])


def has_spread(column: Array) -> bool:
    known = column[~np.isnan(column)]
    low, high = np.quantile(known, [0.25, 0.75])
    return bool(high > low) and len(np.unique(known)) > 3
