"""Regressions on more nodes than rows: products of rows, leave-one-out by them, and whole fits."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from gorelm import RobustELMRegressor
from gorelm._features.joint import JointLayer
from gorelm._solver.ridge import DualRidge
from gorelm.datasets import contaminate
from gorelm.estimators._robust import layers, members, products, search, task, wide
from gorelm.estimators._robust.layers import PATH, Layer, Part, forward_selection
from gorelm.estimators._robust.products import RowProducts
from gorelm.metrics import arrmse

DENSE, SPARSE = Layer("tanh", 1.0, False), Layer("multiquadric", 2.0, True, 2)


def dense_law(n, seed=0, n_inputs=14, n_targets=12):
    """Smooth functions of directions of all inputs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n_inputs))
    directions = np.random.default_rng(99).standard_normal((n_inputs, n_targets)) / n_inputs**0.5
    return X, np.sin(2.0 * X @ directions) + 0.02 * rng.standard_normal((n, n_targets))


@pytest.fixture
def part():
    X, T = dense_law(70, n_inputs=4, n_targets=3)
    rng = np.random.default_rng(1)
    w = rng.uniform(0.5, 2.0, 70)
    return Part(X, T, T, w, rng.uniform(size=70) < 0.8, None)


@pytest.fixture
def joint(part):
    parts = (DENSE.draw(150, 0, part.X), SPARSE.draw(60, 0, part.X))
    return JointLayer(parts, np.array([1.0, 0.3]))


def outputs(joint, X, rows):
    """H as it is in the regression: constants subtracted, and a last column of ones."""
    centre = joint.transform(X[rows[: products.CENTRING_ROWS]]).mean(axis=0)
    return np.column_stack([joint.transform(X) - centre, np.ones(len(X))])


def test_errors_are_those_of_regressions_without_the_row():
    rng = np.random.default_rng(0)
    H, T = rng.standard_normal((25, 60)), rng.standard_normal((25, 2))
    K = H @ H.T
    K[np.triu_indices(25, 1)] = np.nan  # not read
    before = K.copy()
    ridge = DualRidge(K, T, 0.01)
    assert_allclose(K, before)
    lam = 0.01 * np.square(H).sum()
    assert_allclose(ridge.dual, KernelRidge(alpha=lam).fit(H, T).dual_coef_, rtol=1e-9)
    for i in range(25):
        others = np.arange(25) != i
        without = Ridge(alpha=lam, fit_intercept=False).fit(H[others], T[others])
        assert_allclose(ridge.errors()[i], T[i] - without.predict(H[[i]])[0], rtol=1e-8)
    assert_allclose(ridge.errors(7), ridge.errors()[-7:], rtol=1e-12)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_products_of_rows_that_come_and_go(part, joint, n_threads, monkeypatch):
    monkeypatch.setattr(products, "COLUMNS", 32)
    monkeypatch.setattr(products, "TILE_ROWS", 9)
    rng = np.random.default_rng(2)
    first, then = rng.permutation(70)[:50], np.arange(12, 66)
    found = RowProducts.of(joint, part.X, part.w, first, n_threads)
    for one in (found, found.of_rows(then)):
        assert set(one.rows) == set(first if one is found else then)
        H = np.sqrt(part.w)[:, None] * outputs(joint, part.X, first)
        assert_allclose(np.tril(one.K), np.tril((H @ H.T)[np.ix_(one.rows, one.rows)]), atol=1e-9)
        # The weights are those for H as it is, and a constant.
        dual = rng.standard_normal((len(one.rows), 2))
        coef = one.output_weights(dual)
        plain = np.column_stack([joint.transform(part.X), np.ones(70)])
        centred = outputs(joint, part.X, first)
        assert_allclose(plain @ coef, centred @ (H[one.rows].T @ dual), rtol=1e-8, atol=1e-8)
    assert found.of_rows(first[::-1]) is found  # nothing new


