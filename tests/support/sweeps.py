"""Values folded into loops, and numbers of examples."""

from contextlib import contextmanager

from hypothesis import settings


@contextmanager
def at(**values):
    """Say with a failure at which values of a loop it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {values}")
        raise


def examples(thorough):
    """Return settings with so many examples in the thorough profile, in proportion in others."""
    return settings(max_examples=max(1, thorough * settings.default.max_examples // 25))
