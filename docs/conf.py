"""Sphinx: the guides by task, and the API from the docstrings."""

project = "vicinal"
author = "The vicinal authors"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
suppress_warnings = ["myst.xref_missing", "docutils", "ref", "app.add_directive"]
