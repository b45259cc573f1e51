"""Test error on real data with contaminated training targets, against methods of other families.

    GORELM_DATA=folder python benchmarks/accuracy.py [--sets andro,slump] [--methods SVR,Huber]
        [--splits 20] [--ratios 0,0.2,0.4] [--kind rows] [--one-target] [--jobs 1]
        [--results accuracy.jsonl]
    python benchmarks/accuracy.py --table [--paper results.csv] [--results accuracy.jsonl]
    python benchmarks/accuracy.py --table --results docs/results/accuracy.jsonl   # as published

Protocol. Mulan sets without their rows with missing values (as `load_mulan` and the paper leave
them out; no method imputes). Split s: a permutation seeded by s, two thirds of the rows to train.
A share of the training rows has its targets contaminated, seeded by s as well; test targets stay
clean. Score: aRRMSE on the test part, relative to the test part's own mean, as the paper defines
it (a target constant over the test rows counts 0 if predicted exactly, else 1). Every method
chooses its hyperparameters on the contaminated training part and nothing else.

Peers see standardised inputs and targets scaled robustly (median, IQR) by the contaminated
training part, and choose from a small grid, once for all targets, by 3-fold cross-validation with
a robust score: the mean Euclidean norm of a validation row's error. Forests are tuned with 30 trees
and fitted with 200; boosting sees at most 50 features per tree, and XGBoost and CatBoost, where
there are more than 100, 64 bins of each instead of 256. Above 1500 training rows (rf1, rf2, scm1d,
scm20d) the choice is made on 1000 of them, drawn at random, SVR's last fit uses 3000 and the
forests' 100 trees, to bound the cost.

CleanLearning is "clean, then fit", target by target: cleanlab judges each row by models that did
not see it, chooses the share of rows to leave out, and fits LightGBM to the others; LightGBM's
settings are chosen before, on all rows. The share is searched up to 0.4 (the package's default ends
at 0.2, below what is planted here). That takes 65 to 80 fits per target; above 1500 training rows a
shorter search takes 16 (three shares, three folds, no estimate of the models' uncertainty).

The kind "inputs" leaves the targets as they are: in every input, that share of the training rows'
cells is wrong (as "independent-cells" in targets); test inputs stay clean.

The Screened methods are `ScreenedRegressor` with its defaults around another method: the rows and
cells that the screen finds wrong are left out before anything is tuned or fitted, with the same
grid as alone. Where the screen leaves out single cells, each target is tuned by itself.

`--one-target` takes each set's first target alone; the kind of such runs ends in ", one target".

Each run is appended to the results file as one line of JSON when it is done, and skipped when it is
there already, so that an interrupted benchmark goes on where it was; a failed run is recorded with
its reason, never counted, and tried again. Seconds are CPU seconds of the one thread used. Runs
without contamination have the kind "none" and serve all kinds. A line whose split is "0-8" stands
for the runs of these splits, with their errors in turn or with their mean.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import HuberRegressor
from sklearn.model_selection import KFold, ParameterGrid
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import SVR
from sklearn.utils import Tags, check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm._features.scaling import Scaling
from gorelm.datasets import CONTAMINATIONS, MULAN_TARGETS, contaminate, load_mulan
from gorelm.metrics import arrmse

OURS = "RobustELM"
FOLDS = 3
TUNING_TREES, TREES, TREES_MANY_ROWS = 30, 200, 100
MANY_ROWS, TUNING_ROWS, SVR_ROWS = 1500, 1000, 3000
MANY_FEATURES = 100
CLEANED = "l1"  # LightGBM's loss where the rows are cleaned: better than "l2" on jura and enb
ONE_TARGET = ", one target"
INPUTS = "inputs"  # the kind that makes inputs wrong, not targets
PAPER_SETS = [name for name in MULAN_TARGETS if name not in ("osales", "sf1", "sf2")]

Array = np.ndarray
Params = dict[str, Any]
# (X, Z, X_test, grid, seed, last fit?) -> each point of the grid with its predictions
Peer = Callable[[Array, Array, Array, dict[str, list], int, bool], Iterator[tuple[Params, Array]]]


def forest(cls: type, **fixed: Any) -> Peer:
    def fits(X, Z, X_test, grid, seed, last):
        trees = TUNING_TREES
        if last:
            trees = TREES if len(X) <= MANY_ROWS else TREES_MANY_ROWS
        for params in ParameterGrid(grid):
            model = cls(trees, random_state=seed, **fixed, **params).fit(X, Z)
            yield params, model.predict(X_test)

    return fits


def huber(X, Z, X_test, grid, seed, last):
    for params in ParameterGrid(grid):
        model = MultiOutputRegressor(HuberRegressor(**params)).fit(X, Z)
        yield params, model.predict(X_test)


def svr(X, Z, X_test, grid, seed, last):
    if len(X) > SVR_ROWS:
        rows = check_random_state(seed).permutation(len(X))[:SVR_ROWS]
        X, Z = X[rows], Z[rows]
    for params in ParameterGrid(grid):
        model = SVR(C=params["C"], gamma=params["gamma_d"] / X.shape[1], epsilon=0.05)
        yield params, MultiOutputRegressor(model).fit(X, Z).predict(X_test)


def kernel_ridge(X, Z, X_test, grid, seed, last):
    for params in ParameterGrid(grid):
        model = KernelRidge(params["alpha"], kernel="rbf", gamma=params["gamma_d"] / X.shape[1])
        yield params, model.fit(X, Z).predict(X_test)


def lightgbm_settings(objective: str, n_features: int, seed: int) -> Params:
    return {
        "objective": objective,
        "learning_rate": 0.1,
        "feature_fraction": features_per_tree(n_features),
        "min_data_in_leaf": 5,
        "seed": seed,
        "num_threads": 1,
        "force_col_wise": True,
        "verbose": -1,
    }


def features_per_tree(n_features: int) -> float:
    return min(1.0, 50 / n_features)  # of hundreds of features, 50


def lightgbm(objective: str) -> Peer:
    """One model per target; its first trees are the smaller model of the grid."""

    def fits(X, Z, X_test, grid, seed, last):
        import lightgbm as lgb

        fixed = lightgbm_settings(objective, X.shape[1], seed)
        trees = max(grid["n_estimators"])
        for leaves in grid["num_leaves"]:
            params = fixed | {"num_leaves": leaves}
            models = [lgb.train(params, lgb.Dataset(X, z, params=params), trees) for z in Z.T]
            for n in grid["n_estimators"]:
                P = np.column_stack([model.predict(X_test, num_iteration=n) for model in models])
                yield {"num_leaves": leaves, "n_estimators": n}, P

    return fits


def xgboost(X, Z, X_test, grid, seed, last):
    """Trees whose leaves have a value for every target, with the pseudo-Huber loss."""
    import xgboost as xgb

    fixed = {
        "objective": "reg:pseudohubererror",
        "tree_method": "hist",
        "multi_strategy": "multi_output_tree",
        "eta": 0.1,
        "colsample_bytree": features_per_tree(X.shape[1]),
        "max_bin": 64 if X.shape[1] > MANY_FEATURES else 256,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }
    data, test = xgb.DMatrix(X, Z, nthread=1), xgb.DMatrix(X_test, nthread=1)
    for depth in grid["max_depth"]:
        model = xgb.train(fixed | {"max_depth": depth}, data, max(grid["n_estimators"]))
        for n in grid["n_estimators"]:
            P = model.predict(test, iteration_range=(0, n))
            yield {"max_depth": depth, "n_estimators": n}, P


def catboost(loss: str) -> Peer:
    """One model of all targets, or, for losses of one target, a model for each."""

    def fits(X, Z, X_test, grid, seed, last):
        from catboost import CatBoostRegressor

        columns = [Z] if loss == "MultiRMSE" and Z.shape[1] > 1 else list(Z.T)
        for depth in grid["depth"]:
            models = [
                None
                if (z == z[0]).all()  # it refuses targets that never change
                else CatBoostRegressor(
                    loss_function="RMSE" if loss == "MultiRMSE" and z.ndim == 1 else loss,
                    depth=depth,
                    iterations=max(grid["n_estimators"]),
                    learning_rate=0.1,
                    rsm=features_per_tree(X.shape[1]),
                    border_count=64 if X.shape[1] > MANY_FEATURES else 254,
                    random_seed=seed,
                    thread_count=1,
                    allow_writing_files=False,
                    verbose=False,
                ).fit(X, z)
                for z in columns
            ]
            for n in grid["n_estimators"]:
                P = [
                    np.tile(z[0], (len(X_test), 1))
                    if model is None
                    else model.predict(X_test, ntree_end=n).reshape(len(X_test), -1)
                    for model, z in zip(models, columns, strict=True)
                ]
                yield {"depth": depth, "n_estimators": n}, np.hstack(P)

    return fits


def clean_learning(X, Z, X_test, grid, seed, last):
    """LightGBM while it is tuned; for the last fit, on the rows that cleanlab keeps."""
    if not last:
        yield from lightgbm(CLEANED)(X, Z, X_test, grid, seed, last)
        return
    from cleanlab.regression.learn import CleanLearning
    from lightgbm import LGBMRegressor

    how: Params = {"cv_n_folds": 5, "n_boot": 5}
    search: Params = {"coarse_search_range": [0.01, 0.05, 0.1, 0.2, 0.4]}
    if len(X) > MANY_ROWS:
        how = {"cv_n_folds": 3, "n_boot": 0, "include_aleatoric_uncertainty": False}
        search = {"coarse_search_range": [0.05, 0.2, 0.4], "fine_search_size": 0}
    fixed = lightgbm_settings(CLEANED, X.shape[1], seed)
    for params in ParameterGrid(grid):
        P = []
        for z in Z.T:
            learner = CleanLearning(LGBMRegressor(**fixed, **params), seed=seed, **how)
            P.append(learner.fit(X, z, find_label_issues_kwargs=search).predict(X_test))
        yield params, np.column_stack(P)


def tuned(fits: Peer, grid: dict[str, list]) -> Callable:
    def method(X: Array, T: Array, X_test: Array, seed: int) -> tuple[Array, Params]:
        scaling = Scaling.fit("robust", T, np.ones(len(T)))
        Z, _ = scaling.apply(T)
        best = select(fits, grid, X, Z, seed)
        point = {name: [value] for name, value in best.items()}
        [(_, P)] = fits(*standardised(X, Z, X_test), point, seed, True)
        return scaling.undo(P.reshape(len(X_test), -1)), best

    return method


def select(fits: Peer, grid: dict[str, list], X: Array, Z: Array, seed: int) -> Params:
    """Return the point of the grid with the smallest mean row norm of the validation error."""
    if len(X) > MANY_ROWS:
        rows = check_random_state(seed).permutation(len(X))[:TUNING_ROWS]
        X, Z = X[rows], Z[rows]
    total: dict[tuple, float] = defaultdict(float)
    for train, valid in KFold(FOLDS, shuffle=True, random_state=seed).split(X):
        data = standardised(X[train], Z[train], X[valid])
        for params, P in fits(*data, grid, seed, False):
            off = P.reshape(Z[valid].shape) - Z[valid]
            total[tuple(params.items())] += np.linalg.norm(off, axis=1).sum()
    return dict(min(total, key=total.__getitem__))


def standardised(X: Array, Z: Array, X_test: Array) -> tuple[Array, Array, Array]:
    scaling = Scaling.fit("standard", X, np.ones(len(X)))
    return scaling.apply(X)[0], Z, scaling.apply(X_test)[0]


def robust_elm(X: Array, T: Array, X_test: Array, seed: int) -> tuple[Array, Params]:
    """Ours, as a user gets it: no setting but the seed."""
    from gorelm import RobustELMRegressor

    model = RobustELMRegressor(random_state=seed).fit(X, T)
    return model.predict(X_test).reshape(len(X_test), -1), getattr(model, "best_params_", {})


class Method(RegressorMixin, BaseEstimator):
    """One of the methods as an estimator: it is tuned and fitted when it is asked to predict."""

    def __init__(self, method: Callable, seed: int) -> None:
        self.method, self.seed = method, seed

    def fit(self, X: Array, y: Array) -> Method:
        """Keep the rows."""
        self.rows_ = X, y.reshape(len(X), -1)
        return self

    def predict(self, X: Array) -> Array:
        """Tune and fit the method, and return its predictions."""
        P, self.params_ = self.method(*self.rows_, X, self.seed)
        return P

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def screened(method: Callable) -> Callable:
    """Return another method on what `ScreenedRegressor` leaves, as a user gets it."""

    def on_what_is_left(X: Array, T: Array, X_test: Array, seed: int) -> tuple[Array, Params]:
        from gorelm import ScreenedRegressor

        model = ScreenedRegressor(Method(method, seed), random_state=seed).fit(X, T)
        P = model.predict(X_test).reshape(len(X_test), -1)
        return P, {"fits": [one.params_ for one in model.estimators_]}

    return on_what_is_left


SHARES = [1 / 3, 1.0]
LEAVES = {"num_leaves": [7, 31], "n_estimators": [50, 200]}
METHODS = {
    OURS: robust_elm,
    "RandomForest": tuned(
        forest(RandomForestRegressor), {"min_samples_leaf": [1, 5], "max_features": SHARES}
    ),
    "ExtraTrees": tuned(forest(ExtraTreesRegressor, min_samples_leaf=5), {"max_features": SHARES}),
    "LightGBM": tuned(lightgbm("l1"), LEAVES),
    "Huber": tuned(huber, {"alpha": [1e-3, 1.0, 100.0, 1000.0]}),
    "SVR": tuned(svr, {"C": [1.0, 10.0, 100.0], "gamma_d": [0.1, 1.0]}),
    "KernelRidge": tuned(
        kernel_ridge,
        {"alpha": [1e-3, 1e-2, 0.1, 1.0, 10.0], "gamma_d": [0.03, 0.1, 0.3, 1.0]},
    ),
    "ScreenedLightGBM": screened(tuned(lightgbm("l1"), LEAVES)),
    "ScreenedLightGBMSquared": screened(tuned(lightgbm("l2"), LEAVES)),
    "LightGBMHuber": tuned(lightgbm("huber"), LEAVES),
    "XGBoost": tuned(xgboost, {"max_depth": [3, 6], "n_estimators": [50, 200]}),
    "CatBoost": tuned(catboost("MultiRMSE"), {"depth": [4, 6], "n_estimators": [50, 200]}),
    "CatBoostMAE": tuned(catboost("MAE"), {"depth": [4, 6], "n_estimators": [50, 200]}),
    "CleanLearning": tuned(clean_learning, LEAVES),
}


def run(method: str, data: Any, kind: str, ratio: float, split: int) -> dict[str, Any]:
    """Return the outcome of one method on one split: its error, or why there is none."""
    X, T = data.data, data.target
    if kind.endswith(ONE_TARGET):
        kind, T = kind.removesuffix(ONE_TARGET), T[:, :1]
    rng = check_random_state(split)
    train, test = np.split(rng.permutation(len(X)), [round(len(X) * 2 / 3)])
    X_train, T_train = X[train], T[train]
    if kind == INPUTS:
        X_train, _ = contaminate(X_train, ratio, kind="independent-cells", random_state=rng)
    elif kind != "none":
        T_train, _ = contaminate(T_train, ratio, kind=kind, random_state=rng)
    start = time.process_time()
    try:
        P, params = METHODS[method](X_train, T_train, X[test], split)
        error = arrmse(T[test], P)
    except Exception as reason:
        return {"failed": f"{type(reason).__name__}: {reason}"}
    return {"arrmse": error, "seconds": time.process_time() - start, "params": params}


def benchmark(args: argparse.Namespace) -> None:
    done = {(*cell, split, m) for (cell, split), of in read(args.results).items() for m in of}
    sets = {}
    for name in args.sets:
        try:
            sets[name] = load_mulan(name, download_if_missing=False)
        except FileNotFoundError:
            print(f"skipped {name}: no file", flush=True)
    order = sorted(sets, key=lambda name: len(sets[name].data) * 2 / 3 > MANY_ROWS)
    cells = product(range(args.splits), order, args.ratios, args.methods or METHODS)
    kinds = kinds_of(args)
    todo = [
        (name, kinds[ratio > 0], ratio, split, method)
        for split, name, ratio, method in cells
        if (kinds[ratio > 0], ratio, name, split, method) not in done
    ]
    runs = Parallel(n_jobs=args.jobs, return_as="generator_unordered")(
        delayed(line_of)(sets[name], name, *case) for name, *case in todo
    )
    for line in runs:
        text = json.dumps(line, default=float)
        with args.results.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)


def kinds_of(args: argparse.Namespace) -> tuple[str, str]:
    """Return the kinds of the runs without and with contamination."""
    suffix = ONE_TARGET if args.one_target else ""
    return f"none{suffix}", f"{args.kind}{suffix}"


def line_of(
    data: Any, name: str, kind: str, ratio: float, split: int, method: str
) -> dict[str, Any]:
    """Return what the results file keeps of one run."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", DataConversionWarning)
    warnings.filterwarnings("ignore", "kind .* plants no outlier")  # as in the published protocol
    line = {"set": name, "kind": kind, "ratio": ratio, "split": split, "method": method}
    with threadpool_limits(1):
        return line | run(method, data, kind, ratio, split)


