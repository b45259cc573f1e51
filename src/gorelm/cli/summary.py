"""What a fit found, in lines of text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gorelm.cleaning import digits_apart
from gorelm.cli.app import printable
from gorelm.cli.reading import Table, about_ids, numbers_of
from gorelm.datasets.columns import shortened
from gorelm.estimators._base import BaseELM
from gorelm.estimators._robust.layers import spread_of
from gorelm.estimators.robust import RobustELMRegressor
from gorelm.estimators.table import TableRegressor
from gorelm.findings import Names

if TYPE_CHECKING:
    import pandas

_WIDTH = 79
_LONGEST_NAME, _SHORTEST_NAME = 24, 8
_MOST_TARGETS = 20
MOST_ROWS = 10
_MOST_CELLS = 4  # of a row
MOST_CHANGES = 20


def of_fit(model: TableRegressor, table: Table, found: pandas.DataFrame) -> list[str]:
    """Return everything there is to say about a fit: first what a reader should look at."""
    parts = (
        of_table(table),
        of_findings(model, table, found),
        of_errors(model, table, found),
        of_notes(model, table),
        of_networks(model.regressor_),
    )
    return [line for part in parts if part for line in (*part, "")]


def of_outliers(
    model: TableRegressor, table: Table, found: pandas.DataFrame, *, most: int
) -> list[str]:
    """Return what there is to say about the findings in a table, and `most` of its rows."""
    pointer = "--top N lists more, --out FILE has all."
    listed = of_findings(model, table, found, most=most, pointer=pointer)
    parts = (of_table(table), listed, of_notes(model, table))
    return [line for part in parts if part for line in (*part, "")]


def of_table(table: Table) -> list[str]:
    """Say what was read."""
    n_rows, n_inputs = table.X.shape
    names = ", ".join(short(name) for name in table.target_names[:6])
    more = f" and {len(table.target_names) - 6} more" if len(table.target_names) > 6 else ""
    n_columns = len(table.columns)
    left_out = n_columns - n_inputs - len(table.target_names)
    return wrapped(
        f"{table.path.name}: {n_rows:,} rows, {n_columns} columns; "
        f"{_count(n_inputs, 'input')}, {_count(len(table.target_names), 'target')} "
        f"({names}{more}){f', {left_out} not used' if left_out else ''}."
    )


def of_notes(model: TableRegressor, table: Table) -> list[str]:
    """Say what was made of the columns."""
    ids = [about_ids(table.path, table.id_name)] if table.ids is not None else []
    notes = [line for note in (*ids, *model.notes_) for line in wrapped(as_option(note), "  ")]
    return ["How the table was read:", *notes] if notes else []


def as_option(note: str) -> str:
    """Return a note of a model with the option in place of the parameter that it names."""
    return note.replace("target_transform=None", "--target-transform none")


def of_errors(model: TableRegressor, table: Table, found: pandas.DataFrame) -> list[str]:
    """Say how far predictions of rows that a model did not see are off, target by target."""
    y = numbers_of(table.y, table.path)
    expected = np.asarray(model.out_of_fold_).reshape(y.shape)
    names = Names([*table.X, *table.y])
    found = found.sort_values(names.row)
    wrong = found[[names.flagged_of(name) for name in table.target_names]].to_numpy(dtype=bool)
    wrong = wrong | np.asarray(model.outlier_mask_)[:, None]
    lines = wrapped(
        "RMSE on rows that the models did not see"
        + " (without wrong rows and cells)" * bool(wrong.any())
        + ", beside the RMSE of predicting the mean:"
    )
    rows, ratios = [], []
    for j, name in enumerate(table.target_names):
        known = ~wrong[:, j] & ~np.isnan(y[:, j])
        values, guesses = y[known, j], expected[known, j]
        # divided before squaring, so that 1e200 does not overflow
        unit = np.abs([values, guesses]).max(initial=0.0) or 1.0
        error = unit * np.sqrt(np.mean((values / unit - guesses / unit) ** 2)) if len(values) else 0
        of_mean = unit * np.std(values / unit) if len(values) else 0
        ratios.append(error / of_mean if of_mean > 0 else np.nan)
        ratio = f"{ratios[-1]:.3f}" if of_mean > 0 else "-"
        rows.append([short(name), number(error), number(of_mean), ratio])
    head = ["target", "RMSE", "of the mean", "relative RMSE"]
    lines += columns([head, *rows[:_MOST_TARGETS]], "lrrr")
    if len(rows) > _MOST_TARGETS:
        lines.append(f"  ... and {len(rows) - _MOST_TARGETS} more targets.")
    if len(rows) > 1 and not np.isnan(ratios).all():
        worst = int(np.nanargmax(ratios))
        lines += wrapped(
            f"Relative RMSE: {np.nanmean(ratios):.3f} on average, {ratios[worst]:.3f} at worst "
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
        else f"Certificate: the relative duality gap of every network is at most {gap:.1e}.",
        "  ",
    )
    if hasattr(robust, "timings_"):  # not in files of earlier versions
        steps = ", ".join(f"{step} {seconds:.2g}" for step, seconds in robust.timings_.items())
        lines.append(f"  Seconds: {sum(robust.timings_.values()):.2g} ({steps}).")
    return lines


def _inputs_of_a_node(member: BaseELM) -> str:
    seen, subsets = member.n_features_in_, member.hidden_.subsets
    return f"all {seen}" if subsets is None else f"{subsets.shape[1]} of {seen}"


def of_findings(
    model: TableRegressor,
    table: Table,
    found: pandas.DataFrame,
    *,
    most: int = MOST_ROWS,
    pointer: str = "gorelm outliers lists them.",
) -> list[str]:
    """Say what is wrong: which cells, what they hold, and what was expected there."""
    names = Names([*table.X, *table.y])
    flagged = found[found[names.flagged]]
    cells = flagged.loc[
        flagged[names.kind] == "cell", [names.flagged_of(t) for t in table.target_names]
    ]
    counts = {str(kind): int(n) for kind, n in flagged[names.kind].value_counts().items()}
    n_cells, n_certain = int(cells.sum().sum()), int(flagged[names.certain].sum())
    lines = wrapped(headline(model, counts, n_cells, n_certain, len(found)))
    if not len(flagged):
        lines[-1] += " The least plausible ones:"
        lines = wrapped(" ".join(line.strip() for line in lines))
    lines += _listed(found.head(most), table, names)
    if len(flagged) > most:
        lines.append(f"  ... and {_count(len(flagged) - most, 'more finding')}: {pointer}")
    names_at = ", whose first line has the names" if _has_header(table) else ""
    line = f"line: of the file{names_at}; " if table.lines is not None else ""
    what = "" if table.ids is not None else "row: counted from 0; "
    certain = "" if model.contaminated_ else ", below 0.25 a certain one"
    return [
        *lines,
        *wrapped(
            f"({line}{what}expected: by models that did not see the row; quality: 1 is best, below "
            f"0.5 is a finding{certain}.)",
            "  ",
        ),
    ]


def _listed(found: pandas.DataFrame, table: Table, names: Names) -> list[str]:
    """Return rows as lines, each with the targets that are off."""
    with_lines, with_ids = table.lines is not None, table.ids is not None
    where = ["line"] * with_lines + ["id" if with_ids else "row"]
    rows = [[*where, "finding", "target", "given", "expected", "quality"]]
    for key, row in found.iterrows():
        marks = [str(int(row[names.line]))] if with_lines else []
        marks.append(short(str(key), 12) if with_ids else str(int(row[names.row])))
        cells = _cells_of(row, names, table.target_names)
        quality = "-" if np.isnan(row[names.quality]) else f"{row[names.quality]:.2f}"
        for k, cell in enumerate(cells):
            start = [*marks, row[names.kind] or "-"] if k == 0 else [""] * (len(marks) + 1)
            rows.append([*start, *cell, quality if k == 0 else ""])
    at = len(where) + 1  # names of targets get the room that is left
    others = columns([[*row[:at], *row[at + 1 :]] for row in rows], "r" * len(where) + "lrrr")
    room = max(_WIDTH - max(map(len, others)) - 2, _SHORTEST_NAME)
    rows = [[*row[:at], short(row[at], room), *row[at + 1 :]] for row in rows]
    return columns(rows, "r" * len(where) + "llrrr")


def headline(
    model: TableRegressor, counts: Mapping[str, int], n_cells: int, n_certain: int, n_rows: int
) -> str:
    """Say how many findings of which kind there are, and what became of them.

    `counts` has the rows by kind of finding; `n_cells` are the wrong cells of the kind "cell".
    """
    n_found = sum(counts.values())
    if not n_found:
        return (
            f"Findings: none of the {n_rows:,} rows stands out; the model was trained on all of "
            "them."
        )
    parts = [
        _count(count, *words)
        for count, *words in (
            (counts.get("row", 0), "wrong row"),
            (n_cells, "wrong cell"),
            (counts.get("input", 0), "row with a wrong input", "rows with a wrong input"),
            (counts.get("duplicate", 0), "contradicting duplicate"),
        )
        if count
    ]
    text = f"Findings in {n_found:,} of {n_rows:,} rows ({_share(n_found / n_rows)}): "
    text += ", ".join(parts)
    if not counts.get("row", 0) + counts.get("cell", 0):
        return f"{text}."
    if model.contaminated_:
        return f"{text}. Clearly apart from the others, and left out of the training."
    certain = f"{n_certain:,}" if n_certain else "none"
    return (
        f"{text}; {certain} certain. Isolated outliers: the model was trained on all rows, without "
        f"values off by more than ten spreads{_on_other_scales(model)}."
    )


def _on_other_scales(model: TableRegressor) -> str:
    kinds = {*getattr(model.regressor_, "target_transforms_", [])} - {"none"}
    scales = [words for kind, words in (("log", "logarithms"), ("sqrt", "roots")) if kind in kinds]
    return f" (three, of {' and '.join(scales)})" if scales else ""


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"


def _has_header(table: Table) -> bool:
    return not table.path.name.lower().removesuffix(".gz").endswith(".arff")


def _cells_of(row: pandas.Series, names: Names, targets: list[str]) -> list[list[str]]:
    """Return the targets that are off, the worst first: name, value, expected value."""
    known = [name for name in targets if not np.isnan(row[names.spreads(name)])]
    if not known:
        return [["-", "", ""]]
    known.sort(key=lambda name: -row[names.score_of(name)])
    off = [name for name in known if row[names.flagged_of(name)]] or known[:1]
    cells = [
        [
            short(name),
            number(row[name], 6),
            number(row[names.expected(name)], digits_apart(row[name], row[names.expected(name)])),
        ]
        for name in off[:_MOST_CELLS]
    ]
    if len(off) > _MOST_CELLS:
        cells[-1] = [f"and {len(off) - _MOST_CELLS + 1} more", "", ""]
    return cells


def of_changes(
    log: pandas.DataFrame, found: pandas.DataFrame, table: Table, *, most: int | None
) -> list[str]:
    """Say what changes in a table that is cleaned, and which findings stay; `most`: changes."""
    names, with_ids = Names([*table.X, *table.y]), table.ids is not None
    dropped = log["column"] == ""
    n_dropped, n_cells = int(dropped.sum()), int((~dropped).sum())
    left = found[found[names.flagged] & ~found[names.row].isin(log["row"])]
    parts = [f"{_count(n_dropped, 'row')} of {len(found):,} dropped"] if n_dropped else []
    parts += [f"{_count(n_cells, 'cell')} changed"] if n_cells else []
    lines = [f"Changes: {', '.join(parts) or 'none'}."]
    if len(log):
        lines += _changes(log if most is None else log.head(most), with_ids=with_ids)
    if most is not None and len(log) > most:
        lines.append(f"  ... and {len(log) - most:,} more changes: the log has all of them.")
    rows_and_cells = left[names.kind].isin(["row", "cell"])
    suspicious = left[rows_and_cells & ~left[names.certain]]
    if len(suspicious):
        lines += wrapped(
            f"Suspicious, kept: {_count(len(suspicious), 'row')}. gorelm review shows "
            f"{'it' if len(suspicious) == 1 else 'them'}; --suspicious change changes "
            f"{'it' if len(suspicious) == 1 else 'them'}, too."
        )
        lines += _listed(suspicious.head(MOST_ROWS), table, names)
        if len(suspicious) > MOST_ROWS:
            lines.append(f"  ... and {len(suspicious) - MOST_ROWS:,} more: gorelm outliers.")
    if n_others := len(left) - len(suspicious):
        lines += wrapped(
            f"{_count(n_others, 'row')} with findings (duplicates, inputs, or what was to be kept) "
            f"left as {'it is' if n_others == 1 else 'they are'}; see gorelm outliers."
        )
    return lines


def _changes(log: pandas.DataFrame, *, with_ids: bool) -> list[str]:
    """Return changes as lines; reasons are wrapped, not cut."""
    with_lines = bool((log["line"] != "").any())
    rows = [["line"] * with_lines + ["id" if with_ids else "row", "change"]]
    for change in log.itertuples():
        marks = [str(change.line)] if with_lines else []
        marks.append(short(str(change.id if with_ids else change.row), 12))
        what = "row dropped"
        if change.column:
            new = "blank" if change.new in ("", "?", "null") else short(change.new, 12)
            what = f"{short(change.column, 14)} {short(change.old, 12)} -> {new}"
        rows.append([*marks, what])
    starts = columns(rows, "r" * (with_lines + 1) + "l")
    width = max(map(len, starts)) + 2
    reasons = ["why", *(why.partition(": ")[2] or why for why in log["why"])]
    lines = []
    for start, reason in zip(starts, reasons, strict=True):
        text = printable(" ".join(reason.split()))
        parts = textwrap.wrap(
            text, max(_WIDTH - width, 20), subsequent_indent="  ", break_on_hyphens=False
        )
        starts_of_parts = [start.ljust(width), *[" " * width] * len(parts)]
        lines += [
            before + part for before, part in zip(starts_of_parts, parts or [""], strict=False)
        ]
    return lines


# -- text ----------------------------------------------------------------------------------------


def number(value: float, digits: int = 4) -> str:
    """Return a number as people write it: 18,280 rather than 1.828e+04.

    `digits` are significant; those before the point are all shown, up to a hundred million.
    """
    size = abs(value)
    if not np.isfinite(value) or (size and not 1e-4 <= size < 1e8):
        return f"{value:.{digits}g}"
    decimals = max(digits - 1 - int(np.floor(np.log10(size))), 0) if size else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"
