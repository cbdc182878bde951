"""What the sections of an audit share: the sets, their neighbors, the folds, every head's answer.

Two searches, of the query in the support and of the support in itself, feed everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.audits.cases import CaseVerdicts, crowding_of, verdicts_of, weights_of
from vicinal.audits.folds import Split, split_of
from vicinal.audits.heads import HEADS, RECIPES, Answer, Task, best_vote_k
from vicinal.audits.inputs import About, AuditSettings, LabeledRows, Sets, usable_k, warn
from vicinal.audits.model import ModelFacts
from vicinal.audits.scoring import Scored
from vicinal.audits.suspects import Contradictions, contradictions
from vicinal.capture import ShardStore
from vicinal.checks import InputError
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.support import LabeledSupport
from vicinal.files import fingerprint
from vicinal.labels import UNKNOWN, Labels
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import make_search
from vicinal.neighbors.search.resumable import Progress, resumable_query


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything a section may read. ``scored`` is empty where the query has no labels.

    ``shown`` names the NED form whose neighbors are the evidence on the page; ``weights`` and
    ``verdicts`` are its, out of fold. ``ned`` is the same form fitted on all held-out rows.
    """

    sets: Sets
    settings: AuditSettings
    about: About
    model: ModelFacts | None
    neighborhood: Neighborhood  # of the query in the support
    graph: Neighborhood  # of each support row among the others
    split: Split
    task: Task
    answers: dict[str, Answer]
    scored: dict[str, Scored]
    shown: str
    ned: NEDClassifier
    weights: Float[Tensor, "m k"]
    verdicts: CaseVerdicts
    suspects: Contradictions

    @property
    def answer(self) -> Answer:
        return self.answers[self.shown]

    @property
    def score(self) -> Scored | None:
        return self.scored.get(self.shown)

    @property
    def threshold(self) -> float:
        """The confidence that keeps the target accuracy; infinite where none can be shown to."""
        return math.inf if self.score is None else self.score.threshold.threshold

    @property
    def support_ids(self) -> tuple[str, ...]:
        return tuple(self.about.support_ids or map(str, range(len(self.sets.codes))))


class Searched(NamedTuple):
    """The support in its search with its leave-one-out graph, and the neighbors of the sets."""

    support: LabeledSupport
    graph: Neighborhood
    query: Neighborhood
    calib: Neighborhood | None


def gather(
    sets: Sets,
    logits: Any,
    model: ModelFacts | None,
    settings: AuditSettings,
    about: About,
    work: str | Path | None,
    progress: Progress | None,
) -> Facts:
    """Search, split, ask every head, judge every row."""
    found = searched(sets, settings, work, progress)
    split = split_of(sets, found.query, found.graph, found.calib, settings.seed)
    task = task_of(sets, found, split, logits, settings)
    answers = answers_of(task, sets.leave_one_out)
    scored = scored_of(answers, sets.query, settings.target_accuracy)
    shown = best_of({name: scored[name] for name in RECIPES if name in scored})
    answer, score = answers[shown], scored.get(shown)
    ned = kept_ned(found.support, shown, split, settings)
    return Facts(
        sets=sets,
        settings=settings,
        about=about,
        model=model,
        neighborhood=found.query,
        graph=found.graph,
        split=split,
        task=task,
        answers=answers,
        scored=scored,
        shown=shown,
        ned=ned,
        weights=weights_of(answer, split.folds),
        verdicts=verdicts_of(
            answer,
            split.folds,
            math.inf if score is None else score.threshold.threshold,
            settings.target_accuracy,
            sets.names,
            crowding_of(model, found.query.size),
        ),
        suspects=contradictions(found.graph, sets.codes, len(sets.classes), ned.parameters_),
    )


