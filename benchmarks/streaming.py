"""A fit whose hidden outputs do not fit in memory, against one of a tenth of its rows in memory.

    python benchmarks/streaming.py                       # 2,000,000 rows, 64 inputs, 1000 nodes
    python benchmarks/streaming.py --rows 200000 --budget 400MB
    python benchmarks/streaming.py --robust              # RobustELM, from a memory map
    python benchmarks/streaming.py --cli --rows 10000000 --memory 4GB --effort fast --jobs 2

Each fit runs in its own process, whose peak resident memory is measured by the system (including
the interpreter and its libraries, about 0.2 GB). Seconds per row and iteration are those of the row
pass; passes over the inputs are counted. ``--cli`` writes a folder of Parquet files, lets ``gorelm
outliers`` find its wrong rows, and compares the time left that it says with the time it then takes.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N_FEATURES = 64
FILE_ROWS = 250_000
ENDING = 20  # seconds: the lines come every ten


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


def make_folder(folder, n_rows):
    """Write 10 inputs and 4 targets in float32, a fifth of the rows wrong, and which."""
    import pandas as pd
    from outside import interactions

    from gorelm.datasets import contaminate

    X, T = interactions(n_rows)
    T, wrong = contaminate(T, 0.2, random_state=0)
    names = [f"x{j}" for j in range(X.shape[1])], [f"y{j}" for j in range(T.shape[1])]
    for start in range(0, n_rows, FILE_ROWS):
        rows = slice(start, start + FILE_ROWS)
        frame = pd.DataFrame(X[rows].astype(np.float32), columns=names[0])
        frame[names[1]] = T[rows].astype(np.float32)
        frame.to_parquet(folder / f"{start:010d}.parquet", index=False)
    np.save(folder.parent / "wrong.npy", wrong)


def run_cli(folder, args):
    """Run a command; returns what it took, and the seconds left that it said at each time."""
    command = [sys.executable, "-m", "gorelm", "outliers", str(folder), "--targets", "4"]
    command += ["--out", str(folder.parent / "found.parquet"), "--progress"]
    for option in ("memory", "effort", "jobs"):
        if getattr(args, option):
            command += [f"--{option}", str(getattr(args, option))]
    command += ["--nodes", str(args.nodes)] if args.nodes else []
    print(" ".join(["gorelm", *command[3:]]), flush=True)
    start, said = time.perf_counter(), []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            match = re.search(r"about ([0-9.]+) (s|min|h) left", line)
            if match:
                left = float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]
                said.append((time.perf_counter() - start, left, line.strip()))
                if len(said) % 6 == 1:
                    print(line, end="", flush=True)
            else:
                print(line, end="", flush=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - start, usage, said


def measure_cli(args):
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = Path(place) / "table"
        folder.mkdir()
        # In another process: a child's peak memory counts that of its parent when it was started.
        make = [sys.executable, __file__, "--make", str(folder), "--rows", str(args.rows)]
        subprocess.run(make, check=True)
        wrong = np.load(Path(place) / "wrong.npy")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{args.rows:,} rows in {len(list(folder.iterdir()))} files, {size / 1e9:.2f} GB")
        seconds, usage, said = run_cli(folder, args)
        import pyarrow.parquet as parquet

        columns = ["gorelm.row", "gorelm.kind"]
        found = parquet.read_table(Path(place) / "found.parquet", columns=columns).to_pandas()
        flagged = np.zeros(args.rows, dtype=bool)
        flagged[found["gorelm.row"][found["gorelm.kind"] == "row"]] = True
    print(f"\n{'at':>8} {'said':>8} {'true':>8} {'ratio':>6}  what")
    shown, worst, when = -np.inf, 1.0, 0.0
    for at, left, line in said:
        true = seconds - at
        if at >= 60 and true >= ENDING:
            worst, when = max((worst, when), (max(left / true, true / max(left, 1e-9)), at))
        if at - shown >= seconds / 25:
            shown = at
            print(f"{at:7.0f}s {left:7.0f}s {true:7.0f}s {left / true:6.2f}  {line}")
    print(
        f"\n{seconds:.0f} s ({usage.ru_utime + usage.ru_stime:.0f} s of CPU), peak memory "
        f"{usage.ru_maxrss * 1024 / 1e9:.2f} GB; precision "
        f"{wrong[flagged].mean():.4f}, recall {flagged[wrong].mean():.4f} of wrong rows"
    )
    print(
        f"time left as said from the first minute on, until {ENDING} s before the end: within a "
        f"factor of {worst:.2f} (worst after {when:.0f} s)"
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
    parser.add_argument("--cli", action="store_true", help="gorelm outliers, on a folder")
    parser.add_argument("--memory", help="of --cli")
    parser.add_argument("--effort", help="of --cli")
    parser.add_argument("--jobs", type=int, help="of --cli")
    parser.add_argument("--make", type=Path)
    parser.add_argument("--folder", help="of --cli: where to write the table for a while")
    args = parser.parse_args()
    if args.make:
        make_folder(args.make, args.rows)
        return
    if args.cli:
        measure_cli(args)
        return
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
