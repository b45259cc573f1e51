"""Groups of rows: nothing is judged, chosen or calibrated by other rows of the same group."""

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_validate

from gorelm import (
    ConformalRegressor,
    GORELMRegressorCV,
    RELMRegressorCV,
    RobustELMRegressor,
    ScreenedRegressor,
    TableRegressor,
)
from gorelm.selection import folds_of


def grouped(n_groups=12, size=10, seed=0):
    """Return rows whose targets depend on their group, which an input tells; and the groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), size)
    level = rng.normal(size=n_groups)[groups]
    mark = rng.uniform(-1, 1, size=(n_groups, 3))[groups]
    X = np.column_stack([rng.normal(size=len(groups)), mark])
    return X, X[:, 0] + 3 * level + 0.05 * rng.normal(size=len(groups)), groups


def fast(**params):
    return RobustELMRegressor(effort="fast", n_hidden=40, random_state=0, **params)


def test_folds_have_whole_groups():
    X, y, groups = grouped()
    for cv in (4, GroupKFold(3), LeaveOneGroupOut()):
        folds = folds_of(cv, X, y[:, None], 0, groups)
        for fold in folds:
            assert not set(groups[fold.train]) & set(groups[fold.test])
        tested = np.concatenate([fold.test for fold in folds])
        np.testing.assert_array_equal(np.sort(tested), np.arange(len(X)))
    one, other = (folds_of(4, X, y[:, None], seed, groups)[0].test for seed in (0, 1))
    assert not np.array_equal(one, other)  # shuffled


@pytest.mark.usefixtures("few_layers")
def test_rows_are_judged_without_their_group():
    """What a row's prediction is does not depend on targets of its group."""
    X, y, groups = grouped()
    alone = fast().fit(X, y)
    model = fast().fit(X, y, groups=groups)
    # The group's level is known from its other rows only.
    assert np.abs(alone.out_of_fold_ - y).mean() < 0.5 * np.abs(model.out_of_fold_ - y).mean()
    folds = [(np.flatnonzero(groups != g), np.flatnonzero(groups == g)) for g in range(12)]
    by_hand = fast(cv=folds).fit(X, y)
    with_splitter = fast(cv=LeaveOneGroupOut()).fit(X, y, groups=groups)
    np.testing.assert_array_equal(with_splitter.out_of_fold_, by_hand.out_of_fold_)
    table = TableRegressor(effort="fast", random_state=0).fit(X, y, groups=groups)
    assert np.abs(table.out_of_fold_ - y).mean() > 1.0
    screened = ScreenedRegressor(Ridge(), screen=fast()).fit(X, y, groups=groups)
    np.testing.assert_array_equal(screened.out_of_fold_, model.out_of_fold_)


@pytest.mark.slow_unless(cls=RELMRegressorCV)
@pytest.mark.parametrize("cls", [GORELMRegressorCV, RELMRegressorCV])
def test_penalties_are_chosen_without_the_group(cls):
    X, y, groups = grouped()
    params = {"n_hidden": 30, "n_lams": 5, "random_state": 0}
    plain = cls(cv=4, **params).fit(X, y)
    model = cls(cv=4, **params).fit(X, y, groups=groups)
    assert model.best_score_ < plain.best_score_
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max)
    folds = [(f.train, f.test) for f in folds_of(4, X, y[:, None], seed, groups)]
    by_hand = cls(cv=folds, **params).fit(X, y)
    np.testing.assert_array_equal(model.cv_outlier_scores_, by_hand.cv_outlier_scores_)


class Recorded(Ridge):
    """A regressor that takes groups, and keeps them."""

    def fit(self, X, y, groups=None):
        self.groups_ = groups
        return super().fit(X, y)


def test_whole_groups_calibrate():
    pytest.importorskip("mapie")
    X, y, groups = grouped(40)
    model = ConformalRegressor(Recorded(), random_state=0).fit(X, y, groups=groups)
    held_out = set(groups[model.calibration_rows_])
    assert len(model.calibration_rows_) == 100
    assert len(held_out) == 10
    assert not held_out & set(model.estimator_.groups_)
    assert len(model.estimator_.groups_) == 300
    plain = ConformalRegressor(TableRegressor(Ridge()), random_state=0).fit(X, y, groups=groups)
    assert len(plain.calibration_rows_) == 100
    with pytest.raises(ValueError, match=r"hold out 1 of 1 group"):
        model.fit(X, y, groups=np.zeros(len(y)))


def test_groups_of_the_wrong_length_or_of_one_label():
    X, y, groups = grouped()
    for model in (fast(), TableRegressor(), ConformalRegressor(Ridge()), GORELMRegressorCV()):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.fit(X, y, groups=groups[:-1])
    with pytest.raises(ValueError, match="one label only"):
        fast().fit(X, y, groups=np.zeros(len(y)))


@pytest.mark.usefixtures("few_layers")
def test_metadata_routing():
    X, y, groups = grouped()
    train = next(GroupKFold(2).split(X, y, groups))[0]
    with sklearn.config_context(enable_metadata_routing=True):
        for model in (
            fast(),
            TableRegressor(fast()),
            ScreenedRegressor(Recorded(), screen=fast()),
        ):
            found = cross_validate(
                model.set_fit_request(groups=True),
                X,
                y,
                cv=GroupKFold(2),
                params={"groups": groups},
                return_estimator=True,
            )
            assert np.abs(found["estimator"][0].out_of_fold_ - y[train]).mean() > 1.0
        search = GridSearchCV(
            RELMRegressorCV(n_hidden=10, n_lams=3, random_state=0).set_fit_request(groups=True),
            {"n_hidden": [10]},
            cv=GroupKFold(2),
        ).fit(X, y, groups=groups)
    assert search.best_estimator_.cv_outlier_scores_.shape == y.shape
