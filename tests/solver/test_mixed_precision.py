"""Steps with half the digits: the same way, proven with all of them."""

from dataclasses import replace

import numpy as np
import pytest

from gorelm import path
from gorelm._solver import admm
from gorelm._solver import mixed_precision as quick
from gorelm._solver.admm import ADAPTIVE
from gorelm._solver.certificate import DIRECTIONS, SPARE, Directions, Polish
from gorelm._solver.linalg import EighFactor, gram
from gorelm._solver.mixed_precision import QuickRows, short_enough
from gorelm._solver.prepared import System, solve
from gorelm._solver.problem import Problem
from gorelm._solver.rows import Rows
from gorelm.path import gorelm_path
from support.oracles import steep_outputs

RATIOS = [0.0, 0.5, 1.0]
LOSSES = ["l21", "l1"]


@pytest.fixture(autouse=True)
def small_pays(monkeypatch):
    monkeypatch.setattr(quick, "WORTHWHILE", 0)


@pytest.fixture(scope="module")
def data():
    return steep_outputs()


def both(H, T, omega=None):
    return Rows(H, T, omega), QuickRows(H, T, omega, None, H.astype(np.float32))


def steps(rows, problem, count=5):
    """Take some steps at weights that change; returns what the last one gave."""
    rng, rho = np.random.default_rng(1), np.full(problem.n_problems, 0.7)
    rows.start(problem)
    for _ in range(count):
        B = 0.05 * rng.normal(size=(rows.shape[1], problem.n_problems, rows.shape[2]))
        given = rows.step(B, problem, rho, 1.6, cap=np.full(len(rho), 10.0), measure=True)
    return given


# -- the rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_are_those_of_all_digits(data, loss, weighted):
    H, T = data
    omega = np.random.default_rng(2).uniform(0.3, 2, len(H)) if weighted else None
    if omega is not None:
        H, T = omega[:, None] * H, omega[:, None] * T
    problem = Problem(loss, [1.0, 0.5], 0.1, 0.1)
    exact, short = both(H, T, omega)
    (HtD, moves), (HtD_short, moves_short) = steps(exact, problem), steps(short, problem)
    assert short.E.dtype == short.U.dtype == np.float32
    np.testing.assert_allclose(HtD_short, HtD, atol=1e-4 * np.abs(HtD).max())
    for name, value in vars(moves).items():
        np.testing.assert_allclose(getattr(moves_short, name), value, rtol=1e-4, err_msg=name)


