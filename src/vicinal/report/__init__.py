"""Facts → figures → one page."""

from vicinal.report.compare import render_compare, save_compare
from vicinal.report.page import live_files, notebook_frame, render, save_report

__all__ = [
    "live_files",
    "notebook_frame",
    "render",
    "render_compare",
    "save_compare",
    "save_report",
]
