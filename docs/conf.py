"""How the documentation is built: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from gorelm import __version__  # noqa: E402

project = "gorelm"
author = "The gorelm developers"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "cli_reference",
    "mathml",
    "site_check",
]
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.zip"]
templates_path = ["_templates"]
# A name in single backticks is code; what should be a link says so.
default_role = "literal"
highlight_language = "python"
pygments_style = "tango"
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions

autosummary_generate = True
autosummary_generate_overwrite = True
autodoc_typehints = "none"  # docstrings say it in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the templates list them
numpydoc_class_members_toctree = False

myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["gorelm.css"]
html_title = "gorelm"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "gorelm"},
    "navbar_start": ["navbar-logo"],
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 9,
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
# Pages that stand alone have no section to navigate.
html_sidebars = {
    page: []
    for page in (
        "architecture",
        "changelog",
        "cli",
        "extend",
        "index",
        "maths",
        "methods",
        "peers",
        "results/README",
        "results/accuracy",
        "results/ablation",
        "results/defaults",
        "start",
    )
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"demo\.py",  # `make demo` runs it
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,  # seconds on this machine say nothing about another
    "show_memory": False,
    "write_computation_times": False,
    "plot_gallery": "True",
}

# Inherited from scikit-learn and described there.
autosummary_context = {
    "skipped": ["get_metadata_routing", "get_params", "score", "set_params", "set_output"]
}
