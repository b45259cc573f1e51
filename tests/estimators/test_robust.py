"""The estimator for dirty tables: no parameter to choose."""

import inspect
import pickle
import re
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from gorelm import RELMRegressor, RobustELMRegressor
from gorelm._solver.ridge import RidgePath, ridge_coef
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import split_in_two
from gorelm.estimators import robust
from gorelm.estimators._robust import judge, members, screen, search
from gorelm.estimators._robust.cells import JudgedCells
from gorelm.estimators._robust.layers import PATH
from gorelm.estimators._robust.task import EFFORTS, RobustTask
from gorelm.metrics import arrmse

slow = pytest.mark.slow


def make(**params):
    return RobustELMRegressor(**{"n_hidden": 25, "n_members": 2, "random_state": 0, **params})


def make_data(n_rows=80, ratio=0.0, kind="rows", seed=0, n_features=5, n_targets=3):
    return make_multitarget(
        n_rows, n_features, n_targets, outlier_ratio=ratio, outlier_kind=kind, random_state=seed
    )


@pytest.mark.usefixtures("few_layers")
@parametrize_with_checks([RobustELMRegressor(n_hidden=20, n_members=2)])
def test_scikit_learn(estimator, check):
    check(estimator)


@slow
@parametrize_with_checks(
    [
        RobustELMRegressor(n_hidden=20, n_members=2),
        RobustELMRegressor(n_hidden=20, n_members=2, cv=2),
    ]
)
def test_scikit_learn_with_every_layer(estimator, check):
    check(estimator)


# -- what it is for ------------------------------------------------------------------------------


# 40 % on one side are nearly a population of their own: there some, or all, are missed at times.
@pytest.mark.crossed
@pytest.mark.crossed("ratio", "seed")
@pytest.mark.parametrize(("ratio", "kind"), [(0.2, "rows"), (0.4, "rows"), (0.2, "one-sided")])
@pytest.mark.parametrize("seed", range(2))
def test_finds_planted_rows_and_predicts_without_them(ratio, kind, seed):
    data = make_data(240, ratio, kind, seed)
    X, T, planted = data.X[:180], data.T[:180], data.planted[:180]
    model = make(n_hidden=60, random_state=seed).fit(X, T)
    assert model.contaminated_ is True
    assert model.outlier_mask_[planted].mean() > 0.9
    assert planted[model.outlier_mask_].mean() > 0.9
    truth, new = data.T_clean[180:], data.X[180:]
    error = arrmse(truth, model.predict(new))
    for C in (0.01, 0.1, 1.0, 10.0):  # whatever the ridge
        ridge = RELMRegressor(C, n_hidden=60, random_state=seed).fit(X, T)
        assert error < 0.6 * arrmse(truth, ridge.predict(new))


@pytest.mark.parametrize(("n_rows", "seed"), [(150, 0), (300, 1)])
def test_finds_many_wrong_rows_on_one_side(n_rows, seed):
    data = make_data(n_rows + 60, 0.4, "one-sided", seed)
    model = make().fit(data.X[:n_rows], data.T[:n_rows])
    assert model.outlier_mask_[data.planted[:n_rows]].mean() > 0.95
    assert data.planted[:n_rows][model.outlier_mask_].mean() > 0.95
    assert arrmse(data.T_clean[n_rows:], model.predict(data.X[n_rows:])) < 0.4


@pytest.mark.parametrize("seed", range(2))
def test_clean_data_stay(seed):
    data = make_data(240, 0.0, seed=seed)
    X, T = data.X[:180], data.T[:180]
    model = make(n_hidden=60, random_state=seed).fit(X, T)
    assert model.contaminated_ is False
    assert model.outlier_mask_.mean() < 0.1
    truth, new = data.T_clean[180:], data.X[180:]
    best = min(
        arrmse(truth, RELMRegressor(C, n_hidden=60, random_state=seed).fit(X, T).predict(new))
        for C in (0.1, 1.0, 10.0, 100.0)
    )
    assert arrmse(truth, model.predict(new)) < 1.1 * best


@slow
def test_small_clean_tables_are_rarely_called_contaminated():
    called = [
        make(random_state=seed).fit(data.X, data.T).contaminated_
        for seed in range(3)
        for n_targets in (1, 2, 3)
        for data in [make_data(80, seed=seed, n_targets=n_targets)]
    ]
    assert sum(called) <= 1


@pytest.mark.parametrize(
    "size", [1e6, pytest.param(-1e12, marks=slow), pytest.param(-1e120, marks=slow)]
)
def test_a_few_gross_outliers_barely_change_predictions(size):
    data = make_data(300)
    clean = make(n_hidden=100).fit(data.X, data.T).predict(data.X)
    T = data.T.copy()
    T[[17, 203]] = size
    model = make(n_hidden=100).fit(data.X, T)
    assert model.outlier_mask_[[17, 203]].all()
    spread = data.T.std(axis=0)
    difference = np.abs(model.predict(data.X) - clean) / spread
    assert difference.mean() < 0.05
    assert difference.max() < 0.5


def test_one_gross_cell():
    data = make_data(150)
    clean = make().fit(data.X, data.T).predict(data.X)
    T = data.T.copy()
    T[40, 1] = 1e7
    model = make().fit(data.X, T)
    difference = np.abs(model.predict(data.X) - clean) / data.T.std(axis=0)
    assert difference.mean() < 0.1


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 8), marks=pytest.mark.slow)], ids=["one", "more"]
)
def test_flagged_rows_had_no_part_in_the_fit(seeds, monkeypatch):
    """If contaminated; otherwise every row has."""
    rows, compared, contaminated = [], [], set()

    def counted(H, T, lam):
        rows.append(len(H))
        return ridge_coef(H, T, lam)

    def noted(task, refined):
        compared.append(refined.part.kept)
        return members.fit_members(task, refined)

    monkeypatch.setattr(members, "ridge_coef", counted)
    monkeypatch.setattr(robust, "fit_members", noted)
    for kind, ratio, seed in product(["rows", "cells", "heavy-tailed"], [0.0, 0.35], seeds):
        data = make_data(80, ratio, kind, seed)
        model = make(n_hidden=15, n_members=1, random_state=seed).fit(data.X, data.T)
        stayed = ~model.outlier_mask_ if model.contaminated_ else np.full(80, True)
        assert len(rows) <= len(model.members_) <= 2
        assert set(rows) <= {stayed.sum()}
        if len(rows) < len(model.members_):  # one keeps the weights with which it was compared
            assert (compared[-1] == stayed).all()
        rows.clear()
        contaminated.add(model.contaminated_)
    assert contaminated == {True, False}


