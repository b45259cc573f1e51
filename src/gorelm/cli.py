"""The command line: thin commands over the library. Heavy imports wait until a command runs."""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["main"]

# What scripts can tell apart: 1 an error, 2 a command line that makes no sense (click's own),
# 3 runs that failed, 4 another runner at work.
FAILED, BUSY = 3, 4

_PATH: Any = click.Path(path_type=Path)


class _Group(click.Group):
    """A group that shows examples as they are written."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self, formatter)


class _Command(click.Command):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self, formatter)


def _write_examples(command: click.Command, formatter: click.HelpFormatter) -> None:
    if command.epilog:
        formatter.write("\nExamples:\n")
        formatter.write("".join(f"  {line}\n" for line in command.epilog.splitlines()))


def _told_in_one_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what a user can cause into one line on stderr; --debug shows the traceback."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, OSError, ImportError, RuntimeError, sqlite3.Error) as error:
            if click.get_current_context().find_root().params.get("debug"):
                raise
            from gorelm.experiments.store import Busy

            click.echo(f"gorelm: {_one_line(error)}", err=True)
            sys.exit(BUSY if isinstance(error, Busy) else 1)

    return wrapper


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


@click.group(
    cls=_Group,
    epilog="gorelm datasets list\ngorelm experiment run paper --quick --out results\n"
    "gorelm report results",
)
@click.version_option(package_name="gorelm")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Outlier-robust multi-target regression: data sets, experiments, reports."""


# -- data --------------------------------------------------------------------------------------


@main.group(cls=_Group, epilog="gorelm datasets list\ngorelm datasets fetch enb slump")
def datasets() -> None:
    """List and fetch the Mulan multi-target regression sets."""


@datasets.command(
    "list", cls=_Command, epilog="gorelm datasets list\ngorelm datasets list --data-home data"
)
@click.option("--data-home", type=_PATH, help="Folder of the files.  [GORELM_DATA, or the cache]")
@_told_in_one_line
def list_datasets(data_home: Path | None) -> None:
    """List the sets, their sizes, and whether their files are here."""
    from gorelm.datasets import list_mulan

    click.echo(f"{'name':8} {'rows':>6} {'features':>9} {'targets':>8}  file")
    for entry in list_mulan(data_home=data_home):
        name, rows, features, targets, path = entry
        here = "-" if path is None else "here"
        click.echo(f"{name:8} {rows:>6} {features:>9} {targets:>8}  {here}")


@datasets.command(
    "fetch",
    cls=_Command,
    epilog="gorelm datasets fetch enb slump\ngorelm datasets fetch --all --data-home data",
)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every set of the collection.")
@click.option("--data-home", type=_PATH, help="Where to put them.  [GORELM_DATA, or the cache]")
@_told_in_one_line
def fetch_datasets(names: tuple[str, ...], everything: bool, data_home: Path | None) -> None:
    """Download sets that are not here yet, and check them."""
    from gorelm.datasets import MULAN_TARGETS, fetch_mulan

    if bool(names) == everything:
        raise click.UsageError("name the sets to fetch, or pass --all")
    for name in MULAN_TARGETS if everything else names:
        click.echo(
            f"{name}: {fetch_mulan(name, data_home=data_home, progress=sys.stderr.isatty())}"
        )


@main.command(
    cls=_Command,
    epilog="gorelm contaminate table.csv --targets y1,y2 --ratio 0.2 --out dirty.csv\n"
    "gorelm contaminate table.csv --targets 3 --ratio 0.1 --kind cells --seed 7 --out dirty.csv",
)
@click.argument("data", type=_PATH)
@click.option("--targets", required=True, help="Names of the targets, or how many (the last).")
@click.option("--ratio", type=float, required=True, help="Share of rows to make wrong.")
@click.option("--kind", default="rows", show_default=True, help="rows, cells, one-sided, ...")
@click.option("--seed", type=int, default=0, show_default=True, help="Which rows and values.")
@click.option("--out", type=_PATH, required=True, help="CSV file to write.")
@_told_in_one_line
def contaminate(data: Path, targets: str, ratio: float, kind: str, seed: int, out: Path) -> None:
    """Plant outliers in the targets of a table; a column `planted` says where."""
    from gorelm.datasets import contaminate as plant
    from gorelm.datasets import load_table

    chosen: Any = int(targets) if targets.isdecimal() else targets
    table = load_table(data, chosen, as_frame=True)
    if "planted" in [*table.feature_names, *table.target_names]:
        raise ValueError(f"{data} has a column 'planted' already; rename or remove it")
    dirty, planted = plant(table.target.to_numpy(float), ratio, kind=kind, random_state=seed)
    frame = table.data.assign(**dict(zip(table.target_names, dirty.T, strict=True)))
    frame.assign(planted=planted.astype(int)).to_csv(out, index=False)
    click.echo(f"{int(planted.sum())} of {len(planted)} rows made wrong: {out}")


