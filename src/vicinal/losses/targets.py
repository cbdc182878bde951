r"""Soft targets: label smoothing, MixUp, CutMix, and mixtures that stay sparse.

Smoothing (Hugger & Uhlmann 2024, eq. 2) moves a share ε of a label's weight to a noise distribution
ξ:

.. math:: p^\epsilon(l \mid x) = (1 - \epsilon)\,\delta(l, k) + \epsilon\,\xi(l)

A mixed target is :math:`(1-\epsilon)(\lambda e_a + (1-\lambda) e_b) + \epsilon\,\xi`: two classes
and a number per sample. :class:`MixedTargets` keeps just these, so a loss need not form ``(n, c)``
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_tensor,
    check_labels,
    check_positive,
    check_same_rows,
    is_traced,
)

from .conventions import as_class_targets, check_class_range


@dataclass(frozen=True)
class MixedTargets:
    """Targets ``(1-ε)(λ e_a + (1-λ) e_b) + ε ξ`` for n samples, without their ``(n, c)`` matrix.

    Parameters
    ----------
    a, b:
        Class indices ``(n,)``.
    lam:
        λ, the weight of ``a``: a number or ``(n,)``.
    epsilon:
        Smoothing ε.
    num_classes:
        c.
    noise:
        ξ, a distribution over the classes; uniform if None.

    >>> MixedTargets(torch.tensor([0]), torch.tensor([2]), 0.75, 0.0, 3).dense()
    tensor([[0.7500, 0.0000, 0.2500]])
    """

    a: Int[Tensor, " n"]
    b: Int[Tensor, " n"]
    lam: Float[Tensor, " n"]
    epsilon: float = 0.0
    num_classes: int = 0
    noise: Float[Tensor, " c"] | None = None

    def __post_init__(self) -> None:
        a = check_labels(as_tensor(self.a, "a"), "a", len(self.a)).long()
        b = check_labels(as_tensor(self.b, "b"), "b", len(self.b)).long()
        check_same_rows(a, b, "a", "b")
        if self.num_classes < 1:
            raise InputError(f"`num_classes` must be at least 1, got {self.num_classes}.")
        lam = torch.as_tensor(self.lam, device=a.device)
        lam = lam if lam.is_floating_point() else lam.float()
        if lam.ndim == 1:
            check_same_rows(lam, a, "lam", "a")
        check_share(self.epsilon, "epsilon")
        if not is_traced():
            check_class_range(a, self.num_classes, "a")
            check_class_range(b, self.num_classes, "b")
            if not bool(((lam >= 0) & (lam <= 1)).all()):
                raise InputError("`lam` must lie between 0 and 1: the share of class `a`.")
        noise = None if self.noise is None else as_noise(self.noise, self.num_classes, "noise")
        fields = {"a": a, "b": b, "lam": lam.expand(len(a)), "noise": noise}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.a)

    def dense(self) -> Float[Tensor, "n c"]:
        """The same targets as rows of weights."""
        lam = self.lam[:, None]
        mixed = torch.zeros(len(self), self.num_classes, dtype=lam.dtype, device=lam.device)
        mixed.scatter_add_(1, self.a[:, None], lam).scatter_add_(1, self.b[:, None], 1 - lam)
        return _toward_noise(mixed, self.epsilon, self.noise)


Targets = Tensor | MixedTargets


def smooth_labels(
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    num_classes: int,
    epsilon: float,
    noise: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "n c"]:
    r"""Rows :math:`(1-\epsilon)\,e_{y} + \epsilon\,\xi` (Hugger & Uhlmann 2024, eq. 2).

    Parameters
    ----------
    labels:
        Class indices ``(n,)``; soft labels ``(n, c)`` are smoothed as they are.
    num_classes:
        c.
    epsilon:
        The share ε of the noise.
    noise:
        ξ, a distribution over the classes; uniform if None.

    >>> smooth_labels(torch.tensor([1]), 4, 0.2)
    tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
    """
    check_share(epsilon, "epsilon")
    labels = as_tensor(labels, "labels")
    labels = as_class_targets(labels, len(labels), num_classes, "labels")
    if labels.ndim == 1:
        rows = torch.zeros(len(labels), num_classes, device=labels.device)
        labels = rows.scatter(1, labels[:, None], 1.0)
    noise = None if noise is None else as_noise(noise, num_classes, "noise")
    return _toward_noise(labels, epsilon, noise)


def mixup(
    x: Float[Tensor, "n ..."],
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"],
    alpha: float,
    generator: torch.Generator | None = None,
    *,
    num_classes: int | None = None,
    epsilon: float = 0.0,
) -> tuple[Float[Tensor, "n ..."], MixedTargets | Float[Tensor, "n c"]]:
    r"""Each sample blended with another, :math:`\lambda x_i + (1-\lambda) x_{\pi(i)}`.

    Parameters
    ----------
    x:
        Samples ``(n, ...)``.
    targets:
        Class indices, which give :class:`MixedTargets`, or soft labels, which give rows.
    alpha:
        λ ~ Beta(α, α), drawn for each sample.
    generator:
        Draws λ and the partners.
    num_classes:
        Of the mixed targets; without it the largest label ends the classes.
    epsilon:
        Smooth the targets by so much, after mixing.

    >>> x, y = mixup(torch.eye(3), torch.tensor([0, 1, 2]), 1.0, torch.Generator().manual_seed(0))
    >>> torch.allclose(x, y.dense())
    True
    """
    x, targets = _batch(x, targets)
    lam = beta(alpha, len(x), generator, x.device)
    other = torch.randperm(len(x), generator=generator, device=_device(generator, x)).to(x.device)
    share = lam.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
    return share * x + (1 - share) * x[other], _mix(targets, other, lam, num_classes, epsilon)


def cutmix(
    x: Float[Tensor, "n channels height width"],
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"],
    alpha: float,
    generator: torch.Generator | None = None,
    *,
    num_classes: int | None = None,
    epsilon: float = 0.0,
) -> tuple[Float[Tensor, "n channels height width"], MixedTargets | Float[Tensor, "n c"]]:
    """A box of each image replaced by another image's; λ is the share of pixels that stayed.

    The box has the area 1 - λ, λ ~ Beta(α, α), around a uniform center, and is clipped at the
    border: the target's λ is counted from the clipped box.

    Parameters
    ----------
    x:
        Images ``(n, channels, height, width)``.
    targets, alpha, generator, num_classes, epsilon:
        As in :func:`mixup`.

    >>> x = torch.eye(2).repeat_interleave(16).view(4, 1, 4, 4)
    >>> _, y = cutmix(x, torch.tensor([0, 1, 1, 0]), 1.0, torch.Generator().manual_seed(1))
    >>> y.num_classes
    2
    """
    x, targets = _batch(x, targets)
    if x.ndim != 4:
        raise InputError(
            f"`x` must be images (n, channels, height, width), got shape {tuple(x.shape)}."
        )
    lam = beta(alpha, len(x), generator, x.device)
    other = torch.randperm(len(x), generator=generator, device=_device(generator, x)).to(x.device)
    rows = _inside(x.shape[2], lam, generator, x)
    box = rows[:, :, None] & _inside(x.shape[3], lam, generator, x)[:, None, :]
    lam = 1 - box.double().mean((1, 2))
    mixed = torch.where(box[:, None], x[other], x)
    return mixed, _mix(targets, other, lam, num_classes, epsilon)


def draw_labels(targets: Targets, generator: torch.Generator | None = None) -> Int[Tensor, " n"]:
    """One class for each row, drawn from the row (hard labels are their own draw)."""
    if isinstance(targets, Tensor):
        if targets.ndim == 1:
            return targets
        return torch.multinomial(targets, 1, generator=generator)[:, 0]
    place = generator.device if generator is not None else targets.a.device
    u = torch.rand(2, len(targets), generator=generator, device=place).to(targets.a.device)
    own = torch.where(u[0] < targets.lam, targets.a, targets.b)
    if targets.epsilon == 0:
        return own
    xi = torch.ones(targets.num_classes) if targets.noise is None else targets.noise
    noise = torch.multinomial(xi.to(place), len(targets), replacement=True, generator=generator)
    return torch.where(u[1] < targets.epsilon, noise.to(own.device), own)


def beta(
    alpha: float, count: int, generator: torch.Generator | None, device: torch.device
) -> Float[Tensor, " n"]:
    """Draws from Beta(α, α) in float64, by the logs of two gamma draws: no underflow at small α."""
    check_positive(alpha, "alpha")
    logs = log_gamma_draws(torch.full((2, count), float(alpha)), generator)
    return torch.sigmoid(logs[0] - logs[1]).to(device)


def log_gamma_draws(alpha: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logs of Gamma(α) draws: Gamma(α) = Gamma(α + 1) · U^(1/α), whose log is finite at any α."""
    alpha = alpha.to(dtype=torch.float64, device=generator.device if generator else alpha.device)
    larger = torch._standard_gamma(alpha + 1, generator=generator)
    uniform = torch.rand(alpha.shape, dtype=torch.float64, device=alpha.device, generator=generator)
    return larger.log() + (-uniform).log1p() / alpha  # 1 - U lies in (0, 1]


