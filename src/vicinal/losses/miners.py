r"""Which triplets to look at: functions from a batch to rows of anchors, positives and negatives.

``triplet_loss(x, y, triplets=hard_triplets(x, y))``. All pairs of a batch count in vicinal's losses
without being listed (``mining="hard"`` and ``"semihard"`` of :func:`.triplet_loss` need no list
either); a list is for losses of your own, and for draws:

* hard: the farthest positive and the nearest negative of each anchor (Hermans et al. 2017);
* semi-hard: every triplet whose negative is farther than the positive, by no more than a margin
  (Schroff et al. 2015);
* distance-weighted: for each positive pair a negative drawn with weight :math:`1/q(d)`, where

  .. math:: q(d) \propto d^{D-2} \bigl(1 - \tfrac14 d^2\bigr)^{(D-3)/2}

  is how often random unit rows in D dimensions are at distance d (Wu et al. 2017): negatives of
  every distance come up, instead of those at :math:`\sqrt2` alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_positive
from vicinal.neighbors.distances import pairwise_distances, unit_rows

from .log_partition import BLOCK
from .met import Met, Triplets


@torch.no_grad()
def hard_triplets(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    metric: str = "euclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
) -> Triplets:
    """Each anchor's farthest positive and nearest negative.

    Parameters
    ----------
    x, labels, metric, reference, reference_labels, exclude_self:
        As in :func:`.triplet_loss`.

    >>> x = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
    >>> hard_triplets(x, torch.tensor([0, 0, 0, 1])).positives  # the last one has none
    tensor([2, 2, 0])
    """
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    found = []
    for start, stop in _blocks(len(met.x), len(met.y)):
        d = pairwise_distances(met.x[start:stop], met.y, metric)
        positives, negatives = met.masks(start, stop)
        far = d.masked_fill(~positives, float("-inf")).argmax(1)
        near = d.masked_fill(~negatives, float("inf")).argmin(1)
        anchors = (positives.any(1) & negatives.any(1)).nonzero()[:, 0]
        found.append(torch.stack([anchors + start, far[anchors], near[anchors]]))
    return Triplets(*torch.cat(found, 1))


@torch.no_grad()
def semihard_triplets(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    margin: float = 0.2,
    metric: str = "euclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
) -> Triplets:
    """Every triplet with ``d(a, p) < d(a, n) <= d(a, p) + margin``.

    Parameters
    ----------
    x, labels, metric, reference, reference_labels, exclude_self:
        As in :func:`.triplet_loss`.
    margin:
        How much farther the negative may be.

    >>> x = torch.tensor([[0.0], [1.0], [2.5]])
    >>> [t.tolist() for t in semihard_triplets(x, torch.tensor([0, 0, 1]), margin=1.0)]
    [[1], [0], [2]]
    """
    check_positive(margin, "margin")
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    found = []
    for start, stop in _blocks(len(met.x), len(met.y) ** 2):
        d = pairwise_distances(met.x[start:stop], met.y, metric)
        positives, negatives = met.masks(start, stop)
        gap = d[:, None, :] - d[:, :, None]  # anchor, positive, negative
        wanted = positives[:, :, None] & negatives[:, None, :] & (gap > 0) & (gap <= margin)
        rows = wanted.nonzero()
        rows[:, 0] += start
        found.append(rows)
    return Triplets(*torch.cat(found).T)


@torch.no_grad()
def distance_weighted_triplets(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    cutoff: float = 0.5,
    farthest: float = 1.4,
    generator: torch.Generator | None = None,
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
) -> Triplets:
    """For each positive pair one negative, drawn against how common its distance is.

    Parameters
    ----------
    x, labels, reference, reference_labels, exclude_self:
        As in :func:`.triplet_loss`; distances are those of unit rows.
    cutoff:
        Nearer negatives are drawn as if they were this far, or a single wrong label would win.
    farthest:
        Negatives from here on are not drawn: they cost nothing.
    generator:
        Draws the negatives.

    >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> [t.tolist() for t in distance_weighted_triplets(x, torch.tensor([0, 0, 1]))]
    [[0, 1], [1, 0], [2, 2]]
    """
    check_positive(cutoff, "cutoff")
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    u, v = unit_rows(met.x), unit_rows(met.y)
    dim, found = u.shape[1], []
    for start, stop in _blocks(len(u), len(v)):
        d = pairwise_distances(u[start:stop], v, "euclidean").clamp(min=cutoff)
        positives, negatives = met.masks(start, stop)
        log_weights = (2 - dim) * d.log() - (dim - 3) / 2 * torch.log1p(-d.square() / 4)
        drawn = negatives & (d < farthest) & log_weights.isfinite()
        anchors, columns = (positives & drawn.any(1, keepdim=True)).nonzero().T
        log_weights = log_weights.masked_fill(~drawn, float("-inf"))
        rows = log_weights.double().softmax(1)[anchors]
        negative = rows.multinomial(1, generator=generator)[:, 0] if len(rows) else columns
        found.append(torch.stack([anchors + start, columns, negative]))
    return Triplets(*torch.cat(found, 1))


def _blocks(anchors: int, width: int) -> list[tuple[int, int]]:
    rows = max(1, BLOCK // max(width, 1))
    return [(i, min(i + rows, anchors)) for i in range(0, anchors, rows)]
