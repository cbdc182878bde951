"""``vicinal fit``: a head to keep, from a labeled support and, better, held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vicinal.checks import InputError, check_choice, check_share, plural
from vicinal.cli.console import Clock, Console
from vicinal.cli.data_files import read_vectors, without_labels
from vicinal.cli.row_set import RowSet, check_same_dims, in_order
from vicinal.cli.verbs import METRICS, FitOptions
from vicinal.confidence import NEDClassifier, TrustHead
from vicinal.confidence.made_from import MadeFrom
from vicinal.confidence.support import LabeledSupport
from vicinal.confidence.verdicts import Standards
from vicinal.evaluation.threshold import LISTED
from vicinal.files import check_output
from vicinal.labels import labels_of
from vicinal.neighbors.search.pg_rows import is_pg, pg_address
from vicinal.neighbors.search.postgres import PgSearch
from vicinal.report.words import level, threshold


def run(options: FitOptions) -> None:
    """Read, fit, save, and print what the threshold promises."""
    console, path = Console(options.as_json, options.quiet), _checked(options)
    clock = Clock("reading")
    head = _fitted(options, console, clock)
    head.save(path)
    if options.target_accuracy is None:
        console.print(
            f"target {head.standards.target_accuracy:g}: chosen from the data, the highest of "
            f"{LISTED} that at least half of the rows can meet, else the accuracy itself; "
            "--target-accuracy sets another"
        )
    print_threshold(head.standards, options, console)
    size = path.stat().st_size / 1e6
    console.print(
        f"wrote  {path} (support {plural(head.ned.support_size_, 'row')}, {size:.1f} MB)\n{clock}"
    )
    console.result(
        {
            "path": str(path),
            "classes": [str(c) for c in head.classes_.tolist()],
            "temperature": head.ned.temperature_,
            "threshold": None if not head.standards.reachable else head.standards.threshold,
            "target_accuracy": head.standards.target_accuracy,
            "unfamiliar": options.unfamiliar,
        }
    )


def _fitted(options: FitOptions, console: Console, clock: Clock) -> TrustHead:
    """On rows that are read, or on a table where it lies."""
    held = None if options.calib is None else _labeled(options.calib, options, console)
    ned = NEDClassifier(
        k=100 if options.k is None else options.k,
        sharpness="fit",
        background="fit",
        bandwidth="class",
        metric="cosine" if options.metric == "cosine" else "sqeuclidean",
    )
    features: tuple[str, ...] = ()
    with console.library_warnings():
        if options.store is None and not is_pg(options.support):
            support = _labeled(options.support, options, console)
            _check_contrast(support.labels, support.name)
            features = support.features
            held = held and in_order(held, features, support.name)
            if held is not None:
                check_same_dims(support, held, "support", "calib")
            clock.now("fitting")
            ned.fit(support.embeddings, support.labels)
        else:
            ned.fit_support(stored_support(options, ned.metric, console))
        calib = None if held is None else (held.embeddings, held.labels)
        target, unfamiliar = options.target_accuracy, options.unfamiliar
        head = TrustHead.of(ned, calib, target_accuracy=target, unfamiliar=unfamiliar)
    head.made_from = MadeFrom(features=features)
    return head


def _checked(options: FitOptions) -> Path:
    """Where the head is written, once nothing that was typed is wrong."""
    check_choice(options.metric, "--metric", METRICS)
    path, target = options.out or Path("trust.vic"), options.target_accuracy
    if path.suffix != ".vic":
        raise InputError(f"--out {path} must end in .vic.")
    check_output(path)
    if target is not None:
        check_share(target, "--target-accuracy")
    if options.store is not None and not is_pg(options.store):
        raise InputError(f"--store must name a table, pg:TABLE, got {options.store!r}.")
    return path


def stored_support(options: FitOptions, metric: str, console: Console) -> LabeledSupport:
    """The table as it lies, or written from the rows that were given; it stays on its server."""
    if options.store is None or options.store == options.support:
        search = PgSearch(*pg_address(options.support), metric=metric).open(
            id=options.id_col, label=options.label_key, embedding=options.embedding_key
        )
    else:
        support = _labeled(options.support, options, console)
        labels, rows = support.labels, np.asarray(support.embeddings, dtype=np.float32)
        if not np.array_equal(np.asarray(support.embeddings), rows):
            console.warn("the table holds float32: what the rows have beyond that is rounded.")
        search = PgSearch(*pg_address(options.store), metric=metric).build(rows, labels)
    if search.labels is None or any(label is None for label in search.labels.tolist()):
        raise InputError(
            f"the table {search.table.name!r} has rows without labels. Name the column of labels "
            "with --label-key."
        )
    _check_contrast(search.labels, search.table.name)
    return LabeledSupport(search, labels_of(search.labels, len(search)))


def _labeled(spec: str, options: FitOptions, console: Console) -> RowSet:
    rows = read_vectors(spec, options, zero_rows=options.metric == "cosine", console=console)
    if rows.labels is None:
        raise without_labels(rows, spec)
    for name, why in rows.dropped:
        console.warn(f"row {name} was dropped: {why}.")
    return rows


def _check_contrast(labels: Any, name: str) -> None:
    if len(found := set(np.asarray(labels).tolist())) == 1:
        raise InputError(f"{name} has one class only ({found.pop()}); nothing to contrast.")


def print_threshold(held: Standards, options: FitOptions, console: Console) -> None:
    """What the confidence threshold promises, on which rows, and what it does not."""
    rows = plural(len(held.disagreements), "row")
    where = "calib" if options.calib is not None else "support rows left out in turn"
    if held.reachable:
        console.print(
            f"threshold conf ≥ {threshold(held.threshold)} keeps {level(held.target_accuracy)} "
            f"accuracy on rows like {where} (95 % certainty, {rows})"
        )
    else:
        console.warn(
            f"no confidence can be shown to keep {level(held.target_accuracy)} accuracy from "
            f"{rows}: those below {held.level:.3f} count as contested. "
            "Give more --calib rows or a lower --target-accuracy."
        )
    console.print(
        "the bound holds for data like these; it says nothing about unfamiliar inputs, which are "
        f"told apart by familiarity: about {level(options.unfamiliar)} of ordinary rows are called "
        "so"
    )
    if options.calib is None:
        console.warn(
            "no --calib was given: temperature and threshold come from the support, leave-one-out. "
            "They are too kind if the embedding was trained on these rows."
        )
