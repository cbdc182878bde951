"""What the page says in words, computed from the record alone: no figure, no markup.

The wording follows the product's rules: a finding names its n, "no contradiction found" is never
"the labels are clean", and where another head does better than ours the first sentence says so.
"""

from __future__ import annotations

from collections import Counter

from vicinal.audits.record import Audit
from vicinal.audits.sections import Head, RiskCurve, Threshold
from vicinal.report.figures.stress import name_of as stress_name  # noqa: F401  (for the template)
from vicinal.report.figures.stress import stress_sentences as stress_sentences
from vicinal.report.words import (
    capital,
    count,
    level,
    name,
    percent,
    plural,
    sentence,
    threshold,
)

AT_FLOOR = 1.3  # an ECE within this factor of its noise floor is not told apart from perfect
NEIGHBOR_HEADS = ("ned", "knn", "1nn", "dudani", "gou", "dknn")

MEANING = {
    "supported": "Neighbors agree on the class, and the row lies where held-out rows lie.",
    "contested": "Confidence is below the level that keeps the target accuracy, or the neighbors "
    "disagree more than they do for held-out rows.",
    "unfamiliar": "More foreign to the support than nearly all held-out rows. Its confidence is "
    "not meaningful.",
    "isolated": "Few support rows carry the answer, or, where the network's own view is at hand, "
    "hardly anything is treated alike. By itself this is no sign of an error.",
}


def recommended(audit: Audit) -> Head:
    """The head the record recommends; the first one if it names none of them."""
    return next((head for head in audit.heads if head.name == audit.recommended), audit.heads[0])


def at_floor(head: Head) -> bool:
    if head.ece is None or head.noise_floor is None:
        return False
    return head.ece <= AT_FLOOR * head.noise_floor


def scored(audit: Audit) -> bool:
    """Whether any head was: the query has labels."""
    return any(head.accuracy is not None for head in audit.heads)


def headline(audit: Audit) -> tuple[str, ...]:
    """Three sentences: may the confidence be believed, what to accept, what to look at."""
    found = kept_sentence(audit), threshold_sentence(audit), target_sentence(audit)
    accept = " ".join(filter(None, found))
    return (calibration_sentence(audit), accept, attention_sentence(audit))


def calibration_sentence(audit: Audit) -> str:
    if not scored(audit):
        return "The query has no labels, so neither accuracy nor calibration was measured."
    head = recommended(audit)
    if head.ece is None or head.noise_floor is None:
        return (
            f"{capital(head.title)} is recommended; too few labeled rows to measure its "
            "calibration (an ECE would be mostly noise)."
        )
    title, choice = capital(head.title), audit.recommendation
    lead = f"{title} is right on {percent(head.accuracy)} of the inputs with a label"
    best = choice is None or choice.best == choice.head
    if not head.name.startswith(NEIGHBOR_HEADS):
        how = "the lowest NLL here" if best else "as low an NLL as any here"
        lead += f" and has {how}, ahead of the neighbor heads: keep it. It "
    elif len(audit.heads) > 1:
        how = "the lowest NLL of" if best else "an NLL within one standard error of the lowest of"
        lead += f", has {how} {len(audit.heads)} heads and "
    else:
        lead += " and "
    numbers = f"(ECE {percent(head.ece)}, noise floor {percent(head.noise_floor)})"
    if at_floor(head):
        return f"{lead}is calibrated within sampling noise {numbers}."
    gap = head.overconfidence
    if gap is None or abs(gap) < head.ece / 2:  # errors on both sides, or not known
        side = "miscalibrated"
    else:
        side = "overconfident" if gap > 0 else "underconfident"
    return f"{lead}is {side} beyond sampling noise {numbers}."


def kept_sentence(audit: Audit) -> str | None:
    """Whose the verdicts are, where the recommended head could not be kept."""
    choice = audit.recommendation
    kept = next((h for h in audit.heads if choice is not None and h.name == choice.kept), None)
    if kept is None or kept.name == audit.recommended:
        return None
    return f"Verdicts, threshold and saved head are those of {kept.title}."


def threshold_sentence(audit: Audit) -> str:
    curve = audit.risk_coverage
    if curve is None or curve.chosen is None:
        why = audit.not_checked.get("threshold", "its promise is counted on rows with labels")
        return sentence(f"No threshold was chosen: {why}")
    pick = curve.chosen
    if pick.value is None:
        sure = threshold(pick.level or pick.target)
        return (
            f"No threshold reaches an accuracy of {level(pick.target)} with a "
            f"{percent(1 - pick.delta, 0)} lower bound on this data. {reachable(curve)} Rows "
            f"called supported have a confidence of at least {sure}, taken at face value."
        )
    return f"Accept confidence ≥ {threshold(pick.value)}: {accepted(audit, pick)}."


def accepted(audit: Audit, pick: Threshold) -> str:
    """What a threshold accepts and promises: of the rows with a label, or of those of ``calib``."""
    of = "inputs" if pick.rows == len(audit.cases.id) else "inputs with a label"
    of = of if scored(audit) else "the calibration rows"
    least = f"{level(pick.target)} ({percent(1 - pick.delta, 0)} bound, n = {count(pick.rows)})"
    return f"{percent(pick.coverage)} of {of}, at an accuracy of at least {least}"


