"""Threads of BLAS and of our own: how many there are shows in no result."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier, Event, current_thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from gorelm import GORELMRegressorCV
from gorelm._solver import mixed_precision as quick
from gorelm._solver.linalg import EighFactor, gram, product
from gorelm._solver.threads import PIECE, alone, one_blas_thread, own_threads, pieces, spread
from gorelm.datasets import make_multitarget
from gorelm.estimators._search import SearchTable
from gorelm.estimators.robust import SCREEN_LAYERS, Comparison
from gorelm.path import gorelm_path
from gorelm.selection import Fold
from support.oracles import steep_outputs


def blas_threads():
    return max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")


def with_threads(count, run):
    """Run with so many threads of BLAS, in a context of its own."""
    with threadpool_limits(count, "blas"):
        return copy_context().run(run)


# -- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["l21", "l1"])
def test_threads_do_not_show_in_a_path(monkeypatch, loss):
    monkeypatch.setattr(quick, "WORTHWHILE", 0)
    H, T = steep_outputs(1000, 450)  # enough for BLAS to cut its sums
    weights = np.random.default_rng(0).uniform(0.5, 2, len(H))

    def run():
        return gorelm_path(
            H, T, l1_ratios=[0.0, 0.5, 1.0], n_lams=5, loss=loss, sample_weight=weights
        )

    one, *others = [with_threads(count, run) for count in (1, 2, 3)]
    others.append(with_threads(2, lambda: in_a_thread(run)))
    for other in others:
        for name in vars(one):
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


@pytest.mark.parametrize("scoring", ["mean_norm", "median_norm"])
def test_threads_do_not_show_in_a_selection(monkeypatch, scoring):
    monkeypatch.setattr(quick, "WORTHWHILE", 100_000)
    data = make_multitarget(900, 6, 3, outlier_ratio=0.2, random_state=0)
    model = GORELMRegressorCV(
        n_hidden=300, l1_ratios=[0.0, 0.5], n_lams=7, cv=2, scoring=scoring, random_state=0
    )
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            model.fit(data.X, data.T)
            table = model.cv_results_
            found.append([table[f"split{k}_test_score"] for k in range(2)])
    np.testing.assert_allclose(*found, rtol=1e-10)


def test_threads_do_not_show_in_a_screening(monkeypatch):
    monkeypatch.setattr(quick, "WORTHWHILE", 100_000)
    data = make_multitarget(900, 6, 3, outlier_ratio=0.2, random_state=0)
    table = SearchTable(data.X, data.T, np.ones(900), np.ones(900, dtype=bool))
    compared = Comparison(table, "l21", 300, 0)
    trials = compared.whole_path(SCREEN_LAYERS[1:2])
    fold = Fold(np.arange(600), np.arange(600, 900))
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            found += next(compared._predictions(trials, [fold], ""))
    np.testing.assert_array_equal(*found)


# -- BLAS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "tol", "shape", "n_hidden", "held"),
    [
        ("l21", 1e-3, (2000, 10), 500, True),
        ("l1", 1e-2, (2000, 10), 490, True),
        ("squared", 1e-3, (2000, 10), 500, False),
        ("l21", 1e-4, (2000, 10), 500, False),
        ("l21", 1e-3, (2000, 10), 400, False),
        ("l21", 1e-3, (900, 10), 5000, False),
    ],
)
def test_blas_is_held_where_steps_may_be_short(monkeypatch, loss, tol, shape, n_hidden, held):
    monkeypatch.setattr(quick, "WORTHWHILE", 1_000_000)
    with threadpool_limits(2, "blas"), quick.reproducible(loss, tol, shape, n_hidden):
        assert blas_threads() == (1 if held else 2)


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


@pytest.mark.parametrize("hold", [one_blas_thread, own_threads])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_blas_has_its_threads_back_when_the_last_has_left(two_blas_threads, hold, order):
    leave = [Event() for _ in order]

    def stay(k, ready):
        with hold():
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


# -- our own -----------------------------------------------------------------------------------


def test_our_own_replace_those_of_blas():
    with threadpool_limits(2, "blas"):
        with own_threads(), own_threads():
            assert blas_threads() == 1
        assert blas_threads() == 2
        with pytest.raises(KeyError), own_threads():
            raise KeyError
        assert blas_threads() == 2


def test_work_is_shared_and_comes_back_in_order():
    meet = Barrier(2, timeout=60)

    def work(item):
        if item < 2:
            meet.wait()  # where two are at work at once, and nowhere else
        return item, current_thread().name

    def run():
        with own_threads():
            return list(spread(work, range(100)))

    items, names = zip(*with_threads(2, run), strict=True)
    assert items == tuple(range(100))
    assert len(set(names)) == 2


def test_results_do_not_pile_up():
    done = []

    def run():
        with own_threads():
            for k, _ in enumerate(spread(done.append, range(1000))):
                assert len(done) - k <= 100

    with_threads(2, run)
    assert len(done) == 1000


@pytest.mark.parametrize("at", [0, 7])
def test_what_a_thread_raises_reaches_whoever_asked(at):
    def work(item):
        if item == at:
            raise KeyError(item)

    def run():
        with own_threads():
            return list(spread(work, range(8)))

    with pytest.raises(KeyError):
        with_threads(2, run)


def test_threads_see_what_the_caller_has_set():
    meet = Barrier(2, timeout=60)

    def work(item):
        if item < 2:
            meet.wait()
        return np.ones(1) / np.zeros(1)

    def run():
        with own_threads(), np.errstate(divide="raise"):
            return list(spread(work, range(2)))

    with pytest.raises(FloatingPointError):
        with_threads(2, run)


def test_shared_work_may_share_work():
    def work(item):
        return sum(spread(lambda k: k * item, range(5)))

    def run():
        with own_threads():
            return list(spread(work, range(20)))

    assert with_threads(2, run) == [10 * k for k in range(20)]


@pytest.mark.parametrize("inside", [False, True])
def test_small_work_is_done_by_one(inside):
    def run():
        with own_threads() if inside else one_blas_thread(), alone():
            assert blas_threads() == 1
            return set(spread(lambda _: current_thread().name, range(50)))

    assert with_threads(2, run) == {current_thread().name}


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_products_are_cut_in_the_same_places_whoever_makes_them(size):
    whole = pieces(size)
    assert len(whole) == min(1, size)
    with own_threads():
        cut = pieces(size)
        with alone():
            assert pieces(size) == cut
    assert [k for some in cut for k in range(size)[some]] == list(range(size))
    assert all(some.stop - some.start <= PIECE for some in cut)


@pytest.mark.parametrize("n_hidden", [40, PIECE + 40])
def test_products_in_pieces_are_those_in_one(n_hidden):
    rng = np.random.default_rng(0)
    H, T = rng.random((900, n_hidden)), rng.normal(size=(900, 3))
    R, shifts = rng.normal(size=(n_hidden, 2, 3)), np.array([0.1, 10.0])
    factor = EighFactor(gram(H))

    def run():
        with own_threads():
            return product(H, T), factor.solve(shifts, R), factor.times(R)

    expected = product(H, T), factor.solve(shifts, R), factor.times(R)
    for found, value in zip(with_threads(2, run), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-9)
