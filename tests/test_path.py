"""Paths: every grid point is what a fit of its own would be, and what is said of it is true."""

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import ElasticNet, MultiTaskElasticNet, Ridge

from gorelm._solver import certificate, rows
from gorelm._solver import prepared as system
from gorelm._solver.admm import Settings, WarmStart
from gorelm._solver.prepared import Prepared, solve
from gorelm._solver.problem import LOSSES, Problem
from gorelm.path import default_lams, gorelm_path
from support.oracles import Case, by_interior_point, draw, objective, scaled
from support.sweeps import examples

TALL, WIDE = (40, 15), (15, 40)
RATIOS = [0.0, 0.25, 0.5, 0.75, 1.0]
shapes = pytest.mark.parametrize("shape", [TALL, WIDE], ids=["tall", "wide"])
losses = pytest.mark.parametrize("loss", LOSSES)
groupings = pytest.mark.parametrize("grouped", [True, False], ids=["nodes", "cells"])
seeds = st.integers(0, 2**32 - 1)


def case_of(H, T, path, ratio, lam, *, loss="l21", tau=1.0, delta=0.0, grouped=True, weights=None):
    """Grid point (ratio, lam), two indices, as a problem of its own."""
    r, lam = path.l1_ratios[ratio], path.lams[lam]
    return Case(H, T, loss, tau, lam * r, lam * (1 - r), delta, grouped, weights)


def fit(case, tol, max_iter=50_000):
    H, T, omega, _ = scaled(case)
    problem = Problem(case.loss, case.tau, case.l1, case.l2, case.delta, case.grouped)
    return solve(H, T, problem, omega=omega, settings=Settings(tol=tol, max_iter=max_iter))


def run(H, T, lams=None, l1_ratios=0.0, *, weights=None, **options):
    return gorelm_path(H, T, lams, l1_ratios, sample_weight=weights, **options)


def assert_certified(path, value, lower, tol, rounding=1e-9):
    """What `path` says is true of optima that lie between `lower` and `value`."""
    assert path.converged.all()
    assert (path.dual_gap <= tol).all()
    assert (path.objective >= lower * (1 - rounding)).all()
    assert (path.objective - value <= (path.dual_gap + rounding) * path.objective).all()


# -- the same as separate fits -----------------------------------------------------------------


@pytest.mark.crossed
@shapes
@losses
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights, huber"])
def test_path_is_as_good_as_separate_fits(shape, loss, weighted):
    H, T, weights, _ = draw(1, *shape, 2, weighted=weighted)
    numbers = {"loss": loss, "weights": weights}
    if weighted:
        numbers |= {"tau": 1.7, "delta": 0.4}
    path = run(H, T, None, RATIOS, n_lams=4, eps=1e-2, tol=1e-3, **numbers)
    value, lower = np.zeros((2, *path.objective.shape))
    for at in np.ndindex(value.shape):
        case = case_of(H, T, path, *at, **numbers)
        assert path.objective[at] == pytest.approx(objective(case, path.coefs[at]), rel=1e-9)
        best = fit(case, 1e-6)
        assert best.status == ["converged"]
        value[at], lower[at] = best.objective[0], best.objective[0] * (1 - best.dual_gap[0])
    assert_certified(path, value, lower, 1e-3)


@pytest.mark.crossed
@shapes
@losses
def test_tight_path_reaches_the_optima(shape, loss):
    H, T, weights, _ = draw(2, *shape, 2, weighted=True)
    numbers = {"loss": loss, "delta": 0.5, "weights": weights}
    path = run(H, T, None, [0.0, 0.5], n_lams=9, eps=1e-2, tol=1e-8, **numbers)
    assert path.converged.all()
    for at in np.ndindex(path.objective.shape):
        best = fit(case_of(H, T, path, *at, **numbers), 1e-8)
        assert path.objective[at] == pytest.approx(best.objective[0], rel=1e-8)
        # Strictly convex: the weights are unique (where the path is exactly empty, nearly so).
        size = np.abs(best.coef).max() if path.coefs[at].any() else np.abs(path.coefs).max()
        np.testing.assert_allclose(path.coefs[at], best.coef[:, 0], atol=5e-3 * max(size, 1e-6))


@pytest.mark.crossed
@shapes
@pytest.mark.parametrize(
    ("loss", "grouped", "delta"), [("l21", True, 0.0), ("l1", True, 0.4), ("l21", False, 0.4)]
)
def test_path_against_an_interior_point(shape, loss, grouped, delta):
    H, T, weights, _ = draw(3, *shape, 2, weighted=True)
    numbers = {"loss": loss, "grouped": grouped, "delta": delta, "tau": 1.5, "weights": weights}
    path = run(H, T, None, [0.0, 0.5, 1.0], n_lams=3, eps=1e-2, tol=1e-4, **numbers)
    value = np.zeros(path.objective.shape)
    for at in np.ndindex(value.shape):
        value[at] = by_interior_point(case_of(H, T, path, *at, **numbers))[1]
    assert_certified(path, value, value * (1 - 1e-7), 1e-4)


@shapes
def test_squared_loss_on_nodes_is_multi_task_elastic_net(shape):
    H, T, _, _ = draw(4, *shape, 2)
    path = run(H, T, None, RATIOS[1:], loss="squared", n_lams=5, eps=1e-2, tol=1e-6)
    value = np.zeros(path.objective.shape)
    for a, k in np.ndindex(value.shape):
        net = MultiTaskElasticNet(
            alpha=path.lams[k] / len(H),
            l1_ratio=path.l1_ratios[a],
            fit_intercept=False,
            tol=1e-11,
            max_iter=100_000,
        ).fit(H, T)
        value[a, k] = objective(case_of(H, T, path, a, k, loss="squared"), net.coef_.T)
    assert_certified(path, value, value * (1 - 1e-8), 1e-6)