@pytest.mark.usefixtures("few_layers")
def test_scores_threshold_and_mask_agree():
    data = make_data(100, 0.2)
    model = make().fit(data.X, data.T)
    assert model.outlier_scores_.shape == model.outlier_mask_.shape == (100,)
    assert model.outlier_mask_.dtype == bool
    assert isinstance(model.outlier_threshold_, float)
    assert (model.outlier_scores_ >= 0).all()
    np.testing.assert_array_equal(
        model.outlier_mask_, model.outlier_scores_ > model.outlier_threshold_
    )


def test_scores_are_out_of_fold():
    """A row's score follows its target: the models that judge it have not seen it."""
    data = make_data(100)
    T = data.T.copy()
    T[5] += 50 * T.std(axis=0)
    score = make().fit(data.X, T).outlier_scores_[5]
    assert 20 < score < 100
    assert make().fit(data.X, data.T).outlier_scores_[5] < 5


# -- out-of-fold predictions ---------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_every_row_is_predicted_by_members_that_did_not_see_it(ratio, monkeypatch):
    """Explicit fits without the row, with the members' layers, penalties and shares."""
    data, found = make_multitarget(60, 5, 3, noise=0.3, outlier_ratio=ratio, random_state=0), []

    def noted(task, refined):
        found.append(refined.members)
        return members.fit_members(task, refined)

    monkeypatch.setattr(robust, "fit_members", noted)
    model = make(n_hidden=40, n_members=3).fit(data.X, data.T)
    stayed = ~model.outlier_mask_ if model.contaminated_ else np.full(60, True)
    assert model.contaminated_ is (ratio > 0)
    X = np.clip(model._input_scaling.dense(data.X), -10, 10)
    T = model._target_scaling.dense(data.T)
    expected = np.zeros_like(T)
    (ensemble,) = found
    for trial, share in zip(ensemble.trials, ensemble.shares, strict=True):
        H = np.column_stack([trial.hidden.transform(X), np.ones(60)])
        for i, j in product(range(60), range(3)):
            others = stayed & (np.arange(60) != i)
            # A least-squares problem, as the normal equations would lose digits.
            penalty = np.eye(H.shape[1]) * np.sqrt(PATH[trial.lams[j]] * np.sum(H[stayed] ** 2))
            rows, target = np.r_[H[others], penalty], np.r_[T[others, j], np.zeros(len(penalty))]
            expected[i, j] += share[j] * (H[i] @ np.linalg.lstsq(rows, target)[0])
    np.testing.assert_allclose(ensemble.shares.sum(axis=0), 1.0)
    predicted = model._target_scaling.dense(model.out_of_fold_)
    np.testing.assert_allclose(predicted, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.3])
def test_scores_follow_from_out_of_fold_predictions(ratio):
    data = make_data(120, ratio)
    model = make(n_hidden=40).fit(data.X, data.T)
    assert model.contaminated_ is (ratio > 0)
    low, high = np.quantile(data.T, [0.25, 0.75], axis=0, method="inverted_cdf")
    errors = np.abs(data.T - model.out_of_fold_) / ((high - low) / 1.3489795)
    scores = np.expm1(np.log1p(errors).mean(axis=1))
    np.testing.assert_allclose(model.outlier_scores_, scores, rtol=1e-6)


@pytest.mark.parametrize(
    "factor", [pytest.param(1e2, marks=slow), 1e6, pytest.param(1e12, marks=slow)]
)
def test_a_wrong_row_moves_neither_its_own_prediction_nor_the_flags(factor):
    data = make_data(120, 0.3)
    row = np.flatnonzero(data.planted)[0]
    model = make(n_hidden=40).fit(data.X, data.T)
    T = data.T.copy()
    T[row] *= factor  # as wrong as before, only more so
    worse = make(n_hidden=40).fit(data.X, T)
    np.testing.assert_array_equal(worse.outlier_mask_, model.outlier_mask_)
    np.testing.assert_allclose(worse.out_of_fold_[row], model.out_of_fold_[row], rtol=1e-9)


@pytest.mark.usefixtures("few_layers")
def test_shape_unit_and_gaps_of_out_of_fold_predictions():
    data = make_data(90)
    T = data.T[:, 0]
    model = make(cv=[(np.arange(30, 90), np.arange(30)), (np.arange(30), np.arange(30, 60))])
    expected = model.fit(data.X, T).out_of_fold_
    assert expected.shape == (90,)
    assert np.isfinite(expected[:60]).all()
    assert np.isnan(expected[60:]).all()
    twice = model.fit(data.X, 1024.0 * T).out_of_fold_
    np.testing.assert_allclose(twice[:60], 1024.0 * expected[:60], rtol=1e-9)
    T[5] = np.nan
    model.set_params(missing_targets="ignore").fit(data.X, T)
    assert np.isfinite(model.out_of_fold_[:60]).all()  # what it would have been


# -- the same result -----------------------------------------------------------------------------


@pytest.mark.usefixtures("few_layers")
@slow
def test_deterministic():
    data = make_data(ratio=0.2)
    one, two = make().fit(data.X, data.T), make().fit(data.X, data.T)
    np.testing.assert_array_equal(one.predict(data.X), two.predict(data.X))
    np.testing.assert_array_equal(one.outlier_scores_, two.outlier_scores_)
    other = make(random_state=1).fit(data.X, data.T)
    assert not np.array_equal(one.predict(data.X), other.predict(data.X))


@pytest.mark.usefixtures("few_layers")
def test_random_state_instance():
    data = make_data()
    one = make(random_state=np.random.RandomState(3)).fit(data.X, data.T)
    two = make(random_state=3).fit(data.X, data.T)
    np.testing.assert_array_equal(one.predict(data.X), two.predict(data.X))


@pytest.mark.parametrize("search_rows", [1000, 100])
@pytest.mark.parametrize("n_jobs", [(1, 3), pytest.param((1, 2, 5, None), marks=slow)])
def test_threads_change_no_digit(search_rows, n_jobs):
    data = make_data(400, ratio=0.2)
    models = [
        make(n_hidden=100, search_rows=search_rows, n_jobs=n).fit(data.X, data.T) for n in n_jobs
    ]
    first = models[0]
    for other in models[1:]:
        np.testing.assert_array_equal(first.predict(data.X), other.predict(data.X))
        np.testing.assert_array_equal(first.outlier_scores_, other.outlier_scores_)
        for name, column in first.cv_results_.items():
            np.testing.assert_array_equal(column, other.cv_results_[name])


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.3])
def test_units_do_not_matter(ratio):
    data = make_data(ratio=ratio)
    plain = make().fit(data.X, data.T)
    a, b = np.array([1e-3, 1.0, 1e4]), np.array([5.0, -2.0, 0.0])
    scaled = make().fit(1024 * data.X - 4, data.T * a + b)
    expected = plain.predict(data.X) * a + b
    np.testing.assert_array_equal(plain.outlier_mask_, scaled.outlier_mask_)
    error = np.abs(scaled.predict(1024 * data.X - 4) - expected) / expected.std(axis=0)
    assert error.max() < 1e-2


