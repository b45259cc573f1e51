"""Pages from templates, and matplotlib figures as SVG in the colours of the page."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import AbstractContextManager
from importlib import resources
from typing import TYPE_CHECKING, Literal

from gorelm._extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def style(*, extra: str) -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws for a page; `extra` is named if it is missing."""
    with needs("figures need matplotlib", extra):
        import matplotlib
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "gorelm",
            "text.parse_math": False,  # names are not formulas
            "font.family": ["sans-serif"],
            "font.size": 9.0,
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def new_figure(
    width: float, height: float, *, layout: Literal["constrained"] | None = None
) -> Figure:
    """Return a matplotlib figure of so many inches, unknown to pyplot."""
    from matplotlib.figure import Figure  # not pyplot: no backend, no global state

    return Figure(figsize=(width, height), layout=layout)


def figure_to_svg(figure: Figure, *, prefix: str, title: str, dpi: float = 100.0) -> str:
    """Return a figure drawn within :func:`style` as an ``<svg>`` element of a page.

    Ids begin with `prefix`, which differs for every picture of a page; black becomes the colour of
    the page's text. Screen readers read `title`; `dpi` is of what is rasterised.
    """
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The reader's browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="svg", transparent=True, metadata=nothing, dpi=dpi)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<style.*?</style>|<metadata>.*?</metadata>", "", text, flags=re.S)
    # what is drawn black takes the colour of the page's text; so does text, which has no fill
    text = re.sub(r"#000000", "currentColor", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" fill="currentColor"', 1)


def render(template: str, *, extra: str, **content: object) -> str:
    """Fill a template, such as ``"experiments/report/report.html"``, with content.

    All text is escaped; a name without a value is an error. `extra` is named if jinja2 is missing.
    """
    with needs("reports need jinja2", extra):
        import jinja2
        from markupsafe import Markup
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # our own SVG, in which names are escaped already
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(**content)


def _source(name: str) -> str:
    return resources.files("gorelm").joinpath(*name.split("/")).read_text(encoding="utf-8")