def test_what_proves_has_all_digits(data):
    H, T = data
    problem = Problem("l21", [1.0, 0.5], 0.1, 0.1)
    exact, short = both(H, T)
    steps(short, problem)
    exact.E, exact.U = short.E.astype(float), short.U.astype(float)
    B = np.random.default_rng(3).normal(size=(H.shape[1], 2, T.shape[1]))
    np.testing.assert_allclose(short.pull([0, 1]), exact.pull([0, 1]), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(short.loss(B, problem), exact.loss(B, problem), rtol=1e-12)
    np.testing.assert_allclose(short.inner()[0], exact.inner()[0], rtol=1e-12)
    _, moves = steps(short, problem)
    assert not moves.exact
    np.testing.assert_allclose(moves.UT, exact.inner()[0], rtol=1e-12)
    np.testing.assert_allclose(moves.UU, exact.inner()[1], rtol=1e-12)


def test_refined_rows_go_on_from_where_they_are(data):
    problem = Problem("l21", 1.0, 0.1, 0.1)
    exact, short = both(*data)
    steps(short, problem)
    E = short.E.astype(float)
    assert short.refine()
    assert short.E.dtype == short.U.dtype == np.float64
    np.testing.assert_array_equal(short.E, E)
    assert not short.refine()
    exact.E, exact.U = short.E.copy(), short.U.copy()
    B = np.full((data[0].shape[1], 1, 3), 0.01)
    given = [rows.step(B, problem, np.ones(1), 1.6, cap=np.ones(1))[0] for rows in (exact, short)]
    np.testing.assert_allclose(*given, rtol=1e-12)  # in other blocks
    assert not exact.refine()


@pytest.mark.parametrize("known", [False, True])
def test_a_resumed_run_takes_what_is_known(data, known):
    H, T = data
    rows, rng = Rows(H, T), np.random.default_rng(4)
    problem, rho = Problem("l21", [1.0, 0.5], 0.1, 0.1), np.array([0.5, 2.0])
    B, dual = rng.normal(size=(200, 2, 3)), 0.1 * rng.normal(size=(600, 2, 3))
    E, U = np.einsum("nl,lpm->npm", H, B) - T[:, None], dual / rho[:, None]
    HtE = EighFactor(gram(H)).times(B) - rows.HtT[:, None] if known else None
    HtD, HtU, _ = rows.resume(B, dual, problem, rho, np.full(2, np.inf), HtE)
    np.testing.assert_allclose(HtU, np.einsum("nl,npm->lpm", H, U), atol=1e-9)
    np.testing.assert_allclose(HtD, np.einsum("nl,npm->lpm", H, E - U), atol=1e-7)


# -- where they are used -----------------------------------------------------------------------


def system(H, T, loss="l21", tol=1e-3, **kwargs):
    return System(H, T, Problem(loss, [1.0, 1.0], 1.0, 1.0), tol=tol, **kwargs)


def test_large_tall_systems_hurry(data):
    H, T = data
    assert system(H, T).hurry() == H.nbytes / 2


@pytest.mark.parametrize(
    "change",
    [
        lambda H, T: system(H, T, tol=1e-4),
        lambda H, T: system(H, T, loss="squared"),
        lambda H, T: system(H[:150], T[:150]),  # wide
        lambda H, T: system(H.astype(np.float32), T),
        lambda H, T: system(H, np.where(np.arange(600)[:, None] == 7, 1e6, T)),  # one far away
        lambda H, T: system(1e-12 * H, T),
        lambda H, T: system(H, 1e-12 * T),
        lambda H, T: System(H, T, Problem("l21", [1e-24, 1e-24], 1.0, 1.0)),
        lambda H, T: system(H, T, observed=np.arange(600)[:, None] != [1, 2, 3]),
        lambda H, T: System(H, T, Problem("l21", 1.0, 1.0, 1.0)),  # one problem alone
    ],
    ids=[
        "tight",
        "squared",
        "wide",
        "float32",
        "far",
        "small H",
        "small T",
        "small tau",
        "missing",
        "single",
    ],
)
def test_others_do_not(data, change):
    assert change(*data).hurry() == 0


def test_small_systems_do_not(data, monkeypatch):
    monkeypatch.undo()
    H, T = data
    assert not short_enough(H, T, Problem("l21", 1.0, 1.0, 1.0), None)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grouped", [True, False], ids=["nodes", "cells"])
def test_a_path_is_what_it_says(data, monkeypatch, loss, weighted, grouped):
    H, T = data
    used = []
    step = QuickRows.step
    monkeypatch.setattr(
        QuickRows, "step", lambda *args, **kwargs: used.append(0) or step(*args, **kwargs)
    )
    weights = np.random.default_rng(5).uniform(0.3, 3, len(H)) if weighted else None
    options = {"loss": loss, "grouped": grouped, "sample_weight": weights, "n_lams": 7}
    path = gorelm_path(H, T, None, RATIOS, eps=1e-4, tol=1e-3, **options)
    assert used
    assert path.converged.all()
    omega = None if weights is None else np.sqrt(weights)
    if omega is not None:
        H, T = omega[:, None] * H, omega[:, None] * T
    for a, ratio in enumerate(path.l1_ratios):
        for p, lam in enumerate(path.lams):
            problem = Problem(loss, 1.0, lam * ratio, lam * (1 - ratio), grouped=grouped)
            B = path.coefs[a, p][:, None]
            value = Rows(H, T, omega).loss(B, problem)[0, 0] + problem.penalty_values(B)[0]
            np.testing.assert_allclose(path.objective[a, p], value, rtol=1e-9)
            best = solve(H, T, problem, omega=omega, settings=replace(ADAPTIVE, tol=1e-4))
            assert value * (1 - path.dual_gap[a, p]) <= best.objective[0] * (1 + 1e-9)


def test_what_float32_cannot_prove_gets_all_digits(data, monkeypatch):
    # Without ridge H'Y must be within l1 everywhere, which for a small l1 takes digits.
    H, T = data
    refined = []
    refine = QuickRows.refine
    monkeypatch.setattr(QuickRows, "refine", lambda self: refined.append(0) or refine(self))
    problem = Problem("l21", 1.0, [1e-4, 2e-4], 0.0)
    hurried = System(H, T, problem)
    hurried.hurry()
    found = hurried.solve(problem, replace(ADAPTIVE, max_iter=5000))
    assert found.status == ["converged"] * 2
    assert refined


def test_claims_without_ridge_are_proven_by_the_multipliers_left_with(monkeypatch):
    # A small l1 leaves no room for the rounding of sums that steps made.
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20_000, 6))
    H = 1 / (1 + np.exp(-(X @ rng.normal(size=(6, 50)) + rng.normal(size=50))))
    T = np.sin(2 * X[:, :2]) + 0.1 * rng.normal(size=(20_000, 2))
    T[::10] += 5
    problem = Problem("l21", 1.0, [1e-6, 2e-6], 0.0)
    settings = replace(ADAPTIVE, tol=5e-3, max_iter=400)
    start = system(H, T).solve(problem, settings, keep_state=True).end
    left, dual = [], Rows.dual

    def unrounded(self, which, rho, scale, correction=None):
        Y = self.U[:, which] * (scale * rho)[which, None]
        if correction is not None:
            Y = Y - np.tensordot(H, scale[which, None] * correction[:, which], 1)
        left.append(Y)
        return dual(self, which, rho, scale, correction)

    monkeypatch.setattr(Rows, "dual", unrounded)
    hurried = system(H, T)
    assert hurried.hurry()
    found = hurried.solve(problem, start=start, keep_state=True)
    Y = np.concatenate(left, axis=1)[:, np.argsort(np.argsort(found.n_iter, kind="stable"))]
    Y = Y / np.maximum(problem.dual_reach(Y), 1.0)[:, None]
    sums = (np.einsum("nl,npm->lpm", H, Y), np.einsum("npm,nm->p", Y, T))
    bound, _ = problem.dual_values(*sums, np.einsum("npm,npm->p", Y, Y))
    assert found.status == ["converged"] * 2
    assert (1 - bound / found.objective <= 1.1 * np.array(found.dual_gap) + 1e-4).all()


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nominal", [2**30, 2e6])
def test_memory_does_not_show_while_steps_are_short(data, monkeypatch, nominal):
    # 2e6 bytes are too few for all problems at once, or for the states of all lines.
    H, T = data
    monkeypatch.setattr(path, "MEMORY_BUDGET", nominal)
    shape, some = (3, 9), system(H, T)
    plan = path._plan(some, shape, np.inf)
    need = plan.need + H.nbytes / 2
    assert plan == path._plan(some, shape, need)
    assert (plan.at_once < 9 or plan.kept < 3) == (nominal < 2**30)

    def run(budget):
        return gorelm_path(H, T, l1_ratios=RATIOS, n_lams=9, memory_budget=budget)

    free, tight, less = run(np.inf), run(need), run(0.99 * need)
    for name in vars(free):
        np.testing.assert_array_equal(getattr(tight, name), getattr(free, name))
    path._plan(some, shape, 0.99 * need)
    assert not some._hurries
    assert not np.array_equal(less.coefs, free.coefs)
    assert less.converged.all()
    for one, other in ((free, less), (less, free)):
        assert (one.objective <= other.objective * (1 + 1e-9) / (1 - one.dual_gap)).all()


