"""Look at the finished pages: nothing is loaded from elsewhere, and every link leads somewhere.

What is wrong becomes a warning, and warnings end the build (`make docs`).
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# What a browser fetches without being asked, as opposed to where a reader may go.
LOADS = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
# <link> elements that only state something.
NOT_FETCHED = {"author", "canonical", "index", "license", "next", "prev", "search", "top"}

STYLE_LOADS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\s\"')]*)")


class Page(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element loads, where it leads and what it is called."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("a", "area") and "href" in given:
            self.links.append(given["href"])
        stated = tag == "link" and set(given.get("rel", "").split()) & NOT_FETCHED
        if LOADS.get(tag) in given and not stated:
            self.loads.append(given[LOADS[tag]])


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the pages under a folder, each in a line."""
    # What is under _static are parts of pages and not pages.
    paths = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for address in page.loads:
            if _is_elsewhere(address):
                found.append(f"{name} loads {address}")
        for address in page.links + page.loads:
            if not _is_elsewhere(address) and not _leads_somewhere(path, address, pages):
                found.append(f"{name} leads to {address}, which is not there")
    for path in sorted(folder.rglob("*.css")):
        for address in STYLE_LOADS.findall(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(folder)} loads {address}")
    return found


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _leads_somewhere(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for problem in problems(Path(app.outdir)):
            logger.warning("%s", problem, type="site_check")


def setup(app: Sphinx) -> dict[str, Any]:
    """Check when the pages are written."""
    app.connect("build-finished", _check)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
