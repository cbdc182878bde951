r"""Multi-similarity and circle loss: pairs of cosines :math:`s`, each weighed by how far off it is.

.. math:: \ell_i^{\text{MS}} =
          \tfrac1\alpha \log\Bigl(1 + \sum_{y_j = y_i} e^{-\alpha(s_{ij} - \lambda)}\Bigr)
          + \tfrac1\beta \log\Bigl(1 + \sum_{y_j \neq y_i} e^{\beta(s_{ij} - \lambda)}\Bigr)

(Wang et al. 2019, eq. 11): a pair counts by its own similarity and by that of its company. Every
anchor that meets anybody is judged: one without a positive still has negatives to leave.

.. math:: \ell_i^{\text{circle}} =
          \log\Bigl(1 + \sum_{y_n \neq y_i} e^{\gamma [s_{in} + m]_+ (s_{in} - m)}
          \sum_{y_p = y_i} e^{-\gamma [1 + m - s_{ip}]_+ (s_{ip} - 1 + m)}\Bigr)

(Sun et al. 2020, eq. 4 and 8): a similarity is pushed in proportion to how far it is from its
optimum. The paper treats the weights :math:`[·]_+` as constants, so its gradient is not the
derivative of its value; ``attached=True`` differentiates through them. Anchors without a positive
or without a negative are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_positive
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.mass import own_log_mass

from .conventions import LossModule, any_scale, keep_valid, reduce_rows
from .log_partition import in_blocks
from .met import Met, meeting


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

    def terms(s: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        s = s - base
        pull = _log_one_plus(-alpha * s, positives) / alpha
        push = _log_one_plus(beta * s, negatives) / beta
        return pull + push, (positives | negatives).any(1)

    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    return _of_cosines(met, terms, reduction)


def _log_one_plus(terms: Tensor, mask: Tensor) -> Float[Tensor, " b"]:
    """log(1 + Σ e^t) over the masked terms; 0 where there are none."""
    some = mask.any(1)
    mass = torch.where(some, own_log_mass(terms, mask), 0)
    return torch.where(some, -F.logsigmoid(-mass), 0)


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
    x, labels, reference, reference_labels, exclude_self:
        As in :func:`multi_similarity_loss`.
    margin:
        The relaxation m: similarities are drawn to 1 + m and -m.
    gamma:
        The scale γ.
    attached:
        Let the gradient pass through the weights of the pairs.
    reduction:
        ``"mean"`` over the anchors with a positive and a negative, ``"sum"`` or ``"none"``.

    >>> x, y = torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])
    >>> circle_loss(x, y, margin=0.25, gamma=1.0, reduction="none")  # log(1 + e^(-1/8)), and 0
    tensor([0.6326, 0.6326, 0.0000])
    """
    check_positive(gamma, "gamma")

    def terms(s: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        weighing = s if attached else s.detach()
        pull = -gamma * (1 + margin - weighing).relu() * (s - 1 + margin)
        push = gamma * (weighing + margin).relu() * (s - margin)
        valid = positives.any(1) & negatives.any(1)
        both = own_log_mass(pull, positives) + own_log_mass(push, negatives)
        return -F.logsigmoid(-torch.where(valid, both, 0)), valid

    met = Met.of(x, labels, reference, reference_labels, exclude_self)
    return _of_cosines(met, terms, reduction)


def _of_cosines(
    met: Met, terms: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], reduction: str
) -> Tensor:
    """The loss whose ``terms`` of a block of cosines, positives and negatives are each anchor's
    value and whether it counts."""
    u = unit_rows(met.x)
    v = u if met.y is met.x else unit_rows(met.y)

    def block(start: int, stop: int) -> Float[Tensor, "2 b"]:
        s = u[start:stop] @ v.T
        losses, valid = terms(s, *met.masks(start, stop))
        return torch.stack([losses, valid.to(s.dtype)]) + s.detach().sum(1) * 0  # NaN shows

    losses, counted = in_blocks(block, len(u), len(v))
    valid = counted != 0
    return reduce_rows(keep_valid(losses, valid, met.x), valid, reduction)


class MultiSimilarityLoss(LossModule):
    """Module form, parameters as in :func:`multi_similarity_loss`."""

    loss = staticmethod(multi_similarity_loss)
    forward = meeting

    def __init__(
        self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, reduction: str = "mean"
    ) -> None:
        super().__init__({"alpha": alpha, "beta": beta, "base": base, "reduction": reduction})


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
