"""``vicinal audit``: the main job, from files to a run folder with a page in it."""

from __future__ import annotations

import datetime
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vicinal.cli import options

if TYPE_CHECKING:
    from vicinal.audits.inputs import AuditSettings
    from vicinal.audits.record import Audit, Media
    from vicinal.audits.sections import Provenance
    from vicinal.cli.audit_inputs import Prepared
    from vicinal.cli.console import Voice

NAME = "audit"
EXAMPLES = (
    "vicinal audit train.npz test.npz --target-accuracy 0.99   ·   "
    "vicinal audit photos/train photos/test --model net.py:make --weights w.pt"
)


def run(
    support: Annotated[str, typer.Argument(help="Labeled reference rows: file or folder.")],
    query: Annotated[str | None, typer.Argument(help="Rows to judge.")] = None,
    calib: Annotated[str | None, typer.Option("--calib", help="Held-out rows to fit on.")] = None,
    out: options.Out = None,
    k: Annotated[str, typer.Option("--k", help="Neighbors that vote, or auto.")] = "auto",
    metric: options.Metric = "l2",
    normalize: options.Normalize = False,
    target_accuracy: Annotated[
        float, typer.Option("--target-accuracy", help="Accuracy the accepted rows must keep.")
    ] = 0.99,
    prior: Annotated[
        str, typer.Option("--prior", help="Class shares: support, uniform.")
    ] = "support",
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Do not score classes the support lacks.")
    ] = False,
    force_ece: Annotated[bool, typer.Option("--force-ece", help="ECE even on few rows.")] = False,
    model: options.Model = None,
    weights: options.Weights = None,
    model_arg: options.ModelArg = None,
    output: options.OutputKey = None,
    embedding: Annotated[
        str | None, typer.Option("--embedding", help="Layer to search in; default: last but one.")
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="Layer for the story; repeatable.")
    ] = None,
    size: Annotated[int | None, typer.Option("--size", help="Resize images to this.")] = None,
    gray: Annotated[bool, typer.Option("--gray", help="Read images with one channel.")] = False,
    embedding_key: options.EmbeddingKey = None,
    label_key: options.LabelKey = None,
    id_col: options.IdCol = None,
    image_col: options.ImageCol = None,
    text_col: options.TextCol = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Class names, one per line.")
    ] = None,
    pool: options.Pool = None,
    transpose: options.Transpose = False,
    align: options.Align = None,
    drop_bad: options.DropBad = False,
    trust_pickle: options.TrustPickle = False,
    no_images: Annotated[bool, typer.Option("--no-images", help="No thumbnails.")] = False,
    hash_ids: Annotated[bool, typer.Option("--hash-ids", help="Ids as checksums.")] = False,
    max_mb: Annotated[float, typer.Option("--max-mb", help="Size of the page.")] = 10.0,
    seed: options.Seed = 0,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings of an earlier run (config.json).")
    ] = None,
    fresh: options.Fresh = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """How far may each prediction be trusted, which labels look wrong, and who says so."""
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("config", "out", "fresh", "as_json", "quiet")
    }
    from vicinal.cli.audit_inputs import prepare, settings_of
    from vicinal.cli.audit_summary import say_result
    from vicinal.cli.console import Voice
    from vicinal.cli.run_folder import locked, next_folder, read_config

    voice = Voice(as_json, quiet)
    if config is not None:
        given = {**given, **read_config(config, given, "audit")}
        given |= {"support": support, "query": query} if support != "-" else {}
    prepared = prepare(given, settings_of(given), voice)
    settings = settings_of(given)
    folder = out or next_folder(Path("runs"), "audit")
    with locked(folder):
        if fresh:
            shutil.rmtree(folder / ".work", ignore_errors=True)
        audit = computed(prepared, settings, given, folder, voice)
        write_run(audit, folder, given, prepared.dropped, max_mb=given["max_mb"])
    say_result(audit, folder, voice)
    voice.result(audit.summary)


def computed(
    prepared: Prepared,
    settings: AuditSettings,
    given: dict[str, Any],
    folder: Path,
    voice: Voice,
) -> Audit:
    """Run the study with a bar for each of its long steps."""
    from vicinal.studies import audit

    with voice.progress("audit") as bar:
        return audit(
            **prepared.arguments,
            settings=settings,
            about=prepared.about,
            work=folder / ".work",
            progress=lambda _title, done, total: bar(done, total),
        )


def write_run(
    audit: Audit,
    folder: Path,
    given: dict[str, Any],
    dropped: list[tuple[str, str]],
    *,
    max_mb: float,
) -> None:
    """All files of the run; until the last one is there the folder is marked unfinished."""
    from vicinal.audits.files import (
        csv_text,
        word,
        write_samples,
        write_summary,
        write_suspects,
    )
    from vicinal.cli.audit_inputs import plain
    from vicinal.cli.media import save_media
    from vicinal.cli.run_folder import git_commit, publishing, write_json
    from vicinal.files import write_atomically

    with publishing(folder):
        write_atomically(folder / "audit.json", audit.to_json() + "\n")
        write_summary(audit, folder / "summary.json")
        write_samples(audit, folder / "samples.csv")
        write_suspects(audit, folder / "suspects.csv")
        if dropped:
            rows = [["id", "why"], *([word(name), why] for name, why in dropped)]
            write_atomically(folder / "dropped.csv", csv_text(rows))
        save_media(audit.media, folder / "media.npz")
        audit.head.save(folder / "trust.vic")
        write_json(folder / "config.json", {key: plain(v) for key, v in given.items()})
        audit.save(folder / "report.html", max_mb=max_mb)
        provenance = {**audit.provenance.to_dict(), "git": git_commit(), "argv": sys.argv}
        write_json(folder / "provenance.json", provenance)
    shutil.rmtree(folder / ".work", ignore_errors=True)


def provenance_of(command: str, config: dict[str, Any], seed: int, start: float) -> Provenance:
    from vicinal import __version__
    from vicinal.audits.audit import versions
    from vicinal.audits.sections import Provenance

    return Provenance(
        version=__version__,
        seed=seed,
        command=shlex.join(["vicinal", command, *sys.argv[2:]]),
        reproduce=shlex.join(["vicinal", *sys.argv[1:]]),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - start, 2),
        device="cpu",
        versions=versions(),
        config=config,
    )


def media_of_run(folder: Path) -> Media | None:
    from vicinal.cli.media import load_media

    return load_media(folder / "media.npz")
