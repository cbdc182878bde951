"""Rows that *unfamiliar* may be ranked among: held out, or support rows as if each were new.

Where the space looked at labels, a support row is not new to the map itself: rows that the map was
fitted to lie otherwise than rows it never saw, and ranks among them promise nothing. There a
twentieth of the rows is set aside in turn; map, neighbors, directions and Gaussians are those of
the others. (Of fewer others they would make new rows look too familiar: with 800 rows of 1,280
columns, 2.7 % of fresh rows are flagged at 5 % if a tenth is set aside, 4.4 % if a twentieth is,
and 1.5 % with support rows that the map has seen.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.confidence.familiarity import ANCHORS, Surroundings, enough
from vicinal.confidence.ned.posterior import NEDParameters
from vicinal.confidence.support import Evidence, LabeledSupport
from vicinal.labels import folds_of
from vicinal.neighbors.search import ExactSearch

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

PARTS_OF_SUPPORT = 20  # one is set aside at a time: what is fitted should miss few rows
RANKED = 400  # rows to be set aside in all, where there are as many: a rate of 5 % ± 1.1 %


def held_out_scores(ned: NEDClassifier, evidence: Evidence, rate: float) -> Float[Tensor, "m p"]:
    """Every part of familiarity: of held-out rows if they are enough, or of the support's own."""
    support, parameters = ned.support_, ned.parameters_
    parts = Surroundings.fit(support.rows, support.labels.codes)
    few = len(support) > 1 and not enough(len(evidence), rate)
    if evidence.points is not None and not few:
        return parts.scores(evidence.points.cpu(), evidence.neighborhood, parameters)
    if support.crossed is not None:
        return cross_fitted_scores(support, ned.k_, parameters)
    graph = support.leave_one_out(ned.k_)
    return parts.left_out(parts.held_out(ANCHORS), graph, parameters)


def cross_fitted_scores(
    support: LabeledSupport, k: int, parameters: NEDParameters
) -> Float[Tensor, "m p"]:
    """Of support rows, by what was fitted without them and their labels."""
    crossed, codes = support.crossed, support.labels.codes
    assert crossed is not None
    n = len(codes)
    fold = folds_of(codes, min(PARTS_OF_SUPPORT, n))
    rounds = min(max(math.ceil(RANKED * PARTS_OF_SUPPORT / n), 2), int(fold.max()) + 1)
    found = []
    for f in range(rounds):
        mine = (fold == f).nonzero()[:, 0][: ANCHORS // rounds]
        rest = (fold != f).nonzero()[:, 0]
        space = crossed.form(crossed.rows[rest], codes[rest])
        others, rows = space(crossed.rows[rest]), space(crossed.rows[mine])
        search = ExactSearch(support.search.metric).build(others)
        near = search.query(rows, min(k, len(rest))).cpu().labeled(codes[rest])
        found.append(Surroundings.fit(others, codes[rest]).scores(rows.cpu(), near, parameters))
    return torch.cat(found)
