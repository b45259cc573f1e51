"""How the defaults of `RobustELMRegressor` were chosen: by tables outside of those it is tested on.

    python benchmarks/defaults.py [--only layers,constants,nodes] [--jobs 2] [--cache out/defaults]

`outside.py` has the tables. Split s of a table: a permutation seeded by s, two thirds of the rows
to train; the error is the aRRMSE on the rest, and choices are compared by the geometric mean of
their errors over tables, ratios of outliers and splits. Three parts, each with what was chosen
before:

layers     clean rows, 4 splits. Every layer of a grid (seven activations, seven spreads, with and
           without direct link) is judged out of fold and fitted; what an ensemble of any of them
           predicts follows from that. Beginning with the linear layer, the layer that lowers the
           error most is added, until none lowers it by 0.1 %, with 5 members and none left out.
           Then members and the limit for bad ones are chosen for these layers, and layers again
           for these, until the same members and limit come back; the last round's layers count,
           and the first five of them screen.
constants  whole fits, ratios 0, 0.2 and 0.4, 2 splits. For one constant after the other, the best
           of a few values. Of values within 0.05 % of the best, the one nearest the list's middle.
nodes      whole fits of the two large tables, clean rows, one split, with 1000, 2000 and 3000
           nodes at most.

Results of finished fits stay in the cache folder: an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Memory
from outside import large, tables
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm import RELMRegressor, RobustELMRegressor
from gorelm._features.scaling import Scaling
from gorelm.datasets import contaminate
from gorelm.estimators import robust
from gorelm.estimators._search import SearchTable
from gorelm.estimators.robust import LINEAR, Comparison, Layer
from gorelm.metrics import arrmse
from gorelm.selection import folds_of

SPREADS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GRID = (
    LINEAR,
    *(
        Layer(activation, spread, link)
        for activation in ("tanh", "cosine", "gaussian", "multiquadric", "laplace")
        for spread in SPREADS
        for link in (False, True)
    ),
    # Their outputs scale with, or do not depend on, the spread.
    *(Layer(activation, 1.0, link) for activation in ("relu", "hardlim") for link in (False, True)),
)
WORTH = 1e-3  # what another layer must gain
MEMBERS = tuple(range(1, 13))
MUCH_WORSE = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, np.inf)
# Constants of `gorelm.estimators.robust`; the choice begins with the middle values.
CONSTANTS = {
    "TWO_GROUPS": (0.65, 0.7, 0.75, 0.8, 0.85),
    "INNER_FENCE": (0.75, 1.5, 3.0),
    "FAR_FENCE": (3.0, 10.0, 30.0),
    "GROSS": (3.0, 10.0, 30.0),
    "FARTHEST_INPUT": (3.0, 10.0, 30.0),
    "SCREEN_MEMBERS": (1, 3, 5),
}
SAME = 5e-4
RATIOS = (0.0, 0.2, 0.4)
MOST_NODES = (1000, 2000, 3000)

Array = np.ndarray


def split(X: Array, T: Array, ratio: float, s: int) -> tuple[Array, Array, Array, Array]:
    """Return inputs and targets to train, with outliers, and those to test."""
    rng = check_random_state(s)
    train, test = np.split(rng.permutation(len(X)), [round(len(X) * 2 / 3)])
    T_train, _ = contaminate(T[train], ratio, kind="rows", random_state=rng)
    return X[train], T_train, X[test], T[test]


# -- layers ---------------------------------------------------------------------------------------


def judged(X: Array, T: Array, s: int, grid: tuple[Layer, ...]) -> tuple[Array, Array, Array]:
    """Return every layer's out-of-fold score, its test predictions, and the test targets."""
    X, T, X_test, T_test = split(X, T, 0.0, s)
    w = np.ones(len(X))
    inputs, targets = Scaling.fit("standard", X, w), Scaling.fit("standard", T, w)
    X, X_test = inputs.apply(X)[0], inputs.apply(X_test)[0]
    T, T_test = targets.apply(T)[0], targets.apply(T_test)[0]
    compared = Comparison(SearchTable(X, T, w, w > 0), "squared", robust.NODES, s)
    ranked = compared.rank(compared.whole_path(grid), folds_of(5, X, T, s), "")
    scores, predicted = np.empty(len(grid)), np.empty((len(grid), *T_test.shape))
    for member in ranked:
        candidate = compared.candidate(member.layer, np.array([member.lam]))
        lam = float(candidate.lams[0] * candidate.lam_unit(*candidate.model._drawn(X, T, w)))
        model = RELMRegressor(1.0 / lam, **member.layer.settings(robust.NODES, X.shape[1], s))
        k = grid.index(member.layer)
        scores[k] = -member.score
        predicted[k] = model.fit(X, T).predict(X_test).reshape(T_test.shape)
    return scores, predicted, T_test


