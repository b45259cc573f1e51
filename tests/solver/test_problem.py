import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from gorelm._solver.problem import LOSSES, Problem, _best_bound
from support.oracles import Case, draw, objective, scaled
from support.sweeps import examples

losses = pytest.mark.parametrize("loss", LOSSES)
l1_ratios = pytest.mark.parametrize("l1_ratio", [0.0, 0.25, 0.5, 0.75, 1.0])
groupings = pytest.mark.parametrize("grouped", [True, False])
seeds = st.integers(0, 2**32 - 1)


def numbers(rng, count):
    """tau, l1, l2 and delta of `count` problems, some of them zero."""
    tau, l1, l2, delta = rng.uniform(0.2, 3.0, (4, count))
    l1[::3] = 0.0
    delta[1::3] = 0.0
    return tau, l1, l2, delta


def dual_inputs(H, T, Y):
    """H'Y, <Y, T> and <Y, Y> of one problem, in the shapes of a batch."""
    return (H.T @ Y)[:, None], np.array([np.sum(Y * T)]), np.array([np.sum(Y * Y)])


# -- values ------------------------------------------------------------------------------------


@losses
@groupings
@pytest.mark.parametrize("weighted", [False, True])
def test_objective_is_its_definition(loss, grouped, weighted):
    rng = np.random.default_rng(5)
    H, T, weights, _ = draw(5, 12, 5, weighted=weighted)
    B = rng.standard_normal((5, 4, 3))
    B[2] = 0.0
    numbers_ = numbers(rng, 4)
    problem = Problem(loss, *numbers_, grouped=grouped)
    omega = None if weights is None else np.sqrt(weights)
    for p, (tau, l1, l2, delta) in enumerate(zip(*numbers_, strict=True)):
        case = Case(H, T, loss, tau, l1, l2, delta, grouped, weights)
        Hs, Ts, _, _ = scaled(case)
        R = np.einsum("nl,lpm->npm", Hs, B) - Ts[:, None]
        value = problem.loss_values(R, omega) + problem.penalty_values(B)
        assert value.shape == (4,)
        assert value[p] == pytest.approx(objective(case, B[:, p]), rel=1e-12)


@losses
def test_huber_at_and_around_its_knee(loss):
    # Continuous where the pieces meet, and the plain norm as delta goes to 0.
    R = np.array([[[0.3, 0.4]]])
    at = Problem(loss, 1.0, 0.0, 1.0, [0.5]).loss_values(R)[0]
    for delta in (0.5 - 1e-9, 0.5 + 1e-9):
        assert Problem(loss, 1.0, 0.0, 1.0, delta).loss_values(R)[0] == pytest.approx(at, abs=1e-8)
    if loss != "squared":
        plain, limit = (Problem(loss, 1.0, 0.0, 1.0, d).loss_values(R)[0] for d in (0.0, 1e-12))
        assert plain == pytest.approx(0.5 if loss == "l21" else 0.7, rel=1e-12)
        assert limit == pytest.approx(plain, rel=1e-10)


@losses
def test_zero_residuals_cost_nothing(loss):
    for delta in (0.0, 1.0):
        problem = Problem(loss, 2.0, 1.0, 1.0, delta)
        assert problem.loss_values(np.zeros((4, 1, 2)), np.array([1.0, 0.0, 2.0, 3.0])) == [0.0]
        assert problem.penalty_values(np.zeros((4, 1, 2))) == [0.0]


@losses
@groupings
def test_batch_equals_single_problems(loss, grouped):
    rng = np.random.default_rng(6)
    numbers_ = numbers(rng, 5)
    batch = Problem(loss, *numbers_, grouped=grouped)
    assert batch.n_problems == 5
    R, X, HtY = rng.standard_normal((9, 5, 3)), *rng.standard_normal((2, 6, 5, 3))
    rho, omega = rng.uniform(0.5, 2, 5), rng.uniform(0.5, 2, 9)
    YT, YY = -rng.uniform(0, 3, 5), rng.uniform(0, 3, 5)
    for p in range(5):
        which = np.arange(5) == p
        single, one = batch.select(which), slice(p, p + 1)
        assert single.n_problems == 1
        assert (single.loss, single.grouped) == (loss, grouped)
        pairs = [
            (batch.loss_values(R, omega)[one], single.loss_values(R[:, one], omega)),
            (batch.penalty_values(X)[one], single.penalty_values(X[:, one])),
            (
                batch.multipliers(R, rho, omega)[:, one],
                single.multipliers(R[:, one], rho[one], omega),
            ),
            (batch.penalty_prox(X, rho)[:, one], single.penalty_prox(X[:, one], rho[one])),
            (
                np.array(batch.dual_values(HtY, YT, YY))[:, one],
                single.dual_values(HtY[:, one], YT[one], YY[one]),
            ),
        ]
        for together, alone in pairs:
            np.testing.assert_allclose(together, alone, rtol=1e-13, atol=1e-15)
        assert single.is_sparse == (numbers_[1][p] > 0)
    assert batch.is_sparse
    np.testing.assert_array_equal(batch.select(np.array([3, 1])).tau, batch.tau[[3, 1]])


