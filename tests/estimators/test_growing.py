"""Networks that grow: at every size what a fit from scratch finds, whichever way they came there.

What the methods stand on is tested in test_growing_core.py, how growing is used and stopped in
test_growing_protocol.py.
"""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from gorelm import (
    ELMRegressor,
    EMELMRegressor,
    GORELMRegressor,
    IELMRegressor,
    IGORELMRegressor,
    IRELMRegressor,
    RELMRegressor,
)
from gorelm.datasets import contaminate
from support.growing_cases import (
    TIGHT,
    TOL,
    UNSCALED,
    all_cases,
    assert_close,
    assert_same,
    data,
    make,
    not_one_by_one,
    refit,
    robust_cases,
)
from support.oracles import Case, objective

SETS = ["enb", "jura", "rf1"]
SIZES = list(range(100, 1001, 100))

real_sets = pytest.mark.parametrize("name", SETS)


def real(load, name):
    X, T = (array[:1200] for array in load(name))
    return X, contaminate(T, 0.2, random_state=0)[0]


def one_by_one(H, T):
    """I-ELM as it is written down: the weights, and half the squared residual after each node."""
    coef, rest, halves = np.zeros((H.shape[1], T.shape[1])), T.copy(), []
    for j, h in enumerate(H.T):
        if h @ h > 0:
            coef[j] = h @ rest / (h @ h)
        rest = rest - np.outer(h, coef[j])
        halves.append(0.5 * np.sum(rest**2))
    return coef, np.array(halves)


# -- grown is refitted, on real data ---------------------------------------------------------------


def at_every_size(model, X, T):
    for size in SIZES:
        model = model.fit(X, T) if size == SIZES[0] else model.grow()
        assert model.hidden_.n_nodes == size
        yield size, model


@pytest.mark.data
@real_sets
def test_em_elm_is_least_squares_at_every_size(load_real, name):
    X, T = real(load_real, name)
    for size, model in at_every_size(EMELMRegressor(max_hidden=100, random_state=0), X, T):
        fresh = ELMRegressor(n_hidden=size, random_state=0).fit(X, T)
        norm = np.linalg.norm(fresh.coef_)
        # Weights of 1e8 (enb, with about as many nodes as rows) cost digits of any prediction.
        rounding = np.finfo(float).eps * np.linalg.norm(model.hidden_outputs(X)) * norm
        assert_close(model.predict(X), fresh.predict(X), min(max(1e-10, rounding), 1e-6))
        assert np.linalg.norm(model.coef_) <= norm * (1 + 1e-6)


@pytest.mark.data
@real_sets
def test_ir_elm_is_ridge_at_every_size(load_real, name):
    X, T = real(load_real, name)
    for size, model in at_every_size(IRELMRegressor(100.0, max_hidden=100, random_state=0), X, T):
        fresh = RELMRegressor(100.0, n_hidden=size, random_state=0).fit(X, T)
        assert_close(model.predict(X), fresh.predict(X), 1e-8)
        largest = np.abs(fresh.coef_).max()
        np.testing.assert_allclose(model.coef_, fresh.coef_, rtol=0, atol=1e-8 * largest)


@pytest.mark.data
@real_sets
@pytest.mark.parametrize(("l1_ratio", "lam"), [(0.0, 0.1), (0.5, 0.5)])
def test_igor_elm_is_optimal_at_every_size(load_real, name, l1_ratio, lam):
    X, T = real(load_real, name)
    params = {"lam": lam, "l1_ratio": l1_ratio, "random_state": 0}
    for size, model in at_every_size(IGORELMRegressor(max_hidden=100, **params), X, T):
        fresh = GORELMRegressor(n_hidden=size, tol=TIGHT, **params).fit(X, T)
        optimum = fresh.history_[-1]["objective"]
        B = model.coef_
        penalty = l1_ratio * np.linalg.norm(B, axis=1).sum() + (1 - l1_ratio) / 2 * np.sum(B**2)
        reached = model.outlier_scores_.sum() + lam * penalty
        assert model.growth_[-1]["objective"] == pytest.approx(reached, rel=1e-9)
        assert model.growth_[-1]["dual_gap"] == model.dual_gap_ <= TOL
        assert optimum * (1 - TIGHT) <= reached <= optimum * (1 + TOL)


