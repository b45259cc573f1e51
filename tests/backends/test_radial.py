"""Centres of radial nodes are the same rows for every owner, however the rows are partitioned."""

import numpy as np
import pytest

from gorelm import GORELMRegressor
from gorelm._features.layer import HiddenLayer, RowSource
from gorelm.datasets import make_multitarget
from gorelm.stream import RowBlocks

RADIAL = ("gaussian", "multiquadric", "laplace")


def model(activation, **params):
    settings = {"lam": 0.3, "tol": 1e-4, "n_hidden": 25, "random_state": 0}
    return GORELMRegressor(activation=activation, **{**settings, **params})


@pytest.fixture(scope="module")
def table():
    """Return inputs, targets with unknown rows, and weights with zeros."""
    data = make_multitarget(700, outlier_ratio=0.2, random_state=0)
    T = data.T.copy()
    T[[3, 400]] = np.nan
    w = np.random.default_rng(0).integers(0, 3, 700).astype(float)
    return data.X, T, w


def cases():
    for activation in RADIAL:
        for n_inputs in (None, 2):
            yield {"activation": activation, "n_inputs": n_inputs, "missing_targets": "ignore"}


def assert_same(found, expected, X, digits):
    np.testing.assert_array_equal(found.hidden_.A, expected.hidden_.A)
    np.testing.assert_array_equal(found.hidden_.b, expected.hidden_.b)
    predicted = expected.predict(X)
    size = np.abs(predicted).max()
    np.testing.assert_allclose(found.predict(X), predicted, rtol=0, atol=digits * size)
    assert (found.outlier_mask_ == expected.outlier_mask_).mean() > 0.99


def test_a_source_is_asked_for_the_rows_that_an_array_would_give():
    X, w = np.random.default_rng(0).standard_normal((50, 3)), np.arange(50.0)
    for activation in RADIAL:
        params = {"activation": activation, "random_state": 0, "sample_weight": w}
        source = RowSource(50, lambda at: X[at])
        layer = HiddenLayer.draw(9, 3, X=source, **params)
        expected = HiddenLayer.draw(9, 3, X=X, **params)
        for one, other in ((layer, expected), (layer.grow(4, source, w), expected.grow(4, X, w))):
            np.testing.assert_array_equal(one.A, other.A)
            np.testing.assert_array_equal(one.b, other.b)


@pytest.mark.parametrize("n_blocks", [1, 3, 70])
def test_streamed(table, n_blocks):
    X, T, w = table
    for params in cases() if n_blocks == 3 else list(cases())[:1]:
        expected = model(**params).fit(X, T, w)
        blocks = RowBlocks.from_blocks(np.array_split(X, n_blocks))
        # H in blocks is in float32.
        assert_same(model(**params).fit(blocks, T, w), expected, X, 1e-3)
        assert_same(model(**params, memory_budget=1.0).fit(X, T, w), expected, X, 1e-3)


def test_on_a_device(table):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    X, T, w = table
    for params in cases():
        expected = model(**params).fit(X, T, w)
        found = model(**params).fit(torch.as_tensor(X), torch.as_tensor(T), torch.as_tensor(w))
        # Other decompositions: equal to about the tolerance of the fit.
        assert_same(found, expected, X, 2e-3)
        there = found.predict(torch.as_tensor(X)).numpy()
        np.testing.assert_allclose(there, found.predict(X), rtol=1e-8)
        half = model(**params, device="cpu").fit(X.astype(np.float32), T, w)
        in_memory = model(**params).fit(X.astype(np.float32), T, w)
        np.testing.assert_array_equal(half.hidden_.A, in_memory.hidden_.A)


@pytest.mark.parametrize("n_partitions", [2, 5])
def test_on_a_cluster(table, client_of_threads, n_partitions):
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    X, T, w = table
    size = -(-len(X) // n_partitions)
    with client_of_threads.as_current():
        for params in list(cases())[:2]:
            expected = model(**params).fit(X, T, w)
            parts = (
                da.from_array(values, chunks=(size, *values.shape[1:])) for values in (X, T, w)
            )
            assert_same(model(**params).fit(*parts), expected, X, 1e-6)
