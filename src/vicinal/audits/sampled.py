"""The facts of an audit whose support is not in memory: fitted on anchors, searched in all rows.

Anchors are a seeded sample of the support's rows, every class among them. They take the place of
the support wherever something is fitted: the space, the linear head, what is said leave-one-out.
Their neighbors, like the query's, are found among *all* rows. Where every row is an anchor, all
numbers are those of an audit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.facts import Facts
from vicinal.audits.inputs import Sets, ready_sets
from vicinal.audits.linear_view import sample
from vicinal.audits.recommend import made_from
from vicinal.audits.searching import Searching
from vicinal.audits.settings import Job
from vicinal.capture.sources import Rows
from vicinal.confidence.head import TrustHead
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.space import SpaceFit
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.support import CrossFit, LabeledSupport
from vicinal.files import fingerprint
from vicinal.labels import Labels
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search import Search, make_search
from vicinal.neighbors.search.sharded import Mapped, Source, rows_at

READ = 1 << 14  # rows read at a time
ANCHORS = 50_000  # rows that everything is fitted on
PASS = 1 << 15  # queries that one reading of the support answers
Make = Callable[[Source, str], Search]  # of rows that bear this name


@dataclass(frozen=True, eq=False)
class Whole:
    """Rows in blocks and their class codes; ``some`` are those in memory, ``source`` the rows as
    heads are given them, before the space."""

    rows: Rows
    codes: Int[Tensor, " n"] | None
    fingerprint: str
    some: Int[Tensor, " s"]
    source: Source

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sampled(self) -> bool:
        return len(self.some) < len(self)

    def names(self, rows: Sequence[int]) -> tuple[str, ...]:
        """What some rows are called, block by block of the files."""
        found = dict[int, str]()
        for start in sorted({row // READ * READ for row in rows}):
            stop = min(start + READ, len(self))
            block = self.rows.ids(start, stop)
            found |= {row: block[row - start] for row in rows if start <= row < stop}
        return tuple(found[row] for row in rows)


def whole_set(rows: Rows, codes: Tensor | None, most: int, seed: int, normalize: bool) -> Whole:
    """A set with the rows of it that will be in memory, and the checksum of all."""
    if codes is not None:
        some = sample(codes.clamp_min(0), most, seed)
    else:
        order = np.random.default_rng(seed).permutation(len(rows))[:most]
        some = torch.from_numpy(np.sort(order))
    source = Mapped(rows, unit_rows) if normalize else rows
    return Whole(rows, codes, checksum(rows), some, source)


def checksum(rows: Rows) -> str:
    """Of all rows, read once; where one is not finite, this is where it is said."""
    return fingerprint(*(fingerprint(block) for _, block in rows.blocks(READ)))[:12]


class SampledSupport(LabeledSupport):
    """A support of which anchors are in memory; its search, and the labels it votes with, are
    those of all rows."""

    def __init__(
        self,
        search: Search,
        labels: Labels,
        everyone: Int[Tensor, " n"],
        anchors: Float[Tensor, "a d"],
        graph: Neighborhood,
        fit: SpaceFit,
    ) -> None:
        whole = len(everyone) == len(labels.codes)
        super().__init__(
            search, labels, torch.arange(len(everyone)), space=fit.space,
            crossed=fit.crossed if whole else None,  # it searches among its own rows alone
        )  # fmt: skip
        self.everyone, self.anchors, self.own = everyone, anchors, graph
        self.anchors_crossed = fit.crossed

    @property
    def rows(self) -> Float[Tensor, "a d"]:
        return self.anchors

    def labeled_rows(self, places: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        return self.anchors[places]

    @property
    def voters(self) -> Int[Tensor, " n"]:
        return self.everyone

    def query(self, x: Float[Tensor, "m d"], k: int) -> Neighborhood:
        return self.search.query(self.space(x), k).cpu().labeled(self.everyone)

    def leave_one_out(self, k: int) -> Neighborhood:
        """Of the anchors, each among all other rows."""
        return self.own.first(min(k, self.own.k))

    def unreachable(self, k: int) -> NDArray[np.int64]:
        theirs, own = self.leave_one_out(k).labels, self.labels.codes
        return (~(theirs == own[:, None]).any(1)).nonzero()[:, 0].numpy()


@dataclass(eq=False, kw_only=True)
class SearchingAll(Searching):
    """The same where anchors stand for the support: every question is asked among all rows.

    ``engines``: who searches all rows, and who does so exactly.
    """

    engines: tuple[Make, Make]

    @property
    def whole(self) -> Whole:
        assert self.support.whole is not None
        return self.support.whole

    @property
    def _key(self) -> tuple[str, ...]:
        return self.whole.fingerprint, str(self.settings.normalize), self.fit.space.name

    def _made(self, rows: Tensor) -> Search:
        key = fingerprint(*self._key, *self.settings.searched)
        return self.engines[0](Mapped(self.whole.source, self.fit.space), key[:16])

    def crossed(self, cross: CrossFit, k: int, codes: Tensor) -> Neighborhood:
        """Each fold in a map fitted to the others; where every row is an anchor, as in memory:
        among the rows of the other folds."""
        own, exactly = self.support.numbers, self.engines[1]
        if not self.whole.sampled:
            graph = cross.neighborhood(k, self.settings.metric, codes)
        else:
            parts, order = [], []
            for f in cross.fold.unique().tolist():
                mine, rest = (cross.fold == f).nonzero()[:, 0], (cross.fold != f).nonzero()[:, 0]
                space = cross.form(cross.rows[rest], codes[rest])
                search = exactly(Mapped(self.whole.source, space), "")
                rows = space(cross.rows[mine])
                parts.append(self._asked(search, rows, k, f"support {f}", own[mine]))
                order.append(mine)
            graph = joined(parts).rows(torch.cat(order).argsort())
        self.check(k, None)
        return graph

    def labeled_support(self, labels: Labels, graph: Neighborhood) -> LabeledSupport:
        assert self.whole.codes is not None
        anchors = self.support.rows
        return SampledSupport(self.engine, labels, self.whole.codes, anchors, graph, self.fit)


def sampled_sets(
    support: Whole, query: Whole | None, job: Job, rest: dict[str, Any]
) -> tuple[Sets, Job]:
    """The rows in memory as an audit's sets; their ids are those of their places in the files."""
    pairs, names = dict[str, Any](), dict[str, Any]()
    for role, whole in {"support": support, "query": query}.items():
        if whole is not None:
            z, y = rows_at(whole.rows, whole.some, READ), whole.rows.labels()
            pairs[role] = z if y is None else (z, y[whole.some.numpy()])
            names[f"{role}_ids"] = whole.names(whole.some.tolist())
    if query is None:
        names["query_ids"] = names["support_ids"]
    job = replace(job, about=replace(job.about, **names))
    sets = ready_sets(
        pairs["support"], pairs.get("query"), rest.get("calib"), job.settings, job.about,
        rest.get("foreign"),
    )  # fmt: skip
    own, asked = replace(sets.support, whole=support), replace(sets.query, whole=query or support)
    return replace(sets, support=own, query=asked), job


