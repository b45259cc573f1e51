"""How well wrong rows and wrong cells are found, beside other detectors.

    pip install "gorelm[bench]"
    GORELM_DATA=folder python benchmarks/detection.py [--sets slump,jura] [--methods RobustELM,KNN]
        [--kinds rows,independent-cells] [--ratios 0.05,0.2,0.4] [--splits 1] [--jobs 1]
        [--robpy folder] [--results detection.jsonl]
    python benchmarks/detection.py --make-robpy folder     # an environment with robpy, once
    python benchmarks/detection.py --table [--results detection.jsonl]

Protocol. Mulan sets of at most 1500 rows and the tables of `outside.py`, all rows. Draw s makes
targets wrong by `contaminate` with the seed s (kind "inputs": inputs, as "independent-cells" does).
Every detector gets the inputs and the wrong targets, and nothing else: no setting depends on what
was planted. Wrong are the cells whose value differs from the clean one, and the rows with such a
cell. Scores: average precision of the scores; precision and recall of the flags where a detector
flags (precision 0 where nothing is flagged); seconds are CPU seconds of the one thread used.

RobustELM            as a user gets it; rows in the order of `findings` (the worst of row and cells,
                     in units of their thresholds); for inputs with `check_inputs=True`
CleanLearning        cleanlab with LightGBM (l1 loss), target by target, its default search: up to
                     20 % of the rows are wrong; "wide" searches up to 50 %
CleanForest          the same with a random forest
IForest, ECOD, KNN   PyOD's, on inputs and targets together, standardised; rows only; they flag the
                     share of rows that the package takes by default, a tenth
ForestResiduals      out-of-fold errors of a random forest of all targets, in units of each target's
                     median error; flags beyond the outer fence of Tukey's boxplot
XGBoost              the same with XGBoost (absolute errors, its other defaults)
RLM                  statsmodels' robust linear model (Tukey's bisquare), target by target, on all
                     rows: residuals in units of its scale; flags beyond 3
DDC, CellMCD         robpy's, on inputs and targets together; only with `--robpy`

A detector of cells scores a row by its worst cell, and flags it if it flags a cell. robpy's do not
judge columns of few values; CellMCD refuses tables with many outliers in a column: such failures
are recorded with their reason and not counted.

Each run is appended to the results file as one line of JSON when it is done, and skipped when it is
there already; failed runs are tried again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import numpy as np
from outside import tables as outside_tables
from sklearn.ensemble import RandomForestRegressor
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm import RobustELMRegressor
from gorelm.datasets import CONTAMINATIONS, MULAN_TARGETS, contaminate, load_mulan

OURS = "RobustELM"
INPUTS = "inputs"  # the kind that makes inputs wrong, not targets
MOST_ROWS = 1500
TREES, FOLDS = 100, 5
FAR = 3.0  # residuals of a robust linear model, in scales
WIDE = [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5]

Array = np.ndarray


class Verdict(NamedTuple):
    """What a detector says: larger scores are more suspicious; None where it does not judge."""

    row_scores: Array
    row_flags: Array | None
    cell_scores: Array | None = None
    cell_flags: Array | None = None
    seconds: float | None = None  # of another process


def by_cells(scores: Array, flags: Array, seconds: float | None = None) -> Verdict:
    """Judge rows by their worst cell; a score that is not known suspects nothing."""
    scores = np.nan_to_num(scores, nan=-np.inf)
    scores = np.nan_to_num(scores, neginf=min(0.0, scores[np.isfinite(scores)].min(initial=0.0)))
    return Verdict(scores.max(axis=1), flags.any(axis=1), scores, flags, seconds)


def robust_elm(X: Array, T: Array, inputs: bool, seed: int) -> Verdict:
    if inputs:
        model = RobustELMRegressor(random_state=seed, check_inputs=True).fit(X, T)
        return by_cells(model.input_scores_, model.input_mask_)
    model = RobustELMRegressor(random_state=seed).fit(X, T)
    cells, flags = model.cell_scores_.reshape(T.shape), model.cell_mask_.reshape(T.shape)
    in_thresholds = np.column_stack(
        [model.outlier_scores_ / model.outlier_threshold_, cells / model.cell_thresholds_]
    )
    return Verdict(
        np.nan_to_num(in_thresholds).max(axis=1),
        model.outlier_mask_ | flags.any(axis=1),
        np.nan_to_num(cells),
        flags,
    )


def in_usual_errors(off: Array) -> Array:
    usual = np.median(off, axis=0)
    return off / np.where(usual > 0, usual, 1.0)


def clean_learning(make: Callable[[int], Any], search: list[float] | None = None) -> Callable:
    def judge(X: Array, T: Array, inputs: bool, seed: int) -> Verdict:
        from cleanlab.regression.learn import CleanLearning

        how = {} if search is None else {"coarse_search_range": search}
        found = [CleanLearning(make(seed), seed=seed).find_label_issues(X, t, **how) for t in T.T]
        return by_cells(
            np.column_stack([-issues["label_quality"] for issues in found]),
            np.column_stack([issues["is_label_issue"] for issues in found]),
        )

    return judge


def lightgbm(seed: int) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(
        objective="l1", min_child_samples=5, random_state=seed, n_jobs=1, verbose=-1
    )


def forest(seed: int) -> RandomForestRegressor:
    return RandomForestRegressor(TREES, random_state=seed)


def xgboost(seed: int) -> Any:
    from xgboost import XGBRegressor

    return XGBRegressor(objective="reg:absoluteerror", random_state=seed, n_jobs=1)


def residuals(make: Callable[[int], Any]) -> Callable:
    def judge(X: Array, T: Array, inputs: bool, seed: int) -> Verdict:
        folds = KFold(FOLDS, shuffle=True, random_state=seed)
        y = T if T.shape[1] > 1 else T[:, 0]
        off = np.abs(T - cross_val_predict(make(seed), X, y, cv=folds).reshape(T.shape))
        q1, q3 = np.quantile(off, [0.25, 0.75], axis=0)
        return by_cells(in_usual_errors(off), off > q3 + 3 * (q3 - q1))

    return judge


def robust_linear(X: Array, T: Array, inputs: bool, seed: int) -> Verdict:
    import statsmodels.api as sm

    design = sm.add_constant(StandardScaler().fit_transform(X), has_constant="add")
    fits = [sm.RLM(t, design, M=sm.robust.norms.TukeyBiweight()).fit() for t in T.T]
    # a scale of 0 means that the model interpolates more than half of the rows
    off = np.column_stack([np.abs(f.resid) / (f.scale or 1.0) for f in fits])
    return by_cells(off, off > FAR)


def pyod(name: str) -> Callable:
    def judge(X: Array, T: Array, inputs: bool, seed: int) -> Verdict:
        from importlib import import_module

        cls = getattr(import_module(f"pyod.models.{name.lower()}"), name)
        model = cls(random_state=seed) if name == "IForest" else cls()
        model.fit(StandardScaler().fit_transform(np.hstack([X, T])))
        return Verdict(model.decision_scores_, model.labels_.astype(bool))

    return judge


def robpy(name: str) -> Callable:
    def judge(X: Array, T: Array, inputs: bool, seed: int, environment: Path) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            table, judged = Path(folder) / "table.npy", Path(folder) / "judged.npz"
            np.save(table, np.hstack([X, T]))
            script = Path(__file__).with_name("robpy_cells.py")
            command = [environment / "bin" / "python", script, name, table, judged]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            with np.load(judged) as of:
                part = np.s_[:, : X.shape[1]] if inputs else np.s_[:, X.shape[1] :]
                return by_cells(of["scores"][part], of["flags"][part], float(of["seconds"]))

    return judge


ROBPY_NEEDS = ("robpy==0.0.6", "numpy<2.3")  # with newer ones its CellMCD fails
ROBPY = {"DDC": robpy("DDC"), "CellMCD": robpy("CellMCD")}
METHODS: dict[str, Callable] = {
    OURS: robust_elm,
    "CleanLearning": clean_learning(lightgbm),
    "CleanLearning, wide": clean_learning(lightgbm, WIDE),
    "CleanForest": clean_learning(forest),
    "CleanForest, wide": clean_learning(forest, WIDE),
    "ForestResiduals": residuals(forest),
    "XGBoost": residuals(xgboost),
    "RLM": robust_linear,
    "IForest": pyod("IForest"),
    "ECOD": pyod("ECOD"),
    "KNN": pyod("KNN"),
    **ROBPY,
}
JUDGES_INPUTS = (OURS, "IForest", "ECOD", "KNN", *ROBPY)


def quality(truth: Array, scores: Array, flags: Array | None) -> dict[str, float]:
    found = {"average_precision": float(average_precision_score(truth.ravel(), scores.ravel()))}
    if flags is not None:
        right = (truth & flags).sum()
        found["precision"] = float(right / flags.sum()) if flags.any() else 0.0
        found["recall"] = float(right / truth.sum())
    return found


def run(
    data: tuple[Array, Array], name: str, kind: str, ratio: float, split: int, method: str,
    environment: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Return what the results file keeps of one run."""
    line = {"set": name, "kind": kind, "ratio": ratio, "split": split, "method": method}
    X, T = data
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if kind == INPUTS:
                X, _, wrong = contaminate(
                    X, ratio, kind="independent-cells", random_state=split, return_cells=True
                )
            else:
                T, _, wrong = contaminate(
                    T, ratio, kind=kind, random_state=split, return_cells=True
                )
            if not wrong.any():
                return line | {"nothing": "planted"}
            more = {"environment": environment} if method in ROBPY else {}
            start = time.process_time()
            verdict = METHODS[method](X, T, kind == INPUTS, split, **more)
            seconds = time.process_time() - start
            rows = quality(wrong.any(axis=1), verdict.row_scores, verdict.row_flags)
            line |= {"seconds": verdict.seconds or seconds, "rows": rows}
            if verdict.cell_scores is not None:
                line["cells"] = quality(wrong, verdict.cell_scores, verdict.cell_flags)
        except Exception as reason:
            line["failed"] = f"{type(reason).__name__}: {reason}"
    return line


