"""What must hold of a fit without knowing its optimum: symmetries, bookkeeping, odd inputs."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gorelm import GORELMRegressor, GRELMRegressor, ORELMRegressor, RELMRegressor
from gorelm._solver import admm
from gorelm._solver.admm import ADAPTIVE, Settings
from gorelm._solver.least_squares import minimum_norm
from gorelm._solver.linalg import CholeskyFactor, EighFactor, WideFactor, gram
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows
from support.oracles import Case, draw, objective, scaled
from support.sweeps import at

TALL, WIDE = (60, 20), (20, 60)
shapes = pytest.mark.parametrize("shape", [TALL, WIDE], ids=["tall", "wide"])

# Every kind of problem that takes a way of its own through the solver.
PROBLEMS = {
    "l21": Problem("l21", 1.0, 0.0, 1.0),
    "l21 sparse": Problem("l21", 1.5, 0.6, 0.4),
    "l21 lasso": Problem("l21", 1.0, 1.0, 0.0),
    "l21 huber": Problem("l21", 1.0, 0.5, 0.5, 0.3),
    "l1": Problem("l1", 1.0, 0.0, 0.5),
    "l1 huber": Problem("l1", 2.0, 0.0, 0.5, 0.3),
    "l1 cells": Problem("l1", 1.0, 0.5, 0.5, grouped=False),
    "squared": Problem("squared", 2.0, 0.0, 1.0),
    "squared sparse": Problem("squared", 2.0, 0.8, 0.3),
    "squared cells": Problem("squared", 2.0, 0.8, 0.3, grouped=False),
}
problems = pytest.mark.parametrize("name", PROBLEMS)
iterative = pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "squared"])

KEYS = {
    "iteration",
    "objective",
    "dual_gap",
    "primal_residual",
    "dual_residual",
    "rho",
    "sigma",
}


def run(H, T, problem, *, weights=None, observed=None, callback=None, **options):
    Hs, Ts, omega, observed = scaled(Case(H, T, weights=weights, observed=observed))
    options = {"tol": 1e-6, "max_iter": 50_000, **options}
    return solve(
        Hs,
        Ts,
        problem,
        omega=omega,
        observed=observed,
        settings=Settings(**options),
        callback=callback,
    )


def assert_same_fit(one, other, atol=1e-10):
    """The same weights after the same number of iterations, to rounding."""
    assert one.n_iter == other.n_iter
    assert one.status == other.status
    np.testing.assert_allclose(one.coef, other.coef, rtol=0, atol=atol * np.abs(one.coef).max())
    np.testing.assert_allclose(one.objective, other.objective, rtol=1e-9)


# -- batches -----------------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["l21", "l1", "squared"])
def test_batch_equals_single_fits(shape, sparse, loss):
    H, T, w, _ = draw(0, *shape, weighted=True)
    lam = np.array([0.1, 1.0, 30.0, 3.0])
    ratio = np.array([0.2, 0.9, 0.5, 1.0]) if sparse else np.zeros(4)
    delta = np.array([0.0, 0.2, 0.0, 0.5])
    batch = Problem(loss, [1.0, 2.0, 1.0, 0.5], lam * ratio, lam * (1 - ratio), delta)
    together = run(H, T, batch, weights=w)
    assert together.status == ["converged"] * 4
    assert together.coef.shape == (shape[1], 4, 3)
    if loss != "squared" or sparse:
        assert len(set(together.n_iter)) > 1  # some do leave before others
    for p in range(4):
        alone = run(H, T, batch.select(np.array([p])), weights=w)
        assert together.n_iter[p] == alone.n_iter[0]
        assert together.dual_gap[p] <= 1e-6
        size = np.abs(alone.coef).max()
        np.testing.assert_allclose(together.coef[:, p], alone.coef[:, 0], atol=1e-7 * size)
        np.testing.assert_allclose(together.objective[p], alone.objective[0], rtol=1e-9)
        for mine, other in zip(together.history[p], alone.history[0], strict=True):
            assert mine.keys() == other.keys()
            assert mine["rho"] == pytest.approx(other["rho"], rel=1e-6)


def test_mixed_batch_reaches_the_same_optima():
    # A member without a sparse penalty has a split in the batch and none alone.
    H, T, _, _ = draw(1, *TALL)
    batch = Problem("l21", 1.0, [0.0, 1.0], [1.0, 1.0])
    together = run(H, T, batch)
    for p in range(2):
        alone = run(H, T, batch.select(np.array([p])))
        assert together.objective[p] == pytest.approx(alone.objective[0], rel=2e-6)


@pytest.mark.crossed
@pytest.mark.parametrize("shape", [TALL, WIDE, (30, 30)], ids=["tall", "wide", "square"])
@iterative
def test_every_factor_gives_the_same_iterates(shape, name):
    H, T, _, _ = draw(2, *shape)
    problem, settings = PROBLEMS[name], Settings(tol=1e-6)
    factors = [
        CholeskyFactor(gram(H)),
        EighFactor(gram(H)),
        WideFactor(H),
        WideFactor(H, EighFactor),
    ]
    direct = problem.loss == "squared"
    fits = [admm.solve(MemoryRows(H, T), f, problem, settings, direct=direct) for f in factors]
    for fit in [*fits[1:], run(H, T, problem)]:
        assert_same_fit(fits[0], fit, atol=1e-8)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["l21", "l1", "l1 huber", "squared"])
@pytest.mark.parametrize("missing", [False, True])
def test_wide_reduction_equals_the_tall_treatment(name, missing):
    H, T, w, observed = draw(3, *WIDE, weighted=True, missing=missing)
    reduced = run(H, T, PROBLEMS[name], weights=w, observed=observed, tol=1e-8)
    Hs, Ts, omega, _ = scaled(Case(H, T, weights=w, observed=observed))
    rows, factor = MemoryRows(Hs, Ts, omega, observed), CholeskyFactor(gram(Hs))
    full = admm.solve(rows, factor, PROBLEMS[name], Settings(tol=1e-8))
    if name == "squared" and not missing:  # closed form against iterations
        np.testing.assert_allclose(reduced.coef, full.coef, atol=1e-3 * np.abs(full.coef).max())
    else:
        assert_same_fit(reduced, full, atol=1e-8)
    # Nothing outside the range of H'.
    back = np.linalg.pinv(H) @ (H @ reduced.coef[:, 0])
    np.testing.assert_allclose(back, reduced.coef[:, 0], atol=1e-9)


def test_closed_form_is_what_the_iteration_converges_to():
    for shape in (TALL, WIDE):
        H, T, _, _ = draw(4, *shape)
        exact = run(H, T, PROBLEMS["squared"]).coef[:, 0]
        split = run(H, T, PROBLEMS["squared"], observed=np.ones(T.shape, bool), tol=1e-12)
        np.testing.assert_allclose(split.coef[:, 0], exact, atol=1e-5 * np.abs(exact).max())


# -- symmetries --------------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@problems
@pytest.mark.parametrize("missing", [False, True])
def test_integer_weights_are_repeated_rows(shape, name, missing):
    H, T, _, observed = draw(5, *shape, missing=missing)
    times = np.random.default_rng(5).integers(1, 4, len(H))
    repeat = np.repeat(np.arange(len(H)), times)
    weighted = run(H, T, PROBLEMS[name], weights=times.astype(float), observed=observed)
    known = None if observed is None else observed[repeat]
    # Repeating may make a wide H tall: another way, the same iterates.
    repeated = run(H[repeat], T[repeat], PROBLEMS[name], observed=known)
    if np.isnan(weighted.objective[0]):  # the closed form reports no objective
        weighted, repeated = replace(weighted, objective=[1.0]), replace(repeated, objective=[1.0])
    assert_same_fit(weighted, repeated)


ESTIMATORS = [
    GORELMRegressor(0.5, l1_ratio=0.0),
    GORELMRegressor(0.5, l1_ratio=0.5, delta=0.1),
    GRELMRegressor(2.0),
    ORELMRegressor(2.0),
    RELMRegressor(2.0, fit_intercept=True),
    RELMRegressor(2.0, l1_ratio=0.5, fit_intercept=True),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_weights_of_estimators(estimator):
    rng = np.random.default_rng(6)
    X, T = rng.uniform(-1, 1, (40, 3)), rng.standard_normal((40, 2))
    times = rng.integers(0, 4, 40)
    assert (times == 0).any()
    estimator = estimator.set_params(n_hidden=15, random_state=0, tol=1e-6)
    X[times == 0] *= 100.0  # would move the scaling if it counted
    estimator.fit(X, T, sample_weight=times)
    weighted, n_iter, predictions = estimator.coef_, estimator.n_iter_, estimator.predict(X)
    repeat = np.repeat(np.arange(40), times)
    estimator.fit(X[repeat], T[repeat])
    assert estimator.n_iter_ == n_iter
    np.testing.assert_allclose(estimator.coef_, weighted, atol=1e-10 * np.abs(weighted).max())
    np.testing.assert_allclose(estimator.predict(X), predictions, atol=1e-9)
    kept = times > 0
    estimator.fit(X[kept], T[kept], sample_weight=times[kept])
    np.testing.assert_allclose(estimator.coef_, weighted, atol=1e-10 * np.abs(weighted).max())


@pytest.mark.crossed
@shapes
@iterative
def test_order_of_rows_nodes_and_targets_does_not_matter(shape, name):
    H, T, w, observed = draw(7, *shape, weighted=True, missing=True)
    rng = np.random.default_rng(7)
    r, c, t = (rng.permutation(n) for n in (*H.shape, T.shape[1]))
    one = run(H, T, PROBLEMS[name], weights=w, observed=observed)
    other = run(H[r][:, c], T[r][:, t], PROBLEMS[name], weights=w[r], observed=observed[r][:, t])
    assert_same_fit(replace(one, coef=one.coef[c][:, :, t]), other, atol=1e-8)


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize("name", ["l21", "l21 sparse", "l21 lasso", "l21 huber", "squared sparse"])
def test_rotated_targets_give_rotated_weights(shape, name):
    # Row norms do not see a rotation of the targets; it is what "grouped" means.
    H, T, w, _ = draw(8, *shape, weighted=True)
    Q = np.linalg.qr(np.random.default_rng(8).standard_normal((3, 3)))[0]
    one, other = run(H, T, PROBLEMS[name], weights=w), run(H, T @ Q, PROBLEMS[name], weights=w)
    assert_same_fit(replace(one, coef=one.coef @ Q), other, atol=1e-8)


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize("factor", [1024.0, 1 / 1024])
@pytest.mark.parametrize("name", ["l21", "l1", "l1 huber"])
def test_units_of_the_targets_without_sparsity(shape, factor, name):
    # Multiply T by c: loss and l2,1 norm grow by c, the squared norm by c^2. Divide l2 by c and
    # multiply delta, and the whole objective grows by c, at every step.
    H, T, _, _ = draw(9, *shape)
    p = PROBLEMS[name]
    moved = Problem(p.loss, p.tau, p.l1, p.l2 / factor, p.delta * factor, p.grouped)
    one, other = run(H, T, p), run(H, T * factor, moved)
    assert_same_fit(
        replace(one, coef=one.coef * factor, objective=[one.objective[0] * factor]), other, 1e-8
    )


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize("factor", [1000.0, 1e-3])
@iterative
def test_units_of_the_targets(shape, factor, name):
    H, T, _, _ = draw(10, *shape)
    p = PROBLEMS[name]
    numbers = (
        (p.l1 * factor, p.l2) if p.loss == "squared" else (p.l1, p.l2 / factor)
    )  # squared: everything grows by c^2
    moved = Problem(p.loss, p.tau, *numbers, p.delta * factor, p.grouped)
    growth = factor**2 if p.loss == "squared" else factor
    one, other = run(H, T, p), run(H, T * factor, moved)
    assert other.status == ["converged"]
    assert other.objective[0] == pytest.approx(one.objective[0] * growth, rel=2e-6)


@pytest.mark.parametrize("name", ["l21", "l21 sparse", "squared sparse"])
def test_weight_of_everything(name):
    # Multiplying the whole objective by a number changes nothing.
    H, T, _, _ = draw(11, *TALL)
    p = PROBLEMS[name]
    one = run(H, T, p)
    other = run(H, T, Problem(p.loss, p.tau * 64, p.l1 * 64, p.l2 * 64, p.delta))
    assert one.n_iter == other.n_iter
    np.testing.assert_allclose(one.coef, other.coef, atol=1e-12)
    np.testing.assert_allclose(other.objective[0], 64 * one.objective[0], rtol=1e-12)


# -- missing cells -----------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@problems
def test_a_mask_that_hides_nothing(shape, name):
    H, T, w, _ = draw(12, *shape, weighted=True)
    everything = np.ones(T.shape, bool)
    plain = run(H, T, PROBLEMS[name], weights=w)
    masked = run(H, T, PROBLEMS[name], weights=w, observed=everything)
    if PROBLEMS[name].loss != "squared":
        assert_same_fit(plain, masked, atol=1e-14)
    else:  # with a mask the squared loss has a residual split too
        case = Case(H, T, "squared", 2.0, *_penalty(PROBLEMS[name]), weights=w)
        case = replace(case, grouped=PROBLEMS[name].grouped)
        values = [objective(case, fit.coef[:, 0]) for fit in (plain, masked)]
        assert values[0] == pytest.approx(values[1], rel=2e-6)


def _penalty(problem):
    return float(problem.l1[0]), float(problem.l2[0])


@pytest.mark.crossed
@shapes
@problems
def test_rows_without_any_known_target_do_not_count(shape, name):
    H, T, _, observed = draw(13, *shape, missing=True)
    observed[:] = True
    observed[::4] = False
    observed[1, 0] = False
    kept = observed.any(axis=1)
    one = run(H, T, PROBLEMS[name], observed=observed, tol=1e-8)
    other = run(H[kept], T[kept], PROBLEMS[name], observed=observed[kept], tol=1e-8)
    assert one.objective[0] == pytest.approx(other.objective[0], rel=2e-8)


@problems
def test_what_an_unknown_cell_holds_does_not_matter(name):
    rng = np.random.default_rng(14)
    X, T = rng.uniform(-1, 1, (40, 3)), rng.standard_normal((40, 2))
    hidden = rng.random(T.shape) < 0.2
    problem = PROBLEMS[name]
    observed = ~hidden
    masked = run(X, np.where(hidden, 0.0, T), problem, observed=observed)
    assert np.isfinite(masked.coef).all()
    rows = MemoryRows(X, np.where(hidden, 0.0, T), None, observed)
    factor = CholeskyFactor(gram(X))
    seen = []

    def look(record):
        seen.append((rows.E[:, 0].copy(), rows.U[:, 0].copy()))

    admm.solve(rows, factor, problem, Settings(tol=1e-6, max_iter=50), look)
    for E, U in seen:
        assert not U[hidden].any()
        assert E[hidden].any()


# -- bookkeeping -------------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@iterative
def test_history(shape, name):
    H, T, w, _ = draw(15, *shape, weighted=True)
    records = []
    fit = run(H, T, PROBLEMS[name], weights=w, callback=records.append)
    history = fit.history[0]
    for seen, kept in zip(records, history, strict=True):
        np.testing.assert_equal(seen, kept)
    iterations = [record["iteration"] for record in history]
    assert iterations == sorted(set(iterations))
    assert iterations[-1] == fit.n_iter[0]
    assert np.diff([0, *iterations]).max() <= 10  # no fit runs on for long after it is done
    for record in history:
        assert set(record) == KEYS
        assert record["objective"] > 0
        assert 0 <= record["dual_gap"] <= 1
        assert record["rho"] > 0
        assert record["primal_residual"] >= 0
        assert (record["sigma"] > 0) if PROBLEMS[name].is_sparse else np.isnan(record["sigma"])
    # The lower bound that the gaps imply never falls.
    bounds = [record["objective"] * (1 - record["dual_gap"]) for record in history]
    assert np.all(np.diff(bounds) >= -1e-9 * abs(bounds[-1]))
    assert fit.objective[0] == history[-1]["objective"]
    assert fit.dual_gap[0] == history[-1]["dual_gap"]


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize("name", ["l21", "l21 sparse", "squared sparse"])
def test_callback_stops_the_fit(shape, name):
    H, T, _, _ = draw(16, *shape)
    calls = []

    def third(record):
        calls.append(record["iteration"])
        record["objective"] = -1.0  # a copy: the history must not change
        return len(calls) == 3

    fit = run(H, T, PROBLEMS[name], callback=third, tol=1e-14)
    assert len(calls) == len(fit.history[0]) == 3
    assert fit.status == ["stopped"]
    assert fit.n_iter == [calls[-1]]
    assert all(record["objective"] > 0 for record in fit.history[0])
    cut = run(H, T, PROBLEMS[name], stop="never", max_iter=fit.n_iter[0])
    np.testing.assert_array_equal(fit.coef, cut.coef)


@pytest.mark.crossed
@shapes
@problems
@pytest.mark.parametrize("steps", [1, 3, 17, 40])
def test_never_runs_all_its_steps(shape, name, steps):
    H, T, _, _ = draw(17, *shape)
    fit = run(H, T, PROBLEMS[name], stop="never", max_iter=steps)
    assert fit.n_iter == [steps]
    assert fit.status == ["max_iter"]
    assert fit.history[0][-1]["iteration"] == steps


def test_max_iter_is_reported_as_such():
    H, T, _, _ = draw(18, *TALL)
    fit = run(H, T, PROBLEMS["l21"], tol=1e-15, max_iter=7)
    assert (fit.status, fit.n_iter) == (["max_iter"], [7])
    assert fit.dual_gap[0] > 1e-15
    assert fit.history[0][-1]["iteration"] == 7


@shapes
def test_fixed_penalty_stays_and_own_penalty_adapts(shape):
    H, T, _, _ = draw(19, *shape)
    problem = Problem("l21", 1.0, 5e-3, 5e-3)
    fixed = run(H, T, problem, rho=0.3, stop="never", max_iter=200)
    assert {(r["rho"], r["sigma"]) for r in fixed.history[0]} == {(0.3, 0.3)}
    # Left to itself it adapts; each change stays within a factor of four.
    own = run(H, T, problem, stop="never", max_iter=200)
    assert len({(r["rho"], r["sigma"]) for r in own.history[0]}) > 1
    for key in ("rho", "sigma"):
        values = np.array([r[key] for r in own.history[0]])
        ratio = values[1:] / values[:-1]
        assert ((ratio >= 0.249) & (ratio <= 4.001)).all()


def shrink_rows(A, k):
    r = np.linalg.norm(A, axis=1, keepdims=True)
    return np.where(r > k, (1 - k / np.maximum(r, 1e-300)) * A, 0.0)


def replay(H, T, tau, l1, l2, relax, records):
    """The iteration with multipliers in their own units, for the penalties that were recorded.

    In these units nothing is rescaled when a penalty changes.
    """
    E = Y = np.zeros_like(T)
    Z = W = np.zeros((H.shape[1], T.shape[1]))
    done = 0
    for record in records:
        rho, sigma = record["rho"], record["sigma"]
        for _ in range(int(record["iteration"]) - done):
            left = rho * H.T @ H + (l2 + sigma) * np.eye(H.shape[1])
            B = np.linalg.solve(left, H.T @ (rho * (T + E) - Y) + sigma * Z - W)
            mixed = relax * B + (1 - relax) * Z
            Z = shrink_rows(mixed + W / sigma, l1 / sigma)
            W = W + sigma * (mixed - Z)
            mixed = relax * (H @ B - T) + (1 - relax) * E
            E = shrink_rows(mixed + Y / rho, tau / rho)
            Y = Y + rho * (mixed - E)
        done = int(record["iteration"])
    return Z


@pytest.mark.parametrize(
    ("shape", "scale", "lam"), [(TALL, 1.0, 1e3), (TALL, 1e-3, 1e-3), (WIDE, 1e-3, 1e-3)]
)
def test_a_change_of_penalty_keeps_the_multipliers(shape, scale, lam):
    H, T, _, _ = draw(19, *shape)
    H = H * scale
    fit = run(H, T, Problem("l21", 1.0, lam / 2, lam / 2), tol=1e-15, stop="never", max_iter=60)
    records = fit.history[0]
    assert len({(r["rho"], r["sigma"]) for r in records}) > 1
    expected = replay(H, T, 1.0, lam / 2, lam / 2, ADAPTIVE.relax, records)
    np.testing.assert_allclose(fit.coef[:, 0], expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.crossed
@shapes
@problems
def test_inputs_are_left_alone(shape, name):
    H, T, w, observed = draw(20, *shape, weighted=True, missing=True)
    Hs, Ts, omega, observed = scaled(Case(H, T, weights=w, observed=observed))
    for array in (Hs, Ts, omega, observed):
        array.setflags(write=False)
    for known in (None, observed):
        solve(Hs, Ts, PROBLEMS[name], omega=omega, observed=known, settings=ADAPTIVE)


@pytest.mark.parametrize("name", ["l21", "l21 sparse", "l1 huber", "squared sparse"])
@pytest.mark.parametrize("size", [32, 77])
def test_blocks_of_rows_do_not_show(monkeypatch, name, size):
    H, T, w, observed = draw(21, 210, 12, weighted=True, missing=True)
    whole = run(H, T, PROBLEMS[name], weights=w, observed=observed)
    blocks = [slice(start, min(start + size, 210)) for start in range(0, 210, size)]
    monkeypatch.setattr(MemoryRows, "_blocks", lambda *args, **options: iter(blocks))
    assert_same_fit(whole, run(H, T, PROBLEMS[name], weights=w, observed=observed), atol=1e-9)


@given(
    n=st.integers(1, 3000),
    n_hidden=st.integers(1, 5000),
    columns=st.integers(1, 500),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_blocks_cover_every_row_once(n, n_hidden, columns, dtype):
    H = np.broadcast_to(dtype(0.0), (n, n_hidden))
    rows = MemoryRows(H, np.zeros((n, 1)), HtT=np.zeros((n_hidden, 1)))
    covered = np.concatenate([np.arange(n)[b] for b in rows._blocks(columns)])
    np.testing.assert_array_equal(covered, np.arange(n))


@problems
@pytest.mark.parametrize("relax", [1.0, 1.6])
def test_one_row_pass_is_its_definition(name, relax):
    H, T, w, observed = draw(29, 90, 6, weighted=True, missing=True)
    Hs, Ts, omega, _ = scaled(Case(H, T, weights=w, observed=observed))
    problem, rho = PROBLEMS[name], np.array([1.7])
    rows = MemoryRows(Hs, Ts, omega, observed)
    rows.start(problem)
    rng = np.random.default_rng(29)
    for _ in range(3):  # the second and third pass start from an E and U that are not zero
        B = rng.standard_normal((6, 1, 3))
        E_old, U_old = rows.E.copy(), rows.U.copy()
        cap = np.array([np.inf])
        HtD, sums = rows.step(B, problem, rho, relax, cap=cap, measure=True)
        R = (Hs @ B[:, 0] - Ts)[:, None]
        V = relax * R + (1 - relax) * E_old + U_old
        known = observed[:, None]
        U = problem.multipliers(V * known, rho, omega)
        E = V - U
        np.testing.assert_allclose(rows.E, E, atol=1e-13)
        np.testing.assert_allclose(rows.U, U, atol=1e-13)
        assert not rows.U[~known].any()
        np.testing.assert_allclose(HtD[:, 0], Hs.T @ (E - U)[:, 0], atol=1e-11)
        np.testing.assert_allclose(rows.HtU(np.array([0]))[:, 0], Hs.T @ U[:, 0], atol=1e-11)
        for part, D in zip(rows.new_products(2), (E - U, U), strict=True):
            np.testing.assert_allclose(part[:, 0], Hs[:, 2:].T @ D[:, 0], atol=1e-11)
        expected = {
            "primal": (R - E) ** 2,
            "size": R**2,
            "hidden": (Hs @ B[:, 0]) ** 2,
            "error": E**2,
            "error_change": (E - E_old) ** 2,
            "UU": U**2,
            "UT": U[:, 0] * Ts,
        }
        for key, terms in expected.items():
            np.testing.assert_allclose(getattr(sums, key), [terms.sum()], rtol=1e-10, err_msg=key)
        p = PROBLEMS[name]
        tau, delta = float(p.tau[0]), float(p.delta[0])
        loss_only = Case(H, T, p.loss, tau, 0.0, 0.0, delta, True, w, observed)
        assert sums.loss[0, 0] == pytest.approx(objective(loss_only, B[:, 0]), rel=1e-12)
        np.testing.assert_allclose(rows.loss(B, problem), sums.loss, rtol=1e-12)


# -- odd inputs --------------------------------------------------------------------------------


@pytest.mark.crossed
@shapes
@problems
def test_targets_of_zero(shape, name):
    H, _, _, _ = draw(22, *shape)
    fit = run(H, np.zeros((len(H), 3)), PROBLEMS[name])
    assert not fit.coef.any()
    assert fit.status == ["converged"]
    assert fit.dual_gap == [0.0]


@problems
def test_hidden_outputs_of_zero(name):
    _, T, _, _ = draw(23, 20, 5)
    fit = run(np.zeros((20, 5)), T, PROBLEMS[name])
    assert fit.status == ["converged"]
    np.testing.assert_allclose(fit.coef, 0.0, atol=1e-12)


@problems
def test_a_dead_node_gets_no_weight(name):
    H, T, _, _ = draw(24, *TALL)
    H[:, 3] = 0.0
    dead = run(H, T, PROBLEMS[name], tol=1e-8)
    without = run(np.delete(H, 3, axis=1), T, PROBLEMS[name], tol=1e-8)
    np.testing.assert_allclose(dead.coef[3], 0.0, atol=1e-12)
    if PROBLEMS[name].loss != "squared" or PROBLEMS[name].is_sparse:
        assert dead.objective[0] == pytest.approx(without.objective[0], rel=2e-8)


@problems
def test_tiny_shapes(name):
    p = PROBLEMS[name]
    tau, delta = float(p.tau[0]), float(p.delta[0])
    for shape, m in product([(1, 1), (1, 7), (7, 1), (2, 3), (3, 3)], [1, 5]):
        H, T, _, _ = draw(25, *shape, m)
        for observed in (None, np.arange(T.size).reshape(T.shape) % 2 == 0):
            with at(shape=shape, m=m, observed=observed):
                fit = run(H, T, p, observed=observed)
                assert fit.coef.shape == (shape[1], 1, m)
                assert fit.status == ["converged"]
                case = Case(H, T, p.loss, tau, *_penalty(p), delta, p.grouped, None, observed)
                value = objective(case, fit.coef[:, 0])
                assert value <= objective(case, np.zeros((shape[1], m))) * (1 + 1e-6)
                rng = np.random.default_rng(25)
                for size in (1e-3, 1e-1):
                    nearby = fit.coef[:, 0] + size * rng.standard_normal((shape[1], m))
                    assert value <= objective(case, nearby) * (1 + 1e-6)


@problems
def test_repeated_nodes(name):
    # Exactly collinear columns, which a plain inverse would not survive.
    H, T, _, _ = draw(26, 40, 6)
    fit = run(np.hstack([H, H, H]), T, PROBLEMS[name])
    assert fit.status == ["converged"]
    parts = fit.coef.reshape(3, 6, 3)
    if float(PROBLEMS[name].l2[0]) > 0:  # strictly convex: they share evenly
        np.testing.assert_allclose(parts[0], parts[1], atol=1e-5 * np.abs(parts).max())


@pytest.mark.parametrize("name", ["l21", "l21 sparse", "l1", "l1 huber"])
def test_one_outlier_of_any_size_moves_no_robust_fit(name):
    H, T, _, _ = draw(27, *TALL)
    T[0] = 1e2
    near = run(H, T, PROBLEMS[name]).coef
    for size in (1e3, 1e6, 1e9, 1e12):
        T[0] = size
        far = run(H, T, PROBLEMS[name], tol=1e-3, max_iter=500)
        assert far.status == ["converged"]
        assert np.abs(far.coef - near).max() < 0.05
    T[0] = 1e6
    assert np.abs(run(H, T, PROBLEMS["squared"]).coef - near).max() > 100


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    n_hidden=st.integers(1, 12),
    m=st.integers(1, 3),
    name=st.sampled_from(sorted(PROBLEMS)),
)
def test_any_small_problem_converges(seed, n, n_hidden, m, name):
    H, T, _, _ = draw(seed, n, n_hidden, m)
    fit = run(H, T, PROBLEMS[name], tol=1e-4)
    assert fit.status == ["converged"]
    assert np.isfinite(fit.coef).all()


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_minimum_norm(shape, dtype):
    H, T, _, _ = draw(28, *shape, dtype=dtype)
    B = minimum_norm(H, T)
    assert B.dtype == np.float64
    np.testing.assert_allclose(B, np.linalg.pinv(H.astype(float)) @ T, atol=1e-9)


# -- penalties so weak that rounding shows ---------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("l1_ratio", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("exponent", [-20, -16, -12, -8])
def test_wide_and_sparse_certifies_at_any_lam_of_the_paper(exponent, l1_ratio, dtype):
    """The N x N side must not lose the digits that a small shift needs."""
    rng = np.random.default_rng(0)
    X, lam = rng.uniform(-1, 1, (80, 4)), 2.0**exponent
    H = 1 / (1 + np.exp(-(X @ rng.uniform(-1, 1, (4, 160)) + rng.uniform(-1, 1, 160))))
    T = np.column_stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * rng.standard_normal(
        (80, 2)
    )
    problem = Problem("l21", 1.0, lam * l1_ratio, lam * (1 - l1_ratio))
    loose = Settings(tol=1e-2, max_iter=20_000)
    assert solve(H.astype(dtype), T, problem, settings=loose).status == ["converged"]


def test_rounding_noise_of_zeros_is_no_scale():
    """Most targets zero up to rounding: the rest sets the units."""
    H, T, _, _ = draw(31, 120, 20)
    noisy = T.copy()
    noisy[:70] = 1e-15 * T[:70]
    clean = np.where(np.abs(noisy) < 1e-12, 0.0, noisy)
    a, b = (solve(H, targets, Problem("l21", 1.0, 0.0, 0.1)) for targets in (noisy, clean))
    assert a.status == b.status == ["converged"]
    assert a.n_iter == b.n_iter
    np.testing.assert_allclose(a.coef, b.coef, atol=1e-9)


def test_lost_iterates_end_the_run():
    """Nothing can be hoped for once the objective is not a number."""
    H, T, _, _ = draw(32, 40, 10)
    rows = MemoryRows(H, T)
    factor = CholeskyFactor(gram(np.full_like(H, np.nan)))
    fit = admm.solve(rows, factor, Problem("l21", 1.0, 0.0, 1.0))
    assert fit.n_iter[0] <= 5
    assert fit.status == ["max_iter"]


def test_ridge_knows_its_objective():
    H, T, _, _ = draw(33, 40, 10)
    for hidden in (H, H[:6]):
        targets = T[: len(hidden)]
        problem = Problem("squared", [2.0, 3.0], 0.0, [0.5, 1.0])
        fit = solve(hidden, targets, problem)
        R = np.einsum("nl,lpm->npm", hidden, fit.coef) - targets[:, None]
        by_hand = problem.loss_values(R) + problem.penalty_values(fit.coef)
        np.testing.assert_allclose(fit.objective, by_hand, rtol=1e-10)


def test_bounds_from_sums_that_drifted_are_taken_back(monkeypatch):
    """A recursion for H'U that goes wrong for a while must not leave a false certificate."""
    H, T, _, _ = draw(31, 200, 12)
    problem = Problem("l21", 1.0, 0.0, 0.5)
    exact = solve(H, T, problem, settings=Settings(tol=1e-9))
    update, count = admm._Run._update_rows, 0

    def drifting(self, s, GB, problem, *, measure):
        nonlocal count
        sums, count = update(self, s, GB, problem, measure=measure), count + 1
        if count <= 6:
            s.HtU = 0.3 * s.HtU
        return sums

    monkeypatch.setattr(admm._Run, "_update_rows", drifting)
    for tol in (1e-2, 1e-3, 1e-4):
        count = 0
        found = solve(H, T, problem, settings=Settings(tol=tol))
        true_gap = found.objective[0] / exact.objective[0] - 1
        assert found.bound[0] <= exact.objective[0] * (1 + 1e-9)
        assert found.dual_gap[0] >= 0.99 * true_gap - 1e-12
