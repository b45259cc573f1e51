"""What a fit costs on this machine, as a formula; and what that means up to 10^9 rows, on paper.

    python benchmarks/cost.py            # measures, prints constants and the plan

Three things take time: H'H once (N L^2), the row pass in every iteration (N L m), and the linear
system in every iteration (L^2 m); each also reads its matrix, which is all that counts for few
columns (N L, N L, L^2). The constants are fitted to measured seconds by least squares of relative
errors; the largest relative error is printed.
"""

import argparse
import time
from functools import partial

import numpy as np
from scipy.optimize import nnls

from gorelm._solver.linalg import CholeskyFactor, gram
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows

SIZES = [(n, L, m) for n in (10_000, 40_000) for L in (250, 1000) for m in (2, 8, 16)]
WORKER_GB, CARD_GB, CARD_TB_PER_S = 48, 110, 3.2
TARGETS, NODES, ITERATIONS = 8, 1000, 30


def seconds(run, repeats):
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(repeats):
    """Return sizes with the seconds of H'H, a row pass and a linear system."""
    rng = np.random.default_rng(0)
    problem, rho, cap = Problem("l21", 1.0, 0.0, 1.0), np.ones(1), np.array([np.inf])
    table = []
    for n_rows, n_hidden, m in SIZES:
        H = rng.random((n_rows, n_hidden), dtype=np.float32)
        rows = MemoryRows(H, rng.standard_normal((n_rows, m)).astype(np.float32))
        rows.start(problem)
        B = rng.standard_normal((n_hidden, 1, m)) / n_hidden
        factor = CholeskyFactor(gram(H))
        runs = (
            partial(gram, H),
            partial(rows.step, B, problem, rho, 1.6, cap=cap),
            partial(factor.solve, np.ones(1), B),
        )
        table.append([seconds(run, repeats) for run in runs])
    return np.array(table)


def fitted(terms, times):
    """Return constants for the terms, and the largest relative error."""
    terms = np.stack(terms, axis=1)
    constants, _ = nnls(terms / times[:, None], np.ones(len(times)))
    return constants, float(np.abs(terms @ constants / times - 1).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sizes, table = np.array(SIZES, dtype=float), measure(args.repeats)
    N, L, m = sizes.T
    (g, h), e0 = fitted([N * L * L, N * L], table[:, 0])
    (a, b), e1 = fitted([N * L * m, N * L], table[:, 1])
    (c, d), e2 = fitted([L * L * m, L * L], table[:, 2])
    print("seconds, float32 rows, all BLAS threads of this machine:")
    print(f"  H'H            {g:.2e} N L^2 + {h:.2e} N L   (off by at most {e0:.0%})")
    print(f"  row pass       {a:.2e} N L m + {b:.2e} N L   (off by at most {e1:.0%})")
    print(f"  linear system  {c:.2e} L^2 m + {d:.2e} L^2   (off by at most {e2:.0%})")
    print(f"\n{NODES} nodes, {TARGETS} targets, {ITERATIONS} iterations, float32 rows:")
    print("rows     H       E, U, T   one machine in memory   workers of 48 GB, each   cards, each")
    for n in 10.0 ** np.arange(5, 10):
        H, state = 4e-9 * n * NODES, 12e-9 * n * TARGETS
        once = g * n * NODES**2 + h * n * NODES
        each = a * n * NODES * TARGETS + b * n * NODES
        workers = int(np.ceil((H + state) / WORKER_GB))
        cards = int(np.ceil((H + state) / CARD_GB))
        card = 2 * H / 1e3 / cards / CARD_TB_PER_S * ITERATIONS
        print(
            f"{n:7.0e} {H:6.1f} GB {state:6.1f} GB {once + ITERATIONS * each:12.0f} s"
            f"{workers:17d}, {(once + ITERATIONS * each) / workers:6.0f} s"
            f"{cards:12d}, {card:5.1f} s"
        )
    print(
        "(workers like this machine; cards hold 110 GB of rows and read H twice an iteration at "
        "3.2 TB/s, H'H not counted)"
    )


if __name__ == "__main__":
    main()
