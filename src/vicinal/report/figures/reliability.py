"""Is 0.9 right nine times in ten? Accuracy against confidence, also where confidences crowd."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vicinal.audits.sections import Head, ReliabilityBin
from vicinal.report.svg import Figure, Pair, Plot, ticks
from vicinal.report.words import count, decimal, percent, plural, points, signed

CROWDED = 0.6  # of the rows in one bar
TOUCHING = 26  # units of the sheet below which two labels of an axis touch
LEAST = 1e-4  # of what is left to certainty, that the axis tells apart
FEW = 10  # a bin with fewer rows shows its count and no bar: its accuracy would be noise


def reliability(head: Head, picks: bool = True) -> Figure:
    """Accuracy against confidence with 95 % intervals; counts below; the diagonal is perfect.

    ``picks``: the cards carry this head's confidence, so a click on a bar can filter them.
    """
    if crowded(head):
        return close_reliability(head, picks)
    plot = accuracy_plot(head.bins, "confidence", [(0, 0), (1, 1)])
    if picks:
        clickable_bins(plot, head.bins, "conf")
    how = f"Bars with 95 % intervals; bins of fewer than {FEW} rows show no bar."
    return reliability_figure(head, plot, how, head.bins)


def reliability_figure(
    head: Head, plot: Plot, how: str, bins: Sequence[ReliabilityBin], axis: str = ""
) -> Figure:
    ece = f"ECE {percent(head.ece)}" if head.ece is not None else "ECE not shown: too few rows"
    floor = f" · noise floor {percent(head.noise_floor)}" if head.noise_floor is not None else ""
    gap = head.overconfidence
    lean = "" if gap is None else f" · confidence − accuracy {signed(gap)} points"
    return Figure(
        f"reliability-{head.name}",
        f"Reliability of {head.title}",
        f"{ece}{floor}{lean}. {how}",
        plot.draw(f"Reliability diagram of {head.title}: {ece}", axis),
        ("confidence", "rows", "mean confidence", "accuracy", "95 % interval"),
        bin_table(bins),
    )


def crowded(head: Head) -> bool:
    """Whether most rows are in one bar: a diagram of even bars would show nothing of them."""
    rows = sum(cell.count for cell in head.bins)
    return bool(head.even_bins) and max(cell.count for cell in head.bins) > CROWDED * rows


def nines(confidence: float) -> float:
    """0.9, 0.99 and 0.999 at equal steps: what is left to certainty, by its logarithm."""
    return -math.log10(max(1 - confidence, LEAST))


def close_reliability(head: Head, picks: bool) -> Figure:
    """Groups of equally many rows on an axis of nines; the dotted line is perfect."""
    cells = [cell for cell in head.even_bins if cell.count and cell.score is not None]
    low = min((cell.accuracy_low or 0.0) for cell in cells)
    floor = max(0.0, math.floor(min(low, cells[0].score or 0.0) * 20) / 20)
    first, last = nines(cells[0].score or 0.0), nines(cells[-1].score or 0.0)
    pad = max(0.1, (last - first) * 0.06)
    plot = Plot(x=(first - pad, last + pad), y=(floor, 1.0), height=290)
    plot.left_axis(ticks(floor, 1), lambda v: points(v, 0), "accuracy %")
    steps = np.linspace(0, 1 - LEAST, 400).tolist()
    ideal = [(nines(c), c) for c in steps if floor <= c and plot.x[0] <= nines(c) <= plot.x[1]]
    plot.line(ideal, "ideal")
    marks = [c for c in (0, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9997, 1 - LEAST)
             if plot.x[0] <= nines(c) <= plot.x[1]]  # fmt: skip
    # The surer of two marks that would touch is written.
    at = [plot.sx(nines(c)) for c in marks] + [math.inf]
    place = {nines(c): c for i, c in enumerate(marks) if at[i + 1] - at[i] >= TOUCHING}
    plot.bottom_axis(list(place), lambda v: f"{place[v]:g}", "confidence")
    for cell in cells:
        x = nines(cell.score or 0.0)
        plot.whisker(x, max(floor, cell.accuracy_low or 0.0), cell.accuracy_high or 1.0)
        plot.dot(x, max(floor, cell.accuracy or 0.0), "main", 4)
        if picks:
            ends = (max(plot.x[0], nines(cell.low)), min(plot.x[1], nines(cell.high)))
            clickable_bin(plot, cell, "conf", ends)
    how = "Most rows are this confident, so dots stand for equally many rows, with 95 % intervals."
    return reliability_figure(head, plot, how, cells, "nines")


def accuracy_plot(
    bins: Sequence[ReliabilityBin], axis: str, ideal: Sequence[Pair] | None = None
) -> Plot:
    plot = Plot(height=290, bottom=76)
    plot.left_axis(ticks(0, 1), lambda v: points(v, 0), "accuracy %")
    if ideal is not None:
        plot.line(ideal, "ideal")
    bin_bars(plot, bins)
    count_strip(plot, bins)
    plot.bottom_axis(ticks(0, 1), lambda v: decimal(v, 1))
    plot.text((plot.left + plot.width - plot.right) / 2, plot.height - 2, axis, "label middle")
    return plot


def bin_bars(plot: Plot, bins: Sequence[ReliabilityBin]) -> None:
    for cell in bins:
        if cell.count < FEW or cell.accuracy is None or cell.score is None:
            continue
        plot.bar((cell.low, cell.high), (0, cell.accuracy), "soft")
        if cell.accuracy_low is not None and cell.accuracy_high is not None:
            plot.whisker(cell.score, cell.accuracy_low, cell.accuracy_high)
        plot.dot(cell.score, cell.accuracy, "main")


def count_strip(plot: Plot, bins: Sequence[ReliabilityBin]) -> None:
    """Under the axis: how many rows stand behind each bin."""
    most = max((cell.count for cell in bins), default=0) or 1
    for cell in bins:
        height = round(24 * cell.count / most, 1)
        left, right = plot.sx(cell.low) + 1, plot.sx(cell.high) - 1
        plot.swatch((left, plot.height - 16 - height), (right - left, height), "bar count")


def clickable_bins(plot: Plot, bins: Sequence[ReliabilityBin], key: str) -> None:
    for cell in bins:
        if cell.count:
            clickable_bin(plot, cell, key, (cell.low, cell.high))


def clickable_bin(plot: Plot, cell: ReliabilityBin, key: str, ends: Pair) -> None:
    said = f"{plural(cell.count, 'row')}, accuracy {percent(cell.accuracy)}: show them"
    plot.clickable(ends, f"{key}={cell.low:g}~{cell.high:g}", said)


def bin_table(bins: Sequence[ReliabilityBin]) -> list[list[str]]:
    return [
        [
            f"{decimal(cell.low)}–{decimal(cell.high)}",
            count(cell.count),
            decimal(cell.score, 3),
            percent(cell.accuracy),
            "–"
            if cell.accuracy_low is None
            else f"{points(cell.accuracy_low)}–{percent(cell.accuracy_high)}",
        ]
        for cell in bins
    ]
