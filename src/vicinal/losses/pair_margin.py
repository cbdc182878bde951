r"""Contrastive loss: pairs of one class within a margin, pairs of two beyond one.

.. math:: \ell = \operatorname*{mean}_{y_i = y_j} \,[d_{ij} - m_+]_+ \;+\;
          \operatorname*{mean}_{y_i \neq y_j} \,[m_- - d_{ij}]_+

(Hadsell et al. 2006, without its squares, as most code has it.) Either mean is over the pairs that
still cost something (``average="active"``) or over all of them (``"valid"``).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.neighbors.distances import METRICS, pairwise_distances

from .conventions import REDUCTIONS, LossModule, any_scale
from .log_partition import in_blocks
from .met import Met, meeting
from .triplet import AVERAGES


@any_scale
def contrastive_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    metric: str = "euclidean",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
    average: str = "active",
) -> Tensor:
    """Contrastive loss of pairs (Hadsell et al. 2006).

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``.
    pos_margin, neg_margin:
        Pairs of one class nearer, and pairs of two farther than this cost nothing.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference, reference_labels:
        Rows that the anchors meet instead of one another.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over pairs, of one class and of two; ``"sum"``; ``"none"``: both means of each
        anchor.
    average:
        A mean divides by the ``"active"`` pairs, or by all ``"valid"`` ones.

    >>> x = torch.tensor([[0.0], [1.0], [1.5]])
    >>> contrastive_loss(x, torch.tensor([0, 0, 1]))  # 1, and 1 - 0.5
    tensor(1.5000)
    """
    check_choice(metric, "metric", METRICS)
    check_choice(average, "average", AVERAGES)
    check_choice(reduction, "reduction", REDUCTIONS)
    if not 0 <= pos_margin < neg_margin:
        raise InputError(
            f"`pos_margin` must lie between 0 and `neg_margin`, got {pos_margin!r} and "
            f"{neg_margin!r}: pairs of one class shall be the nearer ones."
        )
    met = Met.of(x, labels, reference, reference_labels, exclude_self)

    def block(start: int, stop: int) -> Float[Tensor, "4 b"]:
        d = pairwise_distances(met.x[start:stop], met.y, metric)
        sums = []
        hinges = (d - pos_margin, neg_margin - d)
        for hinge, mask in zip(hinges, met.masks(start, stop), strict=True):
            cost = torch.where(mask, hinge.relu(), 0)
            counted = cost > 0 if average == "active" else mask
            sums += [cost.sum(1), counted.sum(1, dtype=d.dtype)]
        return torch.stack(sums) + d.detach().sum(1) * 0  # NaN in any distance shows

    near, near_count, far, far_count = in_blocks(block, len(met.x), len(met.y))
    near = near + met.x.sum(1) * 0  # attached to the graph, and NaN where x is
    if reduction == "sum":
        return (near + far).sum()
    if reduction == "mean":
        near, near_count, far, far_count = (t.sum() for t in (near, near_count, far, far_count))
    return near / near_count.clamp_min(1) + far / far_count.clamp_min(1)


class ContrastiveLoss(LossModule):
    """Module form, parameters as in :func:`contrastive_loss`."""

    loss = staticmethod(contrastive_loss)
    forward = meeting

    def __init__(
        self,
        *,
        pos_margin: float = 0.0,
        neg_margin: float = 1.0,
        metric: str = "euclidean",
        reduction: str = "mean",
        average: str = "active",
    ) -> None:
        margins = {"pos_margin": pos_margin, "neg_margin": neg_margin, "metric": metric}
        super().__init__({**margins, "reduction": reduction, "average": average})
