"""`gorelm experiment` and `gorelm report`."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gorelm.cli.app import FAILED, PATH, Command, Group, listed, printable, say, told_in_one_line

if TYPE_CHECKING:
    from gorelm.experiments.protocol import RunRecord
    from gorelm.experiments.runner import Status


@click.group(
    cls=Group,
    epilog="gorelm experiment run paper --quick --out results\ngorelm experiment status results",
)
def experiment() -> None:
    """Run, resume and look at declared experiments."""


def _numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in listed(context, parameter, value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of numbers") from error


@experiment.command(
    cls=Command,
    epilog="gorelm experiment run paper --quick --out results\n"
    "gorelm experiment run robust --datasets enb,slump --repeats 5 --jobs 2 --out results\n"
    "gorelm experiment run mine.toml --out results     # the same line again resumes",
)
@click.argument("config")
@click.option("--out", type=PATH, required=True, help="Folder of the records.")
@click.option(
    "--jobs", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, help="Processes."
)
@click.option(
    "--resume/--fresh", default=True, help="Resume (default), or refuse a folder that has records."
)
@click.option("--retry-failed", is_flag=True, help="Repeat failed runs.")
@click.option("--quick", is_flag=True, help="Three repeats on small sets: about two minutes.")
@click.option("--datasets", callback=listed, help="Only these, separated by commas.")
@click.option("--methods", callback=listed, help="Only these, separated by commas.")
@click.option("--ratios", callback=_numbers, help="Only these, separated by commas.")
@click.option("--repeats", type=click.IntRange(1), help="Instead of the configuration's.")
@told_in_one_line
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
    """Run CONFIG ("paper", "robust" or a TOML file); finished runs are not repeated."""
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
            say("interrupted; what is finished is kept: run the same line again", err=True)
            sys.exit(130)
    _tell(result)
    sys.exit(FAILED if result["failed"] else 0)


@experiment.command(cls=Command, epilog="gorelm experiment status results")
@click.argument("folder", type=PATH)
@told_in_one_line
def status(folder: Path) -> None:
    """Show the progress of the experiment in FOLDER."""
    from gorelm.experiments.runner import status as status_of

    result = status_of(folder)
    _tell(result)
    sys.exit(FAILED if result["failed"] else 0)


@click.command(cls=Command, epilog="gorelm report results\ngorelm report paper robust --out page")
@click.argument("folders", nargs=-1, type=PATH, required=True)
@click.option("--out", type=PATH, help="Folder to write to.  [FOLDER/report]")
@click.option("--title", default="gorelm experiments", show_default=True)
@told_in_one_line
def report(folders: tuple[Path, ...], out: Path | None, title: str) -> None:
    """Write a page about experiments.

    With its tables, and all records of the FOLDERS as CSV.
    """
    from gorelm._files import write_whole
    from gorelm.experiments.report import write_report
    from gorelm.experiments.store import COLUMNS, Store

    records = []
    for folder in folders:
        if not (folder / "records.sqlite").is_file():
            raise FileNotFoundError(f"there is no experiment in {str(folder)!r}")
        with Store(folder) as store:
            records += store.records()
    page = write_report(records, out or folders[0] / "report", title=title)
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    writer.writerows(records)
    write_whole(page.parent / "records.csv", table.getvalue().encode())
    say(str(page))


def _tell(result: Status) -> None:
    say(
        f"{result['done']} of {result['total']} runs done, {result['failed']} failed, "
        f"{result['to_do']} to do"
    )
    for reason, count in result["reasons"].items():
        say(f"  {count} x {reason}")


class _Progress:
    """A live bar with the time that remains, where someone looks."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
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

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def start(self, total: int, there: int) -> None:
        self._task = self._bar.add_task("starting", total=total, completed=there, failed="")

    def record(self, record: RunRecord) -> None:
        self._failed += record["status"] == "failed"
        self._bar.update(
            self._task,
            advance=1,
            description=printable(f"{record['dataset']} {record['ratio']:.0%} {record['method']}"),
            failed=f"{self._failed} failed" if self._failed else "",
        )

    def stop(self) -> None:
        self._bar.stop()
