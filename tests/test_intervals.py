"""Intervals: against a quantile written by hand, MAPIE itself, and what the theory promises."""

import math
import pickle
import sys
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import binom
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gorelm
from gorelm import ConformalRegressor, GORELMRegressor, RELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.intervals import _rows_needed

regression = pytest.importorskip("mapie.regression")

LEVELS = [0.5, 0.75, 0.8, 0.9, 0.95]
JOINT = [False, "ball", "box"]
FEW_ROWS = "ignore:confidence_level=.* needs:UserWarning"


class Echo(RegressorMixin, BaseEstimator):
    """Predicts the first columns of X: residuals are what a test wants them to be."""

    def __init__(self, n_targets=1):
        self.n_targets = n_targets

    def fit(self, X, y, **fit_params):
        self.seen_ = (X, y, fit_params)
        return self

    def predict(self, X):
        return X[:, : self.n_targets] if self.n_targets > 1 else X[:, 0]


def calibrated(residuals, **params):
    """Return a model that predicts 0, calibrated on rows with these residuals."""
    rows = np.zeros_like(residuals)
    echo = Echo(residuals.shape[1]).fit(rows, residuals)
    params = {"calibration": "prefit", "clean": False, "random_state": 0, **params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ConformalRegressor(echo, **params).fit(rows, residuals)


def half_widths(model, level=None):
    ends = model.predict_interval(np.zeros((1, len(model.scale_))), level)
    return ends.reshape(-1, 2)[:, 1]


def order_statistic(scores, level):
    """Return split conformal's quantile, by the book; None if there are too few scores."""
    rank = math.ceil(Fraction(str(level)) * (len(scores) + 1))
    return np.sort(scores)[rank - 1] if rank <= len(scores) else None


def make_data(n_rows=120, n_targets=3, seed=0):
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, size=(n_rows, 4))
    T = X @ rng.normal(size=(4, n_targets)) + 0.3 * rng.normal(size=(n_rows, n_targets))
    return X, T * 10.0 ** np.arange(n_targets)


residual_tables = st.builds(
    lambda seed, n, m, tail: np.random.RandomState(seed).standard_t(tail, size=(n, m)),
    st.integers(0, 2**16),
    st.integers(20, 70),
    st.integers(1, 4),
    st.sampled_from([1, 3, 30]),
)


# -- oracles -------------------------------------------------------------------------------------


@given(residuals=residual_tables, level=st.sampled_from(LEVELS))
def test_half_width_is_the_order_statistic(residuals, level):
    expected = [order_statistic(np.abs(column), level) for column in residuals.T]
    np.testing.assert_array_equal(half_widths(calibrated(residuals), level), expected)