@pytest.mark.data
@real_sets
def test_i_elm_is_one_node_after_the_other_at_every_size(load_real, name):
    X, T = real(load_real, name)
    model = IELMRegressor(target_scaling=None, random_state=0).fit(X, T)
    coef, halves = one_by_one(model.hidden_outputs(X), T)
    np.testing.assert_allclose(model.coef_, coef, rtol=0, atol=1e-9 * np.abs(coef).max())
    objectives = [record["objective"] for record in model.growth_]
    np.testing.assert_allclose(objectives, halves[np.array(SIZES) - 1], rtol=1e-9)
    assert all(later <= before for before, later in pairwise(objectives))


# -- grown is refitted, on all kinds of rows -------------------------------------------------------


def rows(kind):
    """(X, T, weights, parameters) of one kind, for a network that grows from 10 to 30 nodes."""
    X, T = data()
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(T.shape) < 0.3, np.nan, T)
    holes[3] = np.nan
    unscaled = {"target_scaling": None}
    return {
        "plain": (X, T, None, {}),
        "missing": (X, holes, None, {"missing_targets": "ignore"}),
        "weights": (X, T, rng.choice([0.0, 0.5, 1.0, 3.0], len(X)), {}),
        "float32": (X.astype(np.float32), T, None, {}),
        "sparse": (sparse.csr_array(np.where(X < 0, 0.0, X)), T, None, {}),
        "one-dimensional y": (X, T[:, 0], None, {}),
        "direct link": (X, T, None, {"direct_link": True}),
        "radial": (X, T, None, {"activation": "gaussian"}),
        "few inputs": (X, T, None, {"n_inputs": 2}),
        "few inputs, radial": (X, T, None, {"n_inputs": 2, "activation": "laplace"}),
        "from tall to wide": (X[:18], T[:18], None, {}),
        "wide": (X[:7], T[:7], None, {}),
        "more targets than rows": (X[:4], rng.standard_normal((4, 6)), None, {}),
        "one row": (X[:1], T[:1], None, unscaled),
        "constant targets": (X, np.full(T.shape, 2.0), None, unscaled),
        "dead nodes": (np.round(X[:, :2]), T, None, {"activation": "hardlim"}),
    }[kind]


KINDS = [
    *("plain", "missing", "weights", "float32", "sparse", "one-dimensional y", "direct link"),
    *("radial", "from tall to wide", "wide", "more targets than rows", "one row"),
    *("constant targets", "dead nodes", "few inputs", "few inputs, radial"),
]
all_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.crossed
@all_kinds
@not_one_by_one
def test_grown_is_refitted(case, kind):
    X, T, w, params = rows(kind)
    model = make(case, **params).fit(X, T, w)
    assert [record["n_drawn"] for record in model.growth_] == [10, 20, 30]
    tol = 1e-4 if kind == "float32" else 1e-7 if case == "EM-ELM" else 1e-9
    assert_same(model, refit(case, 30, X, T, w, **params), X, tol)
    assert model.predict(X).shape == T.shape


@pytest.mark.crossed
@all_kinds
@robust_cases
def test_igor_elm_reaches_the_objective_it_states(case, kind):
    X, T, w, params = rows(kind)
    model = make(case, **{**params, "target_scaling": None}).fit(X, T, w)
    T = T.reshape(len(T), -1)
    known = ~np.isnan(T)
    stated = model.growth_[-1]["objective"]
    l1, l2 = model.lam * model.l1_ratio, model.lam * (1 - model.l1_ratio)
    H = model.hidden_outputs(X).astype(float)
    rows_as_given = Case(H, np.where(known, T, 0.0), l1=l1, l2=l2, weights=w, observed=known)
    reached = objective(rows_as_given, model.coef_)
    assert stated == pytest.approx(reached, rel=1e-5 if kind == "float32" else 1e-9, abs=1e-9)


@all_kinds
def test_i_elm_is_one_node_after_the_other(kind):
    X, T, w, params = rows(kind)
    model = make("I-ELM", **{**params, "target_scaling": None}).fit(X, T, w)
    H, columns = model.hidden_outputs(X).astype(float), T.reshape(len(T), -1)
    omega = np.sqrt(np.ones(len(T)) if w is None else w)
    for j, t in enumerate(columns.T):
        known = ~np.isnan(t)
        coef, _ = one_by_one((omega[:, None] * H)[known], (omega * t)[known][:, None])
        tol = 1e-3 if kind == "float32" else 1e-9
        scale = max(1.0, np.abs(coef).max())
        np.testing.assert_allclose(model.coef_[:, j], coef[:, 0], rtol=0, atol=tol * scale)