def ensemble_error(task: tuple, chosen: list[int], n_members: int, much_worse: float) -> float:
    """Return the log error of the average of the best layers out of those chosen."""
    scores, predicted, T_test = task
    best = sorted(chosen, key=lambda k: scores[k])[:n_members]
    members = [k for k in best if scores[k] <= much_worse * scores[best[0]]]
    return float(np.log(arrmse(T_test, predicted[members].mean(axis=0))))


def mean_error(tasks: list[tuple], chosen: list[int], n_members: int, much_worse: float) -> float:
    return float(np.mean([ensemble_error(t, chosen, n_members, much_worse) for t in tasks]))


def greedy(tasks: list[tuple], n_members: int, much_worse: float) -> list[int]:
    """Return layers in the order of their use, and print what each gains."""
    chosen = [GRID.index(LINEAR)]
    error = mean_error(tasks, chosen, n_members, much_worse)
    while len(chosen) < len(GRID):
        trials = {
            k: mean_error(tasks, [*chosen, k], n_members, much_worse)
            for k in range(len(GRID))
            if k not in chosen
        }
        best = min(trials, key=lambda k: trials[k])
        if error - trials[best] < WORTH:
            break
        chosen.append(best)
        error = trials[best]
        print(f"  {np.exp(error):.4f} with {GRID[best]}", flush=True)
    return chosen


def choose_layers(run: Any) -> None:
    cases = product(tables().values(), range(4))
    tasks = run(judged, [(*data, s, GRID) for data, s in cases])
    pair, rounds = (5, np.inf), []
    while pair not in rounds:
        rounds.append(pair)
        print(f"layers for {pair[0]} members, none beyond {pair[1]:g} times the best")
        chosen = greedy(tasks, *pair)
        errors = {p: mean_error(tasks, chosen, *p) for p in product(MEMBERS, MUCH_WORSE)}
        pair = min(errors, key=lambda p: errors[p])
    print("members, limit for bad ones: error")
    for pair in sorted(errors, key=lambda p: errors[p])[:8]:
        print(f"  {pair[0]:2d}, {pair[1]:4g}: {np.exp(errors[pair]):.4f}")


# -- whole fits -----------------------------------------------------------------------------------


def constants_with(**others: float) -> dict[str, Any]:
    """Return all constants of the module, some of them replaced."""
    return {name: getattr(robust, name) for name in dir(robust) if name.isupper()} | others


def fitted(X: Array, T: Array, ratio: float, s: int, constants: dict[str, Any]) -> float:
    """Return the log error of a fit with these constants."""
    X, T, X_test, T_test = split(X, T, ratio, s)
    before = constants_with()
    warnings.simplefilter("ignore", ConvergenceWarning)
    try:
        for name, value in constants.items():
            setattr(robust, name, value)
        model = RobustELMRegressor(random_state=s).fit(X, T)
    finally:
        for name, value in before.items():
            setattr(robust, name, value)
    return float(np.log(arrmse(T_test, model.predict(X_test).reshape(T_test.shape))))


def choose_constants(run: Any) -> None:
    chosen = {name: values[len(values) // 2] for name, values in CONSTANTS.items()}
    cases = list(product(tables().items(), RATIOS, range(2)))
    for name, values in CONSTANTS.items():
        errors = []
        for value in values:
            tried = constants_with(**chosen | {name: value})
            logs = run(fitted, [(*data, ratio, s, tried) for (_, data), ratio, s in cases])
            errors.append(np.mean(logs))
            by_ratio = [
                np.mean([e for e, c in zip(logs, cases, strict=True) if c[1] == r]) for r in RATIOS
            ]
            each = ", ".join(f"{np.exp(e):.4f}" for e in by_ratio)
            print(f"  {name} = {value}: {np.exp(errors[-1]):.4f} ({each})", flush=True)
        chosen[name] = nearest_middle(values, errors)
        print(f"{name} = {chosen[name]}", flush=True)


def nearest_middle(values: Sequence[float], errors: Sequence[float]) -> float:
    good = [k for k, error in enumerate(errors) if error <= min(errors) + SAME]
    return values[min(good, key=lambda k: abs(k - len(values) // 2))]


def choose_nodes(run: Any) -> None:
    names, data = zip(*large().items(), strict=True)
    for nodes in MOST_NODES:
        tried = constants_with(MOST_NODES=nodes)
        logs = run(fitted, [(X, T, 0.0, 0, tried) for X, T in data])
        each = ", ".join(f"{name} {np.exp(e):.4f}" for name, e in zip(names, logs, strict=True))
        print(f"  {nodes} nodes: {np.exp(np.mean(logs)):.4f} ({each})", flush=True)


PARTS = {"layers": choose_layers, "constants": choose_constants, "nodes": choose_nodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path("out/defaults"))
    args = parser.parse_args()
    memory = Memory(args.cache, verbose=0)

    def run(work: Any, cases: list[tuple]) -> list[Any]:
        with threadpool_limits(1):
            kept = memory.cache(work)
            return Parallel(n_jobs=args.jobs)(delayed(kept)(*case) for case in cases)

    for part in args.only:
        print(f"\n# {part}", flush=True)
        PARTS[part](run)


if __name__ == "__main__":
    main()
