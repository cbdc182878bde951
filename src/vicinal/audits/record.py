"""What an audit found: every number of the page and of ``summary.json``, as plain frozen values.

:class:`Audit` is the whole record, its parts are in :mod:`vicinal.audits.sections` and
:mod:`vicinal.audits.rows`. A section that could not be computed is ``None``, and
:attr:`Audit.not_checked` says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vicinal.audits.rows import Cases, LabelAudit, SupportRows
from vicinal.audits.sections import (
    Borders,
    ClassFacts,
    Credibility,
    Data,
    Duplicates,
    Head,
    Hubs,
    Layer,
    Map,
    NetworkView,
    Planted,
    PriorShift,
    Provenance,
    RiskCoverage,
    StressTable,
    Sweep,
)
from vicinal.checks import InputError, check_choice
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import Record

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
        missing = self.rows_named() - set(self.support.row)
        if missing:
            raise InputError(
                f"`Audit.support` must list every suspect and every neighbor: row "
                f"{min(missing)} is missing ({len(missing)} such rows)."
            )
        if self.map is not None and len(self.map.x) != len(self.cases.id):
            raise InputError(
                f"`Audit.map` must place every query row: {len(self.cases.id)} rows, "
                f"{len(self.map.x)} points."
            )

    def __repr__(self) -> str:
        return f"Audit({self.name!r}, {len(self.cases.id)} cases, {self.verdict_counts()})"

    def rows_named(self) -> set[int]:
        """The support rows that are suspects or in any list of neighbors."""
        suspects = self.labels.suspects if self.labels else ()
        return {suspect.row for suspect in suspects}.union(
            *self.cases.neighbors,
            *(self.cases.network_neighbors or ()),
            *(suspect.neighbors for suspect in suspects),
        )

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
