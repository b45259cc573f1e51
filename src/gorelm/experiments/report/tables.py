"""The tables of a report."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from gorelm.diagnostics.report.tables import Cell, Table
from gorelm.experiments.protocol import RunRecord, Value
from gorelm.experiments.report.runs import Column, Runs, finite, percent
from gorelm.experiments.statistics import mean_ranks


def accuracy_table(runs: Runs, ratio: float, subset: str) -> Table:
    """Mean aRRMSE on "train" or "test" rows, with the paper's; mean ranks of the test error."""
    rows = []
    for dataset in runs.datasets:
        cells = [_accuracy_cell(runs, dataset, ratio, c, subset) for c in runs.columns]
        rows.append([Cell(dataset), *_mark_best(cells)])
    footer: list[Sequence[Cell]] = []
    columns, datasets = runs.compared(ratio)
    if subset == "test" and datasets and len(columns) > 1:
        ranks = mean_ranks(error_matrix(runs, ratio, datasets, columns))
        found = dict(zip(columns, ranks.tolist(), strict=True))
        cells = _mark_best([Cell(found.get(c), spec=".2f") for c in runs.columns])
        footer.append([Cell(f"mean rank (of {len(datasets)} data sets)"), *cells])
    return Table(
        f"arrmse-{subset}-{_slug(ratio)}",
        f"aRRMSE on {'test' if subset == 'test' else 'training'} rows, {percent(ratio)} outliers: "
        "mean ± standard deviation over repeats; best in bold, as printed.",
        ["data set", *(c.label for c in runs.columns)],
        rows,
        footer,
    )


