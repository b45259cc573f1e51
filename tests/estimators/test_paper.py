"""The paper's algorithms, transcribed line by line, against the library's loop set to `PAPER`.

Scaled multipliers, rho = 1, zero start. The paper prints "U + rho (...)" in its listings and
"U + (...)" in its text; at rho = 1 they agree.
"""

from dataclasses import replace

import numpy as np
import pytest

from gorelm import GORELMRegressor, GRELMRegressor, ORELMRegressor
from gorelm._solver import admm
from gorelm._solver.admm import PAPER
from gorelm._solver.linalg import CholeskyFactor, WideFactor, gram
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows
from support.oracles import draw

EPS_ABS, EPS_REL = 1e-3, 1e-2
OR_PAPER = ORELMRegressor._paper

shapes = pytest.mark.parametrize("shape", [(60, 25), (25, 60)], ids=["tall", "wide"])
alphas = pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])


def block_soft_threshold(A, kappa):
    out = np.zeros_like(A)
    for i, a in enumerate(A):
        norm = np.linalg.norm(a)
        if norm > kappa:
            out[i] = (1 - kappa / norm) * a
    return out


def fro(A):
    return np.linalg.norm(A)


def gor_elm(H, T, lam, alpha, tau, steps, eps_abs=EPS_ABS, eps_rel=EPS_REL):
    """Algorithm "GOR-ELM": yield (B, Z, E, U1, U2, stop?) after each step."""
    (n, n_hidden), m, rho = H.shape, T.shape[1], 1.0
    B = Z = U2 = np.zeros((n_hidden, m))
    E = U1 = np.zeros((n, m))
    eta = (lam * (1 - alpha) + rho) / rho
    inverse = np.linalg.inv(H.T @ H + eta * np.eye(n_hidden))
    # The constraint A E + B B + C Z + D = 0 in its blocks, as the stopping section has it.
    A_ = np.vstack([-np.eye(n), np.zeros((n_hidden, n))])
    B_ = np.vstack([H, np.eye(n_hidden)])
    C_ = np.vstack([np.zeros((n, n_hidden)), -np.eye(n_hidden)])
    D_ = np.vstack([-T, np.zeros((n_hidden, m))])
    for _ in range(steps):
        E_old, Z_old = E, Z
        B = inverse @ (H.T @ (T + E - U1) + (Z - U2))
        Z = block_soft_threshold(B + U2, lam * alpha / rho)
        E = block_soft_threshold(H @ B - T + U1, tau / rho)
        U1 = U1 + (H @ B - T - E)
        U2 = U2 + (B - Z)
        R = A_ @ E + B_ @ B + C_ @ Z + D_
        S = rho * B_.T @ A_ @ (E - E_old) + rho * B_.T @ C_ @ (Z - Z_old)
        absolute = np.sqrt(m * n_hidden) * eps_abs
        largest = max(fro(A_ @ E), fro(B_ @ B), fro(C_ @ Z), fro(D_))
        eps_pri = absolute + eps_rel * largest
        eps_dual = absolute + eps_rel * rho * fro(H.T @ U1 + U2)
        yield B, Z, E, U1, U2, fro(R) < eps_pri and fro(S) < eps_dual


def gr_elm(H, T, C, lam, alpha, steps):
    """Algorithm "GR-ELM", with the primal and dual residuals of its one constraint B - Z = 0."""
    n_hidden, m, rho = H.shape[1], T.shape[1], 1.0
    Z = U = np.zeros((n_hidden, m))
    inverse = np.linalg.inv(C * H.T @ H + (lam * (1 - alpha) + rho) * np.eye(n_hidden))
    for _ in range(steps):
        Z_old = Z
        B = inverse @ (C * H.T @ T + rho * (Z - U))
        Z = block_soft_threshold(B + U, lam * alpha / rho)
        U = U + rho * (B - Z)
        absolute = np.sqrt(m * n_hidden) * EPS_ABS
        eps_pri = absolute + EPS_REL * max(fro(B), fro(Z))
        eps_dual = absolute + EPS_REL * rho * fro(U)
        yield B, Z, U, fro(B - Z) < eps_pri and fro(rho * (Z - Z_old)) < eps_dual


