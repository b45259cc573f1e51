"""The same public calls with the gorelm of two checkouts, in turns.

    GORELM_DATA=folder python benchmarks/versions.py --before DIR [--repeats 3]
        [--only solver,path,growing,streaming,cluster,gpu]

DIR is another checkout of gorelm. The cases are those of the benchmarks of the same names, as far
as both versions have a public name for them. Every case has a process of its own for each version,
which calls it once to warm up, then for at least a second; the processes of the two versions take
turns. BLAS has one thread. Seconds are CPU seconds of the process, for `cluster` and `gpu` (whose
work is elsewhere) wall-clock seconds; medians over the calls, then over the repeats. `cluster`
needs dask, `gpu` a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

NOW, BEFORE = "now", "before"
LEAST_SECONDS = 1.0  # that a case is repeated for
ELSEWHERE = ("cluster", "gpu")  # whose work is not this process's
Run = Callable[[], object]


# -- cases ----------------------------------------------------------------------------------------


def real(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two thirds of the rows of a Mulan set, 20 % of them wrong."""
    from gorelm.datasets import contaminate, load_mulan

    data = load_mulan(name)
    rows = np.random.RandomState(0).permutation(len(data.data))[: round(len(data.data) * 2 / 3)]
    return data.data[rows], contaminate(data.target[rows], 0.2, random_state=0)[0]