# -- difficult targets ---------------------------------------------------------------------------


def finite(model, X, T, w=None):
    prediction = model.fit(X, T, w).predict(X)
    for values in (prediction, model.outlier_scores_):
        assert np.isfinite(values).all()
    assert not np.isnan(model.outlier_threshold_)
    assert prediction.shape == np.shape(T)
    return prediction


@pytest.mark.usefixtures("few_layers")
def test_zero_inflated_target():
    data = make_data(150)
    T = np.maximum(data.T - np.quantile(data.T, 0.8, axis=0), 0.0)
    model = make(n_hidden=60)
    prediction = finite(model, data.X, T)
    assert (T == 0).mean() > 0.75
    for j in range(3):
        assert np.corrcoef(prediction[:, j], T[:, j])[0, 1] > 0.6
        assert prediction[T[:, j] > 0, j].mean() > 3 * prediction[T[:, j] == 0, j].mean()
    assert not model.contaminated_


@pytest.mark.usefixtures("few_layers")
def test_zero_inflated_beside_ordinary_targets():
    data = make_data(150, 0.2)
    T = data.T.copy()
    T[:, 0] = np.maximum(data.T_clean[:, 0] - np.quantile(data.T_clean[:, 0], 0.8), 0.0)
    prediction = finite(make(n_hidden=60), data.X, T)
    assert np.corrcoef(prediction[:, 0], T[:, 0])[0, 1] > 0.5


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.3])
def test_one_target(ratio):
    data = make_data(ratio=ratio)
    y = data.T[:, 0]
    flat, column = make(), make()
    one, two = finite(flat, data.X, y), finite(column, data.X, y[:, None])
    assert one.shape == (80,)
    np.testing.assert_array_equal(one, two[:, 0])


@pytest.mark.usefixtures("few_layers")
@pytest.mark.crossed
@pytest.mark.parametrize("value", [0.0, 7.0, -1e6])
@pytest.mark.parametrize("n_targets", [None, 2])
def test_constant_target(value, n_targets):
    data = make_data()
    T = np.full(80 if n_targets is None else (80, 2), value)
    model = make()
    np.testing.assert_allclose(finite(model, data.X, T), value, rtol=1e-9, atol=1e-9)
    assert model.contaminated_ is False
    assert not model.outlier_mask_.any()


@pytest.mark.usefixtures("few_layers")
def test_one_of_the_targets_is_constant():
    data = make_data(ratio=0.2)
    T = np.column_stack([data.T, np.full(80, 3.0)])
    prediction = finite(make(), data.X, T)
    np.testing.assert_allclose(prediction[:, 3], 3.0)
    alone = make().fit(data.X, data.T)
    error = np.abs(prediction[:, :3] - alone.predict(data.X)) / data.T_clean.std(axis=0)
    assert error.mean() < 0.1


@pytest.mark.usefixtures("few_layers")
def test_constant_column_of_inputs():
    data = make_data(ratio=0.2)
    X = np.column_stack([data.X, np.full(80, 3.0)])
    finite(make(), X, data.T)
    finite(make(), np.ones_like(X), data.T)


@pytest.mark.usefixtures("few_layers")
def test_two_labels():
    data = make_data(120)
    T = (np.median(data.T, axis=0) < data.T).astype(float)
    model = make(n_hidden=60)
    prediction = finite(model, data.X, T)
    assert not model.contaminated_
    assert ((prediction > 0.5) == (T > 0.5)).mean() > 0.85


@pytest.mark.usefixtures("few_layers")
def test_rare_label():
    data = make_data(150)
    y = (data.T[:, 0] > np.quantile(data.T[:, 0], 0.9)).astype(float)
    model = make(n_hidden=60)
    prediction = finite(model, data.X, y)
    assert not model.contaminated_
    assert prediction[y == 1].mean() > 3 * max(prediction[y == 0].mean(), 0.01)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.2])
def test_missing_targets(ratio):
    data = make_data(120, ratio)
    T = data.T.copy()
    T[::4, 0], T[1::6, 1], T[10] = np.nan, np.nan, np.nan
    model = make(missing_targets="ignore")
    prediction = finite(model, data.X, T)
    assert not model.outlier_mask_[10]
    complete = make().fit(data.X, data.T).predict(data.X)
    spread = data.T_clean.std(axis=0)
    assert (np.abs(prediction - complete) / spread).mean() < 0.2
    with pytest.raises(ValueError, match="NaN"):
        make().fit(data.X, T)
    T[:, 2] = np.nan
    with pytest.raises(ValueError, match="no value of target column"):
        model.fit(data.X, T)


@pytest.mark.usefixtures("few_layers")
@slow
def test_no_missing_targets_to_ignore():
    data = make_data(ratio=0.2)
    one = make(missing_targets="ignore").fit(data.X, data.T)
    np.testing.assert_array_equal(one.predict(data.X), make().fit(data.X, data.T).predict(data.X))


@pytest.mark.usefixtures("few_layers")
def test_a_target_unknown_in_the_training_rows_of_a_fold():
    data = make_data(30)
    T = data.T.copy()
    T[10:, 0] = np.nan
    with pytest.raises(ValueError, match="unknown in all training rows of a fold"):
        make(missing_targets="ignore", cv=KFold(3), n_hidden=5).fit(data.X, T)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.3])
def test_rows_of_weight_zero_are_ignored(ratio):
    """Whatever their targets and inputs are."""
    data = make_data(ratio=ratio)
    w = np.ones(80)
    w[::7] = 0
    one = make()
    first = finite(one, data.X, data.T, w)
    X, T = data.X.copy(), data.T.copy()
    T[::7] = 1e5
    X[::7] = -7.0
    two = make()
    finite(two, X, T, w)
    np.testing.assert_array_equal(first, two.predict(data.X))
    np.testing.assert_array_equal(one.outlier_scores_[w > 0], two.outlier_scores_[w > 0])
    assert one.outlier_threshold_ == two.outlier_threshold_


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("ratio", [pytest.param(0.0, marks=slow), 0.3])
def test_weights_are_repeats(ratio, monkeypatch):
    # Directions are learnt by fits that leave one row out, of which a repeat is left.
    monkeypatch.setattr(search, "DIRECTED", ())
    data = make_data(60, ratio)
    w = np.arange(60) % 3 + 1
    rows = np.repeat(np.arange(60), w)
    splits = list(KFold(3).split(data.X))
    repeated = [tuple(np.flatnonzero(np.isin(rows, part)) for part in split) for split in splits]
    one = make(cv=splits).fit(data.X, data.T, w)
    two = make(cv=repeated).fit(data.X[rows], data.T[rows])
    np.testing.assert_array_equal(one.outlier_mask_[rows], two.outlier_mask_)
    error = np.abs(one.predict(data.X) - two.predict(data.X)) / data.T_clean.std(axis=0)
    assert error.max() < 1e-2