@shapes
def test_squared_loss_on_cells_is_elastic_net(shape):
    H, T, weights, _ = draw(5, *shape, 2, weighted=True)
    numbers = {"loss": "squared", "grouped": False, "tau": 0.7, "weights": weights}
    path = run(H, T, None, RATIOS[1:], n_lams=5, eps=1e-2, tol=1e-6, **numbers)
    value = np.zeros(path.objective.shape)
    for a, k in np.ndindex(value.shape):
        net = ElasticNet(
            alpha=path.lams[k] / 0.7 / weights.sum(),
            l1_ratio=path.l1_ratios[a],
            fit_intercept=False,
            tol=1e-11,
            max_iter=100_000,
        ).fit(H, T, sample_weight=weights)
        value[a, k] = objective(case_of(H, T, path, a, k, **numbers), net.coef_.T)
    assert_certified(path, value, value * (1 - 1e-8), 1e-6)


@shapes
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_path_is_the_closed_form(shape, weighted):
    H, T, weights, _ = draw(6, *shape, weighted=weighted)
    numbers = {"loss": "squared", "tau": 1.3, "weights": weights}
    path = run(H, T, np.geomspace(1e3, 1e-3, 13), **numbers)
    w = np.ones(len(H)) if weights is None else weights
    for k, lam in enumerate(path.lams):
        G = (H.T * w) @ H + lam / 1.3 * np.eye(H.shape[1])
        exact = np.linalg.solve(G, (H.T * w) @ T)
        size = np.abs(exact).max()
        np.testing.assert_allclose(path.coefs[0, k], exact, rtol=0, atol=1e-10 * size)
        ridge = Ridge(lam / 1.3, fit_intercept=False, solver="svd").fit(H, T, sample_weight=weights)
        np.testing.assert_allclose(path.coefs[0, k], ridge.coef_.T, rtol=0, atol=1e-10 * size)
        value = objective(case_of(H, T, path, 0, k, **numbers), exact)
        assert path.objective[0, k] == pytest.approx(value, rel=1e-9)
    assert path.converged.all()
    assert not path.dual_gap.any()


@pytest.mark.crossed
@shapes
@losses
def test_a_weight_of_two_is_the_row_twice(shape, loss):
    H, T, _, _ = draw(7, *shape, 2)
    times = np.random.default_rng(7).integers(1, 4, len(H))
    repeat = np.repeat(np.arange(len(H)), times)
    options = {"loss": loss, "delta": 0.3, "n_lams": 6, "eps": 1e-2}
    one = run(H, T, None, [0.0, 0.5, 1.0], weights=times, **options)
    other = run(H[repeat], T[repeat], None, [0.0, 0.5, 1.0], **options)
    np.testing.assert_allclose(one.lams, other.lams, rtol=1e-12)
    np.testing.assert_allclose(one.objective, other.objective, rtol=1e-9)
    np.testing.assert_array_equal(one.n_iter, other.n_iter)
    np.testing.assert_allclose(one.coefs, other.coefs, rtol=0, atol=1e-8 * np.abs(one.coefs).max())


@shapes
def test_float32_rows(shape):
    H, T, weights, _ = draw(8, *shape, 2, weighted=True, dtype=np.float32)
    path = run(H, T, None, [0.0, 0.5, 1.0], n_lams=5, eps=1e-2, weights=weights)
    value = np.zeros(path.objective.shape)
    for at in np.ndindex(value.shape):
        case = case_of(H.astype(float), T, path, *at, weights=weights)
        value[at] = fit(case, 1e-6).objective[0]
    assert_certified(path, value, value * (1 - 1e-6), 1e-3, rounding=1e-5)


# -- what is said of each grid point -----------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize("shape", [(80, 20), (20, 60)], ids=["tall", "wide"])
@losses
def test_gap_holds_on_a_fine_grid_also_where_nothing_was_iterated(shape, loss):
    H, T, weights, _ = draw(9, *shape, 2, weighted=True)
    ratios = np.array([0.0, 0.5, 1.0] if loss != "squared" else [0.5, 1.0])
    numbers = {"loss": loss, "weights": weights}
    path = run(H, T, None, ratios, n_lams=41, eps=1e-2, tol=1e-2, **numbers)
    Hs, Ts, omega, _ = scaled(Case(H, T, weights=weights))
    for a, ratio in enumerate(ratios):
        batch = Problem(loss, 1.0, path.lams * ratio, path.lams * (1 - ratio))
        best = solve(Hs, Ts, batch, omega=omega, settings=Settings(tol=1e-4, max_iter=50_000))
        value = np.array(best.objective)
        line = replace(
            path,
            **{name: getattr(path, name)[a] for name in ("objective", "dual_gap", "converged")},
        )
        assert_certified(line, value, value * (1 - np.array(best.dual_gap)), 1e-2)
        assert (path.n_iter[a] == 0).any()
        assert (path.n_iter[a] > 0).any()
        for k in np.flatnonzero(path.n_iter[a] == 0)[::5]:
            case = case_of(H, T, path, a, k, **numbers)
            assert path.objective[a, k] == pytest.approx(
                objective(case, path.coefs[a, k]), rel=1e-9
            )


