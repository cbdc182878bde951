"""An audit of rows in shards: read into memory where they fit, else fitted on anchors and streamed.

    vicinal.audit(support="train/*.parquet", query="test/*.parquet", memory="2GB", on="ray")

What is fitted is fitted on anchors (:mod:`vicinal.audits.sampled`), their neighbors found among all
rows; every row is then judged block by block into parquet parts, in this process or in Ray's. What
stays in memory is anchors, labels, and sums.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vicinal.audits import sampled
from vicinal.audits.facts import Facts, aligned_logits
from vicinal.audits.inputs import Sets
from vicinal.audits.parts import Parts, Run, in_turn
from vicinal.audits.record import Audit
from vicinal.audits.sampled import Whole, sampled_facts, sampled_sets, whole_set
from vicinal.audits.search_record import Scale
from vicinal.audits.settings import About, AuditSettings
from vicinal.audits.streamed_cases import CaseJudge, verdict_counts
from vicinal.audits.streamed_labels import LabelJudge, streamed_labels
from vicinal.audits.streamed_sections import sections_of_all
from vicinal.capture.row_files import Names
from vicinal.capture.sources import ArrayRows, Rows, ShardedRows, open_rows
from vicinal.checks import InputError
from vicinal.confidence.verdicts import VERDICTS
from vicinal.files import fingerprint
from vicinal.labels import codes_of, labels_of
from vicinal.neighbors.search import Search
from vicinal.neighbors.search.choice import make_sharded
from vicinal.neighbors.search.cost import lists_bytes
from vicinal.neighbors.search.pg_rows import PgRows, is_pg
from vicinal.neighbors.search.resumable import Progress
from vicinal.neighbors.search.sharded import Source, rows_at

if TYPE_CHECKING:
    from vicinal.neighbors.search.on_ray import RaySearch

DEFAULT_MEMORY = 2 << 30  # of an audit of shards, where nothing is said
PROCESS = 420 << 20  # what Python and torch take, where it cannot be asked
LATER = 64 << 20  # modules that are loaded later, and what the allocator keeps
SMALLEST = 64 << 20  # for blocks of rows
PART = 8  # of the memory one share for the rows that are judged, with what is said of them
GAUSSIANS = 80  # bytes for each pair of columns, of familiarity's covariances and their factors
ROW = 3 << 10  # bytes of what is said of a row
ANSWERS = 100  # bytes of what heads answer for a row, for each class (measured)
NEIGHBORS = 100  # of an audit, where nothing is said
_UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def is_source(value: Any) -> bool:
    """Whether rows are named, or mapped, rather than given."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        value = value[0]
    return isinstance(value, (str, Path, np.memmap)) or hasattr(value, "blocks")


def as_rows(value: Any, names: Names | None = None) -> Rows | None:
    """A set as it was given, as rows that are read in blocks."""
    if value is None or hasattr(value, "blocks"):
        return value
    if is_pg(value):
        asked = names or Names()
        return PgRows(value, id=asked.id, label=asked.label, embedding=asked.embedding)
    if isinstance(value, (str, Path)):
        return open_rows(value, names)
    z, y = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, None)
    return ArrayRows(z, y)


def as_bytes(memory: int | str | None) -> int | None:
    """
    >>> as_bytes("2GB"), as_bytes("512 MB"), as_bytes(1000)
    (2147483648, 536870912, 1000)
    """
    if memory is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?b?)", str(memory).strip().lower())
    unit = _UNITS.get((found[2] if found[2] in _UNITS else f"{found[2]}b") if found else "?")
    size = float(found[1]) * unit if found is not None and unit is not None else 0.0
    if not 1 <= size < 2**63:
        raise InputError(f"`memory` must be a size like 2GB or 512MB, got {memory!r}.")
    return int(size)


def audit_at_scale(
    sets: dict[str, Any],
    settings: AuditSettings,
    about: About,
    work: str | Path | None,
    progress: Progress | None,
    on: str | None,
    memory: int | str | None,
) -> Audit:
    """The audit of sets that are named, mapped or too many, in memory if they fit."""
    from vicinal.audits.audit import audit  # it calls this function

    allowed = as_bytes(memory) or DEFAULT_MEMORY
    rows = {role: as_rows(value) for role, value in sets.items() if role != "logits"}
    given = {role: value for role, value in rows.items() if value is not None}
    fits, logits = needed(given, settings) <= allowed, logits_of(sets.get("logits"), rows)
    if fits:
        arrays = {role: in_memory(value) for role, value in given.items()}
        if logits is not None:
            arrays["logits"] = rows_at(logits, slice(None), sampled.READ)
        about = with_ids(given, about)
        return audit(
            **arrays, settings=settings, about=about, work=work, progress=progress, on=on
        )  # fmt: skip
    if logits is not None:
        given["logits"] = logits
    with TemporaryDirectory() as folder:
        place = Path(work) if work is not None else Path(folder)
        result = streamed(given, settings, about, place, progress, on, allowed)
        if work is None:  # nobody asked for the parts
            return dataclasses.replace(result, parts={})
        return result


