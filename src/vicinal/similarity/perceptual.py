r"""The perceptual similarity of section 2.1, the baseline that gradients are compared with.

``Σ_layers λ_l a_l(x) · a_l(x')`` over the activations of chosen layers (section 2.3): the weights λ
and the layers are a free choice, which the gradient kernel does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.capture import capture
from vicinal.checks import InputError, check_choice


def perceptual_gram(
    model: nn.Module,
    a: Any,
    b: Any = None,
    *,
    layers: Sequence[str],
    weights: Mapping[str, float] | None = None,
    kind: str = "correlation",
) -> Float[Tensor, "n m"]:
    """Similarity of activations; a sample without activation is similar to nothing.

    Parameters
    ----------
    model
        The network.
    a, b
        Inputs, alone or with labels, or data sets; ``b=None``: a with itself.
    layers
        Names of the layers whose activations are compared.
    weights
        λ of each layer; 1 where none is given.
    kind
        ``"correlation"``: the cosine; ``"inner"``: the inner product.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> perceptual_gram(model, torch.ones(3, 2), layers=["1"]).shape
    torch.Size([3, 3])
    """
    check_choice(kind, "kind", ("inner", "correlation"))
    names = [layers] if isinstance(layers, str) else list(layers)
    if not names:
        raise InputError("`layers` is empty. Name at least one layer of the model.")
    scale = dict.fromkeys(names, 1.0) | dict(weights or {})
    left = _features(model, a, names, scale)
    right = left if b is None else _features(model, b, names, scale)
    inner = left @ right.T
    if kind == "inner":
        return inner
    norms = [rows.norm(dim=1) for rows in (left, right)]
    safe = [torch.where(n > 0, n, torch.ones_like(n)) for n in norms]
    return inner / safe[0][:, None] / safe[1][None]


def _features(
    model: nn.Module, data: Any, names: list[str], scale: Mapping[str, float]
) -> Float[Tensor, "n d"]:
    """All layers side by side, each times √λ."""
    found = capture(model, data, names)
    return torch.cat([found[name].flatten(1) * scale[name] ** 0.5 for name in names], 1)
