r"""Is an input like the support at all? Several scores, one conformal p-value.

Each *part* scores how foreign a row is (larger = more foreign): the distance to its 5th and to its
last neighbor where the head searches, NED's density there, the distance in direction alone (unit
rows, at ranks 1 and 5), Mahalanobis distance on the rows and on unit rows, relative Mahalanobis
distance, ViM's residual. No part is best everywhere, and each is blind somewhere: raw distances
where foreign features are short, directions where length is what tells.

So parts are combined by rank. Among m held-out rows, part j gives a row
:math:`p_j = (1 + \#\{s_j^{held} \ge s_j\}) / (m + 1)`, the combination is

.. math:: t = \log \tfrac{1}{P} \sum_j \frac1{p_j}, \qquad
   p = \frac{1 + \#\{t^{held} \ge t\}}{m + 1}

the harmonic mean of the p-values (Wilson 2019): several parts in doubt add up, yet no part that
finds a row familiar outvotes one that finds it stranger than every held-out row, as it would in a
mean of logarithms or of normal scores. The parts depend on one another, so t is ranked again among
held-out rows: whatever the parts, :math:`P(p \le \alpha) \le \alpha` for rows like the held-out
ones, up to :math:`O(1/m)`.

Ranked among are rows that were held out, or support rows as if each were new. Where the space
looked at labels, a support row is not new to the map itself: rows that the map was fitted to lie
otherwise than rows it never saw, and ranks among them promise nothing. There a twentieth of the
rows is set aside in turn; map, neighbors, directions and Gaussians are those of the others. (Of
fewer others they would make new rows look too familiar: with 800 rows of 1,280 columns, 2.7 % of
fresh rows are flagged at 5 % if a tenth is set aside, 4.4 % if a twentieth is, and 1.5 % with
support rows that the map has seen.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, as_matrix, check_same_width, check_share, same_kind
from vicinal.confidence.ned.posterior import BLOCK, NEDParameters, log_density
from vicinal.confidence.support import Evidence, LabeledSupport
from vicinal.evaluation.gaussians import (
    ClassGaussians,
    Moments,
    class_gaussians,
    gaussians_of,
    moments,
)
from vicinal.labels import folds_of
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

PARTS = {  # name -> what the page calls it
    "near": "distance to the 5th neighbor",
    "last": "distance to the last neighbor",
    "ned": "NED's density",
    "direction_1": "direction: nearest neighbor",
    "direction_5": "direction: 5th neighbor",
    "mahalanobis": "Mahalanobis",
    "direction_mahalanobis": "direction: Mahalanobis",
    "relative_mahalanobis": "relative Mahalanobis",
    "residual": "residual (ViM)",
}
# A distance, directions near and less near, a Gaussian, a residual. Ten such choices had a mean
# AUROC of 0.935 to 0.943 on one split of 26 pairs of sets; this one 0.941.
COMBINED = ("near", "direction_1", "direction_5", "direction_mahalanobis", "residual")
ANCHORS = 2_000  # support rows that directions are compared with, and held-out rows ranked among
GAUSSIAN_ROWS = 10_000
FOLDS = 3
NEAR_RANK = 5
PARTS_OF_SUPPORT = 20  # one is set aside at a time: what is fitted should miss few rows
RANKED = 400  # rows to be set aside in all, where there are as many: a rate of 5 % ± 1.1 %


def combined_by_ranks(held_out: Any, scores: Any) -> Any:
    """One conformal p-value per row from several scores, small = foreign.

    ``held_out`` (m, p) and ``scores`` (n, p) have a column per part, larger = more foreign.

    >>> held = torch.tensor([[0.0, 5.0], [1.0, 7.0], [2.0, 6.0]])
    >>> combined_by_ranks(held, torch.tensor([[9.0, 9.0], [0.0, 5.5]]))
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    held, rows = as_matrix(held_out, "held_out"), as_matrix(scores, "scores")
    check_same_width(held, rows, "held_out", "scores")
    return same_kind(Ranks.of(held).p_values(rows), scores)


