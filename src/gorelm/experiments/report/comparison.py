"""Statistical tests between the methods of a report, as sentences with their numbers."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gorelm.diagnostics.report.tables import Cell, Table
from gorelm.experiments.report.runs import Column, Runs, percent
from gorelm.experiments.report.tables import error_matrix
from gorelm.experiments.statistics import (
    cliques,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    nemenyi_distance,
    wilcoxon,
)

ALPHA = 0.05
_BATCH = ("R-ELM", "OR-ELM", "GR-ELM", "GOR-ELM")


@dataclass(frozen=True)
class Comparison:
    """Results of the tests at one share of outliers."""

    sentences: list[str]  # in words, with the numbers
    pairs: Table | None = None  # every pair of methods with its p-values
    labels: tuple[str, ...] = ()  # methods compared
    ranks: NDArray[np.float64] | None = None  # their mean ranks
    distance: float | None = None  # Nemenyi's critical distance


def compare(runs: Runs, ratio: float) -> Comparison:
    """Compare all columns on the data sets on which each has a test error."""
    columns, datasets = runs.compared(ratio)
    sentences = _left_out(runs, ratio, columns, datasets)
    if len(columns) < 2 or len(datasets) < 2:
        sentences.append(
            f"A comparison needs two methods and two data sets with figures; there are "
            f"{len(columns)} and {len(datasets)}."
        )
        return Comparison(sentences)

    errors = error_matrix(runs, ratio, datasets, columns)
    labels = tuple(c.label for c in columns)
    ranks = mean_ranks(errors)
    k, n = len(columns), len(datasets)
    order = np.argsort(ranks, kind="stable")
    sentences.append("Mean ranks: " + ", ".join(f"{labels[j]} {ranks[j]:.2f}" for j in order) + ".")
    distance = None
    if k > 2:
        statistic, p = friedman(errors)
        verdict = "the methods differ" if p < ALPHA else "no difference shown"
        sentences.append(
            f"Friedman test of {k} methods on {n} data sets: chi-squared = {statistic:.2f}, "
            f"{p_text(p)}: {verdict} at {percent(ALPHA)}."
        )
        distance = nemenyi_distance(k, n, ALPHA)
        sentences.append(_nemenyi_sentence(labels, ranks, distance, n))
    pairs, sentence = _pairs(errors, labels, ranks, ratio)
    sentences.append(sentence)
    sentences += _as_in_the_paper(runs, ratio)
    return Comparison(sentences, pairs, labels, ranks, distance)


def p_text(p: float) -> str:
    """Write a p-value: two digits, no powers of ten.

    Examples
    --------
    >>> from gorelm.experiments.report.comparison import p_text
    >>> p_text(0.00000922), p_text(0.95), p_text(1e-9), p_text(0.9953)
    ('p = 0.0000092', 'p = 0.95', 'p < 0.000001', 'p > 0.99')
    """
    if p > 0.99:
        return "p > 0.99"
    if p < 1e-6:
        return "p < 0.000001"
    return f"p = {np.format_float_positional(p, precision=2, fractional=False, trim='-')}"


def _left_out(runs: Runs, ratio: float, columns: list[Column], datasets: list[str]) -> list[str]:
    sentences = []
    absent = [c.label for c in runs.columns if c not in columns]
    if absent:
        sentences.append(f"Left out, without any test error here: {', '.join(absent)}.")
    gaps = [d for d in runs.datasets if d not in datasets]
    if gaps and columns:
        sentences.append(f"Left out, as some method has no test error there: {', '.join(gaps)}.")
    return sentences


def _nemenyi_sentence(
    labels: tuple[str, ...], ranks: NDArray[np.float64], distance: float, n: int
) -> str:
    groups = cliques(ranks, distance)
    if not groups:
        found = "all methods differ significantly"
    elif len(groups[0]) == len(labels):
        found = "no two methods differ significantly"
    elif len(groups) <= 3:
        names = "; ".join(", ".join(labels[j] for j in group) for group in groups)
        found = f"no significant difference among {names}"
    else:
        # more groups are for the diagram to show
        best = int(np.argmin(ranks))
        near = [labels[j] for j in groups[0] if j != best] if best in groups[0] else []
        others = ", ".join(near) or "none"
        found = f"not significantly different from the best, {labels[best]}: {others}"
    return (
        f"Nemenyi test: mean ranks over {n} data sets differ at {percent(ALPHA)} when they are "
        f"at least {distance:.2f} apart; {found}."
    )


def _pairs(
    errors: NDArray[np.float64], labels: tuple[str, ...], ranks: NDArray[np.float64], ratio: float
) -> tuple[Table, str]:
    index = list(combinations(range(len(labels)), 2))
    p = [wilcoxon(errors[:, i], errors[:, j]).p_value for i, j in index]
    adjusted = holm(p)
    between = nemenyi(errors) if len(labels) > 2 else None
    rows = []
    found: dict[str, list[str]] = {}
    for (i, j), raw, corrected in zip(index, p, adjusted, strict=True):
        if corrected < ALPHA:
            less = wilcoxon(errors[:, i], errors[:, j], "less").p_value
            better, worse = (i, j) if less < 0.5 else (j, i)
            found.setdefault(labels[better], []).append(f"{labels[worse]} ({p_text(corrected)})")
        row = [
            Cell(f"{labels[i]} / {labels[j]}"),
            Cell(int((errors[:, i] < errors[:, j]).sum())),
            Cell(int((errors[:, i] > errors[:, j]).sum())),
            Cell(float(np.median(errors[:, i] - errors[:, j]))),
            Cell(float(ranks[i] - ranks[j]), spec=".2f"),
            Cell(None if between is None else float(between[i, j]), spec="p"),
            Cell(float(raw), spec="p"),
            Cell(float(corrected), spec="p"),
        ]
        rows.append(row)
    header = [
        "first / second",
        "first better",
        "second better",
        "median difference",
        "difference of ranks",
        "p Nemenyi",
        "p Wilcoxon",
        "p Wilcoxon, Holm",
    ]
    name = f"pairs-{100 * ratio:.6g}".replace(".", "_")
    caption = f"Pairs of methods on test rows, {percent(ratio)} outliers: first less second."
    sentence = (
        f"Wilcoxon signed-rank test, two-sided, Holm's correction for {len(index)} "
        f"pair{'s' * (len(index) > 1)}, at {percent(ALPHA)}: "
        + (
            "; ".join(f"{better} better than {', '.join(found[better])}" for better in found)
            or "no difference shown"
        )
        + "."
    )
    return Table(name, caption, header, rows), sentence


def _as_in_the_paper(runs: Runs, ratio: float) -> list[str]:
    """Do the paper's two tests on the runs of each configuration, and on the paper's figures."""
    sentences = []
    for config in sorted({c.config for c in runs.columns}):
        columns = {c.method: c for c in runs.columns if c.config == config}
        suffix = f" ({config})" if len({c.config for c in runs.columns}) > 1 else ""
        for methods in (_BATCH, ("IGOR-ELM", "IR-ELM")):
            if any(m not in columns for m in methods):
                continue
            found = {
                d: [r["mean"] for m in methods if (r := runs.published(d, ratio, m, "test"))]
                for d in runs.complete(ratio, [columns[m] for m in methods])
            }
            datasets = [d for d, figures in found.items() if len(figures) == len(methods)]
            if len(datasets) < 2:
                continue
            ours = error_matrix(runs, ratio, datasets, [columns[m] for m in methods])
            theirs = np.array([found[d] for d in datasets])
            p = [
                friedman(m).p_value
                if len(methods) > 2
                else wilcoxon(m[:, 0], m[:, 1], "less").p_value
                for m in (ours, theirs)
            ]
            what = (
                f"Friedman test of {', '.join(methods)}"
                if len(methods) > 2
                else "One-sided Wilcoxon test of IGOR-ELM below IR-ELM"
            )
            sentences.append(
                f"The paper's test{suffix}. {what}, {len(datasets)} data sets: {p_text(p[0])}; "
                f"on the published figures of these data sets {p_text(p[1])}."
            )
    return sentences
