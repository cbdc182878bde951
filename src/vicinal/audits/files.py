"""The files of a run: ``summary.json``, ``samples.csv``, ``suspects.csv``.

Each is written to a temporary name beside its place, synced and renamed: a reader finds the old
file or the new one, never half of one. No cell that comes from a user becomes a formula.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vicinal.audits.record import Audit
from vicinal.files import write_atomically

TOP_NEIGHBORS = 5


def summary(audit: Audit) -> dict[str, Any]:
    """Every aggregate of the page, under the names the command line and the gates use."""
    sections = audit.to_dict()
    heads = {}
    for head in sections.pop("heads"):
        heads[head.pop("name")] = head
    labels = sections.pop("labels")
    wide = ("name", "cases", "support", "data", "provenance", "warnings", "not_checked", "map")
    rest = {key: value for key, value in sections.items() if key not in (*wide, "recommended")}
    if rest["network"]:
        rest["network"].pop("fit_map")
    return {
        "name": audit.name,
        "heads": heads,
        "recommended": audit.recommended,
        "verdicts": audit.verdict_counts(),
        "suspects": len(audit.labels.suspects) if audit.labels else None,
        "labels_checked": labels["checked"] if labels else None,
        "label_effects": labels["effects"] if labels else [],
        **rest,
        "map_preservation": audit.map.preservation if audit.map else None,
        "warnings": list(audit.warnings),
        "not_checked": [f"{section}: {why}" for section, why in audit.not_checked.items()],
        "data": sections["data"],
        "provenance": sections["provenance"],
    }


def sample_rows(audit: Audit) -> Iterable[list[str]]:
    """``samples.csv``, the heading first: one row per query row, all of them."""
    cases, names = audit.cases, audit.classes
    ids = dict(zip(audit.support.row, audit.support.id, strict=True))
    yield [
        *("id", "label", "predicted", "confidence", "credibility", "near_percentile"),
        *("network_percentile", "verdict", "reason"),
        *(
            f"{what}_{place}"
            for place in range(1, TOP_NEIGHBORS + 1)
            for what in ("neighbor", "weight")
        ),
    ]
    crowd = cases.network_percentile or (None,) * len(cases.id)
    for i, given in enumerate(cases.label):
        near = list(zip(cases.neighbors[i], cases.weights[i], strict=True))[:TOP_NEIGHBORS]
        near_cells = [cell for row, weight in near for cell in (word(ids[row]), number(weight))]
        yield [
            word(cases.id[i]),
            "" if given is None else word(names[given]),
            word(names[cases.predicted[i]]),
            number(cases.confidence[i]),
            number(cases.credibility[i]),
            number(cases.near_percentile[i]),
            number(crowd[i]),
            cases.verdict[i],
            word(cases.reason[i]),
            *near_cells,
            *[""] * (2 * (TOP_NEIGHBORS - len(near))),
        ]


def suspect_rows(audit: Audit) -> Iterable[list[str]]:
    """``suspects.csv``, the heading first: most suspicious first."""
    ids = dict(zip(audit.support.row, audit.support.id, strict=True))
    yield [
        *("id", "given", "suggested", "p_given", "p_suggested", "affected", "depth_agreement"),
        *("row", *(f"neighbor_{place}" for place in range(1, TOP_NEIGHBORS + 1))),
    ]
    for suspect in audit.labels.suspects if audit.labels else ():
        near = [word(ids[row]) for row in suspect.neighbors[:TOP_NEIGHBORS]]
        yield [
            word(suspect.id),
            word(audit.classes[suspect.given]),
            word(audit.classes[suspect.suggested]),
            number(suspect.p_given),
            number(suspect.p_suggested),
            "" if suspect.affected is None else str(suspect.affected),
            number(suspect.depth_agreement),
            str(suspect.row),
            *near,
            *[""] * (TOP_NEIGHBORS - len(near)),
        ]


def word(cell: str) -> str:
    """A user's text as a cell no spreadsheet runs: ``=1+1`` gets an apostrophe, ``-1`` stays.

    >>> word("=cmd()"), word("-1"), word("cat")
    ("'=cmd()", '-1', 'cat')
    """
    harmless = re.fullmatch(r"[+-]?\d+(\.\d+)?", cell)
    return f"'{cell}" if cell[:1] in tuple("=+-@\t\r\n") and not harmless else cell


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def csv_text(rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def write_summary(audit: Audit, path: str | Path) -> None:
    text = json.dumps(summary(audit), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(path, text + "\n")


def write_samples(audit: Audit, path: str | Path) -> None:
    write_atomically(path, csv_text(sample_rows(audit)))


def write_suspects(audit: Audit, path: str | Path) -> None:
    write_atomically(path, csv_text(suspect_rows(audit)))
