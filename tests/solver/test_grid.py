"""What speeds a grid up changes nothing of what is said about its points."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gorelm._features.layer import HiddenLayer
from gorelm._solver import grid
from gorelm._solver.admm import Settings
from gorelm._solver.prepared import Prepared, solve
from gorelm._solver.problem import Problem
from gorelm._solver.state import StrictlyFeasible, WarmStart
from gorelm.datasets import make_multitarget
from gorelm.path import gorelm_path, solve_path
from support.oracles import Case, by_interior_point, draw, scaled
from support.sweeps import examples

seeds = st.integers(0, 2**32 - 1)


def sizes(W, grouped):
    return np.linalg.norm(W, axis=-1) if grouped else np.abs(W)


# -- strictly feasible multipliers ----------------------------------------------------------------


@given(seed=seeds, grouped=st.booleans(), outside=st.sampled_from([0.1, 1.0, 1.001, 3.0, 1e6]))
def test_farthest_within_goes_to_the_limit_and_no_further(seed, grouped, outside):
    rng = np.random.default_rng(seed)
    l1 = rng.uniform(0.5, 2.0, 3)
    problem = Problem("l21", np.ones(3), l1, 0.0, 0.0, grouped)
    feasible, W = rng.standard_normal((2, 7, 3, 2))
    feasible *= 0.9 * l1[:, None] / sizes(feasible, grouped).max()
    W *= outside * l1[:, None] / sizes(W, grouped).max()
    share = problem.farthest_within(feasible, W)
    assert ((share >= 0) & (share <= 1)).all()
    reached = feasible + share[:, None] * (W - feasible)
    longest = np.moveaxis(sizes(reached, grouped), 1, 0).reshape(3, -1).max(axis=1)
    assert (longest <= l1 * (1 + 1e-9)).all()
    np.testing.assert_allclose(longest[share < 1], l1[share < 1], rtol=1e-6)
    if outside <= 1:
        np.testing.assert_allclose(share, 1.0, rtol=1e-12)


def test_farthest_within_from_a_point_to_itself_is_all_the_way():
    W = np.ones((3, 2, 2))
    problem = Problem("l21", 1.0, [2.0, 3.0], 0.0)
    np.testing.assert_array_equal(problem.farthest_within(W, W), 1.0)


@examples(25)
@given(
    seed=seeds,
    shape=st.sampled_from([(30, 12), (12, 30), (15, 15)]),
    m=st.integers(1, 3),
    loss=st.sampled_from(["l21", "l1"]),
    grouped=st.booleans(),
    weighted=st.booleans(),
    delta=st.sampled_from([0.0, 0.5]),
    ridge=st.sampled_from([0.0, 0.3]),
)
def test_bounds_from_strictly_feasible_multipliers_hold(
    seed, shape, m, loss, grouped, weighted, delta, ridge
):
    H, T, weights, _ = draw(seed, *shape, m, weighted=weighted)
    case = Case(H, T, loss, 1.5, 2.0, 0.0, delta, grouped, weights)
    best = by_interior_point(case)[1]
    Hs, Ts, omega, _ = scaled(case)
    problem, other = (
        Problem(loss, 1.5, l1, l2, delta, grouped) for l1, l2 in ((2.0, 0.0), (0.8, ridge))
    )
    system = Prepared(Hs, Ts, other, omega)
    start = system.solve(other, Settings(tol=1e-2, max_iter=50), keep_state=True).end
    feasible = system.dual_point(start.dual, other)
    if sizes(feasible.HtY, grouped).max() >= 2.0:
        return
    start.feasible = feasible
    found = system.solve(problem, Settings(stop="never", max_iter=60), start=start)
    for record in found.history[0]:
        assert record["objective"] * (1 - record["dual_gap"]) <= best * (1 + 1e-9)


def layer(n_rows, n_hidden, seed):
    """Outputs of sigmoid nodes, as alike as they are in practice, and targets with outliers."""
    data = make_multitarget(n_rows, outlier_ratio=0.2, random_state=seed)
    hidden = HiddenLayer.draw(n_hidden, data.X.shape[1], random_state=seed)
    return hidden.transform(data.X), (data.T - np.median(data.T, axis=0)) / data.T.std(axis=0)


def test_strictly_feasible_multipliers_make_the_bound_better():
    H, T = layer(600, 80, 3)
    system = Prepared(H, T, Problem("l21", 1.0, 1.0, 0.0))
    other, problem = (Problem("l21", 1.0, l1, 0.0) for l1 in (8.0, 12.0))
    start = system.solve(other, keep_state=True).end
    alone = system.solve(problem, start=start)
    start.feasible = system.dual_point(start.dual, other)
    helped = system.solve(problem, start=start)
    assert helped.status == ["converged"]
    assert helped.n_iter[0] <= 0.75 * alone.n_iter[0]


def test_strictly_feasible_multipliers_leave_with_its_problem():
    whole = StrictlyFeasible(np.arange(12.0).reshape(2, 3, 2), np.arange(3.0))
    parts = [whole.take(np.array([k])) for k in range(3)]
    for name in ("HtY", "value"):
        np.testing.assert_array_equal(
            getattr(StrictlyFeasible.join(parts), name), getattr(whole, name)
        )


# -- few nodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
@pytest.mark.parametrize("loss", ["l21", "squared"])
@pytest.mark.parametrize("known", [False, True])
def test_a_part_is_the_system_of_its_nodes(shape, loss, known):
    H, T, weights, _ = draw(4, *shape, 2, weighted=True)
    case = Case(H, T, loss, 1.0, 0.7, 0.3, weights=weights)
    H, T, omega, _ = scaled(case)
    problem = Problem(loss, 1.0, 0.7, 0.3)
    system = Prepared(H, T, problem, omega)
    if known:
        system.solve(problem)
    nodes = np.array([1, 2, 5, 17, 30])
    part = system.part(nodes).solve(problem)
    alone = solve(H[:, nodes], T, problem, omega=omega)
    np.testing.assert_allclose(part.coef, alone.coef, atol=1e-10)
    again = system.solve(problem)
    np.testing.assert_allclose(again.coef, solve(H, T, problem, omega=omega).coef, atol=1e-10)


@pytest.mark.slow_unless(loss="l21", grouped=True)
@pytest.mark.parametrize("loss", ["l21", "l1"])
@pytest.mark.parametrize("grouped", [True, False])
def test_few_nodes_find_the_optima_of_all(monkeypatch, loss, grouped):
    H, T = layer(200, 60, 5)
    weights = np.random.default_rng(5).uniform(0.5, 2.0, 200)
    parts, part = [], Prepared.part

    def noted(self, nodes):
        parts.append(nodes)
        return part(self, nodes)

    monkeypatch.setattr(Prepared, "part", noted)
    options = {"loss": loss, "grouped": grouped, "sample_weight": weights, "n_lams": 17}
    few = gorelm_path(H, T, None, [0.5, 1.0], **options)
    assert parts
    assert max(map(len, parts)) <= grid.WORKING_SET * 60
    monkeypatch.setattr(grid, "WORKING_SET", 0.0)
    parts.clear()
    every = gorelm_path(H, T, None, [0.5, 1.0], **options)
    assert not parts
    for one, other in ((few, every), (every, few)):
        assert one.converged.all()
        assert (one.objective * (1 - one.dual_gap) <= other.objective * (1 + 1e-9)).all()


def test_nodes_left_out_by_mistake_are_found(monkeypatch):
    H, T = layer(200, 60, 6)
    monkeypatch.setattr(grid, "NEAR", 1e9)  # only nodes that are active to begin with
    path = gorelm_path(H, T, None, [0.5, 1.0], n_lams=17)
    assert path.converged.all()
    for a, ratio in enumerate(path.l1_ratios):
        for k in (4, 9, 14):
            lam = path.lams[k]
            best = solve(H, T, Problem("l21", 1.0, lam * ratio, lam * (1 - ratio)))
            floor = best.objective[0] * (1 - best.dual_gap[0])
            assert path.objective[a, k] * (1 - path.dual_gap[a, k]) <= best.objective[0]
            assert floor <= path.objective[a, k]


def test_no_point_is_given_up_early():
    H, T = layer(200, 60, 7)
    path = gorelm_path(H, T, None, [0.5, 1.0], n_lams=17, tol=1e-9, max_iter=30)
    assert (path.n_iter <= 45).all()
    assert not path.converged.all()
    assert (path.n_iter[~path.converged] >= 30).all()


def test_parts_keep_to_the_budget(monkeypatch):
    H, T = layer(400, 60, 8)
    sizes_of_parts, part = [], Prepared.part

    def noted(self, nodes):
        found = part(self, nodes)
        sizes_of_parts.append(found.H.nbytes)
        return found

    monkeypatch.setattr(Prepared, "part", noted)
    like = Problem("l21", [1.0, 1.0], 1.0, 1.0)
    lams, room = np.geomspace(50, 0.05, 9), 4e4
    for limit in (1e9, room):
        sizes_of_parts.clear()
        lines = grid.Grid(Prepared(H, T, like), like, lams, Settings(), 9, limit, None)
        for _, _, solution in lines.solve(np.array([0.5, 1.0]), kept=2):
            assert set(solution.status) == {"converged"}
        assert (max(sizes_of_parts) > room) == (limit > room)


def test_one_yes_ends_the_batch_also_on_few_nodes():
    H, T = layer(200, 60, 9)
    seen = []
    gorelm_path(H, T, None, [0.5, 1.0], n_lams=17, callback=seen.append)
    on_few = [k for k, record in enumerate(seen) if np.isnan(record["dual_gap"])]
    assert on_few
    for k in on_few[:: max(1, len(on_few) // 5)]:
        calls = []

        def stop_at(record, k=k, calls=calls):
            calls.append(record)
            return len(calls) == k + 1

        path = gorelm_path(H, T, None, [0.5, 1.0], n_lams=17, callback=stop_at)
        assert {key: calls[k][key] for key in ("lam", "objective")} == {
            key: seen[k][key] for key in ("lam", "objective")
        }
        line, lam = calls[k]["l1_ratio"], calls[k]["lam"]
        at = (path.l1_ratios == line).argmax(), (path.lams == lam).argmax()
        later = [r for r in calls[k + 1 :] if (r["l1_ratio"], r["lam"]) == (line, lam)]
        assert len(later) == 1  # the certificate of where it stood
        if path.coefs[at].any():  # what must be empty is made exactly so afterwards
            assert path.dual_gap[at] == later[0]["dual_gap"]


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
def test_waves_find_what_lines_one_after_the_other_find(shape):
    H, T, _, _ = draw(12, *shape, 2)
    like = Problem("l21", [1.0, 1.0], 1.0, 1.0)
    lams, ratios = np.geomspace(10, 0.1, 17), np.array([0.0, 0.3, 0.6, 1.0])
    found, widths = {}, {}
    for kept in (2, 5):
        lines = grid.Grid(Prepared(H, T, like), like, lams, Settings(), 100, 1e9, None)
        coefs, n_iter = np.zeros((4, 17, shape[1], 2)), np.full((4, 17), -1)
        widths[kept] = []
        for at, problems, solution in lines.solve(ratios, kept):
            assert (n_iter[at, problems] == -1).all()  # no point twice
            coefs[at, problems], n_iter[at, problems] = (
                solution.coef.transpose(1, 0, 2),
                solution.n_iter,
            )
            widths[kept].append(len(set(at)))
        assert (n_iter >= 0).all()
        found[kept] = coefs, n_iter
    assert (max(widths[2]), max(widths[5])) == (1, 3)
    np.testing.assert_array_equal(found[2][1], found[5][1])
    np.testing.assert_allclose(found[2][0], found[5][0], atol=1e-6)


def count_states():
    """Count the states of single problems that are held anywhere."""
    gc.collect()
    return sum(type(o) is WarmStart and o.coef.shape[1] == 1 for o in gc.get_objects())


@pytest.fixture
def frozen():
    """Leave what exists before the test out of the collections, and of the count."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow_unless(kept=2)