def sets_of(names: list[str] | None) -> dict[str, tuple[Array, Array]]:
    found = {}
    for name in MULAN_TARGETS:
        if names is None or name in names:
            try:
                data = load_mulan(name, download_if_missing=False)
            except FileNotFoundError:
                print(f"skipped {name}: no file", flush=True)
                continue
            if len(data.data) <= MOST_ROWS or names is not None:
                found[name] = data.data, data.target
    return found | {
        name: table for name, table in outside_tables().items() if names is None or name in names
    }


def benchmark(args: argparse.Namespace) -> None:
    done = {key_of(line) for line in read(args.results)}
    sets = sets_of(args.sets)
    methods = args.methods or [m for m in METHODS if args.robpy or m not in ROBPY]
    todo = [
        (name, kind, ratio, split, method)
        for split, ratio, name, kind, method in product(
            range(args.splits), args.ratios, sets, args.kinds, methods
        )
        if (name, kind, ratio, split, method) not in done
        and (kind != INPUTS or method in JUDGES_INPUTS)
        and (kind != "swapped-targets" or sets[name][1].shape[1] > 1)
    ]
    runs = Parallel(n_jobs=args.jobs, return_as="generator_unordered")(
        delayed(run)(sets[name], name, *case, args.robpy) for name, *case in todo
    )
    for line in runs:
        text = json.dumps(line)
        with args.results.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)