def reachable(curve: RiskCurve) -> str:
    """The highest target that some threshold keeps; else how many of all inputs are right."""
    kept = [pick for pick in curve.targets if pick.value is not None]
    if kept:
        last = max(kept, key=lambda pick: pick.target)
        return f"{level(last.target)} is reachable: it accepts {percent(last.coverage)}."
    right, least = percent(curve.accuracy[-1]), percent(curve.lower_bound[-1])
    return f"Of all inputs {right} are right, at least {least} with that bound."


def target_sentence(audit: Audit) -> str | None:
    """Why the target accuracy is what it is, where nobody named one."""
    pick = audit.risk_coverage.chosen if audit.risk_coverage else None
    if pick is None or not pick.why:
        return None
    return f"Target accuracy {level(pick.target)}: {pick.why}."


def attention_sentence(audit: Audit) -> str:
    counts = audit.verdict_counts()
    strange, total = counts["unfamiliar"], sum(counts.values())
    rows = (
        f"{count(strange)} of {plural(total, 'input')} {'is' if strange == 1 else 'are'} unfamiliar"
        if strange
        else f"none of {plural(total, 'input')} was found to be unfamiliar"
    )
    if (known := audit.unknowns) is not None:
        rows += f" ({percent(known.supported)} of known-foreign rows would pass as supported)"
    if audit.labels is None:
        return f"{rows[0].upper()}{rows[1:]}; support labels were not checked."
    suspects, checked = audit.suspect_count or 0, audit.labels.checked
    if not suspects:
        return f"No contradiction found among {plural(checked, 'support label')}; {rows}."
    verb, whose = ("is", "its") if suspects == 1 else ("are", "their")
    found = f"{count(suspects)} of {plural(checked, 'support label')} {verb} contradicted by"
    return f"{found} {whose} neighborhood; {rows}."


def verdict_shares(audit: Audit) -> list[tuple[str, int, float]]:
    counts = audit.verdict_counts()
    return [(name, n, n / max(sum(counts.values()), 1)) for name, n in counts.items()]


def in_sample(audit: Audit) -> str:
    """Beside what is counted on the rows of the record, where these are not all."""
    held = len(audit.cases.id)
    return f" in a sample of {count(held)}" if held < sum(audit.verdict_counts().values()) else ""


def every_row(audit: Audit) -> str:
    """The files of the run that hold every row: tables, or parts where they would be too long."""
    parts = " ".join(audit.scale.parts) if audit.scale else ""
    names = [f"{n}-*.parquet" if n in parts else f"{n}.csv" for n in ("samples", "labels")]
    return " and ".join(names[1:] if in_sample(audit) and "samples" not in parts else names)


def label_sentences(audit: Audit) -> list[str]:
    """How many labels are wrong, which classes may be one, how many rows could be either of two."""
    found, lines = audit.labels, list[str]()
    if found is None:
        return lines
    if (wrong := found.wrong) is not None:
        between = f"between {count(wrong.low)} and {count(wrong.high)}"
        line = f"Estimated wrong: about {count(wrong.count)} of {count(found.checked)} ({between})"
        if not wrong.high:
            line = f"None of {count(found.checked)} is estimated to be wrong"
        elif wrong.pairs:
            top = wrong.pairs[0]
            given, true = (name(audit.classes[c], 32, audit.classes) for c in (top.given, top.true))
            line += f"; most often {given} for {true} (about {count(round(top.count))})"
        lines.append(line + ".")
    for pair in found.alike[:3]:
        a, b = (name(audit.classes[c], 32, audit.classes) for c in (pair.a, pair.b))
        lines.append(
            f"{a} and {b} may be one class: they are told apart only "
            f"{percent(max(pair.apart, 0), 0)} as well as classes that never mix."
        )
    if found.ambiguous is not None and found.ambiguous.rows:
        lines.append(
            f"{plural(len(found.ambiguous.rows), 'label')} could be either of two: the second "
            f"likeliest is within a factor of {found.ambiguous.factor:g}."
        )
    return lines


def effect_sentences(audit: Audit) -> list[str]:
    """What accepting suggestions would change; exact for the neighbor head and for it alone."""
    titles = {head.name: head.title for head in audit.heads}
    lines = []
    for effect in audit.labels.effects if audit.labels else ():
        which = "top suggestion" if effect.top == 1 else f"top {count(effect.top)} suggestions"
        line = f"Accepting the {which} without a look changes "
        line += plural(effect.changed, "prediction")
        if effect.accuracy_before is not None and effect.accuracy_after is not None:
            whose = titles.get(effect.head, "the neighbor head")
            before, after = percent(effect.accuracy_before), percent(effect.accuracy_after)
            line += f" ({count(effect.fixed)} fixed, {count(effect.broken)} broken): accuracy of "
            line += f"{whose} {before} → {after}"
        lines.append(line + ".")
    return lines


def note_words(note: str) -> str:
    """What is odd about a head, short enough for a table; the warning says it in full.

    >>> note_words("the temperature ran into its lower bound (0.1): the classes have collapsed")
    'the temperature ran into its lower bound'
    """
    return note.partition(":")[0].partition(" (")[0]


def fit_groups(audit: Audit) -> list[list[str]]:
    """Rows per diagnosis of the fit map, most first."""
    points = audit.network.fit_map if audit.network else ()
    groups = Counter(point.group for point in points)
    return [[name, count(n), percent(n / len(points))] for name, n in groups.most_common()]
