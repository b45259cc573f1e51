"""What a fit found, in lines of text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from gorelm.cli.app import printable
from gorelm.cli.findings import Names, expected_by
from gorelm.cli.reading import Table, about_ids, numbers_of
from gorelm.estimators._base import BaseELM
from gorelm.estimators._encoding import shortened
from gorelm.estimators._robust.layers import spread_of
from gorelm.estimators.robust import RobustELMRegressor
from gorelm.estimators.table import TableRegressor

if TYPE_CHECKING:
    import pandas

_WIDTH = 79
_LONGEST_NAME = 24
_MOST_TARGETS = 20
_MOST_ROWS = 10


def of_fit(model: TableRegressor, table: Table, found: pandas.DataFrame) -> list[str]:
    """Return everything there is to say about a fit."""
    parts = (
        of_table(model, table),
        of_errors(model, table),
        of_networks(model.regressor_),
        of_rows(model, table, found),
    )
    return [line for part in parts for line in (*part, "")]


def of_table(model: TableRegressor, table: Table) -> list[str]:
    """Say what was read, and what was made of it."""
    n_rows, n_inputs = table.X.shape
    names = ", ".join(short(name) for name in table.target_names[:6])
    more = f" and {len(table.target_names) - 6} more" if len(table.target_names) > 6 else ""
    n_columns = len(table.columns)
    left_out = n_columns - n_inputs - len(table.target_names)
    lines = wrapped(
        f"{table.path.name}: {n_rows} rows, {n_columns} columns; "
        f"{_count(n_inputs, 'input')}, {_count(len(table.target_names), 'target')} "
        f"({names}{more}){f', {left_out} not used' if left_out else ''}."
    )
    ids = [about_ids(table.path)] if table.ids is not None else []
    for note in (*ids, *model.notes_):
        lines += wrapped(note, "  ")
    return lines


def of_errors(model: TableRegressor, table: Table) -> list[str]:
    """Say how far predictions of rows that a model did not see are off, target by target."""
    y, expected = numbers_of(table.y, table.path), expected_by(model)
    kept = np.logical_not(model.outlier_mask_)
    n_flagged = int(model.outlier_mask_.sum())
    lines = wrapped(
        "Error on rows that the models did not see (root mean square"
        + (f"; {_count(n_flagged, 'flagged row')} left out" if n_flagged else "")
        + "), and that of predicting the mean:"
    )
    rows, ratios = [], []
    for j, name in enumerate(table.target_names):
        known = kept & ~np.isnan(y[:, j])
        values, guesses = y[known, j], expected[known, j]
        # divided before squaring, so that 1e200 does not overflow
        unit = np.abs([values, guesses]).max(initial=0.0) or 1.0
        error = unit * np.sqrt(np.mean((values / unit - guesses / unit) ** 2)) if len(values) else 0
        of_mean = unit * np.std(values / unit) if len(values) else 0
        ratios.append(error / of_mean if of_mean > 0 else np.nan)
        ratio = f"{ratios[-1]:.3f}" if of_mean > 0 else "-"
        rows.append([short(name), f"{error:.4g}", f"{of_mean:.4g}", ratio])
    head = ["target", "error", "of the mean", "ratio"]
    lines += columns([head, *rows[:_MOST_TARGETS]], "lrrr")
    if len(rows) > _MOST_TARGETS:
        lines.append(f"  ... and {len(rows) - _MOST_TARGETS} more targets.")
    if len(rows) > 1 and not np.isnan(ratios).all():
        worst = int(np.nanargmax(ratios))
        lines += wrapped(
            f"Ratio on average {np.nanmean(ratios):.3f}, at worst {ratios[worst]:.3f} "
            f"({short(table.target_names[worst])}); 0 is perfect, 1 no better than the mean.",
            "  ",
        )
    return lines


def of_networks(robust: RobustELMRegressor) -> list[str]:
    """Say which settings were chosen, and how near to its optimum each network is."""
    members, n_compared = robust.members_, len(robust.cv_results_["activation"])
    what = "one network" if len(members) == 1 else f"the average of {len(members)} networks"
    effort = "" if robust.effort == "default" else f", effort {robust.effort!r}"
    lines = [f"Model: {what}, the best of {_count(n_compared, 'layer')} compared{effort}:"]
    rows = [["layer", "nodes", "inputs of a node", "spread", "linear part", "penalty"]]
    for member in members:
        linear = member.n_hidden == 0
        # Members of earlier versions may be GOR-ELMs.
        penalty = member.lam if hasattr(member, "lam") else 1.0 / member.C
        rows.append([
            "linear" if linear else member.activation,
            str(member.n_hidden),
            "-" if linear else _inputs_of_a_node(member),
            "-" if linear else f"{spread_of(member):g}",
            "yes" if member.direct_link else "no",
            f"{penalty:.2g}",
        ])  # fmt: skip
    lines += columns(rows, "lrrrlr")
    gap = max(member.dual_gap_ for member in members)
    lines += wrapped(
        "Certificate: closed form, at its optimum to rounding."
        if gap == 0
        else f"Certificate: the objective of every network is proven to be within {gap:.1e} "
        "(relative) of its optimum.",
        "  ",
    )
    if hasattr(robust, "timings_"):  # not in files of earlier versions
        steps = ", ".join(f"{step} {seconds:.2g}" for step, seconds in robust.timings_.items())
        lines.append(f"  Seconds: {sum(robust.timings_.values()):.2g} ({steps}).")
    return lines


def _inputs_of_a_node(member: BaseELM) -> str:
    seen, subsets = member.n_features_in_, member.hidden_.subsets
    return f"all {seen}" if subsets is None else f"{subsets.shape[1]} of {seen}"


def of_rows(model: TableRegressor, table: Table, found: pandas.DataFrame) -> list[str]:
    """Say which rows to check first, and what is wrong with them."""
    n_flagged, n_rows = int(model.outlier_mask_.sum()), len(model.outlier_mask_)
    share = f" ({n_flagged / n_rows:.0%})" if n_flagged else ""
    fate = (
        ", clearly apart from the others, and had no part in the fit"
        if model.contaminated_ and n_flagged
        else "; there is no clear group of wrong rows, and all had a part in the fit"
    )
    lines = wrapped(
        f"Rows to check: {n_flagged} of {n_rows}{share} score above "
        f"{model.outlier_threshold_:.3g}{fate}."
    )
    names, shown = Names(table.columns), found.head(_MOST_ROWS)
    with_lines, with_ids = table.lines is not None, table.ids is not None
    where = ["line"] * with_lines + ["id" if with_ids else "row"]
    rows = [[*where, "score", "flagged", "most off", "value", "expected", "spreads"]]
    for key, row in shown.iterrows():
        marks = [str(int(row[names.line]))] if with_lines else []
        marks.append(short(str(key), 12) if with_ids else str(int(row[names.row])))
        flag = "yes" if row[names.flagged] else "no"
        off = _most_off(row, names, table.target_names)
        rows.append([*marks, f"{row[names.score]:#.3g}", flag, *off])
    lines += columns(rows, "r" * len(where) + "rllrrr")
    names_at = "its names are on line 1; " if _has_header(table) else ""
    line = f"line: of the file; {names_at}" if with_lines else ""
    what = "id: of the row" if with_ids else "row: counted from 0"
    return [
        *lines,
        *wrapped(f"({line}{what}. Score and spreads: in robust spreads of the targets.)", "  "),
    ]


def _has_header(table: Table) -> bool:
    return not table.path.name.lower().removesuffix(".gz").endswith(".arff")


def _most_off(row: pandas.Series, names: Names, targets: list[str]) -> list[str]:
    """Return the target that is off most: its name, value, expected value, difference."""
    known = [name for name in targets if not np.isnan(row[names.spreads(name)])]
    if not known:
        return ["-", "", "", ""]
    worst = max(known, key=lambda name: abs(row[names.spreads(name)]))
    numbers = [row[worst], row[names.expected(worst)]]
    return [
        short(worst, 18),
        *(f"{x:.4g}" for x in numbers),
        f"{row[names.spreads(worst)]:+.2g}",
    ]


# -- text ----------------------------------------------------------------------------------------


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return a sentence in lines that fit; later lines are indented further."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def columns(rows: list[list[str]], sides: str) -> list[str]:
    """Return rows of cells as aligned lines; `sides` says l or r for each column."""
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def short(name: str, width: int = _LONGEST_NAME) -> str:
    """Return a name that fits into a table, on one line."""
    return shortened(printable(" ".join(name.split())), width)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