@dataclass(frozen=True, eq=False)
class Ranks:
    """What held-out rows score: each part sorted, and their combination sorted."""

    parts: Float[Tensor, "p m"]
    combined: Float[Tensor, " m"]

    @classmethod
    def of(cls, held_out: Float[Tensor, "m p"]) -> Ranks:
        parts = ascending(held_out.double().T)
        own = parts.shape[1] - _below(parts, held_out)  # itself among them, so never 0
        return cls(parts, ascending(_strangeness(own / parts.shape[1])))

    def p_values(self, scores: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        m = self.parts.shape[1]
        shares = (1 + m - _below(self.parts, scores)) / (m + 1)
        reaching = m - count_below(self.combined, _strangeness(shares))
        return (1 + reaching).double() / (m + 1)


def _strangeness(shares: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
    """log of the mean of 1/p."""
    return (-shares.log()).logsumexp(1) - math.log(shares.shape[1])


def _below(parts: Float[Tensor, "p m"], scores: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
    """How many held-out rows score less, part by part."""
    return torch.stack([*map(count_below, parts, scores.T)], 1).double()


def ascending(values: Float[Tensor, "*p m"]) -> Float[Tensor, "*p m"]:
    """Sorted along the last axis, by NumPy: in a tenth of torch's time."""
    return torch.from_numpy(np.sort(values.cpu().numpy()))


def count_below(held_out: Float[Tensor, " m"], values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many (sorted) held-out values are smaller; asked in order, which keeps to the cache."""
    asked = values.to(held_out).cpu().numpy()
    order = np.argsort(asked)
    below = np.searchsorted(held_out.cpu().numpy(), asked[order])
    return torch.from_numpy(below[np.argsort(order)])


Read = Callable[[Tensor], Tensor]  # rows at some places, as ``Search.rows`` reads them


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The parts, fitted on a support.

    ``anchors`` are the rows that directions are compared with; ``folds`` tell which Gaussians are
    honest about a support row. Both are drawn with a fixed seed.
    """

    read: Read  # the support's rows at some places
    codes: Int[Tensor, " n"]
    folds: Int[Tensor, " n"]
    anchors: Int[Tensor, " a"]
    directions: ExactSearch
    sums: Moments
    plain: ClassGaussians
    unit: ClassGaussians

    @classmethod
    def fit(cls, support: Float[Tensor, "n d"] | Read, codes: Int[Tensor, " n"]) -> Surroundings:
        """From the support's rows, or who reads some of them, and class codes; hard labels."""
        read = (
            support if callable(support) else partial(torch.index_select, support.detach().cpu(), 0)
        )
        n = len(codes)
        order = torch.from_numpy(np.random.default_rng(0).permutation(n))
        folds = torch.full((n,), -1)  # not in the Gaussians
        some, anchors = order[:GAUSSIAN_ROWS].sort().values, order[:ANCHORS].sort().values
        folds[order[:GAUSSIAN_ROWS]] = torch.arange(len(some)) % FOLDS
        x = read(some).detach().cpu()
        count, center = int(codes.max()) + 1, x.double().mean(0)
        sums = moments(x, codes[some], count, center)
        unit = class_gaussians(unit_rows(x), codes[some], count)
        # So few neighbors of so few rows seldom tie with many.
        search = ExactSearch("cosine", spare=NEAR_RANK).build(read(anchors).detach().cpu())
        return cls(read, codes, folds, anchors, search, sums, gaussians_of(sums, center), unit)

    def scores(
        self, rows: Float[Tensor, "n d"], neighborhood: Neighborhood, parameters: NEDParameters
    ) -> Float[Tensor, "n p"]:
        """Every part of ``PARTS``, for rows that are not in the support; block by block."""
        blocks = zip(rows.split(BLOCK), neighborhood.blocks(BLOCK), strict=True)
        return torch.cat([self._scores(part, near, parameters) for part, near in blocks])

    def _scores(
        self, rows: Float[Tensor, "b d"], neighborhood: Neighborhood, parameters: NEDParameters
    ) -> Float[Tensor, "b p"]:
        plain, nearest = self.plain, self.plain.mahalanobis(rows)
        turned = self.unit.mahalanobis(unit_rows(rows))
        far = torch.stack((nearest, turned, nearest - plain.overall(rows), plain.residual(rows)), 1)
        return _columns(neighborhood, parameters, self._directions(rows, None), far)

    def left_out(
        self, some: Int[Tensor, " m"], graph: Neighborhood, parameters: NEDParameters
    ) -> Float[Tensor, "m p"]:
        """The same for support rows, as if each were new.

        Neighbors come from ``graph``, the leave-one-out neighborhoods of all support rows, and
        from the other anchors; Mahalanobis distances are exact, residuals from the other folds.
        """
        rows, place = self.read(some).detach().cpu(), torch.full((len(self.codes),), -1)
        place[self.anchors] = torch.arange(len(self.anchors))
        far, codes = torch.empty(len(some), 4, dtype=torch.float64), self.codes[some]
        for fold in self.folds[some].unique().tolist():
            mine = self.folds[some] == fold
            x, rest = rows[mine], self._without(fold)
            nearest, turned, overall = self._as_new(x, codes[mine], fitted=fold >= 0)
            far[mine] = torch.stack((nearest, turned, nearest - overall, rest.residual(x)), 1)
        return _columns(graph.rows(some), parameters, self._directions(rows, place[some]), far)

    def _as_new(self, x: Tensor, codes: Tensor, fitted: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Mahalanobis on rows and unit rows, and to all rows; exact for rows in the Gaussians."""
        plain, unit, turned = self.plain, self.unit, unit_rows(x)
        if not fitted:
            return plain.mahalanobis(x), unit.mahalanobis(turned), plain.overall(x)
        own = plain.left_out(x, codes), unit.left_out(turned, codes)
        return *own, plain.left_out_overall(x)

    def held_out(self, most: int) -> Int[Tensor, " m"]:
        """So many support rows to be left out, those that are no anchors first."""
        order = np.random.default_rng(0).permutation(len(self.codes))
        return torch.from_numpy(np.sort(order[::-1][:most]))

    def _directions(self, rows: Tensor, exclude: Tensor | None) -> Float[Tensor, "n 2"]:
        """How far off in direction the nearest and the 5th nearest anchor are."""
        k = min(NEAR_RANK, max(len(self.anchors) - 1, 1))
        if len(self.anchors) == 1 and exclude is not None:
            return torch.zeros(len(rows), 2, dtype=torch.float64)
        found = self.directions.query(rows.to(self.directions.dtype), k, exclude=exclude).distances
        return found[:, [0, k - 1]].double()

    def _without(self, fold: int) -> ClassGaussians:
        """The Gaussians of all rows but those of one fold."""
        gone = (self.folds == fold).nonzero().flatten()
        if fold < 0 or len(gone) == int(self.sums.counts.sum()):  # nothing would be left
            return self.plain
        center, count = self.plain.center, len(self.sums.counts)
        part = moments(self.read(gone).detach().cpu(), self.codes[gone], count, center)
        return gaussians_of(self.sums.without(part), center)


def _columns(
    neighborhood: Neighborhood,
    parameters: NEDParameters,
    directions: Float[Tensor, "n 2"],
    distances: Float[Tensor, "n 4"],
) -> Float[Tensor, "n p"]:
    """All parts, in the order of ``PARTS``."""
    exact = neighborhood.double()
    near = exact.distances[:, min(NEAR_RANK, exact.k) - 1]
    own = torch.stack((near, exact.distances[:, -1], -log_density(exact, parameters)), 1)
    return torch.cat((own, directions, distances), 1)


@dataclass(frozen=True, eq=False)
class Familiarity:
    """The promise: of rows like the held-out ones, at most ``rate`` have a p-value up to it."""

    ranks: Ranks
    parts: tuple[str, ...] = COMBINED
    rate: float = 0.05
    columns: tuple[str, ...] = tuple(PARTS)  # of the scores; a model's own follow them

    @classmethod
    def of(
        cls,
        held_out: Float[Tensor, "m p"],
        rate: float,
        parts: tuple[str, ...] = COMBINED,
        columns: tuple[str, ...] = tuple(PARTS),
    ) -> Familiarity:
        """From held-out rows' scores in every part."""
        check_share(rate, "unfamiliar")
        return cls(Ranks.of(held_out[:, part_columns(parts, columns)]), parts, rate, columns)

    def p_values(self, scores: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Of rows scored in every part; small = foreign."""
        return self.ranks.p_values(scores[:, part_columns(self.parts, self.columns)])


def enough(held_out: int, rate: float) -> bool:
    """Whether so many held-out rows can tell: with fewer no p-value would reach the rate.

    >>> enough(19, 0.05), enough(40, 0.05)
    (False, True)
    """
    return held_out * rate >= 2


def part_columns(names: tuple[str, ...], columns: tuple[str, ...] = tuple(PARTS)) -> list[int]:
    """Where these parts stand among the columns of the scores."""
    for name in names:
        if name not in columns:
            raise InputError(f"there is no part {name!r}. Parts: {', '.join(columns)}.")
    return [columns.index(name) for name in names]


def held_out_scores(ned: NEDClassifier, evidence: Evidence, rate: float) -> Float[Tensor, "m p"]:
    """Every part of familiarity: of held-out rows if they are enough, or of the support's own."""
    support, parameters = ned.support_, ned.parameters_
    parts = Surroundings.fit(support.rows, support.labels.codes)
    few = len(support) > 1 and not enough(len(evidence), rate)
    if evidence.points is not None and not few:
        return parts.scores(evidence.points.cpu(), evidence.neighborhood, parameters)
    if support.crossed is not None:
        return cross_fitted_scores(support, ned.k_, parameters)
    return parts.left_out(parts.held_out(ANCHORS), support.leave_one_out(ned.k_), parameters)


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
