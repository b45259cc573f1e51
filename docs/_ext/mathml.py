"""Formulas as MathML, which browsers show by themselves: no script, no picture, no LaTeX.

docutils brings the converter. What it does not know is a warning, and warnings end the build: a
formula that is not shown cannot be published.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# Browsers stretch bars and angles to the height of their neighbours and space them like operators.
_BAR = re.compile('<mo(?: stretchy="false")?>([|‖∥⟨⟩])</mo>')


def convert(latex: str, *, block: bool) -> str:
    """Return MathML for a formula; the converter takes names of code as plain text."""
    code = re.sub(r"\\texttt\{(.*?)\}", lambda name: _text(name[1]), latex)
    return _BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', tex2mathml(code, block))


def _text(name: str) -> str:
    return r"\text{" + name.replace(r"\_", "_") + "}"


def _mathml(node: nodes.Element, *, block: bool) -> str:
    try:
        return convert(node.astext(), block=block)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node, type="mathml")
        return f"<code>{node.astext()}</code>"


def visit_inline(self: Any, node: nodes.Element) -> None:
    """Write a formula within a line."""
    self.body.append(f'<span class="math">{_mathml(node, block=False)}</span>')
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.Element) -> None:
    """Write a formula of its own, with its number if it has a label."""
    number = ""
    if node.get("number"):
        number = f'<span class="eqno">({node["number"]})</span>'
    identifier = f' id="{node["ids"][0]}"' if node.get("ids") else ""
    self.body.append(f'<div class="math"{identifier}>{_mathml(node, block=True)}{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer "mathml"."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None)
    )
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
