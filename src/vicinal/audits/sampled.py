"""The facts of an audit whose support is not in memory: fitted on anchors, searched in all rows.

Anchors are a seeded sample of the support's rows, every class among them. They take the place of
the support wherever something is fitted: the space, the linear head, what is said leave-one-out.
Their neighbors, like the query's, are found among *all* rows. Where every row is an anchor, all
numbers are those of an audit in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.audits.facts import Facts, split_of
from vicinal.audits.fitted_space import most_neighbors, space_facts, space_of
from vicinal.audits.inputs import DEFAULT_K, LabeledRows, Sets, ready_sets, usable_k
from vicinal.audits.linear_view import sample
from vicinal.audits.searching import Searching
from vicinal.audits.settings import About, AuditSettings
from vicinal.capture import ShardStore
from vicinal.capture.sources import Rows
from vicinal.checks import check_k
from vicinal.confidence.ned.space import SpaceFit
from vicinal.confidence.support import CrossFit, LabeledSupport
from vicinal.files import fingerprint
from vicinal.labels import Labels
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search import Search
from vicinal.neighbors.search.resumable import Progress, resumable_query
from vicinal.neighbors.search.sharded import Mapped, Source, rows_at

ANCHORS = 50_000  # rows that everything is fitted on
PASS = 1 << 15  # queries that one reading of the support answers
READ = 1 << 14  # rows read at a time
Kept = Callable[[str, int], ShardStore | None]


@dataclass(frozen=True, eq=False)
class Whole:
    """All of a set: where its rows are, and their class codes; ``some`` are those in memory."""

    rows: Rows
    codes: Int[Tensor, " n"] | None
    fingerprint: str
    some: Int[Tensor, " s"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sampled(self) -> bool:
        return len(self.some) < len(self)


class SampledSupport(LabeledSupport):
    """A support of which anchors are in memory; its search, and the labels it votes with, are
    those of all rows."""

    def __init__(
        self,
        search: Search,
        labels: Labels,
        everyone: Int[Tensor, " n"],
        sets: Sets,
        graph: Neighborhood,
        fit: SpaceFit,
    ) -> None:
        whole = len(everyone) == len(labels.codes)
        super().__init__(
            search, labels, torch.arange(len(everyone)), space=fit.space,
            crossed=fit.crossed if whole else None,  # it searches among its own rows alone
        )  # fmt: skip
        self.everyone, self.anchors, self.own = everyone, sets.support.rows, graph
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


def whole_set(rows: Rows, codes: Tensor | None, most: int, seed: int) -> Whole:
    """A set with the rows of it that will be in memory, and the checksum of all."""
    n = len(rows)
    if codes is not None:
        some = sample(codes.clamp_min(0), most, seed)
    else:
        order = np.random.default_rng(seed).permutation(n)[:most]
        some = torch.from_numpy(np.sort(order))
    return Whole(rows, codes, checksum(rows), some)


def checksum(rows: Rows) -> str:
    """Of all rows, read once; where one is not finite, this is where it is said."""
    parts = [fingerprint(block) for _, block in rows.blocks(READ)]
    return fingerprint(*parts)[:12]


def sampled_sets(
    support: Whole, query: Whole | None, settings: AuditSettings, about: About, rest: dict[str, Any]
) -> tuple[Sets, About]:
    """The rows in memory as an audit's sets; their ids are those of their places in the files."""
    given = {"support": support, "query": query}
    pairs: dict[str, Any] = {"support": None, "query": None}
    names: dict[str, Any] = {}
    for role, whole in given.items():
        if whole is not None:
            z, y = rows_at(whole.rows, whole.some, READ), whole.rows.labels()
            pairs[role] = z if y is None else (z, y[whole.some.numpy()])
            names[f"{role}_ids"] = ids_of(whole, whole.some)
    if query is None:
        names["query_ids"] = names["support_ids"]
    about = replace(about, **names)
    sets = ready_sets(
        pairs["support"], pairs["query"], rest.get("calib"), settings, about, rest.get("foreign")
    )
    return sets, about


