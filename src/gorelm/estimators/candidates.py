"""What `RobustELMRegressor` tries: hidden layers over paths of penalties, judged out of fold."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from gorelm.activations import ACTIVATIONS
from gorelm.admm import ADAPTIVE, Settings
from gorelm.estimators.design import Mask
from gorelm.hidden import HiddenLayer
from gorelm.path import solve_path
from gorelm.problem import LossName, Problem
from gorelm.prox import Array
from gorelm.quick import reproducible
from gorelm.selection import Fold, track
from gorelm.system import System

__all__ = [
    "SCREEN_LAYERS",
    "SEARCH_LAMS",
    "SEARCH_LAYERS",
    "Layer",
    "Member",
    "Rows",
    "every",
    "spread_of",
    "table",
]

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
        return SCREEN_LAMS * (System(H, T, like, omega).largest_pull(like) or 1.0)

    def out_of_fold(self, layer: Layer, lams: Any, loss: LossName, kept: Mask, fold: Fold) -> Array:
        """Fit on a fold's kept training rows, predict its test rows: (n, lams, m).

        `lams` selects from the path, by a slice or indices.
        """
        train = fold.train[kept[fold.train]]
        if not len(train) or np.isnan(self.T[train]).all(axis=0).any():
            raise ValueError(
                "a target is unknown in all training rows of a fold; use other or fewer folds"
            )
        shape = len(train), self.X.shape[1]
        with reproducible(loss, SCREEN_SETTINGS.tol, shape, self.n_hidden):
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
            system = System(H[rows], T[rows][:, columns], like, roots, known)
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
        work = Parallel(n_jobs=self.n_jobs, return_as="generator")(tasks)
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
