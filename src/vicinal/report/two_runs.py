"""Two runs side by side: differences with paired intervals, classes that moved, linked maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vicinal.audits.paired import Comparison, Gate
from vicinal.audits.record import Audit
from vicinal.audits.resampling import Delta
from vicinal.files import write_atomically
from vicinal.report.figures.points import on_steps
from vicinal.report.page import asset, environment, inlined, policy
from vicinal.report.svg import Plot, ticks
from vicinal.report.words import clean, name, plural, signed

MOST_POINTS = 20_000  # of a map beside another
GATE = re.compile(r"\s*([\w.@+-]+?)\s*([<>]=?)\s*([+-]?)\s*(\d*\.?\d+(?:e-?\d+)?)\s*(%?)\s*$")
AS_SHARE = ("accuracy", "ece", "cover")  # measures printed in percent, by the start of their name


def render_compare(record: Comparison, audits: tuple[Audit, Audit] | None = None) -> str:
    """The page as one HTML text; its policy allows its own style and script and nothing else.

    With the two ``audits`` there are their maps, side by side: what is selected on one is marked on
    the other. Without them the page needs no script and has none.
    """
    style = asset("page.css")
    maps = None if audits is None else maps_data(record, *audits)
    script = "" if maps is None else inlined("base.js", "compare.js")
    measured = [d for d in record.deltas if d.delta is not None]
    main = [delta for delta in measured if delta.head is None]
    return environment().get_template("two_runs.html").render(
        record=record,
        measured=main,
        heads=head_lines(measured),
        paired=all(delta.paired for delta in measured),
        style=style,
        script=script,
        maps=maps,
        policy=policy(script, style),
        headline=headline(record),
        chart=share_chart(main),
        forest=forest(measured),
        gate_words=gate_words,
        as_share=lambda delta: delta.name.startswith(AS_SHARE),
    )  # fmt: skip


def save_compare(
    record: Comparison, path: str | Path, audits: tuple[Audit, Audit] | None = None
) -> None:
    write_atomically(path, render_compare(record, audits))


def maps_data(record: Comparison, a: Audit, b: Audit) -> dict[str, Any] | None:
    """Rows that both maps place, as steps of a grid, with what became of each."""
    if a.map is None or b.map is None:
        return None
    place = {name: row for row, name in enumerate(b.cases.id)}
    rows = [row for row, name in enumerate(a.cases.id) if name in place]
    rows = rows[:: max(1, -(-len(rows) // MOST_POINTS))]
    others = [place[a.cases.id[row]] for row in rows]
    maps = [on_steps(audit.map) for audit in (a, b) if audit.map is not None]
    said = [[audit.classes[code] for code in audit.cases.predicted] for audit in (a, b)]
    names = (*map(clean, a.classes), None)
    return {
        "id": [clean(a.cases.id[row]) for row in rows],
        "kept": [form["kept"] for form in maps],
        "a": {"x": [maps[0]["x"][r] for r in rows], "y": [maps[0]["y"][r] for r in rows]},
        "b": {"x": [maps[1]["x"][r] for r in others], "y": [maps[1]["y"][r] for r in others]},
        "label": [names[-1 if (code := a.cases.label[r]) is None else code] for r in rows],
        "said": [[clean(said[0][r]), clean(said[1][o])] for r, o in zip(rows, others, strict=True)],
    }


def gate_words(gate: Gate, record: Comparison) -> str:
    """What the gate asks for and what it found, without signs."""
    match = GATE.match(gate.expression)
    if match is None:
        return ""
    measure, sign, signed_limit, digits, share = match.groups()
    what = {delta.name: delta.title for delta in record.deltas}.get(measure, measure)

    def form(value: float) -> str:  # as the tables have it: shares in percent, changes in points
        shown, unit = f"{100 * value:.3g}", "points" if signed_limit else "%"
        return f"{shown} {unit}" if measure.startswith(AS_SHARE) else f"{value:.4g}"

    limit = form(float(digits) / (100 if share else 1))
    if signed_limit + sign[0] in ("-<", "+>"):  # what gates are written for
        way = "fall" if signed_limit == "-" else "rise"
        asked = f"{what} may not {way} by more than {limit}"
    else:
        over, way = "more" if ">" in sign else "less", "change by" if signed_limit else "be"
        asked = f"{what} may not {way} {over} than {signed_limit.replace('-', '−')}{limit}"
    if gate.value is None:
        return f"{asked}; it could not be measured"
    found = form(abs(gate.value) if signed_limit else gate.value)
    moved = "is" if not signed_limit else "rose by" if gate.value >= 0 else "fell by"
    return re.sub(r"\b1 points", "1 point", f"{asked}; it {moved} {found}".replace("-", "−"))


def headline(record: Comparison) -> str:
    """What got better and worse in the recommended heads; then how many heads agree."""
    groups: dict[str, list[str]] = {}
    for delta in (d for d in record.deltas if d.paired and d.head is None):
        groups.setdefault(delta.finding, []).append(delta.title)
    parts = [f"{kind}: {', '.join(groups[kind])}" for kind in ("better", "worse") if kind in groups]
    said = "No evidence of a difference between the recommended heads."
    if parts:
        said = "; ".join(parts)[0].upper() + "; ".join(parts)[1:] + "."
    losses = [d.finding for d in record.deltas if d.name.startswith("nll_") and d.low is not None]
    if losses:
        better, worse = losses.count("better"), losses.count("worse")
        said += f" NLL of {plural(len(losses), 'head')}: {better} better, {worse} worse."
    return said


def head_lines(measured: Sequence[Delta]) -> list[tuple[str, dict[str, Delta]]]:
    """Title of each head, and its measures by what they measure."""
    lines: dict[str, tuple[str, dict[str, Delta]]] = {}
    for delta in measured:
        if delta.head is not None:
            title = delta.title.partition(" of ")[2]
            lines.setdefault(delta.head, (title, {}))[1][delta.name.partition("_")[0]] = delta
    return list(lines.values())


def share_chart(main: Sequence[Delta]) -> Markup:
    """The measures in percent share an axis of percentage points."""
    shown = [d for d in main if d.name.startswith(AS_SHARE)]
    return intervals(shown, [d.title for d in shown], "difference, percentage points", signed)


def forest(measured: Sequence[Delta]) -> Markup:
    """The NLL of every head: where an interval lies left of zero, the second run is better."""
    shown = [d for d in measured if d.name.startswith("nll_")]
    titles = [d.title.partition(" of ")[2] for d in shown]
    axis = "difference in NLL: less is better"
    return intervals(shown, titles, axis, lambda v: f"{v:+.2g}" if v else "0")


def intervals(
    deltas: Sequence[Delta], titles: Sequence[str], axis: str, form: Callable[[float], str]
) -> Markup:
    """Differences with their intervals around zero."""
    shown = [(d, t) for d, t in zip(deltas, titles, strict=True) if d.low is not None]
    if not shown:
        return Markup("")
    ends = sorted(max(abs(d.low or 0), abs(d.high or 0)) for d, _ in shown)
    usual = next((end for end in ends[(len(ends) - 1) // 2 :] if end), 0.01)
    dots = max(abs(d.delta or 0) for d, _ in shown)  # each in sight; one wide interval may be cut,
    reach = 1.15 * max(min(max(ends[-1], 0.01), 6 * usual), dots)  # or it would hide the rest
    step, left = 34 if len(shown) < 6 else 24, 16 + 6 * max(min(len(t), 32) for _, t in shown)
    height = 44 + step * len(shown)
    plot = Plot((-reach, reach), (0, len(shown)), 440, height, left, 16, 6, 38)
    plot.segment((plot.sx(0), 6), (plot.sx(0), height - 38), "axis")
    for i, (delta, title) in enumerate(shown):
        y = len(shown) - i - 0.5
        kind = "main" if delta.finding == "no evidence" else delta.finding
        plot.text(left - 8, plot.sy(y) + 4, name(title, 32), "tick end")
        plot.reach(y, delta.low or 0.0, delta.high or 0.0)
        plot.dot(delta.delta or 0.0, y, kind, 4.5)
    plot.bottom_axis(ticks(-reach, reach, 4), lambda v: form(v).replace("-", "−"), axis)
    return plot.draw("Differences with intervals", "interval")