def ids_of(whole: Whole, rows: Int[Tensor, " m"]) -> tuple[str, ...]:
    """What some rows are called, block by block of the files."""
    names = dict[int, str]()
    for start in sorted({int(row) // READ * READ for row in rows.tolist()}):
        stop = min(start + READ, len(whole))
        block = whole.rows.ids(start, stop)
        mine = rows[(rows >= start) & (rows < stop)].tolist()
        names |= {row: block[row - start] for row in mine}
    return tuple(names[row] for row in rows.tolist())


def compared(rows: Rows, settings: AuditSettings) -> Source:
    """The rows as they are given to heads, before the space."""
    return Mapped(rows, unit_rows) if settings.normalize else rows


Make = Callable[[Source, str], Search]  # of rows that bear this name


def sampled_facts(
    support: Whole,
    sets: Sets,
    settings: AuditSettings,
    about: About,
    engines: tuple[Make, Make],
    work: str | Path | None,
    progress: Progress | None,
) -> Facts:
    """Choose the space on the anchors, search them and the query among all rows, and split.

    ``engines``: who searches all rows, and who does so exactly.
    """
    assert support.codes is not None
    fit, k = space_and_k(support, sets, settings)
    sets, everyone, given = sets.mapped(fit.space), support.codes, compared(support.rows, settings)

    def ask(search: Search, rows: Tensor, question: str, out: Tensor | None = None) -> Neighborhood:
        store = None
        if work is not None:
            how = fit.space.name, "" if search.exact else search.title
            key = fingerprint(support.fingerprint, question, *settings.searched, *how, k)
            facts = {"layers": ["distances", "indices"], "rows": len(rows), "k": k}
            store = ShardStore.open_for_writing(Path(work) / key[:16], facts)
        return resumable_query(
            search, rows, k, exclude=out, store=store, progress=progress, block=PASS
        ).labeled(everyone)

    crossed = None
    if fit.crossed is not None:
        crossed = new_to_the_map(fit.crossed, support, sets.codes, given, engines[1], ask, k)
    key = fingerprint(support.fingerprint, fit.space.name, settings.normalize, *settings.searched)
    search = engines[0](Mapped(given, fit.space), key[:16])
    asked = Searching(sets.support, settings, work, progress, lambda rows: search)

    def nearest(role: str, some: LabeledRows | None) -> Neighborhood | None:
        if some is None:
            return None
        asked.prepare(role, some, k)
        return ask(search, some.rows, some.fingerprint)

    graph = crossed
    if graph is None:
        graph = ask(search, sets.support.rows, f"anchors {len(support.some)}", support.some)
    asked.check(k, support.some, None if fit.crossed else graph)
    query = graph if sets.leave_one_out else nearest("query", sets.query)
    assert query is not None
    calib, foreign = nearest("calib", sets.calib), nearest("foreign", sets.foreign)
    held = SampledSupport(search, Labels(sets.classes, sets.codes), everyone, sets, graph, fit)
    split = split_of(sets, query, graph, calib, settings.seed)
    said = space_facts(settings, fit)
    return Facts(sets, settings, about, None, held, graph, query, split, None, said, asked, foreign)


def space_and_k(support: Whole, sets: Sets, settings: AuditSettings) -> tuple[SpaceFit, int]:
    """The space that the anchors choose, and how many neighbors vote."""
    k = settings.k or min(DEFAULT_K, len(support) - 1)
    if support.sampled:
        check_k(k, len(support) - 1, "k", "the support")
    else:
        k = usable_k(settings, sets)
    fit = space_of(settings, sets, k)
    if fit.crossed is not None and not support.sampled and settings.k is None:
        k = min(k, most_neighbors(fit.crossed))
    return fit, k


def new_to_the_map(
    cross: CrossFit,
    support: Whole,
    codes: Int[Tensor, " a"],
    given: Source,
    exactly: Make,
    ask: Callable[[Search, Tensor, str, Tensor], Neighborhood],
    k: int,
) -> Neighborhood:
    """Anchors among all rows where the space has looked at labels: each fold in a map fitted to the
    others. Where every row is an anchor, as in memory: among the rows of the other folds."""
    if not support.sampled:
        return cross.neighborhood(k, exactly(given, "").metric, codes).labeled(codes)
    parts, order = [], []
    for f in cross.fold.unique().tolist():
        mine, rest = ((cross.fold == f).nonzero()[:, 0], (cross.fold != f).nonzero()[:, 0])
        space = cross.form(cross.rows[rest], codes[rest])
        search = exactly(Mapped(given, space), "")
        own = support.some[mine]
        parts.append(ask(search, space(cross.rows[mine]), f"fold {f} of {len(support.some)}", own))
        order.append(mine)
    return joined(parts).rows(torch.cat(order).argsort())
