"""What each accelerator of the solver gains: every benchmark with it and without it.

    GORELM_DATA=folder python benchmarks/ablation.py [--only polish] [--repeats 3] [--threads 1]

An accelerator stays in the library if it makes a case that users have at least 1.5 times faster.
Cases: whole paths (41 lams; five l1_ratios, and without ridge), a five-fold search, networks that
grow, single fits. Runs with and without an accelerator alternate; medians of their CPU seconds,
which other work on the machine disturbs little. 20 % of the rows are outliers, the gap is 1e-3.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest import mock

THREADS = argparse.ArgumentParser(add_help=False)
THREADS.add_argument("--threads", type=int, default=1)
N_THREADS = THREADS.parse_known_args()[0].threads
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(N_THREADS)

import numpy as np  # noqa: E402 (threads are pinned before NumPy loads)
from growing import rows_of  # noqa: E402

from gorelm import GORELMRegressorCV, IGORELMRegressor  # noqa: E402
from gorelm._solver import certificate, grid  # noqa: E402
from gorelm._solver.prepared import solve  # noqa: E402
from gorelm._solver.problem import Problem  # noqa: E402
from gorelm.path import gorelm_path  # noqa: E402
from solver import hidden_problem  # noqa: E402

RATIOS = [0.0, 0.25, 0.5, 0.75, 1.0]
WORTH = 1.5


@contextmanager
def patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


OFF: dict[str, tuple[tuple[object, str, object], ...]] = {
    "polish": ((certificate.Polish, "where_it_pays", classmethod(lambda *_, **__: None)),),
    "working sets": ((grid, "WORKING_SET", 0.0),),
    "strictly feasible multipliers": ((grid.Grid, "_feasible", lambda *_: None),),
}


def path_of(name: str, ratios: list[float]) -> Callable[[], object]:
    H, T = hidden_problem(name)
    return lambda: gorelm_path(H, T, l1_ratios=ratios, tol=1e-3)


def search_of(name: str) -> Callable[[], object]:
    X, T = rows_of(name)
    model = GORELMRegressorCV(l1_ratios=RATIOS, random_state=0)
    return lambda: model.fit(X, T)


def growing_of(name: str, l1_ratio: float) -> Callable[[], object]:
    X, T = rows_of(name)
    model = IGORELMRegressor(lam=2.0**-3, l1_ratio=l1_ratio, random_state=0)
    return lambda: model.fit(X, T)


def fits_of(name: str) -> Callable[[], object]:
    H, T = hidden_problem(name)
    lams = [2.0**-6, 2.0**-2, 2.0**2]
    problems = [Problem("l21", 1.0, lam * a, lam * (1 - a)) for lam in lams for a in (0.0, 0.5)]
    return lambda: [solve(H, T, problem) for problem in problems]


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "path rf1, 5 l1_ratios": lambda: path_of("rf1", RATIOS),
    "path rf1, l1_ratio 0": lambda: path_of("rf1", [0.0]),
    "path rf1, l1_ratio 0.5": lambda: path_of("rf1", [0.5]),
    "path rf1, l1_ratio 1": lambda: path_of("rf1", [1.0]),
    "path enb, 5 l1_ratios": lambda: path_of("enb", RATIOS),
    "path enb, l1_ratio 1": lambda: path_of("enb", [1.0]),
    "search slump": lambda: search_of("slump"),
    "search jura": lambda: search_of("jura"),
    "growing rf1, l1_ratio 0": lambda: growing_of("rf1", 0.0),
    "growing rf1, l1_ratio 0.5": lambda: growing_of("rf1", 0.5),
    "growing scm20d, l1_ratio 0": lambda: growing_of("scm20d", 0.0),
    "growing enb, l1_ratio 0.5": lambda: growing_of("enb", 0.5),
    "single fits rf1": lambda: fits_of("rf1"),
    "single fits enb": lambda: fits_of("enb"),
    "single fits slump": lambda: fits_of("slump"),
}


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    return time.process_time() - start


def compare(run: Callable[[], object], off: list[str], repeats: int) -> dict[str, float]:
    """Median seconds as the library is (under ""), and without each accelerator."""
    times: dict[str, list[float]] = {"": [], **{name: [] for name in off}}
    for _ in range(repeats):
        for name, taken in times.items():
            with patched(*OFF.get(name, ())):
                taken.append(seconds(run))
    return {name: median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, parents=[THREADS])
    parser.add_argument("--only", choices=list(OFF), action="append")
    parser.add_argument("--case", help="only cases whose name has this in it")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    off = args.only or list(OFF)
    cases = {name: make for name, make in CASES.items() if not args.case or args.case in name}
    print("CPU seconds with all accelerators; how many times as many without each.")
    print(f"(An accelerator stays from {WORTH} on.)\n")
    print("| case | seconds |", " | ".join(off), "|")
    print("|---|---|" + "---|" * len(off))
    gains: dict[str, list[float]] = {name: [] for name in off}
    for case, make in cases.items():
        times = compare(make(), off, args.repeats)
        ratios = {name: times[name] / times[""] for name in off}
        for name, ratio in ratios.items():
            gains[name].append(ratio)
        cells = " | ".join(f"{ratios[name]:.2f}" for name in off)
        print(f"| {case} | {times['']:.2f} | {cells} |", flush=True)
    print("| largest | |", " | ".join(f"{np.max(gains[name]):.2f}" for name in off), "|")


if __name__ == "__main__":
    main()
