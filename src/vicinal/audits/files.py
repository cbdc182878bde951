"""The files of a run: ``summary.json``, ``samples.csv``, ``suspects.csv``, ``labels.csv``.

Each is written to a temporary name beside its place, synced and renamed: a reader finds the old
file or the new one, never half of one. No cell that comes from a user becomes a formula.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vicinal.audits.record import Audit
from vicinal.files import write_atomically

TOP_NEIGHBORS = 5
DOUBLE = '"'
# Commas, quotes and every character that some reader takes for the end of a line.
_QUOTED = re.compile('[,"\\r\\n\\v\\f\\x1c-\\x1e\\x85\u2028\u2029]')
# What summary.json leaves out, because it grows with the rows, or has in a form of its own.
APART = ("name", "cases", "support", "map", "head_rows", "recommended", "warnings", "not_checked",
         "data", "provenance")  # fmt: skip


def summary(audit: Audit) -> dict[str, Any]:
    """Every aggregate of the page, under the names the command line and the gates use."""
    sections = audit.to_dict(without=APART)
    heads = {head.pop("name"): head for head in sections.pop("heads")}
    labels = sections.pop("labels")
    unsure = labels["ambiguous"] if labels else None
    if sections["scale"] is None:  # everything was in memory
        del sections["scale"]
    elif unsure:
        unsure["rows"] = range(audit.scale.ambiguous if audit.scale else 0)
    if sections["network"]:
        sections["network"].pop("fit_map")
    if sections["stress"]:
        sections["stress"].pop("examples")
    return {
        "name": audit.name,
        "heads": heads,
        "recommended": audit.recommended,
        "verdicts": audit.verdict_counts(),
        "suspects": audit.suspect_count,
        "labels_checked": labels["checked"] if labels else None,
        "labels_wrong": labels["wrong"] if labels else None,
        "labels_ambiguous": len(unsure["rows"]) if unsure else None,
        "classes_alike": labels["alike"] if labels else [],
        "label_effects": labels["effects"] if labels else [],
        **sections,
        "map_preservation": audit.map.preservation if audit.map else None,
        "warnings": list(audit.warnings),
        "not_checked": [f"{section}: {why}" for section, why in audit.not_checked.items()],
        "data": audit.data.to_dict(),
        "provenance": audit.provenance.to_dict(),
    }


def samples_table(audit: Audit) -> dict[str, list[Any]]:
    """The columns of ``samples.csv`` as values: what ``report.samples`` holds."""
    cases, classes = audit.cases, audit.classes
    others = cases.others or (None,) * len(cases.id)
    ids = dict(zip(audit.support.row, audit.support.id, strict=True))
    given = zip(cases.label, others, strict=True)
    return {
        "id": list(cases.id),
        "label": [other if code is None else classes[code] for code, other in given],
        "predicted": [classes[code] for code in cases.predicted],
        "confidence": list(cases.confidence),
        "credibility": list(cases.credibility),
        "near_percentile": list(cases.near_percentile),
        "familiarity": list(cases.familiarity or (None,) * len(cases.id)),
        "verdict": list(cases.verdict),
        "reason": list(cases.reason),
        "neighbors": [[ids[row] for row in rows[:TOP_NEIGHBORS]] for rows in cases.neighbors],
    }


def suspects_table(audit: Audit) -> dict[str, list[Any]]:
    """The columns of ``suspects.csv`` as values: what ``report.suspects`` holds."""
    found = audit.labels.suspects if audit.labels else ()
    named = ("given", "suggested")
    plain = ("row", "id", *named, "p_given", "p_suggested", "score", "affected")
    return {
        name: [
            audit.classes[getattr(s, name)] if name in named else getattr(s, name) for s in found
        ]
        for name in plain
    }


def sample_rows(audit: Audit) -> Iterable[list[str]]:
    """``samples.csv``, the heading first: one row per query row, all of them."""
    cases = audit.cases
    ids = dict(zip(audit.support.row, map(word, audit.support.id), strict=True))
    classes = [word(name) for name in audit.classes]
    yield [
        *("id", "label", "predicted", "confidence", "credibility", "near_percentile"),
        *("familiarity", "network_percentile", "linear_share", "verdict", "reason"),
        *(
            f"{what}_{place}"
            for place in range(1, TOP_NEIGHBORS + 1)
            for what in ("neighbor", "weight")
        ),
    ]
    crowding = cases.network_percentile or (None,) * len(cases.id)
    familiar = cases.familiarity or (None,) * len(cases.id)
    others = cases.others or (None,) * len(cases.id)
    linear = cases.linear_share or (None,) * len(cases.id)
    for i, given in enumerate(cases.label):
        rows, weights = cases.neighbors[i][:TOP_NEIGHBORS], cases.weights[i][:TOP_NEIGHBORS]
        pairs = zip(rows, weights, strict=True)
        yield [
            word(cases.id[i]),
            word(others[i] or "") if given is None else classes[given],
            classes[cases.predicted[i]],
            repr(cases.confidence[i]),  # in full: the threshold is the confidence of one row
            number(cases.credibility[i]),
            number(cases.near_percentile[i]),
            number(familiar[i]),
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
        *("score", "row", *(f"neighbor_{place}" for place in range(1, TOP_NEIGHBORS + 1))),
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
            number(suspect.score),
            str(suspect.row),
            *neighbors,
            *[""] * (TOP_NEIGHBORS - len(neighbors)),
        ]


def label_rows(audit: Audit) -> Iterable[list[str]]:
    """``labels.csv``, the heading first: every support row in its order, with its score."""
    yield ["id", "given", "suggested", "score", "p_given", "p_suggested", "flagged", "ambiguous"]
    if audit.labels is None or audit.labels.rows is None:
        return
    found, rows = audit.labels, audit.labels.rows
    classes = [word(name) for name in audit.classes]
    flagged = {suspect.row for suspect in found.suspects}
    ambiguous = set(found.ambiguous.rows if found.ambiguous else ())
    for row, name in enumerate(rows.id):
        yield [
            word(name),
            classes[rows.given[row]],
            classes[rows.suggested[row]],
            repr(rows.score[row]),  # in full: what is ranked by six digits has ties
            number(rows.p_given[row]),
            number(rows.p_suggested[row]),
            str(int(row in flagged)),
            str(int(row in ambiguous)),
        ]


def word(cell: str) -> str:
    """A user's text as a cell no spreadsheet runs: ``=1+1`` gets an apostrophe, ``-1`` stays.

    >>> word("=cmd()"), word("-1"), word("cat")
    ("'=cmd()", '-1', 'cat')
    """
    if not cell.lstrip(" \0").startswith(("=", "+", "-", "@", "\t", "\r", "\n", *"＝＋－＠")):
        return cell
    return cell if re.fullmatch(r"[+-]?\d+(\.\d+)?", cell) else f"'{cell}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def csv_text(rows: Iterable[list[str]]) -> str:
    r"""Lines of cells, quoted wherever a reader could see an end of a cell or a line.

    Python's own writer leaves a lone carriage return bare, which other readers take for a new line.

    >>> csv_text([["a", "b,c", "row\r=1+1"]])
    'a,"b,c","row\r=1+1"\n'
    """
    lines = []
    for row in rows:
        cells = [f'"{c.replace(DOUBLE, DOUBLE * 2)}"' if _QUOTED.search(c) else c for c in row]
        lines.append(",".join(cells) + "\n" if cells != [""] else '""\n')
    return "".join(lines)


def write_summary(audit: Audit, path: str | Path) -> None:
    text = json.dumps(summary(audit), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(path, text + "\n")


def write_samples(audit: Audit, path: str | Path) -> None:
    write_atomically(path, csv_text(sample_rows(audit)))


def write_suspects(audit: Audit, path: str | Path) -> None:
    write_atomically(path, csv_text(suspect_rows(audit)))


def write_labels(audit: Audit, path: str | Path) -> None:
    write_atomically(path, csv_text(label_rows(audit)))