def as_noise(noise: Any, classes: int, name: str) -> Float[Tensor, " c"]:
    """A distribution over classes as a float vector."""
    noise = as_tensor(noise, name)
    noise = noise if noise.is_floating_point() else noise.float()
    if noise.shape != (classes,):
        raise InputError(
            f"`{name}` must hold one probability for each of the {classes} classes, got shape "
            f"{tuple(noise.shape)}."
        )
    if not is_traced():
        total = float(noise.detach().sum(dtype=torch.float64))
        if bool((noise < 0).any()) or not abs(total - 1) < 1e-3:
            raise InputError(
                f"`{name}` must be a distribution over the classes: not negative and summing to 1, "
                f"got a sum of {total:.4g}. Divide it by its sum."
            )
    return noise


def check_share(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"`{name}` must lie between 0 and 1, got {value!r}.")


def _toward_noise(rows: Tensor, epsilon: float, noise: Tensor | None) -> Tensor:
    uniform = 1 / rows.shape[1]
    return (1 - epsilon) * rows + epsilon * (uniform if noise is None else noise.to(rows))


def _batch(x: Any, targets: Any) -> tuple[Tensor, Tensor]:
    x, targets = as_tensor(x, "x"), as_tensor(targets, "targets")
    return x, check_labels(targets, "targets", len(x))


def _device(generator: torch.Generator | None, x: Tensor) -> torch.device:
    return generator.device if generator is not None else x.device


def _mix(
    targets: Tensor, other: Tensor, lam: Tensor, num_classes: int | None, epsilon: float
) -> MixedTargets | Tensor:
    if targets.ndim == 2:
        share = lam.to(targets.dtype)[:, None]
        return _toward_noise(share * targets + (1 - share) * targets[other], epsilon, None)
    if num_classes is None and epsilon > 0:
        raise InputError("`epsilon` smooths over all classes: pass `num_classes` as well.")
    classes = num_classes or int(targets.max()) + 1
    return MixedTargets(targets, targets[other], lam.float(), epsilon, classes)


def _inside(size: int, lam: Tensor, generator: torch.Generator | None, x: Tensor) -> Tensor:
    """Which of ``size`` positions each sample's box covers, cut off at the border: (n, size)."""
    draws = torch.rand(len(lam), generator=generator, device=_device(generator, x)).to(x.device)
    center = (draws * size).long()
    half = ((1 - lam).sqrt() * size / 2).round().long()
    grid = torch.arange(size, device=x.device)
    return (grid >= (center - half)[:, None]) & (grid < (center + half)[:, None])
