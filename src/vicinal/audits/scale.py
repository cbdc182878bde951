"""An audit of rows in shards: read into memory where they fit, else fitted on anchors and streamed.

    vicinal.audit(support="train/*.parquet", query="test/*.parquet", memory="2GB", on="ray")

What is fitted is fitted on anchors (:mod:`vicinal.audits.sampled`), their neighbors found among all
rows; every row is then judged block by block into parquet parts, in this process or in Ray's. What
stays in memory is anchors, labels, and sums.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from vicinal.audits import sampled
from vicinal.audits.data import check_apart
from vicinal.audits.facts import Facts, gather
from vicinal.audits.inputs import DEFAULT_K, Sets
from vicinal.audits.parts import Run
from vicinal.audits.record import Audit
from vicinal.audits.sampled import READ, SearchingAll, Whole, sampled_sets, whole_set
from vicinal.audits.searching import ray_search
from vicinal.audits.settings import About, AuditSettings, Job
from vicinal.audits.streamed import PART, ROW, StreamedFacts
from vicinal.capture.row_files import Names
from vicinal.capture.sources import ArrayRows, Rows, ShardedRows, open_rows
from vicinal.checks import InputError
from vicinal.labels import codes_of, labels_of
from vicinal.neighbors.search import Search
from vicinal.neighbors.search.choice import make_sharded
from vicinal.neighbors.search.cost import lists_bytes
from vicinal.neighbors.search.pg_rows import PgRows, is_pg
from vicinal.neighbors.search.sharded import Source, rows_at

DEFAULT_MEMORY = 2 << 30  # of an audit of shards, where nothing is said; more where it must be
PROCESS = 420 << 20  # what Python and torch take, where it cannot be asked
LATER = 96 << 20  # modules that are loaded later, and what the allocator keeps
SMALLEST = 64 << 20  # for blocks of rows
ANSWERS = 130  # bytes of what heads answer for a row, for each class (measured)
GAUSSIANS = 80  # bytes for each pair of columns, of familiarity's covariances and their factors
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


def audit_at_scale(sets: dict[str, Any], job: Job, memory: int | str | None) -> Audit:
    """The audit of sets that are named, mapped or too many, in memory if they fit."""
    from vicinal.audits.audit import audit  # it calls this function

    allowed = as_bytes(memory)
    rows = {role: as_rows(value) for role, value in sets.items() if role != "logits"}
    given = {role: value for role, value in rows.items() if value is not None}
    logits = logits_of(sets.get("logits"), rows)
    if needed(given, job.settings) <= (allowed or DEFAULT_MEMORY):
        arrays = {role: in_memory(value) for role, value in given.items()}
        if logits is not None:
            arrays["logits"] = rows_at(logits, slice(None), READ)
        about = with_ids(given, job.about)
        return audit(
            **arrays, settings=job.settings, about=about, work=job.work, progress=job.progress,
            on=job.on,
        )  # fmt: skip
    if logits is not None:
        given["logits"] = logits
    with TemporaryDirectory() as folder:
        place = job.work or Path(folder)
        return streamed(given, dataclasses.replace(job, work=place), allowed, job.work is not None)


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
    y = np.asarray(rows["support"].labels())
    classes = y.shape[1] if y.ndim == 2 else len(set(y.ravel()[:: y.size // 100_000 + 1].tolist()))
    each = 70 * (settings.k or DEFAULT_K) + ANSWERS * classes
    sizes = (len(part) * (3 * part.width * part.dtype.itemsize + each) for part in rows.values())
    return PROCESS + LATER + sum(sizes) + ROW * len(rows.get("query", rows["support"]))


def in_memory(rows: Rows) -> Any:
    z, y = rows_at(rows, slice(None), READ), rows.labels()
    return z if y is None else (z, y)


def with_ids(rows: dict[str, Rows], about: About) -> About:
    found: dict[str, Any] = {}
    for role in ("support", "query"):
        if role in rows and getattr(about, f"{role}_ids") is None:
            found[f"{role}_ids"] = rows[role].ids(0, len(rows[role]))
    return dataclasses.replace(about, **found)


def streamed(rows: dict[str, Rows], job: Job, memory: int | None, stays: bool) -> Audit:
    """Fit on anchors, judge every row into parts where the job works, which may stay, sum up."""
    from vicinal.audits.audit import recorded  # it calls this function

    start = time.perf_counter()

    def gathered() -> Facts:
        settings = job.settings
        support, query = wholes(rows, settings)
        rest: dict[str, Any] = {}
        if "calib" in rows:
            rest["calib"] = in_memory(rows["calib"])
        if "foreign" in rows:
            rest["foreign"] = rows_at(rows["foreign"], slice(None), READ)
        sets, named = sampled_sets(support, query, job, rest)
        held = resident(sets, support, settings)
        allowed = memory or max(DEFAULT_MEMORY, 2 * held)
        block = room(allowed, held, sets)
        make, run = engine(job, block)
        exactly, _ = engine(job, block, exact=True)
        logits = None
        if "logits" in rows:
            logits = rows_at(rows["logits"], (query or support).some, READ)
        kind = partial(StreamedFacts, run=run, memory=allowed, work_stays=stays)
        searching = partial(SearchingAll, block=sampled.PASS, engines=(make, exactly))
        check_apart(sets)
        return gather(sets, logits, None, named, searching, kind)

    return recorded(gathered, start)


def wholes(rows: dict[str, Rows], settings: AuditSettings) -> tuple[Whole, Whole | None]:
    """Both sets in one coding of the classes."""
    own = rows["support"]
    y = own.labels()
    if y is None:
        raise InputError("`support` has no labels. Give shards with a label column, or (Z, y).")
    labels = labels_of(y, len(own), "labels of support")
    drawn = sampled.ANCHORS, settings.seed, settings.normalize
    support = whole_set(own, labels.codes, *drawn)
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
    return support, dataclasses.replace(whole_set(asked, None, *drawn), codes=codes)


def engine(job: Job, block: int, exact: bool = False) -> tuple[sampled.Make, Run]:
    """Where neighbors are searched and rows judged: block by block here, or in Ray's processes."""
    settings, work = job.settings, job.work
    assert work is not None
    name = "exact" if exact else settings.search
    if job.on is None:

        def make(source: Source, key: str) -> Search:
            return make_sharded(
                name, settings.metric, recall=settings.recall, memory=block,
                shape=(len(source), source.width), kept=work / f"search-{key}",
            ).build(source)  # fmt: skip

        return make, itertools.starmap
    spread = ray_search(job.on, dataclasses.replace(settings, search=name))
    return lambda source, key: spread.build(source), spread.map


