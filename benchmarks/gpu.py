"""Fits on a GPU: seconds, bandwidth and accuracy, against a plain PyTorch loop on the same card.

    python benchmarks/gpu.py --out docs/results/gpu.csv
    python benchmarks/gpu.py --robust            # RobustELM on 1,000,000 rows, 20 % of them wrong

The time starts when the inputs are on the card: hidden outputs, H'H, its factor, 200 iterations
with their certificates, and the copy of the weights to the host. Medians of repeats, after one fit
that compiles the kernels. Objectives are compared with that of a float64 fit on the card to a
certified gap of 1e-6 and, up to N = 100,000, with that of a float64 fit on the CPU.
"""

import argparse
import csv
import time

import numpy as np
import torch

from gorelm._features.layer import HiddenLayer
from gorelm._solver.admm import Settings
from gorelm._solver.prepared import solve, solve_rows
from gorelm._solver.problem import Problem
from gorelm.backends.torch.layer import DeviceLayer
from gorelm.backends.torch.rows import TorchRows, held

N_FEATURES, LAM, ITERATIONS = 64, 1.0, 200


def make(n_rows, m, seed=0):
    """Make inputs and targets on the card, a fifth of the rows wrong."""
    torch.manual_seed(seed)
    X = torch.rand(n_rows, N_FEATURES, device="cuda") * 2 - 1
    W = torch.randn(N_FEATURES, m, device="cuda") / 4
    T = torch.sin(X @ W) + 0.1 * torch.randn(n_rows, m, device="cuda")
    wrong = torch.rand(n_rows, device="cuda") < 0.2
    T[wrong] += 5 * torch.randn(int(wrong.sum()), m, device="cuda")
    return X, T


def fit(X, T, layer, problem, settings):
    rows = TorchRows(held(layer, X), T, layer.n_outputs)
    return rows, solve_rows(rows, problem, settings=settings)


def plain(X, T, layer, lam, n_iter):
    """Do the plain iteration: two products with H and a triangular solve."""
    H = DeviceLayer(layer, X)(X)
    rho = 1.0
    G = H.T.double() @ H.double() if len(H) < 200_000 else gram(H)
    C = torch.linalg.cholesky(G + lam / rho * torch.eye(len(G), dtype=G.dtype, device=G.device))
    E, U = torch.zeros_like(T), torch.zeros_like(T)
    for _ in range(n_iter):
        B = torch.cholesky_solve((H.T @ (T + E - U)).double(), C).float()
        V = H @ B - T + U
        norms = V.norm(dim=1, keepdim=True)
        E = V * (1 - (1 / rho) / norms.clamp(min=1 / rho))
        U = V - E
    return B.cpu()


def gram(H):
    G = torch.zeros(H.shape[1], H.shape[1], dtype=torch.float64, device="cuda")
    for start in range(0, len(H), 65536):
        h = H[start : start + 65536].double()
        G.addmm_(h.T, h)
    return G


def seconds(run, repeats):
    run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def roof():
    """Bytes per second that a copy on this card reads and writes."""
    a = torch.empty(2**30, dtype=torch.float32, device="cuda")
    b = torch.empty_like(a)
    return 20 * 2 * a.nbytes / (20 * seconds(lambda: b.copy_(a), 5))


