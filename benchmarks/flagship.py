"""`RobustELMRegressor` with default parameters: seconds, errors and memory, beside LightGBM.

    python benchmarks/flagship.py [--only seconds,pairs,large,jobs,outliers,odd,outside]
        [--before DIR] [--rows 300,1000,5000,20000] [--repeats 3] [--seeds 4] [--threads 1]
        [--tables arm,wine]

`--before DIR` runs the same fits with the gorelm of another checkout as well. Every fit has a
process of its own, with `--threads` BLAS threads (LightGBM: its own threads), after a fit of 60
rows that is not counted; the processes of the methods take turns. Only `fit` is timed (in the part
`outliers` the whole command). Errors are the aRRMSE on 2000 clean rows that are not in the fit.
LightGBM has one model per target, with its defaults but for the number of trees and the loss.

seconds   `pairs` of outside.py (ten inputs, four targets), none and 20 % of the rows wrong;
          LightGBM with absolute loss, 300 trees. Medians of the repeats, one from 20,000 rows on.
pairs     errors with 20 % of the rows wrong, 1000 and 5000 rows, several seeds.
large     200,000 clean rows of `smooth_interactions` and of `interactions` (outside.py; steps and
          edges, which trees find easily), whose noise leaves an error of 0.0995 to the true
          function; LightGBM with squared loss, 500 trees. Memory: the largest resident
          size during the fit less that before, when X and y are there (Linux).
jobs      n_jobs=2 against 1, 5000 rows.
outliers  `gorelm outliers` on a CSV of 50,000 rows of `pairs`, 5 % of them wrong, against the
          residuals of LightGBM (absolute loss, 300 trees) outside of 5 folds; average precision
          says how well the scores tell wrong rows (1: all of them first).
odd       few rows, few inputs, many targets, constant columns, nothing but categories: clean rows,
          the error relative to that of predicting the training mean. Categories go through
          `TableRegressor` as words; LightGBM sees their numbers.
outside   all tables of outside.py, by which defaults were chosen (`--tables`: some of them), two
          splits as in defaults.py, a third of the rows to test; none, 20 and 40 % of the others
          wrong. Now and before only. Errors: geometric means over the splits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from outside import interactions, pairs, smooth_interactions, tables

from gorelm.datasets import contaminate
from gorelm.metrics import arrmse

HERE = Path(__file__).resolve()
NOW, BEFORE, LIGHTGBM = "now", "before", "LightGBM"
TEST_ROWS, ONE_REPEAT, FLOOR = 2000, 20_000, 0.1 / np.sqrt(1.01)

Array = np.ndarray
Result = dict[str, Any]


# -- one fit, in a process of its own -------------------------------------------------------------


class Boosted:
    """LightGBM, one model per target."""

    def __init__(self, threads: int, trees: int, objective: str) -> None:
        self.settings = {
            "n_estimators": trees,
            "objective": objective,
            "n_jobs": threads,
            "random_state": 0,
            "verbose": -1,
        }

    def fit(self, X: Array, T: Array) -> Boosted:
        """Fit all targets, one after the other."""
        from lightgbm import LGBMRegressor

        self.models = [LGBMRegressor(**self.settings).fit(X, t) for t in T.T]
        return self

    def predict(self, X: Array) -> Array:
        """Return the predictions, one column per target."""
        return np.column_stack([model.predict(X) for model in self.models])


def model_of(case: dict[str, Any]) -> Any:
    if case["method"] == LIGHTGBM:
        return Boosted(case["threads"], case["trees"], case["objective"])
    import gorelm

    if case["words"]:
        return gorelm.TableRegressor(random_state=case["seed"])
    return gorelm.RobustELMRegressor(n_jobs=case["n_jobs"], random_state=case["seed"])


def resident(what: str) -> float:
    """Return the process's resident megabytes: now (VmRSS) or at most (VmHWM); NaN if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(what))


def work(folder: Path) -> None:
    """Do the fit that a folder describes, and leave predictions and figures there."""
    warnings.simplefilter("ignore")
    case = json.loads((folder / "case.json").read_text())
    X, T, X_test = (np.load(folder / f"{name}.npy") for name in ("X", "T", "X_test"))
    if case["words"]:
        X, X_test = words_of(X), words_of(X_test)
    model_of(case).fit(X[:60], T[:60])
    before = resident("VmRSS")
    model = model_of(case)
    start, cpu_start = time.perf_counter(), time.process_time()
    model.fit(X, T)
    result = {"seconds": time.perf_counter() - start, "MB": resident("VmHWM") - before}
    result["cpu"] = time.process_time() - cpu_start
    result["steps"] = getattr(getattr(model, "regressor_", model), "timings_", {})
    np.save(folder / "P.npy", model.predict(X_test).reshape(len(X_test), -1))
    (folder / "result.json").write_text(json.dumps(result, default=float))


