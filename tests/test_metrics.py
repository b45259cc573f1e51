import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_score

from gorelm.metrics import (
    arrmse,
    arrmse_scorer,
    mean_norm,
    mean_norm_scorer,
    rrmse,
    trimmed_norm,
    trimmed_norm_scorer,
)


def draw_pair(seed=0, n=40, m=3):
    rng = np.random.default_rng(seed)
    true = rng.standard_normal((n, m)) * [1.0, 20.0, 0.01] + [0.0, 5.0, -3.0]
    return true, true + rng.standard_normal((n, m)) * [0.5, 30.0, 0.001]


def test_rrmse_is_its_definition():
    true, pred = draw_pair()
    expected = []
    for t, p in zip(true.T, pred.T, strict=True):
        error = sum((b - a) ** 2 for a, b in zip(t, p, strict=True))
        spread = sum((sum(t) / len(t) - a) ** 2 for a in t)
        expected.append((error / spread) ** 0.5)
    np.testing.assert_allclose(rrmse(true, pred), expected, rtol=1e-12)
    assert arrmse(true, pred) == pytest.approx(sum(expected) / 3, rel=1e-12)


def test_known_values():
    # errors (1, 0, 0) and (0, 3, 0) against deviations (-1, 0, 1) and (-3, 0, 3)
    value = rrmse([[1, 1], [2, 4], [3, 7]], [[2, 1], [2, 7], [3, 7]])
    np.testing.assert_allclose(value, [np.sqrt(1 / 2), np.sqrt(9 / 18)])


@pytest.mark.parametrize("weighted", [False, True])
def test_square_is_one_minus_r2(weighted):
    true, pred = draw_pair(1)
    weight = np.random.default_rng(2).uniform(size=len(true)) if weighted else None
    r2 = r2_score(true, pred, sample_weight=weight, multioutput="raw_values")
    np.testing.assert_allclose(rrmse(true, pred, sample_weight=weight) ** 2, 1 - r2, rtol=1e-10)


def test_mean_prediction_scores_one_and_perfect_scores_zero():
    true, _ = draw_pair(3)
    mean = np.broadcast_to(true.mean(axis=0), true.shape)
    np.testing.assert_allclose(rrmse(true, mean), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(rrmse(true, true), 0.0)


def test_flat_targets_are_one_column():
    true, pred = draw_pair(4, m=3)
    flat = rrmse(true[:, 0], pred[:, 0])
    assert flat.shape == (1,)
    assert flat[0] == pytest.approx(rrmse(true, pred)[0], rel=1e-12)
    assert arrmse(true[:, 0], pred[:, [0]]) == pytest.approx(flat[0], rel=1e-12)


def test_frames_are_accepted():
    true, pred = draw_pair(4)
    frames = pd.DataFrame(true), pd.DataFrame(pred)
    assert arrmse(*frames) == pytest.approx(arrmse(true, pred), rel=1e-12)


def test_multioutput_averages():
    true, pred = draw_pair(5)
    raw = rrmse(true, pred)
    assert rrmse(true, pred, multioutput="uniform_average") == pytest.approx(raw.mean())
    weighted = rrmse(true, pred, multioutput=[1.0, 0.0, 3.0])
    assert weighted == pytest.approx((raw[0] + 3 * raw[2]) / 4)


@given(
    arrays(np.int64, (12, 2, 2), elements=st.integers(-50, 50)),
    arrays(np.int64, 12, elements=st.integers(0, 3)).filter(np.any),
)
def test_integer_weights_repeat_rows(pair, weight):
    true, pred = pair[:, 0], pair[:, 1]
    repeated = rrmse(np.repeat(true, weight, axis=0), np.repeat(pred, weight, axis=0))
    np.testing.assert_allclose(rrmse(true, pred, sample_weight=weight), repeated, rtol=1e-10)


@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e300])
def test_only_relative_weights_matter(scale):
    true, pred = draw_pair(6)
    weight = np.arange(1.0, len(true) + 1)
    value = rrmse(true, pred, sample_weight=scale * weight)
    np.testing.assert_allclose(value, rrmse(true, pred, sample_weight=weight), rtol=1e-10)


@given(
    arrays(np.float64, (10, 2), elements=st.integers(-100, 100).map(float)),
    st.floats(1e-3, 1e3),
    st.floats(-1e3, 1e3),
)
def test_units_and_offsets_do_not_matter(pair, unit, offset):
    true, pred = pair.T
    moved = rrmse(unit * true + offset, unit * pred + offset)
    # absolute part: an exact prediction is recovered only to the rounding of the offset
    np.testing.assert_allclose(moved, rrmse(true, pred), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3])
def test_constant_target_follows_r2_score(value):
    # three times 0.1 has a mean that is not 0.1: the convention must not hang on that rounding
    true = np.column_stack([np.full(3, value), np.full(3, value), [1.0, 2.0, 3.0]])
    pred = true.copy()
    pred[0, 1] += 7.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(rrmse(true, pred), [0.0, 1.0, 0.0])
    assert arrmse(true, pred) == pytest.approx(1 / 3)


