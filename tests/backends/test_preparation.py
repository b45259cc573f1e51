"""Extreme targets give the same model wherever the rows are: one preparation serves them all."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest

from gorelm import GORELMRegressor, ORELMRegressor
from gorelm._features.scaling import Scaling, fit_scaling, merge
from gorelm._solver.far_targets import NormSummary, farthest, within
from gorelm._solver.problem import Problem
from gorelm.datasets import make_multitarget
from gorelm.stream import RowBlocks

N_ROWS, N_HIDDEN = 400, 20
EXTREMES = {
    "cells of 1e25": lambda T: set_cells(T, 1e25),
    "rows of 1e30": lambda T: set_rows(set_cells(T, 1e25), 1e30),
    "an eighth of a target 1e25": lambda T: set_eighth(T, 1e25),
}


def set_cells(T, value):
    T[3::25, 1] = value
    T[7::50, 0] = -value
    return T


def set_eighth(T, value):
    T[1::8, 1] = value
    return T


def set_rows(T, value):
    T[11::20] = value * np.array([1.0, -0.5, 0.25])
    return T


def make_rows(extreme, dtype, *, weighted, missing):
    data = make_multitarget(N_ROWS, outlier_ratio=0.1, random_state=0)
    rng = np.random.default_rng(0)
    T = EXTREMES[extreme](data.T.copy())
    if missing:
        T[rng.random(T.shape) < 0.1] = np.nan
        T[5] = np.nan
    w = rng.uniform(0.3, 3.0, N_ROWS) if weighted else None
    if weighted:
        w[:3] = 0.0
    return data.X.astype(dtype), T, w


def in_memory(model, X, T, w):
    return model.fit(X, T, w)


def streamed(model, X, T, w):
    return model.fit(RowBlocks.from_array(X), T, w)


def on_torch(device):
    def fit(model, X, T, w):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return model.set_params(device=device).fit(X, T, w)

    return fit


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    with distributed.Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as client:
        yield client


def on_dask(model, X, T, w):
    from gorelm.backends.dask import from_arrays

    return model.fit(*from_arrays(X, T, w, n_partitions=3))


OWNERS = {
    "streamed": streamed,
    "torch on the CPU": on_torch("cpu"),
    "torch on a GPU": on_torch("cuda"),
    "dask": on_dask,
}


@pytest.mark.crossed("extreme", "dtype", "kind", "method")
@pytest.mark.parametrize("method", [GORELMRegressor, ORELMRegressor])
@pytest.mark.parametrize("kind", ["plain", "weighted", "missing"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("owner", OWNERS)
def test_extreme_targets_give_the_same_model(request, owner, extreme, dtype, kind, method):
    if owner == "dask":
        request.getfixturevalue("client")
    X, T, w = make_rows(extreme, dtype, weighted=kind != "plain", missing=kind == "missing")
    # Streamed hidden outputs are float32, whatever X is.
    single = dtype == "f4" or owner == "streamed"
    options = {
        "n_hidden": N_HIDDEN,
        "random_state": 0,
        "tol": 1e-4 if single else 1e-6,
        "missing_targets": "ignore" if kind == "missing" else "error",
    }
    expected = in_memory(method(**options), X, T, w)
    found = OWNERS[owner](method(**options), X, T, w)
    assert found.converged_
    # Within the gaps, which bound the squares of these distances.
    one, other = (model.hidden_outputs(X) @ model.coef_ for model in (expected, found))
    np.testing.assert_allclose(other, one, rtol=0, atol=(5e-2 if single else 3e-4) * np.ptp(one))
    assert np.count_nonzero(found.outlier_mask_ != expected.outlier_mask_) <= single * 3


def test_a_tenth_of_the_rows_far_away_is_no_scale():
    """Far cells in 4 % of each target can be in 12 % of the rows, whose typical norm stays 1."""
    rng = np.random.default_rng(0)
    T, problem = rng.standard_normal((1000, 3)), Problem("l21", 1.0, 0.0, 1.0)
    clean = NormSummary.of(T, problem, None).typical
    for j in range(3):
        T[40 * j : 40 * (j + 1), j] = 1e25
    assert NormSummary.of(T, problem, None).typical == pytest.approx(clean, rel=0.05)
    # Without ordinary norms, large ones are the scale, and what is nothing beside them is rounding.
    mostly_zero = np.where(rng.random((1000, 1)) < 0.8, 1e-30, 1.0) * rng.standard_normal((1000, 3))
    assert 0.1 < NormSummary.of(mostly_zero, problem, None).typical < 10
    huge = NormSummary.of(1e50 * mostly_zero, problem, None).typical
    assert 1e49 < huge < 1e51


@pytest.mark.parametrize("decades", [12, 90])
def test_far_targets_hardly_move_the_limit(decades):
    rng = np.random.default_rng(0)
    T = rng.standard_normal((1000, 2))
    problem, omega = Problem("l21", 1.0, 0.0, 1.0), rng.uniform(0.5, 2, 1000)
    clean = NormSummary.of(T * omega[:, None], problem, omega).typical
    T[::20] *= 10.0 ** rng.uniform(0, decades, (50, 1))
    T *= omega[:, None]
    for dtype in ("f4", "f8"):
        limit = NormSummary.of(T, problem, omega).limit(problem, dtype)
        assert farthest(dtype) * clean < limit < 3 * farthest(dtype) * clean
        sizes = np.linalg.norm(within(T, problem, omega, limit), axis=1) / omega
        np.testing.assert_allclose(sizes.max(), limit)
    squared = Problem("squared", 1.0, 0.0, 1.0)
    assert NormSummary.of(T, squared, omega).limit(squared, "f8") == np.inf


def test_tensors_are_summarised_like_arrays():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    T = rng.standard_normal((200, 3)) * 10.0 ** rng.integers(-9, 30, (200, 1))
    X, w = rng.standard_normal((200, 4)), rng.uniform(0.5, 2, 200)
    for loss in ("l21", "l1"):
        problem = Problem(loss, 1.0, 0.0, 1.0)
        for omega in (None, np.sqrt(w)):
            there = None if omega is None else torch.tensor(omega)
            arrays = NormSummary.of(T, problem, omega)
            tensors = NormSummary.of(torch.tensor(T), problem, there)
            for one, other in zip(arrays, tensors, strict=True):
                np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(
                within(torch.tensor(T), problem, there, 3.0), within(T, problem, omega, 3.0)
            )
    for kind in ("minmax", "standard"):
        one, other = Scaling.fit(kind, X, w), Scaling.fit(kind, torch.tensor(X), torch.tensor(w))
        np.testing.assert_allclose(other.centre, one.centre, rtol=1e-12)
        np.testing.assert_allclose(other.scale, one.scale, rtol=1e-12)
        np.testing.assert_allclose(other.dense(torch.tensor(X)), one.dense(X), rtol=1e-12)


@pytest.mark.parametrize("kind", ["minmax", "standard"])
@pytest.mark.parametrize("cuts", [[], [0], [7, 7, 40], [1, 59]])
def test_summaries_of_blocks_merge(kind, cuts):
    rng = np.random.default_rng(1)
    A, w = rng.standard_normal((60, 3)) * [1, 1e9, 1e-9] + [0, 1e10, 5], rng.uniform(0.5, 2, 60)
    ends = [0, *cuts, 60]

    def in_blocks(summary):
        return reduce(merge, (summary(A[a:b], w[a:b]) for a, b in pairwise(ends)))

    one, other = Scaling.fit(kind, A, w), fit_scaling(kind, 3, in_blocks)
    np.testing.assert_allclose(other.centre, one.centre, rtol=1e-12)
    np.testing.assert_allclose(other.scale, one.scale, rtol=1e-5)  # of 5 + 1e-9 x
