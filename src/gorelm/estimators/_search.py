"""Search of hyperparameters by robust cross-validation over whole paths."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed

from gorelm._compat import Interval, validate_params
from gorelm._features.activations import ACTIVATIONS
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._processes import watched
from gorelm._solver.admm import ADAPTIVE, Settings
from gorelm._solver.prepared import Prepared
from gorelm._solver.problem import LossName, Problem
from gorelm._typing import Array
from gorelm.diagnostics.scores import outlier_threshold
from gorelm.estimators._base import IterativeELM, SizedELM, parameters
from gorelm.estimators._prepare import Mask, require_targets
from gorelm.path import checked_grid, default_lams, solve_path
from gorelm.selection import (
    Fold,
    error_norms,
    folds_of,
    one_standard_error,
    scores_of,
    track,
)

__all__ = [
    "GRID",
    "SCREEN_LAYERS",
    "SEARCH_LAMS",
    "SEARCH_LAYERS",
    "Layer",
    "Member",
    "Rows",
    "SearchingELM",
    "every",
    "spread_of",
    "table",
]

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
        H, rows = model._drawn(X, T, w)
        system = Prepared(H, rows.T, self.like, rows.omega, rows.observed, tol=model.tol)
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
        validate_params(model)
        model._one_target = self._one_target
        return model

    def _grid(self, layer: dict[str, Any], seed: int, X: Any, T: Array, w: Array) -> Grid:
        lams, l1_ratios, deltas = self._grids()
        like = self._like()
        ratios = checked_grid("l1_ratios", l1_ratios, largest=1.0)
        if lams is None:
            model = self._model(layer, seed)
            H, rows = model._drawn(X, T, w)
            system = Prepared(H, rows.T, like, rows.omega, rows.observed)
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
        work = Parallel(n_jobs=self.n_jobs, return_as="generator", **watched())(tasks)
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


# == src/gorelm/estimators/candidates.py
# """What `RobustELMRegressor` tries: hidden layers over paths of penalties, judged out of fold."""


SCREEN_SETTINGS = Settings(tol=3e-3, max_iter=300)
SCREEN_LAMS = 2.0 ** -np.arange(-1, 19, 2.0)  # in units of the lam that empties the model
SEARCH_LAMS = 2.0 ** -np.linspace(0, 38, 20)  # in units of the squared norm of H
FEW_LAMS = 5


@dataclass(frozen=True)
class Layer:
    """A hidden layer to try; `spread` is the deviation of its nodes' inputs."""

    activation: str
    spread: float
    direct_link: bool

    def settings(self, n_hidden: int, n_features: int, seed: int) -> dict[str, Any]:
        """Return the parameters of an estimator with this layer."""
        linear = self.activation == "linear"
        radial = not linear and ACTIVATIONS[self.activation].radial
        return {
            "n_hidden": 0 if linear else n_hidden,
            "activation": "tanh" if linear else self.activation,
            # Uniform weights on [-1, 1] have variance 1/3, inputs variance 1.
            "weight_scale": self.spread if radial else self.spread * np.sqrt(3.0 / n_features),
            "direct_link": self.direct_link,
            # Every layer draws weights of its own, so that averaging cuts their variance.
            "random_state": (seed + zlib.crc32(repr(self).encode())) % 2**31,
            "input_scaling": None,
            "target_scaling": None,
        }


def spread_of(model: Any) -> float:
    """Return the `spread` of the layer that an estimator has its settings from."""
    radial = ACTIVATIONS[model.activation].radial
    factor = 1.0 if radial else np.sqrt(model.n_features_in_ / 3.0)
    return float(model.weight_scale * factor)


LINEAR = Layer("linear", 1.0, True)
# In the order in which `benchmarks/defaults.py` chose them: each is the one that, added to those
# before it, lowers the error most on tables that no comparison uses.
SEARCH_LAYERS = (
    LINEAR,
    Layer("multiquadric", 2.0, False),
    Layer("cosine", 0.25, True),
    Layer("laplace", 0.25, False),
    Layer("tanh", 2.0, False),
    Layer("laplace", 0.25, True),
    Layer("cosine", 1.0, False),
    Layer("relu", 1.0, True),
    Layer("laplace", 2.0, False),
    Layer("tanh", 2.0, True),
    Layer("tanh", 0.125, False),
)
SCREEN_LAYERS = SEARCH_LAYERS[:5]


