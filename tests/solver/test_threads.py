"""BLAS threads: held to one and given back, and how little their number shows in a path."""

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread, main_thread
from time import sleep

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from gorelm._solver.threads import MOST_HELPERS, one_blas_thread, ordered_map
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


@pytest.mark.parametrize("n", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(n):
    def late(k):
        sleep(0.002 * (k % 3))
        return k

    assert list(ordered_map(late, range(17), n)) == list(range(17))
    assert list(ordered_map(late, [], n)) == []


def test_calls_within_calls_end_although_all_threads_are_busy():
    def outer(k):
        return sum(ordered_map(lambda j: j, range(50), 8))

    n = 3 * MOST_HELPERS
    assert list(ordered_map(outer, range(n), n)) == [1225] * n


def test_the_caller_does_what_no_other_thread_has_begun():
    """Here the other one is kept busy by its first item."""
    threads, go = {}, Event()

    def work(k):
        threads[k] = current_thread()
        if current_thread() is main_thread():
            go.set()
        else:
            go.wait(10)
        return k

    assert list(ordered_map(work, range(4), 2)) == [0, 1, 2, 3]
    assert main_thread() in threads.values()


@pytest.mark.parametrize("n", [1, 2])
def test_the_first_error_ends_the_work(n):
    begun = []

    def work(k):
        begun.append(k)
        sleep(0.005)
        if k == 1:
            raise KeyError(k)
        return k

    with pytest.raises(KeyError):
        list(ordered_map(work, range(1000), n))
    assert len(begun) < 20


def test_what_is_left_of_the_work_is_not_begun_if_the_caller_stops():
    begun = []
    results = ordered_map(lambda k: begun.append(k) or sleep(0.005), range(1000), 2)
    next(results)
    results.close()
    assert len(begun) < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
def test_a_forked_process_starts_threads_of_its_own():
    assert list(ordered_map(abs, range(4), 2)) == [0, 1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        failed = True
        try:
            failed = list(ordered_map(abs, range(4), 2)) != [0, 1, 2, 3]
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_take_turns_sooner_only_while_they_share_work():
    before = sys.getswitchinterval()
    results = ordered_map(lambda k: sys.getswitchinterval(), range(4), 2)
    assert next(results) < before
    results.close()
    assert sys.getswitchinterval() == before