# -- the lower bound ---------------------------------------------------------------------------


def feasible_multipliers(rng, loss, tau, weights, shape, observed):
    """Any Y within the dual ball of the loss, on its boundary in some rows."""
    Y = rng.standard_normal(shape) * 3.0 ** rng.uniform(-3, 2)
    if observed is not None:
        Y *= observed
    if loss == "squared":
        return Y
    limit = tau * (np.ones(len(Y)) if weights is None else np.sqrt(weights))[:, None]
    size = np.linalg.norm(Y, axis=1, keepdims=True) if loss == "l21" else np.abs(Y)
    return Y * np.minimum(1.0, limit / np.maximum(size, 1e-300))


@losses
@l1_ratios
@groupings
@examples(15)
@given(
    seed=seeds,
    knee=st.sampled_from([0.0, 0.4]),
    weighted=st.booleans(),
    missing=st.booleans(),
    wide=st.booleans(),
)
def test_weak_duality(loss, l1_ratio, grouped, seed, knee, weighted, missing, wide):
    rng = np.random.default_rng(seed)
    n, n_hidden = (5, 9) if wide else (9, 5)
    H, T, weights, observed = draw(seed, n, n_hidden, 2, weighted=weighted, missing=missing)
    tau, lam = 10.0 ** rng.uniform(-1, 1, 2)
    l1, l2 = lam * l1_ratio, lam * (1 - l1_ratio)
    case = Case(H, T, loss, tau, l1, l2, knee, grouped, weights, observed)
    Hs, Ts, _, _ = scaled(case)
    problem = Problem(loss, tau, l1, l2, knee, grouped)
    ridge = np.linalg.lstsq(Hs, Ts, rcond=None)[0]
    points = [np.zeros_like(ridge), ridge, *rng.standard_normal((3, *ridge.shape))]
    lowest = min(objective(case, B) for B in points)
    candidates = [feasible_multipliers(rng, loss, tau, weights, T.shape, observed)]
    # The sign that makes the bound useful, for a random point and for the ridge fit's residuals.
    candidates.append(-candidates[0] * np.sign(np.sum(candidates[0] * Ts)))
    residual = tau * (Hs @ ridge - Ts) * (1 if observed is None else observed)
    if loss == "squared":
        candidates.append(residual)
    for Y in candidates:
        bound = problem.dual_values(*dual_inputs(Hs, Ts, Y))[0][0]
        assert 0 <= bound <= lowest * (1 + 1e-12)


@losses
@l1_ratios
@groupings
def test_strong_duality_at_a_known_optimum(loss, l1_ratio, grouped):
    # One row h = 1, one target t, one weight b: the optimum is known, and the bound reaches it.
    tau, lam, t = 1.5, 1.0, 4.0
    l1, l2 = lam * l1_ratio, lam * (1 - l1_ratio)
    grid = np.linspace(-1, 5, 600_001)
    r = np.abs(grid - t)
    values = tau * (r**2 / 2 if loss == "squared" else r) + l1 * np.abs(grid) + l2 / 2 * grid**2
    best = grid[np.argmin(values)]
    # Stationarity gives the multiplier, also where the residual is zero.
    y = tau * (best - t) if loss == "squared" else -(l1 * np.sign(best) + l2 * best)
    bound = Problem(loss, tau, l1, l2, grouped=grouped).dual_values(
        *dual_inputs(np.ones((1, 1)), np.array([[t]]), np.array([[y]]))
    )
    assert bound[0][0] == pytest.approx(values.min(), rel=1e-4)