@pytest.mark.usefixtures("few_layers")
@slow
def test_scale_of_the_weights_does_not_matter():
    data = make_data(ratio=0.3)
    one, two = make().fit(data.X, data.T), make().fit(data.X, data.T, np.full(80, 4.0))
    np.testing.assert_array_equal(one.outlier_mask_, two.outlier_mask_)
    error = np.abs(one.predict(data.X) - two.predict(data.X)) / data.T_clean.std(axis=0)
    assert error.max() < 1e-2


# -- sizes and folds -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "one-sided"])
def test_more_rows_than_the_search_takes(kind):
    data = make_data(200, 0.2, kind)
    model = make(search_rows=60)
    finite(model, data.X, data.T)
    assert model.contaminated_
    assert model.outlier_mask_[data.planted].mean() > 0.9
    assert data.planted[model.outlier_mask_].mean() > 0.8


@pytest.mark.usefixtures("few_layers")
@slow
def test_search_rows_at_the_number_of_rows_changes_nothing():
    data = make_data(ratio=0.2)
    one, two = make(search_rows=80), make(search_rows=1000)
    np.testing.assert_array_equal(
        one.fit(data.X, data.T).predict(data.X), two.fit(data.X, data.T).predict(data.X)
    )


def test_more_rows_have_more_nodes():
    effort = EFFORTS["default"]
    nodes = [effort.nodes_for(n, 10, 4) for n in (2000, 5000, 20_000, 200_000, 10**7)]
    assert nodes[0] == 1000
    assert nodes == sorted(nodes)
    assert nodes[-1] == effort.most_nodes
    # All rows are searched: with fewer rows than nodes, more of them take little time.
    few = [effort.nodes_for(n, 100, 16) for n in (10, 500, 800, 1000)]
    assert few == [3000, 3000, 2500, 2000]
    assert effort.nodes_for(2000, 40, 4) == 2000


@pytest.mark.parametrize("effort", ["fast", pytest.param("high", marks=slow)])
def test_effort(effort):
    data = make_data(240, 0.2)
    X, T = data.X[:180], data.T[:180]
    model = RobustELMRegressor(effort=effort, random_state=0).fit(X, T)
    plain = RobustELMRegressor(random_state=0).fit(X, T)
    assert len(model.members_) <= 2 * EFFORTS[effort].n_members
    nodes = [max(member.n_hidden for member in one.members_) for one in (model, plain)]
    assert nodes[0] < nodes[1] if effort == "fast" else nodes[0] > nodes[1]
    truth, new = data.T_clean[180:], data.X[180:]
    errors = [arrmse(truth, one.predict(new)) for one in (model, plain)]
    assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize(("size", "left_out"), [(4, 0), (40, 3), (4000, 3)])
def test_rows_far_off_in_a_clean_table(monkeypatch, size, left_out):
    """Many times the typical error is no damage while it is small beside the targets' spread."""
    rng = np.random.default_rng(0)
    T = rng.normal(size=(400, 2))
    errors = rng.normal(size=(400, 2)) * rng.uniform(0, 0.4, size=(400, 1))
    errors[:3] = size
    none = np.zeros(2, dtype=bool)
    monkeypatch.setattr(screen, "split_sizes", lambda *args: (np.inf, 0.0))  # one group
    monkeypatch.setattr(
        screen, "_predictions", lambda task, scaled, *more: (scaled + errors, none, False)
    )
    screened = screen.screen(make_task(T, T))
    assert not screened.dirty
    assert screened.wrong.any(axis=1).sum() == left_out
    np.testing.assert_array_equal(np.isnan(screened.T), screened.wrong)
    assert screened.kept.all()


@pytest.mark.parametrize("trimmed", [False, True])
def test_trimmed_fit_follows_the_larger_group(trimmed):
    """A bounded pull moves the prediction towards the smaller group, a trimmed one does not."""
    rng = np.random.default_rng(0)
    T = np.where(np.arange(200) < 120, 0.0, 6.0)[:, None] + 0.1 * rng.normal(size=(200, 1))
    constant, lams, half = np.ones((200, 1)), np.array([1e-9]), np.array([0.5])
    fit = screen.bounded_fit(RidgePath(constant, lams), T, np.ones(200), half)
    fit = fit.trimmed(T, np.ones(200), half) if trimmed else fit
    assert (abs(fit.coefs().item()) < 0.1) is trimmed


@given(
    values=hnp.arrays(float, st.integers(1, 30), elements=st.floats(-100, 100).map(round)),
    level=st.floats(0.05, 1.0),
    data=st.data(),
)
def test_shortest_intervals_against_every_pair_of_ends(values, level, data):
    w = data.draw(hnp.arrays(float, len(values), elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])))
    w[0] = 1.0
    low, high = screen.shortest_intervals(values[:, None, None], w[:, None], np.array([level]))
    known = values[w > 0]
    share = level * w.sum() * (1 - 1e-9)
    lengths = [
        b - a for a in known for b in known if w[(a <= values) & (values <= b)].sum() >= share
    ]
    assert (high - low).item() == min(lengths)
    assert w[(low.item() <= values) & (values <= high.item())].sum() >= share


def test_trimmed_fit_finds_the_larger_group_from_a_start_between_both():
    """The densest half of the errors need not be near 0."""
    rng = np.random.default_rng(0)
    T = np.where(np.arange(200) < 120, 0.0, rng.uniform(2.0, 8.0, 200))[:, None]
    T += 0.1 * rng.normal(size=(200, 1))
    constant, lams, half = np.ones((200, 1)), np.array([1e-9]), np.array([0.5])
    far = np.full((200, 1, 1), 3.0)
    start = screen.BoundedFit(far, RidgePath(constant, lams), far)
    assert abs(start.trimmed(T, np.ones(200), half).coefs().item()) < 0.1


def make_screened(T, contaminated, kept):
    none, every = np.zeros(T.shape, dtype=bool), np.ones(T.shape[1], dtype=bool)
    return judge.Screened(contaminated, none[0], kept, none, none[0], T, every, ~every, T)


def make_task(X, T):
    every, w, effort = np.ones(len(T), dtype=bool), np.ones(len(T)), EFFORTS["fast"]
    return RobustTask(X, T, w, every, None, 0, effort, 10, 1, False)


