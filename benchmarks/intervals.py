"""Coverage and width of prediction intervals when the calibration rows are contaminated too.

    GORELM_DATA=folder python benchmarks/intervals.py [--sets synthetic,enb] [--repeats 6]
        [--ratios 0,0.2,0.4] [--levels 0.8,0.9,0.95] [--hidden 200]

Protocol. Repeat r: a permutation of the rows seeded by r, two thirds of them to learn from, with
the targets of a share of these replaced by the paper's rule; the others stay clean, to test.
`RobustELMRegressor` is fitted on three quarters of the former; the last quarter calibrates, with
and without cleaning, each target by itself and all together. The synthetic set is
`make_multitarget` with 600 rows and noise of 0.2, drawn anew in each repeat. (Of slump's 103 rows
17 would calibrate, too few to clean.)

Coverage is the share of clean test cells in their interval (separate) or of clean test rows in
their region (ball, box), as mean and standard error over the repeats. Widths are those of the
intervals in interquartile ranges of the clean targets (standard deviations where that range is 0),
as mean over targets and repeats. A dash: fewer calibration rows than the level needs, in some
repeat.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.stats import gmean
from threadpoolctl import threadpool_limits

from gorelm import ConformalRegressor, RobustELMRegressor
from gorelm.datasets import contaminate, load_mulan, make_multitarget

SETS = ["synthetic", "jura", "enb", "wq"]
MODES = {"separate": False, "ball": "ball", "box": "box"}

Array = np.ndarray
# (mode, cleaned, level) -> coverage of clean test rows, width
Outcome = dict[tuple[str, bool, float], tuple[float, float]]


def load(name: str, repeat: int) -> tuple[Array, Array]:
    if name == "synthetic":
        data = make_multitarget(600, outlier_ratio=0.0, noise=0.2, random_state=repeat)
        return data.X, data.T
    data = load_mulan(name, download_if_missing=False)
    return data.data, data.target


def spreads(T: Array) -> Array:
    low, high = np.quantile(T, [0.25, 0.75], axis=0)
    return np.where(high > low, high - low, T.std(axis=0))


def run(
    X: Array, T: Array, ratio: float, levels: list[float], n_hidden: int, repeat: int
) -> Outcome:
    rng = np.random.RandomState(repeat)
    learn, test = np.split(rng.permutation(len(X)), [round(len(X) * 2 / 3)])
    dirty, _ = contaminate(T[learn], ratio, random_state=rng)
    n_fit = len(learn) - round(len(learn) / 4)
    estimator = RobustELMRegressor(n_hidden=n_hidden, random_state=repeat)
    estimator.fit(X[learn[:n_fit]], dirty[:n_fit])
    outcome = {}
    for (mode, joint), clean in product(MODES.items(), (True, False)):
        model = ConformalRegressor(
            estimator, calibration="prefit", joint=joint, clean=clean, random_state=repeat
        ).fit(X[learn[n_fit:]], dirty[n_fit:])
        for level in levels:
            try:
                covered = model.covers(X[test], T[test], level).mean()
                ends = model.predict_interval(X[test[:1]], level)
                outcome[mode, clean, level] = covered, np.mean(np.ptp(ends[0], axis=1) / spreads(T))
            except ValueError:  # too few rows for this level
                outcome[mode, clean, level] = np.nan, np.nan
    return outcome


def figures(outcomes: list[Outcome], key: tuple[str, bool, float]) -> tuple[float, float, float]:
    """Return mean coverage, its standard error and mean width over the repeats."""
    coverage, width = np.array([outcome[key] for outcome in outcomes]).T
    error = coverage.std(ddof=1) / np.sqrt(len(coverage)) if len(coverage) > 1 else np.nan
    return float(coverage.mean()), float(error), float(width.mean())


def cells(outcomes: list[Outcome], mode: str, levels: list[float]) -> Iterator[str]:
    for level, clean in product(levels, (True, False)):
        coverage, error, width = figures(outcomes, (mode, clean, level))
        yield "-" if np.isnan(coverage) else f"{coverage:.3f} ({error:.3f}), {width:.2f}"


def table(results: dict[tuple[str, float], list[Outcome]], mode: str, levels: list[float]) -> None:
    print(f"\n## {mode}: coverage of clean rows (standard error), width\n")
    heads = [f"{level:g} {how}" for level, how in product(levels, ("cleaned", "not cleaned"))]
    print(f"| set | outliers | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for (name, ratio), outcomes in results.items():
        print(f"| {name} | {ratio:.0%} | {' | '.join(cells(outcomes, mode, levels))} |")


def summary(results: dict[tuple[str, float], list[Outcome]], levels: list[float]) -> None:
    print("\n## Over the sets with enough rows\n")
    heads = "cleaned | smallest | not cleaned | width not cleaned / cleaned"
    print(f"| intervals | level | outliers | sets | {heads} |\n|{'---|' * 8}")
    ratios = list(dict.fromkeys(ratio for _, ratio in results))
    for mode, level, ratio in product(MODES, levels, ratios):
        pairs = [
            [figures(outcomes, (mode, clean, level)) for clean in (True, False)]
            for (_, of), outcomes in results.items()
            if of == ratio
        ]
        pairs = [pair for pair in pairs if not np.isnan(pair).any(axis=None, where=[1, 0, 1])]
        if pairs:
            cleaned, plain = np.moveaxis(pairs, 1, 0)
            row = [mode, f"{level:g}", f"{ratio:.0%}", str(len(pairs))]
            row += [f"{cleaned[:, 0].mean():.3f}", f"{cleaned[:, 0].min():.3f}"]
            row += [f"{plain[:, 0].mean():.3f}", f"{gmean(plain[:, 2] / cleaned[:, 2]):.2f}"]
            print(f"| {' | '.join(row)} |")


def main() -> None:
    def numbers(text: str) -> list[float]:
        return [float(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=lambda text: text.split(","), default=SETS)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--ratios", type=numbers, default=[0.0, 0.2, 0.4])
    parser.add_argument("--levels", type=numbers, default=[0.8, 0.9, 0.95])
    parser.add_argument("--hidden", type=int, default=200, help="hidden nodes of each member")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of too few rows: the table says so
    results = defaultdict(list)
    with threadpool_limits(1):
        for name, ratio, repeat in product(args.sets, args.ratios, range(args.repeats)):
            X, T = load(name, repeat)
            results[name, ratio].append(run(X, T, ratio, args.levels, args.hidden, repeat))
    for mode in MODES:
        table(results, mode, args.levels)
    summary(results, args.levels)


if __name__ == "__main__":
    main()
