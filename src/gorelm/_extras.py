"""Optional packages (extras): the error message when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Say in an ImportError of the block, such as "plotting needs matplotlib", what to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{what}: pip install "gorelm[{extra}]"') from error
