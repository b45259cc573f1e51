"""Every estimator that gorelm exports, with the options that lead through other code.

`ALL` is read off ``gorelm.__all__``: an estimator is covered the day it is added.
"""

import inspect

import numpy as np
import pytest
from sklearn.base import RegressorMixin

import gorelm

ALL = [
    cls
    for cls in (getattr(gorelm, name) for name in gorelm.__all__)
    if isinstance(cls, type) and issubclass(cls, RegressorMixin)
    if {"cv", "estimator"}.isdisjoint(inspect.signature(cls).parameters)
]
# One of each kind: closed form, iterated, growing by either, online. The others share the code of
# one of these but for the problem that they state, which has tests of its own: what holds for every
# estimator is tried on these by default, and on all of them in the slow tests.
KINDS = (
    gorelm.ELMRegressor,
    gorelm.GORELMRegressor,
    gorelm.EMELMRegressor,
    gorelm.IGORELMRegressor,
    gorelm.OSELMRegressor,
)
# Options that lead through other code, for the estimators that have them.
OPTIONS = [
    ("l1_ratio", 0.0),
    ("l1_ratio", 0.5),
    ("fit_intercept", True),
    ("delta", 0.3),
    ("solver", "paper"),
]
# Weights of an estimator under which it keeps no node at all.
SMOOTHEST = {"lam": 1e6, "C": 1e-6}


def names(cls):
    return list(inspect.signature(cls).parameters)


def default(cls, name):
    return inspect.signature(cls).parameters[name].default


def _case(cls, *options, name="", slow=None):
    slow = cls not in KINDS if slow is None else slow
    return pytest.param(
        cls, *options, id=cls.__name__ + name, marks=pytest.mark.slow if slow else ()
    )


# Of the options one, the sparse penalty of the flagship, is not left to the slow tests.
CASES = [_case(cls, {}) for cls in ALL] + [
    _case(
        cls,
        {name: value},
        name=f"-{name}={value}",
        slow=(cls, value) != (gorelm.GORELMRegressor, 0.5),
    )
    for cls in ALL
    for name, value in OPTIONS
    if name in names(cls) and default(cls, name) != value
]
# Estimators (with options) that iterate, and so call back, can be stopped, and may not converge.
ITERATIVE = [
    _case(cls, {"l1_ratio": 0.5} if "l1_ratio" in names(cls) else {})
    for cls in ALL
    if "callback" in names(cls)
]
GROWING = [cls for cls in ALL if "max_hidden" in names(cls)]
SIZED = [cls for cls in ALL if cls not in GROWING]
SPARSE = [_case(cls) for cls in ALL if "l1_ratio" in names(cls)]

sized = pytest.mark.parametrize("cls", [_case(cls) for cls in SIZED])
all_estimators = pytest.mark.parametrize("cls", [_case(cls) for cls in ALL])
# Scores of the others are norms of residuals; its are those of rows before they were learnt.
residual_scores = pytest.mark.parametrize(
    ("cls", "options"),
    [case for case in CASES if case.values[0] is not gorelm.RobustOSELMRegressor],
)
all_cases = pytest.mark.parametrize(("cls", "options"), CASES)
iterative = pytest.mark.parametrize(("cls", "options"), ITERATIVE)
sparse_penalty = pytest.mark.parametrize("cls", SPARSE)


def make(cls, n_hidden=12, **params):
    """Make an estimator of a size; a growing one gets there in two steps."""
    if "max_hidden" in names(cls):
        first = max(n_hidden // 2, 1)
        size = {"n_initial": first, "n_step": max(n_hidden - first, 1), "max_hidden": n_hidden}
    else:
        size = {"n_hidden": n_hidden}
    return cls(**{**size, "random_state": 0, **params})


def make_data(n_rows=60, n_features=4, n_targets=3, seed=0, zeros=False):
    """Return (X, T): smooth targets of different sizes, with noise."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-2, 3, size=(n_rows, n_features))
    if zeros:
        X[rng.uniform(size=X.shape) < 0.5] = 0.0
    T = np.sin(X @ rng.normal(size=(n_features, n_targets))) + X[:, :1]
    T += 0.1 * rng.normal(size=T.shape)
    return X, T * 10.0 ** np.arange(n_targets) + np.arange(n_targets)


def assert_close(actual, desired, digits=9):
    """Equal to `digits` digits of the spread of each target."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    assert actual.shape == desired.shape
    unit = np.maximum(np.ptp(desired, axis=0), 1e-3 * np.abs(desired).max(axis=0))
    np.testing.assert_allclose(actual / unit, desired / unit, rtol=0, atol=10.0**-digits)
