"""Two audits of the same rows, paired: what changed, by how much, and is it more than chance?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.paired_measures import Delta, accuracy, coverage, ece, resampled
from vicinal.audits.record import Audit
from vicinal.audits.sections import Provenance
from vicinal.checks import InputError, closest
from vicinal.records import Record

SHOWN = 200
_GATE = re.compile(r"^\s*([\w.@+-]+?)\s*(<=|>=|<|>)\s*([+-]?)\s*(\d*\.?\d+(?:e-?\d+)?)\s*(%?)\s*$")


@dataclass(frozen=True)
class Change(Record):
    """A row on which the two runs disagree."""

    id: str
    label: str | None
    a: str
    b: str
    confidence_a: float
    confidence_b: float


@dataclass(frozen=True)
class Gate(Record):
    expression: str
    value: float | None
    passed: bool


@dataclass(frozen=True)
class Comparison(Record):
    """Two runs, paired by row."""

    a: str
    b: str
    rows: int
    level: float  # of the intervals
    deltas: tuple[Delta, ...]
    overlap: float | None  # share of neighbors the two runs have in common
    overlap_k: int | None
    changed: int
    fixed: int | None
    broken: int | None
    changes: tuple[Change, ...]  # the first few, largest confidence first
    provenance: Provenance
    gates: tuple[Gate, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class _Paired:
    """The rows both audits judged and both know the label of."""

    ids: tuple[str, ...]
    rows_a: NDArray[np.int64]
    rows_b: NDArray[np.int64]
    labels: tuple[str | None, ...]
    warnings: tuple[str, ...]


def compare_audits(
    a: Audit,
    b: Audit,
    provenance: Provenance,
    *,
    gates: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """``b`` against ``a``: every difference is b minus a, its interval from paired resampling.

    Parameters
    ----------
    a, b
        Audits of the same query rows, paired by id.
    provenance
        What the comparison was made with.
    gates
        ``"accuracy < -0.01"`` (a signed number: the change) or ``"ece > 0.05"`` (an unsigned one:
        b's own value); a gate fails when its expression is true.
    level
        Of the intervals.
    seed
        Of the resampling.
    """
    paired = _pair(a, b)
    deltas, not_checked = _deltas(a, b, paired, level, seed)
    predicted_a = [a.classes[a.cases.predicted[i]] for i in paired.rows_a]
    predicted_b = [b.classes[b.cases.predicted[i]] for i in paired.rows_b]
    changed = [i for i, (p, q) in enumerate(zip(predicted_a, predicted_b, strict=True)) if p != q]
    labeled = all(label is not None for label in paired.labels)
    fixed = [i for i in changed if predicted_b[i] == paired.labels[i]]
    broken = [i for i in changed if predicted_a[i] == paired.labels[i]]
    changes = [
        Change(
            paired.ids[i],
            paired.labels[i],
            predicted_a[i],
            predicted_b[i],
            a.cases.confidence[paired.rows_a[i]],
            b.cases.confidence[paired.rows_b[i]],
        )
        for i in changed
    ]
    changes.sort(key=lambda c: (-max(c.confidence_a, c.confidence_b), c.id))
    overlap, overlap_k = _overlap(a, b, paired)
    found = Comparison(
        a=a.name,
        b=b.name,
        rows=len(paired.ids),
        level=level,
        deltas=tuple(deltas),
        overlap=overlap,
        overlap_k=overlap_k,
        changed=len(changed),
        fixed=len(fixed) if labeled else None,
        broken=len(broken) if labeled else None,
        changes=tuple(changes[:SHOWN]),
        provenance=provenance,
        warnings=paired.warnings,
        not_checked=not_checked,
    )
    return dataclasses.replace(found, gates=tuple(_gate(text, found) for text in gates))


def _pair(a: Audit, b: Audit) -> _Paired:
    place = {name: row for row, name in enumerate(b.cases.id)}
    common = [(row, place[name]) for row, name in enumerate(a.cases.id) if name in place]
    if not common:
        raise InputError(
            f"{a.name} and {b.name} have no query row in common (by id). Audit the same query set."
        )
    label_a = [_name(a, a.cases.label[i]) for i, _ in common]
    label_b = [_name(b, b.cases.label[j]) for _, j in common]
    differ = sum(
        p != q for p, q in zip(label_a, label_b, strict=True) if p is not None and q is not None
    )
    if differ:
        raise InputError(
            f"{differ} rows have another label in {b.name} than in {a.name}: the ids do not name "
            "the same rows. Give both query sets the same 'ids'."
        )
    notes = []
    left = len(a.cases.id) + len(b.cases.id) - 2 * len(common)
    if left:
        notes.append(f"{left} rows are in only one of the runs and are left out.")
    return _Paired(
        tuple(a.cases.id[i] for i, _ in common),
        np.array([i for i, _ in common]),
        np.array([j for _, j in common]),
        tuple(p if p is not None else q for p, q in zip(label_a, label_b, strict=True)),
        tuple(notes),
    )


def _name(audit: Audit, label: int | None) -> str | None:
    return None if label is None else audit.classes[label]


def _deltas(
    a: Audit, b: Audit, paired: _Paired, level: float, seed: int
) -> tuple[list[Delta], dict[str, str]]:
    deltas = []
    known = np.array([label is not None for label in paired.labels])
    not_checked = {}
    if known.any():
        target = (
            a.risk_coverage.chosen.target if a.risk_coverage and a.risk_coverage.chosen else 0.99
        )
        right, sure = [], []
        for audit, rows in ((a, paired.rows_a), (b, paired.rows_b)):
            names = [audit.classes[audit.cases.predicted[i]] for i in rows[known]]
            labels = [label for label in paired.labels if label is not None]
            right.append(np.array([p == q for p, q in zip(names, labels, strict=True)], float))
            sure.append(np.array([audit.cases.confidence[i] for i in rows[known]]))
        percent = f"{100 * target:g} %"
        measures = (
            ("accuracy", "accuracy", accuracy, True),
            ("ece", "ECE", ece, False),
            ("coverage", f"coverage at {percent}", partial(coverage, target=target), True),
        )
        deltas += resampled(measures, right, sure, level, seed)
    else:
        not_checked["accuracy"] = "the query has no labels"
    deltas += _from_heads(a, b)
    return deltas, not_checked


def _from_heads(a: Audit, b: Audit) -> list[Delta]:
    """Every head both runs have, without an interval: ``nll_ned``, ``ece_softmax``, …"""
    found = []
    heads = {head.name: head for head in b.heads}
    for head in a.heads:
        other = heads.get(head.name)
        if other is None:
            continue
        for field, up in (("accuracy", True), ("ece", False), ("nll", False)):
            p, q = getattr(head, field), getattr(other, field)
            change = None if p is None or q is None else q - p
            title = f"{'NLL' if field == 'nll' else field} of {head.title}"
            found.append(Delta(f"{field}_{head.name}", title, p, q, change, None, None, up))
    return found


def _overlap(a: Audit, b: Audit, paired: _Paired) -> tuple[float | None, int | None]:
    """Share of the ten nearest support rows (by id) that both runs have."""
    names_a = dict(zip(a.support.row, a.support.id, strict=True))
    names_b = dict(zip(b.support.row, b.support.id, strict=True))
    near_a = [a.cases.neighbors[i] for i in paired.rows_a]
    near_b = [b.cases.neighbors[i] for i in paired.rows_b]
    k = min(10, *(len(n) for n in near_a), *(len(n) for n in near_b))
    if k == 0:
        return None, None
    shares = [
        len({names_a[i] for i in p[:k]} & {names_b[j] for j in q[:k]}) / k
        for p, q in zip(near_a, near_b, strict=True)
    ]
    return float(np.mean(shares)), k


def _gate(text: str, found: Comparison) -> Gate:
    match = _GATE.match(text)
    if match is None:
        raise InputError(
            f"--fail-if {text!r} is not of the form 'measure > number'. A signed number (+0.01) is "
            "the change, an unsigned one the value of the second run."
        )
    name, comparison, sign, digits, percent = match.groups()
    values = {d.name: (d.b, d.delta) for d in found.deltas}
    values |= {"changed": (found.changed, found.changed), "overlap": (found.overlap, found.overlap)}
    name = "coverage" if re.fullmatch(r"cover(age)?(@?\d+)?", name) else name
    if name not in values:
        near = ", ".join(closest(name, values)) or ", ".join(values)
        raise InputError(f"--fail-if {text!r}: no measure {name!r}. Close names: {near}.")
    value = values[name][1 if sign else 0]
    limit = float(sign + digits) / (100 if percent else 1)
    if value is None:
        return Gate(text, None, False)  # what cannot be measured does not pass
    fails = {
        "<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit
    }[comparison]  # fmt: skip
    return Gate(text, float(value), not fails)
