"""`python -m gorelm`, and what the command `gorelm` starts."""

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from gorelm.cli import main as command
    except ImportError as error:
        sys.exit(f"gorelm: the command line needs more ({error}): pip install 'gorelm[cli]'")
    command()


if __name__ == "__main__":
    main()
