"""What the page's script works on: the cards that fit the budget, and nothing it could not show.

Aggregates are drawn for all rows. Cards cost bytes (an image, twenty neighbors), so they are
chosen: suspects, errors and rows outside the support first, then an even sample over verdict and
class until the page is full. How many were left out is stated on the page.
"""

from __future__ import annotations

import base64
import functools
import gzip
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.label_records import Suspect
from vicinal.audits.record import Audit, Media
from vicinal.report.appearance import (
    CELLS_SHOWN,
    COLUMNS,
    PER_SHEET,
    Sprites,
    Thumbnails,
    cells,
    snippet,
)
from vicinal.report.figures import structure, trust
from vicinal.report.figures.points import points_data
from vicinal.report.words import apart, clean, decimals, four_digits, lists, rounded

NEIGHBORS_SHOWN = 20
PICTURES_SHOWN = 12  # neighbors with a thumbnail; the others have label, weight and id
FEW_PICTURES = 6  # the same on cards that are only there as a sample
SAMPLE = 200

Entry = tuple[str, int]  # ("case", query row) or ("suspect", place in the list)


@dataclass(frozen=True)
class Payload:
    """The data of one page: JSON text, sprite sheets, and how much of the record it holds."""

    json: str
    sheets: tuple[str, ...] = ()
    cases: int = 0
    suspects: int = 0
    thumbnails: int = 0

    @functools.cached_property
    def packed(self) -> str:
        """gzip in base64: a third of the size, and no character that HTML would read.

        At level 5: half the time of level 6 for 6 % more bytes.
        """
        data = gzip.compress(self.json.encode("utf-8", "replace"), 5, mtime=0)
        return base64.b64encode(data).decode("ascii")

    @property
    def size(self) -> int:
        return len(self.packed) + sum(map(len, self.sheets))

    @property
    def css(self) -> str:
        rules = [f".s{i}{{background-image:url({uri})}}" for i, uri in enumerate(self.sheets)]
        return "\n".join(rules)


def fill(audit: Audit, media: Media | None, budget: int, most: int | None = None) -> Payload:
    """The largest payload within ``budget`` bytes; sizes are measured, not guessed.

    ``most``: cards, however small they are.
    """
    order, builder = card_order(audit)[:most], Builder(audit, media)
    keep = guess(builder, order, budget)
    while True:
        payload = builder.build(order[:keep])
        if payload.size <= budget or keep == 0:
            return payload
        keep = max(0, min(keep - 1, int(keep * 0.97 * budget / payload.size)))


def card_order(audit: Audit) -> list[Entry]:
    """Every card the page could have, the ones it must not lose first."""
    cases = audit.cases
    urgent, strata = [], dict[tuple[str, int], list[int]]()
    for i, key in enumerate(zip(cases.verdict, cases.predicted, strict=True)):
        if is_urgent(audit, i):
            urgent.append(("case", i))
        else:
            strata.setdefault(key, []).append(i)
    suspects = [("suspect", i) for i in range(len(audit.labels.suspects if audit.labels else ()))]
    pairs = itertools.zip_longest(suspects, urgent)
    first = [entry for pair in pairs for entry in pair if entry is not None]
    turns = itertools.zip_longest(*(strata[key] for key in sorted(strata)))
    return [*first, *(("case", i) for turn in turns for i in turn if i is not None)]


def is_urgent(audit: Audit, i: int) -> bool:
    """An error, or a row outside what the support covers."""
    cases = audit.cases
    labeled = cases.label[i] is not None or bool(cases.others and cases.others[i] is not None)
    wrong = labeled and cases.label[i] != cases.predicted[i]
    return wrong or cases.verdict[i] in ("unfamiliar", "isolated")


