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
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vicinal.audits.record import VERDICTS, Audit, Media, Suspect
from vicinal.report import sprites
from vicinal.report.words import clean

NEIGHBORS_SHOWN = 20
TEXT_SHOWN = 600
CELLS_SHOWN = 24
MAP_SUPPORT = 3000
MOST_POINTS = 5000
PICTURES_SHOWN = 12  # neighbors with a thumbnail; the others have label, weight and id
FEW_PICTURES = 6  # the same on cards that are only there as a sample
SAMPLE = 200

Entry = tuple[str, int]  # ("case", query row) or ("suspect", place in the list)


@dataclass(frozen=True)
class Payload:
    """The data of one page: JSON text, sprite sheets, and how much of the record it holds."""

    json: str
    sheets: tuple[str, ...]
    tile: int
    cases: int
    suspects: int
    thumbnails: int

    @functools.cached_property
    def packed(self) -> str:
        """gzip in base64: a fifth of the size, and no character that HTML would read."""
        data = gzip.compress(self.json.encode("utf-8", "replace"), 6, mtime=0)
        return base64.b64encode(data).decode("ascii")

    @property
    def size(self) -> int:
        return len(self.packed) + sum(map(len, self.sheets))

    @property
    def css(self) -> str:
        rules = [f".s{i}{{background-image:url({uri})}}" for i, uri in enumerate(self.sheets)]
        return "\n".join(rules)


def card_order(audit: Audit) -> list[Entry]:
    """Every card the page could have, the ones it must not lose first."""
    cases = audit.cases
    urgent = [i for i in range(len(cases.id)) if is_urgent(audit, i)]
    rest = [i for i in range(len(cases.id)) if not is_urgent(audit, i)]
    suspects = [("suspect", i) for i in range(len(audit.labels.suspects if audit.labels else ()))]
    pairs = itertools.zip_longest(suspects, [("case", i) for i in urgent])
    first = [entry for pair in pairs for entry in pair if entry is not None]
    strata: dict[tuple[str, int], list[int]] = {}
    for i in rest:
        strata.setdefault((cases.verdict[i], cases.predicted[i]), []).append(i)
    turns = itertools.zip_longest(*(strata[key] for key in sorted(strata)))
    return [*first, *(("case", i) for turn in turns for i in turn if i is not None)]


def is_urgent(audit: Audit, i: int) -> bool:
    """An error, or a row outside what the support covers."""
    cases = audit.cases
    wrong = cases.label[i] is not None and cases.label[i] != cases.predicted[i]
    return wrong or cases.verdict[i] in ("unfamiliar", "isolated")


def fill(audit: Audit, media: Media | None, budget: int) -> Payload:
    """The largest payload within ``budget`` bytes; sizes are measured, not guessed."""
    order, builder = card_order(audit), Builder(audit, media)
    keep = guess(builder, order, budget)
    while True:
        payload = builder.build(order[:keep])
        if payload.size <= budget or keep == 0:
            return payload
        keep = min(keep - 1, int(keep * 0.97 * budget / payload.size))


