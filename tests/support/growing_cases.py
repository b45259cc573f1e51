"""The growing methods, how to make them, and when two fits are the same; for test_growing*.py."""

import numpy as np
import pytest

from gorelm import (
    ELMRegressor,
    EMELMRegressor,
    GORELMRegressor,
    IELMRegressor,
    IGORELMRegressor,
    IRELMRegressor,
    RELMRegressor,
)
from gorelm.datasets import make_multitarget

UNSCALED = {"input_scaling": None, "target_scaling": None}
TOL = 1e-3
TIGHT = 1e-5
# Growing method, its options, and the batch method it must agree with (I-ELM: `one_by_one`).
CASES = {
    "I-ELM": (IELMRegressor, {}, None),
    "EM-ELM": (EMELMRegressor, {}, ELMRegressor),
    "IR-ELM": (IRELMRegressor, {"C": 10.0}, RELMRegressor),
    "IGOR-ELM": (IGORELMRegressor, {"lam": 0.1}, GORELMRegressor),
    "IGOR-ELM, sparse": (IGORELMRegressor, {"lam": 0.5, "l1_ratio": 0.5}, GORELMRegressor),
}

all_cases = pytest.mark.parametrize("case", CASES)
not_one_by_one = pytest.mark.parametrize("case", [case for case in CASES if case != "I-ELM"])
robust_cases = pytest.mark.parametrize("case", [case for case in CASES if "IGOR" in case])


def make(case, **params):
    cls, options, _ = CASES[case]
    return cls(
        **{"n_initial": 10, "n_step": 10, "max_hidden": 30, "random_state": 0, **options, **params}
    )


def refit(case, n_hidden, X, T, w=None, **params):
    _, options, batch = CASES[case]
    tight = {"tol": TIGHT} if batch is GORELMRegressor else {}
    model = batch(n_hidden=n_hidden, **{"random_state": 0, **options, **tight, **params})
    return model.fit(X, T, w)


def data(n_rows=60, seed=0):
    drawn = make_multitarget(n_rows, 4, 3, outlier_ratio=0.2, random_state=seed)
    return drawn.X, drawn.T


def assert_close(actual, desired, tol):
    """Equal to a share of `tol` of the spread of each target."""
    unit = np.maximum(np.ptp(desired, axis=0), 1e-3 * np.abs(desired).max(axis=0)) + 1e-12
    np.testing.assert_allclose(actual / unit, desired / unit, rtol=0, atol=tol)


def assert_same_layer(model, other):
    np.testing.assert_array_equal(model.hidden_.A, other.hidden_.A)
    np.testing.assert_array_equal(model.hidden_.b, other.hidden_.b)
    assert model.hidden_.n_drawn == other.hidden_.n_drawn


def assert_same(model, other, X, tol=1e-10):
    """Of one layer; robust fits have objectives within their tolerances, others one solution."""
    assert_same_layer(model, other)
    if isinstance(model, IGORELMRegressor):
        one, two = (m.history_[-1]["objective"] for m in (model, other))
        assert model.dual_gap_ <= TOL
        assert one <= two * (1 + TOL) + 1e-9
        assert two <= one * (1 + other.tol) + 1e-9
    else:
        assert_close(model.predict(X), other.predict(X), tol)
