"""Sphinx: tutorials, guides by task, the reference from the code itself; no network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import formulas

import reference

project = "vicinal"
author = "The vicinal authors"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
html_theme = "furo"
html_title = "vicinal"
html_math_renderer = "mathml"
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}  # lines of 96 letters fit
exclude_patterns = ["_build"]
napoleon_use_param = False  # names that share a text stand together
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # torch says of every forward that it should be overridden
html_show_copyright = False
myst_heading_anchors = 3
# The gallery's cards and autodoc's names have anchors that myst does not know of.
suppress_warnings = ["docutils", "ref", "app.add_directive", "myst.xref_missing"]


def setup(app):
    app.add_html_math_renderer("mathml", (formulas.inline, None), (formulas.block, None))
    app.connect("source-read", reference.fill)
    app.connect("autodoc-process-docstring", reference.arguments, priority=400)  # before napoleon
