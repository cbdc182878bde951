r"""Noise targets drawn apart from the batch, for :func:`.info_nce` (its paper's future work).

Each sampler returns targets of the cheapest kind: class indices, :class:`.MixedTargets` or rows.
``probabilities`` is the noise law η over classes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_whole

from .targets import MixedTargets, as_noise, beta, log_gamma_draws


def one_hot_noise(
    count: int, probabilities: Float[Tensor, " c"], generator: torch.Generator | None = None
) -> Int[Tensor, " m"]:
    """Classes drawn from η. As ``count`` grows, InfoNCE becomes the cross-entropy.

    >>> one_hot_noise(3, torch.tensor([0.0, 1.0]))
    tensor([1, 1, 1])
    """
    eta = as_noise(probabilities, len(probabilities), "probabilities")
    check_whole(count, "count", 1)
    return _draw(eta, count, generator)


def mixup_noise(
    count: int,
    probabilities: Float[Tensor, " c"],
    alpha: float,
    generator: torch.Generator | None = None,
    *,
    epsilon: float = 0.0,
) -> MixedTargets:
    """Two classes from η each, mixed by λ ~ Beta(α, α), smoothed by ``epsilon``.

    Parameters
    ----------
    count:
        How many targets.
    probabilities:
        η, a distribution over the classes.
    alpha:
        Of the mixing share.
    generator:
        Draws classes and shares.
    epsilon:
        Smoothing toward the uniform distribution.

    >>> mixup_noise(5, torch.tensor([0.5, 0.5]), 0.8, torch.Generator().manual_seed(0)).num_classes
    2
    """
    eta = as_noise(probabilities, len(probabilities), "probabilities")
    check_whole(count, "count", 1)
    a, b = _draw(eta, count, generator), _draw(eta, count, generator)
    lam = beta(alpha, count, generator, eta.device).float()
    return MixedTargets(a, b, lam, epsilon, len(eta))


def dirichlet_noise(
    count: int, concentration: Float[Tensor, " c"], generator: torch.Generator | None = None
) -> Float[Tensor, "m c"]:
    """Rows from Dirichlet(concentration); ``c * eta * strength`` has mean η.

    >>> dirichlet_noise(4, torch.ones(3), torch.Generator().manual_seed(0)).sum(1)
    tensor([1., 1., 1., 1.])
    """
    concentration = as_tensor(concentration, "concentration").float()
    if concentration.ndim != 1 or not bool((concentration > 0).all()):
        raise InputError("`concentration` must be a vector of numbers above 0, one per class.")
    check_whole(count, "count", 1)
    logs = log_gamma_draws(concentration.expand(count, -1), generator)
    return logs.softmax(1).to(concentration)


def continuous_categorical_noise(
    count: int, probabilities: Float[Tensor, " c"], generator: torch.Generator | None = None
) -> Float[Tensor, "m c"]:
    r"""Rows from the continuous categorical CC(λ), density :math:`\propto \prod_k
    \lambda_k^{\alpha_k}`.

    (Hugger & Uhlmann 2024, eq. 4.) Exact, by rejection. Exponentials :math:`Y_k` of rates
    :math:`r_k = M - \log\lambda_k`, divided by their sum, have the density :math:`\propto t^{-c}`
    with
    :math:`t = \sum_k r_k \alpha_k`; the target is :math:`\propto e^{-t}`, and the ratio
    :math:`e^{-t} t^c` is largest at t = c. With M such that :math:`\sum_k 1/r_k = 1`, t stays near
    c: uniform λ accepts all draws, and a far from uniform one about :math:`1/\sqrt c` of them. A
    class of probability 0 gets no weight.

    >>> continuous_categorical_noise(2, torch.tensor([0.5, 0.0, 0.5]))[:, 1]
    tensor([0., 0.])
    """
    eta = as_noise(probabilities, len(probabilities), "probabilities")
    check_whole(count, "count", 1)
    support = (eta > 0).nonzero().flatten()
    rates = _centered_rates(eta[support].double().log())
    classes = len(rates)
    place = generator.device if generator is not None else eta.device
    rates = rates.to(place)
    drawn = torch.empty(0, classes, dtype=torch.float64, device=place)
    while len(drawn) < count:
        shape = (2 * (count - len(drawn)) + 8, classes)
        uniform = torch.rand(shape, dtype=torch.float64, device=place, generator=generator)
        weights = -(-uniform).log1p() / rates
        weights /= weights.sum(1, keepdim=True)
        t = weights @ rates
        log_accept = classes - t + classes * (t / classes).log()
        coin = torch.rand(len(t), dtype=torch.float64, device=place, generator=generator)
        drawn = torch.cat([drawn, weights[(-coin).log1p() <= log_accept]])
    rows = torch.zeros(count, len(eta), dtype=eta.dtype, device=eta.device)
    rows[:, support] = drawn[:count].to(rows)
    return rows


def _centered_rates(log_eta: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """``M - log η`` with Σ 1/r = 1, by bisection: M - max log η lies between 1 and c."""
    gaps = log_eta.max() - log_eta
    low, high = 1.0, float(len(gaps))
    for _ in range(60):
        middle = (low + high) / 2
        if float((1 / (middle + gaps)).sum()) > 1:
            low = middle
        else:
            high = middle
    return high + gaps


def _draw(eta: Tensor, count: int, generator: torch.Generator | None) -> Int[Tensor, " m"]:
    place = generator.device if generator is not None else eta.device
    drawn = torch.multinomial(eta.to(place), count, replacement=True, generator=generator)
    return drawn.to(eta.device)
