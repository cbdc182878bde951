"""Facts → figures → one page."""

from vicinal.report.page import live_files, notebook_frame, render, save_report
from vicinal.report.two_runs import render_compare, save_compare

__all__ = [
    "live_files",
    "notebook_frame",
    "render",
    "render_compare",
    "save_compare",
    "save_report",
]