# -- experiments -------------------------------------------------------------------------------


@main.group(
    cls=_Group,
    epilog="gorelm experiment run paper --quick --out results\ngorelm experiment status results",
)
def experiment() -> None:
    """Run, resume and look at declared experiments."""


def _listed(_: Any, __: Any, value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else ()


def _numbers(context: Any, parameter: Any, value: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _listed(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of numbers") from error


@experiment.command(
    cls=_Command,
    epilog="gorelm experiment run paper --quick --out results\n"
    "gorelm experiment run robust --datasets enb,slump --repeats 5 --jobs 2 --out results\n"
    "gorelm experiment run mine.toml --out results     # the same line again resumes",
)
@click.argument("config")
@click.option("--out", type=_PATH, required=True, help="Folder of the records.")
@click.option(
    "--jobs", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, help="Processes."
)
@click.option("--resume/--fresh", default=True, help="Go on (default), or refuse a used folder.")
@click.option("--retry-failed", is_flag=True, help="Do those again that failed.")
@click.option("--quick", is_flag=True, help="Three repeats on small sets: about two minutes.")
@click.option("--datasets", callback=_listed, help="Only these, separated by commas.")
@click.option("--methods", callback=_listed, help="Only these, separated by commas.")
@click.option("--ratios", callback=_numbers, help="Only these, separated by commas.")
@click.option("--repeats", type=click.IntRange(1), help="Instead of the configuration's.")
@_told_in_one_line
def run(
    config: str,
    out: Path,
    jobs: int,
    resume: bool,
    retry_failed: bool,
    quick: bool,
    datasets: tuple[str, ...],
    methods: tuple[str, ...],
    ratios: tuple[float, ...],
    repeats: int | None,
) -> None:
    """Run CONFIG ("paper", "robust" or a TOML file); what is already there is not done again."""
    from gorelm.experiments.protocol import load_config
    from gorelm.experiments.runner import run_experiment

    chosen = load_config(config).restricted(
        datasets=datasets, methods=methods, ratios=ratios, repeats=repeats, quick=quick
    )
    if not resume and (out / "records.sqlite").exists():
        raise ValueError(f"{out} has records already; leave --fresh out to go on with them")
    with _Progress() as progress:
        try:
            result = run_experiment(
                chosen,
                out,
                jobs=jobs,
                retry_failed=retry_failed,
                on_start=progress.start,
                on_record=progress.record,
            )
        except KeyboardInterrupt:
            progress.stop()
            click.echo("interrupted; what is finished is kept: run the same line again", err=True)
            sys.exit(130)
    _tell(result)
    sys.exit(FAILED if result["failed"] else 0)


@experiment.command(cls=_Command, epilog="gorelm experiment status results")
@click.argument("folder", type=_PATH)
@_told_in_one_line
def status(folder: Path) -> None:
    """Tell how far the experiment in FOLDER has come."""
    from gorelm.experiments.runner import status as status_of

    result = status_of(folder)
    _tell(result)
    sys.exit(FAILED if result["failed"] else 0)


@main.command(cls=_Command, epilog="gorelm report results\ngorelm report paper robust --out page")
@click.argument("folders", nargs=-1, type=_PATH, required=True)
@click.option("--out", type=_PATH, help="Folder to write to.  [FOLDER/report]")
@click.option("--title", default="gorelm experiments", show_default=True)
@_told_in_one_line
def report(folders: tuple[Path, ...], out: Path | None, title: str) -> None:
    """Write a page, its tables, and all records as CSV, from the experiments in FOLDERS."""
    import csv

    from gorelm.experiments.report import write_report
    from gorelm.experiments.store import COLUMNS, Store

    records = []
    for folder in folders:
        if not (folder / "records.sqlite").is_file():
            raise FileNotFoundError(f"there is no experiment in {str(folder)!r}")
        with Store(folder) as store:
            records += store.records()
    page = write_report(records, out or folders[0] / "report", title=title)
    with (page.parent / "records.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(records)
    click.echo(page)


def _tell(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['done']} of {result['total']} runs done, {result['failed']} failed, "
        f"{result['to_do']} to do"
    )
    for reason, count in result["reasons"].items():
        click.echo(f"  {count} x {reason}")


class _Progress:
    """A live bar with the time that remains, where someone looks."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            Remaining(),
            console=console,
            disable=not console.is_terminal,
        )
        self._failed = 0

    def __enter__(self) -> _Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def start(self, total: int, there: int) -> None:
        self._task = self._bar.add_task("starting", total=total, completed=there, failed="")

    def record(self, record: dict[str, Any]) -> None:
        self._failed += record["status"] == "failed"
        self._bar.update(
            self._task,
            advance=1,
            description=f"{record['dataset']} {record['ratio']:.0%} {record['method']}",
            failed=f"{self._failed} failed" if self._failed else "",
        )

    def stop(self) -> None:
        self._bar.stop()
