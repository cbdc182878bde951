r"""Triplet loss over all, the hardest or the semi-hard triplets, without forming them.

.. math:: \ell(a, p, n) = \max(0,\; d(a, p) - d(a, n) + m)

(Frosst et al. 2019, eq. 4; Schroff et al. 2015). All triplets of an anchor cost one sort: with its
negatives in order and their prefix sums :math:`S`, a positive with threshold :math:`t = d(a,p) + m`
meets the :math:`c` negatives below it and adds :math:`c\,t - S(c)`. A batch takes ``n² log n``
instead of ``n³``, in blocks of anchors.

``average`` names what a mean divides by: ``"active"`` triplets (positive loss; jumps when one
becomes inactive), or all ``"valid"`` ones. Maximizing this loss is unbounded in the scale of ``x``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_choice, check_positive, is_traced
from vicinal.neighbors.derivatives import is_functional
from vicinal.neighbors.distances import METRICS, neighbor_distances, pairwise_distances

from .conventions import REDUCTIONS, LossModule, any_scale
from .log_partition import in_blocks
from .met import Met, Triplets

MININGS = ("all", "hard", "semihard")
AVERAGES = ("active", "valid")


@any_scale
def triplet_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    margin: float = 0.2,
    mining: str = "all",
    metric: str = "euclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
    triplets: Triplets | None = None,
    reduction: str = "mean",
    average: str = "active",
    fallback: bool = True,
) -> Tensor:
    """Triplet margin loss (Frosst et al. 2019, eq. 4).

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``.
    margin:
        By how much a negative shall be farther than a positive.
    mining:
        ``"all"`` triplets; ``"hard"``, the farthest positive and nearest negative of each anchor;
        ``"semihard"``, for each positive the nearest negative farther than it.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference, reference_labels:
        Rows in which an anchor's positives and negatives are looked for, instead of the batch.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    triplets:
        These triplets alone, as a function of :mod:`.miners` or your own returns them.
    reduction:
        ``"mean"`` or ``"sum"`` over triplets; ``"none"``: for each anchor the mean over its own.
    average:
        A mean divides by the ``"active"`` triplets, or by all ``"valid"`` ones.
    fallback:
        A positive that no negative is farther than takes the farthest one (``"semihard"``); without
        it, that positive is left out.

    >>> x = torch.tensor([[0.0], [1.0], [1.5]])
    >>> triplet_loss(x, torch.tensor([0, 0, 1]), margin=1.0)  # 1 - 1.5 + 1 and 1 - 0.5 + 1
    tensor(1.)
    """
    check_positive(margin, "margin")
    check_choice(mining, "mining", MININGS)
    check_choice(metric, "metric", METRICS)
    check_choice(average, "average", AVERAGES)
    check_choice(reduction, "reduction", REDUCTIONS)
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    x = met.x
    if triplets is not None:
        total, active, valid = _given(met, triplets, margin, metric)
        return _reduced(total + x.sum(1) * 0, active, valid, reduction, average)

    def block(start: int, stop: int) -> Float[Tensor, "3 b"]:
        d = pairwise_distances(x[start:stop], met.y, metric)
        positives, negatives = met.masks(start, stop)
        mined = _mine(d, positives, negatives, margin, mining, fallback)
        return mined + d.detach().sum(1) * 0  # NaN in any distance shows

    total, active, valid = in_blocks(block, len(x), len(met.y))
    total = total + x.sum(1) * 0  # attached to the graph, and NaN where x is
    return _reduced(total, active, valid, reduction, average)


def _reduced(total: Tensor, active: Tensor, valid: Tensor, reduction: str, average: str) -> Tensor:
    count = active if average == "active" else valid
    if reduction == "none":
        return total / count.clamp_min(1)
    return total.sum() if reduction == "sum" else total.sum() / count.sum().clamp_min(1)


def _given(met: Met, triplets: Triplets, margin: float, metric: str) -> Float[Tensor, "3 n"]:
    """Of each anchor: summed loss, number of active and of valid triplets among those given."""
    anchors, positives, negatives = triplets
    if not len(anchors):
        return met.x.new_zeros(3, len(met.x))
    d = neighbor_distances(met.x[anchors], met.y[torch.stack([positives, negatives], 1)], metric)
    loss = (d[:, 0] - d[:, 1] + margin).relu()
    each = torch.stack([loss, (loss > 0).to(d.dtype), torch.ones_like(loss)])
    return each.new_zeros(3, len(met.x)).index_add(1, anchors, each)


def _mine(
    d: Float[Tensor, "b n"],
    positives: Tensor,
    negatives: Tensor,
    margin: float,
    mining: str,
    fallback: bool,
) -> Float[Tensor, "3 b"]:
    """Of each anchor: summed loss, number of active and of valid triplets."""
    if mining == "all":
        every = _plain_triplets if is_functional() else _AllTriplets.apply
        total, active = every(d, positives, negatives, margin)
        valid = positives.sum(1, dtype=d.dtype) * negatives.sum(1, dtype=d.dtype)
        return torch.stack([total, active, valid])
    if mining == "hard":
        far = d.masked_fill(~positives, float("-inf")).amax(1)
        near = d.masked_fill(~negatives, float("inf")).amin(1)
        valid = positives.any(1) & negatives.any(1)
        loss = torch.where(valid, far, 0) - torch.where(valid, near, 0) + margin
        loss = torch.where(valid, loss, 0).relu()
        return torch.stack([loss, (loss > 0).to(d.dtype), valid.to(d.dtype)])
    return _semi_hard(d, positives, negatives, margin, fallback)


def _semi_hard(
    d: Tensor, positives: Tensor, negatives: Tensor, margin: float, fallback: bool
) -> Float[Tensor, "3 b"]:
    columns, valid = _positive_columns(positives)
    near = d.gather(1, columns)
    ordered, order = d.detach().masked_fill(~negatives, float("inf")).sort(1)
    count = negatives.sum(1, keepdim=True)
    # the first negative strictly farther than the positive; past the end: the farthest negative
    place = torch.searchsorted(ordered, near.detach(), right=True)
    valid = valid & (count > 0) & (fallback | (place < count))
    negative = order.gather(1, torch.minimum(place, (count - 1).clamp_min(0)))
    loss = torch.where(valid, near - d.gather(1, negative) + margin, 0).relu()
    return torch.stack([loss.sum(1), (loss > 0).sum(1, dtype=d.dtype), valid.sum(1, dtype=d.dtype)])


def _positive_columns(positives: Tensor) -> tuple[Int[Tensor, "b k"], Tensor]:
    """Columns of each row's positives, and which of them are (rows have unequal numbers).

    Classes are small beside a batch: searching for the positives' thresholds alone saves half of
    the time. While tracing, k must not depend on the data: all columns.
    """
    if is_traced():
        every = torch.arange(positives.shape[1], device=positives.device)
        return every.expand_as(positives).contiguous(), positives
    most = max(1, int(positives.sum(1).max()))
    shown, columns = positives.float().topk(most, 1)
    return columns, shown > 0


class _AllTriplets(torch.autograd.Function):
    """Sum of the hinge over all (p, n) of each row, and how many are active; by one sort per row.

    Gradient: a positive moves with its number c of negatives below the threshold, the negative of
    rank r against the number of positives with c > r.
    """

    @staticmethod
    def forward(
        ctx: Any, d: Tensor, positives: Tensor, negatives: Tensor, margin: float
    ) -> tuple[Tensor, Tensor]:
        columns, below, ordered, order = _below(d, positives, negatives, margin)
        # Sums of thousands of distances of which only differences count: float64
        prefix = ordered.masked_fill_(ordered == float("inf"), 0).cumsum(1, dtype=torch.float64)
        threshold = (d.gather(1, columns) + margin).double()
        hinge = below * threshold - prefix.gather(1, (below - 1).clamp_min(0))
        total = hinge.masked_fill(below == 0, 0).sum(1).to(d.dtype)
        active = below.sum(1).to(d.dtype)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(_slopes(d, columns, below, order))
        ctx.mark_non_differentiable(active)
        return total, active

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * upstream[0][:, None], None, None, None


def _below(
    d: Tensor, positives: Tensor, negatives: Tensor, margin: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns of the positives, how many negatives lie below each one's threshold; in order."""
    columns, valid = _positive_columns(positives)
    ordered, order = d.masked_fill(~negatives, float("inf")).sort(1)
    # strictly below: a triplet whose loss is exactly 0 is not active
    below = torch.searchsorted(ordered, d.gather(1, columns) + margin) * valid
    return columns, below, ordered, order