def anchors_head(facts: Facts) -> TrustHead:
    """The head that is kept: its support are the anchors, named by their row in the files.

    Fewer rows lie farther apart, so nothing that was fitted among all rows holds among the anchors:
    temperature, sharpness, background, the linear part's weight, threshold and standards are found
    anew there, on the same held-out rows. The space and the linear part were the anchors' already.
    """
    sets, settings, rows = facts.sets, facts.settings, facts.sets.support.rows
    shape = (len(rows), rows.shape[1])
    search = make_search(settings.search, settings.metric, recall=settings.recall, shape=shape)
    labels = Labels(sets.classes, sets.codes)
    own = cast(SampledSupport, facts.support)
    held = LabeledSupport(
        search.build(rows),
        labels,
        sets.support.numbers,
        space=own.space,
        crossed=own.anchors_crossed,
    )
    ned = NEDClassifier(
        k=min(facts.graph.k, len(rows)), prior=settings.prior, metric=settings.metric,
        search=settings.search,
    )  # fmt: skip
    if facts.shown != "ned":
        ned.set_params(sharpness="fit", background="fit", bandwidth="class")
    ned.fit_support(held)
    model: NEDClassifier | NEDLinear = ned
    if isinstance(facts.kept, NEDLinear):
        both, blend = NEDLinear(), facts.kept.blend_
        if facts.shown != "ned_linear":  # the linear part alone: its weight needs no neighbors
            both = NEDLinear(weights=(blend.neighbors, blend.linear), background=blend.background)
        model = both.fit_parts(ned, facts.linear.head)
    head = TrustHead.of(
        model,
        held_out_rows(sets),
        target_accuracy=facts.promise.target,
        unfamiliar=settings.unfamiliar,
    )
    made = made_from(facts)
    if sets.support.sampled:
        made = replace(made, sample_of=sets.support.count)
    return TrustHead(head.model, head.standards, made)


def held_out_rows(sets: Sets) -> tuple[Any, Any] | None:
    """What standards are set by: labeled calib rows, or those of the query; or none."""
    given = sets.calib or (None if sets.leave_one_out else sets.query)
    if given is None or given.codes is None or int((given.codes >= 0).sum()) < 4:
        return None
    known = given.codes >= 0
    return given.as_given[known], sets.classes[given.codes[known].numpy()]