def or_elm(H, T, C, steps):
    """OR-ELM's augmented Lagrangian steps (tau = 1, rho = 1), each target by itself."""
    B, E, U = (np.zeros((k, T.shape[1])) for k in (H.shape[1], len(H), len(H)))
    inverse = np.linalg.inv(H.T @ H + np.eye(H.shape[1]) / C)
    for _ in range(steps):
        for j, t in enumerate(T.T):
            B[:, j] = inverse @ H.T @ (t + E[:, j] - U[:, j])
            v = H @ B[:, j] - t + U[:, j]
            E[:, j] = np.sign(v) * np.maximum(np.abs(v) - 1.0, 0.0)
            U[:, j] = v - E[:, j]
        yield B.copy(), E.copy(), U.copy()


def factor_of(H):
    return WideFactor(H) if H.shape[0] < H.shape[1] else CholeskyFactor(gram(H))


def iterate(H, T, problem, settings, k, direct=False):
    """Weights, E and U after exactly k steps (E and U through the callback, while they live)."""
    rows, seen = MemoryRows(H, T), {}

    def look(record):
        seen.update(E=rows.E[:, 0].copy(), U=rows.U[:, 0].copy()) if not direct else None

    settings = replace(settings, max_iter=k, stop="never")
    fit = admm.solve(rows, factor_of(H), problem, settings, look, direct=direct)
    assert fit.n_iter == [k]
    return fit, seen


def assert_equal(mine, theirs):
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * max(1.0, np.abs(theirs).max()))


def first_stop(steps):
    """Number of the first step whose last item says stop, and that step."""
    for k, step in enumerate(steps, start=1):
        if step[-1]:
            return k, step
    pytest.fail("the transcription did not stop")


# -- iterate by iterate --------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@alphas
@pytest.mark.parametrize(("lam", "tau"), [(1.0, 1.0), (5.0, 2.0)])
def test_gor_elm_iterates(shape, alpha, lam, tau):
    H, T, _, _ = draw(30, *shape)
    problem = Problem("l21", tau, lam * alpha, lam * (1 - alpha))
    for k, (B, Z, E, U1, U2, _) in enumerate(gor_elm(H, T, lam, alpha, tau, 15), start=1):
        fit, seen = iterate(H, T, problem, PAPER, k)
        assert_equal(fit.coef[:, 0], Z)
        assert_equal(seen["E"], E)
        assert_equal(seen["U"], U1)
        # Where the sparse penalty is on, the empty rows agree exactly.
        np.testing.assert_array_equal(fit.coef[:, 0].any(axis=1), Z.any(axis=1))
        record = fit.history[0][-1]
        residual = np.hypot(fro(H @ B - T - E), fro(B - Z))
        assert record["primal_residual"] == pytest.approx(residual, rel=1e-6, abs=1e-10)
        assert (record["rho"], record["sigma"]) == (1.0, 1.0)
        assert alpha == 0 or U2.any()


@pytest.mark.crossed
@shapes
@alphas
@pytest.mark.parametrize("C", [0.1, 4.0])
def test_gr_elm_iterates(shape, alpha, C):
    H, T, _, _ = draw(31, *shape)
    problem = Problem("squared", C, alpha, 1 - alpha)
    for k, (_, Z, _, _) in enumerate(gr_elm(H, T, C, 1.0, alpha, 15), start=1):
        fit, _ = iterate(H, T, problem, PAPER, k, direct=True)
        assert_equal(fit.coef[:, 0], Z)
        np.testing.assert_array_equal(fit.coef[:, 0].any(axis=1), Z.any(axis=1))


@shapes
@pytest.mark.parametrize("C", [0.5, 8.0])
def test_or_elm_iterates(shape, C):
    H, T, _, _ = draw(32, *shape)
    problem = Problem("l1", 1.0, 0.0, 1 / C)
    for k, (B, E, U) in enumerate(or_elm(H, T, C, 20), start=1):
        fit, seen = iterate(H, T, problem, OR_PAPER, k)
        assert_equal(fit.coef[:, 0], B)
        assert_equal(seen["E"], E)
        assert_equal(seen["U"], U)


# -- where they stop -----------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@alphas
@pytest.mark.parametrize("lam", [0.3, 10.0])
@pytest.mark.parametrize("seed", [33, 34])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_gor_elm_stops_where_the_paper_does(shape, alpha, lam, seed, scale):
    H, T, _, _ = draw(seed, *shape)
    H, T = H * scale, T / 5
    k, step = first_stop(gor_elm(H, T, lam, alpha, 1.0, 1000))
    assert k > 1
    fit = solve(H, T, Problem("l21", 1.0, lam * alpha, lam * (1 - alpha)), settings=PAPER)
    assert (fit.n_iter, fit.status) == ([k], ["converged"])
    assert_equal(fit.coef[:, 0], step[1])


