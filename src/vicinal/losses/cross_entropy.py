r"""Cross-entropy against soft targets (Hugger & Uhlmann 2024, eq. 3), with any smoothing noise.

.. math:: \ell_i = -\sum_l \alpha_{il} \log q(l \mid x_i), \qquad q = \operatorname{softmax}(z_i)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_same_rows

from .conventions import LossModule, as_class_targets, as_rows, full_precision, reduce_rows
from .targets import MixedTargets, as_noise, check_share


@full_precision
def soft_target_cross_entropy(
    logits: Float[Tensor, "n c"],
    targets: Float[Tensor, "n c"] | Int[Tensor, " n"] | MixedTargets,
    *,
    reduction: str = "mean",
    epsilon: float = 0.0,
    noise: Float[Tensor, " c"] | None = None,
) -> Tensor:
    r"""Cross-entropy of ``targets`` smoothed toward ``noise``:
    :math:`(1-\epsilon)\alpha+\epsilon\xi`.

    A class without weight may have the logit -inf.

    Parameters
    ----------
    logits:
        Scores ``(n, c)``.
    targets:
        Rows that are distributions, class indices, or :class:`MixedTargets` (whose rows are never
        formed).
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.
    epsilon:
        The share ε of the noise.
    noise:
        ξ, a distribution over the classes; uniform if None.

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> soft_target_cross_entropy(z, torch.tensor([[0.5, 0.5]])).exp()
    tensor(2.)
    """
    logits = as_rows(logits, "logits")
    classes = logits.shape[1]
    check_share(epsilon, "epsilon")
    log_q = F.log_softmax(logits, 1)
    losses = _cross_entropy(log_q, targets)
    if epsilon > 0:
        xi = logits.new_full((classes,), 1 / classes)
        xi = xi if noise is None else as_noise(noise, classes, "noise").to(xi)
        losses = (1 - epsilon) * losses + epsilon * weighted(log_q, xi)
    return reduce_rows(losses, None, reduction)


def _cross_entropy(log_q: Tensor, targets: Any) -> Tensor:
    n, classes = log_q.shape
    if isinstance(targets, MixedTargets):
        check_same_rows(log_q, targets, "logits", "targets")
        return _mixed(log_q, targets)
    targets = as_class_targets(targets, n, classes)
    if targets.ndim == 2:
        return weighted(log_q, targets.to(log_q.dtype))
    return -log_q.gather(1, targets[:, None])[:, 0]


def _mixed(log_q: Tensor, targets: MixedTargets) -> Tensor:
    lam = targets.lam.to(log_q.dtype)
    # λ = 0 or 1 leaves one of the two classes without weight: 0 · log 0 = 0
    both = torch.stack([lam, 1 - lam], 1)
    classes = torch.stack([targets.a, targets.b], 1)
    own = weighted(log_q.gather(1, classes), both)
    if targets.epsilon == 0:
        return own
    width = targets.num_classes
    xi = log_q.new_full((width,), 1 / width) if targets.noise is None else targets.noise.to(log_q)
    return (1 - targets.epsilon) * own + targets.epsilon * weighted(log_q, xi)


def weighted(log_q: Float[Tensor, "n c"], weights: Tensor) -> Float[Tensor, " n"]:
    """``-Σ w log q`` where 0 · log 0 is 0."""
    weights = weights.expand_as(log_q)
    return -(weights * log_q.masked_fill(weights == 0, 0)).sum(1)


class SoftTargetCrossEntropyLoss(LossModule):
    """Module form, parameters as in :func:`soft_target_cross_entropy`; ``noise`` is a buffer."""

    noise: Tensor | None

    def __init__(
        self, *, reduction: str = "mean", epsilon: float = 0.0, noise: Tensor | None = None
    ) -> None:
        super().__init__({"reduction": reduction, "epsilon": epsilon})
        self.register_buffer("noise", noise)

    def forward(self, logits: Tensor, targets: Tensor | MixedTargets) -> Tensor:
        return soft_target_cross_entropy(logits, targets, noise=self.noise, **self.settings())
