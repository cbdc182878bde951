"""Every head of two runs: paired row by row where both kept its answers on the same rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from vicinal.audits.record import Audit
from vicinal.audits.resampling import Delta, Floats, Measure, ece, mean, resampled, share_of
from vicinal.audits.sections import Head

Side = tuple[Audit, list[int]]  # a run and its query rows that have a label, in the common order
FIELDS = ("accuracy", "ece", "nll")


def why_unpaired(a: Side, b: Side, left: int) -> str | None:
    """Why the heads of two runs cannot be paired; None where they can."""
    if left:
        return f"{left} rows are in only one of the runs"
    if [a[0].cases.id[row] for row in a[1]] != [b[0].cases.id[row] for row in b[1]]:
        return "other rows have a label in one run than in the other"
    kept = [{rows.name for rows in side[0].head_rows} for side in (a, b)]
    if not {head.name for head, _ in _common_heads(a[0], b[0])} <= kept[0] & kept[1]:
        return "a run keeps no answers of its heads (it is of an older version): audit it again"
    return None


def _common_heads(a: Audit, b: Audit) -> list[tuple[Head, Head]]:
    heads = {head.name: head for head in b.heads}
    return [(head, heads[head.name]) for head in a.heads if head.name in heads]


def paired_heads(a: Side, b: Side, level: float, seed: int) -> list[Delta]:
    """Every head both runs have: ``accuracy_ned``, ``nll_softmax``, …, from the same resamples.

    Values are those of the audits; rows give the interval. A log loss that is infinite has none.
    """
    answers = [_answers(*a), _answers(*b)]
    lines, measures = [], []
    for head, other in _common_heads(a[0], b[0]):
        (r, c, n), (r2, c2, n2) = (side[head.name] for side in answers)
        counted = (np.isfinite(n) & np.isfinite(n2)).astype(np.float64)
        n, n2 = (np.where(counted > 0, values, 0) for values in (n, n2))
        of = (
            Measure(mean, (r,), (r2,)),
            Measure(ece, (r, c), (r2, c2)),
            Measure(share_of, (n, counted), (n2, counted)),
        )
        for field, measure in zip(FIELDS, of, strict=True):
            lines.append(_line(field, head, other, paired=True))
            measures.append(measure)
    known = [line.delta is not None for line in lines]
    found = iter(resampled([*itertools.compress(measures, known)], len(a[1]), level, seed))
    return [
        replace(line, low=(got := next(found)).low, high=got.high) if is_known else line
        for line, is_known in zip(lines, known, strict=True)
    ]


def _line(field: str, head: Head, other: Head, paired: bool) -> Delta:
    """Both values and their difference, no interval yet."""
    p, q = getattr(head, field), getattr(other, field)
    common = [part for part in head.title.split(", ") if part in other.title.split(", ")]
    called = ", ".join(common) or head.name  # each run may have chosen a k of its own
    title = f"{'accuracy' if field == 'accuracy' else field.upper()} of {called}"
    change = None if p is None or q is None else q - p
    up = field == "accuracy"
    return Delta(f"{field}_{head.name}", title, p, q, change, None, None, up, paired)


def _answers(audit: Audit, rows: list[int]) -> dict[str, tuple[Floats, Floats, Floats]]:
    """Of each head and some rows: right or wrong, confidence and log loss."""
    n, at = len(audit.cases.id), np.array(rows, dtype=np.int64)
    return {
        kept.name: (kept.right(n)[at].astype(np.float64), kept.confidence(n)[at], kept.loss(n)[at])
        for kept in audit.head_rows
    }


def unpaired_heads(a: Audit, b: Audit, level: float) -> list[Delta]:
    """Every head both runs have, rows not paired: the interval is that of independent rows."""
    found = []
    reach = NormalDist().inv_cdf((1 + level) / 2)
    for head, other in _common_heads(a, b):
        for field in FIELDS:
            line = _line(field, head, other, paired=False)
            one, two = (getattr(part, f"{field}_se", None) for part in (head, other))
            if line.delta is not None and one is not None and two is not None:
                half = reach * math.hypot(one, two)
                line = replace(line, low=line.delta - half, high=line.delta + half)
            found.append(line)
    return found
