r"""Supervised contrastive loss and NT-Xent: pull an anchor's class, push the rest, in log space.

With log-weights :math:`s_{ij} = -d(x_i, x_j)/T` and :math:`P_i` the others of the anchor's class,

.. math:: \ell_i^{\text{SupCon}} = \log \sum_{j \neq i} e^{s_{ij}} - \tfrac1{|P_i|} \sum_{p} s_{ip}

(Khosla et al. 2020, eq. 2) and, each positive against the negatives alone,

.. math:: \ell_i^{\text{NT-Xent}} = \tfrac1{|P_i|} \sum_{p}
          \log \Bigl(1 + \sum_{y_j \neq y_i} e^{s_{ij} - s_{ip}}\Bigr)

(Chen et al. 2020; with two views of each instance the two losses are one). For ``metric="cosine"``,
:math:`-d` is the cosine similarity less 1, and the constant cancels. Soft labels :math:`\alpha`
weigh a pair by :math:`w_{ij} = \langle\alpha_i, \alpha_j\rangle`: positives count :math:`w`,
negatives
:math:`1 - w`. Anchors without a positive are left out.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from .conventions import LossModule, any_scale, full_precision, keep_valid, reduce_rows
from .log_partition import in_blocks
from .met import meeting
from .pairs import Pairs


@full_precision
@any_scale
def supervised_contrastive_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    metric: str = "cosine",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Tensor | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, eq. 2).

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperature:
        What distances are divided by: a number, or a tensor that may learn.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference, reference_labels:
        Rows that the anchors are compared with, all of them, instead of one another.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over the anchors that have a positive, ``"sum"`` or ``"none"``.

    >>> import torch
    >>> x, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    >>> round(float(supervised_contrastive_loss(x, y, temperature=1.0)), 4)  # log(1 + 2/e)
    0.5514
    """
    pairs = Pairs.weighed(x, labels, temperature, metric, reference, reference_labels, exclude_self)
    spread, pull, count = pairs.spread_and_pull()
    valid = count > 0
    losses = spread.masked_fill(~valid, 0) - pull / count.masked_fill(~valid, 1)
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


@full_precision
@any_scale
def nt_xent_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    metric: str = "cosine",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Tensor | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Normalized temperature-scaled cross-entropy over all positive pairs (Chen et al. 2020).

    The mean is over anchors, each the mean over its positives.

    Parameters
    ----------
    labels:
        Integers ``(n,)``, equal for views of one instance, or soft labels ``(n, c)``.
    x, temperature, metric, reference, reference_labels, exclude_self, reduction:
        As in :func:`supervised_contrastive_loss`.

    >>> import torch
    >>> x, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    >>> round(float(nt_xent_loss(x, y, temperature=1.0)), 4)  # log(1 + 2/e)
    0.5514
    """
    pairs = Pairs.weighed(x, labels, temperature, metric, reference, reference_labels, exclude_self)
    total, count = in_blocks(pairs.push, len(pairs.x), len(pairs.y))
    valid = count > 0
    losses = total / count.masked_fill(~valid, 1)
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


class SupervisedContrastiveLoss(LossModule):
    """Module form, parameters as in :func:`supervised_contrastive_loss`."""

    loss = staticmethod(supervised_contrastive_loss)
    forward = meeting

    def __init__(
        self, *, temperature: float | Tensor = 0.1, metric: str = "cosine", reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "metric": metric, "reduction": reduction})


class NTXentLoss(LossModule):
    """Module form, parameters as in :func:`nt_xent_loss`."""

    loss = staticmethod(nt_xent_loss)
    forward = meeting

    def __init__(
        self, *, temperature: float | Tensor = 0.1, metric: str = "cosine", reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "metric": metric, "reduction": reduction})
