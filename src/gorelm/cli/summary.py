"""What a fit found, in lines of text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array
from gorelm.cli.reading import Table
from gorelm.estimators._encoding import columns_of, shortened

__all__ = [
    "columns",
    "judged_rows",
    "of_errors",
    "of_fit",
    "of_networks",
    "of_rows",
    "of_table",
    "short",
    "targets_of",
    "wrapped",
]

_WIDTH = 79
_LONGEST_NAME = 24
_MOST_TARGETS = 20
_MOST_ROWS = 10


def of_fit(model: Any, table: Table) -> list[str]:
    """Return everything there is to say about a fit."""
    parts = (
        of_table(model, table),
        of_errors(model, table),
        of_networks(model),
        of_rows(model, table),
    )
    return [line for part in parts for line in (*part, "")]


def of_table(model: Any, table: Table) -> list[str]:
    """Say what was read, and what was made of it."""
    n_rows, n_inputs = table.X.shape
    names = ", ".join(short(name) for name in table.target_names[:6])
    more = f" and {len(table.target_names) - 6} more" if len(table.target_names) > 6 else ""
    left_out = table.n_columns - n_inputs - len(table.target_names)
    lines = wrapped(
        f"{table.path.name}: {n_rows} rows, {table.n_columns} columns; "
        f"{_count(n_inputs, 'input')}, {_count(len(table.target_names), 'target')} "
        f"({names}{more}){f', {left_out} not used' if left_out else ''}."
    )
    for note in model.notes_:
        lines += wrapped(note, "  ")
    return lines


def of_errors(model: Any, table: Table) -> list[str]:
    """Say how far predictions of rows that a model did not see are off, target by target."""
    y, expected = targets_of(table), _expected(model)
    kept = ~model.outlier_mask_
    n_flagged = int(model.outlier_mask_.sum())
    lines = wrapped(
        "Error on rows that the models did not see (cross-validated root mean square"
        + (f"; {_count(n_flagged, 'flagged row')} left out" if n_flagged else "")
        + "), and that of predicting the mean:"
    )
    rows, ratios = [], []
    for j, name in enumerate(table.target_names):
        known = kept & ~np.isnan(y[:, j])
        error = float(np.sqrt(np.mean((y[known, j] - expected[known, j]) ** 2)))
        of_mean = float(y[known, j].std())
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


def of_networks(model: Any) -> list[str]:
    """Say which settings were chosen, and how near to its optimum each network is."""
    from gorelm.estimators.robust import spread_of

    robust = model.regressor_
    members, tried = robust.members_, robust.cv_results_
    lines = [f"Model: the average of {_count(len(members), 'network')}, the best of "
             f"{len(tried['activation'])} kinds tried:"]  # fmt: skip
    rows = [["layer", "nodes", "spread", "linear part", "penalty"]]
    for member in members:
        linear = member.n_hidden == 0
        penalty = member.lam if hasattr(member, "lam") else 1.0 / member.C
        rows.append([
            "linear" if linear else member.activation,
            str(member.n_hidden),
            "-" if linear else f"{spread_of(member):g}",
            "yes" if member.direct_link else "no",
            f"{penalty:.2g}",
        ])  # fmt: skip
    lines += columns(rows, "lrrlr")
    gap = max(member.dual_gap_ for member in members)
    lines += wrapped(
        "Certificate: closed form, each network is at its optimum to rounding."
        if gap == 0
        else f"Certificate: the objective of every network is proven to be within {gap:.1e} "
        "(relative) of its optimum.",
        "  ",
    )
    return lines


def of_rows(model: Any, table: Table) -> list[str]:
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
    shown = judged_rows(model, table).head(_MOST_ROWS)
    where = ["line", "row"] if "line" in shown else ["row"]
    rows = [[*where, "score", "flagged", "most off", "value", "expected", "spreads"]]
    for _, row in shown.iterrows():
        marks = [str(int(row[name])) for name in where]
        flag = "yes" if row["flagged"] else "no"
        rows.append([*marks, f"{row['score']:#.3g}", flag, *_most_off(row, table.target_names)])
    lines += columns(rows, "r" * len(where) + "rllrrr")
    names_at = "its names are on line 1; " if _has_header(table) else ""
    line = f"line: of the file; {names_at}" if "line" in shown else ""
    return [
        *lines,
        *wrapped(f"({line}row: counted from 0. Score and spreads: in robust spreads of the "
                 "targets.)", "  "),
    ]  # fmt: skip


def _has_header(table: Table) -> bool:
    return not table.path.name.lower().removesuffix(".gz").endswith(".arff")


def _most_off(row: Any, names: list[str]) -> list[str]:
    """Return the target that is off most: its name, value, expected value, difference."""
    known = [name for name in names if not np.isnan(row[f"{name} spreads"])]
    if not known:
        return ["-", "", "", ""]
    worst = max(known, key=lambda name: abs(row[f"{name} spreads"]))
    numbers = row[[worst, f"{worst} expected"]]
    return [short(worst, 18), *(f"{x:.4g}" for x in numbers), f"{row[f'{worst} spreads']:+.2g}"]


def judged_rows(model: Any, table: Table) -> Any:
    """Return all rows as a frame, the most suspicious first: what is off, and by how much.

    Per target: its value, what was expected by models that did not see the row, the difference,
    and that in units of the target's robust spread (interquartile range / 1.349).
    """
    import pandas

    y, expected = targets_of(table), _expected(model)
    known_rows = ~np.isnan(y).all(axis=1)
    scale = Scaling.fit("robust", y[known_rows], np.ones(known_rows.sum())).scale
    off_by = y - expected
    spreads = off_by / scale
    is_off = np.abs(np.nan_to_num(spreads)) > model.outlier_threshold_
    content: dict[str, Any] = {} if table.lines is None else {"line": table.lines}
    content |= {
        "row": np.arange(len(y)),
        "score": model.outlier_scores_,
        "flagged": model.outlier_mask_,
        "off": ["; ".join(np.array(table.target_names)[mask]) for mask in is_off],
    }
    for j, name in enumerate(table.target_names):
        parts = (("", y), (" expected", expected), (" off by", off_by), (" spreads", spreads))
        content |= {f"{name}{part}": values[:, j] for part, values in parts}
    order = np.argsort(-model.outlier_scores_, kind="stable")
    return pandas.DataFrame(content).iloc[order]


def targets_of(table: Table) -> Array:
    """Return the targets as the model saw them: numbers, NaN where missing."""
    return np.column_stack([column.numbers()[0] for column in columns_of(table.y)])


def _expected(model: Any) -> Array:
    return np.asarray(model.out_of_fold_.reshape(len(model.outlier_mask_), -1))


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
    return shortened(name, width)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
