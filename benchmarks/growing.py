"""What growing saves against refitting at every size, as ratios in one run.

    GORELM_DATA=folder python benchmarks/growing.py [--sets rf1,enb] [--repeats 3] [--only igor]

Two thirds of the rows, 20 % of them replaced by the paper's rule, sigmoid nodes, 100 to 1000 of
them in steps of 100, every size to a relative gap of 1e-3. lam is 2^-3 (what the paper's grid
search chose for IGOR-ELM on rf1 and scm20d). Medians of interleaved repeats, BLAS on one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from scipy import linalg
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gorelm import GORELMRegressor, IGORELMRegressor, IRELMRegressor, RELMRegressor
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._solver import rows
from gorelm._solver.admm import Settings
from gorelm._solver.linalg import CholeskyFactor, gram, product
from gorelm.datasets import contaminate, load_mulan

SETS = ("rf1", "scm20d", "enb")
SIZES = range(100, 1001, 100)
LAM = 2.0**-3


class ExplicitInverse(CholeskyFactor):
    r"""(G + s I)^-1 itself, grown by its Schur complement S = D + sI - K'JK, as published.

    .. math:: \begin{pmatrix} J + JKS^{-1}K'J & -JKS^{-1} \\
              -S^{-1}K'J & S^{-1} \end{pmatrix}

    Its error is multiplied by about the squared condition number at every extension.
    """

    def __init__(self, G: np.ndarray) -> None:
        super().__init__(G)
        self._inverse = np.empty((0, 0))

    def factorise(self, shift: float) -> None:
        """Invert for one shift."""
        if shift != self._shift:
            self._shift = shift
            self._inverse = linalg.inv(whole(self._gram.shifted(shift)), check_finite=False)

    def _solve_one(self, shift: float, R: np.ndarray) -> np.ndarray:
        self.factorise(shift)
        return self._inverse @ R

    def extend(self, K: np.ndarray, D: np.ndarray) -> None:
        """Extend the inverse."""
        self._gram.extend(K, D)
        JK = self._inverse @ K
        S = whole(D) + self._shift * np.eye(len(D)) - K.T @ JK
        S = linalg.inv(S, check_finite=False)
        JKS = JK @ S
        self._inverse = np.block([[self._inverse + JKS @ JK.T, -JKS], [-JKS.T, S]])


def whole(lower: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix of a lower triangle."""
    lower = np.tril(lower)
    return lower + np.tril(lower, -1).T


class PaperToGap(IGORELMRegressor):
    """The published iteration, run at every size until the same gap is certified."""

    def _settings(self) -> Settings:
        return replace(super()._settings(), stop="gap")


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    data = load_mulan(name)
    rng = check_random_state(0)
    rows = rng.permutation(len(data.data))[: round(len(data.data) * 2 / 3)]
    T, _ = contaminate(data.target[rows], 0.2, random_state=rng)
    return data.data[rows], T


def hidden_of(X: np.ndarray) -> np.ndarray:
    scaled, _ = Scaling.fit("minmax", X, np.ones(len(X))).apply(X)
    return HiddenLayer.draw(SIZES[-1], X.shape[1], random_state=0).transform(scaled)


def interleaved(runs: list[Callable[[], Any]], repeats: int) -> list[tuple[float, Any]]:
    """Median seconds and last result of each, run in turns."""
    times: list[list[float]] = [[] for _ in runs]
    results: list[Any] = [None] * len(runs)
    for _ in range(repeats):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            results[k] = run()
            times[k].append(time.perf_counter() - start)
    return [(median(t), result) for t, result in zip(times, results, strict=True)]


def published(factor: type[CholeskyFactor], X: Any, T: Any, options: dict[str, Any]) -> str:
    """Seconds and iterations of a published run on a kind of factor, and how far it came."""
    if len(X) < SIZES[-1]:
        return "not run: fewer rows than nodes"
    start = time.perf_counter()
    model = PaperToGap(solver="paper", callback=Stopwatch(600.0), **options)
    with warnings.catch_warnings(), mock.patch.object(rows, "CholeskyFactor", factor):
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        try:
            model.fit(X, T)
        except ValueError:
            return f"lost all digits after {time.perf_counter() - start:.1f} s"
    short = [int(r["n_hidden"]) for r in model.growth_ if r["dual_gap"] > 1e-3]
    note = f", short of the gap from {short[0]} nodes on" if short else ""
    count = sum(record["n_iter"] for record in model.growth_)
    return f"{time.perf_counter() - start:.1f} s ({count}{note})"


class Stopwatch:
    """A callback that ends a run after some seconds."""

    def __init__(self, limit: float) -> None:
        self.end = time.perf_counter() + limit

    def __call__(self, record: Any) -> bool:
        """Tell whether time is up."""
        return time.perf_counter() > self.end