def test_gor_elm_stops_there_with_tolerances_of_its_own():
    # A small H and no absolute tolerance: here (HB, B) is the largest term of the rule and decides.
    H, T, _, _ = draw(33, 60, 25)
    H, T = 0.1 * H, T / 5
    k, step = first_stop(gor_elm(H, T, 0.3, 0.0, 1.0, 1000, 0.0, 1e-3))
    settings = replace(PAPER, eps_abs=0.0, eps_rel=1e-3)
    fit = solve(H, T, Problem("l21", 1.0, 0.0, 0.3), settings=settings)
    assert (fit.n_iter, fit.status) == ([k], ["converged"])
    assert_equal(fit.coef[:, 0], step[1])


@pytest.mark.crossed
@shapes
@alphas
@pytest.mark.parametrize("C", [0.01, 1.0])
@pytest.mark.parametrize("seed", [36, 37])
def test_gr_elm_stops_where_the_paper_does(shape, alpha, C, seed):
    H, T, _, _ = draw(seed, *shape)
    k, step = first_stop(gr_elm(H, T, C, 1.0, alpha, 1000))
    fit = solve(H, T, Problem("squared", C, alpha, 1 - alpha), settings=PAPER)
    assert (fit.n_iter, fit.status) == ([k], ["converged"])
    assert_equal(fit.coef[:, 0], step[1])


def test_a_batch_stops_each_problem_where_the_paper_does():
    H, T, _, _ = draw(38, 60, 25)
    lam, alpha = np.array([0.5, 5.0, 50.0]), np.array([0.0, 0.5, 1.0])
    fit = solve(H, T, Problem("l21", 1.0, lam * alpha, lam * (1 - alpha)), settings=PAPER)
    for p in range(3):
        k, step = first_stop(gor_elm(H, T, lam[p], alpha[p], 1.0, 1000))
        assert fit.n_iter[p] == k
        assert_equal(fit.coef[:, p], step[1])
    assert len(set(fit.n_iter)) > 1


def test_the_paper_gives_up_after_a_thousand_steps():
    H, T, _, _ = draw(39, 60, 25)
    impossible = replace(PAPER, eps_abs=0.0, eps_rel=0.0)
    fit = solve(H, T, Problem("l21", 1.0, 0.5, 0.5), settings=impossible)
    assert (fit.n_iter, fit.status) == ([1000], ["max_iter"])


# -- through the estimators ----------------------------------------------------------------------


@pytest.fixture(params=[20, 70], ids=["tall", "wide"])
def fitted(request):
    """Fit an estimator in the paper's configuration; return it with its H and T."""
    rng = np.random.default_rng(40)
    X = rng.uniform(-1, 1, (50, 4))
    T = np.sin(X @ rng.standard_normal((4, 3)))
    T[::6] += 3.0

    def fit(estimator):
        estimator.set_params(
            solver="paper",
            n_hidden=request.param,
            input_scaling=None,
            target_scaling=None,
            random_state=0,
        ).fit(X, T)
        return estimator, estimator.hidden_.transform(X), T

    return fit


@alphas
def test_gor_elm_estimator(fitted, alpha):
    model, H, T = fitted(GORELMRegressor(0.7, l1_ratio=alpha))
    k, step = first_stop(gor_elm(H, T, 0.7, alpha, 1.0, 1000))
    assert (model.n_iter_, model.converged_) == (k, True)
    assert_equal(model.coef_, step[1])


@alphas
def test_gr_elm_estimator(fitted, alpha):
    model, H, T = fitted(GRELMRegressor(4.0, l1_ratio=alpha))
    k, step = first_stop(gr_elm(H, T, 4.0, 1.0, alpha, 1000))
    assert (model.n_iter_, model.converged_) == (k, True)
    assert_equal(model.coef_, step[1])


def test_or_elm_estimator(fitted):
    model, H, T = fitted(ORELMRegressor(4.0))
    assert model.n_iter_ == 20
    assert_equal(model.coef_, list(or_elm(H, T, 4.0, 20))[-1][0])
