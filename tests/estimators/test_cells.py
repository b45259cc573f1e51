"""Cells of a table, judged by errors of fits without their row."""

import numpy as np
import pytest

from gorelm import RobustELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.estimators._robust import judge, layers
from gorelm.estimators._robust.cells import (
    CellRules,
    JudgedCells,
    has_few_values,
    has_spread,
    least_error_split,
    split_cells,
)
from gorelm.metrics import arrmse


def make(**params):
    return RobustELMRegressor(**{"n_hidden": 60, "n_members": 2, "random_state": 0, **params})


def judged(errors, expected=None, w=None, special=None, groups=None):
    n, m = errors.shape
    expected = np.zeros((n, m)) if expected is None else expected
    rules = CellRules.learn(
        errors,
        np.ones(n) if w is None else w,
        expected,
        special=np.zeros(m, dtype=bool) if special is None else special,
        groups=groups,
    )
    scores = rules.scores(errors, expected)
    return JudgedCells(scores, rules.thresholds, scores > rules.thresholds, rules.explained, rules)


# -- the judgement, from errors alone --------------------------------------------------------------


def test_score_is_the_error_in_usual_errors():
    errors = np.random.default_rng(0).normal(size=(400, 3)) * [0.1, 0.2, 0.5]
    found = judged(errors)
    usual = np.median(np.abs(errors), axis=0) / 0.6745
    np.testing.assert_allclose(found.scores, np.abs(errors) / usual, rtol=0.02)
    np.testing.assert_array_equal(found.mask, found.scores > found.thresholds)
    assert not found.mask.any()


def test_unknown_cells_and_rows_without_weight():
    errors = np.random.default_rng(0).normal(size=(100, 2))
    errors[3, 0] = np.nan
    errors[7] = 50.0
    w = np.ones(100)
    w[7] = 0.0
    found = judged(errors, w=w)
    assert np.isnan(found.scores[3, 0])
    assert not found.mask[3, 0]
    assert found.mask[7].all()
    rest = np.delete(np.arange(100), 7)
    np.testing.assert_allclose(found.thresholds, judged(errors[rest]).thresholds, rtol=1e-12)


def test_weights_are_repeats():
    rng = np.random.default_rng(0)
    errors, expected = rng.standard_t(3, size=(2, 200, 1))
    w = rng.integers(1, 4, size=200)
    one = judged(errors, expected, w.astype(float))
    two = judged(np.repeat(errors, w, axis=0), np.repeat(expected, w, axis=0))
    np.testing.assert_allclose(np.repeat(one.scores, w, axis=0), two.scores, rtol=1e-9)
    np.testing.assert_allclose(one.thresholds, two.thresholds, rtol=1e-9)


def test_an_error_is_usual_where_such_predictions_have_such_errors():
    rng = np.random.default_rng(0)
    expected = rng.uniform(-3, 3, size=(1000, 1))
    errors = 0.05 * np.exp(expected) * rng.normal(size=(1000, 1))
    low, high = np.argmin(expected), np.argmax(expected)
    errors[[low, high]] = 0.5
    found = judged(errors, expected)
    assert found.mask[low, 0]
    assert not found.mask[high, 0]
    assert found.mask.mean() < 0.01


def test_the_errors_of_other_targets_tell_more():
    rng = np.random.default_rng(0)
    common = rng.normal(size=(500, 1))
    errors = common + 0.1 * rng.normal(size=(500, 3))
    errors[4, 1] = common[4, 0] + 2.5
    found = judged(errors)
    assert np.argwhere(found.mask).tolist() == [[4, 1]]
    assert not judged(errors[:, [1]]).mask.any()  # by itself it is nothing unusual


def test_two_groups_of_cells():
    rng = np.random.default_rng(0)
    errors = 0.2 * rng.normal(size=(300, 3))
    planted = rng.uniform(size=(300, 3)) < 0.4
    errors[planted] += rng.choice([-3.0, 3.0], size=planted.sum())
    _, explained = split_cells(errors, np.ones(300), np.ones(3, dtype=bool))
    assert (explained > 0.9).all()
    found = judged(errors)
    assert (found.mask == planted).mean() > 0.99


