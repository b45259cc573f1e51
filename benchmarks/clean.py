"""Clean tables: how much `RobustELMRegressor` flags, and what its screen costs.

    python benchmarks/clean.py [--splits 1] [--jobs 1]

The tables of `outside.py` as they are, two thirds of their rows to train (split s: a permutation
seeded by s). Printed are the shares of rows and of cells that are flagged, and the error (aRRMSE)
on the other rows over that of a fit with all rows trusted, which leaves out and bounds nothing.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import product

import numpy as np
from outside import tables
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from gorelm import RobustELMRegressor
from gorelm.metrics import arrmse


def run(X: np.ndarray, T: np.ndarray, split: int) -> tuple[float, float, float, float]:
    order = check_random_state(split).permutation(len(X))
    train, test = np.split(order, [round(len(X) * 2 / 3)])
    model = RobustELMRegressor(random_state=split)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = []
        for trusted in (np.ones(len(train), dtype=bool), None):
            model.fit(X[train], T[train], trusted=trusted)
            errors.append(arrmse(T[test], model.predict(X[test])))
    return model.outlier_mask_.mean(), model.cell_mask_.mean(), errors[1], errors[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    of = tables()
    cases = list(product(of, range(args.splits)))
    runs = Parallel(n_jobs=args.jobs)(delayed(run)(*of[name], split) for name, split in cases)
    head = ("table", "rows flagged", "cells flagged", "error", "all trusted", "ratio")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    means = {
        name: np.mean(
            [found for case, found in zip(cases, runs, strict=True) if case[0] == name], 0
        )
        for name in of
    }
    for name, (rows, cells, error, trusted) in means.items():
        print(
            f"| {name} | {rows:.3f} | {cells:.3f} | {error:.4f} | {trusted:.4f} "
            f"| {error / trusted:.3f} |"
        )
    rows, cells, errors, trusted = np.array(list(means.values())).T
    ratio = np.exp(np.mean(np.log(errors / trusted)))
    print(f"\nmean of all tables: rows {rows.mean():.4f}, cells {cells.mean():.4f}")
    print(f"error / all trusted: geometric mean {ratio:.4f}")


if __name__ == "__main__":
    main()
