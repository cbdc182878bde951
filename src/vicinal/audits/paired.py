"""Two audits of the same rows, paired: what changed, by how much, and is it more than chance?"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from vicinal.audits.record import Audit
from vicinal.audits.resampling import (
    Delta,
    Difference,
    Floats,
    Measure,
    delta_of,
    ece,
    mean,
    resampled,
    share_of,
)
from vicinal.audits.same_rows import Run, overlap_of, same_rows, unlike
from vicinal.audits.sections import Head, Provenance
from vicinal.checks import InputError, closest
from vicinal.evaluation import threshold_for_accuracy
from vicinal.records import Record

SHOWN = 200
FIELDS = ("accuracy", "ece", "nll")
PROMISES = 200  # resamples of what a threshold may accept: each is a search for it
_GATE = re.compile(r"^\s*([\w.@+-]+?)\s*(<=|>=|<|>)\s*([+-]?)\s*(\d*\.?\d+(?:e-?\d+)?)\s*(%?)\s*$")
_FAILS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


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
class ClassChange(Record):
    """Rows of one class, and how many of them each run gets right."""

    name: str
    rows: int
    right_a: int
    right_b: int
    fixed: int
    broken: int


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
    classes: tuple[ClassChange, ...] = ()  # those that moved, most first


def compare_audits(
    a: Audit,
    b: Audit,
    provenance: Provenance,
    *,
    gates: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
    names: tuple[str, str] | None = None,
) -> Comparison:
    """``b`` against ``a``: every difference is b minus a, its interval from paired resampling.

    Parameters
    ----------
    a, b : audits of the same query rows, paired by id.
    provenance : what the comparison was made with.
    gates : ``"accuracy < -0.01"`` (a signed number: the change) or ``"ece > 0.05"`` (an unsigned
        one: b's own value); a gate fails when its expression is true.
    level : of the intervals.
    seed : of the resampling.
    names : what the runs are called; their own names, unless given.
    """
    names = names or (a.name, b.name)
    first, second = runs = same_rows(a, b, names)
    a_columns, b_columns = first.columns, second.columns
    both = zip(a_columns["label"], b_columns["label"], strict=True)
    labels = [p if p is not None else q for p, q in both]
    pairs = [side[name] for name in ("predicted", "confidence") for side in (a_columns, b_columns)]
    lines = zip(a_columns["id"], labels, *pairs, strict=True)
    changes = [change for line in lines if (change := Change(*line)).a != change.b]
    changes.sort(key=lambda c: (-max(c.confidence_a, c.confidence_b), c.id))
    labeled = None not in labels
    left = len(a.cases.id) + len(b.cases.id) - 2 * len(labels)
    overlap, overlap_k = overlap_of(first, second)
    deltas = _deltas(runs, labels, level, seed)
    sides = first.labeled, second.labeled
    unpaired = _why_unpaired(*sides)
    heads = _unpaired_heads(*sides, level) if unpaired else _paired_heads(*sides, level, seed, left)
    found = Comparison(
        a=names[0],
        b=names[1],
        rows=len(labels),
        level=level,
        deltas=(*deltas, *heads),
        overlap=overlap,
        overlap_k=overlap_k,
        changed=len(changes),
        fixed=sum(c.b == c.label for c in changes) if labeled else None,
        broken=sum(c.a == c.label for c in changes) if labeled else None,
        changes=tuple(changes[:SHOWN]),
        provenance=provenance,
        warnings=tuple(unlike(runs, names, left)),
        not_checked=_not_checked(bool(deltas), unpaired if heads else None, overlap),
        classes=_class_changes(labels, a_columns["predicted"], b_columns["predicted"]),
    )
    return dataclasses.replace(found, gates=tuple(_gate(text, found) for text in gates))


def _deltas(
    runs: tuple[Run, Run], labels: Sequence[str | None], level: float, seed: int
) -> list[Delta]:
    """What the labeled rows say, with intervals; nothing where there are none."""
    known = [at for at, label in enumerate(labels) if label is not None]
    if not known:
        return []
    right, sure = [], []
    for run in runs:
        predicted, confidence = run.columns["predicted"], run.columns["confidence"]
        right.append(np.array([predicted[at] == labels[at] for at in known], float))
        sure.append(np.array([confidence[at] for at in known]))
    curve = runs[0].audit.risk_coverage
    target = curve.chosen.target if curve and curve.chosen else 0.9
    measures = [Measure(mean, *((r,) for r in right)), Measure(ece, *zip(right, sure, strict=True))]
    hits, gap = resampled(measures, len(known), level, seed)
    return [
        delta_of("accuracy", "accuracy", hits, True),
        delta_of("ece", "ECE", gap, False),
        _promised_coverage(right, sure, target, level, seed),
    ]


def _promised_coverage(
    right: Sequence[Floats], sure: Sequence[Floats], target: float, level: float, seed: int
) -> Delta:
    """What each run may accept and promise the target for: the audits' own number, at one target;
    ``right`` and ``sure`` are of both runs, row by row."""
    rng, n = np.random.default_rng(seed), len(right[0])
    draws = [np.arange(n), *(rng.integers(n, size=n) for _ in range(PROMISES))]
    runs = [(c, r.astype(bool)) for c, r in zip(sure, right, strict=True)]
    shares = np.array(
        [
            [threshold_for_accuracy(c[rows], r[rows], target).coverage for c, r in runs]
            for rows in draws
        ]
    )
    change = shares[:, 1] - shares[:, 0]
    low, high = np.quantile(change[1:], [(1 - level) / 2, (1 + level) / 2])
    title, (was, now) = f"coverage at {100 * target:g} %", shares[0].tolist()
    return Delta("coverage", title, was, now, change[0], low, high, True)


def _class_changes(
    labels: Sequence[str | None], a: Sequence[str], b: Sequence[str]
) -> tuple[ClassChange, ...]:
    """Classes of which some row became right or wrong, most such rows first."""
    tally: dict[str, list[int]] = {}
    for label, p, q in zip(labels, a, b, strict=True):
        if label is not None:
            counts = tally.setdefault(label, [0, 0, 0, 0, 0])
            hits = (True, p == label, q == label, q == label != p, p == label != q)
            tally[label] = [n + hit for n, hit in zip(counts, hits, strict=True)]
    moved = [ClassChange(name, *counts) for name, counts in tally.items() if any(counts[3:])]
    return tuple(sorted(moved, key=lambda c: (-c.fixed - c.broken, c.name)))


def _not_checked(labeled: bool, unpaired: str | None, overlap: float | None) -> dict[str, str]:
    found = {} if labeled else {"accuracy": "the query has no labels"}
    if overlap is None:
        found["neighbors"] = "the two supports have no id in common (rows without ids are numbered)"
    if unpaired is not None:
        found["heads, paired"] = f"{unpaired}; their intervals are those of independent rows"
    return found


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
    if not math.isfinite(limit):
        raise InputError(f"--fail-if {text!r}: no value is beyond that, so the gate never fails.")
    if value is None:
        return Gate(text, None, False)  # what cannot be measured does not pass
    return Gate(text, float(value), not _FAILS[comparison](value, limit))


def _why_unpaired(a: Run, b: Run) -> str | None:
    """Why the heads of two runs cannot be paired; None where they can."""
    if [a.audit.cases.id[row] for row in a.rows] != [b.audit.cases.id[row] for row in b.rows]:
        return "other rows have a label in one run than in the other"
    kept = [{rows.name for rows in side.audit.head_rows} for side in (a, b)]
    if not {head.name for head, _ in _common_heads(a, b)} <= kept[0] & kept[1]:
        return "a run keeps no answers of its heads (it is of an older version): audit it again"
    return None


def _common_heads(a: Run, b: Run) -> list[tuple[Head, Head]]:
    heads = {head.name: head for head in b.audit.heads}
    return [(head, heads[head.name]) for head in a.audit.heads if head.name in heads]


def _paired_heads(a: Run, b: Run, level: float, seed: int, left: int) -> list[Delta]:
    """Every head both runs have: ``accuracy_ned``, ``nll_softmax``, …, from the same resamples.

    Values are those of the audits, or of the common rows where some are ``left`` out; rows give the
    interval. A log loss that is infinite has none.
    """
    answers = [a.answers, b.answers]
    lines, measures = [], []
    for head, other in _common_heads(a, b):
        (r, c, n), (r2, c2, n2) = (side[head.name] for side in answers)
        counted = (np.isfinite(n) & np.isfinite(n2)).astype(np.float64)
        n, n2 = (np.where(counted > 0, values, 0) for values in (n, n2))
        lines += [_line(field, head, other, paired=True) for field in FIELDS]
        measures += [
            Measure(mean, (r,), (r2,)),
            Measure(ece, (r, c), (r2, c2)),
            Measure(share_of, (n, counted), (n2, counted)),
        ]
    known = [line.delta is not None for line in lines]
    found = iter(resampled([*itertools.compress(measures, known)], len(a.rows), level, seed))
    return [
        _measured(line, next(found), bool(left)) if is_known else line
        for line, is_known in zip(lines, known, strict=True)
    ]


def _measured(line: Delta, found: Difference, anew: bool) -> Delta:
    """The line with its interval, and with the values of these rows where they are not all."""
    line = dataclasses.replace(line, low=found.low, high=found.high)
    a, b = found.a, found.b
    return dataclasses.replace(line, a=a, b=b, delta=b - a) if anew else line


def _line(field: str, head: Head, other: Head, paired: bool) -> Delta:
    """Both values and their difference, no interval yet."""
    p, q = getattr(head, field), getattr(other, field)
    common = [part for part in head.title.split(", ") if part in other.title.split(", ")]
    called = ", ".join(common) or head.name  # each run may have chosen a k of its own
    title = f"{'accuracy' if field == 'accuracy' else field.upper()} of {called}"
    change = None if p is None or q is None else q - p
    up = field == "accuracy"
    return Delta(f"{field}_{head.name}", title, p, q, change, None, None, up, paired)


def _unpaired_heads(a: Run, b: Run, level: float) -> list[Delta]:
    """Every head both runs have, rows not paired: the interval is that of independent rows."""
    found, reach = [], NormalDist().inv_cdf((1 + level) / 2)
    for head, other in _common_heads(a, b):
        for field in FIELDS:
            line = _line(field, head, other, paired=False)
            one, two = (getattr(part, f"{field}_se", None) for part in (head, other))
            if line.delta is not None and one is not None and two is not None:
                half = reach * math.hypot(one, two)
                line = dataclasses.replace(line, low=line.delta - half, high=line.delta + half)
            found.append(line)
    return found
