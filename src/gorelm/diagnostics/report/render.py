"""From a template of the library and its content to a page."""

from importlib import resources
from typing import Any

__all__ = ["render"]


def render(template: str, *, extra: str, **content: Any) -> str:
    """Fill a template.

    Parameters
    ----------
    template : str
        Its path within the library, such as ``"experiments/report.html"``.
    extra : str
        The extra that an ImportError names if jinja2 is not installed.
    **content
        What the template asks for. All text is escaped; a name that is missing is an error.

    Returns
    -------
    str
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError(f"reports need jinja2: pip install 'gorelm[{extra}]'") from error
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
