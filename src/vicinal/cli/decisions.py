"""``--apply``: decisions about labels, as the page exports them, carried out on the support.

A file of decisions has a line per reviewed row: ``id`` or ``row``, ``decision`` (relabel, keep,
skip or nothing) and, for a relabel, the new ``label``. A ``given`` label must still be the row's:
decisions are about labels that somebody has looked at.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.audits.files import word
from vicinal.audits.inputs import class_names
from vicinal.audits.settings import About
from vicinal.checks import InputError, check_choice, did_you_mean, plural
from vicinal.cli.row_set import RowSet
from vicinal.files import reading, regular_file

DECISIONS = ("relabel", "keep", "skip", "")


def cleaned_support(path: Path, rows: RowSet, about: About) -> tuple[RowSet, list[list[str]]]:
    """The support with every decided relabel, and the lines of ``labels_cleaned.csv``."""
    if rows.labels is None:
        raise InputError(f"--apply needs labels that are read from a file; {rows.name} has none.")
    labels, values = rows.labels, np.unique(rows.labels)
    shown = dict(zip(values.tolist(), class_names(values, about), strict=True))
    classes = {word(name): value for value, name in shown.items()}  # as the page calls them
    ids = about.support_ids or tuple(map(rows.row_id, range(len(rows))))
    places: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        places.setdefault(word(name), []).append(row)
    after, why = labels.copy(), [""] * len(labels)
    decided: dict[int, str] = {}
    for at, line in enumerate(read_decisions(path), 1):
        where = f"{path.name}, decision {at}"
        kind = line.get("decision", "").strip()
        check_choice(kind, f"{where}: decision", DECISIONS)
        row = _row_of(line, places, ids, where)
        if row in decided:
            raise InputError(f"{where}: row {row} (id {ids[row]}) is decided twice. Keep one line.")
        decided[row] = kind
        was = word(shown[labels[row].item()])
        if line.get("given", was) != was:
            raise InputError(
                f"{where}: {ids[row]} was {line['given']!r} when it was decided and is {was!r} in "
                "the support. Give the support that was reviewed."
            )
        if kind == "relabel":
            if (name := line.get("label", "")) not in classes:
                hint = did_you_mean(name, classes)
                raise InputError(f"{where}: label {name!r} is no class of the support.{hint}")
            after[row] = classes[name]
        why[row] = f"{kind} in {path.name}" if kind else ""
    lines = zip(ids, after.tolist(), labels.tolist(), why, strict=True)
    table = [[word(str(cell)) for cell in line] for line in lines]
    return replace(rows, labels=after), [["id", "label", "was", "why"], *table]


def read_decisions(path: Path) -> list[dict[str, str]]:
    """A dictionary of cells per decision, from the CSV or the JSON that the page exports.

    A cell that a spreadsheet would run bears an apostrophe, whoever wrote the file.
    """
    regular_file(path)
    with reading(path.name, "Give decisions as the page exports them."):
        text = path.read_text("utf-8-sig")
        lines = _json_lines(text) if path.suffix == ".json" else _csv_lines(text)
    known = set(lines[0]) if lines else set()
    if "decision" not in known or not known & {"id", "row"}:
        raise InputError(
            f"{path.name} needs the columns decision and id (or row); it has "
            f"{', '.join(sorted(known)) or 'no rows'}. Export the decisions from the page."
        )
    return [{key: word(str(cell)) for key, cell in line.items()} for line in lines]


def _json_lines(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    lines = found["suspects"] if isinstance(found, dict) else found
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise ValueError("it is no list of decisions")
    return lines


def _csv_lines(text: str) -> list[dict[str, Any]]:
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names, lines = list(table.fieldnames or ()), list(table)
    if len(set(names)) < len(names):
        raise ValueError("its heading names a column twice")
    if any(None in line or None in line.values() for line in lines):
        raise ValueError("not every line has as many cells as the first")
    return lines


def _row_of(
    line: dict[str, str], places: dict[str, list[int]], ids: Sequence[str], where: str
) -> int:
    """By row number where there is one, and then the id must be that row's; else by id."""
    name = line.get("id")
    if row := line.get("row", "").strip():
        if not re.fullmatch("[0-9]{1,18}", row) or int(row) >= len(ids):
            raise InputError(
                f"{where}: there is no row {row[:20]}; the support has {plural(len(ids), 'row')}."
            )
        if name is not None and name != word(ids[int(row)]):
            raise InputError(
                f"{where}: row {row} of the support has the id {ids[int(row)]}, not {name}. Give "
                "the support that was reviewed."
            )
        return int(row)
    found = places.get(name or "", [])
    if not found:
        hint = did_you_mean(name or "", places, "{}")
        raise InputError(f"{where}: no row of the support has the id {name!r}.{hint}")
    if len(found) > 1:
        raise InputError(
            f"{where}: {len(found)} rows have the id {name!r}. Add a column row with their numbers."
        )
    return found[0]