def bound_by_definition(c, a, b, w, l1, l2):
    over = sum(max(c * x - l1, 0.0) ** 2 for x in w)
    return -a * c - b * c * c / 2 - (over / (2 * l2) if l2 > 0 else 0.0)


positive = st.floats(1e-3, 1e3)


@examples(200)
@given(
    a=st.one_of(st.just(0.0), positive, positive.map(lambda x: -x)),
    b=st.one_of(st.just(0.0), positive),
    w=st.lists(st.one_of(st.just(0.0), positive), max_size=6),
    l1=st.one_of(st.just(0.0), positive),
    l2=st.one_of(st.just(0.0), positive),
)
def test_best_bound_is_the_maximum_over_c(a, b, w, l1, l2):
    if l1 == 0 and l2 == 0:
        l1 = 1.0
    limit = min([1.0, *(l1 / x for x in w if x > 0)]) if l2 == 0 else 1.0
    found, at = _best_bound(a, b, np.array(w), l1, l2)

    def value(c):
        return bound_by_definition(c, a, b, w, l1, l2)

    # Concave in c: every kink, the ends, and a search between each two neighbours.
    kinks = sorted({0.0, limit, *(l1 / x for x in w if x > 0 and l1 / x < limit)})
    best = max(value(c) for c in kinks)
    for low, high in itertools.pairwise(kinks):
        inner = minimize_scalar(
            lambda c: -value(c), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
        )
        best = max(best, -inner.fun)
    size = abs(a) + b + sum(x * x for x in w) / l2 if l2 > 0 else abs(a) + b
    assert found == pytest.approx(best, rel=1e-9, abs=1e-10 * size)
    assert found == pytest.approx(value(at), rel=1e-9, abs=1e-10 * size)


def test_best_bound_by_hand():
    assert _best_bound(1.0, 0.0, np.array([1.0]), 1.0, 1.0) == (0.0, 0.0)  # c = 0
    assert _best_bound(-1.0, 0.0, np.array([]), 1.0, 1.0) == (
        1.0,
        1.0,
    )  # nothing in the way of c = 1
    assert _best_bound(-1.0, 4.0, np.array([]), 1.0, 1.0) == pytest.approx((0.125, 0.25))  # c = 1/4
    limited = _best_bound(-1.0, 0.0, np.array([4.0, 2.0]), 1.0, 0.0)  # c = l1 / max w
    assert limited == pytest.approx((0.25, 0.25))
    # 3c - (2c - 1)^2 / 2 rises until c = 1 (derivative 5 - 4c); with l2 = 1/4 it peaks at 11/16.
    assert _best_bound(-3.0, 0.0, np.array([2.0]), 1.0, 1.0) == pytest.approx((2.5, 1.0))
    c = 11 / 16
    expected = 3 * c - 2 * (2 * c - 1) ** 2
    assert _best_bound(-3.0, 0.0, np.array([2.0]), 1.0, 0.25) == pytest.approx((expected, c))


# -- validation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("l2", 1.0, 0.0, 1.0), "unknown loss 'l2'"),
        (("l21", 0.0, 0.0, 1.0), "tau must be positive"),
        (("l21", [1.0, 0.0], 0.0, 1.0), "tau must be positive"),
        (("l21", 1.0, 0.0, 0.0), "l1 \\+ l2"),
        (("l21", 1.0, [1.0, 0.0], 0.0), "l1 \\+ l2"),
        (("l21", -1.0, 0.0, 1.0), "not negative"),
        (("l21", 1.0, -1.0, 2.0), "not negative"),
        (("l21", 1.0, 1.0, -0.5), "not negative"),
        (("l21", 1.0, 1.0, 1.0, -0.5), "not negative"),
        (("l21", np.nan, 0.0, 1.0), "finite"),
        (("l21", 1.0, 0.0, np.inf), "finite"),
        (("l21", [1.0, 2.0], [1.0, 2.0, 3.0], 1.0), "shape mismatch"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Problem(*arguments)


def test_numbers_are_copied_and_broadcast():
    lam = np.array([1.0, 2.0])
    problem = Problem("l21", 1.0, lam, 0.5)
    lam[:] = -7.0
    np.testing.assert_array_equal(problem.l1, [1.0, 2.0])
    np.testing.assert_array_equal(problem.tau, [1.0, 1.0])
    np.testing.assert_array_equal(problem.delta, [0.0, 0.0])
