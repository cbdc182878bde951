"""``vicinal predict``: judge new rows with a saved head, in a stream."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
import torch

from vicinal.audits.encoder import ENCODER
from vicinal.audits.entangled_layers import compact
from vicinal.audits.files import cell, csv_text
from vicinal.capture import capture
from vicinal.checks import InputError, plural
from vicinal.cli.advice import HEAD
from vicinal.cli.console import Clock, Console, in_columns, json_text
from vicinal.cli.data_files import read_rows
from vicinal.cli.image_rows import encoded_rows
from vicinal.cli.model_inputs import ImageReading, check_fits, model_inputs
from vicinal.cli.models import model_of
from vicinal.cli.row_set import RowSet, in_order, perhaps_labeled, usable, vectors
from vicinal.cli.tables import vector_in
from vicinal.cli.verbs import PredictOptions
from vicinal.confidence import TrustHead, load
from vicinal.confidence.head import Judgement
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.verdicts import VERDICTS
from vicinal.files import check_output, reading, reason, regular_file, write_together
from vicinal.neighbors import unit_rows

STANDARD = "-"  # stdin or stdout
BLOCK = 2048
FIELDS = ("id", "label", "confidence", "credibility", "near_percentile", "familiarity", "verdict",
          "reason")  # fmt: skip


def run(options: PredictOptions) -> None:
    """Judge block after block, write every answer, print the first and the counts."""
    console = Console(options.as_json, options.quiet, aside=options.jsonl == STANDARD)
    for name in ("weights", "model_arg", "output", "embedding", "mean", "std"):
        if options.model is None and getattr(options, name):
            raise InputError(f"--{name.replace('_', '-')} says nothing without --model: add it.")
    if options.head.suffix != ".vic" and options.query.endswith(".vic"):
        raise InputError(f"the head comes first: vicinal predict {options.query} {options.head}")
    head = trust_head_in(options.head)
    table, jsonl = options.out, options.jsonl
    if table is not None and table.suffix in (".parquet", ".xlsx", ".json", ".npz", ".html"):
        raise InputError(f"--out {table}: answers are written as .csv or .jsonl. Give such a name.")
    if table is None and jsonl is None and not options.as_json:
        table = Path("predictions.csv")
    elif table is not None and table.suffix == ".jsonl":
        table, jsonl = None, jsonl or str(table)
    clock, counts = Clock("reading"), Counter[str]()
    first: list[dict[str, Any]] = []
    with AnswerWriter(table, jsonl) as writer, console.library_warnings():
        for rows in _blocks(options, head, console, clock):
            clock.now("judging")
            for answer in answers(head, rows, nearest):
                counts[answer["verdict"]] += 1
                if len(first) < options.show:
                    first.append(answer)
                writer.write(answer)
    console.print("\n".join(as_table(first)))
    total = sum(counts.values())
    if (path := options.out or table) is not None:
        console.print(f"wrote  {path} ({plural(total, 'row')})")
    told = {name: counts[name] for name in VERDICTS if counts[name]}
    console.print(" · ".join(f"{name} {n:,}" for name, n in told.items()))
    console.print(str(clock))
    console.result({"rows": total, "verdicts": told, "predictions": first})


def answers(
    head: TrustHead, rows: RowSet, neighbors: Callable[[Judgement, int], Any]
) -> Iterator[dict[str, Any]]:
    """One answer per row, as plain values; rows are scaled first as the head's own were.

    Parameters
    ----------
    head : the saved head.
    rows : what it judges.
    neighbors : what is said of a row's neighbors.
    """
    wanted, x = head.ned.n_features_in_, rows.x
    if x.shape[1] != wanted:
        raise InputError(
            f"the head was fitted on {wanted} dims but {rows.name} has {x.shape[1]}. They must "
            "come from the same model and layer."
        )
    if head.made_from.normalize:
        if not x.any(1).all():
            raise InputError(
                "a row of zeros has no direction, and this head compares rows of length 1. Leave "
                "the row out."
            )
        x = unit_rows(torch.as_tensor(x)).numpy()
    out = head.predict(x)
    for row in range(len(rows)):
        yield {
            "id": rows.row_id(row),
            "label": head.made_from.name_of(out.label[row]),
            "confidence": float(out.confidence[row]),
            "credibility": float(out.credibility[row]),
            "near_percentile": float(out.near_percentile[row]),
            "familiarity": None if out.familiarity is None else float(out.familiarity[row]),
            "verdict": str(out.verdict[row]),
            "reason": str(out.reason[row]),
            "neighbors": neighbors(out, row),
        }


def nearest(out: Judgement, row: int) -> list[int]:
    """The places of the five nearest."""
    return [int(i) for i in out.neighbors[row][:5]]


def as_table(answers: Sequence[dict[str, Any]]) -> list[str]:
    """The answers under a heading, in columns as wide as they need."""
    if not answers:
        return []
    lines = [["id", "label", "confidence", "credibility", "farther than", "verdict", "reason"]]
    for a in answers:
        sure, credible = f"{a['confidence']:.3f}", f"{a['credibility']:.3f}"
        far = f"{a['near_percentile']:.0f} %"
        lines.append([a["id"], a["label"], sure, credible, far, a["verdict"], a["reason"]])
    return in_columns(lines)


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
                _check_ours(path)
        self.cells.write(csv_text([list(FIELDS)]))
        return self

    def write(self, answer: dict[str, Any]) -> None:
        if self.jsonl is not None or self.lines is sys.stdout:
            self.lines.write(json_text(answer) + "\n")
            self.lines.flush()
        if self.table is not None:
            self.cells.write(csv_text([[cell(answer[name]) for name in FIELDS]]))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return
        contents: dict[Path, str | bytes] = {}
        if self.table is not None:
            contents[self.table] = self.cells.getvalue()
        if self.jsonl is not None and isinstance(self.lines, io.StringIO):
            contents[self.jsonl] = self.lines.getvalue()
        write_together(contents)


def _check_ours(path: Path) -> None:
    """Predictions replace earlier predictions, and nothing else of that name."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        first = file.readline(4096).decode("utf-8", "replace")
    ours = first.startswith(",".join(FIELDS[:4]))
    if path.suffix == ".jsonl":
        ours = first.startswith('{"id":') and '"verdict":' in first
    if not ours:
        raise InputError(
            f"{path} is there and holds no predictions of vicinal. Give another --out."
        )


