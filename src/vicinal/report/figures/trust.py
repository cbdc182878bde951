"""How far to trust it: risk against coverage, the choice of k, credibility."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.record import Audit
from vicinal.audits.sections import Credibility, Histogram, RiskCurve, Sweep, Threshold
from vicinal.report.figures.reliability import FEW, accuracy_plot, bin_table, clickable_bins
from vicinal.report.svg import Figure, Plot, ticks
from vicinal.report.words import count, decimal, level, percent, points, sentence, short


def risk_coverage(curve: RiskCurve) -> Figure:
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
    at = [*zip(curve.coverage[-1:], curve.accuracy[-1:], strict=True)]  # where all is accepted
    if pick is not None and pick.coverage is not None and pick.accuracy is not None:
        at = [(pick.coverage, pick.accuracy)]
    for coverage, accuracy in at:
        plot.whisker(coverage, low, 1.0, "mover")
        plot.dot(coverage, max(low, accuracy), "mover", 5)
    if pick is not None:
        plot.line([(0, pick.target), (1, pick.target)], "target")
        roomy = pick.coverage is not None and pick.coverage > 0.4  # left of it no curve is below
        x, y = plot.sx(pick.coverage or 0) - 6 if roomy else plot.sx(1), plot.sy(pick.target)
        plot.text(x, y + (14 if roomy else -5), f"target {level(pick.target)}", "tick end halo")
    step = max(1, len(curve.threshold) // 24)
    rows = [*zip(curve.threshold, curve.coverage, curve.accuracy, curve.lower_bound, strict=True)]
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


def lowest(curve: RiskCurve) -> float:
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
    known = [(i, e) for i, e in zip(places, record.ece, strict=True) if e is not None]
    most = max((e for _, e in known), default=0.1) * 1.15 or 0.1
    lower = Plot(x=(0, last), y=(0, most), height=260, top=160)
    lower.left_axis(ticks(0, most, 3), points, "ECE %")
    lower.bottom_axis(list(places), lambda i: str(record.k[int(i)]), "neighbors k")
    above = [*enumerate(record.accuracy)]
    for plot, path, kind in ((upper, above, "main"), (lower, known, "second")):
        plot.line(path, kind)
        for i, value in path:
            plot.dot(i, value, "chosen" if record.k[i] == record.chosen else kind)
    upper.marks.extend(lower.marks)
    return Figure(
        "sweep",
        "How many neighbors",
        sentence("; ".join(filter(None, (f"The ringed k = {record.chosen} was used", record.how)))),
        upper.draw("Accuracy and ECE against k"),
        ("k", "accuracy", "ECE", "NLL"),
        [
            [count(k), percent(a), percent(e), decimal(n, 3)]
            for k, a, e, n in zip(record.k, record.accuracy, record.ece, record.nll, strict=True)
        ],
    )


def credibility(record: Credibility) -> Figure | None:
    """Accuracy by credibility: low credibility should mean more errors."""
    if not any(cell.count for cell in record.bins):
        return None
    plot = accuracy_plot(record.bins, "credibility")
    clickable_bins(plot, record.bins, "cred")
    return Figure(
        "credibility",
        "Accuracy by credibility",
        f"{sentence(record.how)} Bins of fewer than {FEW} rows show no bar.",
        plot.draw("Accuracy against credibility"),
        ("credibility", "rows", "mean credibility", "accuracy", "95 % interval"),
        bin_table(record.bins),
    )


def p_values(record: Credibility) -> Figure:
    """Shares per bin of each set's p-values; even bars mean the sets are alike."""
    sets = [h for h in record.histograms if sum(h.counts)]
    shares = [[c / sum(h.counts) for c in h.counts] for h in sets]
    room = 16 * len(sets)  # for the legend, above the bars
    most = max([max(s) for s in shares], default=0.1) * 1.1
    plot = Plot(y=(0, most), height=250 + room, top=26 + room)
    plot.left_axis(ticks(0, most, 4), lambda v: points(v, 0), "share %")
    for place, (histogram, share) in enumerate(zip(sets, shares, strict=True)):
        kind = f"hollow h{min(place, 3)}" if place else "soft"
        for i, value in enumerate(share):
            plot.bar((histogram.edges[i], histogram.edges[i + 1]), (0, value), kind)
        plot.swatch((plot.left, 16 * place + 1), (16, 9), f"bar {kind}")
        plot.text(plot.left + 23, 16 * place + 10, short(histogram.name, 32), "label")
    if sets:
        even = 1 / len(sets[0].counts)
        plot.line([(0, even), (1, even)], "ideal")
    plot.bottom_axis(ticks(0, 1), lambda v: decimal(v, 1), "p-value")
    return Figure(
        "p-values",
        "Credibility as a p-value",
        "Held-out rows like the calibration rows spread evenly (dotted line).",
        plot.draw("Histogram of p-values"),
        ("from", "to", *(h.name for h in sets)),
        histogram_rows(sets),
    )


def histogram_rows(sets: Sequence[Histogram]) -> list[list[str]]:
    if not sets:
        return []
    edges = sets[0].edges
    return [
        [f"{edges[i]:.3g}", f"{edges[i + 1]:.3g}", *(count(h.counts[i]) for h in sets)]
        for i in range(len(sets[0].counts))
    ]
