"""Rows and cells judged from predictions alone."""

import numpy as np
import pytest

from gorelm import RobustELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import judge
from gorelm.selection import folds_of


def table(n=300, m=3, seed=0):
    """Return targets, and predictions that are off by normal errors."""
    rng = np.random.default_rng(seed)
    T = rng.normal(size=(n, m)) * [1.0, 10.0, 0.1][:m]
    return T, T + 0.1 * rng.normal(size=T.shape) * [1.0, 10.0, 0.1][:m]


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_rows_are_judged_as_by_the_model_that_made_the_predictions(ratio):
    data = make_multitarget(200, outlier_ratio=ratio, random_state=0)
    folds = [(fold.train, fold.test) for fold in folds_of(4, data.X, data.T, 0)]
    model = RobustELMRegressor(effort="fast", n_hidden=60, cv=folds, random_state=0)
    model.fit(data.X, data.T)
    judged = judge(data.T, model.out_of_fold_)
    assert judged.contaminated == model.contaminated_ == (ratio > 0)
    if ratio:  # without, the model has moved the targets that set the units
        np.testing.assert_allclose(judged.outlier_scores, model.outlier_scores_)
        assert judged.outlier_threshold == pytest.approx(model.outlier_threshold_)
        np.testing.assert_allclose(judged.cell_scores, model.cell_scores_)
        np.testing.assert_allclose(judged.cell_thresholds, model.cell_thresholds_)
    np.testing.assert_array_equal(judged.outlier_mask, model.outlier_mask_)
    np.testing.assert_array_equal(judged.cell_mask, model.cell_mask_)


def test_cells():
    T, P = table()
    T[5, 1] += 30.0  # three spreads
    T[9, 2] -= 0.3
    judged = judge(T, P)
    assert np.argwhere(judged.cell_mask).tolist() == [[5, 1], [9, 2]]
    np.testing.assert_array_equal(judged.cell_mask, judged.cell_scores > judged.cell_thresholds)
    assert 0.9 < np.median(judged.cell_scores) / 0.6745 < 1.1  # normal errors, in deviations


def test_a_wrong_cell_does_not_make_a_wrong_row():
    T, P = table()
    planted = np.zeros(T.shape, dtype=bool)
    planted[np.arange(60), np.arange(60) % 3] = True
    judged = judge(T + planted * [10.0, 100.0, 1.0], P)
    assert judged.contaminated
    np.testing.assert_array_equal(judged.cell_mask, planted)
    assert (judged.outlier_scores > judged.outlier_threshold).any()
    assert not judged.outlier_mask.any()


def test_rare_values_are_no_mistakes():
    rng = np.random.default_rng(0)
    T, P = table()
    T[:, 0] = rng.random(len(T)) < 0.04  # nobody can predict when
    P[:, 0] = 0.04
    judged = judge(T, P)
    assert not judged.cell_mask.any()
    assert not judged.outlier_mask.any()


def test_usual_errors_depend_on_the_prediction():
    rng = np.random.default_rng(0)
    P = rng.uniform(1.0, 100.0, size=(400, 2))
    T = P * (1.0 + 0.02 * rng.normal(size=P.shape))
    small = np.flatnonzero(P[:, 0] < 10)[0]
    T[small, 0] += 4.0  # an error that is usual where values are large
    assert np.argwhere(judge(T, P).cell_mask).tolist() == [[small, 0]]


def test_many_wrong_rows():
    T, P = table()
    T[:90] += [5.0, 50.0, 0.5]
    judged = judge(T, P)
    assert judged.contaminated
    np.testing.assert_array_equal(judged.outlier_mask, np.arange(len(T)) < 90)
    np.testing.assert_array_equal(judged.cell_mask, (np.arange(len(T)) < 90)[:, None].repeat(3, 1))


def test_units_and_order_do_not_matter():
    T, P = table()
    T[3] += 100.0
    judged = judge(T, P)
    other = judge(T[::-1] * 1e3 - 7.0, P[::-1] * 1e3 - 7.0)
    np.testing.assert_allclose(other.outlier_scores[::-1], judged.outlier_scores)
    np.testing.assert_allclose(other.cell_scores[::-1], judged.cell_scores)
    np.testing.assert_array_equal(other.cell_mask[::-1], judged.cell_mask)


def test_one_target():
    T, P = table(m=1)
    T[7] += 9.0
    flat = judge(T[:, 0], P[:, 0])
    assert np.flatnonzero(flat.outlier_mask).tolist() == [7]
    np.testing.assert_array_equal(flat.cell_mask, flat.outlier_mask[:, None])
    np.testing.assert_array_equal(judge(T, P).outlier_scores, flat.outlier_scores)


def test_weights_are_repeats():
    T, P = table(60)
    T[3] += 100.0
    w = np.r_[np.zeros(10), np.full(20, 2.0), np.ones(30)]
    judged = judge(T, P, sample_weight=w)
    rows = np.repeat(np.arange(60), w.astype(int))
    repeated = judge(T[rows], P[rows])
    np.testing.assert_allclose(judged.outlier_scores[rows], repeated.outlier_scores)
    np.testing.assert_array_equal(judged.cell_mask[rows], repeated.cell_mask)
    # How much of the correlations of targets is believed depends on the number of rows.
    np.testing.assert_allclose(judged.cell_scores[rows], repeated.cell_scores, atol=0.05)
    for j in range(T.shape[1]):
        single = judge(T[:, j], P[:, j], sample_weight=w).cell_scores[rows]
        np.testing.assert_allclose(single, judge(T[rows, j], P[rows, j]).cell_scores)
    assert judged.outlier_mask[3]  # of no weight, and judged all the same


def test_unknown_cells_and_predictions():
    T, P = table()
    T[0, 0], P[1, 1], T[2], P[3] = np.nan, np.nan, np.nan, np.nan
    T[4, 2] += 50.0
    judged = judge(T, P)
    unknown = np.isnan(T) | np.isnan(P)
    np.testing.assert_array_equal(np.isnan(judged.cell_scores), unknown)
    np.testing.assert_array_equal(np.isnan(judged.outlier_scores), unknown.all(axis=1))
    assert np.argwhere(judged.cell_mask).tolist() == [[4, 2]]


def test_perfect_predictions_flag_nothing():
    T, _ = table()
    judged = judge(T, T)
    assert not judged.outlier_mask.any()
    assert not judged.cell_mask.any()


def test_bad_input():
    T, P = table(20)
    for args, match in (
        ((T, P[:, :2]), "has shape"),
        ((T, P[:-1]), "has shape"),
        ((T, P * np.nan), "a target has no row"),
        ((T, P, np.zeros(20)), "a target has no row|at least one non-zero"),
        ((T, P, -np.ones(20)), "[Nn]egative"),
        ((np.where(T > 2, np.inf, T), P), "infinity"),
    ):
        with pytest.raises(ValueError, match=match):
            judge(*args)
