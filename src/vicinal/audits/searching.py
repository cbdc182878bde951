"""The searches of an audit, of every set in the support and of the support in itself, in a space.

The space is chosen once on the support (:mod:`vicinal.confidence.ned.space`), and said in a
sentence. Where the map has looked at labels, the support's own rows are searched fold by fold, each
in a map fitted without them.

Where they are approximate, 1,000 support rows are searched exactly as well, in the same rows and
the same space; what differs between the two answers is measured on them (:func:`search_facts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from vicinal.audits.inputs import LabeledRows, Sets, warn
from vicinal.audits.record import SearchFacts
from vicinal.audits.sections import SpaceFacts
from vicinal.audits.settings import AuditSettings, Job
from vicinal.capture import ShardStore
from vicinal.checks import check_choice
from vicinal.confidence.ned.space import SpaceFit, fit_space
from vicinal.confidence.support import CrossFit, LabeledSupport
from vicinal.evaluation.calibration import expected_calibration_error
from vicinal.files import fingerprint, reading
from vicinal.labels import Labels, at_codes
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search import Search, make_search
from vicinal.neighbors.search.cost import PATIENCE, SAMPLE, exact_seconds
from vicinal.neighbors.search.lists import AGAIN, keep, kept
from vicinal.neighbors.search.protocol import ApproximateSearch, EffortSearch
from vicinal.neighbors.search.recall import Recall, drawn_rows, recall_of
from vicinal.neighbors.search.resumable import resumable_query

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts
    from vicinal.neighbors.search.on_ray import RaySearch


MEANING = {
    "raw": "as they came",
    "unit": "scaled to length 1",
    "centered-unit": "centered and scaled to length 1",
    "standardized": "with every column centered and divided by its standard deviation",
    "whitened": "whitened by the spread within classes",
    "learned": "in a linear map learned on the leave-one-out loss",
}


class Checked(NamedTuple):
    """Support rows whose neighbors were found, and searched exactly as well."""

    rows: Int[Tensor, " r"]
    found: Neighborhood
    exact: Neighborhood


@dataclass(eq=False)
class Searching:
    """Who asks: finished blocks stay in ``work``, and what was asked exactly in ``checked``."""

    support: LabeledRows
    job: Job
    fit: SpaceFit
    engine: Search = field(init=False)
    checked: list[Checked] = field(default_factory=list)
    title: str = ""  # of the engine that found the graph
    block: int | None = None  # rows asked at a time
    recalls: dict[str, Recall] = field(default_factory=dict)  # of other sets, by role

    def __post_init__(self) -> None:
        self.engine = self._made(self.support.rows)

    @property
    def settings(self) -> AuditSettings:
        return self.job.settings

    def nearest(self, role: str, rows: LabeledRows, k: int) -> Neighborhood:
        """Of the rows of another set: the query, calib or foreign ones.

        They may lie where lists find less than among the support: then the effort is raised again,
        and recall has one more value.
        """
        engine = self.engine
        if not engine.exact:
            some = drawn_rows(len(rows.rows), SAMPLE, self.settings.seed + 2)
            asked = cast(ApproximateSearch, engine)
            if isinstance(engine, EffortSearch):
                engine.reach(rows.rows[some[::2]], k)  # by one half; recall is the other's
                some = some[1::2] if len(some) > 1 else some
            true = asked.exactly(rows.rows[some], k)
            recall = self.recalls[role] = recall_of(engine.query(rows.rows[some], k), true)
            if recall.share + 2 * recall.error < self.settings.recall:
                warn(
                    f"rows of {role} lie otherwise than those of the support: {recall}, below "
                    f"--recall {self.settings.recall:g}. Pass a higher --recall, or --search exact."
                )
        return self._asked(engine, rows.rows, k, rows.fingerprint)

    def own(self, k: int, codes: Tensor) -> Neighborhood:
        """Of each support row among the others, itself left out by its index."""
        if self.fit.crossed is not None:
            return self.crossed(self.fit.crossed, k, codes)
        rows, numbers = self.support.rows, self.support.numbers
        found = self._asked(self.engine, rows, k, "support", numbers)
        self.title = self.engine.title
        self.check(k, found)
        return found

    def check(self, k: int, graph: Neighborhood | None) -> None:
        """Ask some support rows exactly as well; ``graph``: what was found for all of them, None
        where that was in other maps."""
        if not self.engine.exact:
            some = self._sample
            asked = cast(ApproximateSearch, self.engine)
            rows, out = self.support.rows[some], self.support.numbers[some]
            found = asked.query(rows, k, exclude=out) if graph is None else graph.rows(some)
            self.checked.append(Checked(some, found, asked.exactly(rows, k, exclude=out)))

    def crossed(self, cross: CrossFit, k: int, codes: Tensor) -> Neighborhood:
        """The same where the space has looked at labels: each fold among the others."""
        names = cross.fold.unique()

        def ask(others: Tensor, rows: Tensor, k: int, fold: int) -> Neighborhood:
            engine = self._made(others)
            found = self._asked(engine, rows, k, f"support {fold}")
            self.title = engine.title
            if not engine.exact:
                mine = (cross.fold == names[fold]).nonzero()[:, 0]
                rest = (cross.fold != names[fold]).nonzero()[:, 0]
                at = torch.isin(mine, self._sample).nonzero()[:, 0]
                distances, indices = cast(ApproximateSearch, engine).exactly(rows[at], k)
                exact = Neighborhood(distances, rest[indices])
                own = Neighborhood(found.distances[at], rest[found.indices[at]])
                self.checked.append(Checked(mine[at], own, exact))
            return found

        return cross.neighborhood(k, self.settings.metric, codes, ask)

    def labeled_support(self, labels: Labels, graph: Neighborhood) -> LabeledSupport:
        """The support with its labels and with what was found for its own rows."""
        space, crossed = self.fit.space, self.fit.crossed
        if crossed is not None:
            return LabeledSupport(self.engine, labels, space=space, crossed=crossed, honest=graph)
        kept = NeighborGraph(self.engine, graph.distances, graph.indices)
        return LabeledSupport(self.engine, labels, graph=kept, space=space)

    @property
    def _key(self) -> tuple[str, ...]:
        """What the questions are about."""
        return (self.support.fingerprint,)

    @property
    def _sample(self) -> Int[Tensor, " r"]:
        return drawn_rows(len(self.support.rows), SAMPLE, self.settings.seed + 1)

    def _made(self, rows: Tensor) -> Search:
        work, settings = self.job.work, self.settings
        if self.job.on is not None:
            return ray_search(self.job.on, settings).build(rows)
        name, metric, recall = settings.search, settings.metric, settings.recall
        shape = (len(rows), rows.shape[1])
        if work is None or name != "auto" or exact_seconds(*shape) < PATIENCE / 8:
            return make_search(name, metric, recall=recall, shape=shape).build(rows)
        key = fingerprint(self.support.fingerprint, *settings.searched, len(rows))[:16]
        decided = work / f"search-{key}"  # by the clock, so once for all runs
        if (held := kept(decided)) is not None:
            with reading(decided, AGAIN):
                name = held["search"]
                check_choice(name, "search", ("exact", "faiss"))
        made = make_search(name, metric, recall=recall, shape=shape).build(rows)
        keep(decided, {"search": "exact" if made.exact else "faiss"})
        return made

    def _asked(
        self, engine: Search, rows: Tensor, k: int, question: str, exclude: Any = None
    ) -> Neighborhood:
        store, title = None, "label audit" if question.startswith("support") else "neighbors"
        if self.job.work is not None:
            how = (*self.settings.searched, "" if engine.exact else engine.title)
            key = fingerprint(*self._key, question, *how, len(rows), k)
            facts = {"layers": ["distances", "indices"], "rows": len(rows), "k": k}
            store = ShardStore.open_for_writing(self.job.work / key[:16], facts)
        return resumable_query(
            engine, rows, k, exclude=exclude, store=store, progress=self.job.progress, title=title,
            block=self.block,
        ).cpu()  # fmt: skip


def ray_search(on: str, settings: AuditSettings) -> RaySearch:
    """A search in the processes of a cluster."""
    from vicinal.neighbors.search.on_ray import RaySearch

    return RaySearch(settings.metric, on=on, engine=settings.search, recall=settings.recall)


def space_of(settings: AuditSettings, sets: Sets, k: int) -> SpaceFit:
    """The space that the settings name, or the best; cosine distances are a space of their own."""
    if settings.space == "raw" or (settings.space == "fit" and settings.metric == "cosine"):
        return SpaceFit()
    labels = Labels(sets.classes, sets.codes)
    rows = sets.support.as_given
    return fit_space(settings.space, rows, labels, k=k, metric=settings.metric, temperature=None)


def space_facts(settings: AuditSettings, fit: SpaceFit) -> SpaceFacts:
    """The sentence: which space, and the held-out loss from raw rows to it."""
    name = fit.space.name
    how = f"rows are compared {MEANING[name]}"
    if settings.space != "fit":
        how += f" ({name}), as asked"
    elif settings.metric == "cosine":
        how = "rows are compared by direction alone, as --metric cosine asks"
    elif not fit.losses:
        how += ": too few labeled rows to choose another space"
    elif name == "raw":
        best = min(fit.losses, key=lambda other: fit.losses[other])
        how += f" (raw, held-out NLL {fit.losses['raw']:.3f}): no other space did better"
        if best != "raw":
            how += f" beyond noise (best: {best}, {fit.losses[best]:.3f})"
    elif "raw" not in fit.losses:
        how += f" ({name}, held-out NLL {fit.losses[name]:.3f}): raw rows are too large or small"
    else:
        how += (
            f" ({name}): on held-out support rows the neighbors' NLL falls from "
            f"{fit.losses['raw']:.3f} (raw) to {fit.losses[name]:.3f}"
        )
    return SpaceFacts(name, how, dict(fit.losses), cross_fitted=fit.crossed is not None)


def search_facts(facts: Facts) -> SearchFacts:
    """Which engine answered; what an approximate one has moved, on rows that were asked exactly."""
    engine, checked = facts.searching.engine, facts.searching.checked
    title = facts.searching.title or engine.title
    if not checked:
        return SearchFacts(title, exact=True, how=title)
    rows = torch.cat([part.rows for part in checked])
    exact = joined([part.exact for part in checked])
    found = joined([part.found for part in checked])
    recall, codes, voters = recall_of(found, exact), facts.sets.codes[rows], facts.support.voters
    before, after = (facts.ned.log_probs_of(near.labeled(voters)) for near in (exact, found))
    own, own_exact = (at_codes(log_p, codes) for log_p in (after, before))
    chance = own.isfinite() & own_exact.isfinite()
    worse = (own_exact - own)[chance]  # NLL row by row: found less exact
    lost = int((own.isinf() & own_exact.isfinite()).sum())
    nll, error = float(worse.mean()), float(worse.std()) / max(len(worse), 1) ** 0.5
    ece, was = (expected_calibration_error(p.exp(), codes) for p in (after, before))
    moved = _suspects_moved(facts, rows, after, before)
    others = facts.searching.recalls
    last = "".join(f"; {name}: {other}" for name, other in others.items())
    last += f"; {lost} lost the last neighbor of their class" if lost else ""
    return SearchFacts(
        engine=title,
        exact=False,
        recall=recall.share,
        recall_se=recall.error,
        k=recall.k,
        rows=recall.rows,
        nll_moved=nll,
        nll_moved_se=error,
        ece_moved=ece - was,
        suspects_moved=moved,
        lost=lost,
        recalls={name: other.share for name, other in others.items()},
        wanted=facts.settings.recall,
        how=f"{title}, {recall}; NLL moved by {nll:.4f} ± {error:.4f}, ECE by {ece - was:.4f}, "
        f"{moved} of these rows changed sides between suspect and not{last}",
    )


def _suspects_moved(facts: Facts, rows: Tensor, *answers: Tensor) -> int:
    """How many of these rows are suspects by one answer of their neighbors and not by the other."""
    from vicinal.audits.suspects import class_log_probs, scored_labels

    flags = torch.zeros(2, len(facts.sets.codes), dtype=torch.bool)
    for flag, log_ned in zip(flags, answers, strict=True):
        logs = facts.support_classes.clone()
        logs[rows] = class_log_probs(log_ned, facts.linear.support[rows], facts.support_blend)
        flag[scored_labels(logs, facts.sets.codes).suspects] = True
    return int((flags[0] != flags[1])[rows].sum())
