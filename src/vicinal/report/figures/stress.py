"""Verdicts and accuracy of the same rows under each perturbation, and what that means in words."""

from __future__ import annotations

from vicinal.audits.record import Audit
from vicinal.audits.stress_records import Stress, StressRow
from vicinal.report.svg import Figure, Plot, ticks
from vicinal.report.words import decimal, percent, plural, points, sentence

ROW = 15  # height of a bar
HEADING = 17
LEFT, RIGHT = 96, 86


def name_of(row: StressRow) -> str:
    """As the page prints it: "fog, severity 3"."""
    title = {"fgsm": "FGSM"}.get(row.name, row.name.replace("_", " "))
    return title if row.level is None else f"{title}, {level_of(row)}"


def level_of(row: StressRow) -> str:
    if row.level is None:
        return ""
    return f"ε = {row.level:.3g}" if row.kind == "attack" else f"severity {row.level:g}"


def verdicts_under_stress(record: Stress) -> Figure:
    """One bar a perturbation: shares of verdicts; the dot is the accuracy."""
    groups: dict[str, list[StressRow]] = {}
    for row in record.results:
        groups.setdefault(row.name, []).append(row)
    height = sum(HEADING * (len(rows) > 1) + (ROW + 3) * len(rows) + 6 for rows in groups.values())
    plot = Plot((0, 1), (0, 1), 540, height + 62, LEFT, RIGHT, 24, 38)
    plot.text(540 - RIGHT + 8, 9, "wrong, yet", "label")
    plot.text(540 - RIGHT + 8, 22, "supported", "label")
    top = 30.0
    for rows in groups.values():
        if len(rows) > 1:
            plot.text(4, top + 11, name_of(rows[0]).rpartition(",")[0], "label")
            top += HEADING
        for row in rows:
            _bar(plot, row, top)
            top += ROW + 3
        top += 6
    plot.bottom_axis(ticks(0, 1), lambda v: points(v, 0), "% of the rows")
    return Figure(
        "stress-verdicts",
        "Verdicts and accuracy under stress",
        "Bars: shares of verdicts, in the colors of the top of the page (supported first). Dot: "
        "accuracy of the kept head ± 2 standard errors; where it falls, supported rows should "
        "too. On the right, the share of rows that are wrong and still called supported. "
        + sentence(record.how),
        plot.draw("Verdicts and accuracy under corruptions and attacks", "wide"),
        ("perturbation", "strength", "accuracy", "±", "softmax accuracy", "ECE", "its floor",
         "softmax ECE", "confidence", "credibility", *record.results[0].verdicts,
         "wrong, supported"),
        [table_row(row) for row in record.results],
    )  # fmt: skip


def _bar(plot: Plot, row: StressRow, top: float) -> None:
    """In sheet units from ``top``: the name, the stacked shares, the accuracy, what slips by."""
    base, at = plot.height - plot.bottom, 0.0
    unit = (base - plot.top) / (plot.y[1] - plot.y[0])
    span = ((base - top - ROW) / unit, (base - top) / unit)
    plot.text(plot.left - 6, top + ROW - 4, level_of(row) or name_of(row), "tick end")
    for verdict, share in row.verdicts.items():
        if share > 0:
            plot.bar((at, at + share), span, f"stack-{verdict}", 0.3)
        at += share
    middle, error = sum(span) / 2, 2 * row.accuracy_se
    plot.reach(middle, row.accuracy - error, row.accuracy + error)
    plot.dot(row.accuracy, middle, "chosen", 4)
    plot.text(plot.width - RIGHT + 8, top + ROW - 4, percent(row.wrong_supported), "tick")


def table_row(row: StressRow) -> list[str]:
    return [
        *(name_of(row).partition(",")[0], level_of(row) or "–"),
        *(percent(row.accuracy), percent(row.accuracy_se), percent(row.softmax_accuracy)),
        *(percent(row.ece), percent(row.noise_floor), percent(row.softmax_ece)),
        *(decimal(row.confidence), decimal(row.credibility)),
        *(percent(share) for share in row.verdicts.values()),
        percent(row.wrong_supported),
    ]


def stress_sentences(audit: Audit) -> list[str]:
    """The fall, what slips through, and the worst case where it was sought."""
    record = audit.stress
    if record is None:
        return []
    clean, worst, rows = record.results[0], record.results[record.worst], plural(record.rows, "row")
    lines = [
        f"At worst ({name_of(worst)}) accuracy on {rows} falls from {percent(clean.accuracy)} to "
        f"{percent(worst.accuracy)}; supported rows go from "
        f"{percent(clean.verdicts['supported'])} to {percent(worst.verdicts['supported'])}."
    ]
    most = max(record.results, key=lambda row: row.wrong_supported)
    if most.wrong_supported > 0:
        slips = f"{percent(most.wrong_supported)} of {rows} are wrong and called supported"
        lines.append(f"Most slips through under {name_of(most)}: {slips}.")
    else:
        lines.append(f"Nowhere is one of the {rows} both wrong and called supported.")
    if (found := record.attack) is not None:
        transfer = "" if found.transfer is None else f", {percent(found.transfer)} by transfer"
        lines.append(
            f"Adaptive attacks (ε = {found.epsilon:.3g}, {plural(found.rows, 'row')}) on the "
            f"neighbors of the kept head lower their accuracy from {percent(found.clean)} to "
            f"{percent(found.worst)}: to {percent(found.fitted)} through the head, "
            f"{percent(found.smoothed)} through smoothed surrogates{transfer}. {found.note}"
        )
    return lines
