"""``vicinal fit``: a head to keep, from a labeled support and, better, held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vicinal.cli import options

NAME = "fit"
EXAMPLES = "vicinal fit train.npz --calib val.npz --target-accuracy 0.99 -o trust.vic"


def run(
    support: Annotated[str, typer.Argument(help="Labeled reference rows.")],
    calib: Annotated[str | None, typer.Option("--calib", help="Held-out labeled rows.")] = None,
    target_accuracy: Annotated[
        float, typer.Option("--target-accuracy", help="Accuracy the accepted rows must keep.")
    ] = 0.99,
    out: options.Out = None,
    k: Annotated[int | None, typer.Option("--k", help="Neighbors that vote.")] = None,
    metric: options.Metric = "l2",
    embedding_key: options.EmbeddingKey = None,
    label_key: options.LabelKey = None,
    pool: options.Pool = None,
    transpose: options.Transpose = False,
    drop_bad: options.DropBad = False,
    trust_pickle: options.TrustPickle = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit temperature and thresholds, and write a .vic file that predict and your service load."""
    from vicinal.checks import InputError, check_choice
    from vicinal.cli.console import Voice
    from vicinal.cli.data_files import Columns, read_rows
    from vicinal.cli.rows import checked_labels, usable, vectors
    from vicinal.confidence import NEDClassifier, TrustHead

    voice = Voice(as_json, quiet)
    check_choice(metric, "--metric", ("l2", "cosine"))
    columns = Columns(embedding_key, label_key, trust_pickle=trust_pickle)

    def labeled(spec: str) -> tuple[object, object]:
        rows = checked_labels(read_rows(spec, columns))
        if rows.labels is None:
            raise InputError(f"{rows.name} has no labels. Name them with --label-key.")
        rows = usable(
            vectors(rows, pool=pool, transpose=transpose),
            drop_bad=drop_bad,
            zero_rows=metric == "cosine",
        )
        for name, why in rows.dropped:
            voice.warn(f"row {name} was dropped: {why}.")
        return rows.embeddings, rows.labels

    path = out or Path("trust.vic")
    if path.suffix != ".vic":
        raise InputError(f"--out {path} must end in .vic.")
    pair, held = labeled(support), None if calib is None else labeled(calib)
    ned = NEDClassifier(
        k=100 if k is None else k,
        sharpness="fit",
        background="fit",
        bandwidth="class",
        metric="cosine" if metric == "cosine" else "sqeuclidean",
    )
    with voice.library_warnings():
        head = TrustHead.fit(pair, calib=held, ned=ned, target_accuracy=target_accuracy)
    head.save(path)
    say_threshold(head, held is not None, voice)
    size = path.stat().st_size / 1e6
    voice.say(f"wrote  {path} (support {head.ned.support_size_:,} rows, {size:.1f} MB)")
    voice.result(
        {
            "path": str(path),
            "classes": [str(c) for c in head.classes_.tolist()],
            "temperature": head.ned.temperature_,
            "threshold": None if not head.standards.reachable else head.standards.threshold,
            "target_accuracy": target_accuracy,
        }
    )


def say_threshold(head: object, held_out: bool, voice: object) -> None:
    from vicinal.cli.console import Voice
    from vicinal.confidence import TrustHead

    assert isinstance(head, TrustHead)
    assert isinstance(voice, Voice)
    held = head.standards
    where = "calib" if held_out else "support rows left out in turn"
    if held.reachable:
        voice.say(
            f"threshold conf ≥ {held.threshold:.3f} keeps {held.target_accuracy:.1%} accuracy on "
            f"rows like {where} (95 % certainty, {len(held.disagreements):,} rows)"
        )
    else:
        voice.warn(
            f"no confidence can be shown to keep {held.target_accuracy:.1%} accuracy from "
            f"{len(held.disagreements):,} rows: rows below {held.level:.3f} count as contested. "
            "Give more --calib rows or a lower --target-accuracy."
        )
    voice.say(
        "the bound holds for data like these; it says nothing about unfamiliar inputs, which are "
        f"told apart by distance (p ≥ {held.far_percentile:g})"
    )
    if not held_out:
        voice.warn(
            "no --calib was given: temperature and threshold come from the support, leave-one-out. "
            "They are too kind if the embedding was trained on these rows."
        )
