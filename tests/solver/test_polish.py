"""Polished multipliers: feasible, right where it matters, and never proving too much."""

from dataclasses import replace

import numpy as np
import pytest

from gorelm._solver import admm
from gorelm._solver.admm import ADAPTIVE
from gorelm._solver.certificate import DIRECTIONS, Directions, Polish
from gorelm._solver.linalg import EighFactor, gram
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows
from support.oracles import steep_outputs

NO_POLISH = classmethod(lambda *_: None)

LOSSES = ["l21", "l1"]


@pytest.fixture(scope="module")
def data():
    return steep_outputs()


def pair(loss, l1, l2, delta=0.0):
    """Return a problem and an easier one: batches have the decomposition that polishing takes."""
    return Problem(loss, 1.0, [l1, 2 * l1], [l2, 2 * l2], delta)


@pytest.fixture
def iterate(data):
    """Run a few iterations; returns the rows, the factor and the iterate."""

    def run(problem, omega=None, n_iter=10):
        H, T = data
        if omega is not None:
            H, T = omega[:, None] * H, omega[:, None] * T
        rows, factor = MemoryRows(H, T, omega), EighFactor(gram(H))
        settings = replace(ADAPTIVE, stop="never", max_iter=n_iter)
        found = admm.solve(rows, factor, problem, settings, keep_checkpoint=True)
        return rows, factor, found.checkpoint.iterate

    return run


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_polished_multipliers_stay_in_the_ball(iterate, loss, weighted):
    omega = np.random.default_rng(1).uniform(0.3, 2, 600) if weighted else None
    problem = Problem(loss, 0.7, 0.01, 0.02)
    rows, factor, s = iterate(problem, omega)
    Y = Polish(rows, Directions.of(factor, rows.H)).multipliers(s, np.array([0]))
    assert problem.dual_reach(Y, omega)[0] <= 1 + 1e-12


@pytest.mark.parametrize("loss", LOSSES)
def test_leading_directions_are_set_right(data, iterate, loss):
    H, _ = data
    rows, factor, s = iterate(Problem(loss, 1.0, 0.0, 1e-3))
    polish, which = Polish(rows, Directions.of(factor, rows.H)), np.array([0])
    vectors, _ = factor.leading(DIRECTIONS)

    def distance(Y):
        return np.linalg.norm(vectors.T @ (H.T @ Y + 1e-3 * s.B[:, 0]))

    before, after = distance(s.rho[0] * rows.U[:, 0]), distance(polish.multipliers(s, which)[:, 0])
    assert after < 0.1 * before


def test_guess_is_near_the_sum(data, iterate):
    rows, factor, s = iterate(Problem("l21", 1.0, 0.0, 1e-3))
    polish, which = Polish(rows, Directions.of(factor, rows.H)), np.array([0])
    guess = polish.estimate(s, which)
    summed = polish.summed(guess, np.array([True]))
    np.testing.assert_allclose(summed.HtY[:, 0], data[0].T @ guess.Y[:, 0], atol=1e-9)
    raw = s.rho[0] * s.HtU
    moved = np.linalg.norm(summed.HtY - raw)
    assert np.linalg.norm(guess.HtY - summed.HtY) < 0.1 * moved
    np.testing.assert_allclose(guess.YT, np.sum(guess.Y[:, 0] * data[1]))


@pytest.mark.crossed
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("delta", [0.0, 0.2])
def test_bounds_are_below_the_optimum(data, loss, ratio, lam, delta):
    H, T = data
    problem = pair(loss, lam * ratio, lam * (1 - ratio), delta)
    found = solve(H, T, problem)
    best = solve(H, T, problem, settings=replace(ADAPTIVE, tol=1e-6, max_iter=20_000))
    assert found.status == ["converged"] * 2
    assert max(found.dual_gap) <= 1e-3
    assert (found.bound <= np.array(best.objective) * (1 + 1e-9)).all()
    assert (best.bound <= np.array(found.objective) * (1 + 1e-9)).all()


def test_small_ridges_take_fewer_iterations(data, monkeypatch):
    H, T = data
    problem = pair("l21", 0.0, 1e-4)
    polished = sum(solve(H, T, problem).n_iter)
    monkeypatch.setattr(Polish, "where_it_pays", NO_POLISH)
    assert polished <= 0.8 * sum(solve(H, T, problem).n_iter)


def test_polish_leaves_the_iteration_alone(data, monkeypatch):
    """It tells when to stop, and nothing else."""
    H, T = data
    problem = pair("l21", 0.0, 1e-4)
    polished = solve(H, T, problem)
    monkeypatch.setattr(Polish, "where_it_pays", NO_POLISH)
    last = int(np.argmax(polished.n_iter))
    settings = replace(ADAPTIVE, tol=1e-12, max_iter=polished.n_iter[last])
    without = solve(H, T, problem, settings=settings)
    np.testing.assert_allclose(polished.coef[:, last], without.coef[:, last], rtol=1e-9, atol=1e-12)


def test_fewer_nodes_than_directions():
    rng = np.random.default_rng(3)
    H, T = rng.normal(size=(20_000, 6)), rng.normal(size=(20_000, 2))
    found = solve(H, T, pair("l21", 0.0, 1e-3))
    assert found.status == ["converged"] * 2


def test_emptied_nodes_stay_empty(data):
    H, T = data
    found = solve(H, T, pair("l21", 2.0, 0.1))
    empty = ~found.coef[:, 0].any(axis=1)
    assert 0 < empty.sum() < len(empty)