def trust_head_in(path: Path) -> TrustHead:
    head = load(regular_file(path / HEAD if (path / HEAD).exists() else path))  # or its run
    if not isinstance(head, TrustHead):
        raise InputError(f"{path} holds a bare NED head without standards. Make one with fit.")
    return head


def _blocks(
    options: PredictOptions, head: TrustHead, console: Console, clock: Clock
) -> Iterator[RowSet]:
    """The rows to judge, some thousands at a time, or each as it comes from stdin."""
    if options.query == STANDARD:
        yield from _lines(sys.stdin)
        return
    with reading(options.query):
        rows = perhaps_labeled(partial(read_rows, options.query), options)
        if rows.embeddings is None or options.model is not None:
            clock.now("embed")
            rows = embedded(options, head.made_from, console)
        rows = vectors(rows, pool=options.pool, transpose=options.transpose)
        rows = in_order(rows, head.made_from.features, str(options.head))
        rows = usable(rows, drop_bad=None, zero_rows=head.made_from.normalize)
    for at in range(0, len(rows), BLOCK):
        yield rows.take(np.arange(at, min(at + BLOCK, len(rows))))


def embedded(options: PredictOptions, made: MadeFrom, console: Console) -> RowSet:
    """Images, or other inputs, as the layer that the head was fitted on puts them out."""
    spec = options.model
    if spec is None and made.model == ENCODER:  # our own code: it need not be typed
        size = ImageReading(options.size or made.size).checked().size
        return encoded_rows(read_rows(options.query, options), replace(options, size=size), console)
    if spec is None:
        raise InputError(f"{options.query} has to be embedded first. {_how_to_embed(made)}")
    if options.weights is None and made.weights is not None and spec == made.model:
        # What a file names is never unpickled, whatever was typed about other files.
        loaded = model_of(spec, replace(options, weights=made.weights, trust_pickle=False), console)
        console.print(f"weights {made.weights}, as {options.head} says; --weights names others")
    else:
        loaded = model_of(spec, options, console)
    if loaded.named is not None and loaded.named.encode is not None:
        rows = read_rows(options.query, options)
        return replace(rows, embeddings=loaded.named.encode(rows.texts or ()))
    how = ImageReading.of(options).filled(made).filled(loaded.named)
    inputs = model_inputs(options.query, options, how, loaded.tokenize)
    check_fits(loaded.model, inputs.data)
    layer = options.embedding or made.embedding or "output"
    with console.progress("embed") as progress:
        found = capture(loaded.model, inputs.data, [layer], pool=compact, progress=progress)
    return replace(inputs.rows, embeddings=found[layer].float().numpy(), source=f"{spec}:{layer}")


def _how_to_embed(made: MadeFrom) -> str:
    """What to add; a head names its model, and whoever types the name runs it."""
    if made.model is None:
        return (
            "The head was fitted on embeddings: add --model file.py:factory and --embedding LAYER "
            "of the model they came from, or embed with `vicinal embed`."
        )
    weights = f" --weights {made.weights}" if made.weights else ""
    weights += "".join(f" --model-arg {shlex.quote(pair)}" for pair in made.arguments)
    layer = "the output" if made.embedding is None else f"layer {made.embedding!r}"
    return (
        f"The head judges {layer} of {made.model}. A model is code, which a file may name and not "
        f"run: add --model {made.model}{weights}."
    )


def _lines(stream: TextIO) -> Iterator[RowSet]:
    """A row per line: a JSON list, or an object with ``embedding`` and maybe ``id``."""
    empty = True
    for place, line in enumerate(_text_of(stream)):
        if not line.strip():
            continue
        empty = False
        try:
            value = json.loads(line)
            x = vector_in(value["embedding"] if isinstance(value, dict) else value)[None]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"line {place + 1} of stdin is no row: {reason(error)}.") from None
        ident = str(value.get("id", place)) if isinstance(value, dict) else str(place)
        if x.ndim != 2 or not x.size:
            raise InputError(f"line {place + 1} of stdin is no row: it has shape {x.shape[1:]}.")
        if not np.isfinite(x).all():
            raise InputError(f"line {place + 1} of stdin holds NaN or infinity.")
        yield RowSet("stdin", x, ids=(ident,), source="stdin")
    if empty:
        raise InputError("stdin is empty. Write a row per line: a list of numbers, as JSON.")


def _text_of(stream: TextIO) -> Iterator[str]:
    """The lines of a stream; bytes that are no text are bad input."""
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is no UTF-8 text: {error}.") from None
