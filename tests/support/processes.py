"""Processes that outlive the one that started them, found by a mark in their environment."""

import os
import time
from pathlib import Path

__all__ = ["children_of", "left_after", "marked"]


def marked(name, value):
    """Return {pid: command line} of the processes that were started with name=value in their
    environment, or below one that was; empty where there is no /proc."""
    mark = f"{name}={value}".encode()
    return _matching(lambda folder: mark in (folder / "environ").read_bytes().split(b"\0"))


def children_of(pid):
    """Return {pid: command line} of the children of a process."""
    return _matching(lambda folder: _stat(folder)[1] == str(pid))


def left_after(seconds, find):
    """Return what `find` returns when that is empty, or when the time is up."""
    end = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _matching(condition):
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and condition(folder) and _stat(folder)[0] != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = command.strip()
        except OSError:  # gone, or another user's
            continue
    return found


def _stat(folder):
    """Return state and parent."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[:2]
