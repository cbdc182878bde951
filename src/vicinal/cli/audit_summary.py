"""The terminal's version of the page's first screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vicinal.audits.record import Audit
from vicinal.audits.sections import Head
from vicinal.cli.console import Console


def print_summary(audit: Audit, folder: Path, console: Console) -> None:
    """Who made it, the data, the heads, what was found, and where it was written."""
    made = audit.provenance
    console.print(f"vicinal {made.version} · seed {made.seed} · no network used")
    for text in audit.warnings:
        console.warn(text)
    for part in (_data(audit), _heads(audit), _findings(audit), _written(folder)):
        console.print("\n".join(part))


def _data(audit: Audit) -> Iterator[str]:
    data = audit.data
    for role, facts in (("support", data.support), ("query", data.query), ("calib", data.calib)):
        if facts is not None:
            span = "no labels"
            if facts.labeled:
                sizes = f"min {facts.smallest_class:,} · max {facts.largest_class:,}"
                span = f"{facts.classes} classes ({sizes})"
            size = f"{facts.rows:,} x {facts.dims}"
            yield f"{role:<8} {facts.name}   {size}   {span}   sha {facts.fingerprint}"
    yield f"{'split':<8} {data.split} · k={data.k} · T={data.temperature or 0:.4g}"
    yield ""


def _heads(audit: Audit) -> Iterator[str]:
    chosen = audit.risk_coverage.chosen if audit.risk_coverage else None
    percent = f"cover@{100 * (chosen.target if chosen else 0.99):g}%"
    yield f"  {'':<34}{'accuracy':>14}{'ECE (floor)':>16}{'NLL':>9}{percent:>12}"
    for head in audit.heads:
        mark = "  ← recommended" if head.name == audit.recommended else ""
        yield f"  {head.title:<34}{_cells(head)}{mark}"
    yield ""


def _cells(head: Head) -> str:
    if head.accuracy is None:
        return f"{'–':>14}{'–':>16}{'–':>9}{'–':>12}"
    accuracy = f"{100 * head.accuracy:.1f} ± {100 * (head.accuracy_se or 0):.1f}"
    ece = "–" if head.ece is None else f"{100 * head.ece:.1f} ({100 * (head.noise_floor or 0):.1f})"
    nll = "inf" if head.nll is None else f"{head.nll:.3f}"
    cover = "–" if head.coverage_at_target is None else f"{100 * head.coverage_at_target:.1f} %"
    return f"{accuracy:>14}{ece:>16}{nll:>9}{cover:>12}"


def _findings(audit: Audit) -> Iterator[str]:
    counts = audit.verdict_counts()
    yield "  verdicts   " + " · ".join(f"{name} {n:,}" for name, n in counts.items())
    if audit.labels is not None:
        suspects, checked = len(audit.labels.suspects), audit.labels.checked
        yield (
            f"  labels     {suspects:,} of {checked:,} support labels contradicted by their "
            f"neighborhood ({100 * suspects / max(checked, 1):.1f} %)"
        )
    for planted in audit.planted:
        missed = planted.planted - planted.found
        yield (
            f"  planted    {planted.what}: found {planted.found} of {planted.planted}, missed "
            f"{missed} ({planted.flagged} flagged in all)"
        )
    if audit.borders is not None and audit.borders.pairs:
        top = audit.borders.pairs[0]
        a, b = audit.classes[top.a], audit.classes[top.b]
        yield f"  classes    {a} ↔ {b} share {100 * top.share:.0f} % of between-class weight"
    for section, why in audit.not_checked.items():
        yield f"  not checked: {section} ({why})"
    yield ""


def _written(folder: Path) -> Iterator[str]:
    page = folder / "report.html"
    size = f"{page.stat().st_size / 1e6:.1f} MB"
    yield f"wrote  {page} ({size}) · summary.json · samples.csv · suspects.csv · trust.vic"
    yield f"next   vicinal explore {folder}   |   vicinal predict {folder}/trust.vic new.npz"
