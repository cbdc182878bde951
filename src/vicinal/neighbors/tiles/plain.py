r"""Log-masses as one plain formula, all pairs at once: derivatives of any order, any transform.

.. math:: \text{own}_i = \log \sum_{j \neq i} e^{-d_{ij}/T + \log a_{ij}}

with :math:`a_{ij}` how far two labels agree, and :math:`1 - a_{ij}` for the others. What the tiles
and the small batches give in value and gradient is formed so where the gradient itself is to be
differentiated, or under ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.neighbors.derivatives import derived
from vicinal.neighbors.distances import ordinary_distances
from vicinal.neighbors.mass import log_mass, own_log_mass


def plain_log_masses(
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: float | Tensor,
    metric: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(all, own, other) log-masses, float64, of rows as they are compared.

    >>> x, labels = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 0, 1])
    >>> plain_log_masses(x, None, labels, None, torch.tensor(1.0), "sqeuclidean")[1].tolist()
    [-1.0, -1.0, -inf]
    """
    s = -ordinary_distances(x, y, metric).double() / t
    if y is None:
        s = s.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), -torch.inf)
    met = x_labels if y_labels is None else y_labels
    if x_labels.ndim == 1:
        same = x_labels[:, None] == met
        return log_mass(s), own_log_mass(s, same), own_log_mass(s, ~same)
    same = (x_labels @ met.T).clamp(0, 1)
    return log_mass(s), own_log_mass(s, same), own_log_mass(s, 1 - same)


def derived_log_masses(
    upstream: Sequence[Tensor | None],
    x: Tensor,
    y: Tensor | None,
    x_labels: Tensor,
    y_labels: Tensor | None,
    t: Tensor,
    metric: str,
) -> list[Tensor | None]:
    """Gradients in x, y and t of what reaches the three log-masses, differentiable again."""

    def masses(x: Tensor, y: Tensor | None, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return plain_log_masses(x, y, x_labels, y_labels, t, metric)

    return derived(masses, [x, y, t], upstream)


def plain_surprise(x: Tensor, labels: Tensor, t: float | Tensor, metric: str, mean: bool) -> Tensor:
    """-log of the own class's share of each row, or its mean over the rows with a peer."""
    _, own, other = plain_log_masses(x, None, labels, None, t, metric)
    valid = own != -torch.inf
    lead = torch.where(valid, own - other, 0.0)
    loss = torch.where(valid, -F.logsigmoid(lead), 0.0).to(x.dtype)
    return loss.sum() / valid.sum().clamp_min(1) if mean else loss