def test_where_many_cells_are_wrong_those_that_are_a_little_off_are_flagged():
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(2000, 2)) * 0.25
    planted = rng.uniform(size=(2000, 2)) < 0.4
    errors[planted] += rng.choice([-1.0, 1.0], planted.sum()) * rng.uniform(0.5, 5, planted.sum())
    found = judged(errors)
    rules = found.rules
    assert (rules.thresholds < rules.apart).all()
    flagged, clearly = found.mask, found.scores > rules.apart
    added = flagged & ~clearly
    assert planted[added].mean() > 0.6  # more likely wrong than right
    assert planted[flagged].mean() > 0.9


def test_least_error_split_minds_the_number_and_the_spread():
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(0.0, 1.0, 9000), rng.normal(6.0, 0.5, 1000)]
    # Where 0.9 n(0, 1) and 0.1 n(6, 0.5) cross.
    assert least_error_split(x, np.ones(len(x))) == pytest.approx(4.05, abs=0.3)


def test_rare_values_are_no_mistakes_but_gross_ones_are():
    rng = np.random.default_rng(0)
    label = (rng.uniform(size=400) < 0.1).astype(float)
    assert not has_spread(label)
    assert has_few_values(label, np.ones(400))
    assert has_few_values(rng.poisson(2.0, size=400) * 1.0, np.ones(400))
    assert not has_few_values(rng.normal(size=400), np.ones(400))
    errors = (0.1 - label)[:, None] + 0.02 * rng.normal(size=(400, 1))
    assert not judged(errors, special=np.array([True])).mask.any()
    errors[5] = 40.0
    found = judged(errors, special=np.array([True]))
    assert np.flatnonzero(found.mask).tolist() == [5]


@pytest.mark.parametrize("errors", [np.zeros((30, 2)), np.full((30, 2), np.nan), np.ones((1, 2))])
def test_nothing_to_judge_by(errors):
    found = judged(errors)
    assert not found.mask.any()
    assert not np.isnan(found.thresholds).any()


# -- in a table ----------------------------------------------------------------------------------


def plant_cells(T, ratio, seed):
    rng = np.random.default_rng(seed)
    planted = rng.uniform(size=T.shape) < ratio
    off = rng.uniform(4, 6, size=T.shape) * rng.choice([-1, 1], size=T.shape)
    return np.where(planted, T + off * T.std(axis=0), T), planted


@pytest.mark.slow_unless(ratio=0.4)
@pytest.mark.parametrize("ratio", [0.2, 0.4])
def test_independent_cells(ratio):
    """At 40 % one row of five is whole."""
    data = make_multitarget(400, 5, 3, outlier_ratio=0.0, random_state=0)
    T, planted = plant_cells(data.T, ratio, 0)
    model = make().fit(data.X[:300], T[:300])
    clean = make().fit(data.X[:300], data.T[:300])
    mask, planted = model.cell_mask_, planted[:300]
    assert model.contaminated_
    assert planted[mask].mean() > 0.9
    assert mask[planted].mean() > 0.9
    errors = [arrmse(data.T[300:], one.predict(data.X[300:])) for one in (model, clean)]
    assert errors[0] < 2.0 * errors[1]


def test_eight_cells_times_ten():
    data = make_multitarget(300, 6, 9, outlier_ratio=0.0, random_state=1)
    T = 10 + data.T / data.T.std(axis=0)
    rng = np.random.default_rng(0)
    cells = rng.choice(300, 8, replace=False), rng.integers(9, size=8)
    T[cells] *= 10
    model = make().fit(data.X, T)
    assert model.cell_mask_[cells].all()
    assert model.cell_mask_.mean() < 0.01
    assert not model.contaminated_
    assert not model.outlier_mask_[cells[0]].any()


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_with_one_target_rows_and_cells_agree(ratio):
    data = make_multitarget(150, 5, 1, outlier_ratio=ratio, random_state=0)
    model = make().fit(data.X, data.T[:, 0])
    np.testing.assert_array_equal(model.cell_mask_, model.outlier_mask_[:, None])
    np.testing.assert_array_equal(
        model.outlier_mask_, model.outlier_scores_ > model.outlier_threshold_
    )
    ratio = model.cell_scores_[:, 0] / model.outlier_scores_
    np.testing.assert_allclose(ratio, model.cell_thresholds_[0] / model.outlier_threshold_)