def logits_of(given: Any, rows: dict[str, Rows | None]) -> Rows | None:
    """As they were given, or as they lie in the shards of the rows that are judged."""
    asked = rows["query"] or rows["support"]
    found = as_rows(given, Names(embedding="logits")) if is_source(given) else given
    if found is None:
        return asked.logits() if isinstance(asked, ShardedRows) else None
    found = found if hasattr(found, "blocks") else ArrayRows(np.asarray(found))
    if asked is not None and len(found) != len(asked):
        raise InputError(
            f"`logits` must have one row per query row: {len(found)} for {len(asked)} rows."
        )
    return found


def needed(rows: dict[str, Rows], settings: AuditSettings) -> int:
    """Bytes that an audit in memory takes: rows thrice, neighbors with their labels and weights,
    what heads answer, and what is said of the rows that are judged."""
    y, k = np.asarray(rows["support"].labels()), settings.k or NEIGHBORS
    classes = y.shape[1] if y.ndim == 2 else len(set(y.ravel()[:: y.size // 100_000 + 1].tolist()))
    each = 70 * k + ANSWERS * classes
    sizes = (len(part) * (3 * part.width * part.dtype.itemsize + each) for part in rows.values())
    return PROCESS + LATER + sum(sizes) + ROW * len(rows.get("query", rows["support"]))


def in_memory(rows: Rows) -> Any:
    z, y = rows_at(rows, slice(None), sampled.READ), rows.labels()
    return z if y is None else (z, y)


def with_ids(rows: dict[str, Rows], about: About) -> About:
    found: dict[str, Any] = {}
    for role in ("support", "query"):
        if role in rows and getattr(about, f"{role}_ids") is None:
            found[f"{role}_ids"] = rows[role].ids(0, len(rows[role]))
    return dataclasses.replace(about, **found)


def streamed(
    rows: dict[str, Rows],
    settings: AuditSettings,
    about: About,
    work: Path,
    progress: Progress | None,
    on: str | None,
    memory: int,
) -> Audit:
    """Fit on anchors, judge every row into parts, sum up."""
    from vicinal.audits.audit import provenance_of, sentences  # it calls this function

    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        support, query = wholes(rows, settings)
        rest: dict[str, Any] = {}
        if "calib" in rows:
            rest["calib"] = in_memory(rows["calib"])
        if "foreign" in rows:
            rest["foreign"] = rows_at(rows["foreign"], slice(None), sampled.READ)
        sets, about = sampled_sets(support, query, settings, about, rest)
        block = room(memory, sets, support, settings)
        make, run = engine(on, settings, block, work)
        exactly, _ = engine(on, dataclasses.replace(settings, search="exact"), block, work)
        facts = sampled_facts(support, sets, settings, about, (make, exactly), work, progress)
        if "logits" in rows:
            given = rows_at(rows["logits"], (query or support).some, sampled.READ)
            facts = dataclasses.replace(
                facts, logits=aligned_logits(given, sets, about.class_names)
            )
        labels, cases = all_rows(facts, support, query, work, run, progress, memory)
        record, suspects = streamed_labels(facts, support, labels)
        scale = scale_of(facts, support, query, suspects, labels, cases, memory)
        sections = sections_of_all(facts, support, query, record, labels)
        parts = named_parts("labels", labels) | (named_parts("samples", cases) if cases else {})
    command = about.command or "vicinal.audit(...)"
    config = {**settings.to_dict(), **about.config}
    return Audit(
        **sections,
        scale=dataclasses.replace(scale, parts=tuple(parts)),
        parts=parts,
        provenance=provenance_of(settings.seed, command, about.reproduce or command, start, config),
        warnings=(*about.warnings, *sentences(caught)),
    )


def wholes(rows: dict[str, Rows], settings: AuditSettings) -> tuple[Whole, Whole | None]:
    """Both sets in one coding of the classes."""
    own = rows["support"]
    y = own.labels()
    if y is None:
        raise InputError("`support` has no labels. Give shards with a label column, or (Z, y).")
    labels = labels_of(y, len(own), "labels of support")
    support = whole_set(own, labels.codes, sampled.ANCHORS, settings.seed)
    asked = rows.get("query")
    if asked is None:
        return support, None
    if asked.width != own.width:
        raise InputError(
            f"`support` has {own.width} columns but `query` has {asked.width}. They must come from "
            "the same model and layer."
        )
    given, codes = asked.labels(), None
    if given is not None:
        codes = codes_of(given, len(asked), labels, unlabeled=True, name="labels of query")
    picked = whole_set(asked, None, sampled.ANCHORS, settings.seed)
    return support, dataclasses.replace(picked, codes=codes)


def engine(
    on: str | None, settings: AuditSettings, block: int, work: Path
) -> tuple[sampled.Make, Run]:
    """Where neighbors are searched and rows judged: block by block here, or in Ray's processes."""
    if on is None:

        def make(source: Source, key: str) -> Search:
            return make_sharded(
                settings.search, settings.metric, recall=settings.recall, memory=block,
                shape=(len(source), source.width), kept=work / f"search-{key}",
            ).build(source)  # fmt: skip

        return make, in_turn
    spread = ray_search(on, settings)
    return lambda source, key: spread.build(source), spread.map


def room(memory: int, sets: Sets, support: Whole, settings: AuditSettings) -> int:
    """Bytes for a block of rows and its search, besides what stays in memory.

    When all are judged blocks are gone, and heads answer for anchors and sampled query rows, whose
    record is written: that must fit as well.
    """
    (anchors, width), asked = sets.support.rows.shape, len(sets.query.rows)
    k = min(settings.k or NEIGHBORS, len(support) - 1)
    held = anchors * (12 * width + 80 * k) + 40 * len(support) + GAUSSIANS * width**2
    if settings.search != "exact":
        held += lists_bytes(len(support), support.rows.width)
    held += process() + LATER
    later = held + ANSWERS * (anchors + asked) * len(sets.classes) + 2 * ROW * asked
    left = memory - held - memory // PART
    if left < SMALLEST or later > memory:
        least = max((held + SMALLEST) * PART / (PART - 1), later) / (1 << 20)
        raise InputError(
            f"--memory {memory >> 20} MB is too little: the process, {anchors:,} anchors with their "
            f"neighbors, {len(sets.classes):,} classes, the record and one block take {least:.0f} "
            "MB."
        )
    return left // 2


def process() -> int:
    """Bytes that this process takes now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return PROCESS
    return pages * os.sysconf("SC_PAGE_SIZE")


def all_rows(
    facts: Facts,
    support: Whole,
    query: Whole | None,
    work: Path,
    run: Run,
    progress: Progress | None,
    memory: int,
) -> tuple[Parts, Parts | None]:
    """Every label and, where the query is only sampled, every row of it, judged into parts."""
    key = parts_key(facts, support, query)
    each = 96 * facts.graph.k + 48 * len(facts.sets.classes) + 16 * support.rows.width + ROW
    size = max(256, min(memory // PART // each, sampled.PASS))
    labels = Parts(work / f"labels-{key}-{size}", len(support), size)
    labels.fill(LabelJudge(facts, support), run, progress, "label audit")
    if query is None or not query.sampled:
        return labels, None
    cases = Parts(work / f"samples-{key}-{size}", len(query), size)
    cases.fill(CaseJudge(facts, query), run, progress, "verdicts")
    return labels, cases


def parts_key(facts: Facts, support: Whole, query: Whole | None) -> str:
    """What the parts of a stopped run must have been made from to be gone on with."""
    sets, held = facts.sets, [support, query]
    beside = [rows.fingerprint for rows in (sets.calib, sets.foreign) if rows is not None]
    return fingerprint(
        *(whole.fingerprint for whole in held if whole is not None),
        *(whole.codes for whole in held if whole is not None and whole.codes is not None),
        *beside, len(support.some), *map(str, dataclasses.astuple(facts.settings)),
        repr(facts.ned.parameters_), facts.shown, facts.space.name,
        "" if facts.support.search.exact else facts.support.search.title,
    )[:16]  # fmt: skip


def scale_of(
    facts: Facts,
    support: Whole,
    query: Whole | None,
    suspects: int,
    labels: Parts,
    cases: Parts | None,
    memory: int,
) -> Scale:
    """The sums over all parts, and the sentence with the sampling error."""
    loss = -facts.support_log_probs.gather(1, facts.sets.codes[:, None])[:, 0]
    n, anchors = len(support), len(support.some)
    error = float(loss.std()) / math.sqrt(anchors) * math.sqrt(1 - anchors / n)
    how = (
        f"everything is fitted on {anchors:,} of {n:,} support rows, each searched among all of "
        f"them (leave-one-out NLL {float(loss.mean()):.4f} ± {error:.4f} by sampling); every label "
        "is judged"
    )
    asked = support if query is None else query
    if query is not None and query.sampled:
        how += (
            f"; heads are compared on {len(query.some):,} of {len(query):,} query rows, and every "
            "row has its verdict from the head that is kept"
        )
    if query is None and support.sampled:
        how += ", and has its verdict leave-one-out from the head that is kept"
    if support.sampled:
        how += f"; trust.vic stands on the {anchors:,} rows alone, and is fitted anew to them"
    counts = torch.bincount(facts.verdicts.codes, minlength=4).tolist()
    judged = labels if query is None else cases
    return Scale(
        how=how + ".",
        search=str(facts.support.search.title),
        support_rows=n,
        anchors=anchors,
        query_rows=len(asked),
        query_sample=len(asked.some),
        verdicts=verdict_counts(judged) if judged else dict(zip(VERDICTS, counts, strict=True)),
        suspects=suspects,
        ambiguous=sum(int(part["ambiguous"].sum()) for part in labels.read("ambiguous")),
        memory=memory,
    )


def named_parts(table: str, parts: Parts) -> dict[str, Path]:
    """What the files are called in the folder of a run."""
    return {f"{table}-{at:05d}.parquet": path for at, path in enumerate(parts.paths)}


def ray_search(on: str, settings: AuditSettings) -> RaySearch:
    from vicinal.neighbors.search.on_ray import RaySearch

    return RaySearch(settings.metric, on=on, engine=settings.search, recall=settings.recall)