def words_of(X: Array) -> Array:
    return np.array([[f"kind {value:g}" for value in row] for row in X], dtype=object)


def environment(checkout: Path, threads: int) -> dict[str, str]:
    """Return the variables of a process that uses the gorelm of a checkout."""
    path = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return os.environ | dict.fromkeys(names, str(threads)) | {"PYTHONPATH": path}


class Runs:
    """Fits of the methods to compare: ours, that of another checkout if there is one, LightGBM."""

    def __init__(self, before: Path | None, threads: int) -> None:
        self.checkouts = {NOW: HERE.parents[1]}
        if before is not None:
            self.checkouts[BEFORE] = before.resolve()
        self.threads = threads

    @property
    def methods(self) -> list[str]:
        """Names of all methods, ours first."""
        return [*self.checkouts, LIGHTGBM]

    def fit(
        self,
        method: str,
        data: Sequence[Array],
        *,
        seed: int = 0,
        trees: int = 300,
        objective: str = "l1",
        n_jobs: int | None = None,
        words: bool = False,
    ) -> Result:
        """Return error, seconds (wall and CPU), megabytes, steps and predictions of one fit."""
        case = {
            "method": method,
            "threads": self.threads,
            "seed": seed,
            "trees": trees,
            "objective": objective,
            "n_jobs": n_jobs,
            "words": words,
        }
        X, T, X_test, T_test = data
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "case.json").write_text(json.dumps(case))
            for key, values in (("X", X), ("T", T), ("X_test", X_test)):
                np.save(folder / f"{key}.npy", values)
            checkout = self.checkouts.get(method, self.checkouts[NOW])
            command = [sys.executable, str(HERE), "--work", name]
            subprocess.run(command, env=environment(checkout, self.threads), check=True)
            result = json.loads((folder / "result.json").read_text())
            result["P"] = np.load(folder / "P.npy")
        result["error"], result["took"] = arrmse(T_test, result["P"]), result["seconds"]
        return result

    def repeated(self, data: Sequence[Array], repeats: int, **how: Any) -> dict[str, Result]:
        """Return each method's result with the median seconds; the methods take turns."""
        turns = [{m: self.fit(m, data, **how) for m in self.methods} for _ in range(repeats)]
        return {
            m: turns[0][m] | {"seconds": median(turn[m]["seconds"] for turn in turns)}
            for m in self.methods
        }


# -- data and tables ------------------------------------------------------------------------------


def split(X: Array, T: Array, n: int, ratio: float = 0.0, seed: int = 0) -> Sequence[Array]:
    """Return n rows to fit, a share of them wrong, and the others to test."""
    T_train = contaminate(T[:n], ratio, random_state=seed)[0] if ratio else T[:n]
    return X[:n], T_train, X[n:], T[n:]


def pairs_data(n: int, ratio: float, seed: int = 0) -> Sequence[Array]:
    return split(*pairs(n + TEST_ROWS, seed), n, ratio, seed)


def head(title: str, *columns: str) -> None:
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def line(*cells: object) -> None:
    texts = [f"{cell:.3g}" if isinstance(cell, float) else f"{cell}" for cell in cells]
    print(f"| {' | '.join(texts)} |", flush=True)


def steps(results: dict[str, Result]) -> None:
    """Print each step's share of the seconds, where the model says it."""
    names = list(dict.fromkeys(step for result in results.values() for step in result["steps"]))
    if names:
        head("Shares of the steps (`timings_`)", "fit", *names, "others")
        for what, result in results.items():
            if not result["steps"]:
                continue
            shares = [result["steps"].get(name, 0.0) / result["took"] for name in names]
            line(what, *(f"{share:.0%}" for share in [*shares, 1 - sum(shares)]))


# -- parts ----------------------------------------------------------------------------------------


def part_seconds(runs: Runs, args: argparse.Namespace) -> None:
    columns = [f"{m}, s" for m in runs.methods] + [f"{m}, error" for m in runs.methods]
    ratios = ["now / LightGBM, s", *["before / now, s"] * (BEFORE in runs.methods)]
    title = f"Seconds, {runs.threads} thread{'s' * (runs.threads > 1)}"
    head(title, "rows", "wrong", *columns, *ratios)
    gains, with_steps = [], {}
    for n in args.rows:
        for ratio in (0.0, 0.2):
            found = runs.repeated(pairs_data(n, ratio), args.repeats if n < ONE_REPEAT else 1)
            seconds = {m: result["seconds"] for m, result in found.items()}
            cells = [seconds[NOW] / seconds[LIGHTGBM]]
            if BEFORE in seconds:
                gains.append(seconds[BEFORE] / seconds[NOW])
                cells.append(gains[-1])
            errors = [f"{result['error']:.4f}" for result in found.values()]
            line(n, f"{ratio:.0%}", *seconds.values(), *errors, *cells)
            for method, result in found.items():
                if result["steps"]:
                    with_steps[f"{method}, {n} rows, {ratio:.0%} wrong"] = result
    if gains:
        print(f"\nbefore / now: geometric mean {geometric_mean(gains):.2f}", flush=True)
    steps(with_steps)