def test_wrong_cells_do_not_matter():
    """However far they are off."""
    data = make_multitarget(200, 5, 3, outlier_ratio=0.0, random_state=0)
    T, planted = plant_cells(data.T, 0.2, 0)
    one, two = make().fit(data.X, T), make().fit(data.X, np.where(planted, 1e9, T))
    truth = data.T_clean
    assert arrmse(truth, two.predict(data.X)) < 1.2 * arrmse(truth, one.predict(data.X))


def test_heavy_tails():
    data = make_multitarget(400, 5, 3, outlier_ratio=0.0, random_state=0)
    rng = np.random.default_rng(0)
    T = data.T + 0.3 * data.T.std(axis=0) * rng.standard_t(1.5, size=data.T.shape)
    model = make().fit(data.X[:300], T[:300])
    gaussian = data.T + 0.3 * data.T.std(axis=0) * rng.normal(size=data.T.shape)
    other = make().fit(data.X[:300], gaussian[:300])
    errors = [arrmse(data.T[300:], one.predict(data.X[300:])) for one in (model, other)]
    assert errors[0] < 1.6 * errors[1]


def test_difficult_tables():
    data = make_multitarget(100, 5, 3, outlier_ratio=0.0, random_state=0)
    T = data.T.copy()
    T[1:, 1] = np.nan  # one known cell
    T[:, 2] = np.random.default_rng(0).standard_cauchy(100) * 1e6  # none is right
    model = make(missing_targets="ignore").fit(data.X, T)
    assert np.isfinite(model.predict(data.X)).all()
    assert np.isnan(model.cell_scores_[1:, 1]).all()
    assert not model.cell_mask_[:, 1].any()
    assert model.cell_mask_[:, 0].mean() < 0.05


@pytest.mark.parametrize("n_targets", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_targets(n_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    T = X @ rng.normal(size=(3, n_targets)) + 0.1 * rng.normal(size=(60, n_targets))
    T[5, 90] += 50.0
    model = make(effort="fast").fit(X, T)
    assert model.cell_mask_[5, 90]
    assert model.cell_mask_.mean() < 0.01


@pytest.mark.parametrize("kind", ["rows", "cells", "heavy tails", "gaps"])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_rows_are_judged_in_pieces_as_all_at_once(kind, n_targets, monkeypatch):
    """Many rows are judged some at a time; that changes nothing but rounding."""
    rng = np.random.default_rng(0)
    data = make_multitarget(
        500, n_targets=n_targets, outlier_ratio=0.2 * (kind in ("rows", "gaps")), random_state=0
    )
    T = data.T.reshape(500, -1).copy()
    if kind == "cells":
        T[rng.random(T.shape) < 0.1] += 30.0
    elif kind == "heavy tails":
        T += rng.standard_t(1.5, T.shape)
    elif kind == "gaps":
        T[rng.random(T.shape) < 0.1] = np.nan
    settings = {"n_hidden": 30, "effort": "fast", "search_rows": 150, "missing_targets": "ignore"}
    whole = make(**settings).fit(data.X, T)
    monkeypatch.setattr(judge, "JUDGED_ROWS", 61)
    monkeypatch.setattr(layers, "SCORED_ROWS", 47)
    pieces = make(**settings).fit(data.X, T)
    assert (whole.outlier_mask_ == pieces.outlier_mask_).all()
    assert (whole.cell_mask_ == pieces.cell_mask_).all()
    for name in ("outlier_scores_", "cell_scores_", "cell_thresholds_", "out_of_fold_"):
        one, other = getattr(whole, name), getattr(pieces, name)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(whole.predict(data.X), pieces.predict(data.X), rtol=1e-9, atol=1e-9)
