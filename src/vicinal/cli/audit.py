"""``vicinal audit``: the main job, from files to a run folder with a page in it.

Files are read, checked and described before anything is computed; what is printed at the end is the
terminal's version of the page's first screen.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from numpy.typing import NDArray

from vicinal.audits import audit
from vicinal.audits.encoder import ENCODER
from vicinal.audits.entangled_layers import states_of
from vicinal.audits.files import word
from vicinal.audits.model import embedding_of, whole
from vicinal.audits.record import Audit
from vicinal.audits.settings import About, AuditSettings
from vicinal.audits.stress import costs
from vicinal.capture import read_weights, row_count
from vicinal.checks import InputError, check_choice
from vicinal.cli.advice import CLEANED, repeat_command, what_was_written
from vicinal.cli.classes import order_for, stated_order
from vicinal.cli.config import as_config
from vicinal.cli.console import Clock, Console
from vicinal.cli.data_files import read_rows, read_vectors, without_labels
from vicinal.cli.decisions import cleaned_support
from vicinal.cli.folders import WORK, locked
from vicinal.cli.head_lines import head_lines
from vicinal.cli.in_shards import in_shards, sharded_sets
from vicinal.cli.model_inputs import (
    ImageReading,
    ModelInputs,
    check_fits,
    in_codes_of,
    model_inputs,
    relabeled,
)
from vicinal.cli.models import LoadedModel, model_of
from vicinal.cli.row_set import RowSet, check_same_dims, in_order, perhaps_labeled
from vicinal.cli.run_folder import (
    DROPPED,
    ROLES,
    changed_sets,
    media_of,
    next_folder,
    sets_then,
    write_run,
)
from vicinal.cli.verbs import METRICS, AuditOptions
from vicinal.files import remove_tree
from vicinal.report.facts import (
    label_sentences,
    scored,
    stress_sentences,
    target_sentence,
    threshold_sentence,
)
from vicinal.report.words import percent, plural

# What says nothing without --model, and is not left aside in silence.
OF_A_MODEL = ("stress", "checkpoints", "weights", "model_arg", "output", "embedding", "layer",
              "network_rows", "mean", "std", "gray", "online")  # fmt: skip
# Settings that have one name and one form on the command line and in the library.
SAME_SETTINGS = ("normalize", "space", "map", "search", "recall", "target_accuracy", "unfamiliar",
                 "prior", "force_ece", "seed", "embedding", "network_rows")  # fmt: skip


def run(options: AuditOptions) -> None:
    """Read, audit, write, and print the page's first screen."""
    console = Console(options.as_json, options.quiet)
    if options.support is None:
        raise InputError(
            "nothing to audit: vicinal audit TRAIN TEST, or vicinal audit --config run/config.json."
        )
    clock = console.clock = Clock("reading")
    prepared = prepare(options, console)
    if (decided := prepared.tables.get(CLEANED)) is not None:
        changed = sum(label != was for _, label, was, _ in decided[1:])
        console.print(
            f"apply    {options.apply}: {changed:,} of {plural(len(decided) - 1, 'label')} "
            f"{'changes' if changed == 1 else 'change'}"
        )
    folder = options.out or next_folder(Path("runs"), "audit")
    before = {} if options.config is None else sets_then(options.config)
    if options.apply is not None:
        before.pop("support", None)  # its labels are to change
    with locked(folder, "run"):
        if options.fresh:
            remove_tree(folder / WORK)
        with console.steps(clock) as step:
            result = audit(
                **prepared.arguments,
                settings=settings_of(prepared.options),
                on=options.on,
                about=replace(prepared.about, reproduce=repeat_command(options.model, folder)),
                work=folder / WORK,
                progress=step,
            )
            step("writing", 0, None)
            write_run(result, folder, as_config(prepared.options), prepared.tables,
                      max_mb=options.max_mb)  # fmt: skip
    print_summary(result, folder, console)
    for text in changed_sets(result, before, options.config):
        console.warn(text)
    console.print(str(clock))
    console.result(result.summary)


def print_summary(audit: Audit, folder: Path, console: Console) -> None:
    """Who made it, the data, the heads, what was found, and where it was written."""
    made = audit.provenance
    console.print(f"vicinal {made.version} · seed {made.seed} · no network used")
    for text in audit.warnings:
        console.warn(text)
    heads = _heads(audit, console.out.width)
    for part in (_data(audit), heads, _findings(audit), what_was_written(folder)):
        console.print("\n".join(part))