@given(residuals=residual_tables, level=st.sampled_from(LEVELS), joint=st.sampled_from(JOINT[1:]))
def test_joint_radius_is_the_order_statistic_of_norms(residuals, level, joint):
    model = calibrated(np.c_[residuals, residuals[::-1]], joint=joint)
    units = model.scale_
    rows = np.c_[residuals, residuals[::-1]][model.calibration_rows_]
    n_units = math.ceil(len(rows) / 4)
    np.testing.assert_array_equal(units, np.median(np.abs(rows[:n_units]), axis=0))
    scaled = np.abs(rows[n_units:]) / units
    norms = scaled.max(axis=1) if joint == "box" else np.sqrt((scaled**2).sum(axis=1))
    radius = order_statistic(norms, level)
    if radius is None:
        with pytest.raises(ValueError, match="calibration rows"):
            half_widths(model, level)
    else:
        np.testing.assert_allclose(half_widths(model, level), radius * units, rtol=1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_agrees_with_mapie_target_by_target(level):
    X, T = make_data()
    model = ConformalRegressor(Ridge(), clean=False, random_state=0).fit(X, T)
    held_out = model.calibration_rows_
    train = np.setdiff1d(np.arange(len(X)), held_out)
    assert len(held_out) == 30
    intervals = model.predict_interval(X[:7], level)
    assert intervals.shape == (7, 3, 2)
    for j in range(3):
        theirs = regression.SplitConformalRegressor(
            Ridge().fit(X[train], T[train, j]), confidence_level=level
        ).conformalize(X[held_out], T[held_out, j])
        points, ends = theirs.predict_interval(X[:7])
        np.testing.assert_allclose(model.predict(X[:7])[:, j], points, rtol=1e-9)
        np.testing.assert_allclose(intervals[:, j], ends[:, :, 0], rtol=1e-9)


# -- what the theory promises --------------------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("joint", "n_draws"), [(False, 80), ("ball", 400), ("box", 400)], ids=["separate", *JOINT[1:]]
)
@pytest.mark.parametrize(("n_rows", "n_targets", "level"), [(24, 2, 0.8), (40, 8, 0.9)])
def test_coverage_is_exact_over_many_draws(joint, n_draws, n_rows, n_targets, level):
    """Mean coverage is k / (n + 1) for continuous scores, even with few rows and many targets."""
    rng, shares = np.random.RandomState(0), []
    for seed in range(n_draws):
        residuals = rng.normal(size=(n_rows, n_targets))
        model = calibrated(residuals, joint=joint, random_state=seed)
        new = rng.normal(size=(400, n_targets))
        shares.append(model.covers(np.zeros_like(new), new, level).mean())
    n = model.n_calibration_[0]
    expected = math.ceil(Fraction(str(level)) * (n + 1)) / (n + 1)
    assert np.mean(shares) == pytest.approx(expected, abs=4 * np.std(shares) / np.sqrt(n_draws))


def test_coverage_of_a_fitted_model():
    """Each draw is a fit, a calibration, and a new row, covered or not: a coin of 0.9."""
    rng, covered = np.random.RandomState(1), []
    for seed in range(300):
        X, T = make_data(81, n_targets=1, seed=rng.randint(2**31))
        model = ConformalRegressor(Ridge(), calibration=39, clean=False, random_state=seed)
        covered.append(model.fit(X[:80], T[:80]).covers(X[80:], T[80:]).item())
    low, high = binom(300, 0.9).interval(0.9999)
    assert low <= np.sum(covered) <= high


@given(residuals=residual_tables, level=st.sampled_from(LEVELS), joint=st.sampled_from(JOINT))
def test_covers_enough_of_the_calibration_rows(residuals, level, joint):
    model = calibrated(residuals, joint=joint)
    if model.n_calibration_.min() < _rows_needed(level):
        return
    rows = residuals[model.calibration_rows_][-len(model.calibration_scores_) :]
    covered = model.covers(np.zeros_like(rows), rows, level).reshape(len(rows), -1)
    n = len(rows)
    np.testing.assert_array_equal(covered.sum(axis=0), math.ceil(Fraction(str(level)) * (n + 1)))


@given(residuals=residual_tables, joint=st.sampled_from(JOINT), clean=st.booleans())
def test_intervals_grow_with_the_level(residuals, joint, clean):
    model = calibrated(residuals, joint=joint, clean=clean)
    enough = [v for v in LEVELS if model.n_calibration_.min() >= _rows_needed(v)]
    widths = [half_widths(model, level) for level in enough]
    assert np.all(np.diff(widths, axis=0) >= 0)


@given(
    seed=st.integers(0, 2**16),
    joint=st.sampled_from(JOINT),
    clean=st.booleans(),
    ratio=st.sampled_from([0.0, 0.3]),
    units=st.lists(st.sampled_from([1e-6, 0.1, 3.0, 1e9]), min_size=3, max_size=3),
)
def test_intervals_follow_the_units_of_the_targets(seed, joint, clean, ratio, units):
    data = make_multitarget(100, outlier_ratio=ratio, random_state=seed)
    # 1e3 beside a spread of 1e-6 would leave too few digits; at half of the usual level there are
    # enough rows however many are left out as corrupt.
    shift, level = np.array([0.0, -5.0, 1e3]) * units, 0.45
    model = ConformalRegressor(Ridge(1e-3), joint=joint, clean=clean, random_state=0)
    usual = model.fit(data.X, data.T).predict_interval(data.X, level)
    flagged = model.calibration_flagged_
    other = model.fit(data.X, data.T * units + shift).predict_interval(data.X, level)
    np.testing.assert_array_equal(model.calibration_flagged_, flagged)
    expected = usual * np.array(units)[:, None] + shift[:, None]
    atol = 1e-9 * np.ptp(expected, axis=(0, 2))[:, None]
    assert np.all(np.abs(other - expected) <= atol)


