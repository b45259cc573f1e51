"""The figures of the paper that introduced GOR-ELM, as records.

Source: B. L. S. da Silva, F. K. Inaba, E. O. T. Salles, P. M. Ciarelli, "Outlier Robust Extreme
Learning Machine for Multi-Target Regression", Expert Systems With Applications.
"""

import csv
from importlib import resources
from typing import TypedDict

__all__ = [
    "PUBLISHED_METHODS",
    "PublishedParameter",
    "PublishedResult",
    "published_parameters",
    "published_results",
]

PUBLISHED_METHODS = ("R-ELM", "OR-ELM", "GR-ELM", "GOR-ELM", "IR-ELM", "IGOR-ELM")


class PublishedResult(TypedDict):
    """One figure of a result table."""

    dataset: str
    method: str
    ratio: float | None
    subset: str
    metric: str
    mean: float
    std: float
    mean_is_bound: bool
    std_is_bound: bool
    best: bool


class PublishedParameter(TypedDict):
    """One figure of a parameter table."""

    dataset: str
    method: str
    name: str
    ratio: float | None
    value: float
    printed: str


def published_results() -> list[PublishedResult]:
    """Return every figure of the paper's result tables.

    Returns
    -------
    list of dict
        With the keys

        - ``dataset``, ``method``, ``subset`` (``"train"`` or ``"test"``), ``metric``
          (``"aRRMSE"`` or ``"seconds"``);
        - ``ratio``: share of outliers in the training data, None for seconds;
        - ``mean``, ``std``: as printed, to three decimals;
        - ``mean_is_bound``, ``std_is_bound``: True where the paper prints "below 0.001". The
          figure is then that bound;
        - ``best``: whether the paper prints the figure as best.

    Examples
    --------
    >>> from gorelm.experiments.published import published_results
    >>> [r["mean"] for r in published_results() if r["dataset"] == "wq" and r["ratio"] == 0.4
    ...  and r["subset"] == "test" and r["method"] == "GOR-ELM"]
    [2.315]
    """
    return [
        PublishedResult(
            dataset=row["dataset"],
            method=row["method"],
            ratio=float(row["outlier_ratio"]) if row["outlier_ratio"] else None,
            subset=row["subset"],
            metric=row["metric"],
            mean=float(row["mean"].removeprefix("<")),
            std=float(row["std"].removeprefix("<")),
            mean_is_bound=row["mean"].startswith("<"),
            std_is_bound=row["std"].startswith("<"),
            best=row["best_in_paper"] == "1",
        )
        for row in _read("results.csv")
    ]


def published_parameters() -> list[PublishedParameter]:
    """Return the penalties the paper chose and the numbers of nodes its methods kept.

    Returns
    -------
    list of dict
        With the keys

        - ``dataset``, ``method``;
        - ``name``: ``"C"``, ``"lambda"``, ``"alpha"`` or ``"mean_nodes"``;
        - ``ratio``: share of outliers for ``"mean_nodes"``, None for the penalties, which were
          chosen once per data set;
        - ``value``: a number; ``printed``: the same as the paper prints it, such as ``"2^20"``.

    Examples
    --------
    >>> from gorelm.experiments.published import published_parameters
    >>> first = published_parameters()[0]
    >>> first["dataset"], first["method"], first["name"], first["value"], first["printed"]
    ('andro', 'R-ELM', 'C', 1048576.0, '2^20')
    """
    records = []
    for row in _read("parameters.csv"):
        name, _, ratio = row["name"].partition("@")
        base, _, power = row["value"].partition("^")
        records.append(
            PublishedParameter(
                dataset=row["dataset"],
                method=row["method"],
                name=name,
                ratio=float(ratio) if ratio else None,
                value=float(base) ** float(power) if power else float(base),
                printed=row["value"],
            )
        )
    return records


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
