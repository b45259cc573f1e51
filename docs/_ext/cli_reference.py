"""The reference of the command line, from the commands themselves: `.. cli-reference::`.

What a page says about commands and options is read from click when the page is built, so that it
cannot differ from what `--help` says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import gorelm.cli


class Entry(NamedTuple):
    """A command as its help describes it."""

    name: str  # with those of the groups that it is in: gorelm datasets fetch
    usage: str
    about: list[str]  # paragraphs
    options: list[tuple[str, str]]  # as they are written, and what they mean
    examples: str
    python: str


def entries(command: click.Command, before: click.Context | None = None) -> Iterator[Entry]:
    """Yield a command and all that are below it."""
    name = "gorelm" if before is None else command.name
    with click.Context(command, parent=before, info_name=name) as context:
        yield Entry(
            context.command_path,
            " ".join([context.command_path, *command.collect_usage_pieces(context)]),
            [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")],
            [record for param in command.params if (record := _record(param, context))],
            command.epilog or "",
            getattr(command, "python", ""),
        )
        for below in getattr(command, "commands", {}).values():
            yield from entries(below, context)


def _record(param: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    # arguments are in the usage line and in the text; newer versions of click list them, too
    return param.get_help_record(context) if isinstance(param, click.Option) else None


class CliReference(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Write the sections."""
        for path in (Path(__file__), *Path(inspect.getfile(gorelm.cli)).parent.glob("*.py")):
            self.env.note_dependency(str(path))
        return [_section(entry, self.state.document) for entry in entries(gorelm.cli.main)]


def _section(entry: Entry, document: nodes.document) -> nodes.section:
    section = nodes.section("", nodes.title("", entry.name))
    section["names"].append(entry.name)
    document.note_implicit_target(section, section)
    section += _block(entry.usage, "text")
    section += [nodes.paragraph("", "", *_inline(part)) for part in entry.about if part]
    if entry.options:
        section += _table(entry.options)
    for title, code, language in (
        ("Examples", entry.examples, "console"),
        ("In Python", entry.python, "python"),
    ):
        if code:
            section += nodes.paragraph("", "", nodes.strong("", title))
            section += _block(code, language)
    return section


def _block(code: str, language: str) -> nodes.literal_block:
    return nodes.literal_block(code, code, language=language)


def _inline(text: str) -> list[nodes.Node]:
    """Return text with what stands in backticks, or is an option, as code."""
    parts = re.split(r"`(.+?)`|((?<![\w-])--[a-z][\w-]*)", text)
    return [
        nodes.Text(part) if at % 3 == 0 else nodes.literal("", part)
        for at, part in enumerate(parts)
        if part
    ]


def _table(options: list[tuple[str, str]]) -> nodes.table:
    group = nodes.tgroup("", cols=2)
    group += [nodes.colspec("", colwidth=width) for width in (35, 65)]
    body = nodes.tbody("")
    for written, meaning in options:
        cells = ([nodes.literal("", written)], _inline(" ".join(meaning.split())))
        body += nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))
    group += body
    return nodes.table("", group, classes=["options"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the directive."""
    app.add_directive("cli-reference", CliReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