def _data(audit: Audit) -> Iterator[str]:
    data = audit.data
    for role, facts in (("support", data.support), ("query", data.query), ("calib", data.calib)):
        if facts is not None:
            span = "no labels"
            if facts.labeled:
                sizes = f"min {facts.smallest_class:,} · max {facts.largest_class:,}"
                span = f"{plural(facts.classes or 0, 'class', 'classes')} ({sizes})"
            size = f"{facts.rows:,} x {facts.dims}"
            yield f"{role:<8} {facts.name}   {size}   {span}   sha {facts.fingerprint}"
    yield f"{'split':<8} {data.split} · k={data.k} · T={data.temperature or 0:.4g}"
    if data.space is not None:
        yield f"{'space':<8} {data.space.how}"
    if audit.scale is not None:
        yield f"{'scale':<8} {audit.scale.how}"
    if audit.search is not None:
        yield f"{'search':<8} {audit.search.how}"
    yield ""


def _heads(audit: Audit, width: int) -> Iterator[str]:
    if scored(audit):
        yield from head_lines(audit, width)
    if audit.recommendation is not None:
        yield f"  {audit.recommendation.why}"
    if audit.risk_coverage is not None:
        yield f"  {threshold_sentence(audit)}"
    if (why := target_sentence(audit)) is not None:
        yield f"  {why} --target-accuracy sets another."
    yield ""


def _findings(audit: Audit) -> Iterator[str]:
    counts = audit.verdict_counts()
    yield "  verdicts   " + " · ".join(f"{name} {n:,}" for name, n in counts.items())
    if audit.labels is not None:
        suspects, checked = audit.suspect_count or 0, audit.labels.checked
        whose = "its" if suspects == 1 else "their"
        yield (
            f"  labels     {suspects:,} of {plural(checked, 'support label')} contradicted by "
            f"{whose} neighborhood ({percent(suspects / max(checked, 1))})"
        )
        yield from (f"             {line}" for line in label_sentences(audit))
    if (found := audit.unknowns) is not None:
        yield (
            f"  unknowns   {found.foreign.name}: {percent(found.parts[0].flagged, 0)} of "
            f"{plural(found.rows, 'held-out foreign row')} are unfamiliar, "
            f"{percent(found.supported, 0)} supported (AUROC {found.parts[0].auroc:.3f}; "
            f"{percent(found.flagged)} of ordinary rows flagged, promised {percent(found.rate)})"
        )
    for line in stress_sentences(audit):
        yield f"  stress     {line}"
    for planted in audit.planted:
        kind = "suspects" if "label" in planted.what else "unfamiliar or isolated"
        yield (
            f"  planted    {planted.what}: found {planted.found} of {planted.planted}, missed "
            f"{planted.planted - planted.found} ({planted.flagged} {kind} in all)"
        )
    if audit.borders is not None and audit.borders.pairs and len(audit.classes) > 2:
        top = audit.borders.pairs[0]
        a, b = audit.classes[top.a], audit.classes[top.b]
        yield f"  classes    {a} ↔ {b} share {percent(top.share)} of between-class weight"
    for why in dict.fromkeys(audit.not_checked.values()):
        sections = [section for section, reason in audit.not_checked.items() if reason == why]
        yield f"  not checked: {', '.join(sections)}: {why}"
    yield ""


@dataclass(frozen=True)
class Prepared:
    """The sets as the audit takes them, what they are called, and what was changed in them."""

    options: AuditOptions
    arguments: dict[str, Any]
    about: About
    tables: dict[str, list[list[str]]] = field(default_factory=dict)


def prepare(options: AuditOptions, console: Console) -> Prepared:
    """Embeddings, or a model and its inputs, read and checked."""
    settings_of(options), stated_order(options)  # what is wrong is told before a file is read
    if options.model is not None:
        return _with_model(options, options.model, console)
    for setting in OF_A_MODEL:
        if getattr(options, setting) not in (None, False, []):
            flag = setting.replace("_", "-")
            raise InputError(f"--{flag} needs the model that made the embeddings: add --model.")
    prepared = _with_rows(options, console)
    if options.size is not None and prepared.about.model != ENCODER:
        raise InputError("--size is of images that a model reads, and these rows are embeddings.")
    return prepared


