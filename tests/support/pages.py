"""Code blocks of the documentation's pages."""

import re
import textwrap

__all__ = ["blocks"]

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. code-block:: (?P<language>\w+)\n"
    r"(?P<body>(?:(?P=indent) +\S.*\n|[ \t]*\n)+)",
    flags=re.M,
)


def blocks(text):
    """Yield language, code and line number of every code block, in their order."""
    for match in _BLOCK.finditer(text):
        line = text[: match.start("body")].count("\n") + 1
        yield match["language"], textwrap.dedent(match["body"]).strip("\n") + "\n", line
