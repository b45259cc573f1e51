"""Tables that can be written as HTML, CSV, Markdown and LaTeX."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gorelm._files import write_whole

MISSING = "–"  # noqa: RUF001 (an en dash is what tables print)

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",  # noqa: RUF001
    "±": r"$\pm$",
    "×": r"$\times$",  # noqa: RUF001
    "<": "$<$",
    ">": "$>$",
    "−": "$-$",  # noqa: RUF001
    **{c: "\\" + c for c in "&%$#_{}"},
}
# every character with a meaning in Markdown or in the HTML it admits
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~&])")


@dataclass(frozen=True)
class Cell:
    """One number or text of a table."""

    value: float | int | str | None  # sorted by; None is missing
    spread: float | None = None  # standard deviation
    published: float | None = None  # the paper's figure, the difference to which is shown
    published_is_bound: bool = False  # the paper prints "below"; then there is no difference
    best: bool = False  # set in bold
    note: str = ""  # such as how many runs are missing
    spec: str = (
        ".3f"  # format of numbers; "3": three digits, "n": as people write them, "p": a p-value
    )

    @property
    def text(self) -> str:
        """The value in print."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None:
            return MISSING
        return re.sub("^-", "−", _number(self.value, self.spec))  # noqa: RUF001

    @property
    def spread_text(self) -> str:
        """The deviation in print, empty without one."""
        return "" if self.spread is None else f"± {_number(self.spread, self.spec)}"

    @property
    def difference(self) -> float | None:
        """Value less published figure."""
        if self.published is None or self.published_is_bound or not self.is_number:
            return None
        assert not isinstance(self.value, str)
        assert self.value is not None
        return self.value - self.published

    @property
    def published_text(self) -> str:
        """The paper's figure in print, empty without one."""
        if self.published is None:
            return ""
        return ("<" if self.published_is_bound else "") + _number(self.published, self.spec)

    @property
    def difference_text(self) -> str:
        """The difference in print, signed, empty without one."""
        if self.difference is None:
            return ""
        text = _number(abs(self.difference), self.spec)
        if not text.strip("0."):
            return text  # no sign for what prints as nothing
        return ("−" if self.difference < 0 else "+") + text  # noqa: RUF001

    @property
    def is_number(self) -> bool:
        """Whether there is a number to sort by."""
        return self.value is not None and not isinstance(self.value, str)

    @property
    def lines(self) -> list[str]:
        """All of it but the weight of the letters, in up to three parts."""
        parts = [f"{self.text} {self.spread_text}".rstrip()]
        if self.published is not None:
            difference = f" ({self.difference_text})" if self.difference_text else ""
            parts.append(f"paper {self.published_text}{difference}")
        return parts + ([self.note] if self.note else [])


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header."""

    name: str  # of its files, without ending, and its anchor in the page
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[Sequence[Cell]] = ()  # stays below when the rows are sorted

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.footer):
            if len(row) != len(self.header):
                raise ValueError(f"a row of table {self.name!r} does not fit its header.")

    def is_text(self, column: int) -> bool:
        """Whether a column holds words, which are set to the left."""
        return any(isinstance(row[column].value, str) for row in self.rows)

    @property
    def _texts(self) -> list[bool]:
        return [self.is_text(j) for j in range(len(self.header))]

    def to_csv(self) -> str:
        """Write full figures, one column for each part of a cell that the table's column has."""
        everything = [*self.rows, *self.footer]
        header: list[str] = []
        columns: list[list[str]] = []
        for j, name in enumerate(self.header):
            cells = [row[j] for row in everything]
            header.append(name)
            columns.append([_plain(cell.value) for cell in cells])
            for part in ("spread", "published", "difference"):
                if any(getattr(cell, part) is not None for cell in cells):
                    header.append(f"{name} {'deviation' if part == 'spread' else part}")
                    columns.append([_csv_part(cell, part) for cell in cells])
            if any(cell.note for cell in cells):
                header.append(f"{name} note")
                columns.append([cell.note for cell in cells])
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
        return out.getvalue()

    def to_markdown(self) -> str:
        """Write it as GitHub reads tables, best figures in bold."""
        lines = [_row([_markdown(name) for name in self.header])]
        lines.append(_row([("---" if text else "---:") for text in self._texts]))
        for row in (*self.rows, *self.footer):
            lines.append(_row([_markdown_cell(cell) for cell in row]))
        return f"{_markdown(self.caption)}\n\n" + "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Write a ``table`` with rules of the package ``booktabs``."""
        align = "".join("l" if text else "r" for text in self._texts)
        lines = [
            r"\begin{table}",
            rf"\caption{{{_tex(self.caption)}}}",
            rf"\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            " & ".join(_tex(name) for name in self.header) + r" \\",
            r"\midrule",
            *(" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in self.rows),
        ]
        if self.footer:
            lines.append(r"\midrule")
            lines += [" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in self.footer]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join(lines) + "\n"


def write_table(table: Table, folder: Path) -> None:
    """Write ``NAME.csv``, ``NAME.md`` and ``NAME.tex`` into an existing folder."""
    for ending, text in (
        ("csv", table.to_csv()),
        ("md", table.to_markdown()),
        ("tex", table.to_latex()),
    ):
        write_whole(folder / f"{table.name}.{ending}", text.encode())


def _number(value: float, spec: str) -> str:
    if isinstance(value, int):
        return str(value)
    if spec == "p":
        return "<0.0001" if value < 5e-5 else f"{value:.4f}"
    if spec == "n":
        return f"{value:,.0f}" if 100 <= abs(value) < 1e8 else f"{value:#.3g}"
    # a diverged run must not widen its column by a dozen digits
    if spec == "3" or abs(value) >= 1e5:
        return f"{value:.0f}" if 100 <= abs(value) < 1e5 else f"{value:#.3g}"
    return f"{value:{spec}}"


def _plain(value: float | int | str | None) -> str:
    return "" if value is None else str(value)


def _csv_part(cell: Cell, part: str) -> str:
    bound = part == "published" and cell.published_is_bound
    return ("<" if bound else "") + _plain(getattr(cell, part))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _markdown_cell(cell: Cell) -> str:
    first, *rest = [_markdown(line) for line in cell.lines]
    return "<br>".join([f"**{first}**" if cell.best else first, *rest])


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


def _tex_cell(cell: Cell) -> str:
    first, *rest = [_tex(line) for line in cell.lines]
    return "; ".join([rf"\textbf{{{first}}}" if cell.best and first else first, *rest])
