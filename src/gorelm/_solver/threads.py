"""Threads: BLAS held to one of them, and our own, whose number does not show in any digit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import threadpoolctl
from threadpoolctl import threadpool_info, threadpool_limits

__all__ = ["alone", "one_blas_thread", "own_threads", "pieces", "spread"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Rows of a product, or columns, that one thread makes at a time. Whoever shares work must cut it
# in the same places however many share it: a sum's digits depend on where it is cut.
PIECE = 256
# Items for each thread whose results may wait for those before them: they can be large.
ROUND = 4

_lock = Lock()
_users = 0
_limits = ExitStack()
_keeper: ThreadPoolExecutor | None = None


class _Crew(NamedTuple):
    """Those who share work: whoever asks, and the threads of a pool."""

    helpers: int = 0
    pool: Executor | None = None


ALONE = _Crew()

_crew: ContextVar[_Crew | None] = ContextVar("gorelm_crew", default=None)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, until the last of those who asked for it has left.

    The number of threads is the process's, not the caller's: if everyone restored what they found,
    callers in threads of their own would restore each other's limit. And only the thread that has
    set a limit can take it back (threadpoolctl sees to that), so one who leaves before others
    leaves the limit to a keeper.
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
    controller: Any = getattr(threadpoolctl, "OpenBLASController", None)
    if hasattr(controller, "clear_controlling_thread"):
        # Otherwise a limit set by another thread would be left as it is, without a word.
        controller.clear_controlling_thread(force=True)
    _limits.enter_context(threadpool_limits(1, "blas"))


@contextmanager
def own_threads() -> Iterator[None]:
    """Let `spread` have as many threads as BLAS has, and BLAS one.

    BLAS adds up in another order with another number of threads. What `spread` makes is the same
    for every number.
    """
    if _crew.get() is not None:
        yield
        return
    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    helpers = max((pool["num_threads"] for pool in pools), default=1) - 1
    with one_blas_thread(), ExitStack() as stack:
        crew = ALONE
        if helpers:
            # Some libraries count threads for each of them.
            pool = ThreadPoolExecutor(helpers, "gorelm", threadpool_limits, (1, "blas"))
            crew = _Crew(helpers, stack.enter_context(pool))
        with _as_crew(crew):
            yield


@contextmanager
def alone() -> Iterator[None]:
    """Do without other threads, for work too small to share; digits are the same."""
    if _crew.get() is None:
        with one_blas_thread():
            yield
    else:
        with _as_crew(ALONE):
            yield


@contextmanager
def _as_crew(crew: _Crew) -> Iterator[None]:
    token = _crew.set(crew)
    try:
        yield
    finally:
        _crew.reset(token)


def spread(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``work(item)`` of each item, in their order; within `own_threads`, made by these."""
    crew = _crew.get()
    if crew is None or crew.pool is None:
        yield from map(work, items)
        return
    every, some = list(items), ROUND * (crew.helpers + 1)
    for start in range(0, len(every), some):
        yield from _shared(work, every[start : start + some], crew.pool, crew.helpers)


def _shared(
    work: Callable[[Item], Result], items: Sequence[Item], pool: Executor, helpers: int
) -> list[Result]:
    results: list[Any] = [None] * len(items)
    turns = iter(range(len(items)))  # whose next is one step of the interpreter

    def take_turns() -> None:
        for i in turns:
            results[i] = work(items[i])

    busy: list[Future[None]] = []
    with _as_crew(ALONE):
        try:
            with suppress(RuntimeError):  # no more threads, at the interpreter's exit for one
                for _ in range(min(helpers, len(items) - 1)):
                    busy.append(pool.submit(copy_context().run, take_turns))
            take_turns()
        finally:
            wait(busy)
    for helper in busy:
        helper.result()
    return results


def _forget() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _lock, _users, _limits, _keeper
    _lock, _users, _limits, _keeper = Lock(), 0, ExitStack(), None
    _crew.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def pieces(size: int) -> list[slice]:
    """Cut a product's rows, or columns, for `spread`: within `own_threads` only."""
    step = size if _crew.get() is None else PIECE
    return [slice(start, min(start + step, size)) for start in range(0, size, max(1, step))]
