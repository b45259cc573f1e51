"""Formulas as MathML, which browsers show by themselves: no script, no picture, no LaTeX.

docutils brings the converter. What it does not know is a warning, and warnings end the build: a
formula that is not shown cannot be published.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
_NAME = "{http://www.w3.org/1998/Math/MathML}"
_ACCENTS = ("\N{MODIFIER LETTER CIRCUMFLEX ACCENT}", "~", "\N{MODIFIER LETTER MACRON}")
_HTML_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)\w+;")  # which XML does not know


def convert(latex: str, *, block: bool) -> str:
    """Return MathML for a formula; names of code become plain text."""
    code = re.sub(r"\\texttt\{(.*?)\}", lambda name: _text(name[1]), latex)
    mathml = tex2mathml(code.replace(r"\dots", r"\ldots"), block)
    tree = ElementTree.fromstring(_HTML_ENTITY.sub(lambda entity: unescape(entity[0]), mathml))
    for element in tree.iter():
        if element.tag == _NAME + "munderover":
            _set_beside(element)
        elif element.tag == _NAME + "mo" and element.text in tuple("|‖⟨⟩"):
            # Browsers stretch these to the height of their neighbours, and space them.
            element.attrib.update(stretchy="false", lspace="0", rspace="0")
    return ElementTree.tostring(tree, encoding="unicode")


def _text(name: str) -> str:
    return r"\text{" + name.replace(r"\_", "_") + "}"


def _set_beside(element: ElementTree.Element) -> None:
    r"""Make what the converter puts under an accented letter, as in \hat y_j, its subscript."""
    letter, index, accent = element
    if accent.tag == _NAME + "mo" and accent.text in _ACCENTS:
        for child in (letter, index, accent):
            element.remove(child)
        element.tag = _NAME + "msub"
        accented = ElementTree.SubElement(element, _NAME + "mover", accent="true")
        accented.extend([letter, accent])
        element.append(index)


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