def resident(sets: Sets, support: Whole, settings: AuditSettings) -> int:
    """Bytes that stay in memory whatever a block of rows takes, the record among them, for which
    the allocator does not always give back what blocks took."""
    (anchors, width), asked = sets.support.rows.shape, len(sets.query.rows)
    k = min(settings.k or DEFAULT_K, len(support) - 1)
    held = anchors * (12 * width + 80 * k) + 40 * len(support) + GAUSSIANS * width**2
    if settings.search != "exact":
        held += lists_bytes(len(support), support.rows.width)
    return held + ANSWERS * (anchors + asked) * len(sets.classes) + 2 * ROW * asked


def room(memory: int, held: int, sets: Sets) -> int:
    """Bytes for a block of rows and its search, besides the process and what it holds."""
    held += process() + LATER
    left = memory - held - memory // PART
    if left < SMALLEST:
        least = (held + SMALLEST) * PART / (PART - 1) / (1 << 20)
        anchors = len(sets.support.rows)
        raise InputError(
            f"--memory {memory >> 20} MB is too little: the process, {anchors:,} anchors with "
            f"neighbors, {len(sets.classes):,} classes, the record and a block take {least:.0f} MB."
        )
    return left // 2


def process() -> int:
    """Bytes that this process takes now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return PROCESS
    return pages * os.sysconf("SC_PAGE_SIZE")
