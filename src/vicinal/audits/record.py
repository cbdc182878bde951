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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.head_rows import HeadRows
from vicinal.audits.label_records import LabelAudit
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
    RiskCurve,
    Sweep,
    Unknowns,
)
from vicinal.audits.stress_records import Stress
from vicinal.checks import InputError, check_choice
from vicinal.confidence.verdicts import VERDICTS
from vicinal.records import Percentile, Record, Share, Signed

_POWERS = np.array([float(f"1e{place}") for place in range(23)])  # exact in float64, no further
MEDIA_KINDS = ("images", "texts", "tables")


@dataclass(frozen=True)
class SearchFacts(Record):
    """Who found the neighbors; what an approximate search moved, on rows also searched exactly.

    ``nll_moved`` and ``ece_moved`` are NED's on these rows, leave-one-out: found less exact.
    """

    engine: str
    exact: bool
    how: str  # a sentence: "IVF (…), recall@100 0.994 ± 0.001 on 1,000 exact rows; NLL moved by …"
    recall: float | None = None
    recall_se: float | None = None
    k: int | None = None
    rows: int | None = None  # searched exactly as well
    nll_moved: float | None = None
    nll_moved_se: float | None = None
    ece_moved: float | None = None
    suspects_moved: int | None = None  # of these rows: suspect by one answer, not by the other
    lost: int | None = None  # of these rows: the search missed all neighbors of their class
    recalls: dict[str, float] = dataclasses.field(default_factory=dict)  # of other sets, by role
    wanted: float | None = None  # the recall that was asked for


@dataclass(frozen=True)
class Scale(Record):
    """An audit of rows that are not all in memory: what it was fitted on, and the sums over all."""

    how: str  # a sentence: what was fitted on how many rows, and the sampling error
    search: str
    support_rows: int
    anchors: int  # support rows that everything was fitted on
    query_rows: int
    query_sample: int  # query rows that the heads were compared on, and that the record holds
    verdicts: dict[str, int]  # of all query rows
    suspects: int  # of all support rows
    ambiguous: int
    memory: int | None = None  # bytes that were allowed
    parts: tuple[str, ...] = ()  # files that hold every row


@dataclass(frozen=True)
class SupportRows(Record):
    """The support rows that are suspects or in any list of neighbors, by place in the support."""

    TOGETHER = (("row", "id", "label"),)

    row: tuple[int, ...]
    id: tuple[str, ...]
    label: tuple[int, ...]


@dataclass(frozen=True)
class Cases(Record):
    """The query, one entry per row in every column."""

    TOGETHER = (
        ("id", "label", "predicted", "confidence", "credibility", "near_percentile", "verdict",
         "reason", "neighbors", "weights", "distances", "network_percentile", "network_neighbors",
         "network_similarities", "layer_class", "layer_share", "familiarity", "linear_share",
         "others"),
    )  # fmt: skip

    id: tuple[str, ...]
    label: tuple[int | None, ...]
    predicted: tuple[int, ...]
    confidence: tuple[Share, ...]
    credibility: tuple[Share | None, ...]
    near_percentile: tuple[Percentile, ...]  # farther off than this % of held-out rows
    verdict: tuple[str, ...]
    reason: tuple[str, ...]
    neighbors: tuple[tuple[int, ...], ...]  # support rows, nearest first
    weights: tuple[tuple[Share, ...], ...]
    distances: tuple[tuple[float, ...], ...]
    network_percentile: tuple[Percentile | None, ...] | None = None  # of N_S
    network_neighbors: tuple[tuple[int, ...], ...] | None = None
    network_similarities: tuple[tuple[Signed, ...], ...] | None = None
    head: str = "ned"  # whose predictions and confidences these are
    layers: tuple[str, ...] = ()  # layer_class[i][l]: what row i's neighbors in layer l vote for
    layer_class: tuple[tuple[int, ...], ...] | None = None
    layer_share: tuple[tuple[Share, ...], ...] | None = None
    familiarity: tuple[Share, ...] | None = None  # share of held-out rows at least as foreign
    linear_share: tuple[float, ...] | None = None  # of the answer's lead, where a part is linear
    others: tuple[str | None, ...] | None = None  # labels of classes the support lacks: wrong

    def __post_init__(self) -> None:
        super().__post_init__()
        for lists in (
            (self.neighbors, self.weights, self.distances),
            (self.network_neighbors or (), self.network_similarities or ()),
            (self.layer_class or (), self.layer_share or ()),
        ):
            if len({tuple(map(len, column)) for column in lists}) > 1:
                raise InputError("lists of `Cases` that belong together have different lengths.")
        for verdict in set(self.verdict):
            check_choice(verdict, "Cases.verdict", VERDICTS)


def rows_named(cases: Cases, labels: LabelAudit | None) -> set[int]:
    """The support rows that are suspects or in any list of neighbors."""
    suspects = labels.suspects if labels else ()
    return {suspect.row for suspect in suspects}.union(
        *cases.neighbors,
        *(cases.network_neighbors or ()),
        *(suspect.neighbors for suspect in suspects),
    )


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
    risk_coverage: RiskCurve | None = None
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
        missing = rows_named(self.cases, self.labels) - set(self.support.row)
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
        """Classes are positions in ``classes``."""
        cases, labels = self.cases, self.labels
        found = [cases.predicted, cases.label, self.support.label, *(cases.layer_class or ())]
        found += [(facts.label,) for facts in self.class_facts]
        found += [(pair.a, pair.b) for pair in self.borders.pairs] if self.borders else []
        found += [(row.label, row.predicted) for row in self.stress.examples] if self.stress else []
        if labels is not None:
            found += [(suspect.given, suspect.suggested) for suspect in labels.suspects]
            found += [(pair.a, pair.b) for pair in labels.alike]
            found += [(p.given, p.true) for p in labels.wrong.pairs] if labels.wrong else []
            found += [labels.rows.given, labels.rows.suggested] if labels.rows else []
        codes, count = set(chain(*found)), len(self.classes)
        if any(not 0 <= code < count for code in codes if code is not None):
            raise InputError(f"a class of `Audit` is none of its {len(self.classes)} classes.")
        drawn = self.map.support_row if self.map else ()
        rows, held = {*self.support.row, *drawn}, self.data.support.rows
        if drawn and labels is not None and labels.rows is not None:
            held = min(held, len(labels.rows.id))
        if rows and not 0 <= min(rows) <= max(rows) < held:
            raise InputError(f"a row of `Audit` is none of its {held} support rows.")
        shares = self.prior_shift.support if self.prior_shift else self.classes
        if len(shares) != len(self.classes):
            raise InputError(
                f"`PriorShift` must hold a share for each of {len(self.classes)} classes."
            )

    def __repr__(self) -> str:
        return f"Audit({self.name!r}, {len(self.cases.id)} cases, {self.verdict_counts()})"

    @property
    def given_labels(self) -> list[str | None]:
        """The query's, by name; of a class the support lacks too, which no prediction can be."""
        others = self.cases.others or (None,) * len(self.cases.id)
        given = zip(self.cases.label, others, strict=True)
        return [other if code is None else self.classes[code] for code, other in given]

    @property
    def support_names(self) -> dict[int, str]:
        """What the support rows are called that the record knows."""
        return dict(zip(self.support.row, self.support.id, strict=True))

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
        if (ending := Path(path).suffix.lower()) not in ("", ".html", ".htm"):
            raise InputError(f"{path}: the report is a page, not a {ending} file. Name it .html.")
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