def _slopes(d: Tensor, columns: Tensor, below: Tensor, order: Tensor) -> Tensor:
    """∂/∂d of the summed hinges."""
    last = (below - 1).clamp_min(0)
    above = torch.zeros_like(d).scatter_add(1, last, (below > 0).to(d.dtype))
    above = above.flip(1).cumsum(1).flip(1)  # positives with c > r
    slopes = torch.zeros_like(d).scatter(1, order, -above)
    return slopes.scatter_add(1, columns, below.to(d.dtype))


def _plain_triplets(
    d: Tensor, positives: Tensor, negatives: Tensor, margin: float
) -> tuple[Tensor, Tensor]:
    """The same by ordinary operations: hinges that are active are linear in the distances."""
    columns, below, _, order = _below(d.detach(), positives, negatives, margin)
    slopes, active = _slopes(d.detach(), columns, below, order), below.sum(1).double()
    total = torch.linalg.vecdot(slopes.double(), d.double()) + margin * active
    return total.to(d.dtype), active.to(d.dtype)


class TripletLoss(LossModule):
    """Module form, parameters as in :func:`triplet_loss`."""

    def __init__(
        self,
        *,
        margin: float = 0.2,
        mining: str = "all",
        metric: str = "euclidean",
        reduction: str = "mean",
        average: str = "active",
        fallback: bool = True,
    ) -> None:
        triplets = {"margin": margin, "mining": mining, "metric": metric, "fallback": fallback}
        super().__init__({**triplets, "reduction": reduction, "average": average})

    def forward(
        self,
        x: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_labels: Tensor | None = None,
        exclude_self: bool = False,
        triplets: Triplets | None = None,
    ) -> Tensor:
        """The loss of one batch; parameters as in :func:`triplet_loss`."""
        return triplet_loss(
            x,
            labels,
            reference=reference,
            reference_labels=reference_labels,
            exclude_self=exclude_self,
            triplets=triplets,
            **self.settings(),
        )