@examples(20)
@given(
    seed=seeds,
    shape=st.sampled_from([(30, 12), (12, 30)]),
    m=st.integers(1, 3),
    loss=st.sampled_from(LOSSES),
    grouped=st.booleans(),
    weighted=st.booleans(),
    delta=st.sampled_from([0.0, 0.5]),
    n_lams=st.integers(1, 12),
    tol=st.sampled_from([1e-1, 1e-2, 1e-3]),
    budget=st.sampled_from([2**30, 2e4, 0.0]),
    data=st.data(),
)
def test_gap_bounds_the_distance_from_the_optimum(
    seed, shape, m, loss, grouped, weighted, delta, n_lams, tol, budget, data
):
    H, T, weights, _ = draw(seed, *shape, m, weighted=weighted)
    numbers = {"loss": loss, "grouped": grouped, "delta": delta, "weights": weights}
    grid = {"n_lams": n_lams, "eps": 1e-2, "tol": tol, "memory_budget": budget}
    path = run(H, T, None, RATIOS, **grid, **numbers)
    at = data.draw(st.integers(0, 4)), data.draw(st.integers(0, n_lams - 1))
    case = case_of(H, T, path, *at, **numbers)
    value, best = objective(case, path.coefs[at]), by_interior_point(case)[1]
    assert path.objective[at] == pytest.approx(value, rel=1e-9)
    assert (value - best) / value <= path.dual_gap[at] + 1e-9
    assert value >= best * (1 - 1e-7)
    if path.converged[at]:
        assert path.dual_gap[at] <= tol


def test_unfinished_points_say_so():
    H, T, _, _ = draw(10, *TALL, 2)
    path = run(H, T, None, [0.0, 0.5], n_lams=9, tol=1e-9, max_iter=7)
    assert not path.converged.all()
    np.testing.assert_array_equal(path.converged, path.dual_gap <= 1e-9)
    assert (path.n_iter <= 7).all()
    for at in np.ndindex(path.objective.shape):
        case = case_of(H, T, path, *at)
        assert path.objective[at] == pytest.approx(objective(case, path.coefs[at]), rel=1e-9)


# -- the default grid --------------------------------------------------------------------------

KINDS = [("l21", True, 0.0), ("l21", False, 0.0), ("l1", True, 0.0), ("squared", True, 0.0)]
KINDS += [("squared", False, 0.0), ("l21", True, 0.5), ("l1", True, 0.5)]
kinds = pytest.mark.parametrize(("loss", "grouped", "delta"), KINDS)


@pytest.mark.crossed("shape", "ratio")
@shapes
@kinds
@pytest.mark.parametrize("ratio", [0.25, 1.0])
def test_empty_is_optimal_at_the_first_lam_and_not_below(shape, loss, grouped, delta, ratio):
    H, T, weights, _ = draw(11, *shape, 2, weighted=True)
    numbers = {"loss": loss, "grouped": grouped, "delta": delta, "tau": 1.5, "weights": weights}
    first = run(H, T, None, [0.0, ratio, 1.0], n_lams=1, tol=1e-5, **numbers)
    empty = objective(case_of(H, T, first, 1, 0, **numbers), np.zeros((shape[1], 2)))
    # The lower bounds say that nothing is better than the empty model.
    assert first.converged.all()
    bounds = (first.objective * (1 - first.dual_gap))[0, 1:]
    np.testing.assert_array_less(empty * (1 - 2e-5), bounds)
    share = 0.9 if delta == 0 else 0.5  # the grid knows nothing of delta
    below = run(H, T, share * first.lams, [ratio], tol=1e-5, **numbers)
    assert below.coefs.any()
    assert below.objective[0, 0] < empty * (1 - 1e-5)


@losses
def test_models_at_the_first_lam_are_exactly_empty(loss):
    H, T, _, _ = draw(11, *TALL, 2)
    path = run(H, T, None, RATIOS[1:], loss=loss, n_lams=3)
    np.testing.assert_array_equal(path.coefs[:, 0], 0.0)


@pytest.mark.crossed
@kinds
@pytest.mark.parametrize("ratios", [[0.0], [0.2, 0.8], [0.0, 0.5, 1.0]])
def test_first_lam_is_its_definition(loss, grouped, delta, ratios):
    H, T, weights, _ = draw(12, *TALL, weighted=True)
    if loss == "squared":
        Y = T
    else:
        r = np.abs(T) if loss == "l1" else np.linalg.norm(T, axis=1, keepdims=True)
        Y = T / np.maximum(r, delta)
    pull = (H.T * weights) @ Y
    largest = (np.linalg.norm(pull, axis=1) if grouped else np.abs(pull)).max()
    numbers = {"loss": loss, "grouped": grouped, "delta": delta, "tau": 1.5, "weights": weights}
    path = run(H, T, None, ratios, n_lams=2, **numbers)
    share = min([r for r in ratios if r > 0], default=1.0)
    assert path.lams[0] == pytest.approx(1.5 * largest / share, rel=1e-12)


@pytest.mark.parametrize("n_lams", [1, 2, 7, 41])
@pytest.mark.parametrize("eps", [0.5, 1e-3])
def test_default_grid_has_the_length_and_end_asked_for(n_lams, eps):
    H, T, _, _ = draw(13, *TALL)
    like = Problem("l21", [1.0, 1.0], 1.0, 1.0)
    lams = default_lams(Prepared(H, T, like), like, np.array([0.5]), n_lams, eps)
    assert lams.shape == (n_lams,)
    assert (np.diff(lams) < 0).all()
    if n_lams > 1:
        assert lams[-1] / lams[0] == pytest.approx(eps)
        np.testing.assert_allclose(lams[1:] / lams[:-1], eps ** (1 / (n_lams - 1)))
    path = run(H, T, None, 0.5, n_lams=n_lams, eps=eps, tol=0.1)
    np.testing.assert_array_equal(path.lams, lams)


def test_default_grid_of_targets_that_pull_nothing():
    H, T, _, _ = draw(14, *TALL, 2)
    path = run(H, 0 * T, None, [0.0, 0.5], n_lams=3)
    assert np.isfinite(path.lams).all()
    assert path.converged.all()
    assert not path.coefs.any()


# -- grids and batches -------------------------------------------------------------------------