# -- answers without emptied nodes --------------------------------------------------------------


@pytest.mark.parametrize("grouped", [True, False], ids=["nodes", "cells"])
def test_the_rest_says_what_emptied_nodes_said(data, grouped):
    H, T = data
    rows, factor = Rows(H, T), EighFactor(gram(H))
    rng = np.random.default_rng(6)
    B = rng.normal(size=(200, 3, 3))
    full = rng.random((200, 3, 1 if grouped else 3)) < [[0.7], [0.3], [1.0]]
    B = np.where(full, B, 0.01 * rng.random(B.shape))
    polish = Polish(rows, Directions.of(factor, rows.H))
    answer = polish.without(B, full)
    assert not (answer * ~full).any()
    np.testing.assert_array_equal(answer[:, 2], B[:, 2])
    vectors, _ = factor.leading(DIRECTIONS)
    lost = np.einsum("lk,lpm->kpm", vectors, B - B * full)[:, :2]
    left = np.einsum("lk,lpm->kpm", vectors, B - answer)[:, :2]
    assert np.abs(left).max() < 20 * SPARE * np.abs(lost).max()


def test_it_says_it_in_fewer_iterations(data, monkeypatch):
    H, T = data
    path = gorelm_path(H, T, None, [0.5, 1.0], n_lams=17, eps=1e-4)
    monkeypatch.setattr(Polish, "without", lambda self, B, full: B * full)
    plain = gorelm_path(H, T, None, [0.5, 1.0], n_lams=17, eps=1e-4)
    assert path.n_iter.sum() < plain.n_iter.sum()


def test_no_node_left_to_say_it(data):
    polish = Polish(Rows(*data), Directions.of(EighFactor(gram(data[0])), data[0]))
    B = np.ones((200, 1, 3))
    assert not polish.without(B, np.zeros((200, 1, 1), dtype=bool)).any()
    one = np.arange(200)[:, None, None] == 3
    assert np.isfinite(polish.without(B, one)).all()


def test_runs_without_a_penalty_on_nodes_answer_with_their_weights(data):
    H, T = data
    problem = Problem("l21", 1.0, 0.0, [0.1, 0.2])
    found = admm.solve(
        QuickRows(H, T, None, None, H.astype(np.float32)), EighFactor(gram(H)), problem
    )
    for p in range(2):
        one = problem.select(np.array([p]))
        best = solve(H, T, one, settings=replace(ADAPTIVE, tol=1e-5)).objective[0]
        assert best * (1 - 1e-5) <= found.objective[p] <= best * (1 + 1e-3)
