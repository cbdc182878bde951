"""Groups of flags that several commands share: records that a command's own record inherits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew; ignore what a stopped run left.")]
Metric = Annotated[str, typer.Option("--metric", help="l2 or cosine.")]
DropBad = Annotated[bool, typer.Option("--drop-bad", help="Skip rows with NaN/Inf; list them.")]
TargetAccuracy = Annotated[
    float, typer.Option("--target-accuracy", help="Accuracy the accepted rows must keep.")
]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Load pickled objects. They can run any code.")
]
METRICS = ("l2", "cosine")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which key or column holds what, where the usual names do not."""

    embedding_key: Annotated[
        str | None, typer.Option("--embedding-key", help="Key or column of the embeddings.")
    ] = None
    label_key: Annotated[
        str | None, typer.Option("--label-key", help="Key or column of the labels.")
    ] = None
    id_col: Annotated[str | None, typer.Option("--id-col", help="Key or column of the ids.")] = None
    image_col: Annotated[
        str | None, typer.Option("--image-col", help="Images, or paths of images.")
    ] = None
    text_col: Annotated[
        str | None, typer.Option("--text-col", help="Key or column of the texts.")
    ] = None
    align: Annotated[
        str | None, typer.Option("--align", help="'ids': match labels to rows by id.")
    ] = None
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """How stored features become one vector per row."""

    pool: Annotated[
        str | None, typer.Option("--pool", help="mean, max or flatten, for 4-D features.")
    ] = None
    transpose: Annotated[
        bool, typer.Option("--transpose", help="Embeddings are stored as (d, n).")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is made ready."""

    weights: Annotated[str | None, typer.Option("--weights", help="Checkpoint for --model.")] = None
    model_arg: Annotated[
        list[str] | None,
        typer.Option("--model-arg", help="name=value for the factory; repeatable."),
    ] = None
    output: Annotated[
        str | None, typer.Option("--output", help="Which of several model outputs are the logits.")
    ] = None
    trust_pickle: TrustPickle = False


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read for a model."""

    size: Annotated[
        int | None, typer.Option("--size", help="Resize images to this square.", min=1)
    ] = None
    gray: Annotated[bool, typer.Option("--gray", help="Read images with one channel.")] = False


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """What is printed, and where."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON on stdout, only.")
    ] = False
    quiet: Quiet = False