@pytest.mark.parametrize("activation", ["hardlim", "relu"])
def test_em_elm_of_any_rank_is_the_shortest_solution(activation):
    # Inputs of one value: nodes are equal or dead, and many more than the rank.
    X = np.repeat(np.linspace(0, 1, 6), 5)[:, None]
    T = np.random.default_rng(0).standard_normal((30, 2))
    model = make("EM-ELM", activation=activation, target_scaling=None, input_scaling=None)
    model.fit(X - 0.9, T)
    H = model.hidden_outputs(X - 0.9)
    assert (H == 0).all(axis=0).any()
    assert np.linalg.matrix_rank(H) < 10
    np.testing.assert_allclose(model.coef_, np.linalg.pinv(H) @ T, atol=1e-9)


@all_cases
def test_weights_are_repeated_rows(case):
    X, T = data()
    w = np.arange(len(X)) % 3
    weighted = make(case).fit(X, T, w)
    repeated = make(case).fit(np.repeat(X, w, axis=0), np.repeat(T, w, axis=0))
    assert_close(weighted.predict(X), repeated.predict(X), 1e-7)
    weighted.grow(5)
    repeated.grow(5)
    assert_close(weighted.predict(X), repeated.predict(X), 1e-7)


# -- ways to the same size -------------------------------------------------------------------------


@pytest.mark.crossed
@all_cases
@pytest.mark.parametrize("kind", ["plain", "from tall to wide", "radial", "missing", "weights"])
def test_growing_twice_is_growing_once(case, kind):
    X, T, w, params = rows(kind)
    start = {**params, "max_hidden": 10}
    twice = make(case, **start).fit(X, T, w).grow(50).grow(50)
    once = make(case, **start).fit(X, T, w).grow(100)
    direct = make(case, **params, n_step=25).set_params(max_hidden=110).fit(X, T, w)
    # 110 sigmoid nodes of a few inputs: least squares weighs them by up to 1e7.
    tol = 1e-6 if case == "EM-ELM" else 1e-10
    for other in (once, direct):
        assert_same(twice, other, X, tol)
    assert [record["n_drawn"] for record in twice.growth_] == [10, 60, 110]


@all_cases
def test_growing_with_other_rows_fits_those(case):
    X, T = data(90)
    model = make(case, max_hidden=20, **UNSCALED).fit(X[:50], T[:50]).grow(10, X[50:], T[50:])
    assert_same(model, make(case, **UNSCALED).fit(X[50:], T[50:]), X, 1e-7)
    assert model.outlier_scores_.shape == (40,)
    # And goes on with them.
    model.grow(5)
    assert_same(model, make(case, max_hidden=35, **UNSCALED).fit(X[50:], T[50:]), X, 1e-6)


@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        ("IR-ELM", {"C": 10.0}, {"C": 0.1}),
        ("IGOR-ELM", {"lam": 0.01}, {"lam": 10.0}),
        ("IGOR-ELM", {"l1_ratio": 0.0}, {"l1_ratio": 0.5}),
        ("IGOR-ELM, sparse", {"lam": 0.01}, {"lam": 10.0}),
        ("IGOR-ELM, sparse", {"lam": 10.0}, {"lam": 0.01}),
        ("IGOR-ELM, sparse", {"delta": 0.0}, {"delta": 0.5}),
        ("IGOR-ELM, sparse", {"solver": "paper"}, {"solver": "adaptive"}),
    ],
)
def test_growing_with_another_penalty(case, before, after):
    X, T = data(120)
    model = make(case, **before).fit(X, T).set_params(**after)
    assert_same(model.grow(10), make(case, max_hidden=40, **after).fit(X, T), X, 1e-9)


@robust_cases
def test_published_iteration_grows(case):
    X, T = data()
    model = make(case, solver="paper").fit(X, T)
    assert model.converged_
    optimum = refit(case, 30, X, T).history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(optimum, rel=0.02)


@all_cases
@pytest.mark.parametrize("change", ["nothing", "rows", "inputs", "weights"])
def test_warm_start_goes_on(case, change):
    X, T = data()
    model = make(case, warm_start=True, **UNSCALED).fit(X, T)
    first = model.hidden_
    w = np.arange(60) % 3 if change == "weights" else None
    if change == "rows":
        X, T = data(seed=1)
    elif change == "inputs":
        X = X[:, ::-1]
    model.set_params(max_hidden=50).fit(X, T, w)
    np.testing.assert_array_equal(model.hidden_.A[:30], first.A)
    np.testing.assert_array_equal(model.hidden_.b[:30], first.b)
    fresh = make(case, max_hidden=50, **UNSCALED).fit(X, T, w)
    assert_same(model, fresh, X, 1e-6 if case == "EM-ELM" else 1e-9)
    if change == "nothing":
        assert [record["n_drawn"] for record in model.growth_] == [10, 20, 30, 40, 50]