def key_of(line: dict[str, Any]) -> tuple:
    return tuple(line[name] for name in ("set", "kind", "ratio", "split", "method"))


def read(results: Path) -> list[dict[str, Any]]:
    """Return the runs that did not fail."""
    lines = results.read_text().splitlines() if results.exists() else []
    return [line for line in map(json.loads, lines) if "failed" not in line]


def tables(args: argparse.Namespace) -> None:
    """Print, for rows and for cells, a table per ratio: kinds by methods, means over the sets."""
    lines = [
        line
        for line in read(args.results)
        if "nothing" not in line
        and line["kind"] in args.kinds
        and line["ratio"] in args.ratios
        and line["split"] < args.splits
        and (args.sets is None or line["set"] in args.sets)
    ]
    for ratio, of in product(args.ratios, ("rows", "cells")):
        cases: dict[tuple, dict[str, dict]] = defaultdict(dict)
        for line in lines:
            if line["ratio"] == ratio and of in line:
                case = line["kind"], line["set"], line["split"]
                cases[case][line["method"]] = line[of] | {"seconds": line["seconds"]}
        judged = Counter(m for found in cases.values() for m in found)
        methods = [m for m in args.methods or METHODS if judged[m] > len(cases) / 2]
        common = {case: found for case, found in cases.items() if all(m in found for m in methods)}
        if not common:
            continue
        print(f"\n## Wrong {of}, ratio {ratio:g}: {len(common)} tables that all have judged\n")
        table(common, methods)
        for m in [m for m in args.methods or METHODS if 0 < judged[m] <= len(cases) / 2]:
            print(f"\nnot shown: {m}, which judged {judged[m]} of {len(cases)} tables")


