"""Our figures beside the paper's: how far they agree.

    gorelm experiment run paper --repeats 20 --out results
    python benchmarks/agreement.py results [--robust robust-results]
    python benchmarks/agreement.py docs/results/records.csv --robust docs/results/records.csv

Splits and random layers differ from the paper's, so agreement is looked for in the order of robust
against other methods, and in the median over data sets of |ours - theirs| / theirs.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from gorelm.experiments.published import PUBLISHED_METHODS, published_results
from gorelm.experiments.store import Store

ROBUST, OTHERS = ("OR-ELM", "GOR-ELM"), ("R-ELM", "GR-ELM")
Table = dict[tuple[str, float, str], float]


def records(source: Path) -> list[dict[str, Any]]:
    """Return the runs of a results folder, or of the CSV file of a report."""
    if source.is_dir():
        with Store(source) as store:
            return list(store.records())
    with source.open(newline="") as file:
        return list(csv.DictReader(file))


def errors(source: Path) -> dict[tuple[str, float, str], dict[int, float]]:
    """Return the test aRRMSE of every finished run, by its repeat."""
    cells: dict[tuple[str, float, str], dict[int, float]] = defaultdict(dict)
    for record in records(source):
        if record["status"] == "done":
            key = (record["dataset"], float(record["ratio"]), record["method"])
            cells[key][int(record["repeat"])] = float(record["arrmse_test"])
    return cells


def ours(folder: Path) -> Table:
    return {key: mean(values.values()) for key, values in errors(folder).items()}


def theirs() -> Table:
    return {
        (r["dataset"], r["ratio"], r["method"]): r["mean"]
        for r in published_results()
        if r["metric"] == "aRRMSE" and r["subset"] == "test" and r["ratio"] is not None
    }


def order(table: Table, dataset: str, ratio: float, robust: tuple, others: tuple) -> bool | None:
    """Whether the best robust method is ahead of the best other one."""
    cells = [[table.get((dataset, ratio, m)) for m in group] for group in (robust, others)]
    if any(value is None for group in cells for value in group):
        return None
    return min(cells[0]) < min(cells[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="results, or the records.csv of a report")
    parser.add_argument("--robust", type=Path, help="records of the configuration `robust`")
    args = parser.parse_args()
    mine, paper = ours(args.folder), theirs()
    sets = sorted({key[0] for key in mine})
    print(f"{len(sets)} data sets: {', '.join(sets)}\n")
    print("median over sets of |ours - theirs| / theirs (test aRRMSE)\n")
    print("| method | 0 % | 20 % | 40 % | all |\n|---|---|---|---|---|")
    for method in PUBLISHED_METHODS:
        off = {
            key: abs(value - paper[key]) / paper[key]
            for key, value in mine.items()
            if key[2] == method and key in paper
        }
        if not off:
            continue
        columns = [[v for k, v in off.items() if k[1] == ratio] for ratio in (0.0, 0.2, 0.4)]
        figures = [f"{median(c):.2f}" if c else "" for c in [*columns, list(off.values())]]
        print(f"| {method} | {' | '.join(figures)} |")
    for robust, others in ((ROBUST, OTHERS), (("IGOR-ELM",), ("IR-ELM",))):
        print(f"\nbest of {', '.join(robust)} against best of {', '.join(others)}: same order")
        for ratio in (0.2, 0.4):
            pairs = {s: [order(t, s, ratio, robust, others) for t in (mine, paper)] for s in sets}
            known = {s: p for s, p in pairs.items() if None not in p}
            other = [s for s, (a, b) in known.items() if a != b]
            note = f" (not {', '.join(other)})" if other else ""
            print(f"  {ratio:.0%}: {len(known) - len(other)} of {len(known)} sets{note}")
    if args.robust:
        better, published = errors(args.robust), errors(args.folder)
        print(
            "\nRobustELM, chosen on contaminated rows, below GOR-ELM as published (common splits):"
        )
        for ratio in (0.2, 0.4):
            won, known = [], []
            for name in sets:
                one, two = better[name, ratio, "RobustELM"], published[name, ratio, "GOR-ELM"]
                common = sorted(one.keys() & two.keys())
                if common:
                    known.append(name)
                    if mean(one[k] for k in common) < mean(two[k] for k in common):
                        won.append(name)
            other = [name for name in known if name not in won]
            note = f" (not {', '.join(other)})" if other else ""
            print(f"  {ratio:.0%}: {len(won)} of {len(known)} sets{note}")


if __name__ == "__main__":
    main()
