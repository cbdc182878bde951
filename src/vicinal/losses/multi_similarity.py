r"""Multi-similarity loss: pairs weighed by their own similarity and by that of their company.

.. math:: \ell_i = \tfrac1\alpha \log\Bigl(1 + \sum_{y_j = y_i} e^{-\alpha(s_{ij} - \lambda)}\Bigr)
          + \tfrac1\beta \log\Bigl(1 + \sum_{y_j \neq y_i} e^{\beta(s_{ij} - \lambda)}\Bigr)

with cosines :math:`s` (Wang et al. 2019, eq. 11). Every anchor that meets anybody counts: one
without a positive still has negatives to leave.
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
def multi_similarity_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Int[Tensor, " m"] | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Multi-similarity loss (Wang et al. 2019, eq. 11) of cosines.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``.
    alpha, beta:
        How sharply positives and negatives are weighed.
    base:
        The similarity λ beyond which pairs matter.
    reference, reference_labels:
        Rows that the anchors meet instead of one another.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over the anchors that meet anybody, ``"sum"`` or ``"none"``.

    >>> x, y = torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> multi_similarity_loss(x, y, alpha=1.0, beta=1.0, base=0.0, reduction="none")
    tensor([1.0064, 1.0064, 1.0986])
    """
    check_positive(alpha, "alpha")
    check_positive(beta, "beta")
    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    u = unit_rows(met.x)
    v = u if met.y is met.x else unit_rows(met.y)

    def block(start: int, stop: int) -> Float[Tensor, "2 b"]:
        s = u[start:stop] @ v.T - base
        positives, negatives = met.masks(start, stop)
        pull = _log_one_plus(-alpha * s, positives) / alpha
        push = _log_one_plus(beta * s, negatives) / beta
        met_any = (positives | negatives).any(1).to(s.dtype)
        return torch.stack([pull + push, met_any]) + s.detach().sum(1) * 0  # NaN shows

    losses, met_any = in_blocks(block, len(u), len(v))
    valid = met_any != 0
    return reduce_rows(keep_valid(losses, valid, met.x), valid, reduction)


def _log_one_plus(terms: Tensor, mask: Tensor) -> Float[Tensor, " b"]:
    """log(1 + Σ e^t) over the masked terms; 0 where there are none."""
    some = mask.any(1)
    mass = torch.where(some, own_log_mass(terms, mask), 0)
    return torch.where(some, -F.logsigmoid(-mass), 0)


class MultiSimilarityLoss(LossModule):
    """Module form, parameters as in :func:`multi_similarity_loss`."""

    loss = staticmethod(multi_similarity_loss)
    forward = meeting

    def __init__(
        self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, reduction: str = "mean"
    ) -> None:
        super().__init__({"alpha": alpha, "beta": beta, "base": base, "reduction": reduction})
