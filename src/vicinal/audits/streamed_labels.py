"""Every label of a support that is not in memory: scored block by block, the worst ones kept.

What :mod:`vicinal.confidence.label_noise` estimates of the classes (the noise matrix, how many
labels are wrong) is estimated on the anchors, and counts are scaled to all rows; what it says of a
row is said of every row. As many rows as are estimated to be wrong are suspects.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.facts import Facts
from vicinal.audits.label_records import Ambiguous, LabelAudit, LabelRows, Suspect, WrongLabels
from vicinal.audits.parts import JUDGED, Columns, Parts, joined
from vicinal.audits.record import significant
from vicinal.audits.streamed_cases import CaseJudge
from vicinal.audits.suspects import (
    SHOWN_NEIGHBORS,
    alike_of,
    effects_of,
    warn_of_few_named,
    wrong_of,
)
from vicinal.audits.whole import Whole
from vicinal.confidence.blend import product_log_probs
from vicinal.confidence.label_noise import AMBIGUOUS, true_label_log_posterior
from vicinal.confidence.ned.effects import label_effects
from vicinal.confidence.ned.posterior import neighbor_log_weights
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.neighborhood import joined as joined_lists

if TYPE_CHECKING:
    from vicinal.audits.streamed_facts import StreamedFacts

MOST_SUSPECTS = 10_000  # in the record, on the page and in suspects.csv
MOST_ROWS = 200_000  # in the record and in labels.csv


class LabelJudge:
    """What is said of the labels of rows ``start`` to ``stop`` of the support.

    Of a support without a query every row has its verdict beside, by the same neighbors.
    """

    def __init__(self, facts: Facts, whole: Whole) -> None:
        assert whole.codes is not None
        self.cases = CaseJudge(facts, whole) if facts.sets.leave_one_out else None
        self.ned, self.k = facts.ned, facts.graph.k
        self.whole, self.anchors, self.graph = whole, whole.some, facts.graph
        self.own, self.matrix = facts.support_classes, facts.labels.noise.matrix
        self.counts = torch.bincount(whole.codes, minlength=len(facts.sets.classes))
        self.blend, self.linear = facts.support_blend, facts.linear.head

    def __call__(self, start: int, stop: int) -> Columns:
        """The columns of a part; neighbors only where the probabilities contradict the label."""
        rows = torch.cat([block for _, block in self.whole.source.blocks(JUDGED, start, stop)])
        own = torch.arange(start, stop)
        near = self._neighbors(own, rows)
        parts = [
            self._judged(
                own[at : at + JUDGED], rows[at : at + JUDGED], near.rows(slice(at, at + JUDGED))
            )
            for at in range(0, len(rows), JUDGED)
        ]
        columns = {"id": self.whole.rows.ids(start, stop), **joined(parts)}
        verdicts = self.cases.columns(start, rows, near) if self.cases is not None else {}
        return {**verdicts, **columns}  # neighbors where a label is contradicted, as everywhere

    def _neighbors(self, own: Int[Tensor, " m"], rows: Float[Tensor, "m d"]) -> Neighborhood:
        """Of the anchors as they were found before, by a map that had not seen them."""
        support, (place, mine) = self.ned.support_, self._anchors_among(own)
        rest = torch.ones(len(own), dtype=torch.bool).index_fill_(0, mine, False).nonzero()[:, 0]
        near, order = self.graph.rows(place), torch.cat([mine, rest])
        if len(rest):
            asked = support.search.query(support.space(rows[rest]), self.k, exclude=own[rest])
            near = joined_lists([near, asked.cpu().labeled(support.voters)])
        return near.rows(order.argsort())

    def log_probs(
        self, own: Int[Tensor, " m"], rows: Float[Tensor, "m d"], near: Neighborhood
    ) -> Float[Tensor, "m c"]:
        """By parts that have not seen the row; anchors as they were judged before."""
        log_p = self.ned.log_probs_of(near)
        if self.blend is not None:  # as suspects.class_log_probs does
            even = torch.full((log_p.shape[1],), -math.log(log_p.shape[1]), dtype=torch.float64)
            log_linear = torch.from_numpy(self.linear.predict_log_proba(rows.numpy()))
            log_p = product_log_probs(log_p, log_linear, even, self.blend)
        place, mine = self._anchors_among(own)
        log_p[mine] = self.own[place]
        return log_p

    def _anchors_among(self, own: Int[Tensor, " m"]) -> tuple[Tensor, Tensor]:
        """Places of those rows that are anchors, and which rows they are."""
        place = torch.searchsorted(self.anchors, own).clamp_max(len(self.anchors) - 1)
        mine = (self.anchors[place] == own).nonzero()[:, 0]
        return place[mine], mine

    def _judged(self, own: Tensor, rows: Tensor, near: Neighborhood) -> dict[str, Any]:
        assert self.whole.codes is not None
        codes, log_p = self.whole.codes[own], self.log_probs(own, rows, near)
        share, count = 1 / (len(self.anchors) + 1), log_p.shape[1]
        even = torch.full_like(log_p, math.log(share / count))
        sure = torch.logaddexp(log_p + math.log1p(-share), even)  # as label_noise does
        posterior = true_label_log_posterior(sure, codes, self.matrix)
        others = posterior.scatter(1, codes[:, None], -math.inf)
        best, suggested = others.max(1)
        checkable = self.counts[codes] > 1
        second, first = posterior.topk(2, dim=1).values.sort(1).values.unbind(1)
        worse = checkable & (_at(sure, suggested) > _at(sure, codes))
        weights = neighbor_log_weights(near.double(), self.ned.parameters_).softmax(1)
        shown, few = near.first(SHOWN_NEIGHBORS), worse.tolist()
        return {
            "row": own.tolist(),
            "given": codes.tolist(),
            "suggested": suggested.tolist(),
            "score": torch.where(checkable, others.logsumexp(1).exp().clamp_max(1), 0.0).tolist(),
            "lead": (best - _at(posterior, codes)).tolist(),
            "p_given": _at(log_p, codes).exp().tolist(),
            "p_suggested": _at(log_p, suggested).exp().tolist(),
            "worse": few,
            "ambiguous": (checkable & (first - second < math.log(AMBIGUOUS))).tolist(),
            "duplicate": (near.distances[:, 0] == 0).tolist(),
            "neighbors": _lists(shown.indices, few),
            "weights": _lists(weights[:, :SHOWN_NEIGHBORS], few),
            "distances": _lists(shown.distances, few),
        }


def streamed_labels(facts: StreamedFacts) -> LabelAudit:
    """The record of all labels, from the parts that were filled."""
    found, parts, n = facts.labels, facts.label_parts, facts.sets.support.count
    warn_of_few_named(found)
    suspects = _suspects(facts, parts, facts.ranked_suspects[:MOST_SUSPECTS])
    rows = torch.tensor([suspect.row for suspect in suspects], dtype=torch.long)
    new = torch.tensor([suspect.suggested for suspect in suspects], dtype=torch.long)
    effects = effects_of(facts, facts.sets.all_codes, rows, new) if len(rows) else ()
    unsure = np.concatenate(
        [part["row"][part["ambiguous"]] for part in parts.read("row", "ambiguous")]
    )
    every = n <= MOST_ROWS
    return LabelAudit(
        checked=n,
        how=facts.labels_by,
        suspects=suspects,
        effects=tuple(effects),
        rows=_rows(parts) if every else None,
        wrong=scaled(wrong_of(found.noise), n / len(facts.sets.codes), n),
        alike=alike_of(found.noise),
        ambiguous=Ambiguous(AMBIGUOUS, tuple(unsure.tolist()) if every else ()),
    )


def scaled(wrong: WrongLabels, scale: float, n: int) -> WrongLabels:
    """Counts of the anchors as counts of all rows."""
    if scale == 1:
        return wrong
    pairs = tuple(
        dataclasses.replace(p, count=p.count * scale, low=p.low * scale, high=p.high * scale)
        for p in wrong.pairs
    )
    how = f"estimated on a sample of the rows and scaled to all {n:,}: {wrong.how}"
    high = min(math.ceil(wrong.high * scale), n)
    return WrongLabels(round(wrong.count * scale), math.floor(wrong.low * scale), high, how, pairs)


def ranked_suspects(facts: StreamedFacts) -> list[int]:
    """Rows that the probabilities contradict: the higher score, the greater lead, the earlier."""
    scale = facts.sets.support.count / len(facts.sets.codes)
    kept = {"row": [], "score": [], "lead": []}  # type: dict[str, list[Any]]
    for part in facts.label_parts.read("row", "score", "lead", "worse"):
        for name in kept:
            kept[name].append(part[name][part["worse"]])
    row, score, lead = (np.concatenate(column) for column in kept.values())
    order = np.lexsort((row, -lead, -score))
    return row[order][: round(facts.labels.noise.wrong.total * scale)].tolist()


def _suspects(facts: Facts, parts: Parts, rows: list[int]) -> tuple[Suspect, ...]:
    """The record of each, with the query predictions that mending it would change."""
    found = dict[int, dict[str, Any]]()
    names = ("row", "id", "given", "suggested", "p_given", "p_suggested", "neighbors", "weights")
    for part in parts.read(*names, "distances", "score", rows=rows):
        for at, row in enumerate(part["row"].tolist()):
            found[row] = {name: column[at] for name, column in part.items()}
    if not rows:
        return ()
    new = torch.tensor([int(found[row]["suggested"]) for row in rows])
    changed = label_effects(facts.ned, facts.neighborhood, torch.tensor(rows), new).changed
    return tuple(
        Suspect(
            row=row,
            id=str(line["id"]),
            given=int(line["given"]),
            suggested=int(line["suggested"]),
            p_given=float(line["p_given"]),
            p_suggested=float(line["p_suggested"]),
            affected=int(affected),
            neighbors=tuple(line["neighbors"]),
            weights=tuple(line["weights"]),
            distances=tuple(line["distances"]),
            score=float(line["score"]),
        )
        for row, affected in zip(rows, changed.tolist(), strict=True)
        for line in (found[row],)
    )


def _rows(parts: Parts) -> LabelRows:
    names = ("id", "given", "suggested", "score", "p_given", "p_suggested")
    columns = {name: [] for name in names}  # type: dict[str, list[Any]]
    for part in parts.read(*names):
        for name in names:
            columns[name] += part[name].tolist()
    for name in ("p_given", "p_suggested"):
        columns[name] = significant(columns[name]).tolist()
    return LabelRows(**{name: tuple(column) for name, column in columns.items()})


def _lists(values: Tensor, wanted: list[bool]) -> list[list[Any] | None]:
    return [row if want else None for row, want in zip(values.tolist(), wanted, strict=True)]


def _at(values: Float[Tensor, "n c"], codes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    return values.gather(1, codes[:, None])[:, 0]
