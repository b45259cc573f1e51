"""Slow and plain versions of what the library computes, written apart from it.

Rows here are *not* multiplied by the square roots of their weights: weights, missing cells and the
Huber function enter the objective as they are defined. `scaled` turns such data into what
`gorelm._solver.prepared.solve` expects.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest


@dataclass(frozen=True)
class Case:
    """Data and numbers of one problem."""

    H: np.ndarray
    T: np.ndarray
    loss: str = "l21"
    tau: float = 1.0
    l1: float = 0.0
    l2: float = 1.0
    delta: float = 0.0
    grouped: bool = True
    weights: np.ndarray | None = None
    observed: np.ndarray | None = None


def huber(r, delta):
    """The Huber function of a number r >= 0, from its two pieces."""
    if delta > 0 and r <= delta:
        return r * r / (2 * delta)
    return r - delta / 2


def objective(case, B):
    """The objective of `case` at weights B, one row and one cell at a time."""
    total = 0.0
    for i, (h, t) in enumerate(zip(case.H, case.T, strict=True)):
        e = [float(h @ B[:, j]) - t[j] for j in range(len(t))]
        if case.observed is not None:
            e = [x for x, known in zip(e, case.observed[i], strict=True) if known]
        if case.loss == "squared":
            value = sum(x * x for x in e) / 2
        elif case.loss == "l1":
            value = sum(huber(abs(x), case.delta) for x in e)
        else:
            value = huber(sum(x * x for x in e) ** 0.5, case.delta)
        total += (1.0 if case.weights is None else case.weights[i]) * case.tau * value
    for b in B:
        sparse = sum(x * x for x in b) ** 0.5 if case.grouped else sum(abs(x) for x in b)
        total += case.l1 * sparse + case.l2 / 2 * sum(x * x for x in b)
    return total


def scaled(case):
    """Arguments of `gorelm._solver.prepared.solve` but for the problem: (H, T, omega, observed)."""
    T = case.T if case.observed is None else np.where(case.observed, case.T, 0.0)
    if case.weights is None:
        return case.H, T, None, case.observed
    omega = np.sqrt(case.weights)
    return case.H * omega[:, None], T * omega[:, None], omega, case.observed


def by_interior_point(case):
    """Optimal weights and objective, by CVXPY and Clarabel."""
    cp = pytest.importorskip("cvxpy")
    B = cp.Variable((case.H.shape[1], case.T.shape[1]))
    R = case.H @ B - case.T
    if case.observed is not None:
        R = cp.multiply(case.observed.astype(float), R)
    w = np.ones(len(case.H)) if case.weights is None else case.weights
    if case.loss == "squared":
        loss = cp.sum_squares(cp.multiply(np.sqrt(w)[:, None], R)) / 2
    else:
        sizes = cp.norm(R, 2, axis=1) if case.loss == "l21" else cp.abs(R)
        if case.delta > 0:
            sizes = cp.huber(sizes, case.delta) / (2 * case.delta)
        loss = w @ sizes if case.loss == "l21" else cp.sum(w @ sizes)
    sparse = cp.sum(cp.norm(B, 2, axis=1)) if case.grouped else cp.sum(cp.abs(B))
    total = case.tau * loss + case.l1 * sparse + case.l2 / 2 * cp.sum_squares(B)
    problem = cp.Problem(cp.Minimize(total))
    with warnings.catch_warnings():
        # Clarabel may fall short of 1e-10, and CVXPY then warns; 1e-6 is what is compared.
        warnings.simplefilter("ignore", UserWarning)
        for tol in (1e-10, 1e-9, 1e-8):  # rounding, which depends on the machine, may end it
            try:
                problem.solve(cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
                break
            except cp.SolverError:
                continue
    assert problem.status in ("optimal", "optimal_inaccurate")
    return B.value, objective(case, B.value)


def draw(seed, n, n_hidden, m=3, *, weighted=False, missing=False, dtype=float):
    """Draw (H, T, weights, observed): half-sparse weights, noise, and one row in seven far off."""
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, n_hidden)).astype(dtype)
    B = rng.standard_normal((n_hidden, m)) * (rng.random((n_hidden, 1)) < 0.4)
    T = H @ B + 0.2 * rng.standard_normal((n, m))
    T[::7] += 5 * rng.standard_normal((len(T[::7]), m))
    weights = rng.choice([0.3, 1.0, 2.5], n) if weighted else None
    observed = rng.random((n, m)) < 0.8 if missing else None
    return H, T, weights, observed


def steep_outputs(n_rows=600, n_hidden=200):
    """Outputs of hidden nodes, whose singular values fall as steeply as those of real ones."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n_rows, 6))
    H = 1 / (1 + np.exp(-(X @ rng.normal(size=(6, n_hidden)) + rng.normal(size=n_hidden))))
    T = np.sin(2 * X[:, :3]) + 0.1 * rng.normal(size=(n_rows, 3))
    T[::10] += 5
    return H, T
