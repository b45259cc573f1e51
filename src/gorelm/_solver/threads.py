"""BLAS held to one thread, for work whose products are too small to share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Lock

import threadpoolctl
from threadpoolctl import threadpool_limits

_lock = Lock()
_users = 0
_limits = ExitStack()
_keeper: ThreadPoolExecutor | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread until the last of those who asked for it has left.

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
        # Otherwise a limit that another thread has set would be left as it is, without a word.
        controller.clear_controlling_thread(force=True)
    _limits.enter_context(threadpool_limits(1, "blas"))


def _forget() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _lock, _users, _limits, _keeper
    _lock, _users, _limits, _keeper = Lock(), 0, ExitStack(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
