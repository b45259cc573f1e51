"""Regularisation paths against separate fits, and the time of a full selection.

Run it with the Mulan data sets in the folder that GORELM_DATA names:

    python benchmarks/path.py [--only fits|lams|selection] [--set rf1] [--every 4] [--threads 1]

The separate fits are timed on every k-th lam of the grid (``--every``) and scaled up to all: the
grid has 205 points, and the published iteration runs into its limit of 1000 iterations on most.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

THREADS = argparse.ArgumentParser(add_help=False)
THREADS.add_argument("--threads", type=int, default=1)
N_THREADS = THREADS.parse_known_args()[0].threads
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(N_THREADS)

import numpy as np  # noqa: E402 (threads are pinned before NumPy loads)

from gorelm import GORELMRegressorCV  # noqa: E402
from gorelm._solver.admm import ADAPTIVE, PAPER, Settings  # noqa: E402
from gorelm._solver.prepared import solve  # noqa: E402
from gorelm._solver.problem import Problem  # noqa: E402
from gorelm.datasets import contaminate, load_mulan  # noqa: E402
from gorelm.path import Path, gorelm_path  # noqa: E402
from solver import hidden_problem  # noqa: E402

GAP = 1e-3
L1_RATIOS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
SMALL = ("andro", "atp1d", "atp7d", "edm", "jura", "oes10", "oes97", "scpf", "slump")


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def separate(
    H: np.ndarray, T: np.ndarray, path: Path, settings: Settings, every: int
) -> tuple[float, int, float, int]:
    """Seconds of one fit per grid point (scaled up), fits done, worst gap, fits short of GAP."""
    total, worst, short, lams = 0.0, 0.0, 0, path.lams[::every]
    for ratio in L1_RATIOS:
        for lam in lams:
            problem = Problem("l21", 1.0, lam * ratio, lam * (1 - ratio))
            took, fit = seconds(lambda p=problem: solve(H, T, p, settings=settings))
            total += took
            worst, short = max(worst, fit.dual_gap[0]), short + (fit.dual_gap[0] > GAP)
    return total * len(path.lams) / len(lams), len(lams) * len(L1_RATIOS), worst, short


def against_fits(name: str, every: int, every_paper: int) -> None:
    H, T = hidden_problem(name)
    print(f"\n## Path against separate fits: {name}, {H.shape[0]} x {H.shape[1]} x {T.shape[1]}")
    print("(20 % outliers; the path's default grid of 41 lams, 5 l1_ratios; relative gap 1e-3)\n")

    def whole() -> tuple[float, Path]:
        return seconds(lambda: gorelm_path(H, T, l1_ratios=L1_RATIOS, tol=GAP))

    times = []  # before, between and after the separate fits: machines are not equally fast always
    took, path = whole()
    times.append(took)
    print("| what | fits timed | seconds for the whole grid | times the path | short of the gap |")
    print("|---|---|---|---|---|")
    paper = replace(PAPER, stop="gap", tol=GAP)
    found = []
    for what, settings, step in (
        ("separate, adaptive", replace(ADAPTIVE, tol=GAP), every),
        ("separate, published iteration", paper, every_paper),
    ):
        found.append((what, *separate(H, T, path, settings, step)))
        times.append(whole()[0])
    took = float(np.median(times))
    short = int((path.dual_gap > GAP).sum())
    print(f"| path (median of {len(times)}) | {path.n_iter.size} | {took:.1f} | 1 | {short} |")
    for what, total, fits, _, short in found:
        print(f"| {what} | {fits} | {total:.1f} | {total / took:.1f} | {short} |")
    print(
        f"\niterations of the path: {path.n_iter.sum()} over {path.n_iter.size} problems, "
        f"{(path.n_iter == 0).sum()} of them certified where they began"
    )


def against_lams(name: str) -> None:
    H, T = hidden_problem(name)
    print(f"\n## Cost against the number of lams: {name}, l1_ratio 0 and 0.5\n")
    print("| lams | seconds | times one lam |")
    print("|---|---|---|")
    largest = gorelm_path(H, T, l1_ratios=[0.5], n_lams=1, max_iter=1).lams[0]
    first = None
    for count in (1, 5, 11, 21, 41):
        # One lam: the middle of the range, neither the easiest nor the hardest.
        lams = [largest * 1e-3] if count == 1 else np.geomspace(largest, largest * 1e-6, count)
        took, _ = seconds(lambda lams=lams: gorelm_path(H, T, lams, [0.0, 0.5], tol=GAP))
        first = first or took
        print(f"| {count} | {took:.2f} | {took / first:.1f} |", flush=True)


def selection(sets: list[str], n_jobs: int) -> None:
    print(f"\n## Full 5-fold selection over 41 lams x 5 l1_ratios, {n_jobs} processes")
    print("(1000 hidden nodes; two thirds of the rows, 20 % of them outliers)\n")
    print("| set | rows x targets | seconds | lam | l1_ratio |")
    print("|---|---|---|---|---|")
    for name in sets:
        data = load_mulan(name)
        rows = np.random.default_rng(0).permutation(len(data.data))[: len(data.data) * 2 // 3]
        T, _ = contaminate(data.target[rows], 0.2, random_state=0)
        model = GORELMRegressorCV(l1_ratios=L1_RATIOS, n_jobs=n_jobs, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            took, _ = seconds(lambda m=model, X=data.data[rows], T=T: m.fit(X, T))
        size = f"{len(rows)} x {T.shape[1]}"
        print(
            f"| {name} | {size} | {took:.1f} | {model.lam_:.2g} | {model.l1_ratio_} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, parents=[THREADS])
    parser.add_argument("--only", choices=["fits", "lams", "selection"])
    parser.add_argument("--set", default="rf1")
    parser.add_argument("--sets", default=",".join(SMALL), help="for the selection")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--every-paper", type=int, default=10)
    parser.add_argument("--n-jobs", type=int, default=2)
    args = parser.parse_args()
    parts = {
        "fits": lambda: against_fits(args.set, args.every, args.every_paper),
        "lams": lambda: against_lams(args.set),
        "selection": lambda: selection(args.sets.split(","), args.n_jobs),
    }
    for name, run in parts.items():
        if args.only in (None, name):
            run()


if __name__ == "__main__":
    main()
