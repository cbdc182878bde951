"""The options that several commands share, each written down once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew; ignore what a stopped run left.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
EmbeddingKey = Annotated[
    str | None, typer.Option("--embedding-key", help="Key or column of the embeddings.")
]
LabelKey = Annotated[str | None, typer.Option("--label-key", help="Key or column of the labels.")]
IdCol = Annotated[str | None, typer.Option("--id-col", help="Key or column of the ids.")]
ImageCol = Annotated[str | None, typer.Option("--image-col", help="Images, or paths of images.")]
TextCol = Annotated[str | None, typer.Option("--text-col", help="Key or column of the texts.")]
Pool = Annotated[str | None, typer.Option("--pool", help="mean, max or flatten, for 4-D features.")]
Transpose = Annotated[bool, typer.Option("--transpose", help="Embeddings are stored as (d, n).")]
Align = Annotated[str | None, typer.Option("--align", help="'ids': match labels to rows by id.")]
DropBad = Annotated[bool, typer.Option("--drop-bad", help="Skip rows with NaN/Inf; list them.")]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Load pickled objects. They can run any code.")
]
Metric = Annotated[str, typer.Option("--metric", help="l2 or cosine.")]
Normalize = Annotated[
    bool, typer.Option("--normalize/--no-normalize", help="Scale every row to length 1 first.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="file.py:factory, pkg.module:factory, model.ts or model.pt2."),
]
Weights = Annotated[str | None, typer.Option("--weights", help="Checkpoint for --model.")]
ModelArg = Annotated[
    list[str] | None, typer.Option("--model-arg", help="name=value for the factory; repeatable.")
]
OutputKey = Annotated[
    str | None, typer.Option("--output", help="Which of several model outputs are the logits.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Rows per forward pass.", min=1)]
