"""BLAS threads: held to one and given back, and how little their number shows in a path."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from gorelm._solver.threads import one_blas_thread
from gorelm.path import gorelm_path
from support.oracles import steep_outputs


def blas_threads():
    return max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")


def test_threads_show_in_the_rounding_of_a_path_alone():
    H, T = steep_outputs(400, 60)
    paths = []
    for count in (1, 2):
        with threadpool_limits(count, "blas"):
            paths.append(gorelm_path(H, T, l1_ratios=[0.0, 0.5], n_lams=9))
    one, two = paths
    assert one.converged.all()
    np.testing.assert_array_equal(one.n_iter, two.n_iter)
    np.testing.assert_allclose(one.objective, two.objective, rtol=1e-9)


@pytest.fixture
def two_blas_threads():
    """Let BLAS have two threads, by nobody who could take them back."""
    before = blas_threads()
    in_a_thread(lambda: threadpool_limits(2, "blas"))
    yield
    in_a_thread(lambda: threadpool_limits(before, "blas"))


def in_a_thread(run):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_blas_has_its_threads_back_when_the_last_has_left(two_blas_threads, order):
    leave = [Event() for _ in order]

    def stay(k, ready):
        with one_blas_thread():
            ready.set()
            leave[k].wait(60)

    with ThreadPoolExecutor(3) as pool:
        callers = []
        for k in range(3):
            ready = Event()
            callers.append(pool.submit(stay, k, ready))
            ready.wait(60)
        for k in order:
            assert blas_threads() == 1
            leave[k].set()
            callers[k].result()
        assert blas_threads() == 2


def test_errors_give_blas_its_threads_back(two_blas_threads):
    with pytest.raises(KeyError), one_blas_thread(), one_blas_thread():
        raise KeyError
    assert blas_threads() == 2
