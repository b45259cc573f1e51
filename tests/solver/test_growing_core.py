"""What growing networks stand on: factors, row space, least squares and systems that follow."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gorelm._solver.admm import PAPER, Settings
from gorelm._solver.least_squares import GrowingLeastSquares, ResidualFitting
from gorelm._solver.linalg import (
    CholeskyFactor,
    EighFactor,
    RowSpace,
    gram,
    product,
)
from gorelm._solver.prepared import Prepared
from gorelm._solver.problem import Problem
from gorelm.datasets import contaminate
from support.oracles import draw

seeds = st.integers(0, 2**32 - 1)


# -- factors that are extended ---------------------------------------------------------------------


def sigmoid_nodes(n_hidden, n_rows=768, seed=0):
    """As on the building data enb: a few inputs of few values, and so nearly dependent nodes."""
    rng = np.random.default_rng(seed)
    X = rng.choice(np.linspace(-1, 1, 7), (n_rows, 8))
    z = X @ rng.uniform(-1, 1, (8, n_hidden)) + rng.uniform(-1, 1, n_hidden)
    return 1 / (1 + np.exp(-z))


@given(
    seed=seeds,
    steps=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    shift=st.sampled_from([1e-2, 1.0, 30.0]),
    solve_first=st.booleans(),
    drop=st.booleans(),
)
def test_extended_is_factorised_again(seed, steps, shift, solve_first, drop):
    rng = np.random.default_rng(seed)
    n_rows = 12
    H = rng.standard_normal((n_rows, 4))
    factor = CholeskyFactor(gram(H))
    for d in steps:
        if solve_first:
            factor.solve(np.array([shift]), np.ones((H.shape[1], 1, 1)))
        dH = rng.standard_normal((n_rows, d))
        factor.extend(product(H, dH), np.tril(gram(dH)))  # the upper triangle is not to be read
        H = np.hstack([H, dH])
        if drop:
            nodes = np.flatnonzero(rng.random(H.shape[1]) < 0.8)
            nodes = nodes if len(nodes) else np.arange(1)
            factor.keep(nodes)
            H = H[:, nodes]
    R = rng.standard_normal((H.shape[1], 2, 2))
    for shifts in ([shift, shift], [0.5, shift]):
        expected = EighFactor(gram(H)).solve(np.array(shifts), R)
        np.testing.assert_allclose(
            factor.solve(np.array(shifts), R),
            expected,
            rtol=0,
            atol=1e-8 * np.abs(expected).max(),
        )


def after_90_steps(H, T, shift):
    factor = CholeskyFactor(gram(H[:, :10]))
    for k in range(10, 910, 10):
        factor.solve(np.array([shift]), np.zeros((k, 1, 1)))
        old, new = H[:, :k], H[:, k : k + 10]
        factor.extend(product(old, new), gram(np.ascontiguousarray(new)))
    return H @ factor.solve(np.array([shift]), product(H, T)[:, None])[:, 0]


@pytest.mark.parametrize("shift", [1e-6, 1e-7, 1e-8])
def test_after_90_steps_the_factor_is_accurate(shift):
    H = sigmoid_nodes(910)
    T = contaminate(np.sin(3 * H[:, :2]), 0.2, random_state=0)[0]
    fresh = H @ CholeskyFactor(gram(H)).solve(np.array([shift]), product(H, T)[:, None])[:, 0]
    assert np.abs(after_90_steps(H, T, shift) - fresh).max() <= 1e-6 * np.ptp(T)


def test_a_factor_that_fails_falls_back_and_comes_back():
    rng = np.random.default_rng(0)
    H = rng.standard_normal((20, 5))
    T = rng.standard_normal((20, 2))
    factor = CholeskyFactor(gram(H))
    factor.factorise(1e-18)
    factor.extend(product(H, H), gram(H))  # every node twice: singular, the shift is rounding
    twice = np.hstack([H, H])
    B = factor.solve(np.array([1e-18]), product(twice, T)[:, None])[:, 0]
    np.testing.assert_allclose(twice @ B, H @ np.linalg.lstsq(H, T)[0], atol=1e-6)
    dH = rng.standard_normal((20, 3))
    factor.extend(product(twice, dH), gram(dH))
    H = np.hstack([twice, dH])
    B = factor.solve(np.array([0.5]), product(H, T)[:, None])[:, 0]
    np.testing.assert_allclose(B, np.linalg.solve(H.T @ H + 0.5 * np.eye(13), H.T @ T), atol=1e-9)


# -- the row space, least squares, whole systems ---------------------------------------------------


@given(
    seed=seeds,
    n=st.integers(1, 8),
    extra=st.integers(0, 6),
    steps=st.lists(st.integers(1, 40), max_size=4),
    rank=st.integers(0, 8),
)
def test_row_space_follows(seed, n, extra, steps, rank):
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, n)) if rank < n else np.eye(n)
    H = mix @ rng.standard_normal((n, n + extra))
    space = RowSpace(H)
    for d in steps:
        dH = mix @ rng.standard_normal((n, d))
        space.extend(dH)
        H = np.hstack([H, dH])
    C = rng.standard_normal((n, 2, 3))
    B = space.expand(C)
    size = 1e-11 * max(1.0, np.linalg.norm(H))
    assert space.H.shape == (n, n)
    assert B.shape == (H.shape[1], 2, 3)
    np.testing.assert_allclose(np.linalg.norm(B), np.linalg.norm(C), rtol=1e-11)
    np.testing.assert_allclose(space.shrink(B), C, atol=1e-11)
    np.testing.assert_allclose(
        np.einsum("nl,lpm->npm", H, B), np.einsum("nk,kpm->npm", space.H, C), atol=10 * size
    )
    # The coordinates of any weights give the outputs of those weights.
    B = rng.standard_normal((H.shape[1], 2))
    np.testing.assert_allclose(space.H @ space.shrink(B), H @ B, atol=10 * size)


def columns_of_some_rank(rng, n, steps):
    """Groups of columns: of full rank, repeated, in the span of the others, or zero."""
    H = rng.standard_normal((n, 0))
    for d, how in steps:
        new = rng.standard_normal((n, d))
        if how == "zero":
            new[:, ::2] = 0.0
        elif how == "repeated":
            new[:] = new[:, :1]
        elif how == "spanned" and H.shape[1]:
            new = H @ rng.standard_normal((H.shape[1], d))
        H = np.hstack([H, new])
        yield new, H


def assert_least_squares(fit, H, T):
    coef, half = fit.solve()
    expected = np.linalg.pinv(H, rcond=1e-11) @ T
    s = np.linalg.svd(H, compute_uv=False)
    condition = s[0] / min(s[s > 1e-11 * s[0]], default=1.0)
    tol = 1e-9 * (1 + condition) ** 2
    np.testing.assert_allclose(coef, expected, atol=tol * max(1.0, np.abs(expected).max()))
    assert half == pytest.approx(0.5 * np.sum((H @ expected - T) ** 2), abs=tol)
    np.testing.assert_allclose(fit.outputs(coef), H @ coef, atol=tol)


some_steps = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["any", "zero", "repeated", "spanned"])),
    min_size=1,
    max_size=5,
)


@given(seed=seeds, n=st.integers(1, 12), steps=some_steps, drop=st.booleans())
@example(seed=0, n=3, steps=[(1, "zero"), (2, "any")], drop=False)
def test_growing_least_squares_is_the_pseudo_inverse(seed, n, steps, drop):
    rng = np.random.default_rng(seed)
    T, fit = rng.standard_normal((n, 2)), None
    for new, H in columns_of_some_rank(rng, n, steps):
        if fit is None:
            fit = GrowingLeastSquares(new, T)
        else:
            fit.extend(new)
        assert_least_squares(fit, H, T)
    if drop:
        nodes = np.arange(0, H.shape[1], 2)
        fit.keep(nodes)
        assert_least_squares(fit, H[:, nodes], T)


@given(seed=seeds, n=st.integers(1, 12), steps=some_steps)
def test_residual_fitting_is_one_node_after_the_other(seed, n, steps):
    rng = np.random.default_rng(seed)
    T = rng.standard_normal((n, 2))
    groups, (*_, H) = zip(*columns_of_some_rank(rng, n, steps), strict=True)
    fit = ResidualFitting(groups[0], T)
    for new in groups[1:]:
        fit.extend(new)
    coef, rest = [], T
    for h in H.T:
        coef.append(h @ rest / (h @ h) if h.any() else 0 * T[0])
        rest = rest - np.outer(h, coef[-1])
    np.testing.assert_allclose(fit.solve()[0], coef, atol=1e-9 * max(1.0, np.abs(coef).max()))
    assert fit.solve()[1] == pytest.approx(0.5 * np.sum(rest**2))
    np.testing.assert_allclose(fit.outputs(fit.solve()[0]), T - rest, atol=1e-9)


PROBLEMS = {
    "ridge": Problem("squared", 1.0, 0.0, 0.3),
    "elastic net": Problem("squared", 1.0, 0.4, 0.2),
    "robust": Problem("l21", 1.0, 0.0, 0.3),
    "robust, sparse": Problem("l21", 1.0, 1.0, 0.3),
    "robust by cells": Problem("l1", 1.0, 0.0, 0.3, 0.2),
}


@pytest.mark.crossed
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("n_rows", [60, 22, 5], ids=["tall", "from tall to wide", "wide"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "missing", "float32"])
def test_extended_system_is_a_new_one(problem, n_rows, kind):
    problem = PROBLEMS[problem]
    weighted, missing = kind == "weighted", kind == "missing"
    dtype = np.float32 if kind == "float32" else float
    H, T, w, observed = draw(0, n_rows, 30, weighted=weighted, missing=missing, dtype=dtype)
    H[:, 3::7] = 0.0  # dead nodes: all methods give them no weight
    omega = None if w is None else np.sqrt(w)
    if w is not None:
        H, T = H * omega[:, None], T * omega[:, None]
    if observed is not None:
        T = np.where(observed, T, 0.0)
    system = Prepared(H[:, :10], T, problem, omega, observed, tol=1e-6, capacity=25)
    settings = Settings(tol=1e-6 if kind != "float32" else 1e-4)
    alive = np.flatnonzero(H[:, :18].any(axis=0))
    nodes = np.arange(10)
    for step in ("begin", "extend", "keep", "extend again"):
        if step == "keep":
            system.keep(alive)
            nodes = alive
        elif step != "begin":
            new = np.arange(nodes[-1] + 1, 18 if step == "extend" else 30)
            system.extend(H[:, new])
            nodes = np.append(nodes, new)
        found = system.resume(problem, settings)
        fresh = Prepared(np.ascontiguousarray(H[:, nodes]), T, problem, omega, observed, tol=1e-6)
        best = fresh.solve(problem, settings)
        assert found.coef.shape == best.coef.shape
        assert found.status == ["converged"]
        share = 3 * settings.tol
        assert found.objective[0] == pytest.approx(best.objective[0], rel=share, abs=1e-9)
        assert found.objective[0] >= best.bound[0] * (1 - share) - 1e-9
        outputs = system.outputs(found.coef[:, 0])
        np.testing.assert_allclose(outputs, H[:, nodes] @ found.coef[:, 0], atol=1e-4)


def test_published_iteration_goes_on_after_growth():
    H, T, _, _ = draw(0, 40, 30)
    problem = PROBLEMS["robust, sparse"]
    system = Prepared(H[:, :10], T, problem)
    system.resume(problem, PAPER)
    system.extend(H[:, 10:])
    found = system.resume(problem, PAPER)
    assert found.status == ["converged"]
    best = Prepared(H, T, problem, tol=1e-6).solve(problem, Settings(tol=1e-6))
    assert found.objective[0] == pytest.approx(best.objective[0], rel=0.05)