@pytest.mark.parametrize(
    ("contaminated", "two_groups", "changed", "searches"),
    [
        (True, True, 3, 2),
        (True, True, 2, 1),
        (False, False, 0, 1),
        (False, True, 3, 1),
        (True, False, 3, 2),
    ],
)
def test_the_search_is_repeated_if_many_rows_change_sides(
    monkeypatch, contaminated, two_groups, changed, searches
):
    """And if a better model explains what the screen set aside; then nothing is set aside."""
    data = make_data(200)
    every, none = np.ones(200, dtype=bool), np.zeros((200, 3), dtype=bool)
    after = every.copy()
    after[:changed] = False
    seen = []

    def judged_by(task, screened, scaling, trials, rows):
        seen.append(screened)
        cells = JudgedCells(data.T, every[:3], none, np.zeros(3), data.T)
        return judge.Judged(data.T, every, 1.0, ~after, after, two_groups, cells, none, data.T)

    monkeypatch.setattr(search, "_judge_by", judged_by)
    monkeypatch.setattr(search, "explained_by_others", lambda *args: (False, ~none[0]))
    monkeypatch.setattr(search, "explained_together", lambda *args: args[2])
    screened = make_screened(data.T, contaminated, every)
    monkeypatch.setattr(search, "judged_by_screen", lambda task, screened: screened)
    found = search.search(make_task(data.X, data.T), screened)
    assert len(seen) == searches
    assert found.screened.contaminated is (contaminated and two_groups)
    np.testing.assert_array_equal(found.part.kept, after if searches == 2 and two_groups else every)


@pytest.mark.parametrize("what", ["region", "wrong", "one side", "region's cells", "wrong cells"])
def test_models_of_all_rows_explain_what_is_right(what):
    """Right rows and cells of one region predict each other, mistakes do not."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (240, 3))
    T = X[:, 1:] + 0.3 * rng.standard_normal((240, 2))
    off, columns = np.zeros(240, dtype=bool), [0] if "cells" in what else [0, 1]
    off[:60] = True
    if "region" in what:
        X[off, 0] += 3.0
        T[np.ix_(off, columns)] += 4.0
    else:
        sides = [1.0] if what == "one side" else [-1.0, 1.0]
        T[np.ix_(off, columns)] += 4.0 * rng.choice(sides, (60, len(columns)))
    screened, task = make_screened(T, True, ~off), replace(make_task(X, T), n_hidden=60)
    cells = off[:, None] & np.isin([0, 1], columns)
    if "cells" in what:
        screened = replace(screened, kept=~np.zeros_like(off), wrong=cells)
        screened = replace(screened, T=np.where(cells, np.nan, T), groups=np.array([True, False]))
    rows = np.arange(240)
    part, scaling = task.part(screened.T, np.zeros(T.shape), screened.kept, rows)
    trials = search.compare_layers(task, part)
    judged = search._judge_by(task, screened, scaling, trials, rows)
    of_rows, of_cells = search.explained_by_others(task, screened, judged, trials, rows)
    if "cells" in what:
        assert of_cells.tolist() == ["region" in what, False]
    else:
        assert judged.flagged[off].all()
        assert of_rows is (what == "region")


@pytest.mark.parametrize("contaminated", [False, True])
def test_groups_of_cells_none_of_which_is_wrong(contaminated, monkeypatch):
    """They are none, unless wrong rows have taken the wrong cells."""
    data = make_data(60)
    every, none = np.ones(3, dtype=bool), np.zeros((60, 3), dtype=bool)
    wrong, flagged = none.copy(), np.arange(60) < 10 * contaminated
    wrong[30, 1] = True
    monkeypatch.setattr(search, "explained_by_others", lambda *args: (False, none[0]))
    monkeypatch.setattr(search, "confirmed", lambda *args: every)
    monkeypatch.setattr(search, "in_one_region", lambda *args: False)
    cells = JudgedCells(data.T, every, none, np.ones(3), data.T)
    judged = judge.Judged(data.T, data.T, 1.0, flagged, ~flagged, True, cells, wrong, data.T)
    screened = replace(make_screened(data.T, contaminated, ~flagged), groups=every)
    found = search._still_two(make_task(data.X, data.T), screened, judged, [], np.arange(60))
    assert found[0] is contaminated
    assert found[1].tolist() == [contaminated, True, contaminated]


@pytest.mark.parametrize("noise", [False, True])
def test_tails_that_squares_predict_are_not_heavy(noise):
    """A bounded loss, better for most rows, gives up far ones that squares predict; not noise."""
    rng, far = np.random.default_rng(0), np.arange(300) < 10
    T = rng.standard_normal((300, 2))
    T[far] = 30.0
    bounded, squared = 0.05 * T, np.zeros((300, 2))
    bounded[far], squared[far] = 0.0, 0.0 if noise else 20.0
    task, rows = make_task(T, T), np.arange(300)
    heavy = screen._heavy(task, rows, T, bounded, squared[:, None])
    assert heavy.tolist() == [noise, noise]


@pytest.mark.parametrize("trimmed", [False, True])
def test_right_rows_far_from_the_others_explain_each_other(trimmed):
    """Flagged rows come back if models that learn from all of them predict them; wrong ones stay.

    With wrong rows off to one side, which the trimmed loss is for, none comes back.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    far, wrong = np.arange(200) >= 170, np.arange(200) < 30
    X[far, 0] += 6.0
    T = X[:, 1:] + 1.4 * far[:, None] + 0.1 * rng.standard_normal((200, 2))
    T[wrong] += rng.choice([-4.0, 4.0], (30, 2))
    task = replace(make_task(X, T), n_hidden=60)
    screened = replace(make_screened(T, True, ~(far | wrong)), trimmed=trimmed)
    rows = np.arange(200)
    part, scaling = task.part(T, T, screened.kept, rows)
    trials = search.compare_layers(task, part)
    judged = search._judge_by(task, screened, scaling, trials, rows)
    assert judged.flagged[far].all()
    assert judged.flagged[wrong].all()
    kept = search.explained_together(task, screened, judged, trials, rows).kept
    assert kept[far].mean() > 0.8 if not trimmed else not kept[far].any()
    assert not kept[wrong].any()


