"""What to do next, first on the page: three tiles with their queues, three actions with effects.

Computed from the record alone, so that it stands there where no script runs.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from vicinal.audits.record import Audit
from vicinal.report.facts import accepted, effect_sentences, in_sample, threshold_sentence
from vicinal.report.words import count, level, percent, plural, threshold

SAFE = 0.9  # the least accuracy that is called so: the lowest target an audit proposes
SAVED_HEAD = (
    "The saved head is fitted on all rows, each verdict here without its own row: near a "
    "threshold the two may differ."
)


class ActionTile(NamedTuple):
    """A queue: how many rows wait in it, what is known of its errors, and what opens it."""

    key: str
    title: str
    rows: int
    of: str
    detail: str
    pick: str  # the filter that a click sets, or the section it opens


class Action(NamedTuple):
    """Something to do, what it is expected to change, and the command or button that does it."""

    key: str
    title: str
    effect: str
    button: str
    command: str = ""


def tiles(audit: Audit) -> tuple[ActionTile, ...]:
    return (accept_tile(audit), labels_tile(audit), scope_tile(audit))


def rows_with(audit: Audit, *verdicts: str) -> list[int]:
    return [row for row, verdict in enumerate(audit.cases.verdict) if verdict in verdicts]


def wrong_of(audit: Audit, rows: list[int]) -> tuple[int, int]:
    """How many of these rows have a label, and how many of those are predicted wrongly.

    A class that the support lacks is a label too, and none that could be predicted.
    """
    cases = audit.cases
    others = cases.others or (None,) * len(cases.id)
    labeled = [row for row in rows if cases.label[row] is not None or others[row] is not None]
    return len(labeled), sum(cases.label[row] != cases.predicted[row] for row in labeled)


def wrong_words(audit: Audit, rows: list[int]) -> str:
    """Empty where no row has a label."""
    labeled, wrong = wrong_of(audit, rows)
    some, verb = f"{count(wrong)} of the {count(labeled)}", "is" if wrong == 1 else "are"
    share = percent(wrong / labeled) if labeled else ""
    return f"{some} with a label{in_sample(audit)} {verb} wrong ({share})." if labeled else ""


def accept_tile(audit: Audit) -> ActionTile:
    rows, counts = rows_with(audit, "supported"), audit.verdict_counts()
    found, total = counts["supported"], sum(counts.values())
    detail = "No row is confident, agreed on and familiar at once."
    if rows:
        unlabeled = "None of them has a label, so their errors were not measured."
        detail = wrong_words(audit, rows) or unlabeled
    share = percent(found / max(total, 1), 0)
    of = f"{share} of {plural(total, 'input')}"
    return ActionTile("accept", accept_title(audit), found, of, detail, "verdict=supported")


def accept_title(audit: Audit) -> str:
    """Nothing is called safe without a promise, or at one below the targets a run would choose."""
    pick = audit.risk_coverage.chosen if audit.risk_coverage else None
    if pick is None:
        return "Supported, accuracy not measured"
    if pick.value is not None and pick.target >= SAFE:
        return "Safe to accept"
    return f"Supported, {level(pick.target)} {'at least' if pick.value else 'not promised'}"


def labels_tile(audit: Audit) -> ActionTile:
    found = audit.labels
    if found is None:
        return ActionTile("labels", "Labels to review", 0, "not checked", "", "section=labels")
    of = f"of {plural(found.checked, 'support label')}"
    detail = "No contradiction found. Labels that a model has memorized would not show."
    if found.suspects:
        detail = "Contradicted by their own neighborhood."
        if found.wrong is not None:
            verb = "is" if found.wrong.count == 1 else "are"
            detail = (
                f"About {plural(found.wrong.count, 'label')} {verb} estimated to be wrong "
                f"({count(found.wrong.low)} to {count(found.wrong.high)})."
            )
    suspects = audit.suspect_count or 0
    return ActionTile("labels", "Labels to review", suspects, of, detail, "section=labels")


def scope_tile(audit: Audit) -> ActionTile:
    rows, counts = rows_with(audit, "unfamiliar"), audit.verdict_counts()
    of = f"of {plural(sum(counts.values()), 'input')}"
    if audit.unknowns is not None:
        u = audit.unknowns
        detail = (
            f"{percent(u.parts[0].flagged, 0)} of known-foreign rows are noticed; "
            f"{percent(u.supported, 0)} would pass as supported."
        )
    else:
        detail = "More foreign than nearly all held-out rows, so their confidence means nothing. "
        detail = (detail + wrong_words(audit, rows)).rstrip()
    return ActionTile(
        "scope", "Out of scope", counts["unfamiliar"], of, detail, "verdict=unfamiliar"
    )


def actions(audit: Audit, predict: str = "") -> tuple[Action, ...]:
    """``predict``: the command that judges rows with the head that was kept."""
    found = (review_action(audit), people_action(audit), ship_action(audit, predict))
    return tuple(action for action in found if action is not None)


def review_action(audit: Audit) -> Action | None:
    if audit.labels is None or not audit.labels.suspects:
        return None
    effect = "Relabeled rows vote for their new class; export the decisions and apply them."
    if audit.labels.effects:
        last, effect = audit.labels.effects[-1], effect_sentences(audit)[-1]
        if (last.broken or 0) > (last.fixed or 0):
            effect = f"{effect[:-1]}; look at each first."
    command = f"{audit.provenance.command} --apply decisions.csv"
    command = command if command.startswith("vicinal audit") else ""
    title = f"Review {plural(audit.suspect_count or 0, 'label')}"
    return Action("review", title, effect, "Start reviewing", command)


def people_action(audit: Audit) -> Action | None:
    rows = rows_with(audit, "contested", "unfamiliar", "isolated")
    if not rows:
        return None
    labeled, wrong = wrong_of(audit, rows)
    _, total = wrong_of(audit, list(range(len(audit.cases.id))))
    held = ": all that are not supported"
    if labeled and total:
        held = f", {'with' if wrong else 'without'} the one error"
        if total > 1:
            held = f", with {count(wrong)} of the {count(total)} errors ({percent(wrong / total)})"
    effect = f"That is {percent(len(rows) / len(audit.cases.id), 0)} of the inputs{held}."
    title = f"Send {plural(len(rows), 'row')}{in_sample(audit)} to people"
    return Action("people", title, effect, "Download the list")


def ship_action(audit: Audit, predict: str) -> Action | None:
    curve = audit.risk_coverage
    if curve is None or curve.chosen is None:
        return None
    pick = curve.chosen
    if pick.value is None:
        effect = threshold_sentence(audit)
        return Action("ship", "Choose another target", effect, "Move the target")
    effect = f"Accepts {accepted(audit, pick)}. {beyond_confidence(audit, pick.value)}"
    if audit.data.calib is None:
        effect += f" {SAVED_HEAD}"
    title = f"Ship with confidence ≥ {threshold(pick.value)}"
    title += "" if pick.target >= SAFE else f", if {level(pick.target)} will do"
    from_python = audit.provenance.command.startswith("vicinal.audit")
    predict = predict or ('report.head.save("trust.vic")' if from_python else "")
    return Action("ship", title, effect, "Move the target", predict)


def beyond_confidence(audit: Audit, least: float) -> str:
    """What the verdicts turn away of the rows that confidence alone would accept, and why."""
    sure = [row for row, c in enumerate(audit.cases.confidence) if c >= least]
    found = Counter(audit.cases.verdict[row] for row in sure)
    others = [f"{count(found[v])} {v}" for v in ("unfamiliar", "contested", "isolated") if found[v]]
    kept = f"Of {plural(len(sure), 'row')} as sure, {count(found['supported'])} are supported"
    go = "goes" if len(sure) - found["supported"] == 1 else "go"
    return f"{kept}; {', '.join(others)} {go} to people." if others else f"{kept}."
