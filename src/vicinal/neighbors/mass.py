r"""From distance to weight, and how much weight a neighborhood gives to each label.

Everything in this library is read off two sums over the neighbors of a point,

.. math::  M_i = \sum_j w_{ij} \qquad m_i(c) = \sum_j w_{ij} \, [y_j = c],

with :math:`Y_{jc}` for :math:`[y_j = c]` where labels are soft. Weights and sums stay logarithms,
because every consumer ends in a log or a softmax; an empty sum is -inf and sends gradient 0 back,
never NaN. NaN in gives NaN out.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vicinal.checks import InputError, is_traced


def safe_log(x: Tensor) -> Tensor:
    """log x; -inf at 0 with gradient 0 there, where the plain log's gradient times 0 is NaN.

    >>> safe_log(torch.tensor([0.0, 1.0]))
    tensor([-inf, 0.])
    """
    no = x == 0 if x.requires_grad else None
    return x.log() if no is None else x.masked_fill(no, 1.0).log().masked_fill(no, -torch.inf)


# ------------------------------------------------------------------ kernels
# ``exponential`` takes distances in any unit (with squared ones it is the Gaussian kernel);
# ``dudani`` and ``gou`` are defined on plain, unsquared distances in ascending order and know no
# bandwidth: they cannot be calibrated.


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
    return _nearest(distances) if temperature == 0 else _gibbs(distances, temperature)


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
    weights = distances / -temperature
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


# ------------------------------------------------------------------ masses


def log_mass(log_weights: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    r"""All the weight around each point, :math:`\log M_i`; of a sum of nothing the gradient is 0.

    >>> log_mass(torch.zeros(1, 4)).exp()
    tensor([4.])
    """
    top = log_weights.detach().amax(1, keepdim=True).clamp_min(torch.finfo(log_weights.dtype).min)
    return safe_log((log_weights - top).exp_().sum(1)) + top.squeeze(1)


def agreement(
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"], others: Tensor
) -> Bool[Tensor, "n m"] | Float[Tensor, "n m"]:
    """Which rows share their label with which others (bool), or how much of it, <α_i, α_j>.

    >>> agreement(torch.tensor([0, 1]), torch.tensor([1, 1, 0]))
    tensor([[False, False,  True],
            [ True,  True, False]])
    """
    return labels[:, None] == others if labels.ndim == 1 else (labels @ others.T).clamp(0, 1)


def own_log_mass(
    log_weights: Float[Tensor, "n k"], same: Bool[Tensor, "n k"] | Float[Tensor, "n k"]
) -> Float[Tensor, " n"]:
    r"""The weight on neighbors of the point's own label, :math:`\log m_i(y_i)`.

    ``same`` marks these neighbors, or holds the share in [0, 1] of the label they have in common.

    >>> own_log_mass(torch.zeros(1, 3), torch.tensor([[True, False, True]])).exp()
    tensor([2.])
    """
    if same.dtype == torch.bool:
        return log_mass(log_weights.masked_fill(~same, -torch.inf))
    return log_mass(log_weights + safe_log(same))


def class_log_mass(
    log_weights: Float[Tensor, "n k"],
    labels: Int[Tensor, "n k"] | Float[Tensor, "n k c"],
    num_classes: int,
) -> Float[Tensor, "n c"]:
    r"""The weight on every class, :math:`\log m_i(c)`; -inf for a class without any.

    ``labels`` are the neighbors': integers (n, k), or soft labels (n, k, c).

    >>> class_log_mass(torch.zeros(1, 3), torch.tensor([[0, 2, 0]]), 3)
    tensor([[0.6931,   -inf, 0.0000]])
    """
    _check_neighbor_labels(log_weights, labels, num_classes)
    if labels.ndim == 3:
        return log_mass(log_weights.unsqueeze(2) + safe_log(labels))
    labels, fixed = labels.long(), log_weights.detach()
    mass = log_weights.new_zeros((log_weights.shape[0], num_classes))
    # A peak cancels in value and gradient: it only keeps exp in range. The row's is enough where
    # no weight is too small beside it; else each class has its own.
    own = peak = fixed.amax(1, keepdim=True)
    reach = -0.9 * math.log(torch.finfo(fixed.dtype).tiny)
    if is_traced() or not bool((peak - fixed.amin(1, keepdim=True) < reach).all()):
        peak = torch.full_like(mass, -torch.inf).scatter_reduce(1, labels, fixed, "amax")
        peak = peak.clamp_min(torch.finfo(peak.dtype).min)
        own = peak.gather(1, labels)
    return safe_log(mass.scatter_add(1, labels, (log_weights - own).exp_())) + peak


def log_shares(log_masses: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Of all the mass: a log-softmax, in less than half its time where classes are few.

    >>> log_shares(torch.tensor([[0.0, 0.0]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    return log_masses - log_masses.logsumexp(1, keepdim=True)


def _check_neighbor_labels(log_weights: Tensor, labels: Tensor, num_classes: int) -> None:
    soft = labels.is_floating_point()
    expected = (*log_weights.shape, num_classes) if soft else tuple(log_weights.shape)
    if tuple(labels.shape) != expected:
        raise InputError(
            f"`labels` must be the neighbors' labels, integers of shape {tuple(log_weights.shape)} "
            f"or soft labels of shape {(*log_weights.shape, num_classes)}; got {labels.dtype} of "
            f"shape {tuple(labels.shape)}. Pass labels[neighbors.indices]."
        )
    if soft or is_traced() or labels.numel() == 0:
        return
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= num_classes:
        raise InputError(
            f"`labels` must lie in 0..{num_classes - 1} for `num_classes`={num_classes}, "
            f"got {low if low < 0 else high}. "
            "Number the classes with torch.unique(labels, return_inverse=True)."
        )
