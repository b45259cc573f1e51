"""Small fitted models of every estimator, for the tests of files and graphs."""

import inspect
from functools import cache

import numpy as np
from sklearn.base import RegressorMixin

import gorelm
from gorelm.datasets import make_multitarget

ESTIMATORS = [
    cls
    for cls in (getattr(gorelm, name) for name in gorelm.__all__)
    if isinstance(cls, type) and issubclass(cls, RegressorMixin)
]
SMALL = {
    "n_hidden": 15,
    "n_initial": 10,
    "n_step": 5,
    "max_hidden": 20,
    "n_lams": 3,
    "eps": 0.1,
    "cv": 3,
    "random_state": 0,
}


def small(cls, **options):
    """Return an estimator that is fitted in no time."""
    known = inspect.signature(cls).parameters
    if "estimator" in known:
        options = {"estimator": small(gorelm.RELMRegressor), **options}
    return cls(**{name: value for name, value in SMALL.items() if name in known}, **options)


@cache
def rows(n_samples=80, dtype="float64"):
    data = make_multitarget(n_samples, outlier_ratio=0.2, random_state=0)
    return data.X.astype(dtype), data.T


@cache
def fitted(cls, dtype="float64"):
    """Return a model fitted once; tests must not change it."""
    return small(cls).fit(*rows(dtype=dtype))


@cache
def guided_ensemble():
    """Return a RobustELM with sparse, guided layers among its members, and its inputs."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(150, 9))
    T = np.column_stack([np.sin(3 * X[:, 0] * X[:, 1]) + abs(X[:, 2]), X[:, 0] * X[:, 1]])
    T += 0.4 * rng.normal(size=T.shape)
    model = gorelm.RobustELMRegressor(effort="fast", n_hidden=60, n_members=3, random_state=0)
    model.fit(X, T)
    subsets = [member.hidden_.subsets for member in model.members_]
    assert len(subsets) > 1
    assert any(one is not None for one in subsets)
    assert model.cv_results_["guided"].any()
    return model, X, T


def same_predictions(one, two, X):
    """Whether two models predict the same bits, for one row and for many."""
    return all(np.array_equal(one.predict(X[:n]), two.predict(X[:n])) for n in (1, 2, len(X)))
