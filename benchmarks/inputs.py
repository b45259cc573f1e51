"""Wrong inputs: test error of `RobustELMRegressor` with and without `check_inputs`.

    GORELM_DATA=folder python benchmarks/inputs.py [--sets lorenz,andro] [--ratio 0.1] [--splits 2]
        [--kinds none,independent-cells,unit-cells] [--effort default] [--jobs 1]

The tables of `outside.py`, by which most constants of the check were chosen, and small Mulan sets.
These are no untouched test either: that several draws must agree, and that fewer rows must gain
more (`DRAWS`, `BY_CHANCE`), was added after the check had done harm on clean inputs of andro.

Split s: a permutation seeded by s, two thirds of the rows to train. In
every input, a share of the cells of the training rows is made wrong, as `contaminate` does with the
kind; targets stay clean. The error is the aRRMSE on the test rows, once with clean inputs and once
with inputs made wrong likewise. "none" leaves all inputs as they are: what the check costs there.
Beside the errors: the share of cells filled in, how many of them were wrong (precision), and how
many of the wrong ones were filled in (recall), and the seconds with the check over those without.
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import product

import numpy as np
from outside import tables
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm import RobustELMRegressor
from gorelm.datasets import contaminate, load_mulan
from gorelm.metrics import arrmse

MULAN = ("slump", "jura", "enb", "edm", "andro", "scpf")


def run(X: np.ndarray, T: np.ndarray, kind: str, ratio: float, split: int, effort: str) -> tuple:
    rng = check_random_state(split)
    train, test = np.split(rng.permutation(len(X)), [round(len(X) * 2 / 3)])
    X_train, X_wrong = X[train], X[test]
    cells = np.zeros(X_train.shape, dtype=bool)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind != "none":
            how = {"kind": kind, "random_state": rng}
            X_train, _, cells = contaminate(X_train, ratio, return_cells=True, **how)
            X_wrong, _ = contaminate(X_wrong, ratio, **how)
        errors, seconds = [], []
        for check in (False, True):
            start = time.process_time()
            model = RobustELMRegressor(effort=effort, random_state=split, check_inputs=check)
            model.fit(X_train, T[train])
            seconds.append(time.process_time() - start)
            errors += [arrmse(T[test], model.predict(Z)) for Z in (X[test], X_wrong)]
    found = model.input_mask_
    return *errors, found.sum(), (found & cells).sum(), cells.sum(), found.size, *seconds


def main() -> None:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=words, help="(default: all)")
    parser.add_argument("--kinds", type=words, default=["none", "independent-cells", "unit-cells"])
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--effort", default="default")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    sets = {
        name: table for name, table in tables().items() if args.sets is None or name in args.sets
    }
    for name in MULAN:
        if args.sets is None or name in args.sets:
            try:
                data = load_mulan(name, download_if_missing=False)
            except FileNotFoundError:
                print(f"skipped {name}: no file", flush=True)
                continue
            sets[name] = data.data, data.target
    head = (
        "set", "kind", "clean test rows: without", "with", "ratio", "wrong test rows: without",
        "with", "ratio", "filled in", "precision", "recall", "seconds",
    )  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, kind in product(sets, args.kinds):
        runs = Parallel(n_jobs=args.jobs)(
            delayed(run)(*sets[name], kind, args.ratio, split, args.effort)
            for split in range(args.splits)
        )
        clean, wrong, clean_checked, wrong_checked, found, right, cells, size, plain, checked = (
            np.mean(runs, axis=0)
        )
        line = [name, kind, f"{clean:.3f}", f"{clean_checked:.3f}", f"{clean_checked / clean:.2f}"]
        line += [f"{wrong:.3f}", f"{wrong_checked:.3f}", f"{wrong_checked / wrong:.2f}"]
        line += [f"{found / size:.3f}", f"{right / found:.2f}" if found and cells else ""]
        line += [f"{right / cells:.2f}" if cells else "", f"{checked / plain:.1f}"]
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
