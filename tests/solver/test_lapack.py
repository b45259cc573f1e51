"""Cholesky factors without the interpreter's lock: NumPy's and SciPy's results."""

import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg

from gorelm._solver import lapack


@pytest.fixture(params=["by pointer", "by SciPy"])
def way(request, monkeypatch):
    """Both ways to the routines: SciPy's functions serve where its pointers are not as expected."""
    if request.param == "by SciPy":
        monkeypatch.setattr(lapack, "_routine", lambda name: None)
    else:
        assert all(lapack._routine(name) is not None for name in lapack._SIGNATURES)


def definite(n, seed=0):
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A @ A.T + n * np.eye(n)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_factor_solve_and_inverse(n):
    A, B = definite(n), np.random.default_rng(1).standard_normal((n, 3))
    L = lapack.factor(A.copy())
    expected = np.linalg.cholesky(A)
    assert_allclose(np.tril(L), expected, rtol=0, atol=1e-11)
    assert_allclose(lapack.solve(L, B), np.linalg.solve(A, B), rtol=1e-9)
    inverse = linalg.solve_triangular(expected, np.eye(n), lower=True)
    assert_allclose(lapack.inverse(L), inverse, rtol=0, atol=1e-11)
    tail = L[-(n // 2) :, -(n // 2) :] if n > 1 else L  # not contiguous
    assert_allclose(lapack.inverse(tail) @ np.tril(tail), np.eye(len(tail)), rtol=0, atol=1e-11)


@pytest.mark.usefixtures("way")
def test_only_the_lower_triangle_is_read_and_right_sides_stay():
    A, B = definite(9), np.ones((9, 2))
    upper = np.tril(A) + np.triu(np.full((9, 9), np.nan), 1)
    L = lapack.factor(upper)
    assert L is upper
    assert_allclose(np.tril(L), np.linalg.cholesky(A), rtol=0, atol=1e-12)
    lapack.solve(L, B)
    assert_array_equal(B, np.ones((9, 2)))


@pytest.mark.usefixtures("way")
def test_a_matrix_that_is_not_definite_is_an_error():
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        lapack.factor(-np.eye(3))


def test_an_unexpected_signature_is_not_called(monkeypatch):
    monkeypatch.setitem(lapack._SIGNATURES, "dpotrf", "char long d long long")
    lapack._routine.cache_clear()
    try:
        assert lapack._routine("dpotrf") is None
        assert_allclose(np.tril(lapack.factor(4 * np.eye(2))), 2 * np.eye(2))
    finally:
        lapack._routine.cache_clear()


@pytest.mark.slow
def test_other_threads_run_while_a_matrix_is_factored():
    matrices, others, done = [definite(2500) for _ in range(3)], 0, threading.Event()

    def factored():
        for A in matrices:
            lapack.factor(A)
        done.set()

    worker = threading.Thread(target=factored)
    worker.start()
    while not done.is_set():
        others += 1
        time.sleep(0.001)
    worker.join()
    assert others > 50
