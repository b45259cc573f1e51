"""Threads: limit BLAS to one thread, and share work among Python threads instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Generic, TypeVar

import threadpoolctl
from joblib import effective_n_jobs
from threadpoolctl import threadpool_limits

Item = TypeVar("Item")
Result = TypeVar("Result")

# Seconds after which a thread that waits for the interpreter's lock asks for it. By default 5 ms:
# longer than many of the items' BLAS calls, after each of which a thread waits for the lock.
SWITCH_SECONDS = 2e-4

MOST_HELPERS = 64  # threads beside the caller; if all are busy, it does all items itself

_lock = Lock()
_helpers: ThreadPoolExecutor | None = None
_users = 0
_limits = ExitStack()
_keeper: ThreadPoolExecutor | None = None
_switching = 0
_switch_before = 0.0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any caller is inside this context.

    The number of threads belongs to the process, not to the caller: if every caller restored what
    it had found, callers in threads of their own would restore each other's limit. Only the thread
    that has set a limit can take it back (threadpoolctl sees to that), so the first caller, if it
    leaves before the others, hands the limit over to a thread kept for this.
    """
    global _users, _keeper
    with _lock:
        first = not _users
        if first:
            _hold()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if first:
                _limits.close()
                if _users:
                    _keeper = ThreadPoolExecutor(1)
                    _keeper.submit(_hold).result()
            elif not _users and _keeper is not None:
                _keeper.submit(_limits.close).result()
                _keeper.shutdown()
                _keeper = None


def _hold() -> None:
    controller = getattr(threadpoolctl, "OpenBLASController", None)
    if controller is not None and hasattr(controller, "clear_controlling_thread"):
        # Otherwise a limit set by another thread would silently stay.
        controller.clear_controlling_thread(force=True)
    _limits.enter_context(threadpool_limits(1, "blas"))


def _forget() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _lock, _users, _limits, _keeper, _helpers, _switching
    _lock, _users, _limits, _keeper, _helpers = Lock(), 0, ExitStack(), None, None
    if _switching:
        _switching = 0
        sys.setswitchinterval(_switch_before)


@contextmanager
def short_turns() -> Iterator[None]:
    """Let waiting threads ask for the interpreter's lock soon while any caller is in this context.

    The interval belongs to the process. The last caller to leave restores what the first has found.
    """
    global _switching, _switch_before
    with _lock:
        if not _switching:
            _switch_before = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_SECONDS, _switch_before))
        _switching += 1
    try:
        yield
    finally:
        with _lock:
            _switching -= 1
            if not _switching:
                sys.setswitchinterval(_switch_before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def n_threads(n_jobs: int | None) -> int:
    """Return how many threads `n_jobs` asks for; None: as many as BLAS would use by itself.

    So a process that shares its machine (a worker of joblib's, OPENBLAS_NUM_THREADS=1) stays
    within its share.
    """
    if n_jobs is not None:
        return int(effective_n_jobs(n_jobs))
    libraries = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    return max((int(one["num_threads"]) for one in libraries), default=1)


def ordered_map(work: Callable[[Item], Result], items: Sequence[Item], n: int) -> Iterator[Result]:
    """Yield ``work(item)`` of every item in order, computed by n threads (at most 65).

    Each item is the work of one thread, so that results do not depend on n. BLAS must be held to
    one thread (`one_blas_thread`). The caller is one of the threads; the others wait for the next
    call, since starting a thread may take as long as an item.
    """
    if n <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    shared = _Shared(work, items)
    helping: list[Future[None]] = []
    with short_turns():
        try:
            for _ in range(min(n, len(items)) - 1):
                helping.append(_helper_threads().submit(shared.help))
            yield from shared.results()
        finally:  # an interrupt does not wait for what has not begun
            shared.end()
            for helper in helping:
                if not helper.cancel():
                    helper.result()


def _helper_threads() -> ThreadPoolExecutor:
    global _helpers
    with _lock:
        if _helpers is None:
            _helpers = ThreadPoolExecutor(MOST_HELPERS, "gorelm")
        return _helpers


class _Shared(Generic[Item, Result]):
    """Items that several threads take in turn."""

    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._work, self._items = work, items
        self._next = iter(range(len(items)))
        self._done: list[Future[Result]] = [Future() for _ in items]

    def results(self) -> Iterator[Result]:
        """Yield the results in order; while one is not there, work on what nobody has begun."""
        for k, result in enumerate(self._done):
            while not result.done() and self._one():
                pass
            self._done[k] = Future()  # what is yielded is the caller's to keep
            yield result.result()

    def help(self) -> None:
        """Work until all items have been begun."""
        while self._one():
            pass

    def end(self) -> None:
        """Begin no other item."""
        self._next = iter(())

    def _one(self) -> bool:
        k = next(self._next, None)  # of a range: atomic
        if k is None:
            return False
        result = self._done[k]
        try:
            result.set_result(self._work(self._items[k]))
        except Exception as error:
            result.set_exception(error)
        except BaseException as stop:  # an interrupt of the caller, or the end of a thread
            if not result.done():
                result.set_exception(stop)
            raise
        return True
