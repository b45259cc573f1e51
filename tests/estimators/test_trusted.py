"""Rows that someone has found right stay in the fit, however far off they seem."""

import numpy as np
import pytest

from gorelm import RobustELMRegressor, TableRegressor
from gorelm.datasets import make_multitarget

SMALL = {"effort": "fast", "n_hidden": 20, "random_state": 0}


def fitted(data, T=None, trusted=None):
    T = data.T if T is None else T
    return RobustELMRegressor(**SMALL).fit(data.X, T, trusted=trusted)


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_trusting_no_row_changes_no_digit(ratio):
    data = make_multitarget(120, 3, 2, outlier_ratio=ratio, random_state=1)
    one, other = fitted(data), fitted(data, trusted=np.zeros(120, dtype=bool))
    np.testing.assert_array_equal(one.predict(data.X), other.predict(data.X))
    np.testing.assert_array_equal(one.outlier_mask_, other.outlier_mask_)


@pytest.mark.slow_unless(ratio=0.3)
@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_a_trusted_row_has_a_pull_that_grows_with_its_error(ratio):
    """Set aside or moved towards its prediction, it would have a bounded one, or none."""
    data = make_multitarget(120, 3, 2, outlier_ratio=ratio, random_state=1)
    row = int(np.flatnonzero(~data.planted)[0])
    trusted = np.arange(120) == row
    pulls = {}
    for mask in (None, trusted):
        predicted = []
        for size in (100.0, 1000.0):
            T = data.T.copy()
            T[row] += size
            model = fitted(data, T, mask)
            assert model.outlier_mask_[row] == (mask is None)
            assert model.outlier_scores_[row] > model.outlier_threshold_  # it still says so
            predicted.append(model.predict(data.X[[row]]))
        pulls[mask is not None] = np.abs(predicted[1] - predicted[0]).max()
    assert pulls[True] > 5.0
    assert pulls[False] < 1.0


def test_all_rows_trusted():
    """No row is flagged, and all have a part in the fit."""
    data = make_multitarget(120, 3, 2, outlier_ratio=0.3, random_state=1)
    model = fitted(data, trusted=np.ones(120, dtype=bool))
    assert not model.outlier_mask_.any()
    without = fitted(data)
    assert without.outlier_mask_.sum() > 20
    errors = [np.abs(m.predict(data.X) - data.T)[data.planted].mean() for m in (model, without)]
    assert errors[0] < errors[1]


def test_tables_pass_it_on():
    data = make_multitarget(80, 3, 2, outlier_ratio=0.2, random_state=1)
    trusted = np.zeros(80, dtype=bool)
    trusted[np.flatnonzero(data.planted)[:3]] = True
    model = TableRegressor(RobustELMRegressor(**SMALL)).fit(data.X, data.T, trusted=trusted)
    assert not model.outlier_mask_[trusted].any()
    assert model.outlier_mask_.any()


def test_a_trusted_row_is_no_finding():
    pytest.importorskip("pandas")
    data = make_multitarget(80, 3, 2, outlier_ratio=0.2, random_state=1)
    model = fitted(data, trusted=data.planted)
    assert (model.outlier_scores_ > model.outlier_threshold_).any()
    found = model.findings(data.X, data.T).sort_values("gorelm.row")
    assert found["gorelm.flagged"].tolist() == (found["gorelm.quality"] < 0.5).tolist()
    assert not found["gorelm.flagged"][data.planted].any()


@pytest.mark.parametrize("trusted", [np.ones(79, bool), np.ones(80), "yes", np.ones((80, 2), bool)])
def test_what_is_no_mask_is_refused(trusted):
    data = make_multitarget(80, 3, 2, random_state=1)
    with pytest.raises(ValueError, match="truth value for each of the 80 rows"):
        fitted(data, trusted=trusted)