def read(results: Path) -> dict[tuple, dict[str, float]]:
    """Return {((kind, ratio, set), split): {method: aRRMSE}} of the runs that did not fail."""
    errors: dict[tuple, dict[str, float]] = defaultdict(dict)
    for text in results.read_text().splitlines() if results.exists() else []:
        line = json.loads(text)
        if "arrmse" in line:
            cell = line["kind"], line["ratio"], line["set"]
            first, _, last = str(line["split"]).partition("-")
            splits = range(int(first), int(last or first) + 1)
            found = line["arrmse"]
            each = found if isinstance(found, list) else [found] * len(splits)
            for split, error in zip(splits, each, strict=True):
                errors[cell, split][line["method"]] = error
    return errors


def tables(args: argparse.Namespace) -> None:
    """Print one table per kind and ratio, over the splits that all methods have finished."""
    runs = read(args.results)
    present = set().union(*runs.values())
    methods = args.methods or [m for m in METHODS if m in present]
    common: dict[tuple, list[dict[str, float]]] = defaultdict(list)
    for (cell, split), errors in runs.items():
        if split < args.splits and all(m in errors for m in methods):
            common[cell].append(errors)
    paper = published(args.paper) if args.paper else {}
    none, kind_asked = kinds_of(args)
    for kind, ratio in sorted({cell[:2] for cell in common}, key=lambda k: (k[0] != none, *k)):
        if kind in (none, kind_asked) and ratio in args.ratios:
            cells = {
                name: (len(of), {m: fmean(errors[m] for errors in of) for m in methods})
                for name in args.sets
                if (of := common.get((kind, ratio, name)))
            }
            print(f"\n## Mean aRRMSE, kind {kind}, ratio {ratio:g}")
            print("(over the splits that all these methods have finished)\n")
            best = {name: e for (name, r), e in paper.items() if (kind, r) == ("rows", ratio)}
            table(cells, methods, best)


