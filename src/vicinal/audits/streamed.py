"""The facts of an audit of rows that are not all in memory: every row is judged, into parts.

What the sections read is that of an audit in memory, on anchors and the query's sample; what is
said of single labels, or counted, comes from the parts. Verdicts are those of the head that is
kept; rows of the sample that the heads were compared on were judged out of fold, and stay as they
were. What :mod:`vicinal.confidence.label_noise` estimates of the classes (the noise matrix, how
many labels are wrong) is estimated on the anchors, and counts are scaled to all rows; what it says
of a row is said of every row. As many rows as are estimated to be wrong are suspects.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits import sampled
from vicinal.audits.facts import Facts
from vicinal.audits.files import TOP_NEIGHBORS
from vicinal.audits.label_records import LabelRows
from vicinal.audits.parts import JUDGED, Columns, Parts, Run, joined
from vicinal.audits.record import Scale, significant
from vicinal.audits.sampled import READ, Whole, anchors_head
from vicinal.audits.suspects import SHOWN_NEIGHBORS, JudgedLabels, class_log_probs
from vicinal.checks import as_tensor
from vicinal.confidence.head import TrustHead
from vicinal.confidence.label_noise import never_zero, row_noise
from vicinal.confidence.ned.posterior import neighbor_log_weights
from vicinal.confidence.verdicts import VERDICTS
from vicinal.files import fingerprint
from vicinal.labels import at_codes
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.neighborhood import joined as joined_lists

PART = 8  # of the memory one share for the rows that are judged, with what is said of them
ROW = 3 << 10  # bytes of what is said of a row
MOST_SUSPECTS = 10_000  # in the record, on the page and in suspects.csv
MOST_ROWS = 200_000  # in the record and in labels.csv


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
            "predicted": [codes[label] for label in out.label.tolist()],
            "confidence": out.confidence.tolist(),
            "credibility": out.credibility.tolist(),
            "near_percentile": out.near_percentile.tolist(),
            "familiarity": out.familiarity.tolist(),
            "linear_share": [None] * len(rows) if share is None else share.tolist(),
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


class LabelJudge:
    """What is said of the labels of rows ``start`` to ``stop`` of the support.

    Of a support without a query every row has its verdict beside, by the same neighbors.
    """

    def __init__(self, facts: Facts) -> None:
        whole = facts.sets.support.whole
        assert whole is not None
        self.cases = CaseJudge(facts, whole) if facts.sets.leave_one_out else None
        self.ned, self.k = facts.ned, facts.graph.k
        self.whole, self.anchors, self.graph = whole, whole.some, facts.graph
        self.own, self.matrix = facts.support_classes, facts.labels.noise.matrix
        self.codes = facts.sets.all_codes
        self.counts = torch.bincount(self.codes, minlength=len(facts.sets.classes))
        self.blend, self.linear = facts.support_blend, facts.linear.head

    def __call__(self, start: int, stop: int) -> Columns:
        """The columns of a part; neighbors only where the probabilities contradict the label."""
        rows = torch.cat([block for _, block in self.whole.source.blocks(JUDGED, start, stop)])
        own = torch.arange(start, stop)
        near = self._neighbors(own, rows)
        blocks = own.split(JUDGED), rows.split(JUDGED), near.blocks(JUDGED)
        columns = {
            "id": self.whole.rows.ids(start, stop),
            **joined(list(map(self._judged, *blocks))),
        }
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
        log_linear = torch.from_numpy(self.linear.predict_log_proba(rows.numpy()))
        log_p = class_log_probs(log_p, log_linear, self.blend)
        place, mine = self._anchors_among(own)
        log_p[mine] = self.own[place]
        return log_p

    def _anchors_among(self, own: Int[Tensor, " m"]) -> tuple[Tensor, Tensor]:
        """Places of those rows that are anchors, and which rows they are."""
        place = torch.searchsorted(self.anchors, own).clamp_max(len(self.anchors) - 1)
        mine = (self.anchors[place] == own).nonzero()[:, 0]
        return place[mine], mine

    def _judged(self, own: Tensor, rows: Tensor, near: Neighborhood) -> dict[str, Any]:
        codes, log_p = self.codes[own], self.log_probs(own, rows, near)
        sure = never_zero(log_p, len(self.anchors))
        noise = row_noise(sure, codes, self.matrix, self.counts[codes] > 1)
        weights = neighbor_log_weights(near.double(), self.ned.parameters_).softmax(1)
        shown, few = near.first(SHOWN_NEIGHBORS), noise.worse.tolist()
        return {
            "row": own.tolist(),
            "given": codes.tolist(),
            "suggested": noise.suggested.tolist(),
            "score": noise.score.tolist(),
            "lead": noise.lead.tolist(),
            "p_given": at_codes(log_p, codes).exp().tolist(),
            "p_suggested": at_codes(log_p, noise.suggested).exp().tolist(),
            "worse": few,
            "ambiguous": noise.ambiguous.tolist(),
            "duplicate": (near.distances[:, 0] == 0).tolist(),
            "neighbors": _lists(shown.indices, few),
            "weights": _lists(weights[:, :SHOWN_NEIGHBORS], few),
            "distances": _lists(shown.distances, few),
        }


def _lists(values: Tensor, wanted: list[bool]) -> list[list[Any] | None]:
    return [row if want else None for row, want in zip(values.tolist(), wanted, strict=True)]


def streamed_labels(facts: StreamedFacts) -> JudgedLabels:
    """What the parts hold of the worst rows, and of every row where these are not too many."""
    parts, rows = facts.label_parts, facts.ranked_suspects[:MOST_SUSPECTS]
    found = parts.columns(
        "row", "id", "given", "suggested", "p_given", "p_suggested", "neighbors", "weights",
        "distances", "score", rows=rows,
    )  # fmt: skip
    place = {row: at for at, row in enumerate(found["row"])}
    suspects = {name: [column[place[row]] for row in rows] for name, column in found.items()}
    if facts.sets.support.count > MOST_ROWS:
        return JudgedLabels(suspects, None, ())
    every = parts.columns("id", "given", "suggested", "score", "p_given", "p_suggested")
    for name in ("p_given", "p_suggested"):
        every[name] = significant(every[name]).tolist()
    unsure = parts.columns("row", "ambiguous")
    rows = list(itertools.compress(unsure["row"], unsure["ambiguous"]))
    kept = LabelRows(**{name: tuple(column) for name, column in every.items()})
    return JudgedLabels(suspects, kept, tuple(rows))


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


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedFacts(Facts):
    """``run`` judges spans of rows into parts, which lie where the job works."""

    run: Run
    memory: int
    work_stays: bool

    judged_labels = cached_property(streamed_labels)
    head = cached_property(anchors_head)
    ranked_suspects = cached_property(ranked_suspects)

    @cached_property
    def label_parts(self) -> Parts:
        """Every label; without a query its verdict beside it."""
        return self._filled("labels", LabelJudge(self), "label audit")

    @cached_property
    def case_parts(self) -> Parts | None:
        """Every row of the query, where it is only sampled."""
        whole = self.sets.query.whole
        if self.sets.leave_one_out or whole is None or not whole.sampled:
            return None
        return self._filled("samples", CaseJudge(self, whole), "verdicts")

    def _filled(self, table: str, judge: LabelJudge | CaseJudge, title: str) -> Parts:
        classes, width = len(self.sets.classes), self.sets.support.as_given.shape[1]
        each = 96 * self.graph.k + 48 * classes + 16 * width + ROW
        size = max(256, min(self.memory // PART // each, sampled.PASS))
        assert self.job.work is not None
        parts = Parts(self.job.work / f"{table}-{self._key}-{size}", len(judge.whole), size)
        parts.fill(judge, self.run, self.job.progress, title)
        return parts

    @cached_property
    def _key(self) -> str:
        """What the parts of a stopped run must have been made from to be gone on with."""
        sets, search = self.sets, self.support.search
        wholes = [sets.support.whole, None if sets.leave_one_out else sets.query.whole]
        held = [whole for whole in wholes if whole is not None]
        beside = [rows.fingerprint for rows in (sets.calib, sets.foreign) if rows is not None]
        return fingerprint(
            *(whole.fingerprint for whole in held),
            *(whole.codes for whole in held if whole.codes is not None),
            *beside, len(held[0].some), *map(str, dataclasses.astuple(self.settings)),
            repr(self.ned.parameters_), self.shown, self.space.name,
            "" if search.exact else search.title,
        )[:16]  # fmt: skip

    @property
    def equal_support_rows(self) -> int:
        return sum(int(part["duplicate"].sum()) for part in self.label_parts.read("duplicate"))

    @property
    def parts(self) -> dict[str, Path]:
        return self._named_parts if self.work_stays else {}

    @property
    def _named_parts(self) -> dict[str, Path]:
        """What the files are called in the folder of a run."""
        tables = {"labels": self.label_parts, "samples": self.case_parts}
        return {
            f"{table}-{at:05d}.parquet": path
            for table, parts in tables.items()
            if parts is not None
            for at, path in enumerate(parts.paths)
        }

    @property
    def scale(self) -> Scale:
        """The sums over all parts, and the sentence with the sampling error."""
        labels, own, asked = self.label_parts, self.sets.support, self.sets.query
        verdicts: Iterable[str] = self.cases.verdict
        if judged := labels if self.sets.leave_one_out else self.case_parts:
            verdicts = (word for part in judged.read("verdict") for word in part["verdict"])
        counts = Counter(verdicts)
        return Scale(
            how=self._how(),
            search=str(self.support.search.title),
            support_rows=own.count,
            anchors=len(own.rows),
            query_rows=asked.count,
            query_sample=len(asked.rows),
            verdicts={verdict: counts[verdict] for verdict in VERDICTS},
            suspects=len(self.ranked_suspects),
            ambiguous=sum(int(part["ambiguous"].sum()) for part in labels.read("ambiguous")),
            memory=self.memory,
            parts=tuple(self._named_parts),
        )

    def _how(self) -> str:
        loss = -at_codes(self.support_log_probs, self.sets.codes)
        n, anchors = self.sets.support.count, len(self.sets.support.rows)
        error = float(loss.std()) / math.sqrt(anchors) * math.sqrt(1 - anchors / n)
        how = (
            f"everything is fitted on {anchors:,} of {n:,} support rows, each searched among all "
            f"of them (leave-one-out NLL {float(loss.mean()):.4f} ± {error:.4f} by sampling); "
            "every label is judged"
        )
        alone, query = self.sets.leave_one_out, self.sets.query
        if query.sampled and not alone:
            how += (
                f"; heads are compared on {len(query.rows):,} of {query.count:,} query rows, and "
                "every row has its verdict from the head that is kept"
            )
        if self.sets.support.sampled:
            how += ", and has its verdict leave-one-out from the head that is kept" if alone else ""
            how += f"; trust.vic stands on the {anchors:,} rows alone, and is fitted anew to them"
        return how + "."
