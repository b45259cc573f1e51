"""Fits on a Dask cluster of processes on this machine: the time of an iteration and its parts.

    python benchmarks/cluster.py [--workers 2] [--rows 20000] [--iterations 60] [--repeats 3]
    python benchmarks/cluster.py --plot out/dask.png     # the picture of docs/results/dask.csv
    python benchmarks/cluster.py --robust [--rows 20000] # passes of RobustELM, 1, 2 and 4 workers

It also prints by how much the memory of the workers grows in a fit.

The time of an iteration is that from one step of the rows to the next, with everything between them
(solving for the weights, certificates, checkpoints). The row work is that of the slowest worker,
measured on the worker; the rest is the overhead: messages and the work of the client's process.
Medians over the iterations, then over repeats; also the tenth percentile of the overhead, which
depends less on other load of the machine.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import resource
import time
import warnings
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402 (threads are pinned before NumPy loads)
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

from gorelm import GORELMRegressor  # noqa: E402
from gorelm.backends.dask import from_arrays  # noqa: E402

N_HIDDEN, N_TARGETS, N_INPUTS = 500, 8, 20
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "dask.csv"
MEASURED = ("iteration", "row_work", "overhead", "overhead_10")
COLUMNS = ("sweep", "n_rows", "n_partitions", "n_workers", *MEASURED)


class Steps(logging.Handler):
    """When steps of the rows ended, and how long the slowest worker worked on each."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.ends: list[float] = []
        self.work: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a step."""
        if isinstance(record.args, tuple) and record.args[0] == "step":
            self.ends.append(time.perf_counter())
            self.work.append(float(record.args[2]))  # type: ignore[arg-type]


def data(n_rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n_rows, N_INPUTS))
    T = np.tanh(X @ rng.standard_normal((N_INPUTS, N_TARGETS)))
    T += 0.1 * rng.standard_t(2, T.shape)
    return X, T


def measure(n_rows: int, n_partitions: int, iterations: int) -> list[float]:
    """Return seconds of an iteration, of its row work, and of the rest (median and decile)."""
    steps, logger = Steps(), logging.getLogger("gorelm.dask")
    logger.addHandler(steps)
    logger.setLevel(logging.DEBUG)
    X, y = from_arrays(*data(n_rows), n_partitions=n_partitions)
    model = GORELMRegressor(
        lam=1.0, n_hidden=N_HIDDEN, tol=1e-12, max_iter=iterations, random_state=0
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
    finally:
        logger.removeHandler(steps)
    took, work = np.diff(steps.ends)[3:], np.array(steps.work)[4:]
    medians = [float(np.median(values)) for values in (took, work, took - work)]
    return [*medians, float(np.quantile(took - work, 0.1))]


def memory(client: Any, n_rows: int, n_partitions: int) -> tuple[float, float]:
    """Return the bytes that a worker's process grew by at most, and what the guide's formula says.

    One worker holds n of the rows: n (L + d) numbers of H and X; 9 n m of targets, E, U, what a
    certificate takes and the copy of a neighbour's E and U; 3 L^2 while H'H is summed up.
    """
    import psutil

    before = client.run(lambda: psutil.Process().memory_info().rss)
    measure(n_rows, n_partitions, 45)
    after = client.run(lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    n = n_rows / len(before)
    formula = 8 * (n * (N_HIDDEN + N_INPUTS) + 9 * n * N_TARGETS + 3 * N_HIDDEN**2)
    return max(after[worker] - before[worker] for worker in before), formula


def run(workers: int, n_rows: int, iterations: int, repeats: int) -> list[dict[str, Any]]:
    from distributed import Client, LocalCluster

    cases = [("partitions", n_rows, p) for p in (workers, 2 * workers, 4 * workers, 8 * workers)]
    cases += [("rows", n_rows * k // 4, 2 * workers) for k in (1, 2, 4, 8)]
    records = []
    with (
        LocalCluster(workers, threads_per_worker=1, processes=True, dashboard_address=":0") as here,
        Client(here) as client,
    ):
        measure(2000, workers, 10)  # workers import what they need
        grown, formula = memory(client, 4 * n_rows, 2 * workers)
        for sweep, rows, partitions in cases:
            figures = [measure(rows, partitions, iterations) for _ in range(repeats)]
            medians = np.median(figures, axis=0)
            values = (sweep, rows, partitions, workers, *(f"{m:.6f}" for m in medians))
            records.append(dict(zip(COLUMNS, values, strict=True)))
            print(
                f"| {sweep} | {rows} | {partitions} | "
                + " | ".join(f"{1e3 * m:.1f}" for m in medians)
                + " |",
                flush=True,
            )
    print(f"\nmemory of a worker at {4 * n_rows} rows: {grown / 1e6:.0f} MB", end="")
    print(f" (the formula: {formula / 1e6:.0f} MB)")
    return records


def time_row_work(name: str) -> None:
    """On a worker: note the seconds of every call of a method of the rows, and of nothing else."""
    from gorelm.backends.inputs import InMemory

    method = getattr(InMemory, name)

    def timed(self: Any, *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(self, *args)
        finally:
            InMemory.seconds += time.perf_counter() - start  # type: ignore[attr-defined]

    setattr(InMemory, name, timed)
    InMemory.seconds = 0.0  # type: ignore[attr-defined]


def row_work() -> float:
    """On a worker: return the seconds since the last call."""
    from gorelm.backends.inputs import InMemory

    seconds, InMemory.seconds = InMemory.seconds, 0.0  # type: ignore[attr-defined]
    return float(seconds)


def passes(n_rows: int, workers: int, repeats: int) -> dict[str, list[tuple[float, ...]]]:
    """Return, of every kind of pass of RobustELM, three figures for each repeat.

    Its seconds, those of the slowest worker's rows, and seconds of CPU of the process with the
    client and the scheduler, which depend less on what else the machine does.
    """
    import dask.array as da
    from distributed import Client, LocalCluster

    from gorelm._features.layer import HiddenLayer
    from gorelm.backends.dask.inputs import Partitions

    X, T = data(n_rows)
    hidden = HiddenLayer.draw(N_HIDDEN, N_INPUTS, random_state=0)
    omega, some = np.ones(n_rows), np.sort(np.random.default_rng(0).permutation(n_rows)[:1000])
    folds = [np.arange(k, n_rows, 4) for k in range(4)]
    coefs = [np.zeros((N_HIDDEN + 1, N_TARGETS))] * 4
    found: dict[str, list[tuple[float, ...]]] = {}
    with (
        LocalCluster(workers, threads_per_worker=1, processes=True, dashboard_address=":0") as here,
        Client(here) as client,
    ):
        parts = Partitions(da.from_array(X, chunks=(-(-n_rows // (2 * workers)), -1)))
        rows = parts.scaled(parts.scaling(omega, omega > 0))
        for name, call in {
            "take": lambda: rows._taken(some),  # not what is remembered
            "sums": lambda: rows.sums(hidden, folds, omega, T),
            "outputs": lambda: rows.outputs(hidden, folds, coefs),
        }.items():
            client.run(time_row_work, name)
            call()
            for _ in range(repeats):
                client.run(row_work)
                start, before = time.perf_counter(), time.process_time()
                call()
                seconds, cpu = time.perf_counter() - start, time.process_time() - before
                work = max(client.run(row_work).values())
                found.setdefault(name, []).append((seconds, work, cpu))
    return found


def megabytes(n_rows: int) -> dict[str, tuple[float, float]]:
    """Return what travels in each kind of pass at least: to the workers, and from them."""
    of_sums = 4 * 8 * (N_HIDDEN + 1) * ((N_HIDDEN + 2) / 2 + N_TARGETS)  # four folds
    of_rows = 8 * n_rows * (1 + 1 + N_TARGETS)  # numbers of rows, their weights and targets
    return {
        "take": (0.008, 1e-6 * 8 * 1000 * N_INPUTS),
        "sums": (1e-6 * of_rows, 1e-6 * of_sums),
        "outputs": (1e-6 * 8 * n_rows, 1e-6 * 8 * n_rows * N_TARGETS),
    }


def run_robust(n_rows: int, repeats: int) -> None:
    print(
        "| workers | pass | ms | work of the slowest worker | overhead | tenth percentile | CPU | "
        "MB there | MB back |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    totals, travels = {}, megabytes(n_rows)
    for workers in (1, 2, 4):
        found = passes(n_rows, workers, repeats)
        for name, measured in found.items():
            took, work, cpu = np.array(measured).T
            figures = np.median(took), np.median(work), np.median(took - work)
            figures += np.quantile(took - work, 0.1), np.median(cpu)
            cells = " | ".join(f"{1e3 * value:.1f}" for value in figures)
            there, back = travels[name]
            print(f"| {workers} | {name} | {cells} | {there:.2f} | {back:.2f} |", flush=True)
        totals[workers] = sum(float(np.median(np.array(m)[:, 1])) for m in found.values())
    cores = len(os.sched_getaffinity(0))
    print("\nNext to nothing travels for `take`: its overhead is that of a request and its answer.")
    print(f"work of the slowest worker, 1 against 4: {totals[1] / totals[4]:.2f} times, ", end="")
    print(f"on {cores} cores, load {os.getloadavg()[0]:.1f}")


def cost_model(records: list[dict[str, Any]]) -> tuple[float, float]:
    """Fit seconds per iteration = a + b N L m / workers, by least squares of relative errors."""
    y = np.array([float(r["iteration"]) for r in records])
    size = [int(r["n_rows"]) * N_HIDDEN * N_TARGETS / int(r["n_workers"]) for r in records]
    A = np.column_stack([np.ones(len(y)), size])
    a, b = np.linalg.lstsq(A / y[:, None], np.ones(len(y)), rcond=None)[0]
    return float(a), float(b)


def read() -> list[dict[str, Any]]:
    with RESULTS.open() as file:
        return list(csv.DictReader(file))


def plot(records: list[dict[str, Any]]) -> Any:
    """Draw seconds of an iteration against rows and against partitions; returns the figure."""
    import matplotlib.pyplot as plt

    a, b = cost_model(records)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, sweep in zip(axes, ("rows", "partitions"), strict=True):
        chosen = [r for r in records if r["sweep"] == sweep]
        x = np.array([int(r[f"n_{sweep}"]) for r in chosen])
        for name in MEASURED[:3]:
            axis.plot(x, [1e3 * float(r[name]) for r in chosen], "o-", label=name.replace("_", " "))
        axis.set_xlabel(sweep)
        if sweep == "rows":
            fit = a + b * x * N_HIDDEN * N_TARGETS / int(chosen[0]["n_workers"])
            axis.plot(x, 1e3 * fit, "k--", label="cost model")
    axes[0].set_ylabel("ms per iteration")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="draw the figures of the last run to this file")
    parser.add_argument("--robust", action="store_true", help="passes of RobustELM")
    options = parser.parse_args()
    if options.robust:
        print(f"L = {N_HIDDEN}, m = {N_TARGETS}, {options.rows} rows; ms per pass\n")
        run_robust(options.rows, max(options.repeats, 10))
        return
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        plot(read()).savefig(options.plot, dpi=150)
        return
    print(
        f"L = {N_HIDDEN}, m = {N_TARGETS}, {options.workers} worker processes; ms per iteration\n"
    )
    print("| sweep | rows | partitions | iteration | row work | overhead | its tenth percentile |")
    print("|---|---|---|---|---|---|---|")
    records = run(options.workers, options.rows, options.iterations, options.repeats)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    a, b = cost_model(records)
    print(f"\nseconds per iteration = {a:.2g} + {b:.2g} N L m / workers")


if __name__ == "__main__":
    main()
