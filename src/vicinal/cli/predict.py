"""``vicinal predict``: judge new rows with a saved head, in a stream."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vicinal.cli import options

if TYPE_CHECKING:
    from vicinal.cli.rows import Rows
    from vicinal.confidence import TrustHead

NAME = "predict"
EXAMPLES = (
    "vicinal predict trust.vic new.npz   ·   cat rows.jsonl | vicinal predict trust.vic - --jsonl -"
)
BLOCK = 2048
FIELDS = ("id", "label", "confidence", "credibility", "near_percentile", "verdict", "reason")


def run(
    head: Annotated[Path, typer.Argument(help="A .vic file of fit or audit.")],
    query: Annotated[str, typer.Argument(help="Rows to judge; - reads JSON lines from stdin.")],
    out: options.Out = None,
    jsonl: Annotated[
        str | None, typer.Option("--jsonl", help="Write JSON lines to this file, or - for stdout.")
    ] = None,
    show: Annotated[int, typer.Option("--head", help="Print this many rows.")] = 0,
    embedding_key: options.EmbeddingKey = None,
    id_col: options.IdCol = None,
    pool: options.Pool = None,
    transpose: options.Transpose = False,
    trust_pickle: options.TrustPickle = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Label, confidence, credibility, verdict and reason of each row; one line each."""
    from vicinal.checks import InputError
    from vicinal.cli.console import Voice
    from vicinal.cli.data_files import Columns
    from vicinal.confidence import TrustHead, load

    voice = Voice(as_json, quiet, aside=jsonl == "-")
    if not head.exists():
        raise InputError(f"no such file: {head}.")
    loaded = load(head)
    if not isinstance(loaded, TrustHead):
        raise InputError(f"{head} holds a bare NED head without standards. Make one with fit.")
    columns = Columns(embedding=embedding_key, id=id_col, trust_pickle=trust_pickle)
    blocks = (
        _from_stdin(sys.stdin)
        if query == "-"
        else _from_file(query, columns, pool=pool, transpose=transpose)
    )
    target = Path("predictions.csv") if out is None and jsonl is None and not as_json else out
    counts: Counter[str] = Counter()
    first: list[dict[str, Any]] = []
    with _Writer(target, jsonl) as writer, voice.library_warnings():
        for rows in blocks:
            for answer in judged(loaded, rows):
                counts[answer["verdict"]] += 1
                if len(first) < max(show, 0):
                    first.append(answer)
                writer.write(answer)
    for answer in first:
        voice.say(
            f"{answer['id']:<12} {answer['label']:<12} {answer['confidence']:.2f}  "
            f"{answer['credibility']:.2f}  p{answer['near_percentile']:<4.0f} "
            f"{answer['verdict']:<11} {answer['reason']}"
        )
    total = sum(counts.values())
    if target is not None:
        voice.say(f"wrote  {target} ({total:,} rows)")
    voice.say(" · ".join(f"{name} {n:,}" for name, n in counts.items()))
    voice.result({"rows": total, "verdicts": dict(counts), "predictions": first})


def judged(head: TrustHead, rows: Rows) -> Iterator[dict[str, Any]]:
    """One answer per row, as plain values."""
    from vicinal.checks import InputError

    x = rows.embeddings
    assert x is not None
    wanted = head.ned.n_features_in_
    if x.shape[1] != wanted:
        raise InputError(
            f"the head was fitted on {wanted} dims but {rows.name} has {x.shape[1]}. They must "
            "come from the same model and layer."
        )
    out = head.predict(x)
    for row in range(len(x)):
        yield {
            "id": rows.row_id(row),
            "label": str(out.label[row]),
            "confidence": float(out.confidence[row]),
            "credibility": float(out.credibility[row]),
            "near_percentile": float(out.near_percentile[row]),
            "verdict": str(out.verdict[row]),
            "reason": out.reason[row],
            "neighbors": [int(i) for i in out.neighbors[row][:5]],
        }


class _Writer:
    """Rows to a CSV that appears whole at the end, or to JSON lines as they come."""

    def __init__(self, target: Path | None, jsonl: str | None):
        self.target = target if target is None or target.suffix != ".jsonl" else None
        self.jsonl = jsonl or (str(target) if target is not None and self.target is None else None)
        self.buffer = io.StringIO()

    def __enter__(self) -> _Writer:
        from vicinal.checks import InputError

        for path in (self.target, Path(self.jsonl) if self.jsonl not in (None, "-") else None):
            if path is not None and not path.parent.is_dir():
                raise InputError(f"cannot write {path}: the folder {path.parent} does not exist.")
        self.rows = csv.writer(self.buffer, lineterminator="\n")
        self.rows.writerow(FIELDS)
        self.lines: list[str] = []
        return self

    def write(self, answer: dict[str, Any]) -> None:
        from vicinal.audits.files import word

        if self.jsonl == "-":
            sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        elif self.jsonl is not None:
            self.lines.append(json.dumps(answer, ensure_ascii=False))
        if self.target is not None:
            cells = [answer[name] for name in FIELDS]
            self.rows.writerow([word(c) if isinstance(c, str) else f"{c:.6g}" for c in cells])

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        from vicinal.files import write_atomically

        if kind is not None:
            return
        if self.target is not None:
            write_atomically(self.target, self.buffer.getvalue())
        if self.jsonl not in (None, "-"):
            assert self.jsonl is not None
            write_atomically(Path(self.jsonl), "\n".join(self.lines) + "\n")


def _from_file(spec: str, columns: Any, *, pool: str | None, transpose: bool) -> Iterator[Rows]:
    import numpy as np

    from vicinal.cli.data_files import read_rows
    from vicinal.cli.rows import usable, vectors

    rows = usable(
        vectors(read_rows(spec, columns), pool=pool, transpose=transpose),
        drop_bad=False,
        zero_rows=False,
    )
    for at in range(0, len(rows), BLOCK):
        yield rows.take(np.arange(at, min(at + BLOCK, len(rows))))


def _from_stdin(stream: TextIO) -> Iterator[Rows]:
    """A row per line: a JSON list, or an object with ``embedding`` and maybe ``id``."""
    import numpy as np

    from vicinal.checks import InputError
    from vicinal.cli.rows import Rows

    for number, line in enumerate(stream):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            vector = value["embedding"] if isinstance(value, dict) else value
            x = np.asarray([vector], dtype=np.float64)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"line {number + 1} of stdin is no row: {error}.") from None
        ident = str(value.get("id", number)) if isinstance(value, dict) else str(number)
        if not np.isfinite(x).all():
            raise InputError(f"line {number + 1} of stdin holds NaN or infinity.")
        yield Rows("stdin", x, ids=(ident,), source="stdin")