def waves(n_rows: int, n_inputs: int, n_targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of waves with noise, a fifth of the rows wrong."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n_rows, n_inputs))
    T = np.sin(X @ rng.standard_normal((n_inputs, n_targets)) / 4)
    T += 0.1 * rng.standard_normal(T.shape)
    T[: n_rows // 5] += 5 * rng.standard_normal((n_rows // 5, n_targets))
    return X, T


def fits(name: str, l1_ratio: float) -> Run:
    from gorelm import GORELMRegressor

    X, T = real(name)
    models = [
        GORELMRegressor(n_hidden=1000, lam=lam, l1_ratio=l1_ratio, random_state=0)
        for lam in (2.0**-8, 2.0**-3, 2.0**3)
    ]
    return lambda: [model.fit(X, T) for model in models]


def other_losses(name: str) -> Run:
    import gorelm

    X, T = real(name)
    kinds = (
        gorelm.ELMRegressor,
        gorelm.RELMRegressor,
        gorelm.ORELMRegressor,
        gorelm.GRELMRegressor,
    )
    return lambda: [kind(n_hidden=1000, random_state=0).fit(X, T) for kind in kinds]


def whole_path(name: str, l1_ratios: list[float]) -> Run:
    from gorelm.path import gorelm_path

    X, T = real(name)
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    A = np.random.default_rng(0).standard_normal((X.shape[1], 1000)) / np.sqrt(X.shape[1])
    low, middle, high = np.quantile(T, [0.25, 0.5, 0.75], axis=0)
    T = (T - middle) / np.maximum(high - low, 1e-12)
    return lambda: gorelm_path(np.tanh(X @ A), T, l1_ratios=l1_ratios)


def selection(name: str) -> Run:
    from gorelm import GORELMRegressorCV

    X, T = real(name)
    return lambda: GORELMRegressorCV(n_hidden=1000, random_state=0).fit(X, T)


def grown(kind: str, name: str) -> Run:
    import gorelm

    X, T = real(name)
    options = {"lam": 2.0**-3, "random_state": 0} if kind == "IGORELM" else {"random_state": 0}
    return lambda: getattr(gorelm, f"{kind}Regressor")(**options).fit(X, T)


def streamed(n_rows: int) -> Run:
    from gorelm import GORELMRegressor

    X, T = waves(n_rows, 64, 4)
    model = GORELMRegressor(n_hidden=500, memory_budget="100MB", random_state=0)
    return lambda: model.fit(X, T)


def on_workers(n_rows: int) -> Run:
    from distributed import Client, LocalCluster

    from gorelm import GORELMRegressor
    from gorelm.backends.dask import from_arrays

    cluster = LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=":0")
    client = Client(cluster)
    model = GORELMRegressor(n_hidden=500, tol=1e-12, max_iter=60, random_state=0)

    def run() -> None:
        model.fit(*from_arrays(*waves(n_rows, 20, 8), n_partitions=4))

    run.close = lambda: (client.close(), cluster.close())  # type: ignore[attr-defined]
    return run


def on_card(n_rows: int, n_hidden: int) -> Run:
    import torch

    from gorelm import GORELMRegressor

    X, T = (torch.tensor(a, dtype=torch.float32, device="cuda") for a in waves(n_rows, 64, 8))
    model = GORELMRegressor(n_hidden=n_hidden, random_state=0)

    def run() -> None:
        model.fit(X, T)
        torch.cuda.synchronize()

    return run


CASES: dict[str, tuple[Callable[..., Run], tuple[Any, ...]]] = {
    "solver: GOR-ELM, slump": (fits, ("slump", 0.0)),
    "solver: GOR-ELM, enb": (fits, ("enb", 0.0)),
    "solver: GOR-ELM, jura, l1_ratio 0.5": (fits, ("jura", 0.5)),
    "solver: GOR-ELM, rf1": (fits, ("rf1", 0.0)),
    "solver: GOR-ELM, rf1, l1_ratio 0.5": (fits, ("rf1", 0.5)),
    "solver: ELM, R-ELM, OR-ELM, GR-ELM, wq": (other_losses, ("wq",)),
    "path: rf1, 41 lams": (whole_path, ("rf1", [0.0])),
    "path: enb, 41 lams x 5 l1_ratios": (whole_path, ("enb", [0.0, 0.25, 0.5, 0.75, 1.0])),
    "path: selection, slump": (selection, ("slump",)),
    "path: selection, edm": (selection, ("edm",)),
    "growing: IGOR-ELM, rf1": (grown, ("IGORELM", "rf1")),
    "growing: IGOR-ELM, enb": (grown, ("IGORELM", "enb")),
    "growing: IR-ELM, rf1": (grown, ("IRELM", "rf1")),
    "streaming: 60,000 rows, 500 nodes": (streamed, (60_000,)),
    "cluster: 20,000 rows, 60 iterations": (on_workers, (20_000,)),
    "gpu: 100,000 rows, 1000 nodes": (on_card, (100_000, 1000)),
    "gpu: 1,000,000 rows, 1000 nodes": (on_card, (1_000_000, 1000)),
}


# -- runs -----------------------------------------------------------------------------------------


def work(name: str, folder: Path) -> None:
    """Time a case, after one call that is not counted, and leave the seconds in a folder."""
    warnings.simplefilter("ignore")
    make, args = CASES[name]
    run = make(*args)
    clock = time.perf_counter if name.split(":")[0] in ELSEWHERE else time.process_time
    run()
    took: list[float] = []
    while sum(took) < LEAST_SECONDS:
        start = clock()
        run()
        took.append(clock() - start)
    (folder / "seconds.json").write_text(json.dumps(median(took)))
    getattr(run, "close", lambda: None)()


def seconds(name: str, checkout: Path) -> float:
    """Return the seconds of a case with the gorelm of a checkout."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    path = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | dict.fromkeys(threads, "1") | {"PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--work", name, folder]
        subprocess.run(command, env=env, check=True)
        return float(json.loads((Path(folder) / "seconds.json").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="another checkout of gorelm")
    parser.add_argument("--only", type=lambda text: text.split(","), help="benchmarks, by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], Path(args.work[1]))
        return
    if args.before is None or not (args.before / "src" / "gorelm").is_dir():
        parser.error("--before must name a checkout with src/gorelm")
    checkouts = {BEFORE: args.before.resolve(), NOW: Path(__file__).resolve().parents[1]}
    chosen = [name for name in CASES if not args.only or name.split(":")[0] in args.only]
    if not chosen:
        parser.error(f"--only names no case: {', '.join(args.only)}")
    print("| case | before, s | now, s | now / before |\n|---|---|---|---|", flush=True)
    ratios = []
    for name in chosen:
        turns = [
            {which: seconds(name, checkout) for which, checkout in checkouts.items()}
            for _ in range(args.repeats)
        ]
        before, now = (median(turn[which] for turn in turns) for which in (BEFORE, NOW))
        ratios.append(now / before)
        print(f"| {name} | {before:.3f} | {now:.3f} | {now / before:.2f} |", flush=True)
    print(f"\nnow / before: geometric mean {geometric_mean(ratios):.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
