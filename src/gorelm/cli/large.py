"""`gorelm fit`, `outliers` and `predict` on Parquet files and folders that are read in blocks."""

from __future__ import annotations

import functools
import gzip
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import click

from gorelm._progress import Meter, Work, begin, doing, meter
from gorelm.cli.app import say
from gorelm.cli.elsewhere import connected, in_order, predict_on, require_device
from gorelm.cli.fitting import How, unfitted
from gorelm.cli.showing import shown

if TYPE_CHECKING:
    import pandas
    from distributed import Client

    from gorelm._typing import Indices
    from gorelm.estimators.table import TableRegressor
    from gorelm.stream import ParquetTable, TablePart

# A table in memory, its copies as cells and inputs, and the arrays of a fit.
_COPIES = 8
_MOST_ROWS = 10
_FOUND_ROWS = 100_000  # of findings that are made at a time
_UNSORTED = 0.8  # share of the time of findings before they are sorted
# What a model knows of its training rows, and what else findings read.
_OF_ROWS = ("out_of_fold_", "outlier_scores_", "outlier_mask_", "cell_scores_", "cell_mask_")
_OF_MODEL = (
    "contaminated_",
    "outlier_threshold_",
    "cell_thresholds_",
    "target_spreads_",
    "_on_scale",
)


