"""`gorelm predict`, `gorelm inspect` and `gorelm export`: what to do with a saved model."""

from __future__ import annotations

from pathlib import Path

import click

from gorelm.cli.app import DEVICE, ID, PATH, Command, say, told_in_one_line
from gorelm.cli.large import by_blocks


@click.command(
    cls=Command,
    epilog="gorelm predict table.gorelm new.csv --out predicted.csv\n"
    "gorelm predict table.gorelm new.csv --keep id --out - | head",
    python='model = gorelm.load("table.gorelm")\n'
    'y = model.predict(gorelm.datasets.read_table("new.csv")[list(model.feature_names_in_)])',
)
@click.argument("model_path", metavar="MODEL", type=PATH)
@click.argument("data", type=PATH)
@click.option("--out", type=PATH, required=True, help="CSV or Parquet file; - for the terminal.")
@click.option("--keep", default="", help="Columns of DATA to copy, separated by commas.")
@ID
@DEVICE
@told_in_one_line
@by_blocks("predict")
def predict(
    model_path: Path, data: Path, out: Path, keep: str, id_name: str | None, device: str | None
) -> None:
    """Predict the targets of new rows.

    Every row of the table DATA gets its targets, from a saved MODEL. Columns are found by their
    names; those that the model does not know, the targets among them, are ignored. The rows keep
    their order, and their ids if DATA has some (a first column without a name, or --id).
    """
    from gorelm.cli import reading
    from gorelm.cli.predicting import predicted
    from gorelm.io import load

    reading.require_places({"table": data, "model": model_path}, {"--out": (out, reading.WRITTEN)})
    result = predicted(load(model_path), data, keep, id_name, device)
    reading.write(result, out)
    if out != reading.STDOUT:
        say(f"Written: {out}, {len(result):,} rows of {', '.join(result.columns)}.")


@click.command(
    cls=Command,
    epilog="gorelm inspect table.gorelm",
    python='model = gorelm.load("table.gorelm")\nmodel.get_params(), model.notes_',
)
@click.argument("model_path", metavar="MODEL", type=PATH)
@told_in_one_line
def inspect(model_path: Path) -> None:
    """Describe a saved model.

    Its inputs, targets, settings, certificate, and how many training rows were flagged.
    """
    from gorelm.cli.inspecting import described
    from gorelm.io import load

    say(*described(load(model_path), model_path))


@click.command(
    cls=Command,
    epilog="gorelm export table.gorelm --onnx table.onnx",
    python='model = gorelm.load("table.gorelm")\ngorelm.onnx.export_onnx(model, "table.onnx")',
)
@click.argument("model_path", metavar="MODEL", type=PATH)
@click.option("--onnx", "onnx_path", type=PATH, required=True, help="ONNX file to write.")
@told_in_one_line
def export(model_path: Path, onnx_path: Path) -> None:
    """Write a saved model as an ONNX graph."""
    from gorelm.cli.reading import require_places
    from gorelm.io import load
    from gorelm.onnx import export_onnx

    require_places({"model": model_path}, {"--onnx": (onnx_path, (".onnx",))})
    model = load(model_path)
    try:
        export_onnx(model, onnx_path)
    except TypeError as error:  # a kind of model that has no graph
        raise ValueError(str(error)) from error
    say(f"Written: {onnx_path}.")
