"""`python -m gorelm`, and what the command `gorelm` starts."""

import sys
import warnings


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from gorelm.cli import main as command
        from gorelm.cli.app import say
    except ImportError as error:
        sys.exit(f"gorelm: the command line needs more ({error}): pip install 'gorelm[cli]'")

    # Warnings of other libraries, in one line each.
    warnings.showwarning = lambda message, *_, **__: say(f"note: {message}", err=True)
    command()


if __name__ == "__main__":
    main()
