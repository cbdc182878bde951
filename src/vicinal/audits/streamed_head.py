"""The head that is kept of an audit whose support is not in memory: its support are the anchors.

Fewer rows lie farther apart, so nothing that was fitted among all rows holds among the anchors:
temperature, sharpness, background, the linear part's weight, threshold and standards are found anew
there, on the same held-out rows. The space and the linear part were the anchors' already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from vicinal.audits.facts import Facts
from vicinal.audits.inputs import Sets
from vicinal.audits.recommend import made_from
from vicinal.audits.sampled import SampledSupport
from vicinal.confidence.head import TrustHead
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned_linear import NEDLinear
from vicinal.confidence.support import LabeledSupport
from vicinal.labels import Labels
from vicinal.neighbors.search import make_search


def anchors_head(facts: Facts) -> TrustHead:
    """Of the kind that the audit recommends; neighbors are named by their row in the files."""
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