def guess(builder: Builder, order: list[Entry], budget: int) -> int:
    """How many cards to try first: bytes per card from a sample, thumbnails counted once per row.

    A build of every card only to find that a tenth of them fits would take minutes. Thumbnails are
    what a card weighs; without them a card of the sample weighs more than one among many, because
    it shares fewer neighbors, so twice as many as the sample says are tried.
    """
    if len(order) <= SAMPLE:
        return len(order)
    sample = builder.build(order[:: max(1, len(order) // SAMPLE)][:SAMPLE])
    fixed = len(builder.build([]).packed)
    per_card = (len(sample.packed) - fixed) / SAMPLE
    if builder.thumbnails is None:
        return min(len(order), 2 * max(0, int((budget - fixed) / per_card)))
    per_picture = sum(map(len, sample.sheets)) / max(sample.thumbnails, 1)
    pictured: set[int] = set()
    size = float(fixed)
    for at, entry in enumerate(order):
        rows = builder.pictured(entry) - pictured
        pictured |= rows
        size += per_card + per_picture * (len(rows) + (entry[0] == "case"))
        if size > budget:
            return at
    return len(order)


class Builder:
    """Turns entries into a payload; remembers thumbnails between attempts at the right size."""

    def __init__(self, audit: Audit, media: Media | None) -> None:
        self.audit = audit
        self.media = media
        self.places = {row: i for i, row in enumerate(audit.support.row)}
        self.points = as_json(points_data(audit))  # the same however many cards there are
        images = media is not None and media.kind == "images"
        self.thumbnails = Thumbnails(media) if images and media is not None else None

    def build(self, entries: list[Entry]) -> Payload:
        audit = self.audit
        rows = sorted(i for kind, i in entries if kind == "case")
        listed = audit.labels.suspects if audit.labels else ()
        suspects = [listed[i] for i in sorted(i for kind, i in entries if kind == "suspect")]
        used = self.support_used(rows, suspects)
        data: dict[str, Any] = {
            "name": clean(audit.name),
            "classes": (classes := [clean(name) for name in audit.classes]),
            "apart": [(classes.index(text), at) for text, at in apart(tuple(classes)).items()],
            "verdicts": list(audit.verdict_counts()),
            "head": audit.cases.head,
            "kind": self.media.kind if self.media else None,
            "columns": [clean(c) for c in self.media.columns[:CELLS_SHOWN]] if self.media else [],
            "total": len(audit.cases.id),
            "cases": self.case_columns(rows, used),
            "support": self.support_columns(used),
            "suspects": [suspect_card(s, used) for s in suspects],
            "curve": trust.threshold_data(audit),
            "fit": structure.fit_map_data(audit, used.tolist()),
            "network": structure.network_data(audit),
        }
        sprites = self.add_media(data, rows, used.tolist(), entries)
        text = f'{as_json(data)[:-1]},"points":{self.points}}}'
        return Payload(text, sprites.sheets, len(rows), len(suspects), len(sprites.place))

    def pictured(self, entry: Entry) -> set[int]:
        """Support rows whose thumbnails this card shows."""
        kind, i = entry
        if kind == "suspect" and self.audit.labels is not None:
            suspect = self.audit.labels.suspects[i]
            return {suspect.row, *suspect.neighbors[:PICTURES_SHOWN]}
        cases = self.audit.cases
        some = PICTURES_SHOWN if is_urgent(self.audit, i) else FEW_PICTURES
        alike = cases.network_neighbors[i][:some] if cases.network_neighbors else ()
        return {*cases.neighbors[i][:some], *alike}

    def support_used(self, rows: list[int], suspects: list[Suspect]) -> NDArray[np.int64]:
        """Every support row that a card lists, in order: cards name them by their place here."""
        cases = self.audit.cases
        used = {suspect.row for suspect in suspects}
        used.update(*(suspect.neighbors[:NEIGHBORS_SHOWN] for suspect in suspects))
        used.update(*shown(cases.neighbors, rows))
        if cases.network_neighbors is not None:
            used.update(*shown(cases.network_neighbors, rows))
        return np.array(sorted(used), dtype=np.int64)

    def case_columns(self, rows: list[int], used: NDArray[np.int64]) -> dict[str, Any]:
        cases = self.audit.cases
        columns: dict[str, Any] = {
            "row": rows,
            "credibility": [rounded(cases.credibility[i]) for i in rows],
            "near": [round(cases.near_percentile[i], 1) for i in rows],
            "reason": [clean(cases.reason[i]) for i in rows],
            "neighbors": lists(shown(cases.neighbors, rows), used.searchsorted),
            "weights": lists(shown(cases.weights, rows), decimals(4)),
            "distances": lists(shown(cases.distances, rows), four_digits),
        }
        if cases.familiarity:
            columns["familiar"] = [rounded(cases.familiarity[i]) for i in rows]
        if cases.network_percentile is not None:
            columns["crowding"] = [rounded(cases.network_percentile[i], 1) for i in rows]
        if cases.linear_share is not None:
            columns["linear"] = [round(cases.linear_share[i], 2) for i in rows]
        if cases.network_neighbors is not None and cases.network_similarities is not None:
            alike, similarities = cases.network_neighbors, cases.network_similarities
            columns["network_neighbors"] = lists(shown(alike, rows), used.searchsorted)
            columns["similarities"] = lists(shown(similarities, rows), decimals(3))
        if cases.layer_class is not None and cases.layer_share is not None:
            columns["layers"] = [clean(name) for name in cases.layers]
            columns["layer_class"] = [cases.layer_class[i] for i in rows]
            columns["layer_share"] = lists([cases.layer_share[i] for i in rows], decimals(3))
        return columns

    def support_columns(self, used: NDArray[np.int64]) -> dict[str, Any]:
        support = self.audit.support
        at = [self.places[row] for row in used.tolist()]
        return {
            "row": used.tolist(),
            "id": [clean(support.id[i]) for i in at],
            "label": [support.label[i] for i in at],
        }

    def add_media(
        self, data: dict[str, Any], rows: list[int], used: list[int], entries: list[Entry]
    ) -> Sprites:
        """What the rows look like, into ``data``; the sprite sheets stand beside it."""
        if (media := self.media) is None:
            return Sprites((), 0, {})
        if self.thumbnails is None:
            form: Callable[[Any], Any] = snippet if media.kind == "texts" else cells
            data[media.kind] = {
                "query": [form(media.get("query", row)) for row in rows],
                "support": [form(media.get("support", row)) for row in used],
            }
            return Sprites((), 0, {})
        pictured = set[int]().union(*(self.pictured(entry) for entry in entries))
        keys = [("query", row) for row in rows]
        keys += [("support", row) for row in used if row in pictured]
        sprites = self.thumbnails.sprites(keys)
        data["tiles"] = {
            "columns": COLUMNS,
            "per": PER_SHEET,
            "size": sprites.size,
            "query": [sprites.place.get(("query", row), -1) for row in rows],
            "support": [sprites.place.get(("support", row), -1) for row in used],
        }
        return sprites


def suspect_card(suspect: Suspect, used: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "place": int(used.searchsorted(suspect.row)),
        "row": suspect.row,
        "id": clean(suspect.id),
        "given": suspect.given,
        "suggested": suspect.suggested,
        "score": rounded(suspect.score),
        "p_given": round(suspect.p_given, 4),
        "p_suggested": round(suspect.p_suggested, 4),
        "affected": suspect.affected,
        "depth": rounded(suspect.depth_agreement),
        "neighbors": lists(shown([suspect.neighbors]), used.searchsorted)[0],
        "weights": lists(shown([suspect.weights]), decimals(4))[0],
        "distances": lists(shown([suspect.distances]), four_digits)[0],
    }


def as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def shown(column: Sequence[tuple[float, ...]], rows: Sequence[int] = (0,)) -> list[tuple[Any, ...]]:
    """The first few of each row's neighbors, or of what goes with them."""
    return [column[i][:NEIGHBORS_SHOWN] for i in rows]