def _with_rows(
    options: AuditOptions,
    console: Console,
    encode: Callable[[Sequence[str]], NDArray[Any]] | None = None,
) -> Prepared:
    """Embeddings as they are, of images by the small encoder, or of texts by ``encode``."""
    given = {role: spec for role in ROLES if (spec := getattr(options, role)) is not None}
    if in_shards(options):
        return Prepared(options, *sharded_sets(options, given, stated_order(options)))
    if Path(str(options.support)).is_dir() and (rows := read_rows(str(options.support))).unlabeled:
        raise without_labels(rows, options.support)
    zero_rows = options.metric == "cosine" or options.normalize
    sets, how = dict[str, RowSet](), options
    for role, spec in given.items():
        if role == "foreign":  # of these only vectors are looked at: they need no other key
            how = replace(how, label_key=None, id_col=None)
            if encode is None and not sets["support"].source.endswith(f":{ENCODER}"):
                how = replace(how, image_col=None, text_col=None)
        read = partial(read_vectors, spec, zero_rows=zero_rows, console=console, encode=encode)
        sets[role] = perhaps_labeled(read, how) if role == "query" else read(how)
        if role == "support" and sets[role].labels is None:
            raise without_labels(sets[role], spec)
    support = sets["support"]
    for role, rows in sets.items():
        sets[role] = in_order(rows, support.features, support.name)
        check_same_dims(support, sets[role], "support", role)
    if support.features:
        both = (", ".join(names) for names in (support.features, support.unused))
        some = filter(None, (shorten(names, 90, placeholder=" …") for names in both))
        console.print(f"columns  compared as numbers: {'; not used: '.join(some)}")
    tables = _dropped(sets.values(), console)
    about = _about(options, {"query": support, **sets})
    outputs = any(rows.logits is not None for rows in sets.values())
    words = support.labels is not None and support.labels.dtype.kind not in "iu"
    if options.classes is not None and words and not outputs:
        console.print("classes  --classes is the order of outputs; without any it changes nothing")
    if support.source.endswith(f":{ENCODER}"):
        about = replace(about, model=ENCODER)
    if options.apply is not None:
        sets["support"], tables[CLEANED] = cleaned_support(options.apply, support, about)
    arguments: dict[str, Any] = {role: _pair(rows) for role, rows in sets.items()}
    if "foreign" in sets:
        arguments["foreign"] = sets["foreign"].embeddings
    if "query" in sets:
        arguments["logits"] = sets["query"].logits
    return Prepared(options, arguments, about, tables)


def _dropped(sets: Iterable[RowSet], console: Console) -> dict[str, list[list[str]]]:
    """The table of rows that were left out, if there are any, and a warning that says so."""
    dropped = [pair for rows in sets for pair in rows.dropped]
    if not dropped:
        return {}
    were = "was dropped; it is" if len(dropped) == 1 else "were dropped; they are"
    console.warn(f"{plural(len(dropped), 'row')} {were} listed in {DROPPED}.")
    return {DROPPED: [["id", "why"], *([word(name), why] for name, why in dropped)]}


def settings_of(options: AuditOptions) -> AuditSettings:
    """All that decides the numbers, as the library takes it."""
    check_choice(options.metric, "--metric", METRICS)
    if options.k != "auto" and not re.fullmatch("[0-9]{1,9}", options.k):
        raise InputError(f"--k must be a whole number or auto, got {options.k!r}.")
    return AuditSettings(
        k=None if options.k == "auto" else int(options.k),
        metric="cosine" if options.metric == "cosine" else "sqeuclidean",
        unknown="unlabeled" if options.ignore_unknown else "wrong",
        layers=tuple(options.layer or ()),
        stress={None: "small", True: "full", False: "none"}[options.stress],
        **{name: getattr(options, name) for name in SAME_SETTINGS},
    )


