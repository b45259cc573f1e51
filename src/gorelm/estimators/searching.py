"""Search of hyperparameters by robust cross-validation over whole paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.parallel import Parallel, delayed

from gorelm.diagnostics import outlier_threshold
from gorelm.estimators.base import IterativeELM, SizedELM, parameters
from gorelm.estimators.design import Mask, require_targets
from gorelm.path import checked_grid, default_lams, solve_path
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.quick import reproducible
from gorelm.scaling import Scaling
from gorelm.selection import (
    Fold,
    error_norms,
    folds_of,
    one_standard_error,
    scores_of,
    track,
)
from gorelm.system import System

__all__ = ["GRID", "SearchingELM"]

_LAYER_LISTS = ("n_hidden", "activation", "weight_scale", "direct_link")
GRID: list[Any] = ["array-like", Interval(Real, 0, None, closed="left")]


@dataclass(frozen=True)
class Grid:
    """Penalties to try: every delta with every l1_ratio with every lam."""

    like: Problem  # a batch of two, which gives the loss and tau
    lams: Array  # decreasing
    l1_ratios: Array
    deltas: Array

    def points(self) -> Iterator[tuple[float, float, float]]:
        """Yield (delta, l1_ratio, lam), lam fastest."""
        yield from product(self.deltas.tolist(), self.l1_ratios.tolist(), self.lams.tolist())

    def coefs(self, model: IterativeELM, X: Any, T: Array, w: Array) -> Array:
        """Fit every point for the layer of `model`, which draws it; returns (L, points, m)."""
        with reproducible(self.like.loss, model.tol, X.shape, model.n_hidden):
            return self._coefs(model, X, T, w)

    def _coefs(self, model: IterativeELM, X: Any, T: Array, w: Array) -> Array:
        H, rows = model._drawn(X, T, w)
        system = System(H, rows.T, self.like, rows.omega, rows.observed, tol=model.tol)
        paths = [
            solve_path(
                system,
                Problem(self.like.loss, self.like.tau, 1.0, 1.0, delta, self.like.grouped),
                self.lams,
                self.l1_ratios,
                model._settings(),
            )
            for delta in self.deltas
        ]
        coefs = np.stack([path.coefs for path in paths])
        return np.moveaxis(coefs.reshape(-1, *coefs.shape[-2:]), 0, 1)


def judge(
    model: IterativeELM,
    grid: Grid,
    X: Any,
    T: Array,
    w: Array,
    fold: Fold,
    scale: Array,
    scoring: Any,
) -> tuple[Array, Array, Array]:
    """Fit a grid on one fold's training rows and judge it on the others.

    Returns
    -------
    scores : array (points,)
        Larger is better.
    norms : array (test rows, points)
        Norms of the errors in units of `scale`.
    n_active : array (points,)
        Hidden outputs with a nonzero weight.
    """
    usable = (w > 0) & ~np.isnan(T).all(axis=1)
    train, test = fold.train[usable[fold.train]], fold.test
    if not len(train) or not usable[test].any():
        raise ValueError("a fold of cv has no row with a positive weight and a known target")
    if np.isnan(T[train]).all(axis=0).any():
        raise ValueError("a target is unknown in all training rows of a fold; use fewer folds")
    coefs = grid.coefs(model, X[train], T[train], w[train])
    n_active = np.count_nonzero(coefs.any(axis=2), axis=0)
    model.coef_, model.intercept_ = coefs.reshape(len(coefs), -1), np.zeros(1)
    outputs = model._outputs(X[test]).reshape(len(test), -1, T.shape[1])
    predicted = model._target_scaling.undo(outputs)
    norms = error_norms(predicted, T[test], scale)
    scored = usable[test]
    scores = scores_of(
        scoring,
        predicted[scored],
        norms[scored],
        X[test][scored],
        T[test][scored],
        w[test][scored],
        one_target=model._one_target,
    )
    return scores, norms, n_active


@parameters
class SearchingELM(SizedELM):
    """A `SizedELM` that tries lists of layers and a grid of penalties, then fits the best."""

    _single: ClassVar[type[IterativeELM]]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SizedELM._parameter_constraints,
        **{name: [*SizedELM._parameter_constraints[name], "array-like"] for name in _LAYER_LISTS},
        "n_lams": [Interval(Integral, 1, None, closed="left")],
        "eps": [Interval(Real, 0, 1, closed="neither")],
        "cv": ["cv_object"],
        "scoring": [str, callable],
        "one_standard_error": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "progress": ["boolean"],
    }

    n_lams: int = 41
    eps: float = 1e-6
    cv: Any = 5
    scoring: Any = "mean_norm"
    one_standard_error: bool = False
    tol: float = 1e-3
    max_iter: int | None = None
    n_jobs: int | None = None
    progress: bool = False

    # -- for each method to define ---------------------------------------------------------------

    def _like(self) -> Problem:
        """Return the problem apart from its penalty, twice (a batch)."""
        raise NotImplementedError

    def _grids(self) -> tuple[Any, Any, Any]:
        """Return lams (None: from the data), l1_ratios and deltas."""
        raise NotImplementedError

    def _at(self, delta: float, l1_ratio: float, lam: float) -> dict[str, float]:
        """Return the single estimator's parameters at a point of the grid."""
        raise NotImplementedError

    # -- fitting ---------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        X, T, w = self._validate(X, y, sample_weight)
        usable = (w > 0) & ~np.isnan(T).all(axis=1)
        require_targets(~np.isnan(T[usable]))
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        folds = folds_of(self.cv, X, T, seed)
        scale = Scaling.fit(self.target_scaling, T[usable], w[usable]).scale
        layers = list(self._layers())
        grids = [self._grid(layer, seed, X[usable], T[usable], w[usable]) for layer in layers]
        results = self._judge_all(layers, grids, folds, X, T, w, scale, seed)

        points = [(k, *point) for k, grid in enumerate(grids) for point in grid.points()]
        scores, n_active = (
            np.concatenate([np.stack([fold[i] for fold in one]) for one in results], axis=1)
            for i in (0, 2)
        )
        means = scores.mean(axis=0)
        if not np.isfinite(means).any():
            raise ValueError("no candidate has a finite score; check `scoring` and the data")
        means = np.where(np.isfinite(means), means, -np.inf)
        best = int(np.argmax(means))
        if self.one_standard_error:
            errors = scores.std(axis=0, ddof=min(1, len(folds) - 1)) / np.sqrt(len(folds))
            lams, ratios = (np.array([p[i] for p in points]) for i in (3, 2))
            best = one_standard_error(means, errors, [lams, ratios])
        self.cv_results_ = self._table(layers, points, scores, n_active)
        self.best_index_, self.best_score_ = best, float(means[best])

        k, *point = points[best]
        first = sum(len(list(grid.points())) for grid in grids[:k])
        self._judge_rows(folds, [norms[:, best - first] for _, norms, _ in results[k]], w)
        final = self._model(layers[k], seed).set_params(**self._at(*point))
        final.fit(X, T[:, 0] if self._one_target else T, w)
        mine = {*self.get_params(), *final.get_params()}
        self.__dict__.update({k: v for k, v in vars(final).items() if k not in mine})
        for name, value in self._at(*point).items():
            setattr(self, name + "_", value)

    def _layers(self) -> Iterator[dict[str, Any]]:
        """Yield the settings of every hidden layer to try."""
        lists = []
        for name in _LAYER_LISTS:
            value = getattr(self, name)
            single = isinstance(value, str) or np.ndim(value) == 0
            values = [value] if single else list(value)
            if not values:
                raise ValueError(f"{name} is an empty list: give at least one value")
            lists.append(values)
        for values_ in product(*lists):
            yield dict(zip(_LAYER_LISTS, values_, strict=True))

    def _model(self, layer: dict[str, Any], seed: int) -> IterativeELM:
        shared = ("weights", "input_scaling", "target_scaling", "missing_targets")
        model = self._single(
            **layer,
            **{name: getattr(self, name) for name in shared},
            tol=self.tol,
            max_iter=self.max_iter,
            random_state=seed,
        )
        model._validate_params()
        model._one_target = self._one_target
        return model

    def _grid(self, layer: dict[str, Any], seed: int, X: Any, T: Array, w: Array) -> Grid:
        lams, l1_ratios, deltas = self._grids()
        like = self._like()
        ratios = checked_grid("l1_ratios", l1_ratios, largest=1.0)
        if lams is None:
            model = self._model(layer, seed)
            with reproducible(like.loss, model.tol, X.shape, model.n_hidden):
                H, rows = model._drawn(X, T, w)
                system = System(H, rows.T, like, rows.omega, rows.observed)
                lams = default_lams(system, like, ratios, self.n_lams, self.eps)
        return Grid(like, checked_grid("lams", lams)[::-1], ratios, checked_grid("deltas", deltas))

    def _judge_all(
        self,
        layers: list[dict[str, Any]],
        grids: list[Grid],
        folds: list[Fold],
        X: Any,
        T: Array,
        w: Array,
        scale: Array,
        seed: int,
    ) -> list[list[tuple[Array, Array, Array]]]:
        tasks = [
            delayed(judge)(self._model(layer, seed), grid, X, T, w, fold, scale, self.scoring)
            for layer, grid in zip(layers, grids, strict=True)
            for fold in folds
        ]
        work = Parallel(n_jobs=self.n_jobs, return_as="generator")(tasks)
        done = list(track(work, len(tasks), "folds", show=self.progress))
        return [done[k : k + len(folds)] for k in range(0, len(done), len(folds))]

    def _table(
        self,
        layers: list[dict[str, Any]],
        points: list[tuple[Any, ...]],
        scores: Array,
        n_active: Array,
    ) -> dict[str, Any]:
        table: dict[str, Any] = {}
        settings = [{**self._at(*point), **layers[k]} for k, *point in points]
        for name in settings[0]:
            table[f"param_{name}"] = np.array([setting[name] for setting in settings])
        for k, fold_scores in enumerate(scores):
            table[f"split{k}_test_score"] = fold_scores
        table["mean_test_score"] = scores.mean(axis=0)
        table["std_test_score"] = scores.std(axis=0)
        order = np.argsort(-table["mean_test_score"], kind="stable")
        table["rank_test_score"] = np.empty(len(order), dtype=int)
        table["rank_test_score"][order] = np.arange(1, len(order) + 1)
        table["mean_n_active"] = n_active.mean(axis=0)
        return table

    def _judge_rows(self, folds: list[Fold], norms: list[Array], w: Array) -> None:
        """Average the out-of-fold error of every row over the folds that tested it."""
        total, count = np.zeros(len(w)), np.zeros(len(w))
        for fold, values in zip(folds, norms, strict=True):
            total[fold.test] += values
            count[fold.test] += 1
        tested: Mask = count > 0
        self.cv_outlier_scores_ = np.where(tested, total / np.where(tested, count, 1), np.nan)
        judged = tested & (w > 0)
        scores = self.cv_outlier_scores_
        self.cv_outlier_threshold_ = outlier_threshold(scores[judged], w[judged])
        self.cv_outlier_mask_ = tested & (np.nan_to_num(scores) > self.cv_outlier_threshold_)
