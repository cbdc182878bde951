r"""Losses against one learned vector per class: Proxy-NCA and the normalized softmax.

.. math:: \ell_i^{\text{ProxyNCA}} = \tfrac1T \|x_i - p_{y_i}\|^2
          + \log \sum_{c} e^{-\|x_i - p_c\|^2 / T}

(Movshovitz-Attias et al. 2017; Karpusha et al. 2020 normalize rows and proxies and take T = 0.33).
The original leaves the own proxy out of the sum, and its loss can be negative; most code includes
it, which is the cross-entropy of the scores :math:`-\|x - p\|^2/T`.

.. math:: \ell_i^{\text{NormSoftmax}} = -\log \operatorname{softmax}(\cos(x_i, w) / T)_{y_i}

(Zhai & Wu 2019; [63] in Karpusha et al. 2020.) Soft labels weigh the classes' log-probabilities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_positive, check_same_width
from vicinal.neighbors.distances import unit_rows

from .conventions import any_scale, as_class_targets, as_rows, full_precision, reduce_rows


@full_precision
@any_scale
def proxy_nca_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    proxies: Float[Tensor, "c d"],
    *,
    temperature: float | Tensor = 1.0,
    include_positive: bool = True,
    reduction: str = "mean",
    normalize: bool = False,
) -> Tensor:
    """Proxy-NCA (Movshovitz-Attias et al. 2017, eq. 4) on squared distances over ``temperature``.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Class indices ``(n,)``, or soft labels ``(n, c)``.
    proxies:
        One vector for each class, ``(c, d)``.
    temperature:
        What squared distances are divided by.
    include_positive:
        False is the original, whose sum runs over the other classes' proxies.
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.
    normalize:
        Compare unit rows, as both papers do.

    >>> import torch
    >>> x, p = torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]])
    >>> proxy_nca_loss(x, torch.tensor([0]), p)  # log(1 + 1/e)
    tensor(0.3133)
    """
    x, proxies = _rows(x, proxies, "proxies", temperature)
    labels = as_class_targets(labels, len(x), len(proxies), "labels")
    if normalize:
        x, proxies = unit_rows(x), unit_rows(proxies)
    center = proxies.detach().mean(0)  # distances do not move; rounding is that of the spread
    x, proxies = x - center, proxies - center
    # -‖x - p‖²/T but for ‖x‖²/T, which is the same for every proxy and cancels
    scores = torch.addmm(-proxies.square().sum(1), x, proxies.T, alpha=2) / temperature
    if include_positive:
        losses = _cross_entropy(scores, labels)
    else:
        losses = _without_own(scores, labels)
    return reduce_rows(losses, None, reduction)


@full_precision
@any_scale
def normalized_softmax_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    weights: Float[Tensor, "c d"],
    *,
    temperature: float | Tensor = 0.05,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of cosine similarities over ``temperature`` (Zhai & Wu 2019).

    A zero row has similarity 0 to every class and gets no gradient.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Class indices ``(n,)``, or soft labels ``(n, c)``.
    weights:
        One vector for each class, ``(c, d)``.
    temperature:
        What similarities are divided by.
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.

    >>> import torch
    >>> x, w = torch.eye(2), 3 * torch.eye(2)
    >>> normalized_softmax_loss(x, torch.tensor([0, 1]), w, temperature=1.0)  # log(1 + 1/e)
    tensor(0.3133)
    """
    x, weights = _rows(x, weights, "weights", temperature)
    labels = as_class_targets(labels, len(x), len(weights), "labels")
    scores = unit_rows(x) @ unit_rows(weights).T / temperature
    return reduce_rows(_cross_entropy(scores, labels), None, reduction)


def _rows(
    x: Tensor, classes: Tensor, name: str, temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    check_positive(temperature, "temperature")  # type: ignore[arg-type]  # a tensor is checked too
    x, classes = as_rows(x, "x"), as_rows(classes, name)
    check_same_width(x, classes, "x", name)
    return x, classes.to(x.dtype)


def _cross_entropy(scores: Tensor, labels: Tensor) -> Float[Tensor, " n"]:
    labels = labels.to(scores.dtype) if labels.ndim == 2 else labels
    return F.cross_entropy(scores, labels, reduction="none")


def _without_own(scores: Tensor, labels: Tensor) -> Float[Tensor, " n"]:
    if labels.ndim == 2:
        raise InputError(
            "`include_positive=False` needs integer `labels`: with soft ones every class is own."
        )
    if scores.shape[1] < 2:
        raise InputError(
            "`include_positive=False` contrasts with other classes' proxies: `proxies` has one row."
        )
    own = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], float("-inf"))
    return others.logsumexp(1) - own[:, 0]


class ProxyNCALoss(nn.Module):
    """Module form of :func:`proxy_nca_loss`; ``proxies`` is its parameter.

    Parameters
    ----------
    num_classes, dim:
        Shape of the proxies.
    temperature, include_positive, reduction, normalize:
        As in :func:`proxy_nca_loss`.
    generator:
        Draws the first proxies.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        temperature: float | Tensor = 1.0,
        include_positive: bool = True,
        reduction: str = "mean",
        normalize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, dim, generator=generator))
        self.temperature = temperature
        self.include_positive = include_positive
        self.reduction = reduction
        self.normalize = normalize

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return proxy_nca_loss(
            x,
            labels,
            self.proxies,
            temperature=self.temperature,
            include_positive=self.include_positive,
            reduction=self.reduction,
            normalize=self.normalize,
        )


class NormalizedSoftmaxLoss(nn.Module):
    """Module form of :func:`normalized_softmax_loss`; ``weights`` is its parameter.

    Parameters
    ----------
    num_classes, dim:
        Shape of the weights.
    temperature, reduction:
        As in :func:`normalized_softmax_loss`.
    generator:
        Draws the first weights.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        temperature: float | Tensor = 0.05,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(num_classes, dim, generator=generator))
        self.temperature = temperature
        self.reduction = reduction

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return normalized_softmax_loss(
            x, labels, self.weights, temperature=self.temperature, reduction=self.reduction
        )
