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
# What summary.json leaves out, because it grows with the rows, or has in a form of its own.
APART = ("name", "cases", "support", "map", "recommended", "warnings", "not_checked", "data",
         "provenance")  # fmt: skip


def summary(audit: Audit) -> dict[str, Any]:
    """Every aggregate of the page, under the names the command line and the gates use."""
    sections = audit.to_dict(without=APART)
    heads = {head.pop("name"): head for head in sections.pop("heads")}
    labels = sections.pop("labels")
    if sections["network"]:
        sections["network"].pop("fit_map")
    return {
        "name": audit.name,
        "heads": heads,
        "recommended": audit.recommended,
        "verdicts": audit.verdict_counts(),
        "suspects": len(audit.labels.suspects) if audit.labels else None,
        "labels_checked": labels["checked"] if labels else None,
        "label_effects": labels["effects"] if labels else [],
        **sections,
        "map_preservation": audit.map.preservation if audit.map else None,
        "warnings": list(audit.warnings),
        "not_checked": [f"{section}: {why}" for section, why in audit.not_checked.items()],
        "data": audit.data.to_dict(),
        "provenance": audit.provenance.to_dict(),
    }


def sample_rows(audit: Audit) -> Iterable[list[str]]:
    """``samples.csv``, the heading first: one row per query row, all of them."""
    cases = audit.cases
    ids = dict(zip(audit.support.row, map(word, audit.support.id), strict=True))
    classes = [word(name) for name in audit.classes]
    yield [
        *("id", "label", "predicted", "confidence", "credibility", "near_percentile"),
        *("network_percentile", "linear_share", "verdict", "reason"),
        *(
            f"{what}_{place}"
            for place in range(1, TOP_NEIGHBORS + 1)
            for what in ("neighbor", "weight")
        ),
    ]
    crowding = cases.network_percentile or (None,) * len(cases.id)
    linear = cases.linear_share or (None,) * len(cases.id)
    for i, given in enumerate(cases.label):
        rows, weights = cases.neighbors[i][:TOP_NEIGHBORS], cases.weights[i][:TOP_NEIGHBORS]
        pairs = zip(rows, weights, strict=True)
        yield [
            word(cases.id[i]),
            "" if given is None else classes[given],
            classes[cases.predicted[i]],
            number(cases.confidence[i]),
            number(cases.credibility[i]),
            number(cases.near_percentile[i]),
            number(crowding[i]),
            number(linear[i]),
            cases.verdict[i],
            word(cases.reason[i]),
            *(cell for row, weight in pairs for cell in (ids[row], number(weight))),
            *[""] * (2 * (TOP_NEIGHBORS - len(rows))),
        ]


def suspect_rows(audit: Audit) -> Iterable[list[str]]:
    """``suspects.csv``, the heading first: most suspicious first."""
    ids = dict(zip(audit.support.row, map(word, audit.support.id), strict=True))
    yield [
        *("id", "given", "suggested", "p_given", "p_suggested", "affected", "depth_agreement"),
        *("row", *(f"neighbor_{place}" for place in range(1, TOP_NEIGHBORS + 1))),
    ]
    for suspect in audit.labels.suspects if audit.labels else ():
        neighbors = [ids[row] for row in suspect.neighbors[:TOP_NEIGHBORS]]
        yield [
            word(suspect.id),
            word(audit.classes[suspect.given]),
            word(audit.classes[suspect.suggested]),
            number(suspect.p_given),
            number(suspect.p_suggested),
            "" if suspect.affected is None else str(suspect.affected),
            number(suspect.depth_agreement),
            str(suspect.row),
            *neighbors,
            *[""] * (TOP_NEIGHBORS - len(neighbors)),
        ]


def word(cell: str) -> str:
    """A user's text as a cell no spreadsheet runs: ``=1+1`` gets an apostrophe, ``-1`` stays.

    >>> word("=cmd()"), word("-1"), word("cat")
    ("'=cmd()", '-1', 'cat')
    """
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    return cell if re.fullmatch(r"[+-]?\d+(\.\d+)?", cell) else f"'{cell}"


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
