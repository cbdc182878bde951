"""Every row of a set that is not in memory: judged block by block by the head that is kept.

Rows of the sample that the heads were compared on were judged out of fold, and stay as they were.
A support without a query is judged leave-one-out, by the neighbors that its labels are judged by.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from vicinal.audits.facts import Facts
from vicinal.audits.files import TOP_NEIGHBORS
from vicinal.audits.parts import JUDGED, Columns, Parts, joined
from vicinal.audits.whole import READ, Whole
from vicinal.checks import as_tensor
from vicinal.confidence.head import TrustHead
from vicinal.confidence.verdicts import VERDICTS
from vicinal.neighbors.neighborhood import Neighborhood


class CaseJudge:
    """What is said of rows ``start`` to ``stop`` of the query: the columns of ``samples.csv``."""

    def __init__(self, facts: Facts, whole: Whole) -> None:
        self.head = TrustHead(facts.kept, facts.standards)
        self.whole, self.names, self.cases = whole, facts.sets.names, facts.cases

    def __call__(self, start: int, stop: int) -> Columns:
        rows = torch.cat([block for _, block in self.whole.source.blocks(READ, start, stop)])
        near = self.head.ned.neighborhood_of(rows)  # all at once: the support is read once for them
        columns = self.columns(start, rows, near)
        codes = self.whole.codes
        given = [-1] * (stop - start) if codes is None else codes[start:stop].tolist()
        return {
            "row": list(range(start, stop)),
            "id": self.whole.rows.ids(start, stop),
            "label": [self.names[code] if code >= 0 else None for code in given],
            **columns,
        }

    def columns(self, start: int, rows: Tensor, near: Neighborhood) -> dict[str, list[Any]]:
        """The verdicts of rows from ``start`` on, whose neighbors were found."""
        columns = joined(list(map(self._judged, rows.split(JUDGED), near.blocks(JUDGED))))
        self._keep_sampled(columns, start, start + len(rows))
        columns["predicted"] = [self.names[code] for code in columns["predicted"]]
        return columns

    def _judged(self, rows: Tensor, near: Neighborhood) -> dict[str, list[Any]]:
        out = self.head.judgement_of(near, rows)
        codes = {label: code for code, label in enumerate(self.head.classes_.tolist())}
        share = out.linear_share
        return {
            "predicted": [codes[label] for label in as_list(out.label)],
            "confidence": as_list(out.confidence),
            "credibility": as_list(out.credibility),
            "near_percentile": as_list(out.near_percentile),
            "familiarity": as_list(out.familiarity),
            "linear_share": [None] * len(rows) if share is None else as_list(share),
            "verdict": out.verdict.tolist(),
            "reason": out.reason,
            "neighbors": as_tensor(out.neighbors, "neighbors")[:, :TOP_NEIGHBORS].tolist(),
            "weights": as_tensor(out.weights, "weights")[:, :TOP_NEIGHBORS].tolist(),
        }

    def _keep_sampled(self, columns: dict[str, list[Any]], start: int, stop: int) -> None:
        some, cases = self.whole.some, self.cases
        low, high = torch.searchsorted(some, torch.tensor([start, stop])).tolist()
        for at in range(low, high):
            row = int(some[at]) - start
            for name, column in columns.items():
                values = getattr(cases, name)
                kept = None if values is None else values[at]
                column[row] = list(kept[:TOP_NEIGHBORS]) if isinstance(kept, tuple) else kept


def as_list(values: Any) -> list[Any]:
    return values.tolist()


def verdict_counts(parts: Parts) -> dict[str, int]:
    """Sums over the parts."""
    found = Counter[str]()
    for part in parts.read("verdict"):
        found.update(part["verdict"].tolist())
    return {verdict: found[verdict] for verdict in VERDICTS}