@pytest.mark.parametrize("w", [1.0, 1e-8])
def test_a_gross_cell_of_a_right_row_is_left_out_alone(monkeypatch, w):
    """Also where right cells of the same region are off, and whatever the unit of the weights."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(300, 12))
    T = expected + 0.3 * rng.normal(size=expected.shape)
    wrong, row = np.arange(300) < 60, 60
    T[wrong] = 6 * rng.choice([-1.0, 1.0], (60, 12)) + rng.normal(size=(60, 12))
    T[row] = expected[row] + 1.1
    T[row, 1] = 1000.0
    monkeypatch.setattr(judge, "in_one_region", lambda *args: True)
    task = replace(make_task(expected, T), w=np.full(300, w))
    judged = judge.judge(task, make_screened(T, True, ~wrong), expected)
    assert judged.scores[row] > judged.threshold
    np.testing.assert_array_equal(judged.flagged, wrong)
    assert np.argwhere(judged.wrong).tolist() == [[row, 1]]


def test_right_rows_whose_errors_go_together_are_kept():
    """As errors of other right rows do; errors as large of wrong rows have any direction."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(300, 6))
    wrong, hard = np.arange(300) < 60, np.arange(60, 68)
    T = expected + 0.3 * rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 6))
    signs = rng.choice([-1, 1], (60, 6))
    signs[:, 1] = -signs[:, 0]
    T[wrong] = expected[wrong] + rng.uniform(2.0, 4.0, (60, 6)) * signs
    T[hard] = expected[hard] + 3.0 + 0.1 * rng.normal(size=(8, 6))
    judged = judge.judge(make_task(expected, T), make_screened(T, True, ~wrong), expected)
    assert (judged.scores[hard] > judged.threshold).all()
    np.testing.assert_array_equal(judged.flagged, wrong)


def test_rows_that_are_far_off_in_one_target_are_right_in_the_others():
    """The far values of several such rows are what wrong values of that target look like."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(300, 6))
    T = expected + 0.3 * rng.normal(size=expected.shape)
    wrong, rows = np.arange(300) < 60, np.arange(60, 70)
    T[wrong] = 4 * rng.choice([-1.0, 1.0], (60, 6)) + 0.5 * rng.normal(size=(60, 6))
    T[rows] = expected[rows] + 0.9 * rng.choice([-1.0, 1.0], (10, 6))
    T[rows, 2] = 30.0 + rng.normal(size=10)
    task = make_task(expected, T)
    judged = judge.judge(task, make_screened(T, True, ~wrong), expected)
    assert (judged.scores[rows] > judged.threshold).all()
    np.testing.assert_array_equal(judged.flagged, wrong)
    assert judged.wrong[rows, 2].all()
    assert judged.wrong[rows].sum() < 2 * len(rows)


def test_a_right_row_loses_cells_that_clearly_look_wrong():
    """Also cells that are too near their prediction to be left out by their error alone."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(300, 6))
    wrong, rows, far = np.arange(300) < 60, np.arange(60, 70), [2, 3]
    expected[rows] *= 0.3
    expected[np.ix_(rows, far)] = 2.0
    T = expected + 0.3 * rng.normal(size=expected.shape)
    T[wrong] = 4 * rng.choice([-1.0, 1.0], (60, 6)) + 0.5 * rng.normal(size=(60, 6))
    T[rows] = expected[rows] + rng.choice([-1.0, 1.0], (10, 6))
    T[np.ix_(rows, far)] = 5.0
    task = make_task(expected, T)
    assert (judge.FAR_OF_DIRTY * task.robust_scaling.scale[far] > 3.0).all()
    judged = judge.judge(task, make_screened(T, True, ~wrong), expected)
    assert (judged.scores[rows] > judged.threshold).all()
    assert not judged.flagged[rows].any()
    assert judged.wrong[rows, 2].all()