def _with_model(options: AuditOptions, spec: str, console: Console) -> Prepared:
    """Inputs for the model, instead of embeddings."""
    if options.memory is not None:
        raise whole(options.memory)
    loaded = model_of(spec, options, console)
    if loaded.named is not None and loaded.named.encode is not None:
        return _with_rows(options, console, loaded.named.encode)
    if not loaded.hooks:
        raise InputError(
            f"{spec} is a compiled program without layers: embed with `vicinal embed`, then audit "
            "the embeddings."
        )
    if options.query is None:
        raise InputError("with --model give both sets: vicinal audit TRAIN TEST --model …")
    how = ImageReading.of(options).filled(loaded.named)
    options = replace(options, **how.as_options())  # written down, so that predict reads alike
    sets, names = _inputs_of(options, loaded, how, console)
    about = _about(options, {role: inputs.rows for role, inputs in sets.items()}, names)
    tables = _dropped([inputs.rows for inputs in sets.values()], console)
    if options.apply is not None:
        rows, tables[CLEANED] = cleaned_support(options.apply, sets["support"].rows, about)
        sets["support"] = relabeled(sets["support"], rows)
    for role, inputs in sets.items():
        check_fits(loaded.model, inputs.data, "" if role == "support" else role)
    if options.embedding is None:  # written down, so that the run can be repeated and explored
        known = None if loaded.named is None else loaded.named.embedding
        known = known or embedding_of(loaded.model, sets["support"].data)
        options = replace(options, embedding=known)
        about = replace(about, config=as_config(options))
    arguments: dict[str, Any] = {"model": loaded.model, "checkpoints": checkpoints_of(options)}
    for argument, role in zip(("train", "test", "calib", "foreign"), ROLES, strict=True):
        arguments[argument] = sets[role].data if role in sets else None
    sizes = {role: row_count(sets[role].data) for role in ("support", "query")}
    for line in costs(settings_of(options), **sizes, checkpoints=len(arguments["checkpoints"])):
        console.print(line)
    return Prepared(options, arguments, about, tables)


def _inputs_of(
    options: AuditOptions, loaded: LoadedModel, how: ImageReading, console: Console
) -> tuple[dict[str, ModelInputs], list[str] | None]:
    """What the model is given, by role, in codes of the support's classes; their names."""
    stated, sets = stated_order(options), dict[str, ModelInputs]()
    names: list[str] | None = None
    for role in ROLES:
        if (data := getattr(options, role)) is not None:
            inputs = model_inputs(data, options, how, loaded.tokenize)
            if role == "support":
                names = order_for(inputs, loaded.model, stated, console)
            sets[role] = inputs if role == "foreign" else in_codes_of(names, inputs)
    return sets, names


def checkpoints_of(options: AuditOptions) -> dict[int, Any]:
    """Each file by its step; read when its turn comes, as pickles only where they are trusted."""
    found = states_of(options.checkpoints)
    if not options.trust_pickle:
        return found
    return {step: partial(read_weights, file, trust_pickle=True) for step, file in found.items()}


def _pair(rows: RowSet) -> Any:
    return rows.embeddings if rows.labels is None else (rows.embeddings, rows.labels)


def _about(options: AuditOptions, sets: dict[str, Any], names: list[str] | None = None) -> About:
    """What the sets are called and look like."""
    support, query = sets["support"], sets["query"]
    titles: dict[str, Any] = {f"{role}_name": rows.name for role, rows in sets.items()}
    wanted = not options.no_images
    media, notes = media_of(support, query, options.media_root) if wanted else (None, ())
    return About(
        name=run_name(options.query or options.support or "audit"),
        **titles,
        support_ids=_ids(support, options.hash_ids),
        query_ids=_ids(query, options.hash_ids),
        class_names=names or stated_order(options),
        features=support.features,
        model=options.model,
        command=shlex.join(["vicinal", *sys.argv[1:]]),
        media=media,
        warnings=notes,
        show_images=not options.no_images,
        config=as_config(options),
    )


def run_name(query: str) -> str:
    """What a run is called: by its query and the folder that was typed before it.

    >>> run_name("cifar/test.npz"), run_name("/test/"), run_name("../query.csv")
    ('cifar/test', 'test', 'query')
    """
    path = Path(query)
    parts = [*path.parts[-2:-1], path.stem]
    return "/".join(part for part in parts if part not in (path.anchor, "..")) or "audit"


def _ids(rows: RowSet, hashed: bool) -> tuple[str, ...] | None:
    """As given; or the plain SHA-256 of each, which whoever has the ids can make as well."""
    if not hashed:
        return rows.ids
    names = [rows.row_id(row).encode("utf-8", "replace") for row in range(len(rows))]
    return tuple(hashlib.sha256(name).hexdigest()[:12] for name in names)
