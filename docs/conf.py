"""Sphinx: tutorials, guides by task, and the reference from the code itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import reference

project = "vicinal"
author = "The vicinal authors"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "myst_parser"]
html_theme = "furo"
html_title = "vicinal"
exclude_patterns = ["_build"]
napoleon_use_param = False  # names that share a text stand together
autodoc_typehints = "none"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
# The gallery's cards and autodoc's names have anchors that myst does not know of.
suppress_warnings = ["docutils", "ref", "app.add_directive", "myst.xref_missing"]


def setup(app):
    app.connect("source-read", reference.fill)
    app.connect("autodoc-process-docstring", reference.arguments, priority=400)  # before napoleon