def one(n_rows, n_hidden, m, repeats, copy_speed, *, on_cpu):
    X, T = make(n_rows, m)
    layer = HiddenLayer.draw(n_hidden, N_FEATURES, random_state=0)
    problem = Problem("l21", 1.0, 0.0, LAM)
    every = Settings(stop="never", max_iter=ITERATIONS)
    spent = seconds(lambda: fit(X, T, layer, problem, every), repeats)
    none = seconds(lambda: fit(X, T, layer, problem, Settings(stop="never", max_iter=1)), repeats)
    rows, found = fit(X, T, layer, problem, every)
    converged = fit(X, T, layer, problem, Settings())[1]
    del rows
    baseline = seconds(lambda: plain(X, T, layer, LAM, ITERATIONS), max(1, repeats // 2))
    torch.cuda.empty_cache()
    exact_rows, exact = fit(X.double(), T.double(), layer, problem, Settings(tol=1e-6))
    objective = exact_rows.loss(found.coef, problem)[0] + problem.penalty_values(found.coef)
    objective_tol = exact_rows.loss(converged.coef, problem)[0] + problem.penalty_values(
        converged.coef
    )
    del exact_rows
    torch.cuda.empty_cache()
    optimum, bound = exact.objective[0], exact.bound[0]
    per_iteration = (spent - none) / (ITERATIONS - 1)
    record = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": n_rows,
        "hidden": n_hidden,
        "targets": m,
        "seconds": round(spent, 4),
        "seconds_before_iterating": round(none, 4),
        "ms_per_iteration": round(1e3 * per_iteration, 4),
        "plain_seconds": round(baseline, 4),
        "ratio": round(baseline / spent, 2),
        "bytes_of_H": 4 * n_rows * n_hidden,
        # H is read twice in an iteration, by the two products.
        "GB_per_s": round(8 * n_rows * n_hidden / per_iteration / 1e9),
        "copy_GB_per_s": round(copy_speed / 1e9),
        "excess_after_200": float(objective[0] / optimum - 1),
        "excess_at_tol_1e-3": float(objective_tol[0] / optimum - 1),
        "iterations_to_1e-3": converged.n_iter[0],
        "optimum_gap": float(1 - bound / optimum),
    }
    if on_cpu:
        H = DeviceLayer(layer, X)(X).double().cpu().numpy()
        cpu = solve(H, T.double().cpu().numpy(), problem, settings=Settings(tol=1e-5))
        record["excess_over_cpu"] = float(objective[0] / cpu.objective[0] - 1)
    return record


def path(n_rows, n_hidden, m, repeats):
    """41 lams as one batch on the card."""
    X, T = make(n_rows, m)
    layer = HiddenLayer.draw(n_hidden, N_FEATURES, random_state=0)
    lams = np.geomspace(1e-2, 1e2, 41)
    settings = Settings(tol=1e-3)
    batch = Problem("l21", 1.0, 0.0, lams)
    together = seconds(lambda: fit(X, T, layer, batch, settings), repeats)
    _, found = fit(X, T, layer, batch, settings)

    def apart():
        for lam in lams:
            fit(X, T, layer, Problem("l21", 1.0, 0.0, lam), settings)

    return {
        "rows": n_rows,
        "hidden": n_hidden,
        "targets": m,
        "path_seconds": round(together, 4),
        "separate_seconds": round(seconds(apart, 1), 4),
        "largest_gap": max(found.dual_gap),
        "iterations": max(found.n_iter),
    }


def robust(n_rows, n_threads, seeds, boosting):
    """Print seconds of each step of RobustELM from inputs on the card to a judged model.

    With `boosting`, also the error of scikit-learn's histogram boosting with 500 trees a target,
    fitted to the rows before any of them is made wrong.
    """
    from outside import smooth_interactions
    from sklearn.utils import check_random_state

    from gorelm import RobustELMRegressor
    from gorelm.backends.torch import inputs as device
    from gorelm.datasets import contaminate
    from gorelm.metrics import arrmse

    X, T = smooth_interactions(n_rows + 20_000)
    X, X_test, T, T_test = X[:n_rows], X[n_rows:], T[:n_rows], T[n_rows:]
    if boosting:
        from sklearn.ensemble import HistGradientBoostingRegressor

        settings = {"max_iter": 500, "early_stopping": False, "random_state": 0}
        trees = [HistGradientBoostingRegressor(**settings).fit(X, t).predict(X_test) for t in T.T]
        error = arrmse(T_test, np.column_stack(trees))
        print(f"histogram boosting, 500 trees, clean rows: error {error:.4f}", flush=True)
    T, wrong = contaminate(T, 0.2, kind="rows", random_state=check_random_state(0))
    spent = {"sums": 0.0, "outputs": 0.0, "systems": 0.0}
    work = {"sums": 0.0}

    def timed(cls, name, part):
        plain = getattr(cls, name)

        def run(self, *args, **kwargs):
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = plain(self, *args, **kwargs)
            torch.cuda.synchronize()
            spent[part] += time.perf_counter() - start
            if part == "sums":
                rows = sum(len(group) for group in args[1])
                work["sums"] += rows * (args[0].n_outputs + 1.0) ** 2
            return found

        setattr(cls, name, run)

    timed(device.TorchInputs, "sums", "sums")
    timed(device.TorchInputs, "outputs", "outputs")
    timed(device.DeviceSums, "coef", "systems")
    there = torch.tensor(X, device="cuda")
    square = torch.rand(8192, 8192, device="cuda", dtype=torch.float64)
    speed = 2 * 8192**3 / seconds(lambda: square @ square, 3)
    RobustELMRegressor(random_state=0).fit(there[:5000], T[:5000])  # kernels are loaded
    for seed in range(seeds):
        for values in (spent, work):
            values.update(dict.fromkeys(values, 0.0))
        torch.cuda.synchronize()
        start = time.perf_counter()
        model = RobustELMRegressor(random_state=seed, n_jobs=n_threads).fit(there, T)
        total = time.perf_counter() - start
        error = arrmse(T_test, model.predict(torch.tensor(X_test, device="cuda")).cpu().numpy())
        mask = model.outlier_mask_
        print(f"seed {seed}: {n_rows} rows, {total:.2f} s, error {error:.4f}, "
              f"recall {mask[wrong].mean():.4f}, precision {wrong[mask].mean():.4f}")  # fmt: skip
        print("  steps:", {name: round(s, 2) for name, s in model.timings_.items()})
        print("  on the card:", {name: round(s, 2) for name, s in spent.items()},
              f"H'H at {work['sums'] / spent['sums'] / 1e12:.1f} TFLOP/s in float64 (half of it "
              f"counted), a product of matrices at {speed / 1e12:.1f}")  # fmt: skip
        print("  members:", [(m.activation, m.n_inputs, m.hidden_.n_nodes) for m in model.members_])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="CSV file to write")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--robust", action="store_true", help="RobustELM alone")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of --robust")
    parser.add_argument("--jobs", type=int, default=-1, help="threads of --robust on the host")
    parser.add_argument("--seeds", type=int, default=2, help="of --robust: fits")
    parser.add_argument("--boosting", action="store_true", help="of --robust: beside it")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "there is no CUDA device\n")
    if args.robust:
        robust(args.rows, args.jobs, args.seeds, args.boosting)
        return
    speed = roof()
    print(f"{torch.cuda.get_device_name()}, a copy moves {speed / 1e12:.2f} TB/s")
    records = []
    sizes = [(6500, 1000, 16), (100_000, 1000, 16), (1_000_000, 1000, 16), (1_000_000, 4096, 16)]
    for size in sizes:
        record = one(*size, args.repeats, speed, on_cpu=size[0] <= 100_000)
        print(record, flush=True)
        records.append(record)
    print(path(100_000, 1000, 8, args.repeats), flush=True)
    if args.out:
        names = list(dict.fromkeys(name for record in records for name in record))
        with open(args.out, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(records)


if __name__ == "__main__":
    main()
