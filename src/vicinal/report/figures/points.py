"""Every query row as a point: what filters, colors and the map need of it, card or no card.

Integers throughout, so that 100,000 rows stay small: places are steps of a grid, confidences
ten-thousandths, classes and verdicts their codes, -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vicinal.audits.record import Audit
from vicinal.audits.sections import LinearMap, Map
from vicinal.report.words import clean, map_words

STEPS = 8191  # of the map's longer side
MAJORITY, LOW_CREDIBILITY = 2 / 3, 0.05  # as vicinal.confidence.verdicts has them


def points_data(audit: Audit) -> dict[str, Any]:
    cases = audit.cases
    code = {verdict: i for i, verdict in enumerate(audit.verdict_counts())}
    maps = (audit.map, audit.map.linear) if audit.map and audit.map.x else ()
    plain = all(name == str(row) for row, name in enumerate(cases.id))
    return {
        "id": None if plain else [clean(name) for name in cases.id],
        "verdict": [code[verdict] for verdict in cases.verdict],
        "predicted": list(cases.predicted),
        "label": labels_data(audit),
        "others": {row: clean(name) for row, name in enumerate(cases.others or ()) if name},
        "confidence": np.rint(10000 * np.array(cases.confidence)).astype(int).tolist(),
        "doubted": doubted(audit),
        "maps": [on_steps(form) for form in maps if form is not None],
        "support": support_data(audit),
    }


def labels_data(audit: Audit) -> list[int]:
    """Codes; -1 where there is no label, -2 where it is a class that the support lacks."""
    cases = audit.cases
    others = cases.others or (None,) * len(cases.id)
    pairs = zip(cases.label, others, strict=True)
    return [(-1 if other is None else -2) if label is None else label for label, other in pairs]


def doubted(audit: Audit) -> list[int]:
    """Rows that are contested whatever the target: neighbors disagree, or no clear majority."""
    cases, chosen = audit.cases, audit.risk_coverage.chosen if audit.risk_coverage else None
    level = chosen.level if chosen and chosen.level is not None else MAJORITY
    return [
        row
        for row, (verdict, sure) in enumerate(zip(cases.verdict, cases.confidence, strict=True))
        if (verdict == "contested" and (sure >= level or sure < MAJORITY))
        or (cases.credibility[row] or 1.0) <= LOW_CREDIBILITY
    ]


def on_steps(form: Map | LinearMap) -> dict[str, Any]:
    """Places in steps, the same unit both ways; turned to lie, since a map has no up of its own."""
    x, y = (np.array([*a, *b]) for a, b in ((form.x, form.support_x), (form.y, form.support_y)))
    turns = np.exp(1j * np.linspace(0, np.pi, 36, endpoint=False))
    low = min(turns, key=lambda turn: np.ptp(turn.imag * x + turn.real * y))
    x, y = low.real * x - low.imag * y, low.imag * x + low.real * y
    unit = STEPS / (max(np.ptp(x), np.ptp(y)) or 1.0)
    m = len(form.x)
    steps = [np.rint((v - v.min()) * unit).astype(int).tolist() for v in (x, y)]
    return {
        "method": clean(map_words(form.method)),
        "kept": form.preservation,
        "x": steps[0][:m],
        "y": steps[1][:m],
        "support_x": steps[0][m:],
        "support_y": steps[1][m:],
    }


def support_data(audit: Audit) -> dict[str, Sequence[int]]:
    """Rows of the support that are drawn, with their labels where the record has them."""
    rows = audit.map.support_row if audit.map else ()
    known = dict(zip(audit.support.row, audit.support.label, strict=True))
    given = audit.labels.rows.given if audit.labels and audit.labels.rows else None
    labels = [known.get(row, -1) if given is None else given[row] for row in rows]
    return {"row": list(rows), "label": labels}
