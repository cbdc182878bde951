"""What an audit found: every number of the page and of ``summary.json``, as plain frozen values.

:class:`Audit` is the whole record; its sections are in :mod:`vicinal.audits.sections` and can be
imported from here too. A section that could not be computed is ``None``, and
:attr:`Audit.not_checked` says why. :class:`Comparison` holds two runs, paired row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vicinal.audits.sections import (
    VERDICTS,
    Border,
    Borders,
    Cases,
    ClassFacts,
    Credibility,
    Data,
    Detection,
    Duplicates,
    Effect,
    FitPoint,
    Head,
    Histogram,
    Hub,
    Hubs,
    LabelAudit,
    Layer,
    Map,
    NetworkView,
    Planted,
    PriorShift,
    Provenance,
    ReliabilityBin,
    RiskCoverage,
    SetFacts,
    StressTable,
    SupportRows,
    Suspect,
    Sweep,
    Threshold,
)
from vicinal.checks import InputError, check_choice
from vicinal.records import Record

__all__ = [
    "MEDIA_KINDS",
    "VERDICTS",
    "Audit",
    "Border",
    "Borders",
    "Cases",
    "Change",
    "ClassFacts",
    "Comparison",
    "Credibility",
    "Data",
    "Delta",
    "Detection",
    "Duplicates",
    "Effect",
    "FitPoint",
    "Gate",
    "Head",
    "Histogram",
    "Hub",
    "Hubs",
    "LabelAudit",
    "Layer",
    "Map",
    "Media",
    "NetworkView",
    "Planted",
    "PriorShift",
    "Provenance",
    "ReliabilityBin",
    "RiskCoverage",
    "SetFacts",
    "StressTable",
    "SupportRows",
    "Suspect",
    "Sweep",
    "Threshold",
]

MEDIA_KINDS = ("images", "texts", "tables")


@dataclass(frozen=True)
class Audit(Record):
    """The whole record. ``media`` and ``head`` travel beside it and stay out of the JSON."""

    name: str
    classes: tuple[str, ...]
    data: Data
    heads: tuple[Head, ...]
    recommended: str
    cases: Cases
    support: SupportRows
    labels: LabelAudit | None
    provenance: Provenance
    class_facts: tuple[ClassFacts, ...] = ()
    risk_coverage: RiskCoverage | None = None
    sweep: Sweep | None = None
    credibility: Credibility | None = None
    borders: Borders | None = None
    layers: tuple[Layer, ...] | None = None
    network: NetworkView | None = None
    map: Map | None = None
    stress: tuple[StressTable, ...] | None = None
    duplicates: Duplicates | None = None
    hubs: Hubs | None = None
    prior_shift: PriorShift | None = None
    agreement: float | None = None  # how often the neighbor head and the softmax head agree
    planted: tuple[Planted, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: dict[str, str] = dataclasses.field(default_factory=dict)  # section -> why
    media: Media | None = dataclasses.field(
        default=None, compare=False, repr=False, metadata={"json": False}
    )
    head: Any = dataclasses.field(default=None, compare=False, repr=False, metadata={"json": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        known = set(self.support.row)
        named = {row for line in self.cases.neighbors for row in line}
        named.update(row for line in self.cases.network_neighbors or () for row in line)
        for suspect in self.labels.suspects if self.labels else ():
            named.update((suspect.row, *suspect.neighbors))
        if named - known:
            raise InputError(
                f"`Audit.support` must list every suspect and every neighbor: row "
                f"{min(named - known)} is missing ({len(named - known)} such rows)."
            )
        if self.map is not None and len(self.map.x) != len(self.cases.id):
            raise InputError(
                f"`Audit.map` must place every query row: {len(self.cases.id)} rows, "
                f"{len(self.map.x)} points."
            )

    def __repr__(self) -> str:
        return f"Audit({self.name!r}, {len(self.cases.id)} cases, {self.verdict_counts()})"

    def verdict_counts(self) -> dict[str, int]:
        return {verdict: self.cases.verdict.count(verdict) for verdict in VERDICTS}

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        from vicinal.audits.files import summary

        return summary(self)

    def save(self, path: str | Path, *, max_mb: float = 10.0) -> None:
        """Write the page: one HTML file that needs no network."""
        from vicinal.report import save_report  # late: the report reads records, not the reverse

        save_report(self, path, self.media, max_mb=max_mb)

    def _repr_html_(self) -> str:
        from vicinal.report import notebook_frame

        return notebook_frame(self, self.media)


@dataclass(frozen=True)
class Media:
    """What the rows look like, beside the numbers: anything indexed by row, gaps allowed.

    images: uint8 arrays ``(h, w)`` or ``(h, w, 3)``, or the bytes of an image file. texts: strings.
    tables: rows of values under ``columns``. Lists, arrays and ``{row: item}`` all do.
    """

    kind: str
    query: Mapping[int, Any] | Sequence[Any]
    support: Mapping[int, Any] | Sequence[Any]
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice(self.kind, "Media.kind", MEDIA_KINDS)

    def get(self, side: str, row: int) -> Any:
        """The item of one row of ``side`` ("query" or "support"), or None."""
        try:
            return (self.query if side == "query" else self.support)[row]
        except (KeyError, IndexError):
            return None


@dataclass(frozen=True)
class Delta(Record):
    """One measure of two runs on the same rows, with the paired interval of the difference."""

    name: str
    title: str
    a: float | None
    b: float | None
    delta: float | None
    low: float | None
    high: float | None
    higher_is_better: bool

    @property
    def finding(self) -> str:
        """ "better", "worse", or "no evidence" where the interval holds zero."""
        if self.low is None or self.high is None:
            return "not measured"
        if self.low <= 0 <= self.high:
            return "no evidence"
        return "better" if (self.low > 0) == self.higher_is_better else "worse"


@dataclass(frozen=True)
class Change(Record):
    """A row on which the two runs disagree."""

    id: str
    label: str | None
    a: str
    b: str
    confidence_a: float
    confidence_b: float


@dataclass(frozen=True)
class Gate(Record):
    expression: str
    value: float | None
    passed: bool


@dataclass(frozen=True)
class Comparison(Record):
    """Two runs, paired by row."""

    a: str
    b: str
    rows: int
    level: float  # of the intervals
    deltas: tuple[Delta, ...]
    overlap: float | None  # share of neighbors the two runs have in common
    overlap_k: int | None
    changed: int
    fixed: int | None
    broken: int | None
    changes: tuple[Change, ...]  # the first few, largest confidence first
    provenance: Provenance
    gates: tuple[Gate, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: dict[str, str] = dataclasses.field(default_factory=dict)
