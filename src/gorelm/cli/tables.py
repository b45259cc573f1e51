"""`gorelm fit` and `gorelm outliers`: from a table to a model, and to the rows to check."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

import click

from gorelm.cli.app import DEVICE, ID, PATH, Command, say, told_in_one_line
from gorelm.cli.fitting import How, unfitted
from gorelm.cli.large import by_blocks

if TYPE_CHECKING:
    import pandas

    from gorelm.cli.reading import Table
    from gorelm.estimators.table import TableRegressor

P = ParamSpec("P")
R = TypeVar("R")


def table_options(*, need_targets: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add what the commands on a table take: the table, and how to fit it."""

    def add_to(command: Callable[P, R]) -> Callable[P, R]:
        for add in (
            DEVICE,
            click.option("--check-inputs", is_flag=True,
                         help="Look for wrong numbers among the inputs too, and fill them in."),
            click.option("--target-transform", type=click.Choice(["auto", "none", "log", "sqrt"]),
                         default="auto", show_default=True,
                         help="Scale on which targets are fitted and judged: as given, logarithms "
                         "or square roots; auto: by the table, for each target."),
            click.option("--nodes", type=click.IntRange(1),
                         help="Hidden nodes of every network.  [by effort: 300, 1000 or 2000, and "
                         "more for large tables]"),
            click.option("--effort", type=click.Choice(["fast", "default", "high"]),
                         default="default",
                         help="How much is tried: rows, nodes and draws of layers.  [default]"),
            click.option("--jobs", type=click.IntRange(1),
                         help="Threads; the result is the same for any number.  [as many as BLAS "
                         "uses]"),
            click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True,
                         help="Of folds and networks."),
            ID,
            click.option("--features", help="Names of the inputs.  [all other columns]"),
            click.option("--targets", required=need_targets,
                         help="Names of the targets, separated by commas (one with a comma in "
                         "double quotes), or how many (the last)."),
            click.argument("data", type=PATH),
        ):  # fmt: skip
            command = add(command)
        return command

    return add_to


@click.command(
    cls=Command,
    epilog="gorelm fit table.csv --targets price,weight\n"
    "gorelm fit table.csv --targets 2 --model table.gorelm --report table.html",
    python='table = gorelm.datasets.read_table("table.csv")\n'
    "model = gorelm.TableRegressor(random_state=0).fit(table[inputs], table[targets])",
)
@table_options()
@click.option("--model", "model_path", type=PATH, help="File for the model.  [not saved]")
@click.option("--report", "report_path", type=PATH, help="HTML page about the fit.  [none]")
@told_in_one_line
@by_blocks("fit")
def fit(
    data: Path,
    targets: str,
    features: str | None,
    id_name: str | None,
    model_path: Path | None,
    report_path: Path | None,
    **how: Unpack[How],
) -> None:
    """Fit a robust model to a table.

    Prints its errors on rows that it did not see, and which rows are wrong. DATA is a CSV, TSV,
    Parquet or ARFF file; categories are encoded, missing values imputed, outliers excluded. Layers
    and penalties are chosen by their errors on rows that they were not fitted to.
    """
    from gorelm.cli import reading, summary

    outputs = {"--model": (model_path, ()), "--report": (report_path, reading.PAGES)}
    reading.require_places({"table": data}, outputs)
    if model_path is not None:
        from gorelm.io import save
    if report_path is not None:
        from gorelm.diagnostics import write_fit_report
    table = reading.read(data, targets, features, id_name)
    model = fitted(table, **how)
    say(*summary.of_fit(model, table, found_in(model, table)))
    if model_path is not None:
        save(model, model_path)
    if report_path is not None:
        write_fit_report(
            model,
            table.X,
            reading.numbers_of(table.y, data),
            report_path,
            target_names=table.target_names,
            row_names=_row_names(table),
            title=f"gorelm fit {data.name}",
        )
    chosen = arguments_of(data, targets, features, id_name, how)
    say(*_next(data, chosen, model_path, report_path))


def _row_names(table: Table) -> list[str] | None:
    if table.ids is not None:
        return [f"id {key}" for key in table.ids]
    return None if table.lines is None else [f"line {n}" for n in table.lines]