@given(residuals=residual_tables, seed=st.integers(0, 2**16), clean=st.booleans())
def test_order_of_calibration_rows_does_not_matter(residuals, seed, clean):
    shuffled = np.random.RandomState(seed).permutation(residuals)
    one, two = (calibrated(rows, clean=clean) for rows in (residuals, shuffled))
    for level in (0.5, 0.9):
        np.testing.assert_array_equal(half_widths(one, level), half_widths(two, level))


@given(residuals=residual_tables, seed=st.integers(0, 2**16))
def test_boxes_and_balls(residuals, seed):
    """The box around a ball holds it; a box is no larger, and is its own intervals."""
    residuals = np.c_[residuals, residuals[::-1] * 100]
    ball, box = (calibrated(residuals, joint=joint) for joint in (True, "box"))
    assert ball._norm == 2
    around, tight = half_widths(ball, 0.8), half_widths(box, 0.8)
    assert np.all(tight <= around)
    new = np.random.RandomState(seed).uniform(-1.2, 1.2, size=(200, len(around))) * around
    origin = np.zeros_like(new)
    in_ball = ball.covers(origin, new, 0.8)
    assert np.all(np.abs(new[in_ball]) <= around)
    assert not ball.covers(origin[:1], around[None] * 0.999, 0.8)  # a corner of the box around it
    assert ball.covers(origin[:1], np.eye(len(around))[:1] * around * 0.999, 0.8)
    np.testing.assert_array_equal(box.covers(origin, new, 0.8), (np.abs(new) <= tight).all(axis=1))


@given(level=st.integers(1, 999).map(lambda k: k / 1000), n=st.integers(1, 60))
def test_rows_needed(level, n):
    possible = math.ceil(Fraction(str(level)) * (n + 1)) <= n
    assert possible == (n >= _rows_needed(level))
    model = calibrated(np.arange(1.0, n + 1)[:, None])
    if possible:  # one too few for MAPIE is enough for the theory
        assert half_widths(model, level) >= math.ceil(Fraction(str(level)) * (n + 1))
    else:
        with pytest.raises(ValueError, match=f"needs {_rows_needed(level)} calibration rows"):
            half_widths(model, level)


# -- cleaning ------------------------------------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize("joint", JOINT)
@pytest.mark.parametrize("ratio", [0.2, 0.4])
def test_cleaning_with_planted_outliers(joint, ratio):
    """Intervals meant for clean rows: far narrower, and clean rows still covered."""
    covered = {True: [], False: []}
    for seed in range(5):
        data = make_multitarget(1200, outlier_ratio=ratio, random_state=seed)
        train, test = slice(0, 600), slice(600, None)
        widths = {}
        for clean in (True, False):
            base = GORELMRegressor(lam=0.1, n_hidden=100)
            model = ConformalRegressor(base, joint=joint, clean=clean, random_state=seed)
            model.fit(data.X[train], data.T[train])
            widths[clean] = half_widths_at(model, data.X[:1])
            inside = model.covers(data.X[test], data.T[test])
            covered[clean].append(inside[~data.planted[test]].mean())
            planted = data.planted[train][model.calibration_rows_]
            expected = planted if clean else np.zeros_like(planted)
            assert np.mean(model.calibration_flagged_ == expected) > 0.97
        assert np.all(widths[True] < 0.5 * widths[False])
    assert 0.87 < np.mean(covered[True]) < 0.95
    assert np.mean(covered[False]) > 0.97


def half_widths_at(model, X):
    return np.ptp(model.predict_interval(X), axis=-1)[0] / 2


