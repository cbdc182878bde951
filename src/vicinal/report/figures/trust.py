"""How far to trust it: reliability, risk against coverage, the choice of k, credibility."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.record import Audit
from vicinal.audits.sections import (
    Credibility,
    Head,
    Histogram,
    ReliabilityBin,
    RiskCoverage,
    Sweep,
    Threshold,
)
from vicinal.report.svg import Figure, Pair, Plot, ticks
from vicinal.report.words import count, decimal, percent, points, sentence

CROWDED = 0.6  # of the rows in one bar
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


def reliability_figure(head: Head, plot: Plot, how: str, bins: Sequence[ReliabilityBin]) -> Figure:
    ece = f"ECE {percent(head.ece)}" if head.ece is not None else "ECE not shown: too few rows"
    floor = f" · noise floor {percent(head.noise_floor)}" if head.noise_floor is not None else ""
    gap = head.overconfidence
    lean = "" if gap is None else f" · confidence − accuracy {points(gap):s} points"
    return Figure(
        f"reliability-{head.name}",
        f"Reliability of {head.title}",
        f"{ece}{floor}{lean.replace('-', '−')}. {how}",
        plot.draw(f"Reliability diagram of {head.title}: {ece}"),
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
    place = {nines(c): c for c in marks}
    plot.bottom_axis(list(place), lambda v: f"{place[v]:g}", "confidence")
    for cell in cells:
        at = nines(cell.score or 0.0)
        plot.whisker(at, max(floor, cell.accuracy_low or 0.0), cell.accuracy_high or 1.0)
        plot.dot(at, max(floor, cell.accuracy or 0.0), "main", 4)
        if picks:
            ends = (max(plot.x[0], nines(cell.low)), min(plot.x[1], nines(cell.high)))
            said = f"{count(cell.count)} rows, accuracy {percent(cell.accuracy)}: show them"
            plot.clickable(ends, f"conf={cell.low:g}~{cell.high:g}", said)
    how = "Most rows are this confident, so dots stand for equally many rows, with 95 % intervals."
    return reliability_figure(head, plot, how, cells)


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
    base = plot.height - 16
    for cell in bins:
        height = round(24 * cell.count / most, 1)
        strip = Plot(x=plot.x, y=(0, 24), width=plot.width, height=base, bottom=0, top=base - 24)
        strip.bar((cell.low, cell.high), (0, height), "count")
        plot.marks.extend(strip.marks)


def clickable_bins(plot: Plot, bins: Sequence[ReliabilityBin], key: str) -> None:
    for cell in bins:
        if cell.count:
            description = f"{count(cell.count)} rows, accuracy {percent(cell.accuracy)}: show them"
            plot.clickable((cell.low, cell.high), f"{key}={cell.low:g}~{cell.high:g}", description)


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


def risk_coverage(curve: RiskCoverage) -> Figure:
    """Accuracy of what is accepted against how much is accepted; the script moves the marker."""
    low = lowest(curve)
    plot = Plot(y=(low, 1.0), height=250)
    plot.left_axis(ticks(low, 1), lambda v: points(v, 0), "accuracy %")
    plot.bottom_axis(ticks(0, 1), lambda v: points(v, 0), "coverage: share of inputs accepted, %")
    clipped = [max(low, v) for v in curve.lower_bound]
    plot.band(curve.coverage, clipped, [max(low, v) for v in curve.accuracy])
    plot.line(list(zip(curve.coverage, [max(low, v) for v in curve.accuracy], strict=True)), "main")
    plot.line(list(zip(curve.coverage, clipped, strict=True)), "bound")
    pick = curve.chosen
    if pick is not None:
        plot.line([(0, pick.target), (1, pick.target)], "target")
        y = plot.sy(pick.target) + 13
        plot.text(plot.left + 6, y, f"target {percent(pick.target, 0)}", "tick")
    if pick is not None and pick.coverage is not None and pick.accuracy is not None:
        plot.whisker(pick.coverage, low, 1.0, "mover")
        plot.dot(pick.coverage, max(low, pick.accuracy), "mover", 5)
    elif curve.coverage:
        plot.whisker(curve.coverage[-1], low, 1.0, "mover")
        plot.dot(curve.coverage[-1], max(low, curve.accuracy[-1]), "mover", 5)
    step = max(1, len(curve.threshold) // 24)
    rows = list(
        zip(curve.threshold, curve.coverage, curve.accuracy, curve.lower_bound, strict=True)
    )
    return Figure(
        "risk-coverage",
        "Accept more, or be right more often",
        "Line: accuracy of the accepted inputs. Lower edge of the band: its 95 % lower bound.",
        plot.draw("Accuracy of accepted inputs against coverage", "curve"),
        ("threshold", "coverage", "accuracy", "lower bound"),
        [[decimal(t, 3), percent(c), percent(a), percent(b)] for t, c, a, b in rows[::step]],
    )


def threshold_data(audit: Audit) -> dict[str, Any] | None:
    """The risk–coverage curve, with the verdicts of what each threshold turns away."""
    record = audit.risk_coverage
    if record is None:
        return None
    cases = audit.cases
    confidence, verdict = np.array(cases.confidence), np.array(cases.verdict)
    rejected = [
        np.sort(confidence[verdict == name]).searchsorted(record.threshold)
        for name in audit.verdict_counts()
    ]
    return {
        "threshold": list(record.threshold),  # in full: rows are compared with it
        "coverage": [round(v, 5) for v in record.coverage],
        "accuracy": [round(v, 5) for v in record.accuracy],
        "lower": [round(v, 5) for v in record.lower_bound],
        "rejected": np.stack(rejected, 1).tolist(),
        "rows": record.chosen.rows if record.chosen else len(cases.id),
        "chosen": record.chosen.value if record.chosen else None,
        "target": record.chosen.target if record.chosen else None,
        "targets": [target_data(pick, confidence) for pick in record.targets],
    }


def target_data(pick: Threshold, confidence: NDArray[np.float64]) -> dict[str, Any]:
    """One target that the page can move to; ``odd`` rows are rounded across its level."""
    level = pick.target if pick.level is None else pick.level
    printed = np.rint(10000 * confidence) / 10000
    return {
        "target": pick.target,
        "value": pick.value,
        "coverage": pick.coverage,
        "level": level,
        "odd": np.flatnonzero((printed < level) != (confidence < level)).tolist(),
    }


def lowest(curve: RiskCoverage) -> float:
    """Where the axis starts: below every accuracy, and below the bound once it rests on rows."""
    bounds = [b for b, c in zip(curve.lower_bound, curve.coverage, strict=True) if c >= 0.2]
    target = [curve.chosen.target] if curve.chosen else []
    floor = min([*bounds, *curve.accuracy, *target], default=0.0)
    return max(0.0, min(0.9, (math.floor(floor * 20) - 1) / 20))


def sweep(record: Sweep) -> Figure | None:
    """Accuracy above, ECE below, against the number of neighbors on an even grid."""
    if not record.k:
        return None
    places = range(len(record.k))
    last = max(len(record.k) - 1, 1)
    low, high = min(record.accuracy), max(record.accuracy)
    pad = max(0.01, (high - low) * 0.2)
    upper = Plot(x=(0, last), y=(low - pad, min(1.0, high + pad)), height=260, bottom=144, top=26)
    upper.left_axis(ticks(*upper.y, 3), points, "accuracy %")
    upper.line(list(zip(places, record.accuracy, strict=True)), "main")
    known = [(i, e) for i, e in zip(places, record.ece, strict=True) if e is not None]
    most = max((e for _, e in known), default=0.1) * 1.15 or 0.1
    lower = Plot(x=(0, last), y=(0, most), height=260, top=160)
    lower.left_axis(ticks(0, most, 3), points, "ECE %")
    lower.line(known, "second")
    lower.bottom_axis(list(places), lambda i: str(record.k[int(i)]), "neighbors k")
    for i in places:
        upper.dot(i, record.accuracy[i], "chosen" if record.k[i] == record.chosen else "main")
    for i, e in known:
        lower.dot(i, e, "chosen" if record.k[i] == record.chosen else "second")
    upper.marks.extend(lower.marks)
    return Figure(
        "sweep",
        "How many neighbors",
        f"k = {record.chosen} was used (ringed).",
        upper.draw("Accuracy and ECE against k"),
        ("k", "accuracy", "ECE", "NLL"),
        [
            [count(k), percent(a), percent(e), decimal(n, 3)]
            for k, a, e, n in zip(record.k, record.accuracy, record.ece, record.nll, strict=True)
        ],
    )


def credibility(record: Credibility) -> Figure:
    """Accuracy by credibility: low credibility should mean more errors."""
    plot = accuracy_plot(record.bins, "credibility")
    clickable_bins(plot, record.bins, "cred")
    return Figure(
        "credibility",
        "Accuracy by credibility",
        sentence(record.how),
        plot.draw("Accuracy against credibility"),
        ("credibility", "rows", "mean credibility", "accuracy", "95 % interval"),
        bin_table(record.bins),
    )


OUTLINES = ("solid", "outlined", "dashed", "outlined in another color")


def p_values(record: Credibility) -> Figure:
    """Shares per bin of each set's p-values; even bars mean the sets are alike."""
    sets = [h for h in record.histograms if sum(h.counts)]
    shares = [[c / sum(h.counts) for c in h.counts] for h in sets]
    most = max([max(s) for s in shares], default=0.1) * 1.1
    plot = Plot(y=(0, most), height=250)
    plot.left_axis(ticks(0, most, 4), lambda v: points(v, 0), "share %")
    for place, (histogram, share) in enumerate(zip(sets, shares, strict=True)):
        outline(plot, histogram, share, place)
    if sets:
        even = 1 / len(sets[0].counts)
        plot.line([(0, even), (1, even)], "ideal")
    plot.bottom_axis(ticks(0, 1), lambda v: decimal(v, 1), "p-value")
    legend = " · ".join(
        f"{OUTLINES[min(i, len(OUTLINES) - 1)]}: {h.name}" for i, h in enumerate(sets)
    )
    return Figure(
        "p-values",
        "Credibility as a p-value",
        f"{sentence(legend)} Held-out rows like the calibration rows spread evenly (dotted line).",
        plot.draw("Histogram of p-values"),
        ("from", "to", *(h.name for h in sets)),
        histogram_rows(sets),
    )


def outline(plot: Plot, histogram: Histogram, share: Sequence[float], place: int) -> None:
    for i, value in enumerate(share):
        kind = "soft" if place == 0 else f"hollow h{min(place, 3)}"
        plot.bar((histogram.edges[i], histogram.edges[i + 1]), (0, value), kind)


def histogram_rows(sets: Sequence[Histogram]) -> list[list[str]]:
    if not sets:
        return []
    edges = sets[0].edges
    return [
        [f"{edges[i]:.3g}", f"{edges[i + 1]:.3g}", *(count(h.counts[i]) for h in sets)]
        for i in range(len(sets[0].counts))
    ]
