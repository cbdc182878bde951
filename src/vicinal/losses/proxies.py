r"""Losses against one learned vector per class: Proxy-NCA and the normalized softmax.

.. math:: \ell_i^{\text{ProxyNCA}} = \tfrac1T \|x_i - p_{y_i}\|^2
          + \log \sum_{c} e^{-\|x_i - p_c\|^2 / T}

(Movshovitz-Attias et al. 2017; Karpusha et al. 2020 normalize rows and proxies and take T = 0.33).
The original leaves the own proxy out of the sum, and its loss can be negative; most code includes
it, which is the cross-entropy of the scores :math:`-\|x - p\|^2/T`.

.. math:: \ell_i^{\text{NormSoftmax}} = -\log \operatorname{softmax}(\cos(x_i, w) / T)_{y_i}

(Zhai & Wu 2019; [63] in Karpusha et al. 2020.) Soft labels weigh the classes' log-probabilities.
Both take k vectors of each class, ``(c, k, d)``, the nearest of which stands for it (sub-centers,
Deng et al. 2020).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_positive, check_same_width
from vicinal.neighbors.distances import unit_rows

from .conventions import (
    LossModule,
    any_scale,
    as_class_targets,
    as_rows,
    reduce_rows,
)


@any_scale
def proxy_nca_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    proxies: Float[Tensor, "c d"] | Float[Tensor, "c k d"],
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
        One vector for each class, ``(c, d)``, or k sub-centers, ``(c, k, d)``.
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
    check_positive(temperature, "temperature")
    x = as_rows(x, "x")
    proxies, centers = class_rows(x, proxies, "proxies")
    labels = as_class_targets(labels, len(x), len(proxies) // centers, "labels")
    if normalize:
        x, proxies = unit_rows(x), unit_rows(proxies)
    center = proxies.detach().mean(0)  # distances do not move; rounding is that of the spread
    x, proxies = x - center, proxies - center
    # -‖x - p‖²/T but for ‖x‖²/T, which is the same for every proxy and cancels
    scores = torch.addmm(-proxies.square().sum(1), x, proxies.T, alpha=2) / temperature
    scores = nearest_center(scores, centers)
    losses = _cross_entropy(scores, labels) if include_positive else _without_own(scores, labels)
    return reduce_rows(losses, None, reduction)


@any_scale
def normalized_softmax_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    weights: Float[Tensor, "c d"] | Float[Tensor, "c k d"],
    *,
    temperature: float | Tensor = 0.05,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of cosine similarities over ``temperature`` (Zhai & Wu 2019).

    A zero row has similarity 0 to every class and gets no gradient.

    Parameters
    ----------
    x, labels, reduction:
        As in :func:`proxy_nca_loss`.
    weights:
        One vector for each class, ``(c, d)``, or k sub-centers, ``(c, k, d)``.
    temperature:
        What similarities are divided by.

    >>> import torch
    >>> x, w = torch.eye(2), 3 * torch.eye(2)
    >>> normalized_softmax_loss(x, torch.tensor([0, 1]), w, temperature=1.0)  # log(1 + 1/e)
    tensor(0.3133)
    """
    check_positive(temperature, "temperature")
    x = as_rows(x, "x")
    weights, centers = class_rows(x, weights, "weights")
    labels = as_class_targets(labels, len(x), len(weights) // centers, "labels")
    scores = nearest_center(unit_rows(x) @ unit_rows(weights).T / temperature, centers)
    return reduce_rows(_cross_entropy(scores, labels), None, reduction)


def class_rows(x: Tensor, vectors: Tensor, name: str) -> tuple[Float[Tensor, "r d"], int]:
    """The vectors of the classes as rows, those of a class together, and how many each has."""
    centers = 1
    if isinstance(vectors, Tensor) and vectors.ndim == 3:
        centers, vectors = vectors.shape[1], vectors.flatten(0, 1)
    vectors = as_rows(vectors, name)
    check_same_width(x, vectors, "x", name)
    return vectors.to(x.dtype), centers


def nearest_center(scores: Float[Tensor, "n r"], centers: int) -> Float[Tensor, "n c"]:
    """The best score among each class's vectors.

    >>> nearest_center(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[3., 2.]])
    """
    return scores if centers == 1 else scores.unflatten(1, (-1, centers)).amax(2)


def first_vectors(
    num_classes: int, centers: int, dim: int, generator: torch.Generator | None
) -> nn.Parameter:
    """Drawn vectors ``(c, d)``, or ``(c, k, d)`` where a class has more than one."""
    shape = (num_classes, dim) if centers == 1 else (num_classes, centers, dim)
    return nn.Parameter(torch.randn(shape, generator=generator))


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
    return scores.scatter(1, labels[:, None], float("-inf")).logsumexp(1) - own[:, 0]


class ProxyNCALoss(LossModule):
    """Module form of :func:`proxy_nca_loss`; ``proxies`` is its parameter.

    Parameters
    ----------
    num_classes, dim:
        Shape of the proxies.
    temperature, include_positive, reduction, normalize:
        As in :func:`proxy_nca_loss`.
    sub_centers:
        Vectors of each class.
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
        sub_centers: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        kind = {"include_positive": include_positive, "normalize": normalize}
        super().__init__({"temperature": temperature, "reduction": reduction, **kind})
        self.proxies = first_vectors(num_classes, sub_centers, dim, generator)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return proxy_nca_loss(x, labels, self.proxies, **self.settings())


class NormalizedSoftmaxLoss(LossModule):
    """Module form of :func:`normalized_softmax_loss`; ``weights`` is its parameter.

    Parameters
    ----------
    num_classes, dim, sub_centers, generator:
        As in :class:`ProxyNCALoss`.
    temperature, reduction:
        As in :func:`normalized_softmax_loss`.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        temperature: float | Tensor = 0.05,
        reduction: str = "mean",
        sub_centers: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__({"temperature": temperature, "reduction": reduction})
        self.weights = first_vectors(num_classes, sub_centers, dim, generator)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return normalized_softmax_loss(x, labels, self.weights, **self.settings())