def test_each_row_is_predicted_without_it(part, joint):
    rows = np.random.default_rng(0).permutation(np.flatnonzero(part.kept))
    trial = wide.fit_wide(part, (DENSE, SPARSE), joint, 0.1, rows, 1)
    H, omega = outputs(joint, part.X, rows), np.sqrt(part.w)
    lam = PATH[trial.lam] * np.square(omega[rows, None] * H[rows]).sum()
    for i in range(70):
        others = rows[rows != i]
        without = Ridge(alpha=lam, fit_intercept=False, solver="cholesky")
        without.fit(H[others], part.T[others], sample_weight=part.w[others])
        assert_allclose(trial.predicted[[i]], without.predict(H[[i]]), rtol=1e-7, atol=1e-8)
    errors = (trial.predicted - part.T)[part.kept]
    assert_allclose(trial.score, np.average((errors**2).sum(axis=1), weights=part.w[part.kept]))
    # Again, and the last fit: with one row less.
    fewer = part.kept & (np.arange(70) != rows[3])
    again = wide.wide_again(trial, trial.wide, replace(part, kept=fewer))
    coef = wide.wide_coef(trial, trial.wide, part.filled, fewer)
    assert_allclose(again.coef, coef, rtol=1e-8, atol=1e-9)


def test_the_penalty_is_a_minimum_on_the_last_rows(part, joint):
    rows = np.random.default_rng(0).permutation(np.flatnonzero(part.kept))
    found = [wide.fit_wide(part, (DENSE, SPARSE), joint, p, rows, 1) for p in (1e-6, 1.0, 1e4)]
    assert len({trial.lam for trial in found}) == 1


def test_forward_selection():
    values = [3.0, 1.0, 5.0, 1.5]
    spread = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])

    def loss(chosen):
        covered = spread[list(chosen)].max(axis=0)
        return float(sum(value for value, there in zip(values, covered, strict=True) if not there))

    assert forward_selection(4, loss, 4) == [2, 0, 1]  # the last adds nothing
    assert forward_selection(4, loss, 2) == [2, 0]
    assert forward_selection(4, loss, 4, gain=0.5) == [2, 0]
    assert forward_selection(4, loss, 4, gain=0.4) == [2]


LAYERS = (search.LINEAR, Layer("tanh", 2.0, False), Layer("cosine", 1.0, True, 2))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(search, "SEARCH_LAYERS", LAYERS)
    monkeypatch.setattr(search, "DIRECTED", ())


@pytest.mark.parametrize("ratio", [0.0, 0.2])
def test_tables_with_many_columns_have_more_nodes_than_rows(few, ratio, monkeypatch):
    X, T = dense_law(900)
    T_train, planted = contaminate(T[:500], ratio, random_state=0)
    model = RobustELMRegressor(search_rows=150, random_state=0)
    model.fit(X[:500], T_train)
    nodes = sum(member.hidden_.n_nodes for member in model.members_)
    assert 1.25 * 300 < nodes <= 2 * 500
    assert (model.outlier_mask_ & planted).sum() >= 0.95 * planted.sum()
    monkeypatch.setattr(task, "WIDE_ROWS", 0)
    fewer = RobustELMRegressor(search_rows=150, random_state=0).fit(X[:500], T_train)
    errors = [arrmse(T[500:], one.predict(X[500:])) for one in (model, fewer)]
    assert errors[0] < 1.02 * errors[1]


def test_the_result_is_the_same_for_every_number_of_threads(few):
    X, T = dense_law(400)
    T[::7, 2] = np.nan
    w = np.random.default_rng(0).uniform(0.0, 2.0, 400)
    w[::5] = 0.0
    one, two = (
        RobustELMRegressor(search_rows=150, missing_targets="ignore", n_jobs=n, random_state=0)
        .fit(X, T, w)
        .predict(X)
        for n in (1, 3)
    )
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, two)


def test_many_targets_are_compared_by_sums_of_them(few, monkeypatch):
    X, T = dense_law(700, n_targets=40)
    by_sums, each = (
        RobustELMRegressor(search_rows=150, effort="fast", random_state=0),
        RobustELMRegressor(search_rows=150, effort="fast", random_state=0),
    )
    by_sums.fit(X[:400], T[:400])
    monkeypatch.setattr(layers, "MANY_TARGETS", 40)
    each.fit(X[:400], T[:400])
    assert sum(member.hidden_.n_nodes for member in by_sums.members_) > 400
    errors = [arrmse(T[400:], model.predict(X[400:])) for model in (by_sums, each)]
    assert errors[0] < 1.03 * errors[1]


@pytest.mark.parametrize("how", [{"n_hidden": 30}, {"cv": 4}])
def test_given_nodes_and_folds_are_kept_to(few, how, monkeypatch):
    monkeypatch.setattr(members, "fitted_wide", None)  # would fail
    X, T = dense_law(400)
    model = RobustELMRegressor(search_rows=150, effort="fast", random_state=0, **how).fit(X, T)
    assert np.isfinite(model.predict(X)).all()
