"""`gorelm clean`: a table without its wrong rows and cells, and a log to undo it."""

from __future__ import annotations

import gzip
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Unpack

import click

from gorelm._files import whole_file
from gorelm.cli.app import PATH, Command, say, told_in_one_line
from gorelm.cli.fitting import How
from gorelm.cli.tables import fitted, found_in, table_options

if TYPE_CHECKING:
    import pandas

# A cleaned table is a file of the kind of the table itself, so that nothing else changes.
_KINDS = (
    (".csv", ".csv.gz"),
    (".tsv", ".tsv.gz"),
    (".parquet", ".pq"),
    (".arff", ".arff.gz"),
)


@click.command(
    cls=Command,
    epilog="gorelm clean table.csv --targets price,weight --dry-run\n"
    "gorelm clean table.csv --targets price,weight --out clean.csv\n"
    "gorelm clean table.csv --targets price --rows keep --cells expected --out clean.csv\n"
    "gorelm clean clean.csv --undo clean.changes.csv --out table-again.csv",
    python='table = gorelm.datasets.read_table("table.csv")\n'
    "cleaned = gorelm.clean(table, targets)\n"
    "cleaned.table, cleaned.log, gorelm.cleaning.restore(cleaned.table, cleaned.log)",
)
@table_options(need_targets=False)
@click.option("--out", type=PATH, help="File for the cleaned table, of the kind of DATA.")
@click.option(
    "--rows",
    type=click.Choice(["drop", "keep"]),
    default="drop",
    show_default=True,
    help="What becomes of wrong rows.",
)
@click.option(
    "--cells",
    type=click.Choice(["blank", "expected", "keep"]),
    default="blank",
    show_default=True,
    help="What becomes of wrong cells in rows that stay.",
)
@click.option(
    "--suspicious",
    type=click.Choice(["keep", "change"]),
    default="keep",
    show_default=True,
    help="What becomes of findings that are not certain.",
)
@click.option(
    "--log", "log_path", type=PATH, help="CSV file for the changes.  [beside --out: *.changes.csv]"
)
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@click.option("--undo", type=PATH, help="Log of the changes that made DATA, to take back.")
@told_in_one_line
def clean(
    data: Path,
    targets: str | None,
    features: str | None,
    id_name: str | None,
    out: Path | None,
    rows: str,
    cells: str,
    suspicious: str,
    log_path: Path | None,
    dry_run: bool,
    undo: Path | None,
    **how: Unpack[How],
) -> None:
    """Write a table without its wrong rows and cells.

    DATA stays as it is. Rows whose targets are wrong are dropped, single wrong cells are blanked,
    if that is certain: if the wrong ones form a clear group, or are far beyond the limit. Findings
    that are only suspicious are listed and stay; everything else is written as it stands in DATA.
    Every change is logged with its line, id,
    column, old and new value and the reason, and `--undo` takes all of them back.
    """
    if out is None and not dry_run:
        raise click.UsageError("Missing option '--out' (or pass --dry-run to see the changes).")
    if undo is not None:
        _undo(data, undo, out, dry_run=dry_run)
        return
    if targets is None:
        raise click.UsageError("Missing option '--targets'.")
    from gorelm.cleaning import apply_to_file, plan, write_log
    from gorelm.cli import reading, summary
    from gorelm.findings import Names

    if out is not None and log_path is None:
        log_path = out.with_name(f"{_without_ending(out)}.changes.csv")
    outputs = {"--out": (out, _endings(data)), "--log": (log_path, (".csv",))}
    reading.require_places({"table": data}, outputs)
    table = reading.read(data, targets, features, id_name)
    model = fitted(table, **how)
    found = found_in(model, table)
    names = Names([*table.X, *table.y])
    changes = plan(found, names, table.target_names, rows=rows, cells=cells, suspicious=suspicious)
    if table.ids is None:
        changes["id"] = ""
    content, log = apply_to_file(data, changes)
    shown = log[log["row"] != ""]
    most = None if dry_run else summary.MOST_CHANGES
    say(*summary.of_table(table), *summary.of_changes(shown, found, table, most=most))
    if dry_run or out is None or log_path is None:
        say("Nothing is written (--dry-run).")
        return
    # Both or none, and the log first: a cleaned table must not be without one.
    with whole_file(out) as table_file, whole_file(log_path) as log_file:
        _write(content, table_file, out)
        log_file.write(write_log(log))
        table_file.flush()
        os.fsync(table_file.fileno())
    n_rows = len(found) - int((shown["column"] == "").sum())
    back = shlex.join(["gorelm", "clean", str(out), "--undo", str(log_path), "--out", "FILE"])
    say(
        f"Written: {out} ({n_rows:,} rows), {log_path} (the changes).",
        f"{data} is as it was.",
        "",
        "To take all changes back:",
        f"  {back}",
    )


def _undo(data: Path, log_path: Path, out: Path | None, *, dry_run: bool) -> None:
    from gorelm.cleaning import read_log, restore_file
    from gorelm.cli.reading import require_places
    from gorelm.datasets.files import require_file

    require_file(log_path)
    require_places({"table": data, "log": log_path}, {"--out": (out, _endings(data))})
    log = read_log(log_path)
    content = restore_file(data, log)
    n_changes = int((log["row"] != "").sum())
    changes = f"{n_changes:,} change{'s' * (n_changes != 1)}"
    if dry_run or out is None:
        say(f"{changes} can be taken back. Nothing is written (--dry-run).")
        return
    with whole_file(out) as file:
        _write(content, file, out)
    say(f"Written: {out}, with {changes} taken back.")


def _endings(data: Path) -> tuple[str, ...]:
    return next((kind for kind in _KINDS if data.name.lower().endswith(kind)), ())


def _without_ending(path: Path) -> str:
    name = path.name
    for ending in (ending for kind in _KINDS for ending in reversed(kind)):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _write(content: bytes | pandas.DataFrame, file: BinaryIO, path: Path) -> None:
    if not isinstance(content, bytes):
        content.to_parquet(file)
    elif path.name.lower().endswith(".gz"):
        file.write(gzip.compress(content, mtime=0))
    else:
        file.write(content)
