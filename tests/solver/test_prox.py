import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from gorelm._solver.problem import Problem, norms, shrink, shrink_rest
from support.oracles import huber

KINDS = ["grouped", "cells", "squared"]
kinds = pytest.mark.parametrize("kind", KINDS)
knees = pytest.mark.parametrize("knee", [0.0, 0.7])
seeds = st.integers(0, 2**32 - 1)
sizes = st.floats(1e-3, 1e3)


def prox(kind, V, k, knee):
    """Each proximal map of the library on rows V (n, m), with one k."""
    if kind == "squared":
        return V - Problem("squared", k, 0.0, 1.0).multipliers(V[:, None], np.ones(1))[:, 0]
    grouped = kind == "grouped"
    return shrink(V, np.full(V.shape[:1] if grouped else V.shape, k), grouped=grouped, knee=knee)


def function(kind, E, k, knee):
    """The function that `prox` belongs to, by its definition."""
    if kind == "squared":
        return k / 2 * sum(x * x for x in np.ravel(E))
    if kind == "cells":
        return k * sum(huber(abs(x), knee) for x in np.ravel(E))
    return k * sum(huber(np.linalg.norm(e), knee) for e in E)


def draw_rows(seed, n=4, m=3, spread=2.0):
    """Rows of very different lengths, a row of zeros among them."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((n, m)) * spread ** rng.uniform(-4, 4, (n, 1))
    V[0] = 0.0
    return V


@kinds
@knees
@given(seed=seeds, k=sizes)
def test_minimises_its_function_plus_half_the_squared_distance(kind, knee, seed, k):
    V = draw_rows(seed)
    E = prox(kind, V, k, knee)
    best = function(kind, E, k, knee) + ((E - V) ** 2).sum() / 2
    rng = np.random.default_rng(seed)
    for size in (1e-6, 1e-3, 1e-1, 1.0, 10.0):
        D = E + size * rng.standard_normal(E.shape)
        # Strong convexity makes it a margin and not only an order.
        value = function(kind, D, k, knee) + ((D - V) ** 2).sum() / 2
        assert value >= best + ((D - E) ** 2).sum() / 2 - 1e-12 * (1 + abs(value))


@kinds
@knees
@given(seed=seeds, k=sizes)
def test_three_point_inequality(kind, knee, seed, k):
    # <v - p, d - p> <= f(d) - f(p) for every d: v - p is a subgradient of f at p.
    V, D = draw_rows(seed), draw_rows(seed + 1)
    P = prox(kind, V, k, knee)
    left = ((V - P) * (D - P)).sum()
    right = function(kind, D, k, knee) - function(kind, P, k, knee)
    assert left <= right + 1e-12 * (1 + abs(left) + abs(right) + k * np.abs(D).sum())


@kinds
@knees
@given(seed=seeds, k=sizes)
def test_firmly_nonexpansive(kind, knee, seed, k):
    A, B = draw_rows(seed), draw_rows(seed + 1)
    P, Q = prox(kind, A, k, knee), prox(kind, B, k, knee)
    assert ((P - Q) ** 2).sum() <= ((P - Q) * (A - B)).sum() + 1e-12 * ((A - B) ** 2).sum()


@pytest.mark.parametrize("grouped", [True, False])
@given(seed=seeds, k=sizes)
def test_moreau_the_rest_is_the_projection_onto_the_dual_ball(grouped, seed, k):
    V = draw_rows(seed)
    rest = V - prox("grouped" if grouped else "cells", V, k, 0.0)
    if grouped:
        projected = np.array(
            [v if np.linalg.norm(v) <= k else k * v / np.linalg.norm(v) for v in V]
        )
    else:
        projected = np.clip(V, -k, k)
    np.testing.assert_allclose(rest, projected, rtol=1e-10, atol=1e-12 * np.abs(V).max())


@pytest.mark.parametrize("grouped", [True, False])
@knees
@given(seed=seeds, k=sizes, far=st.sampled_from([1.0, 1e8, 1e100]))
def test_rest_is_what_shrinking_takes_away(grouped, knee, seed, k, far):
    V = far * draw_rows(seed)
    k_ = np.full(V.shape[:1] if grouped else V.shape, k)
    E, U = (f(V, k_, grouped=grouped, knee=knee) for f in (shrink, shrink_rest))
    np.testing.assert_allclose(E + U, V, rtol=1e-12, atol=1e-12 * k)
    # Within the ball to rounding however long V is: a difference V - E would not be.
    assert norms(U, grouped=grouped).max() <= k * (1 + 1e-14)
    beyond = norms(V, grouped=grouped) > k + knee
    np.testing.assert_allclose(norms(U, grouped=grouped)[beyond], k, rtol=1e-14)


@kinds
@given(seed=seeds, k=sizes, knee=sizes)
def test_rest_is_the_gradient_of_the_smooth_function(kind, seed, k, knee):
    # With a knee the function is differentiable, and v - prox(v) is its gradient at prox(v).
    V = draw_rows(seed)
    E = prox(kind, V, k, knee)
    if kind == "squared":
        gradient = k * E
    else:
        r = np.linalg.norm(E, axis=1, keepdims=True) if kind == "grouped" else np.abs(E)
        gradient = k * E / np.maximum(r, knee)
    np.testing.assert_allclose(V - E, gradient, rtol=1e-8, atol=1e-11 * np.abs(V).max())


@kinds
@knees
@given(seed=seeds, k=st.floats(0.05, 20))
def test_scipy_finds_nothing_better(kind, knee, seed, k):
    v = draw_rows(seed)[1]
    assume(np.linalg.norm(v) > 1e-2)
    E = prox(kind, v[None], k, knee)

    def value(e):
        return function(kind, e.reshape(1, -1), k, knee) + ((e - v) ** 2).sum() / 2

    best = value(E[0])
    for start in (v, 0.5 * v, np.zeros_like(v)):
        found = minimize(value, start, method="Nelder-Mead", options={"maxiter": 400})
        assert best <= found.fun + 1e-12 * (1 + best)
    # The minimum lies on the segment to the origin, where a line search finds it closely.
    if kind != "cells":
        line = minimize_scalar(
            lambda s: value(s * v), bounds=(0, 1), method="bounded", options={"xatol": 1e-10}
        )
        assert best == pytest.approx(line.fun, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("knee", [0.0, 2.0])
def test_known_values(knee):
    V = np.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]])
    grouped = shrink(V, np.full(3, 1.0), grouped=True, knee=knee)
    cells = shrink(V, np.full((3, 2), 1.0), grouped=False, knee=knee)
    if knee == 0:
        np.testing.assert_allclose(grouped, [[2.4, 3.2], [0, 0], [0, 0]], atol=1e-15)
        np.testing.assert_allclose(cells, [[2, 3], [0, 0], [0, 0]], atol=1e-15)
        assert not grouped[2].any()  # exactly zero: it is what empties nodes
    else:  # k + knee = 3: the last row lies in the quadratic part and shrinks by 1/3
        np.testing.assert_allclose(grouped, [[2.4, 3.2], [0, 0], [0.2, 0.8 / 3]], atol=1e-15)
        np.testing.assert_allclose(cells, [[2, 3], [0, 0], [0.2, 0.8 / 3]], atol=1e-15)
    np.testing.assert_allclose(prox("squared", V, 3.0, knee), V / 4)


@pytest.mark.parametrize("loss", ["l21", "l1", "squared"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_batch_axis_and_dtype(loss, dtype):
    rng = np.random.default_rng(3)
    tau, delta, rho = rng.uniform(0.2, 2, (3, 4))
    V = rng.standard_normal((6, 4, 3)).astype(dtype)
    V[2] = 0.0
    omega = rng.uniform(0.5, 2, 6)
    delta[1] = 0.0
    rest = Problem(loss, tau, 0.0, 1.0, delta).multipliers(V, rho, omega)
    assert rest.shape == V.shape
    assert rest.dtype == dtype
    together = V - rest
    for p in range(4):
        for i in range(6):
            k, knee, kind = omega[i] * tau[p] / rho[p], omega[i] * delta[p], "grouped"
            if loss == "squared":  # the rows carry the weight already
                k, kind = tau[p] / rho[p], "squared"
            elif loss == "l1":
                kind = "cells"
            single = prox(kind, V[i : i + 1, p].astype(float), k, knee)
            atol = 1e-14 if dtype == np.float64 else 1e-6
            np.testing.assert_allclose(together[i, p], single[0], atol=atol)


@pytest.mark.parametrize("grouped", [True, False])
def test_penalty_prox_of_a_mixed_batch(grouped):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((7, 3, 2))
    X[1] = 0.0
    l1, rho = np.array([0.0, 0.6, 2.0]), np.array([1.0, 0.5, 3.0])
    Z = Problem("l21", 1.0, l1, 1.0, grouped=grouped).penalty_prox(X, rho)
    np.testing.assert_array_equal(Z[:, 0], X[:, 0])
    for p in (1, 2):
        single = prox("grouped" if grouped else "cells", X[:, p], l1[p] / rho[p], 0.0)
        np.testing.assert_allclose(Z[:, p], single, atol=1e-15)
    nothing = Problem("l21", 1.0, 0.0, 1.0, grouped=grouped).penalty_prox(X[:, :1], rho[:1])
    np.testing.assert_array_equal(nothing, X[:, :1])


def test_norms():
    A = np.array([[[3.0, -4.0], [0.0, 0.0]], [[1.0, 0.0], [-5.0, 12.0]]])
    np.testing.assert_allclose(norms(A, grouped=True), [[5, 0], [1, 13]])
    np.testing.assert_array_equal(norms(A, grouped=False), np.abs(A))
