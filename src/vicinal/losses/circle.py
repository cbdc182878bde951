r"""Circle loss: each similarity is pushed in proportion to how far it is from its optimum.

.. math:: \ell_i = \log\Bigl(1 + \sum_{y_n \neq y_i} e^{\gamma [s_{in} + m]_+ (s_{in} - m)}
          \sum_{y_p = y_i} e^{-\gamma [1 + m - s_{ip}]_+ (s_{ip} - 1 + m)}\Bigr)

with cosines :math:`s` (Sun et al. 2020, eq. 4 and 8). The paper treats the weights :math:`[·]_+` as
constants, so its gradient is not the derivative of its value; ``attached=True`` differentiates
through them. Anchors without a positive or without a negative are left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_positive
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.mass import own_log_mass

from .conventions import LossModule, any_scale, full_precision, keep_valid, reduce_rows
from .log_partition import in_blocks
from .met import Met, meeting


@full_precision
@any_scale
def circle_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    margin: float = 0.4,
    gamma: float = 80.0,
    attached: bool = False,
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Circle loss of pairs (Sun et al. 2020, eq. 8) of cosines.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``.
    margin:
        The relaxation m: similarities are drawn to 1 + m and -m.
    gamma:
        The scale γ.
    attached:
        Let the gradient pass through the weights of the pairs.
    reference, reference_labels:
        Rows that the anchors meet instead of one another.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over the anchors with a positive and a negative, ``"sum"`` or ``"none"``.

    >>> x, y = torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> circle_loss(x, y, margin=0.25, gamma=1.0, reduction="none")  # log(1 + e^(-1/8)), and 0
    tensor([0.6326, 0.6326, 0.0000])
    """
    check_positive(gamma, "gamma")
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    u = unit_rows(met.x)
    v = u if met.y is met.x else unit_rows(met.y)

    def block(start: int, stop: int) -> Float[Tensor, "2 b"]:
        s = u[start:stop] @ v.T
        weighing = s if attached else s.detach()
        positives, negatives = met.masks(start, stop)
        pull = -gamma * (1 + margin - weighing).relu() * (s - 1 + margin)
        push = gamma * (weighing + margin).relu() * (s - margin)
        valid = positives.any(1) & negatives.any(1)
        both = own_log_mass(pull, positives) + own_log_mass(push, negatives)
        losses = -F.logsigmoid(-torch.where(valid, both, 0))
        return torch.stack([losses, valid.to(s.dtype)]) + s.detach().sum(1) * 0  # NaN shows

    losses, counted = in_blocks(block, len(u), len(v))
    valid = counted != 0
    return reduce_rows(keep_valid(losses, valid, met.x), valid, reduction)


class CircleLoss(LossModule):
    """Module form, parameters as in :func:`circle_loss`."""

    loss = staticmethod(circle_loss)
    forward = meeting

    def __init__(
        self,
        *,
        margin: float = 0.4,
        gamma: float = 80.0,
        attached: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(
            {"margin": margin, "gamma": gamma, "attached": attached, "reduction": reduction}
        )