def budget_for(shape, m, at_once):
    """Bytes for which solve_path runs that many problems at once."""
    n_rows, n_hidden = shape
    return 2 * at_once * (48 * n_rows * m + 112 * n_hidden * m)


@pytest.mark.slow_unless(n_lams=[1, 2, 5, 18])
@pytest.mark.crossed
@pytest.mark.parametrize("n_lams", [1, 2, 3, 5, 9, 10, 18])
@pytest.mark.parametrize("loss", ["l21", "squared"])
def test_grids_of_any_length(n_lams, loss):
    H, T, _, _ = draw(15, *TALL, 2)
    path = run(H, T, None, [0.0, 0.5], loss=loss, n_lams=n_lams, eps=1e-2)
    value = np.zeros((2, n_lams))
    for at in np.ndindex(value.shape):
        case = case_of(H, T, path, *at, loss=loss)
        assert path.objective[at] == pytest.approx(objective(case, path.coefs[at]), rel=1e-9)
        value[at] = fit(case, 1e-5).objective[0]
    assert_certified(path, value, value * (1 - 1e-5), 1e-3)


@losses
def test_order_and_repeats_of_the_grid_do_not_matter(loss):
    H, T, _, _ = draw(16, *TALL, 2)
    lams, ratios = np.geomspace(10, 0.1, 10), np.array([0.0, 0.3, 1.0])
    one = run(H, T, lams, ratios, loss=loss)
    np.testing.assert_array_equal(one.lams, lams)
    np.testing.assert_array_equal(one.l1_ratios, ratios)
    rng = np.random.default_rng(16)
    mixed = rng.permutation(np.concatenate([lams, lams[::3]])), [1.0, 0.3, 0.0, 0.3]
    other = run(H, T, *mixed, loss=loss)
    for name in vars(one):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("loss", ["l21", "squared"])
def test_a_number_is_a_grid_of_one(loss):
    H, T, _, _ = draw(17, *TALL, 2)
    path = run(H, T, 2.0, 0.5, loss=loss)
    alone = fit(Case(H, T, loss, 1.0, 1.0, 1.0), 1e-3)
    assert path.coefs.shape == (1, 1, 15, 2)
    assert path.n_iter[0, 0] == alone.n_iter[0]
    np.testing.assert_allclose(path.coefs[0, 0], alone.coef[:, 0], atol=1e-8)


@pytest.mark.crossed
@shapes
@losses
@pytest.mark.parametrize("budget", [0.0, 2e4])
def test_small_budgets_reach_the_same_objectives(shape, loss, budget):
    H, T, weights, _ = draw(18, *shape, 2, weighted=True)
    options = {"loss": loss, "weights": weights, "n_lams": 9, "eps": 1e-2, "tol": 1e-3}
    whole = run(H, T, None, [0.0, 0.5, 1.0], **options)
    split = run(H, T, None, [0.0, 0.5, 1.0], memory_budget=budget, **options)
    assert whole.converged.all()
    assert split.converged.all()
    for one, other in ((whole, split), (split, whole)):
        assert (one.objective <= other.objective * (1 + 1e-9) / (1 - one.dual_gap)).all()


