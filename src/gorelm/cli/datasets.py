"""`gorelm datasets` and `gorelm contaminate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gorelm.cli.app import PATH, Command, Group, say, told_in_one_line


@click.group(cls=Group, epilog="gorelm datasets list\ngorelm datasets fetch enb slump")
def datasets() -> None:
    """List and fetch the Mulan benchmark sets."""


@datasets.command(
    "list", cls=Command, epilog="gorelm datasets list\ngorelm datasets list --data-home data"
)
@click.option("--data-home", type=PATH, help="Folder of the files.  [GORELM_DATA, or the cache]")
@told_in_one_line
def list_datasets(data_home: Path | None) -> None:
    """List the sets, their sizes, and whether their files are present."""
    from gorelm.datasets import list_mulan

    say(f"{'name':8} {'rows':>6} {'features':>9} {'targets':>8}  file")
    for entry in list_mulan(data_home=data_home):
        name, rows, features, targets, path = entry
        here = "-" if path is None else "here"
        say(f"{name:8} {rows:>6} {features:>9} {targets:>8}  {here}")


@datasets.command(
    "fetch",
    cls=Command,
    epilog="gorelm datasets fetch enb slump\ngorelm datasets fetch --all --data-home data",
)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every set of the collection.")
@click.option("--data-home", type=PATH, help="Where to put them.  [GORELM_DATA, or the cache]")
@told_in_one_line
def fetch_datasets(names: tuple[str, ...], everything: bool, data_home: Path | None) -> None:
    """Download missing sets and verify their checksums."""
    from gorelm.datasets import MULAN_TARGETS, fetch_mulan

    if bool(names) == everything:
        raise click.UsageError("name the sets to fetch, or pass --all")
    for name in MULAN_TARGETS if everything else names:
        say(f"{name}: {fetch_mulan(name, data_home=data_home, progress=sys.stderr.isatty())}")


@click.command(
    cls=Command,
    epilog="gorelm contaminate table.csv --targets y1,y2 --ratio 0.2 --out dirty.csv\n"
    "gorelm contaminate table.csv --targets 3 --ratio 0.1 --kind units --seed 7 --out dirty.csv",
)
@click.argument("data", type=PATH)
@click.option(
    "--targets",
    required=True,
    help="Names of the targets, separated by commas (one with a comma in double quotes), or how "
    "many (the last).",
)
@click.option(
    "--ratio", type=float, required=True, help="Share of rows (or of cells) to make wrong."
)
@click.option(
    "--kind",
    default="rows",
    show_default=True,
    help="rows, cells, one-sided, heavy-tailed, independent-cells, rows-and-cells, units, "
    "unit-cells, swapped-targets, swapped-rows, stuck or drift.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Which rows and values.",
)
@click.option("--out", type=PATH, required=True, help="CSV, TSV or Parquet file to write.")
@told_in_one_line
def contaminate(data: Path, targets: str, ratio: float, kind: str, seed: int, out: Path) -> None:
    """Plant outliers in a table.

    They replace targets (or inputs, if these are named as targets); a column `planted` says in
    which rows. All other cells are written as they are in DATA. A line says in which targets the
    kind plants nothing.
    """
    from gorelm.cli import reading
    from gorelm.cli.planting import planted_in

    reading.require_places({"table": data}, {"--out": (out, reading.WRITTEN)})
    table, separator = planted_in(data, targets, out, ratio=ratio, kind=kind, seed=seed)
    reading.write(table, out, separator=separator)
    say(f"{int(table['planted'].sum())} of {len(table)} rows made wrong: {out}")
