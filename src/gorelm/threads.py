"""Threads of BLAS, for work that is better done by one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from threadpoolctl import threadpool_limits

__all__ = ["one_blas_thread"]

_lock = Lock()
_users = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, until the last of those who asked for it has left.

    The number of threads is the process's, not the caller's: if everyone restored what they found,
    callers in threads of their own would restore each other's limit.
    """
    global _users, _limits
    with _lock:
        if not _users:
            _limits = threadpool_limits(1, "blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limits.restore_original_limits()