def table(
    cells: dict[str, tuple[int, dict[str, float]]], methods: list[str], paper: dict[str, float]
) -> None:
    peers = [m for m in methods if m != OURS]
    compare = OURS in methods and len(peers) > 0
    head = ["set", "splits", *methods, *["ours / best peer"] * compare]
    head += ["paper's best"] * bool(paper)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    ratios, below = [], []
    for name, (splits, means) in cells.items():
        row = [name, str(splits), *(f"{means[m]:.3f}" for m in methods)]
        if compare:
            ratios.append(means[OURS] / min(means[m] for m in peers))
            row.append(f"{ratios[-1]:.3f}")
        if paper:
            row.append(f"{paper[name]:.3f}" if name in paper else "")
            if compare and name in paper:
                below.append(means[OURS] < paper[name])
        print(f"| {' | '.join(row)} |")
    ranks = rankdata([[means[m] for m in methods] for _, means in cells.values()], axis=1)
    row = ["mean rank", "", *(f"{rank:.2f}" for rank in ranks.mean(axis=0))]
    print(f"| {' | '.join(row + [''] * (len(head) - len(row)))} |")
    if ratios:
        print(f"\n{OURS} / best peer of the set: geometric mean {geometric_mean(ratios):.3f}")
    if below:
        print(f"\n{OURS} is below the paper's best in {sum(below)} of {len(below)} sets")


