"""What an audit found: every number of the page and of ``summary.json``, as plain frozen values.

:class:`Audit` is the whole record. The cases, row by row, are here too (rows are positions in their
set, classes positions in ``Audit.classes``), what was found about the support's labels in
:mod:`vicinal.audits.label_records`, the other parts in :mod:`vicinal.audits.sections`. A section
that could not be computed is ``None``, and :attr:`Audit.not_checked` says why.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.head_rows import HeadRows
from vicinal.audits.label_records import LabelAudit
from vicinal.audits.search_record import Scale, SearchFacts
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
    Recommendation,
    RiskCoverage,
    Sweep,
    Unknowns,
)
from vicinal.audits.stress_records import Stress
from vicinal.checks import InputError, check_choice
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import Record

_POWERS = np.array([float(f"1e{place}") for place in range(23)])  # exact in float64, no further
MEDIA_KINDS = ("images", "texts", "tables")


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
    familiarity: tuple[float, ...] | None = None  # share of held-out rows at least as foreign
    linear_share: tuple[float, ...] | None = None  # of the answer's lead, where a part is linear
    others: tuple[str | None, ...] | None = None  # labels of classes the support lacks: wrong

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
    recommendation: Recommendation | None = None
    search: SearchFacts | None = None
    class_facts: tuple[ClassFacts, ...] = ()
    risk_coverage: RiskCoverage | None = None
    sweep: Sweep | None = None
    credibility: Credibility | None = None
    borders: Borders | None = None
    layers: tuple[Layer, ...] | None = None
    network: NetworkView | None = None
    map: Map | None = None
    stress: Stress | None = None
    unknowns: Unknowns | None = None
    duplicates: Duplicates | None = None
    hubs: Hubs | None = None
    prior_shift: PriorShift | None = None
    agreement: float | None = None  # how often the neighbor head and the softmax head agree
    planted: tuple[Planted, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: dict[str, str] = dataclasses.field(default_factory=dict)  # section -> why
    scale: Scale | None = None  # where the rows were not all in memory
    head_rows: tuple[HeadRows, ...] = ()  # every scored head's answers, for a paired comparison
    media: Media | None = dataclasses.field(
        default=None, compare=False, repr=False, metadata={"json": False}
    )
    head: Any = dataclasses.field(default=None, compare=False, repr=False, metadata={"json": False})
    parts: dict[str, Path] = dataclasses.field(  # name in the run -> where every row's results lie
        default_factory=dict, compare=False, repr=False, metadata={"json": False}
    )

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

        for kept in self.head_rows:
            kept.check(len(self.cases.id))
        self._check_codes()

    def _check_codes(self) -> None:
        """Classes are positions in ``classes``; every neighbor has a weight and a distance."""
        cases, suspects = self.cases, self.labels.suspects if self.labels else ()
        codes = {*cases.predicted, *self.support.label, *cases.label} - {None}
        codes |= {code for suspect in suspects for code in (suspect.given, suspect.suggested)}
        codes |= {facts.label for facts in self.class_facts}
        pairs = self.borders.pairs if self.borders else ()
        codes |= {code for pair in pairs for code in (pair.a, pair.b)}
        codes |= {code for row in cases.layer_class or () for code in row}
        shown = self.stress.examples if self.stress else ()
        codes |= {code for example in shown for code in (example.label, example.predicted)}
        if any(not 0 <= code < len(self.classes) for code in codes if code is not None):
            raise InputError(f"a class of `Audit` is none of its {len(self.classes)} classes.")
        for name, most in (
            ("confidence", 1), ("credibility", 1), ("familiarity", 1), ("near_percentile", 100)
        ):  # fmt: skip
            shares = [share for share in getattr(cases, name) or () if share is not None]
            if not all(0 <= share <= most + 1e-6 for share in shares):
                raise InputError(f"`Audit.cases.{name}` must lie between 0 and {most}.")
        columns = (cases.neighbors, cases.weights, cases.distances)
        uneven = len({tuple(map(len, column)) for column in columns}) > 1
        lists: list[Any] = [(one.neighbors, one.weights, one.distances) for one in suspects]
        lists += [(self.support.row, self.support.id, self.support.label)]
        if self.map is not None:
            lists += [(self.map.x, self.map.y, self.map.x)]
            lists += [(self.map.support_row, self.map.support_x, self.map.support_y)]
        if uneven or any(len({len(part) for part in parts}) > 1 for parts in lists):
            raise InputError("lists of `Audit` that belong together have different lengths.")

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
        """Of all query rows, also of those that the record does not hold."""
        if self.scale is not None:
            return dict(self.scale.verdicts)
        return {verdict: self.cases.verdict.count(verdict) for verdict in VERDICTS}

    @property
    def suspect_count(self) -> int | None:
        """Of all support rows; None where labels were not checked."""
        if self.scale is not None:
            return self.scale.suspects
        return len(self.labels.suspects) if self.labels else None

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        from vicinal.audits.files import summary

        return summary(self)

    @property
    def samples(self) -> Any:
        """Every query row, its prediction and verdict: a DataFrame; a list of dicts w/o pandas."""
        from vicinal.audits.files import samples_table

        return as_frame(samples_table(self))

    @property
    def suspects(self) -> Any:
        """The support rows whose label is contradicted, most suspicious first; as ``samples``."""
        from vicinal.audits.files import suspects_table

        return as_frame(suspects_table(self))

    def show(self) -> Any:
        """The page: inside a notebook as its output, elsewhere in the browser; returns its path."""
        if _in_notebook():
            from IPython.display import HTML, display

            display(HTML(self._repr_html_()))
            return None
        folder = Path(tempfile.mkdtemp(prefix="vicinal-"))
        self.save(folder / "report.html")
        webbrowser.open((folder / "report.html").as_uri())
        return folder / "report.html"

    def save(self, path: str | Path, *, max_mb: float = 10.0) -> None:
        """Write the page: one HTML file that needs no network."""
        from vicinal.report import save_report  # late: the report reads records, not the reverse

        save_report(self, path, self.media, max_mb=max_mb)

    def _repr_html_(self) -> str:
        from vicinal.report import notebook_frame

        return notebook_frame(self, self.media)


def as_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a DataFrame where pandas is installed, else as a list of rows."""
    try:
        import pandas
    except ImportError:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return pandas.DataFrame(dict(columns))


def _in_notebook() -> bool:
    """Whether a kernel runs us that can show HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


class ReadLater(Sequence[Any]):
    """An item for each of so many rows, read when it is asked for."""

    def __init__(self, read: Callable[[int], Any], rows: int) -> None:
        self.read, self.rows = read, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.read(row)


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


def significant(values: Any, digits: int = 6) -> NDArray[np.float64]:
    """What ``float(f"{v:.6g}")`` gives for each: the float64 nearest to so many decimal digits.

    >>> significant([0.0, 2 / 3, -123456.789, 1.23456789e-30]).tolist()
    [0.0, 0.666667, -123457.0, 1.23457e-30]
    """
    v = np.asarray(values, dtype=np.float64)
    size = np.where(v == 0, 1.0, np.abs(v))
    place = (digits - 1 - np.floor(np.log10(size))).astype(np.int64)
    up, down = _POWERS[np.clip(place, 0, 22)], _POWERS[np.clip(-place, 0, 22)]
    found = np.rint(v * up / down) / up * down
    far = np.abs(place) > 22
    found[far] = [float(f"{value:.{digits}g}") for value in v[far].tolist()]
    return found
