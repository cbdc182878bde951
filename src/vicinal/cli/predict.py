"""``vicinal predict``: judge new rows with a saved head, in a stream."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np

from vicinal.audits.files import csv_text, number, word
from vicinal.checks import InputError
from vicinal.cli.console import Console, json_text
from vicinal.cli.data_files import read_rows
from vicinal.cli.row_set import RowSet, usable, vectors
from vicinal.cli.verbs import PredictOptions
from vicinal.confidence import TrustHead, load
from vicinal.files import check_output, reading, reason, regular_file, write_together

STANDARD = "-"  # stdin or stdout
BLOCK = 2048
FIELDS = (
    "id",
    "label",
    "confidence",
    "credibility",
    "near_percentile",
    "familiarity",
    "verdict",
    "reason",
)


def run(options: PredictOptions) -> None:
    """Judge block after block, write every answer, print the first and the counts."""
    console = Console(options.as_json, options.quiet, aside=options.jsonl == STANDARD)
    head = _trust_head(options.head)
    table, jsonl = options.out, options.jsonl
    if table is None and jsonl is None and not options.as_json:
        table = Path("predictions.csv")
    elif table is not None and table.suffix == ".jsonl":
        table, jsonl = None, jsonl or str(table)
    counts: Counter[str] = Counter()
    first: list[dict[str, Any]] = []
    with AnswerWriter(table, jsonl) as writer, console.library_warnings():
        for rows in _blocks(options):
            for answer in answers(head, rows):
                counts[answer["verdict"]] += 1
                if len(first) < options.show:
                    first.append(answer)
                writer.write(answer)
    for answer in first:
        console.print(
            f"{answer['id']:<12} {answer['label']:<12} {answer['confidence']:.2f}  "
            f"{answer['credibility']:.2f}  p{answer['near_percentile']:<4.0f} "
            f"{answer['verdict']:<11} {answer['reason']}"
        )
    total = sum(counts.values())
    if (path := options.out or table) is not None:
        console.print(f"wrote  {path} ({total:,} rows)")
    console.print(" · ".join(f"{name} {n:,}" for name, n in counts.items()))
    console.result({"rows": total, "verdicts": dict(counts), "predictions": first})


def answers(head: TrustHead, rows: RowSet) -> Iterator[dict[str, Any]]:
    """One answer per row, as plain values."""
    wanted = head.ned.n_features_in_
    if rows.shape[1] != wanted:
        raise InputError(
            f"the head was fitted on {wanted} dims but {rows.name} has {rows.shape[1]}. They must "
            "come from the same model and layer."
        )
    out = head.predict(rows.embeddings)
    for row in range(len(rows)):
        yield {
            "id": rows.row_id(row),
            "label": str(out.label[row]),
            "confidence": float(out.confidence[row]),
            "credibility": float(out.credibility[row]),
            "near_percentile": float(out.near_percentile[row]),
            "familiarity": None if out.familiarity is None else float(out.familiarity[row]),
            "verdict": str(out.verdict[row]),
            "reason": out.reason[row],
            "neighbors": [int(i) for i in out.neighbors[row][:5]],
        }


class AnswerWriter:
    """Answers as a table and as JSON lines; a file appears whole at the end, stdout as it comes."""

    def __init__(self, table: Path | None, jsonl: str | None):
        self.table = table
        self.jsonl = None if jsonl in (None, STANDARD) else Path(str(jsonl))
        self.lines = sys.stdout if jsonl == STANDARD else io.StringIO()
        self.cells = io.StringIO()

    def __enter__(self) -> Self:
        for path in (self.table, self.jsonl):
            if path is not None:
                check_output(path)
        self.cells.write(csv_text([list(FIELDS)]))
        return self

    def write(self, answer: dict[str, Any]) -> None:
        if self.jsonl is not None or self.lines is sys.stdout:
            self.lines.write(json_text(answer) + "\n")
            self.lines.flush()
        if self.table is not None:
            cells = [answer[name] for name in FIELDS]
            row = [word(c) if isinstance(c, str) else number(c) for c in cells]
            self.cells.write(csv_text([row]))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return
        contents: dict[Path, str | bytes] = {}
        if self.table is not None:
            contents[self.table] = self.cells.getvalue()
        if self.jsonl is not None and isinstance(self.lines, io.StringIO):
            contents[self.jsonl] = self.lines.getvalue()
        write_together(contents)


def _trust_head(path: Path) -> TrustHead:
    head = load(regular_file(path))
    if not isinstance(head, TrustHead):
        raise InputError(f"{path} holds a bare NED head without standards. Make one with fit.")
    return head


def _blocks(options: PredictOptions) -> Iterator[RowSet]:
    """The rows to judge, some thousands at a time, or each as it comes from stdin."""
    if options.query == STANDARD:
        yield from _lines(sys.stdin)
        return
    with reading(options.query):
        rows = read_rows(options.query, options)
        rows = vectors(rows, pool=options.pool, transpose=options.transpose)
        rows = usable(rows, drop_bad=False, zero_rows=False)
    for at in range(0, len(rows), BLOCK):
        yield rows.take(np.arange(at, min(at + BLOCK, len(rows))))


def _lines(stream: TextIO) -> Iterator[RowSet]:
    """A row per line: a JSON list, or an object with ``embedding`` and maybe ``id``."""
    for place, line in enumerate(_text_of(stream)):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            vector = value["embedding"] if isinstance(value, dict) else value
            x = np.asarray([vector])
            if x.dtype.kind not in "iuf":
                raise ValueError(f"{line.strip()[:40]!r} is no list of numbers")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"line {place + 1} of stdin is no row: {reason(error)}.") from None
        ident = str(value.get("id", place)) if isinstance(value, dict) else str(place)
        if x.ndim != 2 or not x.size:
            raise InputError(f"line {place + 1} of stdin is no row: it has shape {x.shape[1:]}.")
        if not np.isfinite(x).all():
            raise InputError(f"line {place + 1} of stdin holds NaN or infinity.")
        yield RowSet("stdin", x.astype(np.float64), ids=(ident,), source="stdin")


def _text_of(stream: TextIO) -> Iterator[str]:
    """The lines of a stream; bytes that are no text are bad input."""
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is no UTF-8 text: {error}.") from None
