"""The flags of ``vicinal audit``, which are the keys of a run's ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vicinal.audits.inputs import AuditSettings
from vicinal.checks import InputError, check_choice
from vicinal.cli import options


@dataclass(frozen=True, kw_only=True)
class AuditOptions(
    options.DataOptions,
    options.VectorOptions,
    options.ModelOptions,
    options.ImageOptions,
    options.ConsoleOptions,
):
    """What is audited, how, and what is shown of it."""

    support: Annotated[str, typer.Argument(help="Labeled reference rows: file or folder.")]
    query: Annotated[str | None, typer.Argument(help="Rows to judge.")] = None
    calib: Annotated[str | None, typer.Option("--calib", help="Held-out rows to fit on.")] = None
    out: options.Out = None
    k: Annotated[str, typer.Option("--k", help="Neighbors that vote, or auto.")] = "auto"
    metric: options.Metric = "l2"
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Scale every row to length 1 first.")
    ] = False
    target_accuracy: options.TargetAccuracy = 0.99
    prior: Annotated[str, typer.Option("--prior", help="Class shares: support, uniform.")] = (
        "support"
    )
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Do not score classes the support lacks.")
    ] = False
    force_ece: Annotated[bool, typer.Option("--force-ece", help="ECE even on few rows.")] = False
    model: Annotated[
        str | None,
        typer.Option("--model", help="file.py:factory, pkg.module:factory, model.ts or model.pt2."),
    ] = None
    embedding: Annotated[
        str | None, typer.Option("--embedding", help="Layer to search in; default: last but one.")
    ] = None
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="Layer for the story; repeatable.")
    ] = None
    labels: Annotated[Path | None, typer.Option("--labels", help="Class names, one per line.")] = (
        None
    )
    drop_bad: options.DropBad = False
    no_images: Annotated[bool, typer.Option("--no-images", help="No thumbnails.")] = False
    hash_ids: Annotated[bool, typer.Option("--hash-ids", help="Ids as checksums.")] = False
    max_mb: Annotated[float, typer.Option("--max-mb", help="Size of the page.")] = 10.0
    seed: options.Seed = 0
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings of an earlier run (config.json).")
    ] = None
    fresh: options.Fresh = False

    def settings(self) -> AuditSettings:
        """All that decides the numbers, as the library takes it."""
        check_choice(self.metric, "--metric", options.METRICS)
        if self.k != "auto" and not self.k.isdigit():
            raise InputError(f"--k must be a whole number or auto, got {self.k!r}.")
        return AuditSettings(
            k=None if self.k == "auto" else int(self.k),
            metric="cosine" if self.metric == "cosine" else "sqeuclidean",
            normalize=self.normalize,
            target_accuracy=self.target_accuracy,
            prior=self.prior,
            unknown="unlabeled" if self.ignore_unknown else "wrong",
            force_ece=self.force_ece,
            seed=self.seed,
            embedding=self.embedding,
            layers=tuple(self.layer or ()),
        )
