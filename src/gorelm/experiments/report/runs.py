"""Records of runs, grouped by data set, share of outliers and method."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gorelm.experiments.protocol import RunRecord, Value
from gorelm.experiments.published import (
    PUBLISHED_METHODS,
    PublishedResult,
    published_parameters,
    published_results,
)


@dataclass(frozen=True)
class Column:
    """A method, in one configuration: what a column of a table stands for."""

    method: str
    config: str
    label: str


@dataclass
class Runs:
    """All runs of a report; for `records` see :func:`gorelm.experiments.report.write_report`."""

    records: Sequence[RunRecord]
    datasets: list[str] = field(init=False)  # sorted
    ratios: list[float] = field(init=False)  # shares of outliers, ascending
    columns: list[Column] = field(init=False)  # the paper's methods in its order, others by name

    def __post_init__(self) -> None:
        self.datasets = sorted({str(r["dataset"]) for r in self.records})
        self.ratios = sorted({_ratio(r) for r in self.records})
        pairs = {(str(r["method"]), str(r.get("config") or "")) for r in self.records}
        several = len({config for _, config in pairs}) > 1
        self.columns = [
            Column(method, config, f"{method} ({config})" if several and config else method)
            for method, config in sorted(pairs, key=_paper_order)
        ]
        self._groups: dict[tuple[str, float, str, str], list[RunRecord]] = {}
        for record in self.records:
            key = (
                str(record["dataset"]),
                _ratio(record),
                str(record["method"]),
                str(record.get("config") or ""),
            )
            self._groups.setdefault(key, []).append(record)
        self._results: dict[tuple[str, float | None, str, str], PublishedResult] = {
            (p["dataset"], p["ratio"], p["method"], p["subset"]): p for p in published_results()
        }
        self._parameters = published_parameters()

    def of(self, dataset: str, ratio: float, column: Column) -> list[RunRecord]:
        """Every run of a cell, failed ones included."""
        return self._groups.get((dataset, ratio, column.method, column.config), [])

    def values(self, dataset: str, ratio: float, column: Column, key: str) -> list[float]:
        """Finite figures of the finished runs of a cell."""
        return finite(r.get(key) for r in self.of(dataset, ratio, column) if r["status"] == "done")

    def complete(self, ratio: float, columns: Sequence[Column]) -> list[str]:
        """Name the data sets on which each of the columns has a test error."""
        return [
            d
            for d in self.datasets
            if all(self.values(d, ratio, column, "arrmse_test") for column in columns)
        ]

    def compared(self, ratio: float) -> tuple[list[Column], list[str]]:
        """Columns with any test error, and the data sets on which each of them has one.

        A method that never finished would otherwise take every data set out.
        """
        columns = [
            column
            for column in self.columns
            if any(self.values(d, ratio, column, "arrmse_test") for d in self.datasets)
        ]
        return columns, self.complete(ratio, columns) if columns else []

    def failures(self) -> list[tuple[RunRecord, str]]:
        """List the runs without a test error, each with its reason."""
        found = []
        for record in self.records:
            if record["status"] != "done":
                found.append((record, str(record.get("reason") or "no reason given")))
            elif not finite([record.get("arrmse_test")]):
                found.append((record, "finished without a finite test aRRMSE"))
        return found

    def published(
        self, dataset: str, ratio: float, method: str, subset: str
    ) -> PublishedResult | None:
        """Look up the paper's aRRMSE for this cell, if it has one."""
        return self._results.get((dataset, ratio, method, subset))

    def published_nodes(self, dataset: str, ratio: float, method: str) -> float | None:
        """Look up the paper's mean number of nodes kept, if it has one."""
        for p in self._parameters:
            if (
                (p["dataset"], p["method"]) == (dataset, method)
                and p["name"] == "mean_nodes"
                and p["ratio"] == ratio
            ):
                return p["value"]
        return None

    def published_choice(self, dataset: str, method: str) -> str:
        """Look up the penalties the paper chose, as it prints them."""
        return ", ".join(
            f"{p['name']} = {p['printed']}"
            for p in self._parameters
            if (p["dataset"], p["method"]) == (dataset, method) and p["ratio"] is None
        )


def finite(values: Iterable[Value]) -> list[float]:
    """Leave out what is missing or not finite."""
    return [float(v) for v in values if v is not None and math.isfinite(float(v))]


def percent(ratio: float) -> str:
    """Write a share: 0.2 as ``20 %``."""
    return f"{100 * ratio:.6g} %"


def _ratio(record: RunRecord) -> float:
    # 0.1 + 0.2 is the share 0.3
    return round(float(record["ratio"] or 0.0), 6)


def _paper_order(pair: tuple[str, str]) -> tuple[int, str, str]:
    method, config = pair
    known = method in PUBLISHED_METHODS
    return (PUBLISHED_METHODS.index(method) if known else len(PUBLISHED_METHODS), method, config)
