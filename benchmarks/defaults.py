"""How the defaults of `RobustELMRegressor` were chosen: by tables outside of those it is tested on.

    python benchmarks/defaults.py [--only layers,constants,few,nodes] [--jobs 2] [--cache DIR]

`outside.py` has the tables. Split s of a table: a permutation seeded by s, two thirds of the rows
to train; the error is the aRRMSE on the rest, and choices are compared by the geometric mean of
their errors over tables, ratios of outliers and splits. Five parts:

layers     clean rows, splits 0 and 1. Every layer of a grid gets 500 nodes and a leave-one-out
           score; nodes that see few inputs are drawn again twice, guided by what the layer's own
           nodes explained, and kept if the score improves. An ensemble of some layers is the
           average of the 4 best by score, none beyond 1.25 times the best. Beginning with the
           linear layer, the layer that lowers the test error most is added, until none lowers it
           by 0.1 %. Beside the list so found: the list in use, with the same draws; both on
           splits 2 and 3, by which neither was chosen, also in whole fits; members and limits.
constants  whole fits, ratios 0, 0.2 and 0.4, split 0: other values of one constant at a time.
few        35 rows of a table, the others to test, ratios 0 and 0.2, "fast": other `BY_CHANCE`.
nodes      whole fits of the large tables, clean rows, and of the others, none and 20 % of the rows
           wrong, split 0: other `Effort.nodes`.
wide       whole fits of large tables with many columns, none and 20 % of the rows wrong, split 0:
           with one regression on more nodes than rows, and without.

Results stay in the cache folder for the next run; delete it after a change of the estimator's code.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Memory
from outside import Table, large, tables
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm import RobustELMRegressor
from gorelm._features.scaling import Scaling
from gorelm.backends import inputs as inputs_seam
from gorelm.datasets import contaminate
from gorelm.estimators import robust
from gorelm.estimators._robust import cells, judge, members, screen, search, task
from gorelm.estimators._robust.layers import Layer, Part, compare
from gorelm.estimators._robust.search import LINEAR, SEARCH_LAYERS
from gorelm.metrics import arrmse

DENSE = {
    "multiquadric": (1.0, 2.0),
    "gaussian": (1.0, 2.0, 4.0),
    "laplace": (0.125, 0.25, 0.5, 1.0, 2.0),
    "cosine": (0.125, 0.25, 0.5, 1.0),
    "tanh": (0.125, 0.5, 2.0),
    "relu": (1.0,),  # its outputs scale with the spread
}
SPARSE = {
    "tanh": (1.0, 2.0, 4.0, 8.0),
    "cosine": (0.5, 1.0, 2.0),
    "relu": (1.0,),
    "hardlim": (1.0,),  # its outputs do not depend on the spread
    "laplace": (0.25, 0.5, 1.0),
    "multiquadric": (1.0, 2.0),
}
GRID = (
    LINEAR,
    *(Layer(name, s, link) for link in (False, True) for name in DENSE for s in DENSE[name]),
    *(Layer(name, s, True, k) for k in (1, 2, 3, 5) for name in SPARSE for s in SPARSE[name]),
)
NODES, REDRAWS = 500, 2
CHOSEN_BY, NEW = (0, 1), (2, 3)  # splits
WORTH = 1e-3  # what another layer must gain
MEMBERS, LIMITS = (1, 2, 3, 4, 5, 6, 8), (1.05, 1.1, 1.25, 1.5, 2.0, np.inf)
# Of constants of the steps, values to try beside those in use.
CONSTANTS = {
    "TWO_GROUPS": (0.65, 0.7, 0.8, 0.85),
    "INNER_FENCE": (0.75, 3.0),
    "GROSS": (3.0, 30.0),
    "FARTHEST_INPUT": (3.0, 5.0, 30.0),
    "MUCH_WORSE": (1.1, 1.5),
}
BY_CHANCE = (0.0, 2.4)
RATIOS, MEMBER_NODES = (0.0, 0.2, 0.4), (500, 1000, 2000)
WIDE_TABLES, FEW_OF_WIDE = ("weather", "rivers", "all digits"), 3000  # rows
IN_USE = (task.EFFORTS["default"].n_members, search.MUCH_WORSE)

Array = np.ndarray
# Of every layer the leave-one-out score and the predictions of the test rows; their targets.
Task = tuple[dict[Layer, tuple[float, Array]], Array]


def split(X: Array, T: Array, ratio: float, s: int) -> tuple[Array, Array, Array, Array]:
    """Return inputs and targets to train, with outliers, and those to test."""
    rng = check_random_state(s)
    train, test = np.split(rng.permutation(len(X)), [round(len(X) * 2 / 3)])
    T_train, _ = contaminate(T[train], ratio, kind="rows", random_state=rng)
    return X[train], T_train, X[test], T[test]


# -- layers ---------------------------------------------------------------------------------------


def judged(X: Array, T: Array, s: int, layers: tuple[Layer, ...]) -> Task:
    """Score the layers on the rows to train, and predict those to test."""
    X, T, X_test, T_test = split(X, T, 0.0, s)
    w = np.ones(len(X))
    inputs, targets = Scaling.fit("standard", X, w), Scaling.fit("standard", T, w)
    X, X_test = (inputs_seam.within_reach(inputs, rows) for rows in (X, X_test))
    T, T_test = targets.dense(T), targets.dense(T_test)
    part, found = Part(X, T, T, w, w > 0, None), {}
    for layer in layers:
        seed = s * (REDRAWS + 1)
        best = compare(part, layer, layer.draw(NODES, seed, X, None), None, explain=True)
        for redraw in range(REDRAWS if best.hidden.subsets is not None else 0):
            guide = best.explained
            hidden = layer.draw(NODES, seed + 1 + redraw, X, guide)
            again = compare(part, layer, hidden, guide, explain=True)
            best = min(best, again, key=lambda t: t.score)
        found[layer] = best.score, best.outputs(X_test)
    return found, T_test


def ensemble_error(task: Task, layers: Sequence[Layer], n_members: int, limit: float) -> float:
    """Return the log error of the average of the best of some layers."""
    found, T_test = task
    best = sorted((found[layer] for layer in layers), key=lambda one: one[0])[:n_members]
    members = [predicted for score, predicted in best if score <= limit * best[0][0]]
    return float(np.log(arrmse(T_test, np.mean(members, axis=0))))


def mean_error(tasks: Sequence[Task], layers: Sequence[Layer], *pair: float) -> float:
    return float(np.mean([ensemble_error(task, layers, *(pair or IN_USE)) for task in tasks]))


def greedy(tasks: Sequence[Task]) -> list[Layer]:
    """Return layers in the order of their use."""
    chosen, error = [LINEAR], mean_error(tasks, [LINEAR])
    while len(chosen) < len(GRID):
        trials = {k: mean_error(tasks, [*chosen, k]) for k in GRID if k not in chosen}
        best = min(trials, key=lambda k: trials[k])
        if error - trials[best] < WORTH:
            break
        chosen, error = [*chosen, best], trials[best]
    return chosen


def choose_layers(run: Any) -> None:
    def tasks(splits: Sequence[int], layers: tuple[Layer, ...]) -> list[Task]:
        cases = product(tables().values(), splits)
        return run(judged, [(*data, s, layers) for data, s in cases])

    old = tasks(CHOSEN_BY, GRID)
    lists = {"found": tuple(greedy(old)), "in use": SEARCH_LAYERS}
    for name, layers in lists.items():
        print(f"layers {name}, error of each with those before it")
        for k, layer in enumerate(layers):
            print(f"  {np.exp(mean_error(old, layers[: k + 1])):.4f} with {layer}")
    new = tasks(NEW, tuple(dict.fromkeys([*SEARCH_LAYERS, *lists["found"]])))
    print(f"layers: errors on splits {CHOSEN_BY}, on splits {NEW}, in whole fits of these")
    for name, layers in lists.items():
        errors = ", ".join(f"{np.exp(mean_error(some, layers)):.4f}" for some in (old, new))
        fits = whole_fits(run, NEW, {"SEARCH_LAYERS": layers})
        print(f"  {len(layers)} {name}: {errors}, {fits}", flush=True)
    print("members: errors with limits " + ", ".join(f"{limit:g}" for limit in LIMITS))
    for n in MEMBERS:
        errors = [np.exp(mean_error(old, SEARCH_LAYERS, n, limit)) for limit in LIMITS]
        print(f"  {n}: " + ", ".join(f"{error:.4f}" for error in errors))
    print(f"in use: {IN_USE[0]} members, limit {IN_USE[1]}")


# -- whole fits -----------------------------------------------------------------------------------


STEPS = (cells, judge, members, robust, screen, search, task, inputs_seam)


def in_use_now(name: str) -> Any:
    return next(vars(step)[name] for step in STEPS if name in vars(step))


@contextmanager
def replaced(constants: dict[str, Any]) -> Iterator[None]:
    """Replace constants in every module that has them."""
    places = [(vars(step), name) for step in STEPS for name in constants if name in vars(step)]
    before = [module[name] for module, name in places]
    try:
        for module, name in places:
            module[name] = constants[name]
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            module[name] = value


def fitted(X: Array, T: Array, ratio: float, s: int, constants: dict[str, Any]) -> Array:
    """Return log error and CPU seconds of a fit with these constants."""
    X, T, X_test, T_test = split(X, T, ratio, s)
    start = time.process_time()
    with replaced(constants):
        model = RobustELMRegressor(random_state=s).fit(X, T)
    took = time.process_time() - start
    predicted = model.predict(X_test).reshape(T_test.shape)
    return np.array([np.log(arrmse(T_test, predicted)), took])


def whole_fits(run: Any, splits: Sequence[int], constants: dict[str, Any]) -> str:
    """Return the error of fits to all tables with these constants, and in brackets by ratio."""
    cases = product(tables().values(), splits, RATIOS)
    logs = np.array(run(fitted, [(*data, r, s, constants) for data, s, r in cases]))[:, 0]
    by_ratio = np.exp(logs.reshape(-1, len(RATIOS)).mean(axis=0))
    return f"{np.exp(logs.mean()):.4f} ({', '.join(f'{error:.4f}' for error in by_ratio)})"


def choose_constants(run: Any) -> None:
    for name, others in CONSTANTS.items():
        in_use = in_use_now(name)
        for value in sorted({in_use, *others}):
            errors = whole_fits(run, (0,), {name: value})
            print(f"  {name} = {value}: {errors}{' in use' * (value == in_use)}", flush=True)


def fitted_to_few(X: Array, T: Array, ratio: float, s: int, by_chance: float) -> Array:
    """Return the log error of a fit to 35 rows, and whether it called them contaminated."""
    rng = check_random_state(s)
    train, test = np.split(rng.permutation(len(X)), [35])
    T_train, _ = contaminate(T[train], ratio, kind="rows", random_state=rng)
    with replaced({"BY_CHANCE": by_chance}):
        model = RobustELMRegressor(effort="fast", random_state=s).fit(X[train], T_train)
    predicted = model.predict(X[test]).reshape(T[test].shape)
    return np.array([np.log(arrmse(T[test], predicted)), model.contaminated_])


def choose_by_chance(run: Any) -> None:
    for ratio, value in product((0.0, 0.2), BY_CHANCE):
        cases = product(tables().values(), CHOSEN_BY)
        found = np.array(run(fitted_to_few, [(*data, ratio, s, value) for data, s in cases]))
        error, share = np.exp(found[:, 0].mean()), found[:, 1].mean()
        in_use = " in use" * (value == judge.BY_CHANCE)
        print(
            f"  {ratio:.0%} wrong, BY_CHANCE {value}: {error:.4f}, contaminated {share:.0%}{in_use}"
        )


def choose_nodes(run: Any) -> None:
    names, data = zip(*large().items(), strict=True)
    for nodes in MEMBER_NODES:
        efforts = task.EFFORTS | {"default": replace(task.EFFORTS["default"], nodes=nodes)}
        logs = run(fitted, [(*table, 0.0, 0, {"EFFORTS": efforts}) for table in data])
        each = [f"{of} {np.exp(e):.4f}, {t:.1f} s" for of, (e, t) in zip(names, logs, strict=True)]
        print(f"  {nodes} nodes: {'; '.join(each)}{' in use' * (efforts == task.EFFORTS)}")
        errors, took = errors_and_seconds(run, tables(), {"EFFORTS": efforts})
        print(f"    all tables with fewer rows: {errors}, {took:.1f} s", flush=True)


def errors_and_seconds(
    run: Any, data: dict[str, Table], constants: dict[str, Any]
) -> tuple[str, float]:
    """Return mean errors of fits, in brackets with clean rows and with 20 %, and CPU seconds."""
    cases = [(*table, ratio, 0, constants) for table in data.values() for ratio in (0.0, 0.2)]
    logs, seconds = np.array(run(fitted, cases)).T
    by_ratio = ", ".join(f"{np.exp(e):.4f}" for e in logs.reshape(-1, 2).mean(axis=0))
    return f"{np.exp(logs.mean()):.4f} ({by_ratio})", float(seconds.sum())


def choose_wide(run: Any) -> None:
    of_columns = {name: data for name, data in large().items() if name in WIDE_TABLES}
    for most in (FEW_OF_WIDE, None):
        for name, (X, T) in of_columns.items():
            for rows in (task.WIDE_ROWS, 0):
                one = {name: (X[:most], T[:most])}
                errors, took = errors_and_seconds(run, one, {"WIDE_ROWS": rows})
                n_rows = round(len(X[:most]) * 2 / 3)
                what = f"{name}, {n_rows} rows, WIDE_ROWS = {rows}"
                print(f"  {what}: {errors}, {took:.1f} s{' in use' * (rows > 0)}", flush=True)


PARTS = {
    "layers": choose_layers,
    "constants": choose_constants,
    "few": choose_by_chance,
    "nodes": choose_nodes,
    "wide": choose_wide,
}


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
