"""The files of a run: ``summary.json``, ``samples.csv``, ``suspects.csv``, ``labels.csv``.

No cell that comes from a user becomes a formula.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vicinal.audits.label_records import LabelRows
from vicinal.audits.record import Audit

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
    cases, classes, ids = audit.cases, audit.classes, audit.support_names
    return {
        "id": list(cases.id),
        "label": audit.given_labels,
        "predicted": [classes[code] for code in cases.predicted],
        "confidence": list(cases.confidence),
        "credibility": list(cases.credibility),
        "near_percentile": list(cases.near_percentile),
        "familiarity": _values(audit, "familiarity"),
        "verdict": list(cases.verdict),
        "reason": list(cases.reason),
        "neighbors": [[ids[row] for row in rows[:TOP_NEIGHBORS]] for rows in cases.neighbors],
    }


def suspects_table(audit: Audit) -> dict[str, list[Any]]:
    """The columns of ``suspects.csv`` as values: what ``report.suspects`` holds."""
    found = audit.labels.suspects if audit.labels else ()
    classes = ("given", "suggested")
    plain = ("row", "id", *classes, "p_given", "p_suggested", "score", "affected")
    table = {name: [getattr(suspect, name) for suspect in found] for name in plain}
    return table | {name: [audit.classes[code] for code in table[name]] for name in classes}


def sample_rows(audit: Audit) -> Iterator[list[str]]:
    """``samples.csv``, the heading first: one row per query row, all of them."""
    table, weights = samples_table(audit), audit.cases.weights
    near = table.pop("neighbors")
    verdicts = {name: table.pop(name) for name in ("verdict", "reason")}
    columns: dict[str, Iterable[Any]] = {**table}
    columns["confidence"] = map(repr, audit.cases.confidence)  # in full: a threshold is one of them
    columns |= {name: _values(audit, name) for name in ("network_percentile", "linear_share")}
    columns |= verdicts
    for place in range(TOP_NEIGHBORS):
        columns |= {f"neighbor_{place + 1}": _at(place, near)}
        columns |= {f"weight_{place + 1}": _at(place, weights)}
    return _lines(columns)


def suspect_rows(audit: Audit) -> Iterator[list[str]]:
    """``suspects.csv``, the heading first: most suspicious first."""
    table, found = suspects_table(audit), audit.labels.suspects if audit.labels else ()
    ids = audit.support_names
    near = [[ids[row] for row in suspect.neighbors] for suspect in found]
    table["depth_agreement"] = [suspect.depth_agreement for suspect in found]
    order = ("id", "given", "suggested", "p_given", "p_suggested", "affected", "depth_agreement",
             "score", "row")  # fmt: skip
    places = {f"neighbor_{place + 1}": _at(place, near) for place in range(TOP_NEIGHBORS)}
    return _lines({name: table[name] for name in order} | places)


def label_rows(audit: Audit) -> Iterator[list[str]]:
    """``labels.csv``, the heading first: every support row in its order, with its score."""
    found, classes = audit.labels, audit.classes
    rows = (found and found.rows) or LabelRows((), (), (), (), (), ())
    flagged = {suspect.row for suspect in found.suspects} if found else set()
    ambiguous = set(found.ambiguous.rows if found and found.ambiguous else ())
    return _lines(
        {
            "id": rows.id,
            "given": [classes[code] for code in rows.given],
            "suggested": [classes[code] for code in rows.suggested],
            "score": map(repr, rows.score),  # in full: what is ranked by six digits has ties
            "p_given": rows.p_given,
            "p_suggested": rows.p_suggested,
            "flagged": [int(row in flagged) for row in range(len(rows.id))],
            "ambiguous": [int(row in ambiguous) for row in range(len(rows.id))],
        }
    )


def _values(audit: Audit, column: str) -> list[Any]:
    """A column of the cases, nothing in it where a run has none."""
    return list(getattr(audit.cases, column) or (None,) * len(audit.cases.id))


def _at(place: int, lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [values[place] if place < len(values) else None for values in lists]


def _lines(columns: Mapping[str, Iterable[Any]]) -> Iterator[list[str]]:
    """The heading, then a line of cells for each row."""
    yield list(columns)
    for values in zip(*columns.values(), strict=True):
        yield list(map(cell, values))


def cell(value: str | float | None) -> str:
    """Text that no spreadsheet runs, a number in six digits, nothing for None."""
    if value is None or isinstance(value, str):
        return word(value or "")
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def word(cell: str) -> str:
    """A user's text as a cell no spreadsheet runs: ``=1+1`` gets an apostrophe, ``-1`` stays.

    >>> word("=cmd()"), word("-1"), word("cat")
    ("'=cmd()", '-1', 'cat')
    """
    if not cell.lstrip(" \0").startswith(("=", "+", "-", "@", "\t", "\r", "\n", *"＝＋－＠")):
        return cell
    return cell if re.fullmatch(r"[+-]?\d+(\.\d+)?", cell) else f"'{cell}"


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


def files_of(audit: Audit) -> Iterator[tuple[str, str]]:
    """Name and text of each, made when its turn comes."""
    page = json.dumps(summary(audit), ensure_ascii=False, allow_nan=False, indent=1)
    yield "summary.json", page + "\n"
    yield "samples.csv", csv_text(sample_rows(audit))
    yield "suspects.csv", csv_text(suspect_rows(audit))
    if audit.labels is None or audit.labels.rows is not None:  # else every row is in the parts
        yield "labels.csv", csv_text(label_rows(audit))