def by_blocks(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command read its table in blocks, by the function `name` of this module.

    Folders always are; a Parquet file is if it would not fit in what ``--memory`` allows.
    """

    def add_to(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--memory",
            help="Read a Parquet file in blocks if the work in memory would take more than this, "
            "such as 4GB, and let the networks have no more nodes than it allows. (Folders of "
            "Parquet files are always read so.)",
        )
        @click.option(
            "--progress/--no-progress",
            default=None,
            help="Say on stderr how far a table read in blocks is, and how long the rest will "
            "take.  [if stderr is a terminal]",
        )
        @click.option(
            "--scheduler",
            metavar="tcp://...",
            help="Address of a dask scheduler whose workers read and hold the rows of a Parquet "
            "file or folder.  [none: this machine]",
        )
        @functools.wraps(command)
        def wrapper(
            data: Path,
            memory: str | None,
            scheduler: str | None,
            device: str | None,
            progress: bool | None,
            **others: object,
        ) -> None:
            others["device"] = device
            require_device(device)
            if scheduler is not None:
                _require_parquet(data, "--scheduler")
                if device is not None:
                    raise ValueError("--device and --scheduler cannot be combined: choose one.")
                with connected(scheduler) as client, shown(progress):
                    globals()[name](data=data, client=client, memory=memory, **others)
            elif is_large(data, memory):
                with shown(progress):
                    globals()[name](data=data, memory=memory, **others)
            else:
                command(data=data, **others)

        return wrapper

    return add_to


def is_large(path: Path, memory: str | None) -> bool:
    """Whether a table is to be read in blocks."""
    if path.is_dir():
        return True
    if memory is None:
        return False
    _require_parquet(path, "--memory")
    from gorelm.estimators._prepare import in_bytes
    from gorelm.stream import ParquetTable

    n_rows, n_columns = ParquetTable(path).shape
    return 8 * _COPIES * n_rows * n_columns > in_bytes(memory)


def _require_parquet(path: Path, option: str) -> None:
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        raise ValueError(f"{option} is for Parquet files and folders of them; {path} is none.")


def fit(
    data: Path,
    targets: str,
    features: str | None,
    model_path: Path | None = None,
    report_path: Path | None = None,
    id_name: str | None = None,
    memory: str | None = None,
    client: Client | None = None,
    **how: Unpack[How],
) -> None:
    """Fit a table in blocks, and tell what was found."""
    from gorelm.cli import reading, summary
    from gorelm.io import save

    reading.require_places({"table": data}, {"--model": (model_path, ())})
    if report_path is not None:
        raise ValueError("--report shows every row; it cannot be had of a table read in blocks.")
    model, table, y = _fitted(data, targets, features, id_name, memory, client, how)
    say(*_of_table(model, table, y), "", *_of_errors(model, y), "")
    say(*summary.of_networks(model.regressor_), "", *_Found(model, y).lines())
    if model_path is not None:
        save(model, model_path)
        say("", f"Written: {model_path}.")


def outliers(
    data: Path,
    targets: str,
    features: str | None,
    out: Path | None,
    top: int = _MOST_ROWS,
    id_name: str | None = None,
    memory: str | None = None,
    client: Client | None = None,
    **how: Unpack[How],
) -> None:
    """Find the wrong rows and cells of a table in blocks."""
    from gorelm.cli import reading

    reading.require_places({"table": data}, {"--out": (out, reading.WRITTEN)})
    asked = data, targets, features, id_name, memory, client, how
    model, table, y = _fitted(*asked, writing=out is not None)
    found = _Found(model, y)
    say(*_of_table(model, table, y), "", *found.lines(top))
    if out is not None:
        begin("writing")
        with doing("write", *y.shape):
            _write(_ticking(found.frames(), len(y)), out, index=id_name is not None)
        say("", f"Written: {out}, {len(y):,} rows, the most suspicious first.")


def predict(
    model_path: Path,
    data: Path,
    out: Path,
    keep: str,
    id_name: str | None = None,
    device: str | None = None,
    memory: str | None = None,
    client: Client | None = None,
) -> None:
    """Predict the rows of a table block by block, and write them as they come."""
    del memory  # a block at a time, whatever it is
    from gorelm.cli import reading
    from gorelm.datasets.columns import in_words
    from gorelm.datasets.table import split_names
    from gorelm.estimators.table import TableRegressor
    from gorelm.io import load
    from gorelm.stream import ParquetTable

    reading.require_places({"table": data, "model": model_path}, {"--out": (out, reading.WRITTEN)})
    model = load(model_path)
    if not isinstance(model, TableRegressor) or not hasattr(model, "feature_names_in_"):
        raise ValueError(f"{model_path} was not fitted to a table with names of columns.")
    table = ParquetTable(data)
    kept = split_names(keep, table.columns) if keep else []
    kept += [id_name] if id_name and id_name not in kept else []
    names = [str(name) for name in model.feature_names_in_]
    needed = [n for n, kind in zip(names, model.kinds_, strict=True) if kind != "ignored"]
    if lacking := [name for name in (*needed, *kept) if name not in table.columns]:
        raise ValueError(f"{data} lacks {in_words(lacking)}.")
    if twice := [name for name in kept if name in model.target_names_]:
        raise ValueError(f"{twice[0]!r} is predicted; it cannot be kept from {data} as well.")
    there = [name for name in names if name in table.columns]
    columns = list(dict.fromkeys([*there, *kept]))
    frames: Iterator[pandas.DataFrame]
    if client is None:
        read = table.select(columns).frames()
        frames = (_predicted(frame, model, kept, device) for frame in read)
    else:
        light = _without_rows(model)  # in every task: scattered, it could be lost with a worker
        frames = in_order(client, _predicted_part, table.parts(), light, columns, kept)
    if (follower := meter()) is not None:
        size = len(table), float(len(model.target_names_))
        follower.expect([Work("predicting", "write", *size)], len(table))
    begin("predicting")
    with doing("write", len(table), len(model.target_names_)):
        n_rows = _write(_ticking(frames, len(table)), out)
    if out != reading.STDOUT:
        say(f"Written: {out}, {n_rows:,} rows of {', '.join([*kept, *model.target_names_])}.")


def _predicted(
    frame: pandas.DataFrame, model: TableRegressor, kept: list[str], device: str | None = None
) -> pandas.DataFrame:
    names = [str(name) for name in model.feature_names_in_]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        y = predict_on(device, model, frame.reindex(columns=names)).reshape(len(frame), -1)
    result = frame[kept].copy()
    for name, values in zip(model.target_names_, y.T, strict=True):
        result[name] = values
    return result


def _predicted_part(
    part: TablePart, model: TableRegressor, columns: list[str], kept: list[str]
) -> pandas.DataFrame:
    """Return the predictions for rows that a worker of a cluster reads."""
    return _predicted(part.frame(columns), model, kept)


def _without_rows(model: TableRegressor) -> TableRegressor:
    """Return the model without what it knows of its training rows."""
    light = copy(model)
    light.regressor_ = copy(model.regressor_)
    for name in _OF_ROWS:
        vars(light.regressor_).pop(name, None)
    return light


def _ticking(frames: Iterator[pandas.DataFrame], n_rows: int) -> Iterator[pandas.DataFrame]:
    """Pass frames on, and say how many of the rows they were."""
    follower, done = meter(), 0
    for frame in frames:
        yield frame
        done += len(frame)
        if follower is not None:
            follower.tick(done / n_rows)


def _write(frames: Iterator[pandas.DataFrame], path: Path, *, index: bool = False) -> int:
    """Write frames one after the other into one file; returns the number of rows."""
    from gorelm._files import whole_file
    from gorelm.cli.reading import STDOUT

    name, n_rows = path.name.lower(), 0
    if path == STDOUT:
        for frame in frames:
            click.echo(frame.to_csv(index=index, header=not n_rows), nl=False)
            n_rows += len(frame)
        return n_rows
    with whole_file(path) as file, ExitStack() as opened:
        writer = None
        for frame in frames:
            if name.endswith((".parquet", ".pq")):
                import pyarrow
                from pyarrow import parquet

                schema = None if writer is None else writer.schema
                table = pyarrow.Table.from_pandas(frame, schema, preserve_index=index)
                if writer is None:
                    writer = opened.enter_context(parquet.ParquetWriter(file, table.schema))
                writer.write_table(table)
            else:
                separator = "\t" if name.endswith((".tsv", ".tsv.gz")) else ","
                text = frame.to_csv(index=index, header=not n_rows, sep=separator).encode()
                # Members of a gzip file may follow each other.
                file.write(gzip.compress(text) if name.endswith(".gz") else text)
            n_rows += len(frame)
    return n_rows


# -- fitting, and what was found -----------------------------------------------------------------


def _fitted(
    data: Path,
    targets: str,
    features: str | None,
    id_name: str | None,
    memory: str | None,
    client: Client | None,
    how: How,
    *,
    writing: bool = False,
) -> tuple[TableRegressor, ParquetTable, pandas.DataFrame]:
    from gorelm.datasets.table import choose_columns
    from gorelm.stream import ParquetTable

    if how["check_inputs"]:
        raise ValueError("--check-inputs needs all inputs at once, not a table read in blocks.")
    table = ParquetTable(data, on_workers=client is not None)
    columns = [name for name in table.columns if name != id_name]
    by_number = targets.isdecimal() and targets not in columns
    chosen = choose_columns(columns, int(targets) if by_number else targets, features, data)
    inputs, outputs = ([columns[j] for j in places] for places in chosen)
    y = table.frame(outputs)
    if id_name is not None:
        y.index = table.frame([id_name]).set_index(id_name).index
    if memory is not None:
        how = _within(memory, table.shape[0], len(inputs), len(outputs), how)
    if (follower := meter()) is not None:
        size = len(y), float(len(outputs))
        ends = [Work("findings", "rank", *size)]
        follower.expect_after([*ends, Work("writing", "write", *size)] if writing else ends)
        _announce(follower, table.shape[0], len(inputs), len(outputs), how)
    unfit = unfitted(**how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its notes say the same
        model = unfit.fit(table.select(inputs), y)
    model.regressor_.set_params(n_jobs=None, progress=False, device=None)
    return model, table, y


def _announce(meter: Meter, n_rows: int, n_inputs: int, n_targets: int, how: How) -> None:
    """Tell what a fit will do before it begins: learning the encoding takes a while."""
    from gorelm._solver.threads import n_threads
    from gorelm.estimators._robust.plan import announce
    from gorelm.estimators._robust.task import EFFORTS

    effort = EFFORTS[how["effort"]]
    if n_rows > effort.search_rows:
        threads = n_threads(how["jobs"])
        announce(meter, effort, how["nodes"], n_rows, n_inputs, n_targets, threads)


def _within(memory: str, n_rows: int, n_inputs: int, n_targets: int, how: How) -> How:
    """Return how to fit with no more nodes than the memory allows; says so if it does not do."""
    from gorelm._solver.threads import n_threads
    from gorelm.cli.summary import wrapped
    from gorelm.estimators._prepare import in_bytes
    from gorelm.estimators._robust.plan import Memory
    from gorelm.estimators._robust.task import EFFORTS

    most, effort = in_bytes(memory), EFFORTS[how["effort"]]
    if n_rows <= effort.search_rows:
        return how  # a small table, whatever is asked for
    needed = Memory(effort, n_rows, n_inputs, n_targets, n_threads(how["jobs"]))
    nodes = needed.nodes_within(most) if how["nodes"] is None else how["nodes"]
    notes = []
    if nodes != how["nodes"]:
        notes.append(f"{nodes} nodes of each network, as --memory {memory} allows no more.")
    if needed.total(nodes) > most:
        notes.append(
            f"about {needed.total(nodes) / 1e9:.1f} GB will be used: {needed.rows / 1e9:.1f} GB "
            f"are for the targets and scores of {n_rows:,} rows, which --memory cannot lower."
        )
    for note in notes:
        say(*wrapped(f"note: {note}"), err=True)
    return {**how, "nodes": nodes}


def _of_table(model: TableRegressor, table: ParquetTable, y: pandas.DataFrame) -> list[str]:
    from gorelm.cli.summary import as_option, wrapped

    n_rows, n_columns = table.shape
    files = f" in {len(table.files)} files" if len(table.files) > 1 else ""
    lines = wrapped(
        f"{table.path.name}: {n_rows:,} rows{files}, {n_columns} columns, read in blocks; "
        f"{model.n_features_in_} inputs, targets {', '.join(y.columns[:6])}."
    )
    return lines + [line for note in model.notes_ for line in wrapped(as_option(note), "  ")]


def _of_errors(model: TableRegressor, y: pandas.DataFrame) -> list[str]:
    import numpy as np

    from gorelm.cli.summary import columns, short

    expected = model.out_of_fold_.reshape(len(y), -1)
    rows = [["target", "RMSE", "of the mean", "relative RMSE"]]
    for j, name in enumerate(y.columns):
        values = y[name].to_numpy(dtype=float, na_value=np.nan)
        known = ~model.outlier_mask_ & ~model.cell_mask_[:, j] & np.isfinite(values)
        error = float(np.sqrt(np.mean((values[known] - expected[known, j]) ** 2)))
        of_mean = float(np.std(values[known]))
        ratio = f"{error / of_mean:.3f}" if of_mean else "-"
        rows.append([short(name), f"{error:.4g}", f"{of_mean:.4g}", ratio])
    head = "RMSE on rows that the models did not see (without wrong rows and cells):"
    return [head, *columns(rows, "lrrr")]


class _Found:
    """Findings of a table whose inputs are not in memory, without a search for duplicates.

    Parameters
    ----------
    model : TableRegressor
        Fitted to it.
    y : frame
        Its targets.
    """

    def __init__(self, model: TableRegressor, y: pandas.DataFrame) -> None:
        import numpy as np

        from gorelm.findings import ranking

        self._model, self._y = model, y
        worst, score = np.empty(len(y)), model.outlier_scores_
        self._counts = {"row": 0, "cell": 0, "": 0}
        self._n_cells = self._n_certain = 0
        begin("findings")
        follower = meter()
        with doing("rank", *y.shape):
            for start in range(0, len(y), _FOUND_ROWS):
                if follower is not None:
                    follower.tick(_UNSORTED * start / len(y))
                rows = np.arange(start, min(start + _FOUND_ROWS, len(y)))
                found = ranking(self._judge(rows), y.iloc[rows])
                worst[rows] = found.worst
                for name in self._counts:
                    self._counts[name] += int((found.kind == name).sum())
                self._n_cells += int(found.cells_off[found.kind == "cell"].sum())
                self._n_certain += int(found.certain.sum())
            self._order = np.lexsort([-np.nan_to_num(score), -worst])

    def _judge(self, rows: Indices) -> Any:
        """Return what findings read of the model, of some rows."""
        of_rows = {name: getattr(self._model, name)[rows] for name in _OF_ROWS}
        return SimpleNamespace(**of_rows, **{n: getattr(self._model, n) for n in _OF_MODEL})

    def frames(self) -> Iterator[pandas.DataFrame]:
        """Yield the table of findings, the most suspicious rows first, some at a time."""
        for start in range(0, len(self._y), _FOUND_ROWS):
            yield self._frame(self._order[start : start + _FOUND_ROWS])

    def _frame(self, rows: Indices) -> pandas.DataFrame:
        import numpy as np
        import pandas

        from gorelm.findings import Names, findings

        y = self._y.iloc[rows]
        # A column that only counts the rows stands for inputs that are not in memory.
        counter = pandas.DataFrame({"": np.arange(len(rows))}, index=y.index)
        found = findings(self._judge(rows), counter, y).drop(columns="")
        number = Names(y.columns).row
        return found.assign(**{number: rows[found[number]]})

    def lines(self, most: int = _MOST_ROWS) -> list[str]:
        """Return what to say about the rows."""
        from gorelm.cli.summary import columns, headline, short, wrapped
        from gorelm.findings import Names

        names = Names(self._y.columns)
        counts = {kind: count for kind, count in self._counts.items() if kind}
        lines = wrapped(headline(self._model, counts, self._n_cells, self._n_certain, len(self._y)))
        rows = [["row", "score", "quality", "finding", "off"]]
        for row in self._frame(self._order[:most]).to_dict("records"):
            figures = f"{row[names.score]:#.3g}", f"{row[names.quality]:.2f}"
            rows.append(
                [f"{row[names.row]:,}", *figures, row[names.kind] or "-", short(row[names.off], 40)]
            )
        return [*lines, *columns(rows, "rrrll")]