def test_one_gross_cell_is_named_by_its_own_error():
    """It is left out of the fit, but its score is that of the cell as it was."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    T = X @ rng.normal(size=(3, 5)) + rng.standard_t(3, size=(200, 5))
    T[7, 0] += 1e5
    model = make(n_hidden=5).fit(X, T)
    assert not model.contaminated_
    assert np.argmax(model.cell_scores_) == 7 * 5
    assert model.cell_mask_[7].tolist() == [True, False, False, False, False]
    assert not model.outlier_mask_[7]  # the others of the row are right


@slow
def test_rare_targets_and_tests_survive_sampling():
    data = make_data(300)
    T = data.T.copy()
    T[9:, 0] = np.nan
    for seed in range(2):
        model = make(search_rows=60, missing_targets="ignore", random_state=seed)
        finite(model, data.X, T)
        cv = [(np.arange(290), np.arange(290, 300))]
        model = make(cv=cv, search_rows=20, random_state=seed).fit(data.X, data.T)
        assert np.isfinite(model.cv_results_["mean_test_score"]).all()


def test_cv_must_test_a_usable_row():
    data = make_data(80)
    cv = [(np.arange(60), np.arange(60, 80))]
    weights = (np.arange(80) < 60).astype(float)
    with pytest.raises(ValueError, match="cv tests no row"):
        make(cv=cv).fit(data.X, data.T, weights)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("search_rows", [2, 5, 79])
def test_few_rows_to_search(search_rows):
    data = make_data(ratio=0.2)
    finite(make(search_rows=search_rows), data.X, data.T)


@pytest.mark.usefixtures("few_layers")
def test_rows_that_cv_never_tests_are_not_outliers():
    data = make_data(80)
    T = data.T + 1000 * data.T.std(axis=0)  # far from 0
    cv = ShuffleSplit(3, test_size=0.2, random_state=0)
    tested = np.zeros(80, dtype=bool)
    for _, test in cv.split(data.X):
        tested[test] = True
    model = make(cv=cv)
    finite_prediction = model.fit(data.X, T).predict(data.X)
    assert np.isfinite(finite_prediction).all()
    assert not model.contaminated_
    assert (~tested).sum() > 20
    assert model.outlier_mask_[~tested].mean() < 0.1


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("n_members", [1, 3, 99])
def test_members(n_members):
    pd = pytest.importorskip("pandas")
    data = make_data()
    model = make(n_members=n_members).fit(data.X, data.T)
    assert 1 <= len(model.members_) <= 2 * n_members
    table = pd.DataFrame(model.cv_results_)
    assert table["mean_test_score"].is_monotonic_decreasing
    assert not table.isna().any(axis=None)
    X = np.clip((data.X - data.X.mean(axis=0)) / data.X.std(axis=0), -20, 20)
    mean = np.mean([member.predict(X) for member in model.members_], axis=0)
    np.testing.assert_allclose(
        model.predict(data.X), mean * data.T.std(axis=0) + data.T.mean(axis=0), rtol=1e-9
    )


@pytest.mark.usefixtures("few_layers")
def test_smallest_tables():
    data = make_data(10)
    finite(make(cv=2), data.X[:4], data.T[:4])
    finite(make(cv=2), data.X[:2], data.T[:2])
    for n in (2, 3, 4):
        finite(make(), data.X[:n], data.T[:n])
    finite(make(cv=3), data.X[:, :1], data.T[:, :1])


@pytest.mark.usefixtures("few_layers")
def test_predictions_far_away_are_bounded():
    data = make_data()
    model = make().fit(data.X, data.T)
    assert np.abs(model.predict(1e300 * np.sign(data.X))).max() < 1e4


@pytest.mark.usefixtures("few_layers")
def test_huge_and_tiny_targets():
    data = make_data(ratio=0.2)
    plain = make().fit(data.X, data.T).predict(data.X)
    for unit in (1e-100, 1e100):
        prediction = finite(make(), data.X, unit * data.T)
        np.testing.assert_allclose(prediction / unit, plain, atol=1e-2)


# -- wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_hidden", 0),
        ("n_hidden", 2.5),
        ("n_members", 0),
        ("cv", 1),
        ("cv", 81),
        ("cv", "five"),
        ("search_rows", 1),
        ("missing_targets", "drop"),
        ("n_jobs", 1.5),
        ("progress", "yes"),
        ("random_state", "seed"),
    ],
)
def test_bad_parameter(name, value):
    data = make_data()
    model = make(**{name: value})
    with pytest.raises(ValueError, match=name):
        model.fit(data.X, data.T)
    with pytest.raises(NotFittedError):
        model.predict(data.X)


def test_bad_data():
    data = make_data()
    X, T = data.X, data.T
    for bad, match in [
        ((np.where(X > 0.9, np.nan, X), T), "NaN"),
        ((X, np.where(T.mean() < T, np.inf, T)), "inf"),
        ((X, T[:-1]), "inconsistent"),
        ((X, T, np.zeros(80)), "non-zero|positive sample weight"),
        ((X, T, np.full(80, -1.0)), "[Nn]egative"),
        ((X[:1], T[:1]), "n_samples = 1"),
        ((X, None), "requires y"),
    ]:
        with pytest.raises(ValueError, match=match):
            make().fit(*bad)


@pytest.mark.usefixtures("few_layers")
def test_a_failed_fit_changes_nothing(monkeypatch):
    data = make_data()
    model = make().fit(data.X, data.T)
    prediction, before = model.predict(data.X), dict(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((5, 2), np.nan), np.zeros(5))
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(robust, "fit_members", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.X[:, :3], data.T[:, 0])
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    np.testing.assert_array_equal(model.predict(data.X), prediction)


# -- progress ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_layers")
def test_progress_shows_bars(capsys):
    pytest.importorskip("rich")
    data = make_data()
    make().fit(data.X, data.T)
    assert capsys.readouterr() == ("", "")
    make(progress=True).fit(data.X, data.T)
    out, err = capsys.readouterr()
    assert out == ""  # a program's results go there
    for what in ("screening rows", "searching layers", "100%"):
        assert what in err


def test_progress_without_rich(monkeypatch):
    for name in list(sys.modules):
        if name == "rich" or name.startswith("rich."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    data = make_data()
    with pytest.raises(ImportError, match=r"gorelm\[progress\]"):
        make(progress=True).fit(data.X, data.T)


# -- as an estimator -----------------------------------------------------------------------------


@pytest.mark.usefixtures("few_layers")
def test_clone_pickle_and_untouched_parameters():
    data = make_data(ratio=0.2)
    X, T, w = data.X, data.T, np.arange(80) % 3
    before = [a.copy() for a in (X, T, w)]
    model = make()
    params = model.get_params()
    model.fit(X, T, w)
    assert model.get_params() == params
    for old, new in zip(before, (X, T, w), strict=True):
        np.testing.assert_array_equal(new, old)
    copy = clone(model)
    with pytest.raises(NotFittedError):
        copy.predict(X)
    np.testing.assert_array_equal(copy.fit(X, T, w).predict(X), model.predict(X))
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))
    np.testing.assert_array_equal(restored.outlier_mask_, model.outlier_mask_)


@pytest.mark.usefixtures("few_layers")
def test_far_rows_are_pulled_in_a_copy():
    data = make_data()
    T = data.T.copy()
    T[3] = 1e6
    before = T.copy()
    make().fit(data.X, T)
    np.testing.assert_array_equal(T, before)


@pytest.mark.usefixtures("few_layers")
def test_frames():
    pd = pytest.importorskip("pandas")
    data = make_data()
    plain = make().fit(data.X, data.T).predict(data.X)
    frame = pd.DataFrame(data.X, columns=list("abcde"))
    model = make().fit(frame, pd.DataFrame(data.T, columns=list("uvw")))
    assert list(model.feature_names_in_) == list("abcde")
    assert model.n_features_in_ == 5
    np.testing.assert_array_equal(model.predict(frame), plain)
    for wrong in (frame[list("abced")], frame.rename(columns={"a": "z"})):
        with pytest.raises(ValueError, match="feature names"):
            model.predict(wrong)
    with pytest.raises(ValueError, match="5 features"):
        make().fit(data.X, data.T).predict(data.X[:, :3])


@pytest.mark.usefixtures("few_layers")
def test_refit_forgets():
    pd = pytest.importorskip("pandas")
    data = make_data(ratio=0.3)
    model = make().fit(pd.DataFrame(data.X[:40, :3], columns=list("abc")), data.T_clean[:40, 0])
    model.fit(data.X, data.T)
    fresh = make().fit(data.X, data.T)
    assert vars(model).keys() == vars(fresh).keys()
    np.testing.assert_array_equal(model.predict(data.X), fresh.predict(data.X))
    np.testing.assert_array_equal(model.outlier_mask_, fresh.outlier_mask_)


def test_every_parameter_and_attribute_is_documented():
    pd = pytest.importorskip("pandas")
    doc = inspect.getdoc(RobustELMRegressor)
    parameters, attributes = re.search(
        r"^Parameters\n-+\n(.*?)^Attributes\n-+\n(.*?)(?=^\w+\n---|\Z)", doc, re.M | re.S
    ).groups()
    entries = dict(re.findall(r"^(\w+) : .*default=(.+)$", parameters, re.M))
    signature = inspect.signature(RobustELMRegressor).parameters
    assert {k: v.strip('"') for k, v in entries.items()} == {
        name: str(p.default) for name, p in signature.items()
    }
    data = make_data()
    model = make(check_inputs=True).fit(pd.DataFrame(data.X, columns=list("abcde")), data.T)
    fitted = {n for n in vars(model) if n.endswith("_") and not n.startswith("_")}
    assert set(re.findall(r"^(\w+) : ", attributes, re.M)) == fitted


# -- splitting scores in two ---------------------------------------------------------------------


def test_split_of_two_groups():
    threshold, explained = split_in_two(np.array([0.0, 9.0, 1.0, 0.0, 1.0, 10.0]))
    assert threshold == 5.0
    # Means 0.5 and 9.5, shares 4/6 and 2/6; variance 81 * 2/9 between, 0.25 within.
    assert explained == pytest.approx(18 / 18.25)


def test_split_leaves_half_of_the_rows_below():
    """The clearest split, one row below, would leave too many above."""
    threshold, explained = split_in_two(np.array([0.0, 100.0, 101.0, 103.0, 104.0]))
    assert threshold == 102.0
    assert explained < 0.5


@pytest.mark.parametrize("scores", [[3.0], [2.0, 2.0, 2.0], [0.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
def test_nothing_to_split(scores):
    assert split_in_two(np.array(scores)) == (np.inf, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_explained_of_a_bell_and_of_two_groups(seed):
    rng = np.random.RandomState(seed)
    bell = rng.normal(size=4000)
    assert split_in_two(bell)[1] == pytest.approx(2 / np.pi, abs=0.02)
    two = np.r_[0.01 * bell[:700], 1 + 0.01 * bell[700:1000]]
    threshold, explained = split_in_two(two)
    assert 0.04 < threshold < 0.96
    assert explained > 0.99


SCORES = hnp.arrays(float, st.integers(1, 30), elements=st.integers(0, 20).map(float))


@given(scores=SCORES, seed=st.integers(0, 2**16))
def test_split_weights_are_repeats(scores, seed):
    w = np.random.RandomState(seed).randint(1, 4, size=len(scores))
    threshold, explained = split_in_two(scores, w.astype(float))
    repeated, again = split_in_two(np.repeat(scores, w))
    assert explained == pytest.approx(again, rel=1e-9, abs=1e-12)
    if threshold != repeated:  # a tie, broken by rounding
        assert _explained(np.repeat(scores, w), threshold) == pytest.approx(again, rel=1e-9)


def _explained(scores, threshold):
    above = scores > threshold
    p, gap = above.mean(), scores[above].mean() - scores[~above].mean()
    return p * (1 - p) * gap**2 / scores.var()


@given(scores=SCORES)
def test_split_is_the_best_there_is(scores):
    threshold, explained = split_in_two(scores)
    allowed = [
        (a + b) / 2
        for a, b in zip(np.unique(scores), np.unique(scores)[1:], strict=False)
        if np.mean(scores <= a) >= 0.5
    ]
    if not allowed:
        assert (threshold, explained) == (np.inf, 0.0)
        return
    assert explained == pytest.approx(max(_explained(scores, t) for t in allowed), rel=1e-9)
    assert explained == pytest.approx(_explained(scores, threshold), rel=1e-9)
    assert 0 < explained <= 1 + 1e-12


@given(scores=SCORES, unit=st.sampled_from([2.0**-30, 4.0]), shift=st.sampled_from([0.0, 64.0]))
def test_split_has_the_unit_of_the_scores(scores, unit, shift):
    threshold, explained = split_in_two(scores)
    moved, again = split_in_two(unit * (scores + shift))
    assert again == pytest.approx(explained, rel=1e-9)
    if np.isfinite(threshold) and moved != unit * (threshold + shift):
        assert _explained(scores, moved / unit - shift) == pytest.approx(explained, rel=1e-9)


@pytest.mark.parametrize("cell", ["red", np.nan])
def test_errors_about_text_and_missing_values_name_what_takes_them(cell):
    X, y = np.arange(12.0).reshape(6, 2).astype(object), np.arange(6.0)
    X[2, 1] = cell
    with pytest.raises(ValueError, match="TableRegressor takes tables") as raised:
        RobustELMRegressor().fit(X, y)
    assert str(cell) in str(raised.value) or "NaN" in str(raised.value)
    with pytest.raises(ValueError, match="minimum of 1 is required") as raised:
        RobustELMRegressor().fit(X[:0], y[:0])
    assert "TableRegressor" not in str(raised.value)


@pytest.mark.parametrize(("beside", "expected"), [(True, True), (False, False)])
def test_mistakes_do_not_depend_on_the_inputs(beside, expected):
    """Those that are off in one region of the inputs tell of the models."""
    X = np.random.default_rng(0).uniform(size=(60, 2))
    off = X[:, 0] > np.quantile(X[:, 0], 0.8) if beside else np.arange(60) % 5 == 0
    assert judge.in_one_region(make_task(X, X), off) is expected
    twice = np.r_[X, X]
    assert judge.in_one_region(make_task(twice, twice), np.r_[off, off]) is expected
    assert not judge.in_one_region(make_task(X, X), np.arange(60) < 2)  # two may be by chance


def test_a_row_with_a_far_input_does_not_choose_the_layers():
    """As Davis's person whose height and weight are exchanged, height being an input."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        height = rng.normal(170.0, 9.0, size=(180, 1))
        weight = 65.0 + 0.9 * (height - 170.0) + 6.0 * rng.normal(size=height.shape)
        height[0], weight[0] = 57.0, 166.0
        X = np.column_stack([height, rng.normal(size=(180, 2))])
        model = RobustELMRegressor(random_state=seed).fit(X, weight[:, 0])
        assert model.out_of_fold_[0] < 90.0
        assert model.outlier_mask_[0]