def test_constant_means_constant_over_the_rows_that_count():
    assert arrmse([1.0, 1.0, 5.0], [1.0, 2.0, 5.0], sample_weight=[1, 1, 0]) == 1.0
    assert arrmse([1.0, 1.0, 5.0], [1.0, 1.0, 9.0], sample_weight=[1, 1, 0]) == 0.0


def test_one_row_is_constant():
    assert arrmse([[3.0, 4.0]], [[3.0, 5.0]]) == 0.5


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_extreme_units_neither_vanish_nor_overflow(unit):
    true, pred = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = arrmse(unit * true, unit * pred)
    assert value == pytest.approx(arrmse(true, pred), rel=1e-12)


def test_error_beyond_floats_is_infinite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arrmse([0.0, 1e-200], [0.0, 1e200]) == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_non_finite_values_are_refused(bad, which):
    pair = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])]
    pair[which][1] = bad
    with pytest.raises(ValueError, match="y_pred" if which else "y_true"):
        arrmse(*pair)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="2 targets, but y_pred has 1"):
        rrmse(np.ones((4, 2)), np.ones((4, 1)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        rrmse(np.ones(4), np.ones(3))
    with pytest.raises(ValueError, match="dim 3"):
        rrmse(np.ones((4, 2, 2)), np.ones((4, 2, 2)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([0.0, 0.0, 0.0], "zero"),
        ([1.0, -1.0, 1.0], "[Nn]egative"),
        ([1.0, np.nan, 1.0], "NaN"),
        ([1.0, 1.0], "inconsistent numbers of samples"),
    ],
)
def test_bad_sample_weights_are_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        arrmse([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], sample_weight=weight)


@pytest.mark.parametrize(
    ("multioutput", "message"),
    [
        ("variance_weighted", "'uniform_average'"),
        ([1.0, 1.0], "3 targets"),
        ([0.0, 0.0, 0.0], "not all zero"),
        ([2.0, -1.0, 1.0], "non-negative"),
    ],
)
def test_bad_multioutput_is_refused(multioutput, message):
    with pytest.raises(ValueError, match=message):
        rrmse(*draw_pair(), multioutput=multioutput)


def test_scorer_in_cross_validation():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    T = X @ rng.standard_normal((4, 3)) + 0.1 * rng.standard_normal((60, 3))
    folds = KFold(3)
    scores = cross_val_score(LinearRegression(), X, T, scoring=arrmse_scorer, cv=folds)
    by_hand = [
        -arrmse(T[test], LinearRegression().fit(X[train], T[train]).predict(X[test]))
        for train, test in folds.split(X)
    ]
    np.testing.assert_allclose(scores, by_hand)
    dummy = cross_val_score(DummyRegressor(), X, T, scoring=arrmse_scorer, cv=folds)
    assert np.all(dummy < scores)


# -- errors that wrong rows do not dominate ------------------------------------------------------


def test_mean_and_trimmed_norm_by_hand():
    rng = np.random.default_rng(0)
    true, pred = rng.normal(size=(2, 101, 2)) * [1.0, 50.0]
    low, high = np.quantile(true, [0.25, 0.75], axis=0)
    norms = np.linalg.norm((pred - true) / ((high - low) / 1.3489795), axis=1)
    assert mean_norm(true, pred) == pytest.approx(norms.mean(), rel=1e-6)
    assert trimmed_norm(true, pred) == pytest.approx(np.sort(norms)[:76].mean(), rel=1e-6)
    assert mean_norm(true[:, 0], pred[:, 0]) == pytest.approx(mean_norm(true[:, :1], pred[:, :1]))


def test_weights_of_norms_are_repeats():
    rng = np.random.default_rng(0)
    true, pred = rng.normal(size=(2, 40, 2))
    weights = rng.integers(0, 3, size=40)
    rows = np.repeat(np.arange(40), weights)
    for metric in (mean_norm, trimmed_norm):
        weighted = metric(true, pred, sample_weight=weights)
        assert weighted == pytest.approx(metric(true[rows], pred[rows]))


def test_wrong_rows_do_not_choose_the_model():
    """The better of two models by its errors on right rows has the better robust score."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    good, bad = truth + 0.1 * rng.normal(size=200), 0.2 * truth
    given = truth.copy()
    given[:30] += 100.0
    bad[:30] += 50.0  # the bad model follows the wrong rows
    assert trimmed_norm(given, good) < trimmed_norm(given, bad)
    assert arrmse(given, good) > arrmse(given, bad)
    given[:30] += 1e9
    assert trimmed_norm(given, good) < 0.2


def test_robust_scorers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=90)
    for scorer, metric in ((mean_norm_scorer, mean_norm), (trimmed_norm_scorer, trimmed_norm)):
        scores = cross_val_score(Ridge(), X, y, scoring=scorer, cv=3)
        assert (scores < 0).all()
        model = Ridge().fit(X, y)
        assert scorer(model, X, y) == -metric(y, model.predict(X))
