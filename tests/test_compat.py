"""The private interfaces of scikit-learn behave as the library uses them.

Run with the oldest and the newest supported scikit-learn: when a version moves or changes one of
them, a test here fails before a user's fit does.
"""

from numbers import Integral, Real

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import InvalidParameterError

from gorelm import _compat


class Model(BaseEstimator):
    """An estimator with a parameter of every kind that the library constrains."""

    _parameter_constraints = {  # noqa: RUF012
        "size": [_compat.Interval(Integral, 1, None, closed="left")],
        "weight": [_compat.Interval(Real, 0, None, closed="neither"), None],
        "share": [_compat.Interval(_compat.RealNotInt, 0, 1, closed="neither"), "cv_object", None],
        "name": [_compat.StrOptions({"one", "two"}), None],
        "model": [_compat.HasMethods(["fit", "predict"]), None],
        "verbose": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        size=1,
        weight=1.0,
        share=None,
        name=None,
        model=None,
        verbose=False,
        random_state=None,
    ):
        self.size = size
        self.weight = weight
        self.share = share
        self.name = name
        self.model = model
        self.verbose = verbose
        self.random_state = random_state


def test_every_name_is_tested_here():
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    for name in _compat.__all__:
        assert f"_compat.{name}" in text, name


GOOD = {
    "size": [1, np.int64(3)],
    "weight": [1, 0.5, np.float32(2.0), None],
    "share": [0.5, 3, None],
    "name": ["one", None],
    "model": [LinearRegression(), None],
    "verbose": [True, np.bool_(False)],
    "random_state": [0, None, np.random.RandomState(0)],
}
BAD = {
    "size": [0, 1.5, "1", None],
    "weight": [0, -1.0, np.nan, np.inf, "1"],
    "share": [0.0, 1.0, np.nan, "all"],
    "name": ["three", 1],
    "model": [StandardScaler(), 1],
    "verbose": ["yes", None],
    "random_state": ["seed", -1, 1.5],
}


@pytest.mark.parametrize("name", GOOD)
def test_validate_params(name):
    for value in GOOD[name]:
        _compat.validate_params(Model(**{name: value}))
    for value in BAD[name]:
        # The message names the parameter, the class and the value: users are shown it as it is.
        with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of Model") as raised:
            _compat.validate_params(Model(**{name: value}))
        assert isinstance(raised.value, ValueError)
        assert repr(value) in str(raised.value)


def test_real_not_int():
    assert isinstance(0.5, _compat.RealNotInt)
    assert isinstance(np.float64(1.0), _compat.RealNotInt)
    assert not isinstance(1, _compat.RealNotInt)


def test_check_sample_weight():
    X = np.zeros((3, 2))

    def check(weight, X=X):
        return _compat.check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)

    np.testing.assert_array_equal(check(None), np.ones(3))
    np.testing.assert_array_equal(check(2), np.full(3, 2.0))
    given = check([1, 0, 3])
    np.testing.assert_array_equal(given, [1.0, 0.0, 3.0])
    assert given.dtype == np.float64
    np.testing.assert_array_equal(check(None, sparse.csr_array(X)), np.ones(3))
    for weight, match in (
        ([1, 2], "sample_weight.shape"),
        ([-1, 1, 1], "[Nn]egative values"),
        ([np.nan, 1, 1], "sample_weight contains NaN"),
        ([np.inf, 1, 1], "sample_weight contains infinity"),
        (np.ones((3, 2)), "[Ss]ample.weights? must be 1D"),
    ):
        with pytest.raises(ValueError, match=match):
            check(weight)


def test_check_method_params():
    X, rows = np.zeros((4, 2)), np.array([0, 2])
    given = {"sample_weight": np.arange(4.0), "verbose": True, "short": [1, 2]}
    taken = _compat.check_method_params(X, given, indices=rows)
    np.testing.assert_array_equal(taken["sample_weight"], [0.0, 2.0])
    assert taken["verbose"] is True
    assert taken["short"] == [1, 2]  # not of the length of X: passed on as it is
    assert _compat.check_method_params(X, {}, indices=rows) == {}


def test_num_samples():
    for X in ([[1], [2], [3]], np.zeros((3, 2)), sparse.csr_array((3, 2))):
        assert _compat.num_samples(X) == 3
    with pytest.raises(TypeError):
        _compat.num_samples(3)


def test_safe_indexing():
    X, rows = np.arange(8.0).reshape(4, 2), np.array([3, 1])
    np.testing.assert_array_equal(_compat.safe_indexing(X, rows), X[rows])
    np.testing.assert_array_equal(_compat.safe_indexing(X.tolist(), rows), X[rows])
    taken = _compat.safe_indexing(sparse.csr_array(X), rows)
    np.testing.assert_array_equal(taken.toarray(), X[rows])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_safe_indexing_of_frames(library):
    frames = pytest.importorskip(library)
    X = frames.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "b": ["p", "q", "r", "s"]})
    taken = _compat.safe_indexing(X, np.array([3, 1]))
    assert isinstance(taken, frames.DataFrame)
    assert list(taken["a"]) == [3.0, 1.0]
    assert list(taken["b"]) == ["s", "q"]
    assert _compat.num_samples(X) == 4


def test_input_columns():
    X = np.arange(12.0).reshape(4, 3)
    table = ColumnTransformer(
        [("right", StandardScaler(), [2, 0]), ("middle", "passthrough", [1])]
    ).fit(X)
    places = _compat.input_columns(table)
    assert {name: list(columns) for name, columns in places.items()} == {
        "right": [2, 0],
        "middle": [1],
        "remainder": [],
    }


class Asks(LinearRegression):
    """A regressor whose predictions are 1 in a cross-validation and 0 elsewhere."""

    def predict(self, X):
        return np.full(len(X), float(_compat.in_cross_validation()))


def test_callers_without_a_name():
    """Code that is executed in a namespace of its own has no `__name__`."""
    names: dict = {}
    code = "import gorelm._compat as c, gorelm.estimators._base as b\n"
    exec(code + "found = c.in_cross_validation(), b.levels_to_caller()", names)
    assert names["found"] == (False, 1)


def test_in_cross_validation():
    X, y = np.arange(12.0)[:, None], np.zeros(12)
    for n_jobs in (None, 2):
        said = cross_val_predict(Asks(), X, y, cv=2, n_jobs=n_jobs)
        np.testing.assert_array_equal(said, 1.0)
    scores = cross_val_score(Asks(), X, y, cv=2, scoring="neg_mean_absolute_error")
    np.testing.assert_array_equal(scores, -1.0)
    search = GridSearchCV(
        Asks(), {"positive": [False]}, cv=2, scoring="neg_mean_absolute_error"
    ).fit(X, y)
    assert search.best_score_ == -1.0
    np.testing.assert_array_equal(search.predict(X), 0.0)  # a user asks
    np.testing.assert_array_equal(make_pipeline(Asks()).fit(X, y).predict(X), 0.0)
