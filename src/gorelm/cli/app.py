"""What the commands share: how they show help, print, fail, and read lists."""

from __future__ import annotations

import functools
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from gorelm._version import __version__

P = ParamSpec("P")
R = TypeVar("R")

# What scripts can tell apart: 1 an error, 2 a command line that makes no sense (click's own),
# 3 runs that failed, 4 another runner at work.
FAILED, BUSY = 3, 4

_LONGEST_ERROR = 500  # characters

PATH: click.Path = click.Path(path_type=Path)

# The column that names the rows, for all commands that read a table.
ID = click.option(
    "--id",
    "id_name",
    metavar="NAME",
    help="Column that identifies the rows: no input, and part of every result.  [a first column "
    "without a name]",
)

DEVICE = click.option(
    "--device",
    metavar="cpu|cuda",
    help="PyTorch device that does the work on all rows.  [none: this process, without PyTorch]",
)


def printable(text: str) -> str:
    r"""Return text on one line, with what a terminal would act upon or hide escaped (``\x1b``).

    Names of columns, models and files may hold anything: escape sequences that clear the screen or
    rename the window, line feeds, marks that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, on stderr if `err`: the one way in which text reaches the terminal."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "\n".join(printable(line) for line in lines)
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


class Command(click.Command):
    """Shows examples, and the same in Python, as they are written."""

    def __init__(self, name: str | None, *, python: str = "", **settings: object) -> None:
        super().__init__(name, **settings)  # type: ignore[arg-type]
        self.python = python

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        for title, lines in (("Examples", self.epilog or ""), ("In Python", self.python)):
            if lines:
                formatter.write(f"\n{title}:\n")
                formatter.write("".join(f"  {line}\n" for line in lines.splitlines()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; words of the command line are quoted in errors."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(printable(error.format_message()), ctx) from error


class Group(Command, click.Group):
    """A group that lists its commands in the order in which they are declared."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(self.commands)


def told_in_one_line(function: Callable[P, R]) -> Callable[P, R]:
    """Turn what a user can cause into one line on stderr; --debug shows the traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BrokenPipeError:  # `... | head` has seen enough; click leaves quietly
            raise
        except (
            ValueError,
            OSError,
            ImportError,
            RuntimeError,
            MemoryError,
            ArithmeticError,
            sqlite3.Error,
        ) as error:
            if click.get_current_context().find_root().params.get("debug"):
                raise
            say(f"gorelm: {_one_line(error)}", err=True)
            sys.exit(_exit_code(error))

    return wrapper


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, RuntimeError):
        return 1
    from gorelm.experiments.store import Busy

    return BUSY if isinstance(error, Busy) else 1


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory. {' '.join(str(error).split())}".strip()
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}..."


def listed(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return the parts of a list separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else ()


@click.group(
    cls=Group,
    epilog="gorelm fit table.csv --targets price,weight --model table.gorelm\n"
    "gorelm outliers table.csv --targets price,weight --out suspicious.csv\n"
    "gorelm clean table.csv --targets price,weight --out clean.csv\n"
    "gorelm predict table.gorelm new.csv --out predicted.csv",
)
@click.version_option(__version__, prog_name="gorelm")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Outlier-robust multi-target regression: fit, find wrong values, clean, predict, compare."""