def guess(builder: Builder, order: list[Entry], budget: int) -> int:
    """How many cards may fit: bytes per card from a sample, thumbnails counted once per row.

    A build of every card only to find that a tenth of them fits would take minutes.
    """
    if builder.media is None or builder.media.kind != "images" or len(order) <= SAMPLE:
        return len(order)
    sample = builder.build(order[:: max(1, len(order) // SAMPLE)][:SAMPLE])
    fixed = len(builder.build([]).packed)
    per_card = (len(sample.packed) - fixed) / SAMPLE
    per_picture = sum(map(len, sample.sheets)) / max(sample.thumbnails, 1)
    seen: set[int] = set()
    size = float(fixed)
    for at, entry in enumerate(order):
        rows = builder.pictured(entry) - seen
        seen |= rows
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
        self.images: dict[tuple[str, int], Image.Image | None] = {}

    def build(self, entries: list[Entry]) -> Payload:
        audit = self.audit
        rows = sorted(i for kind, i in entries if kind == "case")
        listed = audit.labels.suspects if audit.labels else ()
        suspects = [listed[i] for i in sorted(i for kind, i in entries if kind == "suspect")]
        used = self.support_used(rows, suspects)
        index = {row: i for i, row in enumerate(used)}
        data: dict[str, Any] = {
            "name": clean(audit.name),
            "classes": [clean(name) for name in audit.classes],
            "verdicts": VERDICTS,
            "kind": self.media.kind if self.media else None,
            "columns": [clean(c) for c in self.media.columns] if self.media else [],
            "total": len(audit.cases.id),
            "cases": self.case_columns(rows, index),
            "support": self.support_columns(used),
            "suspects": [self.suspect(s, index) for s in suspects],
            "curve": curve(audit),
            "fit": self.fit_map(index),
            "map": self.map_support(),
            "network": self.network_extras(),
        }
        pictured = set[int]().union(*(self.pictured(entry) for entry in entries))
        sheets, tile, thumbnails = self.add_media(data, rows, used, pictured)
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Payload(text, tuple(sheets), tile, len(rows), len(suspects), thumbnails)

    def pictured(self, entry: Entry) -> set[int]:
        """Support rows whose thumbnails this card shows."""
        kind, i = entry
        if kind == "suspect" and self.audit.labels is not None:
            suspect = self.audit.labels.suspects[i]
            return {suspect.row, *suspect.neighbors[:PICTURES_SHOWN]}
        cases = self.audit.cases
        some = PICTURES_SHOWN if is_urgent(self.audit, i) else FEW_PICTURES
        seen = cases.network_neighbors[i][:some] if cases.network_neighbors else ()
        return {*cases.neighbors[i][:some], *seen}

    def support_used(self, rows: list[int], suspects: list[Suspect]) -> list[int]:
        cases, used = self.audit.cases, set[int]()
        for i in rows:
            used.update(cases.neighbors[i][:NEIGHBORS_SHOWN])
            if cases.network_neighbors is not None:
                used.update(cases.network_neighbors[i][:NEIGHBORS_SHOWN])
        for suspect in suspects:
            used.add(suspect.row)
            used.update(suspect.neighbors[:NEIGHBORS_SHOWN])
        return sorted(used)

    def case_columns(self, rows: list[int], index: dict[int, int]) -> dict[str, Any]:
        cases, chart = self.audit.cases, self.audit.map
        near = [cases.neighbors[i][:NEIGHBORS_SHOWN] for i in rows]
        columns: dict[str, Any] = {
            "row": rows,
            "id": [clean(cases.id[i]) for i in rows],
            "label": [cases.label[i] for i in rows],
            "predicted": [cases.predicted[i] for i in rows],
            "confidence": [round(cases.confidence[i], 4) for i in rows],
            "credibility": [rounded(cases.credibility[i]) for i in rows],
            "near": [round(cases.near_percentile[i], 1) for i in rows],
            "verdict": [VERDICTS.index(cases.verdict[i]) for i in rows],
            "reason": [clean(cases.reason[i]) for i in rows],
            "nb": [[index[row] for row in line] for line in near],
            "w": [[round(w, 4) for w in cases.weights[i][:NEIGHBORS_SHOWN]] for i in rows],
            "d": [[significant(d) for d in cases.distances[i][:NEIGHBORS_SHOWN]] for i in rows],
        }
        if cases.network_percentile is not None:
            columns["crowd"] = [rounded(cases.network_percentile[i], 1) for i in rows]
        if cases.network_neighbors is not None and cases.network_similarities is not None:
            seen, alike = cases.network_neighbors, cases.network_similarities
            columns["nnb"] = [[index[r] for r in seen[i][:NEIGHBORS_SHOWN]] for i in rows]
            columns["nsim"] = [[round(s, 3) for s in alike[i][:NEIGHBORS_SHOWN]] for i in rows]
        if cases.layer_class is not None and cases.layer_share is not None:
            columns["layers"] = [clean(name) for name in cases.layers]
            columns["lc"] = [cases.layer_class[i] for i in rows]
            columns["ls"] = [[round(s, 3) for s in cases.layer_share[i]] for i in rows]
        if chart is not None:
            columns["x"] = [significant(chart.x[i]) for i in rows]
            columns["y"] = [significant(chart.y[i]) for i in rows]
        return columns

    def support_columns(self, used: list[int]) -> dict[str, Any]:
        support = self.audit.support
        at = [self.places[row] for row in used]
        return {
            "row": used,
            "id": [clean(support.id[i]) for i in at],
            "label": [support.label[i] for i in at],
        }

    def suspect(self, suspect: Suspect, index: dict[int, int]) -> dict[str, Any]:
        return {
            "s": index[suspect.row],
            "row": suspect.row,
            "id": clean(suspect.id),
            "given": suspect.given,
            "suggested": suspect.suggested,
            "pg": round(suspect.p_given, 4),
            "ps": round(suspect.p_suggested, 4),
            "affected": suspect.affected,
            "depth": rounded(suspect.depth_agreement),
            "nb": [index[row] for row in suspect.neighbors[:NEIGHBORS_SHOWN]],
            "w": [round(w, 4) for w in suspect.weights[:NEIGHBORS_SHOWN]],
            "d": [significant(d) for d in suspect.distances[:NEIGHBORS_SHOWN]],
        }

    def fit_map(self, index: dict[int, int]) -> dict[str, Any] | None:
        """The points of the fit map, an even sample of them where there are very many."""
        network = self.audit.network
        if network is None or not network.fit_map:
            return None
        kept = network.fit_map[:: max(1, -(-len(network.fit_map) // MOST_POINTS))]
        of_query = network.fit_rows_of == "query"
        return {
            "query": of_query,
            "row": [point.row for point in kept],
            "s": [-1 if of_query else index.get(point.row, -1) for point in kept],
            "x": [round(point.density, 1) for point in kept],
            "y": [round(point.variance, 3) for point in kept],
            "group": [clean(point.group) for point in kept],
        }

    def network_extras(self) -> dict[str, Any] | None:
        """Rows that stand for each bin of density, and single rows' similarity histograms."""
        network = self.audit.network
        if network is None:
            return None
        return {
            "query": network.rows_of == "query",
            "examples": network.density.examples,
            "similarity": {h.name: [h.edges, h.counts] for h in network.similarity},
        }

    def map_support(self) -> dict[str, Any] | None:
        """An even sample of the support behind the query's points."""
        chart = self.audit.map
        if chart is None:
            return None
        step = max(1, -(-len(chart.support_x) // MAP_SUPPORT))
        return {
            "x": [significant(v) for v in chart.support_x[::step]],
            "y": [significant(v) for v in chart.support_y[::step]],
        }

    def add_media(
        self, data: dict[str, Any], rows: list[int], used: list[int], pictured: set[int]
    ) -> tuple[list[str], int, int]:
        media = self.media
        if media is None:
            return [], 0, 0
        if media.kind == "texts":
            data["texts"] = {
                "q": [snippet(media.get("query", row)) for row in rows],
                "s": [snippet(media.get("support", row)) for row in used],
            }
            return [], 0, 0
        if media.kind == "tables":
            data["tables"] = {
                "q": [cells(media.get("query", row)) for row in rows],
                "s": [cells(media.get("support", row)) for row in used],
            }
            data["columns"] = data["columns"][:CELLS_SHOWN]
            return [], 0, 0
        return self.add_sprites(data, rows, used, pictured)

    def add_sprites(
        self, data: dict[str, Any], rows: list[int], used: list[int], pictured: set[int]
    ) -> tuple[list[str], int, int]:
        seen = [row for row in used if row in pictured]
        keys = [*(("query", row) for row in rows), *(("support", row) for row in seen)]
        for key in keys:
            if key not in self.images:
                item = self.media.get(*key) if self.media else None
                self.images[key] = None if item is None else self.small(sprites.as_image(item))
        present = [key for key in keys if self.images[key] is not None]
        size = sprites.tile_size([image for key in present if (image := self.images[key])])
        place = {key: i for i, key in enumerate(present)}
        tiles = [sprites.as_tile(image, size) for key in present if (image := self.images[key])]
        step = sprites.PER_SHEET
        form = sprites.best_form(tiles, size)
        sheets = [
            sprites.sheet(tiles[i : i + step], size, form) for i in range(0, len(tiles), step)
        ]
        data["tiles"] = {
            "columns": sprites.COLUMNS,
            "per": sprites.PER_SHEET,
            "size": size,
            "q": [place.get(("query", row), -1) for row in rows],
            "s": [place.get(("support", row), -1) for row in used],
        }
        return sheets, size, len(tiles)

    @staticmethod
    def small(image: Image.Image | None) -> Image.Image | None:
        if image is not None:
            image.thumbnail((sprites.LARGEST, sprites.LARGEST))
        return image


def curve(audit: Audit) -> dict[str, Any] | None:
    """The risk–coverage curve, with the verdicts of what each threshold turns away."""
    record = audit.risk_coverage
    if record is None:
        return None
    cases = audit.cases
    by_confidence = sorted(zip(cases.confidence, cases.verdict, strict=True))
    rejected, at, counts = [], len(record.threshold), dict.fromkeys(VERDICTS, 0)
    steps = iter(by_confidence)
    head = next(steps, None)
    for at in range(len(record.threshold) - 1, -1, -1):  # thresholds fall: start at the lowest
        while head is not None and head[0] < record.threshold[at]:
            counts[head[1]] += 1
            head = next(steps, None)
        rejected.append(list(counts.values()))
    return {
        "threshold": [round(v, 5) for v in record.threshold],
        "coverage": [round(v, 5) for v in record.coverage],
        "accuracy": [round(v, 5) for v in record.accuracy],
        "lower": [round(v, 5) for v in record.lower_bound],
        "rejected": rejected[::-1],
        "chosen": record.chosen.value if record.chosen else None,
        "target": record.chosen.target if record.chosen else None,
    }


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def significant(value: float) -> float:
    return float(f"{value:.4g}")


def snippet(text: Any) -> str | None:
    if text is None:
        return None
    whole = clean(str(text))
    return whole if len(whole) <= TEXT_SHOWN else whole[:TEXT_SHOWN] + "…"


def cells(row: Any) -> list[float | str] | None:
    """A table's row as numbers and short texts, the first columns of it."""
    if row is None:
        return None
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    return [
        float(f"{value:.6g}")
        if isinstance(value, (int, float)) and value == value and abs(value) != float("inf")
        else clean(str(value))[:80]
        for value in values[:CELLS_SHOWN]
    ]
