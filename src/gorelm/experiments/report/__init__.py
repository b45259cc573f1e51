"""Reports of experiments: one page that works offline, and its tables as files."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from gorelm._files import write_whole
from gorelm.diagnostics.report.html import render
from gorelm.diagnostics.report.tables import Table, write_table
from gorelm.experiments.protocol import RunRecord
from gorelm.experiments.report.comparison import Comparison, compare
from gorelm.experiments.report.figures import boxplots, critical_difference
from gorelm.experiments.report.runs import Runs, percent
from gorelm.experiments.report.tables import (
    accuracy_table,
    choice_table,
    dataset_table,
    failure_table,
    figure_table,
    nodes_table,
    summary_table,
    version_table,
)

__all__ = ["write_report"]


def write_report(records: Sequence[RunRecord], folder: str | PathLike[str], *, title: str) -> Path:
    """Write ``report.html`` and its tables.

    Parameters
    ----------
    records : sequence of dict
        One for each run. Needed are ``dataset``, ``ratio`` (share of outliers), ``method`` and
        ``status`` (``"done"`` or ``"failed"``). Any other may be missing or None: ``reason``,
        ``repeat``, ``seed``, ``config`` (name of the configuration), ``arrmse_train``,
        ``arrmse_test``, ``seconds_select``, ``seconds_fit``, ``seconds_predict``, ``n_iter``,
        ``converged`` (0 or 1), ``dual_gap``, ``nodes``, ``n_rows``, ``n_features``, ``n_targets``,
        ``outlier_recall``, ``outlier_precision``, ``params`` and ``versions`` (JSON text) and
        ``started`` (ISO time).
    folder : path-like
        Made if it is not there. Files of the same names are overwritten.
    title : str
        Of the page.

    Returns
    -------
    Path
        Of the page. Beside it lies ``tables/`` with every table as CSV (all digits), Markdown
        and LaTeX.

    Raises
    ------
    ImportError
        If jinja2, matplotlib or scikit-posthocs, of the extra ``experiments``, is not installed.

    Notes
    -----
    Errors that are not finite count as missing, and such runs as failed. Methods are ranked and
    tested by their mean test errors, on the data sets on which each of them has one; a method
    without any is left out instead.

    Examples
    --------
    >>> import tempfile
    >>> from gorelm.experiments.report import write_report
    >>> run = {"dataset": "enb", "ratio": 0.2, "method": "GOR-ELM", "status": "done",
    ...        "arrmse_test": 0.31}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([run], folder, title="One run").name
    'report.html'
    """
    runs = Runs(list(records))
    sections = [_section(runs, ratio) for ratio in runs.ratios]
    steps = {"fit": "fit", "select": "choose the parameters", "predict": "predict"}
    more = [
        figure_table(
            runs, f"seconds_{key}", f"seconds-{key}", f"Seconds to {what}: mean ± deviation."
        )
        for key, what in steps.items()
    ]
    times = [table for table in more if table is not None]
    nodes, choice, failures = nodes_table(runs), choice_table(runs), failure_table(runs)
    summary, datasets, versions = summary_table(runs), dataset_table(runs), version_table(runs)
    page = render(
        "experiments/report/report.html",
        extra="experiments",
        title=title,
        runs=runs,
        configs=len({column.config for column in runs.columns}),
        started=sorted(str(r["started"]) for r in runs.records if r.get("started")),
        sections=sections,
        times=times,
        nodes=nodes,
        choice=choice,
        failures=failures,
        summary=summary,
        datasets=datasets,
        versions=versions,
    )
    folder = Path(folder)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    tables: list[Table | None] = [nodes, choice, failures, summary, datasets, versions, *times]
    for section in sections:
        tables += [section.test, section.train, section.comparison.pairs]
    for table in tables:
        if table is not None:
            write_table(table, folder / "tables")
    path = folder / "report.html"
    write_whole(path, page.encode())
    return path


class _Section(NamedTuple):
    """The part of the page about one share of outliers."""

    name: str
    percent: str
    test: Table
    train: Table
    comparison: Comparison
    diagram: str | None
    boxes: str | None


def _section(runs: Runs, ratio: float) -> _Section:
    name = f"r{100 * ratio:.6g}".replace(".", "_")
    comparison = compare(runs, ratio)
    diagram = None
    if comparison.ranks is not None and comparison.distance is not None:
        diagram = critical_difference(
            comparison.labels,
            comparison.ranks,
            comparison.distance,
            prefix=f"{name}-cd",
            title=f"Mean ranks and critical distance, {percent(ratio)} outliers",
        )
    return _Section(
        name=name,
        percent=percent(ratio),
        test=accuracy_table(runs, ratio, "test"),
        train=accuracy_table(runs, ratio, "train"),
        comparison=comparison,
        diagram=diagram,
        boxes=boxplots(runs, ratio, prefix=f"{name}-box"),
    )
