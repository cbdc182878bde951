"""What ``vicinal audit`` was given: files read, checked and described; nothing computed yet."""

from __future__ import annotations

import hashlib
import shlex
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vicinal.audits.inputs import About, AuditSettings
from vicinal.audits.model import embedding_of
from vicinal.checks import InputError, check_choice, closest
from vicinal.cli.config import as_config
from vicinal.cli.console import Console
from vicinal.cli.data_files import read_vectors
from vicinal.cli.model_inputs import ModelInputs, check_fits, in_codes_of, model_inputs
from vicinal.cli.models import model_of
from vicinal.cli.options import METRICS
from vicinal.cli.row_set import RowSet
from vicinal.cli.run_media import media_of
from vicinal.cli.verbs import AuditOptions

ROLES = ("support", "query", "calib")


@dataclass(frozen=True)
class Prepared:
    """The sets as the audit takes them, what they are called, and what was left out of them."""

    options: AuditOptions
    arguments: dict[str, Any]
    about: About
    dropped: tuple[tuple[str, str], ...] = ()


def prepare(options: AuditOptions, console: Console) -> Prepared:
    """Embeddings, or a model and its inputs, read and checked."""
    settings_of(options)  # a wrong setting is answered before a file is read
    if options.model is not None:
        return _with_model(options, options.model, console)
    sets = {role: _vectors(getattr(options, role), options) for role in ROLES}
    support, query, calib = sets["support"], sets["query"], sets["calib"]
    assert support is not None
    if support.labels is None:
        _refuse_unlabeled(support, options.support)
    _check_dims(support, query, "query")
    _check_dims(support, calib, "calib")
    arguments: dict[str, Any] = {"support": (support.embeddings, support.labels)}
    if query is not None:
        arguments |= {"query": _pair(query), "logits": query.logits}
    if calib is not None:
        arguments["calib"] = _pair(calib)
    dropped = tuple(pair for rows in sets.values() if rows is not None for pair in rows.dropped)
    if dropped:
        console.warn(f"{len(dropped)} rows were dropped; they are listed in dropped.csv.")
    about = _about(options, {**sets, "query": query or support})
    return Prepared(options, arguments, about, dropped)


def settings_of(options: AuditOptions) -> AuditSettings:
    """All that decides the numbers, as the library takes it."""
    check_choice(options.metric, "--metric", METRICS)
    if options.k != "auto" and not options.k.isdigit():
        raise InputError(f"--k must be a whole number or auto, got {options.k!r}.")
    return AuditSettings(
        k=None if options.k == "auto" else int(options.k),
        metric="cosine" if options.metric == "cosine" else "sqeuclidean",
        normalize=options.normalize,
        target_accuracy=options.target_accuracy,
        prior=options.prior,
        unknown="unlabeled" if options.ignore_unknown else "wrong",
        force_ece=options.force_ece,
        seed=options.seed,
        embedding=options.embedding,
        layers=tuple(options.layer or ()),
    )


def _vectors(spec: str | None, options: AuditOptions) -> RowSet | None:
    if spec is None:
        return None
    return read_vectors(
        spec,
        options,
        pool=options.pool,
        transpose=options.transpose,
        drop_bad=options.drop_bad,
        zero_rows=options.metric == "cosine" or options.normalize,
    )


def _with_model(options: AuditOptions, spec: str, console: Console) -> Prepared:
    """Inputs for the model, instead of embeddings."""
    loaded = model_of(spec, options, console)
    if not loaded.hooks:
        raise InputError(
            f"{spec} is a compiled program without layers: embed with `vicinal embed`, then audit "
            "the embeddings."
        )
    if options.query is None:
        raise InputError("with --model give both sets: vicinal audit TRAIN TEST --model …")
    sets: dict[str, ModelInputs] = {}
    names: list[str] | None = None
    for role in ROLES:
        if (data := getattr(options, role)) is not None:
            inputs = model_inputs(data, options, size=options.size, gray=options.gray)
            sets[role] = in_codes_of(names, inputs)
            names = names or inputs.classes
    train = sets["support"].data
    check_fits(loaded.model, train)
    if options.embedding is None:  # written down, so that the run can be repeated and explored
        options = replace(options, embedding=embedding_of(loaded.model, train))
    arguments = {
        "model": loaded.model,
        "train": train,
        "test": sets["query"].data,
        "calib": sets["calib"].data if "calib" in sets else None,
    }
    about = _about(options, {role: inputs.rows for role, inputs in sets.items()}, names)
    return Prepared(options, arguments, about)


def _pair(rows: RowSet) -> Any:
    return rows.embeddings if rows.labels is None else (rows.embeddings, rows.labels)


def _refuse_unlabeled(rows: RowSet, spec: str) -> None:
    keys: list[str] = []
    if spec.endswith(".npz"):
        with zipfile.ZipFile(spec) as file:
            keys = [name.removesuffix(".npy") for name in file.namelist()]
    near = closest("target", keys, 1) or closest("labels", keys, 1) or closest("y", keys, 1)
    hint = f" Did you mean --label-key {near[0]}?" if near else ""
    listed = f" (keys: {', '.join(keys)})" if keys else ""
    raise InputError(f"{rows.name} has no key 'y' or 'labels'{listed}.{hint}")


def _check_dims(support: RowSet, other: RowSet | None, role: str) -> None:
    if other is None:
        return
    ours, theirs = support.shape, other.shape
    if ours[1] != theirs[1]:
        raise InputError(
            f"support embeddings have {ours[1]} dims but {role} has {theirs[1]} ({other.source}). "
            f"They must come from the same model and layer. Saw {support.source} {ours}."
        )


def _about(options: AuditOptions, sets: dict[str, Any], names: list[str] | None = None) -> About:
    """What the sets are called and look like."""
    support, query, calib = sets["support"], sets["query"], sets.get("calib")
    ids = _hashed if options.hash_ids else _given
    return About(
        name=Path(options.query or options.support).stem,
        support_name=support.name,
        query_name=query.name,
        calib_name=calib.name if calib else "calib",
        support_ids=ids(support),
        query_ids=ids(query),
        class_names=names if options.labels is None else _class_names(options.labels),
        model=options.model,
        command=shlex.join(["vicinal", *sys.argv[1:]]),
        reproduce="vicinal audit - --config config.json",
        media=None if options.no_images else media_of(support, query),
        show_images=not options.no_images,
        config=as_config(options),
    )


def _class_names(path: Path) -> list[str]:
    if not path.exists():
        raise InputError(f"no such file: {path}.")
    return [line for line in path.read_text("utf-8").splitlines() if line.strip()]


def _given(rows: RowSet) -> tuple[str, ...] | None:
    return rows.ids


def _hashed(rows: RowSet) -> tuple[str, ...]:
    """The plain SHA-256 of each id, which whoever has the ids can make as well."""
    return tuple(
        hashlib.sha256(rows.row_id(row).encode()).hexdigest()[:12] for row in range(len(rows))
    )
