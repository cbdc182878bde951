r"""From distance to log-weight: how much a neighbor counts.

Logarithms, because every consumer ends in a log or a softmax. ``exponential`` takes distances in
any unit (with squared ones it is the Gaussian kernel); ``dudani`` and ``gou`` are defined on plain,
unsquared distances in ascending order and know no bandwidth: they cannot be calibrated.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.checks import InputError
from vicinal.neighbors.mass import safe_log


def exponential(
    distances: Float[Tensor, "n k"], temperature: float | Tensor
) -> Float[Tensor, "n k"]:
    r"""Log-weights of the exponential kernel, :math:`\log w_{ij} = -d_{ij} / T`.

    Both ends are exact limits of the shares: at ``T = 0`` all weight lies on the nearest, shared
    among ties; at ``T = inf`` every neighbor weighs the same. ``temperature`` may be a tensor that
    broadcasts against the distances (one per neighbor's class, say).

    >>> exponential(torch.tensor([[1.0, 1.0, 4.0]]), 0.0)
    tensor([[0., 0., -inf]])
    """
    if isinstance(temperature, Tensor):
        if not torch.compiler.is_compiling() and bool((temperature < 0).any()):
            raise InputError(_negative(float(temperature.min())))
        zero = temperature == 0
        finite = _gibbs(distances, temperature.masked_fill(zero, 1.0))
        return torch.where(zero, _nearest(distances), finite)
    if math.isnan(temperature) or temperature < 0:
        raise InputError(_negative(temperature))
    if temperature == 0:
        return _nearest(distances)
    return _gibbs(distances, temperature)


def uniform(distances: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Log-weight 0 for every neighbor: plain counting.

    >>> uniform(torch.tensor([[1.0, 4.0]]))
    tensor([[0., 0.]])
    """
    return torch.zeros_like(distances)


def dudani(distances: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    r"""Log of Dudani's weights (1976), :math:`w_i = (d_k - d_i) / (d_k - d_1)`; all 1 if d_k = d_1.

    The nearest weighs 1 and the k-th 0, so k neighbors are k - 1 voters and k = 2 is the nearest
    neighbor; k = 1 weighs 1.

    >>> dudani(torch.tensor([[1.0, 2.0, 3.0]])).exp()
    tensor([[1.0000, 0.5000, 0.0000]])
    """
    _check_ascending(distances)
    first, last = distances[:, :1], distances[:, -1:]
    weights = safe_log(last - distances) - safe_log(last - first)
    return torch.where(last == first, torch.zeros_like(distances), weights)


def gou(distances: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    r"""Log of Gou's dual weights (2012), Dudani's times :math:`(d_k + d_1) / (d_k + d_i)`.

    (Gou's weights of 2011 divide Dudani's by the rank instead; they are not these.)

    >>> gou(torch.tensor([[1.0, 2.0, 3.0]])).exp()
    tensor([[1.0000, 0.4000, 0.0000]])
    """
    first, last = distances[:, :1], distances[:, -1:]
    weights = dudani(distances) + safe_log(last + first) - safe_log(last + distances)
    return torch.where(last == first, torch.zeros_like(distances), weights)


def _gibbs(distances: Tensor, temperature: float | Tensor) -> Tensor:
    """-d/T, but the limit T = 0 for a row whose every d/T overflows.

    Such a row's distances differ by nothing or by at least an ulp, and an ulp over T is already
    beyond what exp can tell from infinity; without this the row would have no mass at all.
    """
    weights = -distances / temperature
    lost = weights.amax(1, keepdim=True).isneginf()
    if not torch.compiler.is_compiling() and not bool(lost.any()):
        return weights
    return torch.where(lost, _nearest(distances), weights)


def _nearest(distances: Tensor) -> Tensor:
    nearest = distances == distances.amin(1, keepdim=True)
    weights = torch.zeros_like(distances).masked_fill(~nearest, -torch.inf)
    return weights.masked_fill(distances.isnan(), torch.nan)


def _check_ascending(distances: Tensor) -> None:
    if torch.compiler.is_compiling():
        return
    wrong = (distances.diff(dim=1) < 0).any(1) | (distances[:, 0] < 0)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"`distances` must be plain (unsquared) distances, ascending in each row, "
            f"but row {row} is not. Pass distances.sort(1).values with the labels in that order."
        )


def _negative(value: float) -> str:
    return f"`temperature` must be a number from 0 to infinity (both included), got {value!r}."