def fitted(table: Table, **how: Unpack[How]) -> TableRegressor:
    """Return the model that all commands fit to a table."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its notes say the same
        model = unfitted(progress=sys.stderr.isatty(), **how).fit(table.X, table.y)
    robust = model.regressor_
    # Of this fit, not of the model.
    robust.set_params(n_jobs=None, progress=False, device=None)
    return model


def found_in(model: TableRegressor, table: Table) -> pandas.DataFrame:
    """Return the table of findings, with the ids of the rows if there are some."""
    from gorelm.findings import findings

    found = findings(model, table.X, table.y, lines=table.lines)
    return found if table.ids is not None else found.reset_index(drop=True)


def arguments_of(
    data: Path, targets: str, features: str | None, id_name: str | None, how: How
) -> str:
    """Return the arguments by which another command makes the same fit."""
    chosen = [str(data), "--targets", targets]
    for option, value in (
        ("--features", features),
        ("--id", id_name),
        ("--effort", how["effort"] if how["effort"] != "default" else None),
        ("--nodes", how["nodes"]),
        (
            "--target-transform",
            how["target_transform"] if how["target_transform"] != "auto" else None,
        ),
        ("--seed", how["seed"]),
    ):
        chosen += [option, str(value)] if value else []
    chosen += ["--check-inputs"] if how["check_inputs"] else []
    return shlex.join(chosen)


def _next(data: Path, arguments: str, model: Path | None, report: Path | None) -> list[str]:
    """Say what was written, and which commands go on from here."""
    written = [f"{path} ({_size(path)})" for path in (model, report) if path is not None]
    lines = [f"Written: {', '.join(written)}."] if written else []
    if model is None:
        lines += ["The model is not saved: add --model FILE to keep it.", "", "Next:"]
        lines.append(f"  gorelm fit {arguments} --model {_stem(data)}.gorelm")
    else:
        name = shlex.quote(str(model))
        lines += ["", "Next:", f"  gorelm predict {name} NEW.csv --out predicted.csv"]
        lines.append(f"  gorelm inspect {name}")
    lines.append(f"  gorelm outliers {arguments} --out suspicious.csv")
    lines.append(f"  gorelm clean {arguments} --out {clean_name(data)}")
    return lines


def _stem(path: Path) -> str:
    return shlex.quote(path.name.split(".")[0])


def clean_name(data: Path) -> str:
    """Return a name for the cleaned table, quoted for a shell."""
    stem, *endings = data.name.split(".")
    return shlex.quote(".".join([f"{stem}-clean", *endings[-2:]]))


def _size(path: Path) -> str:
    n_bytes = path.stat().st_size
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"


@click.command(
    cls=Command,
    epilog="gorelm outliers table.csv --targets price,weight --out suspicious.csv\n"
    "gorelm outliers table.csv --targets price --id number",
    python='table = gorelm.datasets.read_table("table.csv")\n'
    "model = gorelm.TableRegressor(random_state=0).fit(table[inputs], table[targets])\n"
    "model.findings(table[inputs], table[targets])",
)
@table_options()
@click.option("--out", type=PATH, help="CSV or Parquet file for all rows, worst first.  [none]")
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Rows to list here."
)
@told_in_one_line
@by_blocks("outliers")
def outliers(
    data: Path,
    targets: str,
    features: str | None,
    id_name: str | None,
    out: Path | None,
    top: int,
    **how: Unpack[How],
) -> None:
    """Find the wrong rows and cells of a table.

    Every row is judged by models that did not see it. `--out` gets all rows, the most suspicious
    first: id (if DATA has some), inputs, and what was found: gorelm.row, gorelm.line, gorelm.score,
    gorelm.quality (0 to 1), gorelm.flagged, gorelm.certain, gorelm.kind (row, cell, input,
    duplicate), gorelm.off (which targets are), gorelm.twin, and for each target T its value,
    gorelm.expected.T, gorelm.off_by.T, gorelm.spreads.T, gorelm.score.T, gorelm.flagged.T.
    """
    from gorelm.cli import reading, summary

    reading.require_places({"table": data}, {"--out": (out, reading.WRITTEN)})
    table = reading.read(data, targets, features, id_name)
    model = fitted(table, **how)
    found = found_in(model, table)
    say(*summary.of_outliers(model, table, found, most=top))
    if out is not None:
        reading.write(found, out)
        say(f"Written: {out}, {len(found):,} rows, the most suspicious first.")
    arguments = arguments_of(data, targets, features, id_name, how)
    say("Next:")
    if out is None:
        say(f"  gorelm outliers {arguments} --out suspicious.csv")
    say(f"  gorelm review {arguments}")
    say(f"  gorelm clean {arguments} --out {clean_name(data)}")
