"""The sections of an audit that name single rows: what was judged, and whose labels are suspect.

Rows are positions in their set, classes positions in ``Audit.classes``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from vicinal.checks import InputError, check_choice
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import Record


@dataclass(frozen=True)
class SupportRows(Record):
    """The support rows that are suspects or in any list of neighbors, by place in the support."""

    row: tuple[int, ...]
    id: tuple[str, ...]
    label: tuple[int, ...]


@dataclass(frozen=True)
class Cases(Record):
    """The query, one entry per row in every column."""

    id: tuple[str, ...]
    label: tuple[int | None, ...]
    predicted: tuple[int, ...]
    confidence: tuple[float, ...]
    credibility: tuple[float | None, ...]
    near_percentile: tuple[float, ...]  # farther from its neighbors than this % of held-out rows
    verdict: tuple[str, ...]
    reason: tuple[str, ...]
    neighbors: tuple[tuple[int, ...], ...]  # support rows, nearest first
    weights: tuple[tuple[float, ...], ...]
    distances: tuple[tuple[float, ...], ...]
    network_percentile: tuple[float | None, ...] | None = None  # of N_S
    network_neighbors: tuple[tuple[int, ...], ...] | None = None
    network_similarities: tuple[tuple[float, ...], ...] | None = None
    head: str = "ned"  # whose predictions and confidences these are
    layers: tuple[str, ...] = ()  # layer_class[i][l]: what row i's neighbors in layer l vote for
    layer_class: tuple[tuple[int, ...], ...] | None = None
    layer_share: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            column = getattr(self, field.name)
            if field.name in ("head", "layers") or column is None:
                continue
            if len(column) != len(self.id):
                raise InputError(
                    f"`Cases.{field.name}` must hold one entry per query row: "
                    f"{len(self.id)} ids, {len(column)} entries."
                )
        for verdict in set(self.verdict):
            check_choice(verdict, "Cases.verdict", VERDICTS)


@dataclass(frozen=True)
class Suspect(Record):
    """A support row whose neighborhood contradicts its label."""

    row: int
    id: str
    given: int
    suggested: int
    p_given: float
    p_suggested: float
    affected: int | None  # query predictions that change when the suggestion is accepted
    neighbors: tuple[int, ...]
    weights: tuple[float, ...]
    distances: tuple[float, ...]
    depth_agreement: float | None = None  # share of layers whose neighbors contradict the label too


@dataclass(frozen=True)
class Effect(Record):
    """What accepting the first ``top`` suggestions does, exact for the neighbor head."""

    top: int
    changed: int
    fixed: int | None
    broken: int | None
    accuracy_before: float | None
    accuracy_after: float | None


@dataclass(frozen=True)
class LabelAudit(Record):
    checked: int
    how: str
    suspects: tuple[Suspect, ...]  # most suspicious first
    effects: tuple[Effect, ...] = ()
