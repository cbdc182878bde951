"""The facts of an audit of rows that are not all in memory: every row is judged, into parts.

What the sections read is that of an audit in memory, on anchors and the query's sample; what is
said of single labels, or counted, comes from the parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vicinal.audits import sampled
from vicinal.audits.facts import Facts
from vicinal.audits.parts import Parts, Run
from vicinal.audits.sampled import anchors_head
from vicinal.audits.search_record import Scale
from vicinal.audits.streamed_rows import CaseJudge, LabelJudge, ranked_suspects, streamed_labels
from vicinal.confidence.verdicts import VERDICTS
from vicinal.files import fingerprint

PART = 8  # of the memory one share for the rows that are judged, with what is said of them
ROW = 3 << 10  # bytes of what is said of a row


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
        loss = -self.support_log_probs.gather(1, self.sets.codes[:, None])[:, 0]
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
