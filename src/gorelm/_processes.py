"""End worker processes when their parent process ends, even if it was killed."""

from __future__ import annotations

import inspect
import os
import threading
import time
from typing import TypedDict

_SECONDS = 0.5


class _Initializer(TypedDict, total=False):
    initializer: object
    initargs: tuple[int]


def end_with(parent: int) -> None:
    """End this process, from a thread, within a second after its parent has ended.

    Pools end their workers only as long as they run: after ``kill -9`` a worker waits for its next
    task for minutes, or for ever if the last one was sent in part. (On Windows a process keeps the
    number of its parent, and nothing happens.)

    Parameters
    ----------
    parent : int
        Process id of the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def watched() -> _Initializer:
    """Return the arguments of `joblib.Parallel` with which its workers end with this process.

    None for versions of joblib, before 1.5, that do not take an initializer.
    """
    import joblib  # not above: a worker is not watched before it has imported this module

    if "backend_kwargs" not in inspect.signature(joblib.Parallel).parameters:
        return {}
    return {"initializer": end_with, "initargs": (os.getpid(),)}