def table(cases: dict[tuple, dict[str, dict]], methods: list[str]) -> None:
    def row(name: str, value: Callable[[str], float | None], digits: int = 3) -> None:
        cells = (f"{v:.{digits}f}" if (v := value(m)) is not None else "" for m in methods)
        print(f"| {name} | {' | '.join(cells)} |")

    print(f"| | {' | '.join(methods)} |\n|{'---|' * (len(methods) + 1)}")
    for kind in dict.fromkeys(case[0] for case in cases):
        of_kind = [found for case, found in cases.items() if case[0] == kind]
        row(
            f"average precision, {kind}",
            lambda m, of=of_kind: fmean(found[m]["average_precision"] for found in of),
        )
    row(
        "average precision, geometric mean",
        lambda m: geometric_mean(found[m]["average_precision"] for found in cases.values()),
    )
    for name in ("precision", "recall"):
        row(
            f"{name} of flags, mean",
            lambda m, name=name: (
                fmean(found[m][name] for found in cases.values())
                if all(name in found[m] for found in cases.values())
                else None
            ),
        )
    row("seconds, sum", lambda m: sum(found[m]["seconds"] for found in cases.values()), 1)


def make_robpy(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", *ROBPY_NEEDS], check=True)


def main() -> None:
    def words(text: str) -> list[str]:
        return text.split(",")

    # Names with commas in them are given as they are: "CleanLearning, wide".
    def methods(text: str) -> list[str]:
        return text.replace(", ", "\0").replace(",", "\n").replace("\0", ", ").split("\n")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=words, help="(default: all)")
    parser.add_argument("--methods", type=methods, help=f"of {'; '.join(METHODS)} (default: all)")
    parser.add_argument("--kinds", type=words, default=[*CONTAMINATIONS, INPUTS])
    parser.add_argument(
        "--ratios", type=lambda text: [float(r) for r in words(text)], default=[0.05, 0.2, 0.4]
    )
    parser.add_argument("--splits", type=int, default=1, help="draws of what is wrong")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--robpy", type=Path, help="environment with robpy")
    parser.add_argument("--make-robpy", type=Path, help="make that environment, and end")
    parser.add_argument("--results", type=Path, default=Path("detection.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    args = parser.parse_args()
    for given, known in ((args.methods or [], METHODS), (args.kinds, [*CONTAMINATIONS, INPUTS])):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if args.make_robpy:
        make_robpy(args.make_robpy)
        sys.exit()
    if not args.table:
        benchmark(args)
    tables(args)


if __name__ == "__main__":
    main()
