"""What the sections of an audit share: the sets, their neighbors, the folds, every head's answer.

Two searches, of the query in the support and of the support in itself, feed everything. What is
fitted is never scored on the rows it was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.audits.cases import cases_of, verdicts_of, weights_of
from vicinal.audits.class_order import columns_for
from vicinal.audits.familiarity import combination_of, foreignness, kept_standards
from vicinal.audits.fitting import Split, fitting_of, left_out_losses, split_of
from vicinal.audits.heads import HEADS, RECIPES, Answer, Fold, Task, best_vote_k, held_out_view
from vicinal.audits.inputs import LabeledRows, Sets, usable_k, warn
from vicinal.audits.linear_view import LinearView, linear_view
from vicinal.audits.model import ModelFacts
from vicinal.audits.recommend import Choice, choice_of, keepable, kept_blend, made_from
from vicinal.audits.record import Scale
from vicinal.audits.scoring import Scored
from vicinal.audits.searching import Searching, space_facts, space_of
from vicinal.audits.sections import SpaceFacts
from vicinal.audits.settings import About, AuditSettings, Job
from vicinal.audits.stress import stressed
from vicinal.audits.suspects import (
    ScoredLabels,
    class_log_probs,
    judged_labels,
    label_audit,
    scored_labels,
)
from vicinal.checks import InputError, plural
from vicinal.confidence.blend import Blend, blended_log_probs
from vicinal.confidence.head import TrustHead
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.fit import RecipeFit
from vicinal.confidence.ned.space import SpaceFit
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.support import Evidence, LabeledSupport
from vicinal.evaluation import ChosenTarget, reachable_target
from vicinal.labels import UNKNOWN, Labels, folds_of, log_class_shares
from vicinal.neighbors.neighborhood import Neighborhood


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything a section may read; what follows from the searches is made when first read.

    ``shown`` names the head that is kept: ``answer``, ``verdicts`` and threshold are its, out of
    fold. Its neighbors, and their ``weights``, are those of NED: ``ned`` is the same form fitted on
    all held-out rows. Rows of ``sets`` are in the ``space`` they are compared in.
    """

    sets: Sets
    job: Job
    model: ModelFacts | None
    support: LabeledSupport  # in its search, with its leave-one-out graph
    graph: Neighborhood  # of each support row among the others
    neighborhood: Neighborhood  # of the query in the support
    split: Split
    logits: Float[Tensor, "m c"] | None
    space: SpaceFacts
    searching: Searching
    foreign: Neighborhood | None = None  # of the foreign rows in the support

    foreignness = cached_property(foreignness)
    combination = cached_property(combination_of)
    fitting = cached_property(fitting_of)
    weights = cached_property(weights_of)
    verdicts = cached_property(verdicts_of)
    cases = cached_property(cases_of)
    label_audit = cached_property(label_audit)
    judged_labels = cached_property(judged_labels)
    standards = cached_property(kept_standards)
    stressed = cached_property(stressed)

    @property
    def settings(self) -> AuditSettings:
        return self.job.settings

    @property
    def about(self) -> About:
        return self.job.about

    @cached_property
    def task(self) -> Task:
        """What every head is given."""
        return self.task_on(self.fitting.folds)

    def task_on(self, folds: Sequence[Fold]) -> Task:
        """The same with the heads fitted on these folds; no fit is made twice."""
        sets, codes, logits = self.sets, self.sets.query.codes, self.logits
        scaling = [
            (fold.scored, logits[fold.fitted_on], codes[fold.fitted_on])
            for fold in self.split.folds
            if logits is not None and codes is not None and fold.fitted_on is not None
        ]
        return Task(
            support=sets.support.as_given,
            codes=sets.codes,
            query=sets.query.as_given,
            neighborhood=self.neighborhood,
            folds=tuple(folds),
            num_classes=len(sets.classes),
            metric=self.settings.metric,
            vote_k=self.vote_k,
            weighted_k=max(self.vote_k, min(20, self.graph.k)),  # the k-th voter has weight 0
            prior=self.settings.prior,
            logits=logits,
            scaling=tuple(scaling),
            seed=self.settings.seed,
            linear=self.linear,
            alone=sets.leave_one_out,
            fits=self.fits,
        )

    @cached_property
    def vote_k(self) -> int:
        return best_vote_k(self.graph, self.sets.codes, len(self.sets.classes))

    @cached_property
    def fits(self) -> dict[tuple[str, Evidence], RecipeFit]:
        """NED's, by recipe and rows."""
        return {}

    @cached_property
    def linear(self) -> LinearView:
        """The linear view, fitted once; it serves every head that has a linear part."""
        sets, calib = self.sets, None
        if sets.calib is not None and sets.calib.codes is not None:
            calib = sets.calib.as_given[sets.calib.codes >= 0]
        query = None if sets.leave_one_out else sets.query.as_given
        support = sets.support.as_given, sets.codes
        return linear_view(support, query, calib, seed=self.settings.seed)

    @cached_property
    def answers(self) -> dict[str, Answer]:
        """Of every head that can be asked."""
        names = ["softmax"] if self.logits is not None else []
        names += ["softmax_scaled"] if self.task.scaling else []
        names += ["1nn", "knn", "knn_smoothed", "dudani", "gou", *RECIPES]
        names += ["logistic", "logistic_scaled"]
        names += ["ned_linear"] if self.settings.prior == "support" else []
        answers = {}
        for name in names:
            try:
                answers[name] = HEADS[name](self.task)
            except InputError as error:
                warn(f"the head {name} is left out: {error}")
        return answers

    @cached_property
    def scored(self) -> dict[str, Scored]:
        """Every answer against the query's labels; empty where it has none."""
        codes = self.sets.query.codes
        if codes is None or not bool((codes >= UNKNOWN).any()):
            return {}
        return {name: Scored(a, codes.numpy()) for name, a in self.answers.items()}

    @cached_property
    def promise(self) -> ChosenTarget:
        """The target accuracy: as it was set, or the highest that half of the rows can meet."""
        if self.settings.target_accuracy is not None:
            return ChosenTarget(self.settings.target_accuracy)
        if self.promised is None:
            return reachable_target(self.answer.confidence)
        return reachable_target(*self.promised.ranked, self.promised.delta)

    @cached_property
    def on_calib(self) -> Scored | None:
        """The kept head on calibration rows, each half fitted on the other: they set the threshold
        of a query without labels."""
        fold = self.split.folds[0]
        known, n = fold.evidence, len(fold.evidence)
        if self.sets.calib is None or self.scored or n < 4:
            return None
        first = folds_of(known.targets, 2) == 0
        halves = first.nonzero()[:, 0], (~first).nonzero()[:, 0]
        folds = tuple(
            Fold(known.rows(a), b, known.rows(b).neighborhood.double(), fitted_on=a)
            for a, b in (halves, halves[::-1])
        )
        return self._on_held_out((self.shown,), folds)[self.shown]

    @cached_property
    def choice(self) -> Choice:
        """The recommended head; without labels in the query, what the rows to fit on say."""
        if any(score.nll is not None for score in self.scored.values()):
            return choice_of(self.scored, self.settings.prior, left_out_losses(self))
        first, prior = self.split.folds[0], self.settings.prior
        known = first.evidence
        fold = first._replace(scored=torch.arange(len(known)), neighborhood=known.neighborhood)
        return choice_of(self._on_held_out(keepable(prior), (fold,)), prior)

    def _on_held_out(self, names: Sequence[str], folds: tuple[Fold, ...]) -> dict[str, Scored]:
        """Heads that are asked about the rows held out, in the place of the query's."""
        first = self.split.folds[0]
        known, view = first.evidence, held_out_view(self.task, first)
        task = replace(
            self.task, folds=folds, neighborhood=known.neighborhood,
            linear=replace(self.linear, query=view), alone=known.leave_one_out,
        )  # fmt: skip
        return {name: Scored(HEADS[name](task), known.targets.numpy()) for name in names}

    @property
    def shown(self) -> str:
        return self.choice.kept

    @property
    def answer(self) -> Answer:
        return self.answers[self.shown]

    @property
    def score(self) -> Scored | None:
        return self.scored.get(self.shown)

    @property
    def promised(self) -> Scored | None:
        """What threshold and curve are measured on: the query, else the calibration rows."""
        return self.score or self.on_calib

    @cached_property
    def threshold(self) -> float:
        """The confidence that keeps the target accuracy; infinite where none can be shown to."""
        target = self.promise.target
        return math.inf if self.promised is None else self.promised.threshold(target).threshold

    @cached_property
    def ned(self) -> NEDClassifier:
        """The neighbors of the head to keep, fitted on all held-out rows there are."""
        settings, held_out = self.settings, self.fitting.held_out
        ned = NEDClassifier(
            k=self.neighborhood.k, prior=settings.prior, metric=settings.metric,
            search=settings.search,
        )  # fmt: skip
        ned.fit_support(self.support)  # leave-one-out: says so where the classes have collapsed
        if self.shown != "ned":
            ned.set_params(sharpness="fit", background="fit", bandwidth="class")
        recipe = "ned" if self.shown == "ned" else "ned_fitted"
        return ned.fit_on(held_out, self.task.fit_of(recipe, held_out))

    @cached_property
    def kept(self) -> NEDClassifier | NEDLinear:
        """The head to keep: NED, or NED with the linear part at its weights."""
        return self.ned if self.shown in RECIPES else kept_blend(self)

    @cached_property
    def support_log_probs(self) -> Float[Tensor, "n c"]:
        """What is said of each support row by parts that have not seen it (or its label)."""
        log_ned = self.ned.log_probs_of(self.graph)
        if self.support_blend is None:
            return log_ned
        codes, log_linear = self.sets.codes, torch.from_numpy(self.linear.head.oof_log_proba_)
        log_prior = log_class_shares(codes, len(self.sets.classes), leave_one_out=True)
        return blended_log_probs(log_ned, log_linear, log_prior, self.support_blend)

    @cached_property
    def support_classes(self) -> Float[Tensor, "n c"]:
        """The same of its class alone, whatever its label: what labels are judged by."""
        log_ned = self.ned.log_probs_of(self.graph)
        return class_log_probs(log_ned, self.linear.support, self.support_blend)

    @cached_property
    def support_blend(self) -> Blend | None:
        """How neighbors and linear view are weighed where support rows are spoken of."""
        if self.settings.prior != "support":
            return None
        return NEDLinear().fit_parts(self.ned, self.linear.head).blend_

    @property
    def labels_by(self) -> str:
        """How the support's rows were judged, in words."""
        how = "leave-one-out by row number"
        if self.space.cross_fitted:
            how = "each fifth of the rows among the others, in a space fitted without it"
        both = " and a linear head out of fold" if self.settings.prior == "support" else ""
        return f"{how}, by the neighbors of the kept head{both}"

    @cached_property
    def labels(self) -> ScoredLabels:
        """The support's labels judged by probabilities that never saw them."""
        return scored_labels(self.support_classes, self.sets.codes)

    def support_names(self, rows: Sequence[int]) -> tuple[str, ...]:
        """What rows of the support are called."""
        whole, ids = self.sets.support.whole, self.about.support_ids
        if whole is not None:
            return whole.names(rows)
        return tuple(str(row) if ids is None else ids[row] for row in rows)

    @property
    def equal_support_rows(self) -> int:
        """How many support rows another one equals, where rows are compared as they came."""
        return int((self.graph.distances[:, 0] == 0).sum())

    @property
    def head(self) -> TrustHead:
        """The head to keep with its standards."""
        return TrustHead(self.kept, self.standards, made_from(self))

    @property
    def scale(self) -> Scale | None:
        """What was fitted on how many rows, where not all are in memory."""
        return None

    @property
    def parts(self) -> dict[str, Path]:
        """Files that hold every row, where the record does not."""
        return {}