def part_pairs(runs: Runs, args: argparse.Namespace) -> None:
    peers = [m for m in runs.methods if m != NOW]
    title = f"Errors on pairs, 20 % of the rows wrong, means of {args.seeds} seeds"
    head(title, "rows", *runs.methods, *(f"now / {m} (from, to)" for m in peers))
    for n in (1000, 5000):
        errors = {m: [] for m in runs.methods}
        for seed in range(args.seeds):
            data = pairs_data(n, 0.2, seed)
            for m in runs.methods:
                errors[m].append(runs.fit(m, data, seed=seed)["error"])
        cells = []
        for m in peers:
            each = [ours / other for ours, other in zip(errors[NOW], errors[m], strict=True)]
            cells.append(f"{geometric_mean(each):.3f} ({min(each):.3f}, {max(each):.3f})")
        line(n, *(f"{np.mean(errors[m]):.4f}" for m in runs.methods), *cells)


def part_large(runs: Runs, args: argparse.Namespace) -> None:
    n = args.large_rows
    for law in (smooth_interactions, interactions):
        data = split(*law(n + TEST_ROWS), n)
        title = f"{n} rows of {law.__name__}, clean (noise alone: {FLOOR:.4f})"
        head(title, "method", "error", "seconds", "MB beyond X and y")
        found = {}
        for m in runs.methods:
            found[m] = result = runs.fit(m, data, trees=500, objective="l2")
            line(m, f"{result['error']:.4f}", result["seconds"], f"{result['MB']:.0f}")
        steps(found)


def part_jobs(runs: Runs, args: argparse.Namespace) -> None:
    data = pairs_data(5000, 0.2)
    what = ["n_jobs=1, s", "n_jobs=2, s", "ratio", "largest difference of predictions"]
    head("Two processes, 5000 rows, 20 % wrong", "method", *what)
    for m in runs.checkouts:
        turns = [[runs.fit(m, data, n_jobs=jobs) for jobs in (1, 2)] for _ in range(args.repeats)]
        one, two = (median(turn[k]["seconds"] for turn in turns) for k in (0, 1))
        apart = float(np.abs(turns[0][0]["P"] - turns[0][1]["P"]).max())
        line(m, one, two, one / two, apart)


def part_outliers(runs: Runs, args: argparse.Namespace) -> None:
    import pandas as pd
    from sklearn.metrics import average_precision_score
    from sklearn.model_selection import KFold, cross_val_predict

    n = args.outlier_rows
    X, T = pairs(n)
    T, planted = contaminate(T, 0.05, random_state=0)
    inputs, targets = (
        [f"{letter}{k}" for k in range(values.shape[1])] for letter, values in (("x", X), ("y", T))
    )
    title = f"Wrong rows of a CSV, {n} rows, 5 % wrong"
    head(title, "method", "seconds", "average precision")
    with tempfile.TemporaryDirectory() as name:
        table, out = Path(name) / "table.csv", Path(name) / "out.csv"
        pd.DataFrame(np.hstack([X, T]), columns=inputs + targets).to_csv(table, index=False)
        for m, checkout in runs.checkouts.items():
            command = [sys.executable, "-m", "gorelm", "outliers", str(table)]
            command += ["--targets", ",".join(targets), "--out", str(out)]
            env, start = environment(checkout, runs.threads), time.perf_counter()
            subprocess.run(command, env=env, check=True, capture_output=True)
            took = time.perf_counter() - start
            rows = pd.read_csv(out).rename(columns=lambda name: name.removeprefix("gorelm."))
            precision = average_precision_score(planted[rows["row"]], rows["score"])
            line(f"gorelm outliers, {m}", took, f"{precision:.4f}")
        start = time.perf_counter()
        frame = pd.read_csv(table)
        folds = KFold(5, shuffle=True, random_state=0)
        off = [
            frame[target] - cross_val_predict(booster(runs), frame[inputs], frame[target], cv=folds)
            for target in targets
        ]
        spread = [np.median(np.abs(column)) for column in off]
        scores = np.linalg.norm(np.column_stack(off) / spread, axis=1)
        took = time.perf_counter() - start
        line("LightGBM, out of fold", took, f"{average_precision_score(planted, scores):.4f}")


def booster(runs: Runs) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(**Boosted(runs.threads, 300, "l1").settings)