def searched(
    sets: Sets, settings: AuditSettings, work: str | Path | None, progress: Progress | None
) -> Searched:
    """The searches; with ``work``, finished blocks stay there and a stopped one goes on."""
    k, codes = usable_k(settings, sets), sets.codes
    search = make_search(settings.search, settings.metric).build(sets.support.rows)

    def nearest(rows: LabeledRows, title: str, exclude: Tensor | None = None) -> Neighborhood:
        store = None
        if work is not None:
            both = (sets.support.fingerprint, rows.fingerprint)
            key = fingerprint(settings.metric, settings.search, *both, k, exclude is None)
            facts = {"layers": ["distances", "indices"], "rows": len(rows.rows), "k": k}
            store = ShardStore.open_for_writing(Path(work) / key[:16], facts)
        found = resumable_query(
            search, rows.rows, k, exclude=exclude, store=store, progress=progress, title=title
        )
        return found.cpu().labeled(codes)

    graph = nearest(sets.support, "label audit", torch.arange(len(codes)))
    kept = NeighborGraph(search, graph.distances, graph.indices)
    support = LabeledSupport(search, Labels(sets.classes, codes), graph=kept)
    query = graph if sets.leave_one_out else nearest(sets.query, "neighbors")
    calib = None if sets.calib is None else nearest(sets.calib, "neighbors")
    return Searched(support, graph, query, calib)


def task_of(
    sets: Sets, found: Searched, split: Split, logits: Any, settings: AuditSettings
) -> Task:
    """What every head is given."""
    given = None if logits is None else aligned_logits(logits, sets)
    codes, scaling = sets.query.codes, []
    for fold in split.folds:
        if given is not None and codes is not None and fold.fitted_on is not None:
            known = fold.fitted_on[codes[fold.fitted_on] >= 0]
            scaling.append((fold.scored, given[known], codes[known]))
    vote_k = best_vote_k(found.graph, sets.codes, len(sets.classes))
    return Task(
        support=sets.support.rows,
        codes=sets.codes,
        query=sets.query.rows,
        neighborhood=found.query,
        folds=split.folds,
        num_classes=len(sets.classes),
        metric=settings.metric,
        vote_k=vote_k,
        weighted_k=max(vote_k, min(20, found.query.k)),  # the k-th voter has weight 0
        prior=settings.prior,
        logits=given,
        scaling=tuple(scaling),
        seed=settings.seed,
    )


def aligned_logits(logits: Any, sets: Sets) -> Tensor:
    """Columns in the order of the support's classes."""
    scores = torch.as_tensor(np.asarray(logits)).double()
    if scores.ndim != 2 or len(scores) != len(sets.query.rows):
        raise InputError(
            f"`logits` must have one row per query row: shape {tuple(scores.shape)} for "
            f"{len(sets.query.rows)} rows."
        )
    if scores.shape[1] == len(sets.classes):
        return scores
    if sets.classes.dtype.kind in "iu" and int(sets.classes.max()) < scores.shape[1]:
        return scores[:, torch.from_numpy(sets.classes.astype(np.int64))]
    raise InputError(
        f"`logits` have {scores.shape[1]} columns for {len(sets.classes)} classes of the support. "
        "Give one column per class, in sorted order of the labels."
    )


def answers_of(task: Task, leave_one_out: bool) -> dict[str, Answer]:
    """Every head that can be asked; a linear one has no leave-one-out answer that is cheap."""
    names = ["softmax"] if task.logits is not None else []
    names += ["softmax_scaled"] if task.scaling else []
    names += ["1nn", "knn", "dudani", "gou", *RECIPES]
    names += [] if leave_one_out else ["linear"]
    answers = {}
    for name in names:
        try:
            answers[name] = HEADS[name](task)
        except InputError as error:
            warn(f"the head {name} is left out: {error}")
    return answers


def scored_of(answers: dict[str, Answer], query: LabeledRows, target: float) -> dict[str, Scored]:
    if query.codes is None or not bool((query.codes >= UNKNOWN).any()):
        return {}
    codes = query.codes.numpy()
    return {name: Scored(answer, codes, target) for name, answer in answers.items()}


def best_of(scored: dict[str, Scored]) -> str:
    """The lowest out-of-fold NLL; NED where none is finite, or nothing is scored."""
    losses = {name: score.nll for name, score in scored.items() if score.nll is not None}
    return min(losses, key=lambda name: losses[name]) if losses else "ned"


def kept_ned(
    support: LabeledSupport, form: str, split: Split, settings: AuditSettings
) -> NEDClassifier:
    """The head to keep: fitted on all held-out rows there are, in the form that did better."""
    graph_k = split.held_out.neighborhood.k
    ned = NEDClassifier(
        k=graph_k, prior=settings.prior, metric=settings.metric, search=settings.search
    )
    ned.fit_support(support)  # leave-one-out: says so where the classes have collapsed
    if form == "ned_fitted":
        ned.set_params(sharpness="fit", background="fit", bandwidth="class")
    return ned.refit() if split.held_out.leave_one_out else ned.fit_on(split.held_out)