@pytest.mark.parametrize(("far", "near", "expected"), [(0.5, 1.0, True), (0.95, 0.5, False)])
def test_tails_that_better_models_explain_are_none(far, near, expected):
    """What happens to the far errors decides, not to the others."""
    rng = np.random.default_rng(0)
    T = rng.normal(size=(200, 2))
    errors = rng.standard_t(2, size=T.shape)
    T[7, 1] = np.nan
    times = np.where(np.abs(errors) > 2.0, far, near)
    times[:, 1] = 1.0
    found = search._reducible(make_task(T, T), T + errors, T + times * errors)
    assert list(found) == [expected, False]


def test_single_cells_in_a_table_with_wrong_rows():
    """They are left out from three spreads on, in a table without wrong rows from ten on."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(300, 4))
    T = expected + 0.1 * rng.normal(size=expected.shape)
    T[:5, 1] += 6.0  # wrong cells
    wrong_rows = T.copy()
    wrong_rows[100:160] += 20.0 * rng.choice([-1.0, 1.0], size=(60, 4))
    for table, contaminated in ((wrong_rows, True), (T, False)):
        screened = make_screened(table, contaminated, np.ones(300, dtype=bool))
        found = judge.judge(make_task(rng.normal(size=(300, 3)), table), screened, expected)
        assert found.flagged[100:160].all() == contaminated
        assert found.cells.mask[:5, 1].all()
        assert found.wrong[:5, 1].all() == contaminated
        assert found.wrong.sum() == 5 * contaminated
