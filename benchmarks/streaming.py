"""A fit whose hidden outputs do not fit in memory, against one of a tenth of its rows in memory.

    python benchmarks/streaming.py                       # 2,000,000 rows, 64 inputs, 1000 nodes
    python benchmarks/streaming.py --rows 200000 --budget 400MB
    python benchmarks/streaming.py --robust              # RobustELM, from a memory map

Each fit runs in its own process, whose peak resident memory is measured by the system (including
the interpreter and its libraries, about 0.2 GB). Seconds per row and iteration are those of the row
pass; passes over the inputs are counted.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N_FEATURES = 64


def make(folder, n_rows, m):
    """Write inputs (float32) and targets, a fifth of the rows wrong, block by block."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((N_FEATURES, m)) / 4
    X = np.lib.format.open_memmap(
        folder / "X.npy", mode="w+", dtype=np.float32, shape=(n_rows, N_FEATURES)
    )
    T = np.lib.format.open_memmap(folder / "T.npy", mode="w+", dtype=float, shape=(n_rows, m))
    for start in range(0, n_rows, 50_000):
        block = slice(start, min(start + 50_000, n_rows))
        x = rng.uniform(-1, 1, (block.stop - start, N_FEATURES))
        t = np.sin(x @ W) + 0.1 * rng.standard_normal((len(x), m))
        wrong = rng.random(len(x)) < 0.2
        t[wrong] += 5 * rng.standard_normal((wrong.sum(), m))
        X[block], T[block] = x, t
    X.flush()
    T.flush()


def make_interactions(folder, n_rows):
    """Write 10 inputs and 4 targets of functions of two and three inputs, a fifth of them wrong."""
    from outside import interactions

    from gorelm.datasets import contaminate

    X, T = interactions(n_rows)
    np.save(folder / "X.npy", X)
    np.save(folder / "T.npy", contaminate(T, 0.2, random_state=0)[0])


def child(folder, n_rows, n_hidden, budget):
    """Fit the first rows and print what it took."""
    from gorelm import GORELMRegressor
    from gorelm._solver.rows import BlockRows
    from gorelm.stream import RowBlocks

    spent, passes = [], []
    plain_step, plain_iter = BlockRows.step, RowBlocks.__iter__

    def timed_step(self, *args, **kwargs):
        start = time.perf_counter()
        result = plain_step(self, *args, **kwargs)
        spent.append(time.perf_counter() - start)
        return result

    def counted(self):
        passes.append(1)
        return plain_iter(self)

    BlockRows.step, RowBlocks.__iter__ = timed_step, counted
    X = np.load(folder / "X.npy", mmap_mode="r")[:n_rows]
    T = np.load(folder / "T.npy", mmap_mode="r")[:n_rows]
    model = GORELMRegressor(lam=1.0, n_hidden=n_hidden, memory_budget=budget, random_state=0)
    start = time.perf_counter()
    model.fit(X, np.array(T))
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "rows": n_rows,
                "seconds": seconds,
                "iterations": model.n_iter_,
                "gap": model.dual_gap_,
                "passes": len(passes),
                "us_per_row_iteration": 1e6 * float(np.median(spent)) / n_rows,
                "peak_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
            }
        )
    )


def robust_child(folder, n_rows, nodes, *, streamed):
    """Fit RobustELM to the first rows, from an array or from the file, and print what it took."""
    from gorelm import RobustELMRegressor
    from gorelm.stream import RowBlocks

    X = np.load(folder / "X.npy", mmap_mode="r")[:n_rows]
    T = np.array(np.load(folder / "T.npy", mmap_mode="r")[:n_rows])
    given = RowBlocks.from_array(X) if streamed else np.array(X)
    model = RobustELMRegressor(n_hidden=nodes or "auto", random_state=0)
    start, before = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    model.fit(given, T)
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "rows": n_rows,
                "seconds": seconds,
                "cpu_seconds": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before,
                "us_per_row": 1e6 * seconds / n_rows,
                "passes": getattr(given, "n_passes", None),
                "nodes": [m.hidden_.n_nodes for m in model.members_],
                "flagged": float(model.outlier_mask_.mean()),
                "steps": model.timings_,
                "peak_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
            }
        )
    )


def run_robust(folder, n_rows, nodes, *, streamed):
    command = [sys.executable, __file__, "--child", str(folder), "--rows", str(n_rows), "--robust"]
    command += ["--nodes", str(nodes), *(["--streamed"] if streamed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def run(folder, n_rows, n_hidden, budget):
    command = [sys.executable, __file__, "--child", str(folder), "--rows", str(n_rows)]
    command += ["--hidden", str(n_hidden), "--budget", budget]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--budget", default="3.4GB")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--robust", action="store_true", help="RobustELM, a tenth in memory")
    parser.add_argument("--nodes", type=int, default=0, help="of --robust; 0: as many as it takes")
    parser.add_argument("--streamed", action="store_true")
    args = parser.parse_args()
    if args.child and args.robust:
        robust_child(args.child, args.rows, args.nodes, streamed=args.streamed)
        return
    if args.child:
        child(args.child, args.rows, args.hidden, args.budget)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.robust:
            make_interactions(Path(folder), args.rows)
            part = run_robust(folder, args.rows // 10, args.nodes, streamed=False)
            print("in memory, a tenth:", part, flush=True)
            whole = run_robust(folder, args.rows, args.nodes, streamed=True)
            print("streamed, all rows:", whole)
            print(f"ratio of seconds per row {whole['us_per_row'] / part['us_per_row']:.2f}")
            return
        make(Path(folder), args.rows, args.targets)
        whole = 4e-9 * args.rows * args.hidden
        print(f"H would take {2 * whole:.1f} GB in float64, {whole:.1f} GB in float32")
        for _ in range(args.repeats):
            in_memory = run(folder, args.rows // 10, args.hidden, "1000GB")
            streamed = run(folder, args.rows, args.hidden, args.budget)
            print("in memory, a tenth:", in_memory)
            print("streamed, all rows:", streamed)
            ratio = streamed["us_per_row_iteration"] / in_memory["us_per_row_iteration"]
            extra = streamed["passes"] - streamed["iterations"]
            print(
                f"ratio of seconds per row and iteration {ratio:.2f}, peak memory "
                f"{streamed['peak_GB']:.2f} GB, {streamed['iterations']} iterations and {extra} "
                "passes besides",
                flush=True,
            )


if __name__ == "__main__":
    main()