@pytest.mark.crossed
@pytest.mark.parametrize("n_targets", [1, 3, 8])
@pytest.mark.parametrize("tail", [3, 100])
def test_cleaning_leaves_clean_rows_alone(n_targets, tail):
    rng = np.random.RandomState(0)
    tables = (rng.standard_t(tail, size=(60, n_targets)) for _ in range(150))
    shares = [calibrated(table, clean=True).calibration_flagged_.mean() for table in tables]
    assert np.mean(shares) < 0.005


@pytest.mark.parametrize("far", [50.0, 1e6])
def test_few_rows_are_never_cleaned(far):
    rng = np.random.RandomState(0)
    for n, expected in ((19, 0), (20, 4)):
        table = rng.normal(size=(n, 3))
        table[:4] += far
        assert calibrated(table, clean=True).calibration_flagged_.sum() == expected


def test_targets_that_are_mostly_exact_do_not_judge():
    """Residuals of 0 in most rows: the others are rare, not corrupt."""
    table = np.zeros((100, 2))
    table[:20] = 5.0 + np.arange(40).reshape(20, 2)
    assert not calibrated(table, clean=True).calibration_flagged_.any()
    table = np.c_[table, np.random.RandomState(0).normal(size=100)]
    assert not calibrated(table, clean=True).calibration_flagged_.any()


# -- rows, weights, unknown targets --------------------------------------------------------------


def test_holds_out_what_it_says():
    X, T = make_data(103)
    for calibration, size in ((0.25, 26), (0.5, 52), (11, 11)):
        model = ConformalRegressor(Echo(3), calibration=calibration, random_state=0).fit(X, T)
        held_out = model.calibration_rows_
        assert len(np.unique(held_out)) == size
        seen, targets, _ = model.estimator_.seen_
        train = np.setdiff1d(np.arange(103), held_out)
        np.testing.assert_array_equal(seen, X[train])
        np.testing.assert_array_equal(targets, T[train])
        np.testing.assert_array_equal(model.calibration_scores_, np.abs(T - X[:, :3])[held_out])


def test_weights_are_for_the_fit_and_0_means_absent():
    X, T = make_data(100)
    w = np.random.RandomState(0).randint(0, 3, size=100).astype(float)
    model = ConformalRegressor(Echo(3), random_state=0).fit(X, T, sample_weight=w)
    assert (w[model.calibration_rows_] > 0).all()
    train = np.setdiff1d(np.flatnonzero(w), model.calibration_rows_)
    np.testing.assert_array_equal(model.estimator_.seen_[2]["sample_weight"], w[train])
    model = ConformalRegressor(Ridge(), random_state=0)
    weighted = model.fit(X, T, sample_weight=w).predict_interval(X)
    kept = w > 0
    removed = model.fit(X[kept], T[kept], sample_weight=w[kept]).predict_interval(X)
    np.testing.assert_array_equal(weighted, removed)


@pytest.mark.parametrize("wrap", ["none", "pipeline", "frozen"])
def test_unknown_targets(wrap):
    X, T = make_data(200)
    T[::3, 1] = np.nan
    base = RELMRegressor(n_hidden=10, missing_targets="ignore", random_state=0)
    calibration = "prefit" if wrap == "frozen" else 0.25
    if wrap == "pipeline":
        base = make_pipeline(StandardScaler(), base)
    elif wrap == "frozen":
        base = FrozenEstimator(base.fit(X, T))
    settings = {"calibration": calibration, "clean": False, "random_state": 0}
    model = ConformalRegressor(base, **settings).fit(X, T)
    known = ~np.isnan(T[model.calibration_rows_])
    assert known[:, 1].sum() < len(known)
    np.testing.assert_array_equal(model.n_calibration_, known.sum(axis=0))
    errors = np.abs(T - model.predict(X))[model.calibration_rows_]
    expected = [order_statistic(e[k], 0.9) for e, k in zip(errors.T, known.T, strict=True)]
    np.testing.assert_allclose(half_widths_at(model, X[:1]), expected, rtol=1e-9)
    joint = ConformalRegressor(base, joint=True, **settings).fit(X, T)
    rows = joint.calibration_rows_[math.ceil(len(joint.calibration_rows_) / 4) :]
    assert joint.n_calibration_ == [(~np.isnan(T[rows])).all(axis=1).sum()]
    assert np.isfinite(joint.predict_interval(X)).all()


