r"""Normalization layers in eval: ``∂f/∂γ_c = Σ_places b x̂`` and ``∂f/∂β_c = Σ_places b``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from vicinal.similarity.factors import Dense, stacked

if TYPE_CHECKING:
    from vicinal.similarity.rules import LayerUse, Piece


def batch_norm(use: LayerUse) -> list[Piece]:
    """Batch normalization by its running statistics."""
    module, x = use.module, use.x
    return _per_channel(
        use, F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    )


def group_norm(use: LayerUse) -> list[Piece]:
    return _per_channel(use, F.group_norm(use.x, use.module.num_groups, eps=use.module.eps))


def instance_norm(use: LayerUse) -> list[Piece]:
    """Instance normalization: of each sample, or by running statistics if it keeps them."""
    module = use.module
    mean, var = module.running_mean, module.running_var
    return _per_channel(
        use, F.instance_norm(use.x, mean, var, use_input_stats=mean is None, eps=module.eps)
    )


def layer_norm(use: LayerUse) -> list[Piece]:
    module = use.module
    return _per_feature(use, F.layer_norm(use.x, module.normalized_shape, eps=module.eps))


def rms_norm(use: LayerUse) -> list[Piece]:
    module = use.module
    return _per_feature(use, F.rms_norm(use.x, module.normalized_shape, eps=module.eps))


def _per_channel(use: LayerUse, normalized: Tensor) -> list[Piece]:
    """Parameters along axis 1: summed over all later axes."""
    b = stacked(use.grads, 1)
    gradients = {"weight": b * normalized[:, None], "bias": b}
    return [
        ((name,), Dense(g.flatten(3).sum(3) if g.ndim > 3 else g))
        for name, g in gradients.items()
        if name in use.wanted
    ]


def _per_feature(use: LayerUse, normalized: Tensor) -> list[Piece]:
    """Parameters along the last axes: summed over the axes between the batch and them."""
    n, d = len(normalized), len(use.grads)
    features = use.module.weight.numel() if use.module.weight is not None else normalized.shape[-1]
    b = stacked(use.grads, 1)
    gradients = {"weight": b * normalized[:, None], "bias": b}
    return [
        ((name,), Dense(g.reshape(n, d, -1, features).sum(2)))
        for name, g in gradients.items()
        if name in use.wanted
    ]
