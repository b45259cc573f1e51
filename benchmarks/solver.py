"""Speed and memory of the solver, as ratios against named baselines, in one run.

    GORELM_DATA=folder python benchmarks/solver.py [--sets slump,jura] [--repeats 3] [--only ridge]

Medians of repeats, BLAS held to one thread, every figure of one line measured in the same process.
Contaminated real data: two thirds of the rows, 20 % of them replaced by the paper's rule, sigmoid
nodes, L = 1000. The three lams are the quartiles of those that the paper's grid search
chose for GOR-ELM over its fifteen data sets (published table of parameters).
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from scipy import linalg
from scipy.linalg import blas
from scipy.special import expit
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gorelm import (
    ELMRegressor,
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
)
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._solver.admm import ADAPTIVE, PAPER
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm.datasets import contaminate, load_mulan

SETS = ("enb", "jura", "slump", "wq", "rf1", "scm20d")
LAMS = (2.0**-8, 2.0**-3, 2.0**3)
GAP = 1e-3


def hidden_problem(name: str, n_hidden: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    data = load_mulan(name)
    rng = check_random_state(0)
    rows = rng.permutation(len(data.data))[: round(len(data.data) * 2 / 3)]
    X = data.data[rows]
    T, _ = contaminate(data.target[rows], 0.2, random_state=rng)
    w = np.ones(len(X))
    X, _ = Scaling.fit("minmax", X, w).apply(X)
    T, _ = Scaling.fit("robust", T, w).apply(T)
    layer = HiddenLayer.draw(n_hidden, X.shape[1], random_state=0)
    return layer.transform(X), T


def seconds(run: Callable[[], Any], repeats: int, warm_up: int = 0) -> tuple[float, Any]:
    times = []
    for _ in range(warm_up):
        run()
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return median(times), result


def interleaved(
    one: Callable[[], Any], other: Callable[[], Any], repeats: int
) -> tuple[tuple[float, Any], tuple[float, Any]]:
    """Median seconds and result of both, run in turns so that a noisy moment hits both."""
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        (a, result), (b, other_result) = seconds(one, 1), seconds(other, 1)
        times.append((a, b))
    ours, theirs = zip(*times, strict=True)
    return (median(ours), result), (median(theirs), other_result)


def against_paper(sets: list[str], repeats: int) -> None:
    print(f"\n## Adaptive against paper configuration, both to a relative gap of {GAP:g}")
    print("(>: the paper configuration had not got there after its 1000 iterations)\n")
    print("| set | N x L x m | l1_ratio | lam | adaptive s (it) | paper s (it, gap) | ratio |")
    print("|---|---|---|---|---|---|---|")
    paper = replace(PAPER, stop="gap", tol=GAP)
    ratios = []
    for name in sets:
        H, T = hidden_problem(name)
        size = f"{H.shape[0]} x {H.shape[1]} x {T.shape[1]}"
        for l1_ratio in (0.0, 0.5):
            for lam in LAMS:
                problem = Problem("l21", 1.0, lam * l1_ratio, lam * (1 - l1_ratio))
                (ours, a), (theirs, b) = interleaved(
                    lambda p=problem, H=H, T=T: solve(H, T, p, settings=ADAPTIVE),
                    lambda p=problem, H=H, T=T: solve(H, T, p, settings=paper),
                    repeats,
                )
                assert a.dual_gap[0] <= GAP
                ratios.append(theirs / ours)
                more = "" if b.dual_gap[0] <= GAP else ">"
                print(
                    f"| {name} | {size} | {l1_ratio} | 2^{np.log2(lam):.0f} | {ours:.4f} "
                    f"({a.n_iter[0]}) | {theirs:.4f} ({b.n_iter[0]}, {b.dual_gap[0]:.0e}) | "
                    f"{more}{theirs / ours:.1f} |",
                    flush=True,
                )
    print(
        f"\ngeometric mean {geometric_mean(ratios):.1f} (a lower bound: where marked > the paper's "
        f"time is that of its limit), smallest {min(ratios):.2f}"
    )


def against_cvxpy(sets: list[str], repeats: int) -> None:
    import cvxpy as cp

    print(f"\n## Adaptive against CVXPY with Clarabel, both to a relative gap of {GAP:g}")
    print("(after one run to warm up; in brackets Clarabel's own time, without CVXPY's)\n")
    print(
        "| set | l1_ratio | lam | adaptive s | CVXPY + Clarabel s | ratio | objectives differ by |"
    )
    print("|---|---|---|---|---|---|---|")
    ratios, own_ratios = [], []
    for name in sets:
        H, T = hidden_problem(name)
        for l1_ratio in (0.0, 0.5):
            lam = LAMS[1]
            problem = Problem("l21", 1.0, lam * l1_ratio, lam * (1 - l1_ratio))
            ours, a = seconds(
                lambda p=problem, H=H, T=T: solve(H, T, p, settings=ADAPTIVE), repeats, warm_up=1
            )
            B = cp.Variable((H.shape[1], T.shape[1]))
            objective = cp.sum(cp.norm(H @ B - T, 2, axis=1))
            objective += lam * (1 - l1_ratio) / 2 * cp.sum_squares(B)
            if l1_ratio:
                objective += lam * l1_ratio * cp.sum(cp.norm(B, 2, axis=1))
            other = cp.Problem(cp.Minimize(objective))
            own = []

            def by_cvxpy(other: Any = other, own: list[float] = own) -> None:
                other.solve(
                    solver=cp.CLARABEL,
                    tol_gap_rel=GAP,
                    tol_gap_abs=0.0,
                    tol_feas=1e-6,
                    max_threads=1,
                )
                own.append(other.solver_stats.solve_time)

            theirs, _ = seconds(by_cvxpy, repeats, warm_up=1)
            ratios.append(theirs / ours)
            own_ratios.append(median(own) / ours)
            difference = (a.objective[0] - other.value) / other.value
            assert abs(difference) <= GAP
            print(
                f"| {name} | {l1_ratio} | 2^{np.log2(lam):.0f} | {ours:.4f} | {theirs:.2f} "
                f"({median(own):.2f}) | {ratios[-1]:.0f} ({own_ratios[-1]:.0f}) | "
                f"{difference:+.1e} |",
                flush=True,
            )
    print(
        f"\ngeometric mean {geometric_mean(ratios):.0f} ({geometric_mean(own_ratios):.0f}), "
        f"smallest {min(ratios):.0f} ({min(own_ratios):.0f})"
    )


def blocked_ridge(X: np.ndarray, T: np.ndarray, A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute a ridge ELM by hand: hidden block, syrk, next block; Cholesky."""
    G = np.zeros((len(A), len(A)), order="F")
    HtT = np.zeros((len(A), T.shape[1]))
    for start in range(0, len(X), 1024):
        H = X[start : start + 1024] @ A.T
        H += b
        expit(H, out=H)
        G = blas.dsyrk(1.0, H.T, beta=1.0, c=G, lower=1, overwrite_c=1)
        HtT += H.T @ T[start : start + 1024]
    G.flat[:: len(G) + 1] += 1.0
    return linalg.cho_solve(
        linalg.cho_factor(G, lower=True, overwrite_a=True, check_finite=False),
        HtT,
        check_finite=False,
    )


