"""Sets that are patterns or folders of shards, or that ``--memory`` shall hold: read in blocks."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from vicinal.audits.scale import as_rows
from vicinal.audits.settings import About
from vicinal.capture.row_files import KINDS, Names
from vicinal.capture.shards import MANIFEST
from vicinal.checks import InputError
from vicinal.cli.config import as_config
from vicinal.cli.saved_datasets import is_saved
from vicinal.cli.verbs import AuditOptions
from vicinal.neighbors.search.pg_rows import is_pg

# What looks at all rows at once, or at what the rows look like.
WHOLE = ("drop_bad", "transpose", "pool", "apply", "hash_ids", "align")


def in_shards(options: AuditOptions) -> bool:
    """Whether some set is in shards, or memory is limited."""
    specs = (options.support, options.query, options.calib, options.foreign)
    return options.model is None and (
        options.memory is not None or any(_is_sharded(spec) for spec in specs if spec is not None)
    )


def _is_sharded(spec: str) -> bool:
    if is_pg(spec):
        return True
    path = Path(spec)
    if path.is_dir():
        files = {p.suffix.lower().removeprefix(".") for p in path.iterdir()}
        ours = (path / MANIFEST).exists() or is_saved(path)
        return not ours and not files.isdisjoint(KINDS)
    return not path.exists() and any(sign in spec for sign in "*?[")


def sharded_sets(
    options: AuditOptions, given: dict[str, str], class_names: Any
) -> tuple[dict[str, Any], About]:
    """The sets as :func:`vicinal.audit` takes them, and what they are called."""
    for name in WHOLE:
        if getattr(options, name):
            raise InputError(
                f"--{name.replace('_', '-')} looks at all rows at once, which shards and --memory "
                "do not. Prepare the files so that it is not needed, or give one file of rows."
            )
    names = Names(options.embedding_key, options.label_key, options.id_col)
    sets = {role: as_rows(spec, names) for role, spec in given.items()}
    titles = {f"{role}_name": Path(spec.split("+")[0]).name for role, spec in given.items()}
    about = About(
        name=Path((options.query or options.support or "").split("+")[0]).stem.strip("*-_ ")
        or "audit",
        **{"query_name": titles["support_name"], **titles},  # type: ignore[arg-type]
        class_names=class_names,
        command=shlex.join(["vicinal", *sys.argv[1:]]),
        show_images=False,
        config=as_config(options),
    )
    return {**sets, "memory": options.memory}, about
