r"""ArcFace and CosFace: a softmax of cosines whose own class must win by a margin.

With :math:`\cos\theta_c` between a row and the vector of class c,

.. math:: \ell_i = -\log \operatorname{softmax}(s\,t_i)_{y_i}, \qquad
          t_{ic} = \cos\theta_{ic} \;(c \neq y_i), \qquad
          t_{iy_i} = \begin{cases} \cos(\theta_{iy_i} + m) & \text{ArcFace}\\
          \cos\theta_{iy_i} - m & \text{CosFace}\end{cases}

(Deng et al. 2019, eq. 3; Wang et al. 2018, eq. 4). Beyond :math:`\theta = \pi - m`, where
:math:`\cos(\theta + m)` would rise again, ArcFace goes on with :math:`\cos\theta - m \sin m`. Class
vectors ``(c, k, d)`` are k sub-centers of each class, the nearest of which stands for it (Deng et
al. 2020): wrong and odd labels then gather around a center of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_positive
from vicinal.neighbors.distances import unit_rows

from .conventions import (
    LossModule,
    any_scale,
    as_hard_labels,
    as_rows,
    check_class_range,
    reduce_rows,
)
from .proxies import class_rows, first_vectors, nearest_center


@any_scale
def arcface_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    weights: Float[Tensor, "c d"] | Float[Tensor, "c k d"],
    *,
    margin: float = 0.5,
    scale: float = 64.0,
    reduction: str = "mean",
) -> Tensor:
    """ArcFace (Deng et al. 2019, eq. 3): an additive margin of the angle.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Class indices ``(n,)``.
    weights:
        One vector for each class, ``(c, d)``, or k sub-centers, ``(c, k, d)``.
    margin:
        m, in radians.
    scale:
        s, the inverse of a temperature.
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.

    >>> x, w = torch.eye(2), torch.eye(2)
    >>> arcface_loss(x, torch.tensor([0, 1]), w, scale=1.0)  # log(1 + e^-cos(0.5))
    tensor(0.3477)
    """
    if not 0 <= margin <= math.pi / 2:
        raise InputError(f"`margin` must be an angle from 0 to π/2 in radians, got {margin!r}.")

    def moved(cosine: Tensor) -> Tensor:
        square = 1 - cosine.square()
        # cos(θ + m) = cos θ cos m - sin θ sin m; at θ = 0 sin θ has no derivative: it gets 0
        sine = torch.where(square > 0, square.clamp_min(torch.finfo(square.dtype).tiny).sqrt(), 0)
        angular = cosine * math.cos(margin) - sine * math.sin(margin)
        return torch.where(cosine >= -math.cos(margin), angular, cosine - margin * math.sin(margin))

    return _margin_softmax(x, labels, weights, moved, scale, reduction)


@any_scale
def cosface_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    weights: Float[Tensor, "c d"] | Float[Tensor, "c k d"],
    *,
    margin: float = 0.35,
    scale: float = 64.0,
    reduction: str = "mean",
) -> Tensor:
    """CosFace (Wang et al. 2018, eq. 4): an additive margin of the cosine.

    Parameters
    ----------
    x, labels, weights, scale, reduction:
        As in :func:`arcface_loss`.
    margin:
        m, in units of the cosine.

    >>> x, w = torch.eye(2), torch.eye(2)
    >>> cosface_loss(x, torch.tensor([0, 1]), w, margin=0.5, scale=1.0)  # log(1 + e^-0.5)
    tensor(0.4741)
    """
    if not 0 <= margin < math.inf:
        raise InputError(f"`margin` must be 0 or more and finite, got {margin!r}.")
    return _margin_softmax(x, labels, weights, lambda cosine: cosine - margin, scale, reduction)


def _margin_softmax(
    x: Tensor,
    labels: Tensor,
    weights: Tensor,
    moved: Callable[[Tensor], Tensor],
    scale: float,
    reduction: str,
) -> Tensor:
    """Cross-entropy of the scaled cosines, that of the own class ``moved``."""
    check_positive(scale, "scale")
    x = as_rows(x, "x")
    vectors, centers = class_rows(x, weights, "weights")
    labels = as_hard_labels(labels, len(x))
    check_class_range(labels, len(vectors) // centers, "labels")
    cosines = nearest_center(unit_rows(x) @ unit_rows(vectors).T, centers)
    own = moved(cosines.gather(1, labels[:, None]))
    scores = scale * cosines.scatter(1, labels[:, None], own)
    return reduce_rows(F.cross_entropy(scores, labels, reduction="none"), None, reduction)


class ArcFaceLoss(LossModule):
    """Module form of :func:`arcface_loss`; ``weights`` is its parameter.

    Parameters
    ----------
    num_classes, dim:
        Shape of the class vectors.
    margin, scale, reduction:
        As in :func:`arcface_loss`.
    sub_centers:
        Vectors of each class.
    generator:
        Draws the first vectors.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        sub_centers: int = 1,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__({"margin": margin, "scale": scale, "reduction": reduction})
        self.weights = first_vectors(num_classes, sub_centers, dim, generator)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return arcface_loss(x, labels, self.weights, **self.settings())


class CosFaceLoss(LossModule):
    """Module form of :func:`cosface_loss`; ``weights`` is its parameter.

    Parameters
    ----------
    num_classes, dim, sub_centers, generator:
        As in :class:`ArcFaceLoss`.
    margin, scale, reduction:
        As in :func:`cosface_loss`.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        sub_centers: int = 1,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__({"margin": margin, "scale": scale, "reduction": reduction})
        self.weights = first_vectors(num_classes, sub_centers, dim, generator)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return cosface_loss(x, labels, self.weights, **self.settings())
