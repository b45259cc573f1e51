"""`gorelm review`: decide about suspicious rows on a local page."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Unpack

import click

from gorelm.cli.app import PATH, Command, say, told_in_one_line
from gorelm.cli.fitting import How, unfitted
from gorelm.cli.tables import table_options


@click.command(
    cls=Command,
    epilog="gorelm review table.csv --targets price,weight\n"
    "gorelm review table.csv --targets price,weight --decisions mine.sqlite --port 8000",
    python="model.fit(X, y, sample_weight=~wrong, trusted=right)  # what a refit does",
)
@table_options()
@click.option("--decisions", "decisions_path", type=PATH,
              help="File for the decisions.  [DATA.review.sqlite, beside the table]")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page.  [a free one]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@told_in_one_line
def review(
    data: Path,
    targets: str,
    features: str | None,
    id_name: str | None,
    decisions_path: Path | None,
    port: int,
    opens: bool,
    **how: Unpack[How],
) -> None:
    """Decide about the suspicious rows of a table, on a local page.

    The page shows what was given and what was expected, the row's inputs and similar rows, and
    takes your verdicts: wrong, right, unsure. It fits again with them, and exports the cleaned
    table. Every decision is saved as you make it; Ctrl-C ends the review, and the next one on the
    same table goes on. Only this machine can open the page, and it sends nothing elsewhere.
    """
    from gorelm._extras import needs
    from gorelm.cli import reading

    with needs("gorelm review needs starlette and uvicorn", "review"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from gorelm.datasets.table import read_table
    from gorelm.review.server import serve
    from gorelm.review.session import Session, Table
    from gorelm.review.store import Decisions

    if decisions_path is None:
        decisions_path = data.with_name(f"{data.name}.review.sqlite")
    reading.require_places({"table": data}, {"--decisions": (decisions_path, ())})
    read = reading.read(data, targets, features, id_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said by the line above
        frame = read_table(data)
    table = Table(
        path=data,
        frame=frame,
        X=read.X,
        y=read.y,
        lines=read.lines,
        ids=read.ids,
    )
    session = Session(table, Decisions(decisions_path), lambda: unfitted(**how))

    def told(address: str) -> None:
        known = session.state()["counts"]
        n_decided = known["wrong"] + known["right"] + known["unsure"]
        say(f"Decisions: {decisions_path} ({n_decided} rows decided).")
        say(f"Review: {address}", "Ctrl-C ends it.")
        if opens:
            click.launch(address)

    try:
        serve(session, port=port, told=told)
    finally:
        ended = session.close()
    say(f"Ended. The decisions are in {decisions_path}.")
    if not ended:  # a long step of the fit, which nobody waits for
        sys.stdout.flush()
        os._exit(0)
