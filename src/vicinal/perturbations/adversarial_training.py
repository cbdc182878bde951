r"""Training on the worst inputs near the given ones (Madry et al. 2018):

.. math:: \min_\theta \; \mathbb{E} \max_{\|x' - x\| \le \varepsilon} \ell(f_\theta(x'), y),

the inner maximum by PGD. Frosst 2019, Table 2, compares the entanglement of a model so trained with
that of a plain one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.checks import InputError
from vicinal.perturbations.attacks import pgd
from vicinal.perturbations.climb import Bounds

Criterion = Callable[[Tensor, Tensor], Tensor]


def adversarial_loss(
    model: nn.Module,
    x: Float[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    epsilon: float,
    *,
    clean_share: float = 0.0,
    criterion: Criterion = F.cross_entropy,
    step: float | None = None,
    steps: int = 7,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss at inputs found by PGD, differentiable in the model's parameters.

    The inputs are sought in evaluation mode; the loss is that of the mode the model is in.

    Parameters
    ----------
    model, x, y, epsilon, step, steps, norm, bounds, generator
        As for :func:`~vicinal.perturbations.pgd`.
    clean_share
        The share of the loss at the given inputs that is mixed in.
    criterion
        The loss of logits and labels.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> x, y = torch.rand(8, 2), torch.randint(2, (8,))
    >>> bool(adversarial_loss(model, x, y, 0.1) >= F.cross_entropy(model(x), y))
    True
    """
    if not 0 <= clean_share <= 1:
        raise InputError(f"`clean_share` must lie in [0, 1], got {clean_share!r}.")
    moved = pgd(
        model, x, y, epsilon,
        step=step, steps=steps, norm=norm, bounds=bounds, generator=generator,
    )  # fmt: skip
    loss = criterion(model(moved), y)
    if clean_share:
        loss = (1 - clean_share) * loss + clean_share * criterion(model(x), y)
    return loss


def adversarial_step(
    model: nn.Module,
    x: Float[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    optimizer: torch.optim.Optimizer,
    epsilon: float,
    *,
    clean_share: float = 0.0,
    criterion: Criterion = F.cross_entropy,
    step: float | None = None,
    steps: int = 7,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> float:
    """One optimizer step on :func:`adversarial_loss`; returns the loss before it.

    Parameters
    ----------
    optimizer
        Over the parameters of ``model``; its gradients are cleared first.
    model, x, y, epsilon, clean_share, criterion, step, steps, norm, bounds, generator
        As for :func:`adversarial_loss`.
    """
    optimizer.zero_grad()
    loss = adversarial_loss(
        model, x, y, epsilon, clean_share=clean_share, criterion=criterion,
        step=step, steps=steps, norm=norm, bounds=bounds, generator=generator,
    )  # fmt: skip
    loss.backward()
    optimizer.step()
    return float(loss.detach())
