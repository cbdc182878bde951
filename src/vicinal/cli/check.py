"""``vicinal check``: would these files do? Nothing is computed, nothing written."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vicinal.cli import options

NAME = "check"
EXAMPLES = "vicinal check train.npz test.npz"


def run(
    files: Annotated[list[str], typer.Argument(help="Data files, or one saved head (.vic).")],
    embedding_key: options.EmbeddingKey = None,
    label_key: options.LabelKey = None,
    id_col: options.IdCol = None,
    image_col: options.ImageCol = None,
    text_col: options.TextCol = None,
    pool: options.Pool = None,
    transpose: options.Transpose = False,
    trust_pickle: options.TrustPickle = False,
    metric: options.Metric = "l2",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Validate inputs only: shapes, labels, NaN, dimensions that match. Exit code 2 if not."""
    from vicinal.checks import InputError
    from vicinal.cli.console import Voice
    from vicinal.cli.data_files import Columns, read_rows
    from vicinal.cli.rows import checked_labels, usable, vectors

    voice = Voice(as_json, quiet)
    columns = Columns(
        embedding_key, label_key, id_col, image_col, text_col, trust_pickle=trust_pickle
    )
    facts: list[dict[str, Any]] = []
    first: tuple[str, tuple[int, ...]] | None = None
    for spec in files:
        if spec.endswith(".vic"):
            facts.append(_head(spec))
            continue
        rows = checked_labels(read_rows(spec, columns))
        if rows.embeddings is None:
            facts.append({"file": spec, "rows": len(rows), "needs": "--model"})
            continue
        rows = usable(
            vectors(rows, pool=pool, transpose=transpose),
            drop_bad=False,
            zero_rows=metric == "cosine",
        )
        assert rows.embeddings is not None
        shape = rows.embeddings.shape
        if first is not None and shape[1] != first[1][1]:
            raise InputError(
                f"{first[0]} embeddings have {first[1][1]} dims but {rows.name} has {shape[1]} "
                f"({rows.source}). They must come from the same model and layer. "
                f"Saw {first[0]} {first[1]}."
            )
        first = first or (rows.source, shape)
        labels = rows.labels
        facts.append(
            {
                "file": spec,
                "rows": len(rows),
                "dims": int(shape[1]),
                "classes": None if labels is None else len(set(labels.tolist())),
                "ids": rows.ids is not None,
                "fingerprint": rows.fingerprint,
            }
        )
    for fact in facts:
        voice.say("  ".join(f"{key} {value}" for key, value in fact.items()))
    voice.result(facts)


def _head(path: str) -> dict[str, Any]:
    from vicinal.confidence import load

    head = load(path)
    return {"file": path, "kind": type(head).__name__, "classes": len(head.classes_)}
