"""Two runs side by side: differences with paired intervals, on one small page without a script."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from vicinal.audits.paired import Comparison
from vicinal.files import write_atomically
from vicinal.report.page import asset, environment, integrity
from vicinal.report.svg import Plot, ticks
from vicinal.report.words import short, signed

AS_SHARE = ("accuracy", "ece", "cover")  # measures printed in percent, by the start of their name


def render_compare(record: Comparison) -> str:
    """The page as one HTML text; its policy allows its own style and nothing else."""
    style = asset("page.css")
    policy = f"default-src 'none'; style-src '{integrity(style)}'; img-src data:; base-uri 'none'"
    return environment().get_template("two_runs.html").render(
        record=record,
        style=style,
        policy=policy,
        headline=headline(record),
        chart=interval_chart(record),
        as_share=lambda delta: delta.name.startswith(AS_SHARE),
    )  # fmt: skip


def save_compare(record: Comparison, path: str | Path) -> None:
    write_atomically(path, render_compare(record))


def headline(record: Comparison) -> str:
    """One sentence: what got better, what got worse, and where there is no evidence."""
    groups: dict[str, list[str]] = {}
    for delta in record.deltas:
        groups.setdefault(delta.finding, []).append(delta.title)
    parts = [f"{kind}: {', '.join(groups[kind])}" for kind in ("better", "worse") if kind in groups]
    if not parts:
        return "No evidence of a difference in any measure."
    return "; ".join(parts)[0].upper() + "; ".join(parts)[1:] + "."


def interval_chart(record: Comparison) -> Markup:
    """Differences with their intervals around zero; only measures in percent share the axis."""
    shown = [
        d for d in record.deltas
        if d.name.startswith(AS_SHARE) and d.low is not None and d.high is not None
    ]  # fmt: skip
    if not shown:
        return Markup("")
    reach = max(max(abs(d.low or 0), abs(d.high or 0)) for d in shown) * 1.15 or 0.01
    height = 44 + 34 * len(shown)
    plot = Plot((-reach, reach), (0, len(shown)), 440, height, 120, 16, 6, 38)
    plot.segment((plot.sx(0), 6), (plot.sx(0), height - 38), "axis")
    for i, delta in enumerate(shown):
        y = len(shown) - i - 0.5
        kind = "main" if delta.finding == "no evidence" else delta.finding
        low, high = delta.low or 0.0, delta.high or 0.0
        plot.text(112, plot.sy(y) + 4, short(delta.title, 18), "tick end")
        plot.segment((plot.sx(low), plot.sy(y)), (plot.sx(high), plot.sy(y)), "whisker")
        plot.dot(delta.delta or 0.0, y, kind, 4.5)
    plot.bottom_axis(ticks(-reach, reach, 6), lambda v: signed(v), "difference, percentage points")
    return plot.draw("Differences with intervals", "wide")