def ridge(repeats: int) -> None:
    print("\n## R-ELM (ridge) against a hand-written blocked syrk + Cholesky")
    print("(N = 10000, n = 64, L = 1000, m = 16; the estimator also validates, scales and judges")
    print("rows; the hidden layer is part of both)\n")
    rng = check_random_state(0)
    X, T = rng.uniform(-1, 1, (10000, 64)), rng.standard_normal((10000, 16))
    model = RELMRegressor(C=1.0, random_state=0)
    model.fit(X, T)
    layer = model.hidden_
    (ours, _), (theirs, _) = interleaved(
        lambda: model.fit(X, T), lambda: blocked_ridge(X, T, layer.A, layer.b), repeats
    )
    print(f"ours {ours:.3f} s, by hand {theirs:.3f} s, ratio {ours / theirs:.3f}")


def memory() -> None:
    print("\n## Peak memory of a fit beyond X and T")
    print("(L^2 = one L x L float64 matrix)\n")
    print("| fit | size of H (MB) | peak (MB) | (peak - 3 L^2) / H |")
    print("|---|---|---|---|")
    rng = check_random_state(0)
    n_rows, n_hidden = 20000, 1000
    X, T = rng.uniform(-1, 1, (n_rows, 64)), rng.standard_normal((n_rows, 16))
    w = rng.uniform(0.5, 1.5, n_rows)
    seed = {"random_state": 0}
    for label, model, weight in (
        ("GOR-ELM", GORELMRegressor(1.0, **seed), None),
        ("GOR-ELM, l1_ratio 0.5", GORELMRegressor(1.0, l1_ratio=0.5, **seed), None),
        ("GOR-ELM, weights", GORELMRegressor(1.0, **seed), w),
        ("OR-ELM", ORELMRegressor(1.0, **seed), None),
        ("GR-ELM", GRELMRegressor(1.0, **seed), None),
        ("R-ELM", RELMRegressor(1.0, **seed), None),
        ("R-ELM, intercept", RELMRegressor(1.0, fit_intercept=True, **seed), None),
        ("ELM", ELMRegressor(**seed), None),
    ):
        tracemalloc.start()
        model.fit(X, T, weight)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size, square = n_rows * n_hidden * 8, n_hidden**2 * 8
        print(
            f"| {label} | {size / 1e6:.0f} | {peak / 1e6:.0f} | {(peak - 3 * square) / size:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["paper", "cvxpy", "ridge", "memory"])
    args = parser.parse_args()
    sets = args.sets.split(",")
    parts = {
        "paper": lambda: against_paper(sets, args.repeats),
        "cvxpy": lambda: against_cvxpy(
            [s for s in sets if s in ("slump", "jura", "enb")], args.repeats
        ),
        "ridge": lambda: ridge(max(9, args.repeats)),
        "memory": memory,
    }
    print(f"python {sys.version.split()[0]}, numpy {np.__version__}, one BLAS thread")
    with threadpool_limits(1):
        for name, part in parts.items():
            if args.only in (None, name):
                part()


if __name__ == "__main__":
    main()