def part_odd(runs: Runs, args: argparse.Namespace) -> None:
    columns = [f"{m}, {what}" for what in ("s", "error / mean's") for m in runs.methods]
    head("Odd tables, clean rows", "table", "rows", "inputs", "targets", *columns)
    for name, data in odd_tables().items():
        words = name == "categories only"
        found = [runs.fit(m, data, words=words and m != LIGHTGBM) for m in runs.methods]
        X, T, _, T_test = data
        mean = arrmse(T_test, np.tile(T.mean(axis=0), (len(T_test), 1)))
        relative = [f"{result['error'] / mean:.3f}" for result in found]
        seconds = [result["seconds"] for result in found]
        line(name, *X.shape, T.shape[1], *seconds, *relative)


def odd_tables() -> dict[str, Sequence[Array]]:
    """Return tables as few users have them, clean, with rows to test."""
    rng = np.random.default_rng(0)
    X, T = pairs(500 + TEST_ROWS)
    two = rng.uniform(-1, 1, (500 + TEST_ROWS, 2))
    waves = np.column_stack([np.sin(3 * two[:, 0]) * two[:, 1], np.hypot(*two.T)])
    wide = np.tanh(X @ rng.standard_normal((10, 20))) @ rng.standard_normal((20, 500))
    constant = np.hstack([X, np.full((len(X), 1), 7.0), np.zeros((len(X), 2))])
    kinds = rng.integers(0, 4, (500 + TEST_ROWS, 6))
    worth = rng.standard_normal((3, 3, 4, 4))  # of two inputs' kinds together
    products = [
        sum(worth[k, j][kinds[:, 2 * j], kinds[:, (2 * j + 1 + k) % 6]] for j in range(3))
        for k in range(3)
    ]
    found = {
        "few rows": (*pairs(30 + TEST_ROWS, 1), 30),
        "two inputs": (two, waves, 500),
        "500 targets": (X, wide, 300),
        "constant columns": (constant, T, 500),
        "categories only": (kinds.astype(float), np.column_stack(products), 500),
    }
    noise = {name: 0.05 * rng.standard_normal(T.shape) for name, (_, T, _) in found.items()}
    return {name: split(X, T + noise[name], n) for name, (X, T, n) in found.items()}


def part_outside(runs: Runs, args: argparse.Namespace) -> None:
    from defaults import RATIOS
    from defaults import split as two_thirds  # needs the gorelm of this checkout

    every, methods = tables(), list(runs.checkouts)
    columns = []
    for ratio in RATIOS:
        columns += [f"{ratio:.0%} wrong: now", *[f"{ratio:.0%}: now / before"] * (len(methods) - 1)]
    head("Errors on outside.py's tables", "table", *columns, *(f"{m}, CPU s" for m in methods))
    rows = []
    for name in args.tables or every:
        cells, cpu = [], dict.fromkeys(methods, 0.0)
        for ratio in RATIOS:
            errors = {m: [] for m in methods}
            for seed in (0, 1):
                data = two_thirds(*every[name], ratio, seed)
                for m in methods:
                    result = runs.fit(m, data, seed=seed)
                    errors[m].append(result["error"])
                    cpu[m] += result["cpu"]
            ours, *others = (geometric_mean(errors[m]) for m in methods)
            cells += [ours, *(ours / other for other in others)]
        rows.append([*cells, *cpu.values()])
        line(name, *(f"{cell:.4f}" for cell in cells), *cpu.values())
    means = [f"{geometric_mean(column):.4f}" for column in zip(*rows, strict=True)]
    totals = [float(np.sum(column)) for column in zip(*rows, strict=True)]
    n = len(methods)
    line("geometric mean, sum of CPU s", *means[:-n], *totals[-n:])


PARTS = {
    "seconds": part_seconds,
    "pairs": part_pairs,
    "large": part_large,
    "jobs": part_jobs,
    "outliers": part_outliers,
    "odd": part_odd,
    "outside": part_outside,
}


def main() -> None:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=words, default=list(PARTS), help="parts, by commas")
    parser.add_argument("--before", type=Path, help="another checkout of gorelm, to compare with")
    parser.add_argument(
        "--rows",
        type=lambda text: [int(n) for n in words(text)],
        default=[300, 1000, 5000, 20_000],
        help="of the part seconds",
    )
    parser.add_argument("--large-rows", type=int, default=200_000, help="of the part large")
    parser.add_argument("--outlier-rows", type=int, default=50_000, help="of the part outliers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4, help="of the part pairs")
    parser.add_argument("--tables", type=words, help="of the part outside, by commas; default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        work(args.work)
        return
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(unknown)}")
    if unknown := set(args.tables or ()) - set(tables()):
        parser.error(f"unknown tables: {', '.join(unknown)}")
    if args.before is not None and not (args.before / "src" / "gorelm").is_dir():
        parser.error(f"{args.before} has no src/gorelm")
    for part in args.only:
        PARTS[part](Runs(args.before, args.threads), args)


if __name__ == "__main__":
    main()