def test_too_few_rows():
    X, T = make_data(40)
    model = ConformalRegressor(Ridge(), calibration=8, random_state=0)
    with pytest.warns(UserWarning, match="needs 9 calibration rows, and there are 8: give more"):
        model.fit(X, T)
    with pytest.raises(ValueError, match="needs 9 calibration rows, and there are 8 for target 0"):
        model.predict_interval(X)
    assert model.predict_interval(X, 0.8).shape == (40, 3, 2)
    with pytest.raises(ValueError, match=r"needs 99 .* lower confidence_level"):
        model.covers(X, T, 0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(calibration=9).fit(X, T).predict_interval(X)


@pytest.mark.filterwarnings(FEW_ROWS)
def test_too_few_known_or_clean_rows():
    table = np.random.RandomState(0).normal(size=(30, 2))
    table[:10] += 1e3
    model = calibrated(table, clean=True)
    with pytest.raises(ValueError, match=r"there are 20 for target 0 \(10 more were left out"):
        model.predict_interval(table, 0.97)
    X, T = make_data(60)
    T[5:, 2] = np.nan
    base = RELMRegressor(n_hidden=5, missing_targets="ignore", random_state=0)
    model = ConformalRegressor(base, calibration=20, random_state=0).fit(X, T)
    with pytest.raises(ValueError, match="for target 2"):
        model.predict_interval(X)


# -- widths that depend on the row ---------------------------------------------------------------


class LogOfInput(RegressorMixin, BaseEstimator):
    """Says that the size of errors is the second input, for each of some targets."""

    def __init__(self, n_targets=1):
        self.n_targets = n_targets

    def fit(self, X, y):
        self.seen_ = y
        return self

    def predict(self, X):
        logs = np.log(X[:, -1])
        return logs if self.n_targets == 1 else np.column_stack([logs] * self.n_targets)


def uneven(n_rows, n_targets=1, seed=0, tails=False):
    """Return rows (prediction 0, size of the error) and targets with errors of that size."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(1.0, 20.0, size=n_rows)
    noise = rng.normal(size=(n_rows, n_targets))
    if tails:  # where errors are large, their distribution has longer tails
        noise[size > 10] **= 3
    X = np.column_stack([np.zeros((n_rows, n_targets)), size])
    T = size[:, None] * noise
    return X, T[:, 0] if n_targets == 1 else T


def by_quartile(key, covered):
    group = np.digitize(key, np.quantile(key, [0.25, 0.5, 0.75]))
    return np.array([covered[group == k].mean() for k in range(4)])


def test_scores_are_quantiles_of_normalised_residuals_in_each_group():
    X, y = uneven(2000)
    model = ConformalRegressor(
        Echo(), calibration="prefit", adaptive=LogOfInput(), clean=False, random_state=0
    )
    model.set_params(estimator=Echo().fit(X, y)).fit(X, y)
    sizing, scored = np.split(model.calibration_rows_, 2)
    ends = np.quantile(np.log(X[sizing, 1]), np.arange(1, 8) / 8)
    new = np.column_stack([np.zeros(50), np.linspace(1.0, 20.0, 50)])
    upper = model.predict_interval(new)[:, 1]
    for row, end in zip(new, upper, strict=True):
        same = np.searchsorted(ends, np.log(X[scored, 1])) == np.searchsorted(ends, np.log(row[1]))
        scores = np.abs(y[scored][same]) / X[scored, 1][same]
        assert end == pytest.approx(row[1] * order_statistic(scores, 0.9))
    # A level that needs more rows has one group.
    scores = np.abs(y[scored]) / X[scored, 1]
    half = model.predict_interval(new, 0.99)[:, 1] / new[:, 1]
    np.testing.assert_allclose(half, order_statistic(scores, 0.99))


@pytest.mark.parametrize(
    ("tails", "sizes"), [(False, KNeighborsRegressor(50)), (True, LogOfInput())]
)
def test_hard_rows_are_covered_as_often_as_easy_ones(tails, sizes):
    X, y = uneven(3000, tails=tails)
    new, truth = uneven(4000, seed=1, tails=tails)
    model = ConformalRegressor(
        Echo(), calibration=0.9, clean=False, adaptive=sizes, random_state=0
    ).fit(X, y)
    covered = by_quartile(new[:, 1], model.covers(new, truth))
    assert covered.min() > 0.86
    assert covered.max() < 0.94
    plain = clone(model).set_params(adaptive=False).fit(X, y)
    assert by_quartile(new[:, 1], plain.covers(new, truth)).min() < 0.8


@pytest.mark.parametrize("joint", JOINT)
def test_adaptive_regions_of_several_targets(joint):
    X, T = uneven(2400, n_targets=2)
    new, truth = uneven(2000, n_targets=2, seed=1)
    model = ConformalRegressor(
        Echo(2), adaptive=LogOfInput(2), joint=joint, calibration=0.9, clean=False, random_state=0
    ).fit(X, T)
    covered = model.covers(new, truth)
    ends = model.predict_interval(new)
    within = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
    if joint == "ball":  # the box around it
        assert (within.all(axis=1) | ~covered).all()
    else:
        np.testing.assert_array_equal(within if not joint else within.all(axis=1), covered)
    quartiles = by_quartile(new[:, -1], covered)
    assert quartiles.min() > 0.85
    assert quartiles.max() < 0.95


def test_sizes_are_learnt_from_out_of_fold_errors_where_there_are_any(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(900, 2))
    y = 3 * X[:, 0] + np.exp(2 * X[:, 1]) * rng.normal(size=900)
    robust = gorelm.RobustELMRegressor(effort="fast", n_hidden=30)
    model = ConformalRegressor(robust, adaptive=True, random_state=0).fit(X[:600], y[:600])
    assert len(model.calibration_scores_) == len(model.calibration_rows_) == 150
    assert isinstance(model.sizes_, gorelm.TableRegressor)
    sizes = model.sizes_.predict(X)
    assert np.corrcoef(sizes, X[:, 1])[0, 1] > 0.8
    covered = model.covers(X[600:], y[600:])
    assert 0.8 < covered.mean() < 0.98
    restored = gorelm.load(gorelm.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(restored.predict_interval(X), model.predict_interval(X))
    half = ConformalRegressor(Ridge(), adaptive=Ridge(), random_state=0).fit(X[:600], y[:600])
    assert len(half.calibration_scores_) == 75
    pytest.importorskip("onnx")
    with pytest.raises(TypeError, match="adaptive widths cannot be written as ONNX"):
        gorelm.onnx.to_onnx(model)


def test_wrong_rows_are_told_by_errors_of_their_size():
    X, y = uneven(800)
    wrong = np.arange(800) % 4 == 0
    y[wrong] = 30 * X[wrong, 1]  # of an easy row this is what hard rows have
    found = {}
    for adaptive in (LogOfInput(), False):
        model = ConformalRegressor(Echo(), adaptive=adaptive, calibration=0.9, random_state=0)
        flagged = model.fit(X, y).calibration_flagged_
        among = wrong[model.calibration_rows_]
        found[adaptive is not False] = flagged[among].mean(), flagged[~among].mean()
    assert found[True] == (1.0, 0.0)
    assert found[False][0] < 1.0


def test_exact_predictions_have_sizes():
    X, _ = uneven(200)
    model = ConformalRegressor(Echo(), adaptive=Ridge(), random_state=0).fit(X, X[:, 0])
    np.testing.assert_allclose(model.predict_interval(X), 0.0, atol=1e-12)


# -- a citizen of scikit-learn -------------------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.filterwarnings(FEW_ROWS)
@parametrize_with_checks(
    [
        ConformalRegressor(Ridge()),
        ConformalRegressor(Ridge(), joint="ball", clean=False),
        ConformalRegressor(Ridge(), adaptive=Ridge()),
        ConformalRegressor(GORELMRegressor(n_hidden=30)),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)


def test_default_estimator():
    data = make_multitarget(60, outlier_ratio=0.2, random_state=0)
    model = ConformalRegressor(random_state=0)
    assert "ConformalRegressor" in gorelm.__all__
    intervals = model.fit(data.X, data.T).predict_interval(data.X)
    assert isinstance(model.estimator_, gorelm.RobustELMRegressor)
    again = clone(model).fit(data.X, data.T).predict_interval(data.X)
    np.testing.assert_array_equal(intervals, again)


def test_around_a_robust_ensemble():
    """Coverage of right rows, with a quarter of the rows wrong in the fit and the calibration."""
    data = make_multitarget(900, outlier_ratio=0.25, random_state=1)
    train, test = slice(0, 500), slice(500, None)
    robust = gorelm.RobustELMRegressor(effort="fast", n_hidden=100)
    model = ConformalRegressor(robust, random_state=0).fit(data.X[train], data.T[train])
    assert model.estimator_.effort == "fast"
    assert model.estimator_.random_state is not None
    assert model.estimator_.contaminated_
    left_out = model.calibration_rows_[model.calibration_flagged_]
    assert data.planted[left_out].mean() > 0.9
    covered = model.covers(data.X[test], data.T[test])[~data.planted[test]]
    assert 0.84 < covered.mean() < 0.97


def test_seeds_what_the_estimator_leaves_to_chance():
    X, T = make_data()
    free = ConformalRegressor(ExtraTreesRegressor(5), random_state=0)
    one, two = (clone(free).fit(X, T).predict(X) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert free.estimator.random_state is None
    fixed = ConformalRegressor(ExtraTreesRegressor(5, random_state=7), random_state=0).fit(X, T)
    assert fixed.estimator_.random_state == 7


def test_shapes_and_containers():
    X, T = make_data()
    model = ConformalRegressor(RELMRegressor(n_hidden=10, random_state=0), random_state=0)
    flat = model.fit(X, T[:, 0]).predict_interval(X)
    assert flat.shape == (120, 2)
    assert model.covers(X, T[:, 0]).shape == (120,)
    column = model.fit(X, T[:, :1]).predict_interval(X)
    np.testing.assert_allclose(column, flat[:, None], rtol=1e-12)
    assert model.covers(X, T[:, :1]).shape == (120, 1)
    joint = clone(model).set_params(joint=True).fit(X, T[:, 0])  # one target needs no region
    np.testing.assert_array_equal(joint.predict_interval(X), flat)
    usual = model.fit(X, T).predict_interval(X)
    for container in (sparse.csr_array, sparse.coo_array):
        np.testing.assert_allclose(model.fit(container(X), T).predict_interval(X), usual)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model.fit(frame, pd.DataFrame(T))
    np.testing.assert_allclose(model.predict_interval(frame), usual)
    assert list(model.feature_names_in_) == ["a", "b", "c", "d"]
    assert model.n_features_in_ == 4
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_interval(frame), model.predict_interval(frame)
    )


def test_search_over_the_estimator():
    X, T = make_data()
    search = GridSearchCV(
        ConformalRegressor(Ridge(), random_state=0), {"estimator__alpha": [1, 1e6]}
    )
    assert search.fit(X, T).best_params_ == {"estimator__alpha": 1}
    assert search.best_estimator_.predict_interval(X).shape == (120, 3, 2)
    frozen = ConformalRegressor(FrozenEstimator(Ridge().fit(X, T)), calibration="prefit")
    assert clone(frozen).fit(X, T).predict_interval(X).shape == (120, 3, 2)


def test_large_targets():
    """MAPIE compares targets to 1e-8, absolutely: large ones must not meet that check."""
    X, T = make_data()
    model = ConformalRegressor(Ridge(), random_state=0)
    usual = model.fit(X, T).predict_interval(X)
    np.testing.assert_allclose(model.fit(X, T * 1e15).predict_interval(X), usual * 1e15)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("joint", JOINT)
def test_outliers_of_any_size(joint):
    table = np.random.RandomState(0).normal(size=(100, 3)) * 1e-10
    usual = calibrated(table[15:], clean=False, joint=joint)
    table[:15] = 1e300
    plain, cleaned = (calibrated(table, joint=joint, clean=clean) for clean in (False, True))
    assert np.isfinite(half_widths(plain)).all()
    assert cleaned.calibration_flagged_.sum() == 15
    assert np.all(half_widths(cleaned) < 3 * half_widths(usual))


def test_targets_without_error():
    X, T = make_data()
    T[:, 1] = 0.1
    model = ConformalRegressor(Ridge(), random_state=0).fit(X, T)
    np.testing.assert_allclose(model.predict_interval(X)[:, 1], 0.1)
    exact = calibrated(np.c_[np.zeros(50), np.random.RandomState(0).normal(size=50)], joint="box")
    assert np.isfinite(half_widths(exact)).all()
    assert exact.scale_[0] == 1


# -- errors --------------------------------------------------------------------------------------


def test_without_mapie(monkeypatch):
    X, T = make_data()
    fitted = ConformalRegressor(Ridge(), random_state=0).fit(X, T)
    monkeypatch.setitem(sys.modules, "mapie.regression", None)
    echo = Echo(3)
    with pytest.raises(ImportError, match=r'pip install "gorelm\[intervals\]"'):
        ConformalRegressor(echo, random_state=0).fit(X, T)
    assert fitted.predict(X).shape == T.shape
    with pytest.raises(ImportError, match=r"gorelm\[intervals\]"):
        fitted.predict_interval(X)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"estimator": "ridge"}, "'estimator' parameter"),
        ({"confidence_level": 1.0}, "'confidence_level' parameter"),
        ({"confidence_level": 0}, "'confidence_level' parameter"),
        ({"calibration": 1.0}, "'calibration' parameter"),
        ({"calibration": 0}, "'calibration' parameter"),
        ({"calibration": "fit"}, "'calibration' parameter"),
        ({"joint": "sphere"}, "'joint' parameter"),
        ({"clean": 3}, "'clean' parameter"),
        ({"calibration": 120}, "hold out 120 of 120 sample.* none to fit"),
        ({"estimator": None, "calibration": "prefit"}, "needs a fitted estimator"),
    ],
)
def test_bad_parameters(params, match):
    X, T = make_data()
    with pytest.raises(ValueError, match=match):
        ConformalRegressor(**{"estimator": Ridge(), **params}).fit(X, T)


def test_prefit_must_be_fitted_and_nothing_else():
    X, T = make_data()
    model = ConformalRegressor(Ridge(), calibration="prefit")
    with pytest.raises(NotFittedError):
        model.fit(X, T)
    model.estimator.fit(X, T)
    assert model.fit(X, T).estimator_ is model.estimator
    with pytest.raises(ValueError, match=r"\['check_input'\] have no use"):
        model.fit(X, T, check_input=True)
    with pytest.raises(ValueError, match=r"predicts 3 target\(s\), y has 2"):
        model.fit(X, T[:, :2])


def test_bad_data():
    X, T = make_data()
    model = ConformalRegressor(Ridge(), random_state=0)
    unknown = T.copy()
    unknown[3, 1] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, unknown)
    with pytest.raises(ValueError, match="requires y"):
        model.fit(X, None)
    with pytest.raises(NotFittedError):
        model.predict_interval(X)
    with pytest.raises(ValueError, match="predicts NaN or infinity"):
        ConformalRegressor(Echo(3), random_state=0).fit(np.full_like(X, np.nan), T)
    model.fit(X, T)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.covers(X, unknown)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.covers(X, T[:-1])
    with pytest.raises(ValueError, match=r"predicts 3 target\(s\), y has 1"):
        model.covers(X, T[:, 0])
    for level in (0.0, 1.0, 1.5, np.nan, "high"):
        with pytest.raises(ValueError, match="confidence_level must be between 0 and 1"):
            model.predict_interval(X, level)


def test_failed_fit_leaves_the_model_as_it_was():
    X, T = make_data()
    model = ConformalRegressor(Echo(3), random_state=0)
    before = model.fit(X, T).predict_interval(X)
    fitted = model.estimator_
    with pytest.raises(ValueError, match="predicts NaN"):  # after the fit, in the calibration
        model.set_params(joint=True).fit(np.full_like(X, np.nan), T)
    assert model.estimator_ is fitted
    np.testing.assert_array_equal(model.predict_interval(X), before)
