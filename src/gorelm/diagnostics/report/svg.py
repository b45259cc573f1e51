"""Pictures as SVG to be placed inside a page, in its colours."""

import io
import re
import warnings
from typing import Any

__all__ = ["STYLE", "figure_to_svg", "new_figure", "style"]

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gorelm",
    "text.parse_math": False,  # names are not formulas
    "font.family": ["sans-serif"],
    "font.size": 9.0,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def style(*, extra: str) -> Any:
    """Return a context in which matplotlib draws for a page.

    Parameters
    ----------
    extra : str
        The extra that an ImportError names if matplotlib is not installed.

    Returns
    -------
    context manager
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"figures need matplotlib: pip install 'gorelm[{extra}]'") from error
    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float, **more: Any) -> Any:
    """Return a matplotlib figure of so many inches, unknown to pyplot."""
    from matplotlib.figure import Figure  # not pyplot: no backend, no global state

    return Figure(figsize=(width, height), **more)


def figure_to_svg(figure: Any, *, prefix: str, title: str, dpi: float = 100.0) -> str:
    """Make the SVG fit for a page: own names, its colour that of the text, no outer references.

    Parameters
    ----------
    figure : matplotlib figure
        Drawn within :func:`style`.
    prefix : str
        Of the names within the SVG, different for every picture of a page.
    title : str
        Read out in place of the picture.
    dpi : float, default=100.0
        Dots per inch of what is rasterised.

    Returns
    -------
    str
        An ``<svg>`` element.
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
