r"""Normalization layers in eval: ``∂f/∂γ_c = Σ_places b x̂`` and ``∂f/∂β_c = Σ_places b``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from vicinal.similarity.factors import Dense, stacked

if TYPE_CHECKING:
    from vicinal.similarity.rules.rule import Call, Piece


def batch_norm(call: Call) -> list[Piece]:
    """Batch normalization by its running statistics."""
    module, x = call.module, call.x
    return _per_channel(
        call, F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    )


def group_norm(call: Call) -> list[Piece]:
    return _per_channel(call, F.group_norm(call.x, call.module.num_groups, eps=call.module.eps))


def instance_norm(call: Call) -> list[Piece]:
    """Instance normalization: of each sample, or by running statistics if it keeps them."""
    module = call.module
    mean, var = module.running_mean, module.running_var
    return _per_channel(
        call, F.instance_norm(call.x, mean, var, use_input_stats=mean is None, eps=module.eps)
    )


def layer_norm(call: Call) -> list[Piece]:
    module = call.module
    return _per_feature(call, F.layer_norm(call.x, module.normalized_shape, eps=module.eps))


def rms_norm(call: Call) -> list[Piece]:
    module = call.module
    return _per_feature(call, F.rms_norm(call.x, module.normalized_shape, eps=module.eps))


def _per_channel(call: Call, normalized: Tensor) -> list[Piece]:
    """Parameters along axis 1: summed over all later axes."""
    b = stacked(call.grads, 1)
    gradients = {"weight": b * normalized[:, None], "bias": b}
    return [
        ((name,), Dense(g.flatten(3).sum(3) if g.ndim > 3 else g))
        for name, g in gradients.items()
        if name in call.wanted
    ]


def _per_feature(call: Call, normalized: Tensor) -> list[Piece]:
    """Parameters along the last axes: summed over the axes between the batch and them."""
    n, d = len(normalized), len(call.grads)
    features = (
        call.module.weight.numel() if call.module.weight is not None else normalized.shape[-1]
    )
    b = stacked(call.grads, 1)
    gradients = {"weight": b * normalized[:, None], "bias": b}
    return [
        ((name,), Dense(g.reshape(n, d, -1, features).sum(2)))
        for name, g in gradients.items()
        if name in call.wanted
    ]
