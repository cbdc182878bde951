"""The table of heads in a terminal: whole where there is room, else what fits 60 columns."""

from __future__ import annotations

from collections.abc import Iterator

from vicinal.audits.record import Audit
from vicinal.audits.sections import Head
from vicinal.report.words import decimal, level, name, percent, points

WIDE = 80  # columns of a terminal that the whole table needs


def head_lines(audit: Audit, width: int) -> Iterator[str]:
    """The heads with accuracy, ECE, NLL and coverage, the recommended one marked."""
    return wide_table(audit) if width >= WIDE else narrow_table(audit)


def _cover(audit: Audit) -> str:
    chosen = audit.risk_coverage.chosen if audit.risk_coverage else None
    return f"cover@{level(chosen.target if chosen else 0.99)}"


def wide_table(audit: Audit) -> Iterator[str]:
    yield f"  {'':<34}{'accuracy':>14}{'ECE (floor)':>16}{'NLL':>9}{_cover(audit):>14}"
    for head in audit.heads:
        mark = "  ← recommended" if head.name == audit.recommended else ""
        yield f"  {head.title:<34}{_cells(head)}{mark}"


def narrow_table(audit: Audit) -> Iterator[str]:
    """The same without errors and floors, where no terminal of 60 columns breaks a line."""
    yield f"  {'':<27}{'acc.':>6}{'ECE':>6}{'NLL':>7}{_cover(audit):>12}"
    for head in audit.heads:
        mark = "→" if head.name == audit.recommended else " "
        nll = "inf" if head.nll is None else decimal(head.nll, 3)
        cells = f"{points(head.accuracy):>6}{points(head.ece):>6}{nll:>7}"
        yield f"{mark} {name(head.title, 27):<27}{cells}{percent(head.coverage_at_target):>12}"
    yield "  → recommended"


def _cells(head: Head) -> str:
    if head.accuracy is None:
        return f"{'–':>14}{'–':>16}{'–':>9}{'–':>14}"
    accuracy = f"{points(head.accuracy)} ± {points(head.accuracy_se or 0)}"
    ece = "–" if head.ece is None else f"{points(head.ece)} ({points(head.noise_floor or 0)})"
    nll = "inf" if head.nll is None else decimal(head.nll, 3)
    return f"{accuracy:>14}{ece:>16}{nll:>9}{percent(head.coverage_at_target):>14}"
