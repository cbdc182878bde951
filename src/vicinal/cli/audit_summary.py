"""The terminal's version of the page's first screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vicinal.audits.record import Audit
    from vicinal.cli.console import Voice


def say_result(audit: Audit, folder: Path, voice: Voice) -> None:
    """The terminal's version of the page's first screen."""
    made = audit.provenance
    voice.say(f"vicinal {made.version} · seed {made.seed} · no network used")
    for text in audit.warnings:
        voice.warn(text)
    data = audit.data
    for role, facts in (("support", data.support), ("query", data.query), ("calib", data.calib)):
        if facts is not None:
            span = "no labels"
            if facts.labeled:
                sizes = f"min {facts.smallest_class:,} · max {facts.largest_class:,}"
                span = f"{facts.classes} classes ({sizes})"
            voice.say(
                f"{role:<8} {facts.name}   {facts.rows:,} x {facts.dims}   {span}   "
                f"sha {facts.fingerprint}"
            )
    voice.say(f"{'split':<8} {data.split} · k={data.k} · T={data.temperature or 0:.4g}")
    voice.say()
    percent = f"cover@{100 * _target(audit):g}%"
    voice.say(f"  {'':<34}{'accuracy':>14}{'ECE (floor)':>16}{'NLL':>9}{percent:>12}")
    for head in audit.heads:
        mark = "  ← recommended" if head.name == audit.recommended else ""
        voice.say(f"  {head.title:<34}{_cells(head)}{mark}")
    voice.say()
    counts = audit.verdict_counts()
    voice.say("  verdicts   " + " · ".join(f"{name} {n:,}" for name, n in counts.items()))
    if audit.labels is not None:
        share = len(audit.labels.suspects) / max(audit.labels.checked, 1)
        voice.say(
            f"  labels     {len(audit.labels.suspects):,} of {audit.labels.checked:,} support "
            f"labels contradicted by their neighborhood ({100 * share:.1f} %)"
        )
    for planted in audit.planted:
        voice.say(
            f"  planted    {planted.what}: found {planted.found} of {planted.planted}, missed "
            f"{planted.planted - planted.found} ({planted.flagged} flagged in all)"
        )
    if audit.borders is not None and audit.borders.pairs:
        top = audit.borders.pairs[0]
        a, b = audit.classes[top.a], audit.classes[top.b]
        voice.say(f"  classes    {a} ↔ {b} share {100 * top.share:.0f} % of between-class weight")
    for section, why in audit.not_checked.items():
        voice.say(f"  not checked: {section} ({why})")
    voice.say()
    page = folder / "report.html"
    size = page.stat().st_size / 1e6
    voice.say(
        f"wrote  {page} ({size:.1f} MB) · summary.json · samples.csv · suspects.csv · trust.vic"
    )
    voice.say(f"next   vicinal explore {folder}   |   vicinal predict {folder}/trust.vic new.npz")


def _target(audit: Audit) -> float:
    chosen = audit.risk_coverage.chosen if audit.risk_coverage else None
    return chosen.target if chosen else 0.99


def _cells(head: Any) -> str:
    if head.accuracy is None:
        return f"{'–':>14}{'–':>16}{'–':>9}{'–':>12}"
    accuracy = f"{100 * head.accuracy:.1f} ± {100 * head.accuracy_se:.1f}"
    ece = "–" if head.ece is None else f"{100 * head.ece:.1f} ({100 * head.noise_floor:.1f})"
    nll = "inf" if head.nll is None else f"{head.nll:.3f}"
    cover = "–" if head.coverage_at_target is None else f"{100 * head.coverage_at_target:.1f} %"
    return f"{accuracy:>14}{ece:>16}{nll:>9}{cover:>12}"
