"""``vicinal check``: would these files do? Nothing is computed, nothing written."""

from __future__ import annotations

from typing import Any

from vicinal.audits.pictures import read_image
from vicinal.checks import check_choice
from vicinal.cli.console import Console
from vicinal.cli.data_files import read_rows
from vicinal.cli.image_rows import pictures
from vicinal.cli.row_set import RowSet, check_same_dims, checked_labels, in_order, usable, vectors
from vicinal.cli.verbs import METRICS, CheckOptions
from vicinal.confidence import load
from vicinal.files import reading

WORDS = {"True": "yes", "False": "none", "None": "none"}


def run(options: CheckOptions) -> None:
    """Read every file as the other commands would, and print what it holds."""
    console = Console(options.as_json, options.quiet)
    check_choice(options.metric, "--metric", METRICS)
    facts: list[dict[str, Any]] = []
    first: RowSet | None = None
    for spec in options.files:
        if spec.endswith(".vic"):
            head = load(spec)
            kind, classes = type(head).__name__, len(head.classes_)
            facts.append({"file": spec, "kind": kind, "classes": classes})
            continue
        rows = _checked(spec, options)
        facts.append(_row_facts(spec, rows))
        if rows.embeddings is not None:
            first = first or rows
            rows = in_order(rows, first.features, first.name)
            check_same_dims(first, rows, first.source, rows.name)
    for fact in facts:
        console.print("  ".join(f"{key} {WORDS.get(str(v), v)}" for key, v in fact.items()))
    console.result(facts)


def _checked(spec: str, options: CheckOptions) -> RowSet:
    rows = read_rows(spec, options)
    with reading(spec):
        rows = checked_labels(rows)
        for picture in pictures(rows, options.media_root)[0] or ():
            if isinstance(picture, (str, bytes)):  # a file, or what one holds
                read_image(picture)
        if rows.embeddings is None:
            return rows
        rows = vectors(rows, pool=options.pool, transpose=options.transpose)
        return usable(rows, drop_bad=None, zero_rows=options.metric == "cosine")


def _row_facts(spec: str, rows: RowSet) -> dict[str, Any]:
    if rows.embeddings is None:
        return {"file": spec, "rows": len(rows), "needs": "--model"}
    return {
        "file": spec,
        "rows": len(rows),
        "dims": rows.shape[1],
        "classes": None if rows.labels is None else len(set(rows.labels.tolist())),
        "ids": rows.ids is not None,
        "fingerprint": rows.fingerprint,
    }