@pytest.mark.parametrize(("kept", "alive"), [(1, 1), (2, 2), (5, 5)])
@pytest.mark.usefixtures("frozen")
def test_no_more_states_than_may_be_kept(kept, alive):
    H, T, _, _ = draw(13, 40, 15, 2)
    like = Problem("l21", [1.0, 1.0], 1.0, 1.0)
    lams, ratios = np.geomspace(10, 0.1, 17), np.linspace(0.1, 0.9, 9)
    lines = grid.Grid(Prepared(H, T, like), like, lams, Settings(), 100, 1e9, None)
    most = 0
    for _ in lines.solve(ratios, kept):
        most = max(most, count_states())
    assert alive * 10 < most <= alive * 17


@pytest.mark.parametrize("ratios", [[0.0, 0.5], [0.5, 0.0]])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (15, 15)])
def test_lines_in_any_order(shape, ratios):
    H, T, _, _ = draw(10, *shape, 2)
    like = Problem("l21", [1.0, 1.0], 1.0, 1.0)
    path = solve_path(Prepared(H, T, like), like, np.geomspace(10, 0.1, 9), np.array(ratios))
    assert path.converged.all()


def test_a_wide_part_solves_its_own_ridge():
    H, T, _, _ = draw(11, 6, 20, 2)
    problem = Problem("squared", 1.0, 0.0, 0.5)
    system = Prepared(H, T, problem)
    system.solve(problem)
    nodes = np.arange(0, 16, 2)
    np.testing.assert_allclose(
        system.part(nodes).solve(problem).coef, solve(H[:, nodes], T, problem).coef, atol=1e-10
    )