@pytest.mark.crossed
@shapes
@losses
@pytest.mark.parametrize(("at_once", "n_lams"), [(2, 4), (3, 6), (5, 9)])
def test_splitting_the_batch_changes_nothing(shape, loss, at_once, n_lams):
    H, T, _, _ = draw(19, *shape, 2)
    options = {"loss": loss, "n_lams": n_lams, "eps": 1e-2}
    budget = budget_for(shape, 2, at_once)
    assert budget / 2 >= 4 * n_lams * 16 * sum(shape)  # room for the states of two lines
    whole = run(H, T, None, [0.0, 0.5, 1.0], **options)
    split = run(H, T, None, [0.0, 0.5, 1.0], memory_budget=budget, **options)
    np.testing.assert_array_equal(split.n_iter, whole.n_iter)
    size = np.abs(whole.coefs).max(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose((split.coefs - whole.coefs) / size.clip(1e-9), 0, atol=1e-6)


@pytest.mark.crossed
@shapes
@losses
def test_lines_help_each_other_to_the_same_optima(shape, loss):
    H, T, _, _ = draw(20, *shape, 2)
    lams, options = np.geomspace(10, 0.1, 10), {"loss": loss, "tol": 1e-3}
    together = run(H, T, lams, [0.0, 0.25, 0.5, 1.0], **options)
    assert together.converged.all()
    for a, ratio in enumerate(together.l1_ratios):
        alone = run(H, T, lams, ratio, **options)
        for one, other in ((together, a), (alone, 0)), ((alone, 0), (together, a)):
            best = (one[0].objective * (1 - one[0].dual_gap))[one[1]]
            assert (best <= other[0].objective[other[1]] * (1 + 1e-9)).all()


def test_blocks_of_rows_do_not_matter(monkeypatch):
    H, T, weights, _ = draw(20, 100, 10, 2, weighted=True)
    options = {"delta": 0.4, "weights": weights, "n_lams": 10, "eps": 1e-2}
    one = run(H, T, None, [0.0, 0.5, 1.0], **options)
    monkeypatch.setattr(rows.MemoryRows, "_blocks", thirds)
    other = run(H, T, None, [0.0, 0.5, 1.0], **options)
    np.testing.assert_array_equal(one.n_iter, other.n_iter)
    np.testing.assert_allclose(one.objective, other.objective, rtol=1e-9)
    np.testing.assert_allclose(one.dual_gap, other.dual_gap, atol=1e-8)


def thirds(self, n_columns):
    return iter([slice(0, 33), slice(33, 34), slice(34, len(self.H))])


@pytest.mark.parametrize("loss", ["l21", "squared"])
def test_splitting_the_batch_does_not_keep_it_from_converging(loss):
    # Small weights for large targets: far from each other on the coarsest level.
    H, T, _, _ = draw(20, *WIDE, 2)
    H, T = 0.01 * H, 1000 * T
    options = {"loss": loss, "tol": 0.1, "n_lams": 9}
    assert run(H, T, None, 1.0, **options).converged.all()
    split = run(H, T, None, 1.0, memory_budget=budget_for(WIDE, 2, 1), **options)
    assert split.converged.all()


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_budget_is_kept(ratio):
    H, T, _, _ = draw(21, 3000, 10)
    options = {"n_lams": 33, "eps": 1e-2, "tol": 1e-2, "max_iter": 20}
    run(H, T, None, ratio, **options)  # what is made once and kept does not count
    budget = 4e6
    tracemalloc.start()
    path = run(H, T, None, ratio, memory_budget=budget, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.1 * budget + path.coefs.nbytes


def test_budget_without_limit():
    H, T, _, _ = draw(22, *TALL, 2)
    free = run(H, T, None, 0.5, n_lams=5, memory_budget=np.inf)
    np.testing.assert_array_equal(free.coefs, run(H, T, None, 0.5, n_lams=5).coefs)


@losses
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_wide_rows_never_meet_their_large_gram_matrix(monkeypatch, loss, ratio):
    gram = system.gram

    def small_gram(H):
        assert H.shape[1] <= WIDE[0]
        return gram(H)

    monkeypatch.setattr(system, "gram", small_gram)
    H, T, _, _ = draw(23, *WIDE, 2)
    assert run(H, T, None, ratio, loss=loss, n_lams=5).converged.all()


@pytest.mark.parametrize("loss", ["l21", "squared"])
@groupings
def test_a_node_that_is_always_off_raises_no_warning(loss, grouped):
    H, T, _, _ = draw(24, *TALL, 2)
    H[:, 3] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = run(H, T, None, [0.0, 0.5, 1.0], loss=loss, grouped=grouped, n_lams=9, eps=1e-2)
    assert path.converged.all()
    assert np.abs(path.coefs[:, :, 3]).max() <= 1e-12


# -- the callback ------------------------------------------------------------------------------


def seen_on(H, T, l1_ratios, **options):
    """Path, and the records of each grid point in the order of their arrival."""
    seen = {}

    def look(record):
        seen.setdefault((record["l1_ratio"], record["lam"]), []).append(record)

    return gorelm_path(H, T, None, l1_ratios, callback=look, **options), seen


@pytest.mark.crossed
@pytest.mark.parametrize("budget", [2**30, 0.0])
@pytest.mark.parametrize("loss", ["l21", "squared"])
def test_callback_sees_each_iterated_point_until_it_is_done(loss, budget):
    H, T, _, _ = draw(25, *TALL, 2)
    path, seen = seen_on(H, T, [0.25, 1.0], loss=loss, n_lams=10, memory_budget=budget)
    for a, k in np.ndindex(path.n_iter.shape):
        records = seen.pop((path.l1_ratios[a], path.lams[k]), [])
        if path.n_iter[a, k] > 0:
            assert records[-1]["iteration"] == path.n_iter[a, k]
            if path.coefs[a, k].any():  # what must be empty is made exactly so afterwards
                assert records[-1]["objective"] == path.objective[a, k]
                assert records[-1]["dual_gap"] == path.dual_gap[a, k]
            assert not any(record["dual_gap"] <= 1e-3 for record in records[:-1])
        assert all("problem" not in record for record in records)
    assert not seen  # no point that is not on the grid


def test_callback_hears_of_every_point():
    H, T, _, _ = draw(26, *TALL, 2)
    path, seen = seen_on(H, T, [0.0, 0.5], n_lams=33, eps=1e-2, tol=1e-2)
    assert (path.n_iter == 0).any()
    assert len(seen) == path.n_iter.size


@pytest.mark.crossed
@shapes
@losses
@pytest.mark.parametrize("budget", [2**30, 0.0])
def test_callback_stops_without_an_error(shape, loss, budget):
    H, T, _, _ = draw(27, *shape, 2)
    options = {"loss": loss, "n_lams": 9, "tol": 1e-9, "memory_budget": budget}
    path = run(H, T, None, [0.5, 1.0], callback=lambda record: True, **options)
    assert not path.converged.all()
    assert (path.n_iter <= 5).all()
    assert np.isfinite(path.coefs).all()
    for at in np.ndindex(path.objective.shape):
        case = case_of(H, T, path, *at, loss=loss)
        assert path.objective[at] == pytest.approx(objective(case, path.coefs[at]), rel=1e-9)
        if at[1] % 4 == 1:
            distance = path.objective[at] - fit(case, 1e-3).objective[0]
            assert distance <= (path.dual_gap[at] + 1e-9) * path.objective[at]


def test_callback_ends_only_the_batch_it_came_from():
    H, T, _, _ = draw(28, *TALL, 2)
    first = []

    def stop_once(record):
        first.append(record["lam"])
        return len(first) == 1

    path = run(H, T, None, 0.5, n_lams=9, tol=1e-6, callback=stop_once)
    coarsest = np.zeros(9, bool)
    coarsest[::4] = True
    assert not path.converged[0, coarsest].all()
    assert path.converged[0, ~coarsest].all()


# -- bad input ---------------------------------------------------------------------------------

BAD_H, BAD_T, _, _ = draw(29, 12, 5, 2)


def spoiled(A, value):
    A = A.copy()
    A[3, 1] = value
    return A


def weights_with(value):
    weights = np.ones(12)
    weights[4] = value
    return weights


BAD = {
    "no lams": ({"lams": []}, "lams"),
    "negative lam": ({"lams": [1.0, -1.0]}, "lams"),
    "lam 0": ({"lams": [1.0, 0.0]}, "lams"),
    "lam NaN": ({"lams": [1.0, np.nan]}, "lams"),
    "lam infinite": ({"lams": [1.0, np.inf]}, "lams"),
    "no ratios": ({"l1_ratios": []}, "l1_ratios"),
    "ratio above 1": ({"l1_ratios": [0.0, 1.1]}, "l1_ratios"),
    "ratio negative": ({"l1_ratios": -0.1}, "l1_ratios"),
    "ratio NaN": ({"l1_ratios": [0.5, np.nan]}, "l1_ratios"),
    "NaN in H": ({"H": spoiled(BAD_H, np.nan)}, "H has"),
    "infinity in H": ({"H": spoiled(BAD_H, -np.inf)}, "H has"),
    "NaN in T": ({"T": spoiled(BAD_T, np.nan)}, "T has"),
    "infinity in T": ({"T": spoiled(BAD_T, np.inf)}, "T has"),
    "lengths": ({"H": BAD_H[1:]}, r"H .* T .*\(11, 5\) and \(12, 2\)"),
    "flat T": ({"T": BAD_T[:, 0]}, r"T \(N, m\)"),
    "flat H": ({"H": BAD_H[:, 0]}, r"H must be \(N, L\)"),
    "no rows": ({"H": BAD_H[:0], "T": BAD_T[:0]}, "N > 0"),
    "no nodes": ({"H": BAD_H[:, :0]}, r"\bH\b"),
    "no targets": ({"T": BAD_T[:, :0]}, r"\bT\b"),
    "weights too few": ({"sample_weight": np.ones(11)}, "sample_weight"),
    "weights in a column": ({"sample_weight": np.ones((12, 1))}, "sample_weight"),
    "one weight": ({"sample_weight": 1.0}, "sample_weight"),
    "weight 0": ({"sample_weight": weights_with(0.0)}, "sample_weight"),
    "weight negative": ({"sample_weight": weights_with(-1.0)}, "sample_weight"),
    "weight NaN": ({"sample_weight": weights_with(np.nan)}, "sample_weight"),
    "weight infinite": ({"sample_weight": weights_with(np.inf)}, "sample_weight"),
    "n_lams 0": ({"n_lams": 0}, "n_lams"),
    "eps 0": ({"eps": 0.0}, "eps"),
    "eps 1": ({"eps": 1.0}, "eps"),
    "eps negative": ({"eps": -0.1}, "eps"),
    "eps NaN": ({"eps": np.nan}, "eps"),
    "tau 0": ({"tau": 0.0}, "tau"),
    "delta negative": ({"delta": -1.0}, "delta"),
    "unknown loss": ({"loss": "huber"}, "loss"),
    "max_iter negative": ({"max_iter": -1}, "max_iter"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    changed, message = BAD[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, and not by NumPy
        with pytest.raises(ValueError, match=message):
            gorelm_path(**{"H": BAD_H, "T": BAD_T, "n_lams": 3, "tol": 0.1, **changed})


def test_lists_and_integers_are_arrays():
    H, T = np.round(3 * BAD_H).astype(int), np.round(3 * BAD_T).astype(int)
    one = gorelm_path(H.tolist(), T.tolist(), [1, 2], [0, 1])
    other = gorelm_path(H.astype(float), T.astype(float), [1.0, 2.0], [0.0, 1.0])
    np.testing.assert_array_equal(one.coefs, other.coefs)


def test_inputs_are_not_written_to():
    H, T, weights, _ = draw(30, *WIDE, 2, weighted=True)
    kept = [A.copy() for A in (H, T, weights)]
    for loss in LOSSES:
        run(H, T, None, [0.0, 0.5], loss=loss, weights=weights, n_lams=5, tol=0.1)
    for A, B in zip((H, T, weights), kept, strict=True):
        np.testing.assert_array_equal(A, B)


# -- the pieces: slopes and reach --------------------------------------------------------------


def lengths(A, grouped):
    return np.linalg.norm(A, axis=-1) if grouped else np.abs(A)


@groupings
@given(seed=seeds)
def test_slopes_are_subgradients(grouped, seed):
    rng = np.random.default_rng(seed)
    X, other, pull = rng.standard_normal((3, 6, 4, 3)) * 10.0 ** rng.integers(-3, 4, (3, 1, 1, 1))
    X *= rng.random((6, 4, 1)) < 0.6
    X *= rng.random(X.shape) < 0.8
    l1 = np.array([0.0, 0.3, 1.0, 20.0])
    G = Problem("l21", 1.0, l1, 1.0, grouped=grouped).penalty_slopes(X, pull)
    # l1 |x'| >= l1 |x| + <g, x' - x> for every group and every x'.
    limit, here = (l1 if grouped else l1[:, None]), lengths(X, grouped)
    for there in (other, 1e3 * other, X + 1e-3 * other, 0 * X, -X):
        size = lengths(there, grouped)
        rise = (G * (there - X)).sum(axis=-1) if grouped else G * (there - X)
        assert (limit * here + rise <= limit * size + 1e-13 * limit * (size + here)).all()


@groupings
@given(seed=seeds)
def test_slopes_of_empty_groups_are_as_near_the_pull_as_can_be(grouped, seed):
    rng = np.random.default_rng(seed)
    pull = rng.standard_normal((6, 3, 2))
    l1 = np.array([0.0, 0.7, 1.5])
    G = Problem("l21", 1.0, l1, 1.0, grouped=grouped).penalty_slopes(0 * pull, pull)
    size = lengths(pull, grouped)
    limit = l1 if grouped else l1[:, None]
    factor = np.where(size > limit, limit / size, 1.0)
    np.testing.assert_allclose(G, pull * (factor[..., None] if grouped else factor), atol=1e-14)


@pytest.mark.parametrize("loss", ["l21", "l1"])
@pytest.mark.parametrize("weighted", [False, True])
def test_reach_is_measured_in_radii_of_the_dual_ball(loss, weighted):
    rng = np.random.default_rng(31)
    Y, tau = rng.standard_normal((9, 3, 2)), np.array([0.5, 1.0, 4.0])
    omega = rng.uniform(0.5, 2.0, 9) if weighted else None
    problem = Problem(loss, tau, 0.0, 1.0)
    reach = problem.dual_reach(Y, omega)
    for p in range(3):
        largest = max(
            (np.linalg.norm(y) if loss == "l21" else np.abs(y).max())
            / (tau[p] * (1.0 if omega is None else omega[i]))
            for i, y in enumerate(Y[:, p])
        )
        assert reach[p] == pytest.approx(largest, rel=1e-13)
    np.testing.assert_array_equal(problem.dual_reach(Y[:0]), np.zeros(3))
    # Multipliers of far residuals lie on the ball, those of any residuals within it.
    rho = np.array([0.1, 1.0, 10.0])
    for V, least in ((1e6 * Y, 1.0), (1e-3 * Y, 0.0)):
        U = problem.multipliers(V, rho, omega)
        reach = problem.dual_reach(rho[:, None] * U, omega)
        assert (reach <= 1 + 1e-12).all()
        assert (reach >= least - 1e-12).all()


# -- the pieces: states ------------------------------------------------------------------------


def state(seed, count):
    rng = np.random.default_rng(seed)
    coef, dual = rng.standard_normal((4, count, 2)), rng.standard_normal((7, count, 2))
    return WarmStart(coef, dual, *rng.uniform(0.5, 2.0, (2, count)))


def assert_same_state(one, other):
    for name in ("coef", "dual", "rho", "sigma"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_mix_goes_from_one_state_to_the_other():
    one, other = state(0, 4), state(1, 4)
    share = np.array([0.0, 1.0, 0.5, 0.2])
    mixed = WarmStart.mix(one, other, share, share**2)
    for p in range(4):
        for name, s in (("coef", share[p]), ("dual", share[p] ** 2)):
            a, b = getattr(one, name)[:, p], getattr(other, name)[:, p]
            np.testing.assert_allclose(getattr(mixed, name)[:, p], a + s * (b - a), atol=1e-15)
    np.testing.assert_allclose(mixed.rho**2, one.rho * other.rho)
    np.testing.assert_allclose(mixed.sigma**2, one.sigma * other.sigma)


def test_mix_without_a_weight_split_has_no_sigma():
    one, other = (replace(state(seed, 2), sigma=np.full(2, np.nan)) for seed in (2, 3))
    assert np.isnan(WarmStart.mix(one, other, np.ones(2), np.ones(2)).sigma).all()


def test_join_and_take_undo_each_other():
    parts = [state(4, 2), state(5, 1), state(6, 3)]
    joined = WarmStart.join(parts)
    assert joined.coef.shape == (4, 6, 2)
    assert joined.dual.shape == (7, 6, 2)
    for part, which in zip(parts, ([0, 1], [2], [3, 4, 5]), strict=True):
        assert_same_state(joined.take(np.array(which)), part)
        assert_same_state(joined.take(np.isin(np.arange(6), which)), part)
    alone = [joined.take(np.array([p])) for p in range(6)]
    assert_same_state(WarmStart.join(alone), joined)
    alone[0].coef[:] = 0.0  # a copy
    assert joined.coef[:, 0].all()


# -- the pieces: starting where another run ended ----------------------------------------------

PROBLEMS = {
    "l21": Problem("l21", 1.0, 0.0, 1.0),
    "l21 sparse": Problem("l21", 1.5, 0.6, 0.4),
    "l21 lasso": Problem("l21", 1.0, 1.0, 0.0),
    "l21 lasso huber": Problem("l21", 1.5, 1.0, 0.0, 0.4),
    "l1": Problem("l1", 1.0, 0.0, 0.5),
    "l1 huber": Problem("l1", 2.0, 0.0, 0.5, 0.3),
    "l1 lasso": Problem("l1", 1.0, 1.0, 0.0),
    "l21 cells": Problem("l21", 1.0, 0.5, 0.0, grouped=False),
    "squared sparse": Problem("squared", 2.0, 0.8, 0.3),
    "squared lasso": Problem("squared", 2.0, 3.0, 0.0),
    "squared cells": Problem("squared", 2.0, 0.8, 0.3, grouped=False),
    "batch": Problem("l21", 1.0, [0.2, 1.0, 2.0], [0.8, 1.0, 0.0]),
}
problems = pytest.mark.parametrize("name", PROBLEMS)


def ended(shape, name, weighted, tol=1e-4):
    """Prepared, problem, settings, and a converged solution with its state."""
    H, T, weights, _ = draw(32, *shape, 2, weighted=weighted)
    H, T, omega, _ = scaled(Case(H, T, weights=weights))
    problem, options = PROBLEMS[name], Settings(tol=tol, max_iter=50_000)
    system = Prepared(H, T, problem, omega, tol=tol)
    end = system.solve(problem, options, keep_state=True)
    assert end.status == ["converged"] * problem.n_problems
    return system, problem, options, end


@pytest.mark.crossed
@shapes
@problems
def test_a_restart_begins_where_the_run_ended(shape, name):
    system, problem, options, end = ended(shape, name, True)
    # So loose that any certificate will do.
    loose = replace(options, tol=1.0)
    again = system.solve(problem, loose, start=end.end, keep_state=True)
    assert again.n_iter == [0] * problem.n_problems
    assert again.status == end.status
    np.testing.assert_allclose(again.objective, end.objective, rtol=1e-12)
    np.testing.assert_allclose(again.coef, end.coef, rtol=0, atol=1e-13 * np.abs(end.coef).max())
    assert (np.array(again.dual_gap) <= 1e-2).all()
    # And so does the next, with a certificate that is no worse.
    third = system.solve(problem, loose, start=again.end)
    np.testing.assert_allclose(third.objective, end.objective, rtol=1e-12)
    assert (np.array(third.dual_gap) <= np.array(again.dual_gap) + 1e-9).all()
    assert third.end is None


@pytest.mark.crossed
@shapes
@problems
def test_a_converged_state_is_certified_without_an_iteration(shape, name):
    system, problem, options, end = ended(shape, name, False)
    # What was proven of the same problem stays proven.
    again = system.solve(problem, options, start=replace(end.end, bound=np.array(end.bound)))
    assert again.n_iter == [0] * problem.n_problems
    assert (np.array(again.dual_gap) <= 1e-4).all()


@pytest.mark.crossed
@shapes
@problems
def test_an_optimum_is_a_place_to_stay(shape, name):
    # Both multipliers follow from the state, also those of the empty nodes.
    system, problem, options, best = ended(shape, name, True, tol=1e-6)
    moved = system.solve(problem, replace(options, tol=0.0, max_iter=3), start=best.end)
    assert moved.n_iter == [3] * problem.n_problems
    assert (np.array(moved.objective) <= np.array(best.objective) * (1 + 1e-3)).all()


@pytest.mark.crossed
@shapes
@problems
def test_any_start_leads_to_the_optimum(shape, name):
    H, T, _, _ = draw(33, *shape, 2)
    problem, options = PROBLEMS[name], Settings(tol=1e-4, max_iter=50_000)
    system = Prepared(H, T, problem, tol=1e-4)
    cold = system.solve(problem, options)
    far = Problem(problem.loss, problem.tau, 5 * problem.l1, 5 * problem.l2, problem.delta)
    start = system.solve(replace(far, grouped=problem.grouped), Settings(), keep_state=True).end
    warm = system.solve(problem, options, start=start)
    assert warm.status == cold.status
    assert (np.array(warm.n_iter) > 0).any()
    for one, other in ((cold, warm), (warm, cold)):
        bound = np.array(one.objective) * (1 - np.array(one.dual_gap))
        assert (bound <= np.array(other.objective) * (1 + 1e-9)).all()


# -- the pieces: the bound without ridge -------------------------------------------------------


def dual_value(case, Y):
    """What multipliers Y of the weighted rows prove, from the definition; needs l2 = 0."""
    H, T, omega, _ = scaled(case)
    omega = np.ones(len(H)) if omega is None else omega
    radius = case.tau * omega * (1 + 1e-9)
    sizes = np.linalg.norm(Y, axis=1) if case.loss == "l21" else np.abs(Y).max(axis=1)
    assert (sizes <= radius).all()
    pull = H.T @ Y
    sizes = np.linalg.norm(pull, axis=1) if case.grouped else np.abs(pull)
    assert (sizes <= case.l1 * (1 + 1e-9)).all()
    return -np.sum(Y * T) - case.delta / (2 * case.tau) * np.sum(Y * Y)


@examples(25)
@given(
    seed=seeds,
    shape=st.sampled_from([(30, 12), (12, 30), (15, 15)]),
    m=st.integers(1, 3),
    loss=st.sampled_from(["l21", "l1"]),
    grouped=st.booleans(),
    weighted=st.booleans(),
    delta=st.sampled_from([0.0, 0.5]),
    lam=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_bounds_without_ridge_hold(seed, shape, m, loss, grouped, weighted, delta, lam):
    H, T, weights, _ = draw(seed, *shape, m, weighted=weighted)
    case = Case(H, T, loss, 1.5, lam, 0.0, delta, grouped, weights)
    best = by_interior_point(case)[1]
    Hs, Ts, omega, _ = scaled(case)
    problem = Problem(loss, 1.5, lam, 0.0, delta, grouped)
    system = Prepared(Hs, Ts, problem, omega)
    for steps in (3, 40, 200):
        options = Settings(stop="never", max_iter=steps)
        found = system.solve(problem, options, keep_state=True)
        for record in found.history[0]:  # every bound, and not only the last
            assert record["objective"] * (1 - record["dual_gap"]) <= best * (1 + 1e-9)
        # What is kept is feasible, and the next run makes no more of it than it proves.
        assert dual_value(case, found.end.dual[:, 0]) <= best * (1 + 1e-9)
        again = system.solve(problem, Settings(max_iter=1), start=found.end)
        for seen in again.history[0]:
            assert seen["objective"] * (1 - seen["dual_gap"]) <= best * (1 + 1e-9)


@pytest.mark.parametrize("loss", ["l21", "l1"])
@pytest.mark.parametrize("delta", [0.0, 0.4])
def test_correction_makes_the_bound_without_ridge_better(monkeypatch, loss, delta):
    H, T, weights, _ = draw(34, *TALL, 2, weighted=True)
    H, T, omega, _ = scaled(Case(H, T, weights=weights))
    problem, options = Problem(loss, 1.0, 1.0, 0.0, delta), Settings(stop="never", max_iter=30)
    corrected = solve(H, T, problem, omega=omega, settings=options)
    monkeypatch.setattr(certificate, "_correct_bound", lambda *_: None)
    plain = solve(H, T, problem, omega=omega, settings=options)
    np.testing.assert_array_equal(plain.coef, corrected.coef)
    assert plain.dual_gap[0] > 2 * corrected.dual_gap[0]
    for one, other in zip(corrected.history[0], plain.history[0], strict=True):
        assert one["dual_gap"] <= other["dual_gap"]