def published(path: Path) -> dict[tuple[str, float], float]:
    """Return the smallest test aRRMSE that the paper prints for each set and ratio."""
    best: dict[tuple[str, float], float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "aRRMSE" and row["subset"] == "test":
                key = row["dataset"], float(row["outlier_ratio"])
                best[key] = min(best.get(key, np.inf), float(row["mean"].lstrip("<")))
    return best


def main() -> None:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=words, default=PAPER_SETS)
    parser.add_argument("--methods", type=words, help=f"of {', '.join(METHODS)} (default: all)")
    parser.add_argument("--splits", type=int, default=20, help="how many, from split 0")
    parser.add_argument(
        "--ratios", type=lambda text: [float(r) for r in words(text)], default=[0.0, 0.2, 0.4]
    )
    parser.add_argument("--kind", choices=[*CONTAMINATIONS, INPUTS], default="rows")
    parser.add_argument("--one-target", action="store_true", help="each set's first alone")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    parser.add_argument("--paper", type=Path, help="the paper's results, to print next to ours")
    args = parser.parse_args()
    if unknown := set(args.methods or ()) - set(METHODS):
        parser.error(f"unknown methods: {', '.join(unknown)}")
    if not args.table:
        benchmark(args)
    tables(args)


if __name__ == "__main__":
    main()
