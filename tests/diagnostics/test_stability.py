"""How often refits flag a row."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gorelm import GORELMRegressor, RobustELMRegressor, ScreenedRegressor
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import flag_stability

DATA = make_multitarget(80, outlier_ratio=0.1, random_state=0)


class Flags(RegressorMixin, BaseEstimator):
    """Flag row 0 always, row 1 never, row 2 by chance; cells of the first target alone."""

    def __init__(self, random_state=None):
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        self.outlier_scores_ = np.array([2.0, 0.0, np.random.RandomState(self.random_state).rand()])
        if sample_weight is not None:
            self.outlier_scores_ = self.outlier_scores_ * sample_weight
        self.outlier_threshold_ = 0.5
        self.outlier_mask_ = self.outlier_scores_ > 0.5
        self.cell_mask_ = np.column_stack([self.outlier_mask_, np.zeros(3, dtype=bool)])
        return self

    def predict(self, X):
        return np.zeros((len(X), 2))


def test_shares_of_refits():
    X, y = np.zeros((3, 1)), np.zeros((3, 2))
    model = Flags(random_state=0)
    found = flag_stability(model, X, y, n_repeats=200)
    assert found.rows[:2].tolist() == [1.0, 0.0]
    assert 0.35 < found.rows[2] < 0.65  # other seeds, whatever the model's own is
    np.testing.assert_array_equal(found.cells, np.column_stack([found.rows, np.zeros(3)]))
    assert not hasattr(model, "outlier_mask_")
    assert model.random_state == 0
    again = flag_stability(make_pipeline(StandardScaler(), Flags()), X, y, n_repeats=200)
    np.testing.assert_array_equal(again.rows, found.rows)
    other = flag_stability(model, X, y, n_repeats=200, random_state=1)
    assert other.rows[2] != found.rows[2]
    weighted = flag_stability(model, X, y, sample_weight=np.array([0.0, 1.0, 9.0]))
    assert weighted.rows[0] == 0.0


def test_refits_are_fits():
    model = RobustELMRegressor(effort="fast", n_hidden=30, random_state=7)
    found = flag_stability(model, DATA.X, DATA.T, n_repeats=2, random_state=3)
    seeds = np.random.RandomState(3).randint(np.iinfo(np.int32).max, size=2)
    fits = [clone(model).set_params(random_state=int(s)).fit(DATA.X, DATA.T) for s in seeds]
    np.testing.assert_array_equal(found.rows, np.mean([f.outlier_mask_ for f in fits], axis=0))
    np.testing.assert_array_equal(found.cells, np.mean([f.cell_mask_ for f in fits], axis=0))
    screened = ScreenedRegressor(Ridge(), screen=model)
    assert flag_stability(screened, DATA.X, DATA.T, n_repeats=1).cells.shape == DATA.T.shape


def test_models_that_judge_rows_alone():
    found = flag_stability(GORELMRegressor(n_hidden=20), DATA.X, DATA.T, n_repeats=3)
    assert found.cells is None
    assert found.rows.shape == (80,)


def test_bad_input():
    with pytest.raises(ValueError, match="n_repeats must be at least 1"):
        flag_stability(GORELMRegressor(), DATA.X, DATA.T, n_repeats=0)
    with pytest.raises(ValueError, match="KNeighborsRegressor has no random_state"):
        flag_stability(KNeighborsRegressor(), DATA.X, DATA.T)
    with pytest.raises(ValueError, match="Ridge has no outlier_scores_"):
        flag_stability(Ridge(), DATA.X, DATA.T)
