"""The leading directions of H: found, and followed as it grows."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gorelm._solver.admm import ADAPTIVE, PAPER
from gorelm._solver.certificate import DIRECTIONS, MANY_NEW, Directions, Polish
from gorelm._solver.linalg import CholeskyFactor, EighFactor, WideFactor, gram
from gorelm._solver.prepared import Prepared
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows
from support.oracles import steep_outputs

LEADING = 7  # before the steepest fall: a constant and one for each input


@pytest.fixture(scope="module")
def data():
    return steep_outputs()


def found(H):
    wide = H.shape[0] < H.shape[1]
    return Directions.find(H, WideFactor(H) if wide else CholeskyFactor(gram(H)))


def holds(directions, H, rtol=1e-9):
    """Check what every user of directions takes for granted."""
    W, Q, count = directions.vectors, directions.outputs, min(DIRECTIONS, *H.shape)
    assert W.shape == (H.shape[1], count)
    np.testing.assert_allclose(W.T @ W, np.eye(count), atol=1e-9)
    np.testing.assert_allclose(Q, H @ W, atol=rtol * np.abs(Q).max())
    scale = np.sqrt(np.outer(directions.values, directions.values))
    np.testing.assert_allclose(
        (Q.T @ Q) / scale.max(), np.diag(directions.values) / scale.max(), atol=rtol
    )
    assert (np.diff(directions.values) >= 0).all()


@pytest.mark.parametrize("rows", [600, 150])
def test_those_found_are_the_leading_ones(data, rows):
    H = data[0][:rows]
    directions = found(H)
    holds(directions, H)
    exact = Directions.of(EighFactor(gram(H)), H)
    holds(exact, H)
    np.testing.assert_allclose(directions.values[-LEADING:], exact.values[-LEADING:], rtol=1e-6)
    cosines = np.linalg.svd(exact.vectors[:, -LEADING:].T @ directions.vectors)[1]
    assert cosines.min() >= 1 - 1e-6


@pytest.mark.parametrize("step", [100, 10, 3])
def test_they_follow_a_growing_layer(data, step):
    H = data[0]
    directions = found(np.ascontiguousarray(H[:, :50]))
    for n in range(50, 200, step):
        dH = np.ascontiguousarray(H[:, n : n + step])
        directions.extend(dH)
    holds(directions, H)
    exact = Directions.of(EighFactor(gram(H)), H)
    assert (directions.values <= exact.values * (1 + 1e-9)).all()  # as all of a subspace's are
    np.testing.assert_allclose(directions.values[-LEADING:], exact.values[-LEADING:], rtol=0.02)


def test_few_nodes_grow_to_all_directions():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(80, 50))
    directions = found(H[:, :5])
    assert directions.vectors.shape == (5, 5)
    directions.extend(H[:, 5:20], gram(H[:, 5:20]))
    holds(directions, H[:, :20])
    directions.extend(H[:, 20:])
    holds(directions, H)


def test_nodes_that_say_nothing_new():
    rng = np.random.default_rng(1)
    low = rng.normal(size=(90, 4))
    H = low @ rng.normal(size=(4, 60))
    directions = found(H[:, :40])
    directions.extend(H[:, 40:])
    assert np.isfinite(directions.vectors).all()
    assert (directions.values > 0).all()
    np.testing.assert_allclose(directions.values[-4:], np.linalg.eigvalsh(H.T @ H)[-4:])


# -- growing runs --------------------------------------------------------------------------------


def grown(H, T, problem, sizes, settings=ADAPTIVE, omega=None):
    """Grow through sizes; returns the system and the solutions."""
    system = Prepared(np.ascontiguousarray(H[:, : sizes[0]]), T, problem, omega, tol=settings.tol)
    solutions = [system.resume(problem, settings)]
    for old, new in pairwise(sizes):
        system.extend(np.ascontiguousarray(H[:, old:new]))
        solutions.append(system.resume(problem, settings))
    return system, solutions


@pytest.mark.parametrize("l1", [0.0, 0.05])
@pytest.mark.parametrize("loss", ["l21", "l1"])
def test_every_size_is_proven_and_sooner(data, monkeypatch, l1, loss):
    H, T = data
    problem, sizes = Problem(loss, 1.0, l1, 0.01), [170, 185, 200]
    _, solutions = grown(H, T, problem, sizes)
    best = Prepared(H, T, problem, tol=1e-6).solve(
        problem, replace(ADAPTIVE, tol=1e-6, max_iter=9999)
    )
    last = solutions[-1]
    value = MemoryRows(H, T).loss(last.coef, problem)[0, 0] + problem.penalty_values(last.coef)[0]
    np.testing.assert_allclose(last.objective[0], value, rtol=1e-9)
    assert last.dual_gap[0] <= 1e-3
    assert last.bound[0] <= best.objective[0] * (1 + 1e-9)
    assert value * (1 - last.dual_gap[0]) <= best.objective[0] * (1 + 1e-9)
    monkeypatch.setattr(Polish, "where_it_pays", classmethod(lambda *_: None))
    _, plain = grown(H, T, problem, sizes)
    iterations = [sum(s.n_iter[0] for s in of[1:]) for of in (solutions, plain)]
    assert iterations[0] <= 0.8 * iterations[1]


def test_directions_are_kept_where_they_help(data):
    H, T = data
    problem, sparse = Problem("l21", 1.0, 0.0, 0.01), Problem("l21", 1.0, 0.05, 0.01)
    system, _ = grown(H, T, problem, [180, 200])
    directions = system._directions
    holds(directions, H)
    system.keep(np.arange(190))
    assert system._directions is None
    system.resume(problem)
    holds(system._directions, H[:, :190])
    assert grown(H, T, problem, [180, 200], PAPER)[0]._directions is None
    assert grown(H[:, :100], T, problem, [80, 100])[0]._directions is None  # small
    wide = np.hstack([H] * 4)
    wide = wide + 1e-3 * np.random.default_rng(0).normal(size=wide.shape)
    assert grown(wide, T, problem, [500, 700])[0]._directions is None  # other coordinates
    holds(grown(wide, T, sparse, [500, 700])[0]._directions, wide[:, :700])


def test_many_new_nodes_at_once(data):
    H, T = data
    wide = np.hstack([H, H**2, H**3])  # 600 x 600
    problem = Problem("l21", 1.0, 0.0, 0.01)
    first = np.ascontiguousarray(wide[:, :200])
    system = Prepared(first, T, problem)
    system.resume(problem)
    system.extend(np.ascontiguousarray(wide[:, 200 : 200 + MANY_NEW]))
    holds(system._directions, wide[:, : 200 + MANY_NEW])
    system = Prepared(first, T, problem)
    system.resume(problem)
    system.extend(np.ascontiguousarray(wide[:, 200 : 201 + MANY_NEW]))
    assert system._directions is None  # to be found anew
    assert system.resume(problem).status == ["converged"]
    holds(system._directions, wide[:, : 201 + MANY_NEW])


@pytest.mark.parametrize("l1", [0.0, 0.05])
def test_a_run_that_has_ended_is_at_its_end(data, l1):
    H, T = data
    problem = Problem("l21", 1.0, l1, 0.01)
    system, (*_, last) = grown(H, T, problem, [180, 200])
    again = system.resume(problem)
    assert again.n_iter == [0]
    np.testing.assert_array_equal(again.coef, last.coef)