@dataclass
class Member:
    """A layer at one penalty, with what it predicts for rows it has not seen."""

    layer: Layer
    lam: int  # index in the path
    score: float
    predicted: Array


@dataclass(frozen=True)
class Rows:
    """Scaled rows on which layers are tried, each over a path of penalties."""

    X: Array
    T: Array
    w: Array
    n_hidden: int
    seed: int
    n_jobs: int | None = None
    progress: bool = False

    def draw(self, layer: Layer, rows: Any) -> tuple[HiddenLayer, Array, Array | None]:
        """Draw a layer; returns it with H of some rows (times omega) and omega."""
        X, w = self.X[rows], self.w[rows]
        names = ("n_hidden", "activation", "weight_scale", "direct_link", "random_state")
        settings = layer.settings(self.n_hidden, X.shape[1], self.seed)
        hidden = HiddenLayer.draw(
            n_features=X.shape[1],
            weights="uniform",
            X=X,
            sample_weight=w,
            **{name: settings[name] for name in names},
        )
        H = hidden.transform(X)
        omega = None if (w == 1.0).all() else np.sqrt(w)
        return hidden, H if omega is None else H * omega[:, None], omega

    def lams(self, loss: LossName, H: Array, T: Array, omega: Array | None) -> Array:
        """Return the path's penalties for these rows."""
        if loss == "squared":
            return SEARCH_LAMS * max(float(np.vdot(H, H)), np.finfo(float).tiny)
        like = Problem(loss, [1.0, 1.0], 1.0, 1.0)
        return SCREEN_LAMS * (Prepared(H, T, like, omega).largest_pull(like) or 1.0)

    def out_of_fold(self, layer: Layer, lams: Any, loss: LossName, kept: Mask, fold: Fold) -> Array:
        """Fit on a fold's kept training rows, predict its test rows: (n, lams, m).

        `lams` selects from the path, by a slice or indices.
        """
        train = fold.train[kept[fold.train]]
        if not len(train) or np.isnan(self.T[train]).all(axis=0).any():
            raise ValueError(
                "a target is unknown in all training rows of a fold; use other or fewer folds"
            )
        hidden, H, omega = self.draw(layer, train)
        T = np.nan_to_num(self.T[train])
        observed = ~np.isnan(self.T[train])
        if omega is not None:
            T = T * omega[:, None]
        coefs = self._path(lams, loss, H, T, omega, observed)
        outputs = hidden.transform(self.X[fold.test]) @ coefs.reshape(len(coefs), -1)
        return np.asarray(outputs.reshape(len(fold.test), *coefs.shape[1:]))

    def _path(
        self, which: Any, loss: LossName, H: Array, T: Array, omega: Array | None, observed: Mask
    ) -> Array:
        """Return the output weights at some of the penalties: (L, lams, m)."""
        settings = ADAPTIVE if loss == "squared" else SCREEN_SETTINGS
        lams = self.lams(loss, H, T, omega)[which]
        # A Cholesky factor for each of a few penalties takes less than the eigenvectors for all.
        like = Problem(loss, np.ones(1 if len(lams) <= FEW_LAMS else 2), 1.0, 1.0)
        coefs = np.empty((H.shape[1], len(lams), T.shape[1]))
        for rows, columns, known in _parts(loss, observed):
            roots = None if omega is None else omega[rows]
            system = Prepared(H[rows], T[rows][:, columns], like, roots, known)
            path = solve_path(system, like, lams, np.zeros(1), settings)
            coefs[..., columns] = np.moveaxis(path.coefs[0], 0, 1)
        return coefs

    def _run(
        self,
        candidates: list[tuple[Layer, Any]],
        loss: LossName,
        kept: Mask,
        folds: list[Fold],
        what: str,
    ) -> Iterator[list[Array]]:
        """Yield out-of-fold predictions of layers at some penalties, one array per fold."""
        tasks = [
            delayed(self.out_of_fold)(layer, lams, loss, kept, fold)
            for layer, lams in candidates
            for fold in folds
        ]
        work = Parallel(n_jobs=self.n_jobs, return_as="generator", **watched())(tasks)
        done: list[Array] = []
        for predicted in track(work, len(tasks), what, show=self.progress):
            done.append(predicted)
            if len(done) == len(folds):
                yield done
                done = []

    def best(
        self,
        candidates: list[tuple[Layer, Any]],
        loss: LossName,
        kept: Mask,
        folds: list[Fold],
        what: str,
        judges: Mask | None = None,
    ) -> list[Member]:
        """Return layers, each at the best of its penalties, best first.

        Judged by their errors on `judges`; default: all kept rows.
        """
        tested = np.concatenate([fold.test for fold in folds])
        scored = (kept if judges is None else judges)[tested]
        T, w = self.T[tested], self.w[tested]
        ranked = []
        runs = self._run(candidates, loss, kept, folds, what)
        for (layer, lams), parts in zip(candidates, runs, strict=True):
            predicted = np.concatenate(parts)
            errors = np.nan_to_num(predicted[scored] - T[scored][:, None])
            squares = np.einsum("npm,npm->np", errors, errors)
            losses = w[scored] @ (squares if loss == "squared" else np.sqrt(squares))
            best = int(np.argmin(losses))
            score = -float(losses[best] / w[scored].sum())
            lam = int(np.arange(len(SEARCH_LAMS))[lams][best])
            ranked.append(Member(layer, lam, score, predicted[:, best]))
        ranked.sort(key=lambda member: -member.score)
        return ranked

    def average(
        self,
        members: list[Member],
        loss: LossName,
        kept: Mask,
        sample: list[Fold],
        folds: list[Fold],
    ) -> Array:
        """Return the members' average prediction of every row that was tested, 0 of others."""
        total, count = np.zeros(self.T.shape), np.zeros(len(self.T))
        if sum(len(f.test) for f in sample) == sum(len(f.test) for f in folds):
            tested = np.concatenate([fold.test for fold in folds])
            for member in members:
                np.add.at(total, tested, member.predicted)
            np.add.at(count, tested, float(len(members)))
        else:
            chosen = [(member.layer, [member.lam]) for member in members]
            for parts in self._run(chosen, loss, kept, folds, "judging rows"):
                for fold, predicted in zip(folds, parts, strict=True):
                    total[fold.test] += predicted[:, 0]
                    count[fold.test] += 1.0
        return np.asarray(total / np.maximum(count, 1.0)[:, None])


def _parts(loss: LossName, observed: Mask) -> Iterator[tuple[Any, Any, Mask | None]]:
    """Yield rows, targets and known cells of the problems to solve one by one.

    Squared errors treat targets separately: those known in the same rows have a closed form, where
    gaps would take thousands of iterations.
    """
    everything = slice(None)
    if observed.all():
        yield everything, everything, None
    elif loss != "squared":
        yield everything, everything, observed
    else:
        patterns, which = np.unique(observed, axis=1, return_inverse=True)
        for k, rows in enumerate(patterns.T):
            yield rows, np.flatnonzero(which.ravel() == k), None


def every(layers: tuple[Layer, ...]) -> list[tuple[Layer, Any]]:
    """Return the layers with the whole path of penalties."""
    return [(layer, slice(None)) for layer in layers]


def table(ranked: list[Member]) -> dict[str, Any]:
    """Return settings and scores as columns."""
    return {
        "activation": np.array([c.layer.activation for c in ranked]),
        "spread": np.array([c.layer.spread for c in ranked]),
        "direct_link": np.array([c.layer.direct_link for c in ranked]),
        "penalty": SEARCH_LAMS[[c.lam for c in ranked]],
        "mean_test_score": np.array([c.score for c in ranked]),
    }