def gather(
    sets: Sets,
    logits: Any,
    model: ModelFacts | None,
    job: Job,
    make: Callable[[LabeledRows, Job, SpaceFit], Searching] = Searching,
    kind: Callable[..., Facts] = Facts,
) -> Facts:
    """Choose the space, search and split.

    ``make`` gives the search of rows that are not in memory, whose ``kind`` of facts is another.
    """
    settings, order = job.settings, job.about.class_names
    k, everyone = usable_k(settings, sets), sets.all_codes
    given = None if logits is None else aligned_logits(logits, sets, order)
    job.tell("space")
    fit = space_of(settings, sets, k)
    sets = sets.mapped(fit.space)
    if fit.crossed is not None and settings.k is None and not sets.support.sampled:
        fold = fit.crossed.fold  # as many as every row has outside its own
        k = min(k, len(fold) - int(fold.bincount().max()))
    searching = make(sets.support, job, fit)

    def nearest(role: str, rows: LabeledRows) -> Neighborhood:
        return searching.nearest(role, rows, k).labeled(everyone)

    graph = searching.own(k, sets.codes).labeled(everyone)
    support = searching.labeled_support(Labels(sets.classes, sets.codes), graph)
    query = graph if sets.leave_one_out else nearest("query", sets.query)
    calib = None if sets.calib is None else nearest("calib", sets.calib)
    foreign = None if sets.foreign is None else nearest("foreign", sets.foreign)
    split = split_of(sets, query, graph, calib, settings.seed)
    said = space_facts(settings, fit)
    return kind(sets, job, model, support, graph, query, split, given, said, searching, foreign)


def aligned_logits(logits: Any, sets: Sets, order: Any = None) -> Tensor:
    """Columns in the order of the support's classes; ``order``: their names, if known."""
    scores = torch.as_tensor(np.asarray(logits)).double()
    if scores.ndim != 2 or len(scores) != len(sets.query.rows):
        raise InputError(
            f"`logits` must have one row per query row: shape {tuple(scores.shape)} for "
            f"{len(sets.query.rows)} rows."
        )
    if bool(scores.isnan().any()):
        rows = scores.isnan().any(1).nonzero()[:, 0]
        raise InputError(f"`logits` has NaN in {plural(len(rows), 'row')} (first: {int(rows[0])}).")
    if bool((scores >= 0).all() & ((scores.sum(1) - 1).abs() < 1e-3).all()):
        warn(
            "`logits` look like probabilities, each row sums to 1: the softmax head takes their "
            "exponentials and is far too unsure. Give their logarithms, np.log(p)."
        )
    return scores[:, columns_for(scores.shape[1], sets.classes, order)]
