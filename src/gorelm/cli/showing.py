"""How far a long command is, and how long the rest will take, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gorelm._progress import Meter, Status, following

_EVERY = 1.0, 10.0  # seconds between lines: on a terminal, where each replaces the last, and else


@contextmanager
def shown(wanted: bool | None) -> Iterator[None]:
    """Show how far the work in the block is; by default if stderr is a terminal."""
    terminal = sys.stderr.isatty()
    if not (terminal if wanted is None else wanted):
        yield
        return
    shown_before = False

    def show(status: Status) -> None:
        nonlocal shown_before
        text = in_words(status)
        shown_before = True
        click.echo(f"\r\x1b[K{text}" if terminal else text, err=True, nl=not terminal)

    with following(Meter(show, every=_EVERY[not terminal])):
        try:
            yield
        finally:
            if terminal and shown_before:
                click.echo("\r\x1b[K", err=True, nl=False)


def in_words(status: Status) -> str:
    """Return a line such as ``12 min, refine: pass 14 of about 20, about 9 min left``."""
    passes = f"pass {status.n_done + 1} of about {status.n_done + max(round(status.n_left), 1)}"
    if status.step in ("findings", "writing", "predicting"):
        passes = "the last step"
    return (
        f"{duration(status.seconds)}, {status.step}: {passes}, about {duration(status.left)} left"
    )


def duration(seconds: float) -> str:
    """Return a time in words, no more precise than it is of use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