def error_matrix(
    runs: Runs, ratio: float, datasets: Sequence[str], columns: Sequence[Column]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Mean test errors, data sets by columns; every one must be there."""
    return np.array(
        [[np.mean(runs.values(d, ratio, c, "arrmse_test")) for c in columns] for d in datasets]
    )


def figure_table(runs: Runs, key: str, name: str, caption: str, *, spec: str = "3") -> Table | None:
    """Mean of any figure for every data set and share of outliers; None if no run has it."""
    return _cell_table(
        runs,
        name,
        caption,
        lambda dataset, ratio, column: _mean_cell(
            runs.values(dataset, ratio, column, key), spec=spec
        ),
    )


def nodes_table(runs: Runs) -> Table | None:
    """Mean number of hidden nodes kept, with the paper's."""

    def cell(dataset: str, ratio: float, column: Column) -> Cell:
        return _mean_cell(
            runs.values(dataset, ratio, column, "nodes"),
            spec=".1f",
            published=runs.published_nodes(dataset, ratio, column.method),
        )

    return _cell_table(runs, "nodes", "Hidden nodes kept: mean ± standard deviation.", cell)


def choice_table(runs: Runs) -> Table | None:
    """Parameters of the finished runs, the most frequent first, and the paper's choice."""
    rows = []
    for dataset in runs.datasets:
        for ratio in runs.ratios:
            for column in runs.columns:
                done = [r for r in runs.of(dataset, ratio, column) if r["status"] == "done"]
                counts = Counter(_params(r) for r in done)
                counts.pop("", None)
                if not counts:
                    continue
                texts = [
                    text if len(counts) == 1 else f"{text} (×{count})"  # noqa: RUF001
                    for text, count in counts.most_common()
                ]
                published = runs.published_choice(dataset, column.method)
                rows.append(
                    [
                        Cell(dataset),
                        Cell(ratio, spec="g"),
                        Cell(column.label),
                        Cell("; ".join(texts)),
                        Cell(published or None),
                    ]
                )
    if not rows:
        return None
    header = ["data set", "outliers", "method", "chosen", "paper"]
    caption = "Parameters of the finished runs; in brackets how many repeats chose them."
    return Table("parameters", caption, header, rows)


def summary_table(runs: Runs) -> Table:
    """One row for every share of outliers and method: what ran, converged and was found."""
    rows = []
    for ratio in runs.ratios:
        for column in runs.columns:
            found = [r for d in runs.datasets for r in runs.of(d, ratio, column)]
            done = [r for r in found if r["status"] == "done"]
            gaps = finite(r.get("dual_gap") for r in done)
            rows.append(
                [
                    Cell(ratio, spec="g"),
                    Cell(column.label),
                    Cell(len(done)),
                    Cell(len(found) - len(done)),
                    _share(done, "converged"),
                    _summary(done, "n_iter", np.median),
                    Cell(max(gaps) if gaps else None, spec="3"),
                    _summary(done, "outlier_recall", np.mean),
                    _summary(done, "outlier_precision", np.mean),
                ]
            )
    header = [
        "outliers",
        "method",
        "done",
        "failed",
        "converged",
        "median iterations",
        "largest gap",
        "outlier recall",
        "outlier precision",
    ]
    caption = "What ran, over all data sets: shares, medians and means of the finished runs."
    return Table("summary", caption, header, rows)


def failure_table(runs: Runs) -> Table | None:
    """Every run without a test error and its reason; None if there is none."""
    several = len({column.config for column in runs.columns}) > 1
    rows = [
        [
            Cell(str(r["dataset"])),
            Cell(float(r["ratio"] or 0.0), spec="g"),
            Cell(f"{r['method']} ({r['config']})" if several and r.get("config") else r["method"]),
            Cell(_integer(r.get("repeat"))),
            Cell(_integer(r.get("seed"))),
            Cell(reason),
        ]
        for r, reason in runs.failures()
    ]
    header = ["data set", "outliers", "method", "repeat", "seed", "reason"]
    caption = "Runs without a test error."
    return Table("failures", caption, header, rows) if rows else None


def dataset_table(runs: Runs) -> Table:
    """Sizes of the data sets."""
    rows = []
    for dataset in runs.datasets:
        of = [r for r in runs.records if str(r["dataset"]) == dataset]
        sizes = [_distinct(r.get(key) for r in of) for key in ("n_rows", "n_features", "n_targets")]
        rows.append([Cell(dataset), *(Cell(size) for size in sizes)])
    header = ["data set", "rows", "features", "targets"]
    return Table("datasets", "Data sets.", header, rows)


def version_table(runs: Runs) -> Table | None:
    """Versions of the software, as the runs recorded them."""
    counts: Counter[tuple[str, str]] = Counter()
    for record in runs.records:
        counts.update((k, str(v)) for k, v in _load(record.get("versions")).items())
    rows = [[Cell(name), Cell(version), Cell(n)] for (name, version), n in sorted(counts.items())]
    caption = "Versions of the software."
    return Table("versions", caption, ["package", "version", "runs"], rows) if rows else None


def _accuracy_cell(runs: Runs, dataset: str, ratio: float, column: Column, subset: str) -> Cell:
    values = runs.values(dataset, ratio, column, f"arrmse_{subset}")
    total = len(runs.of(dataset, ratio, column))
    published = runs.published(dataset, ratio, column.method, subset)
    return _mean_cell(
        values,
        spec=".3f",
        published=None if published is None else published["mean"],
        published_is_bound=published is not None and published["mean_is_bound"],
        note=f"{len(values)} of {total} runs" if len(values) < total else "",
    )


def _mean_cell(
    values: Sequence[float],
    *,
    spec: str,
    published: float | None = None,
    published_is_bound: bool = False,
    note: str = "",
) -> Cell:
    return Cell(
        float(np.mean(values)) if values else None,
        float(np.std(values, ddof=1)) if len(values) > 1 else None,
        published,
        published_is_bound,
        note=note,
        spec=spec,
    )


def _mark_best(cells: Sequence[Cell]) -> list[Cell]:
    """Set the smallest in bold, with all that print the same; a lone figure is not a winner."""
    present = [c for c in cells if c.is_number]
    if len(present) < 2:
        return list(cells)
    best = min(present, key=lambda c: float(c.value or 0.0)).text
    return [replace(c, best=c.is_number and c.text == best) for c in cells]


def _cell_table(
    runs: Runs, name: str, caption: str, cell: Callable[[str, float, Column], Cell]
) -> Table | None:
    rows = []
    for dataset in runs.datasets:
        for ratio in runs.ratios:
            cells = [cell(dataset, ratio, column) for column in runs.columns]
            if any(c.value is not None for c in cells):
                rows.append([Cell(dataset), Cell(ratio, spec="g"), *cells])
    header = ["data set", "outliers", *(c.label for c in runs.columns)]
    return Table(name, caption, header, rows) if rows else None


def _share(records: Sequence[RunRecord], key: str) -> Cell:
    values = finite(r.get(key) for r in records)
    if not values:
        return Cell(None)
    return Cell(float(np.mean(values)), spec=".0%")


def _summary(
    records: Sequence[RunRecord], key: str, of: Callable[[list[float]], np.floating]
) -> Cell:
    values = finite(r.get(key) for r in records)
    return Cell(float(of(values)) if values else None, spec="3")


def _params(record: RunRecord) -> str:
    text = record.get("params")
    loaded = _load(text)
    if not loaded:
        return str(text or "").strip().removeprefix("{}")
    return ", ".join(f"{name} = {_short(value)}" for name, value in sorted(loaded.items()))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _load(text: object) -> dict[str, object]:
    try:
        loaded = json.loads(str(text))
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _distinct(values: Iterable[Value]) -> str | int | None:
    found = sorted({int(v) for v in finite(values)})
    if len(found) <= 1:
        return found[0] if found else None
    return ", ".join(str(v) for v in found)


def _integer(value: Value) -> int | None:
    found = finite([value])
    return int(found[0]) if found else None


def _slug(ratio: float) -> str:
    """Write 0.2 as ``20``, 0.125 as ``12_5``: a name of a file."""
    return f"{100 * ratio:.6g}".replace(".", "_")