def igor(sets: list[str], repeats: int) -> None:
    print("\n## IGOR-ELM, 100 to 1000 nodes: grown, refitted at every size, and as published")
    print("(published: one run; at most 1000 iterations for a size, 600 s in all)\n")
    print("| set | N x m | l1_ratio | grown s (it) | refits s (it) | refits / grown |")
    print("|---|---|---|---|---|---|")
    for name in sets:
        X, T = rows_of(name)
        for l1_ratio in (0.0, 0.5):
            options = {"lam": LAM, "l1_ratio": l1_ratio, "random_state": 0}

            def refits(X=X, T=T, options=options) -> list[Any]:
                return [GORELMRegressor(n_hidden=L, **options).fit(X, T) for L in SIZES]

            (ours, grown), (again, fits) = interleaved(
                [lambda o=options, X=X, T=T: IGORELMRegressor(**o).fit(X, T), refits], repeats
            )
            for record, fit in zip(grown.growth_, fits, strict=True):
                assert max(record["dual_gap"], fit.dual_gap_) <= 1e-3
            print(
                f"| {name} | {X.shape[0]} x {T.shape[1]} | {l1_ratio} | {ours:.2f} "
                f"({sum(r['n_iter'] for r in grown.growth_)}) | {again:.2f} "
                f"({sum(fit.n_iter_ for fit in fits)}) | {again / ours:.2f} |",
                flush=True,
            )
            print(f"  published, explicit inverse: {published(ExplicitInverse, X, T, options)}")
            print(f"  published, bordered Cholesky: {published(CholeskyFactor, X, T, options)}")


def ir(sets: list[str], repeats: int) -> None:
    print("\n## IR-ELM (C = 1), 100 to 1000 nodes: grown, and R-ELM refitted at every size\n")
    print("| set | grown s | refits s | ratio | last weights differ by |")
    print("|---|---|---|---|---|")
    for name in sets:
        X, T = rows_of(name)

        def refits(X=X, T=T) -> list[Any]:
            return [RELMRegressor(n_hidden=L, random_state=0).fit(X, T) for L in SIZES]

        (ours, grown), (again, fits) = interleaved(
            [lambda X=X, T=T: IRELMRegressor(random_state=0).fit(X, T), refits], repeats
        )
        off = np.abs(grown.coef_ - fits[-1].coef_).max() / np.abs(fits[-1].coef_).max()
        print(f"| {name} | {ours:.2f} | {again:.2f} | {again / ours:.2f} | {off:.0e} |", flush=True)


def factors(sets: list[str], repeats: int) -> None:
    print("\n## Bordering the Cholesky factor of H'H + sI, and factorising at every size (H'H too)")
    print("(arithmetic alone: 3.8 for H'H and 3.0 for the factor by 100, 33 and 25 by 10)\n")
    print("| set | step | bordered s | anew s | ratio | last step only |")
    print("|---|---|---|---|---|---|")
    for name in sets:
        H = hidden_of(rows_of(name)[0])
        for step in (100, 10):
            sizes = list(range(100, 1001, step))
            parts = [np.ascontiguousarray(H[:, a:b]) for a, b in pairwise(sizes)]
            whole = [np.ascontiguousarray(H[:, :b]) for b in sizes]
            last: list[float] = []

            def bordered(H=H, sizes=sizes, parts=parts, last=last) -> CholeskyFactor:
                factor = CholeskyFactor(gram(np.ascontiguousarray(H[:, : sizes[0]])))
                factor.factorise(1.0)
                for n, part in zip(sizes, parts, strict=False):
                    start = time.perf_counter()
                    factor.extend(product(H[:, :n], part), gram(part))
                last.append(time.perf_counter() - start)
                return factor

            last_anew: list[float] = []

            def anew(whole=whole, last=last_anew) -> None:
                for part in whole:
                    start = time.perf_counter()
                    CholeskyFactor(gram(part)).factorise(1.0)
                last.append(time.perf_counter() - start)

            (ours, _), (again, _) = interleaved([bordered, anew], repeats if step == 100 else 1)
            print(
                f"| {name} | {step} | {ours:.3f} | {again:.3f} | {again / ours:.1f} | "
                f"{median(last_anew) / median(last):.1f} |",
                flush=True,
            )
            del whole


def rounding(sets: list[str], repeats: int) -> None:
    del repeats
    print("\n## 90 updates of 10 nodes: largest difference from a refit's solution, relative\n")
    print("| set | shift | bordered Cholesky | explicit inverse |")
    print("|---|---|---|---|")
    for name in sets:
        X, T = rows_of(name)
        T, _ = Scaling.fit("robust", T, np.ones(len(T))).apply(T)
        H = hidden_of(X)
        for shift in (1e-2, 1e-5, 1e-8):
            shifts, off = np.array([shift]), []
            right = product(H, T)[:, None]
            refit = CholeskyFactor(gram(H)).solve(shifts, right)
            for kind in (CholeskyFactor, ExplicitInverse):
                factor = kind(gram(np.ascontiguousarray(H[:, :100])))
                factor.factorise(shift)
                for n in range(100, 1000, 10):
                    part = np.ascontiguousarray(H[:, n : n + 10])
                    factor.extend(product(H[:, :n], part), gram(part))
                found = factor.solve(shifts, right)
                # Compared by what they predict: the weights themselves are ill-determined.
                change = H @ (found - refit)[:, 0]
                off.append(np.linalg.norm(change) / np.linalg.norm(H @ refit[:, 0]))
            print(f"| {name} | {shift:g} | {off[0]:.0e} | {off[1]:.0e} |", flush=True)


PARTS = {"igor": igor, "ir": ir, "factors": factors, "rounding": rounding}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    with threadpool_limits(1):
        for name, part in PARTS.items():
            if arguments.only in (None, name):
                part(arguments.sets.split(","), arguments.repeats)


if __name__ == "__main__":
    main()
