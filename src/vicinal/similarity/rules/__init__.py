r"""How each kind of layer writes its per-sample gradient as a factor: one table, one rule a kind.

A rule sees one use of a layer: the layer, its input ``(n, ...)``, the d gradients at its output
(one tensor per output coordinate, each ``(n, ...)``), and which of its parameters are wanted. It
answers with factors and the parameters they belong to. What has no rule goes by
:mod:`~vicinal.similarity.rules.vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from vicinal.similarity.factors import Factor
from vicinal.similarity.rules.conv import convolution, transposed_convolution
from vicinal.similarity.rules.linear import embedding, linear, prelu
from vicinal.similarity.rules.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)


@dataclass(frozen=True)
class LayerUse:
    """One use of a layer: its input and the d gradients at its output."""

    module: Any
    x: Tensor
    grads: Sequence[Tensor]
    wanted: frozenset[str]
    ghost: bool | None = None  # the form an earlier batch chose; None: by FLOPs


Piece: TypeAlias = tuple[tuple[str, ...], Factor]  # (the parameters it covers, their gradients)
Rule: TypeAlias = Callable[[LayerUse], list[Piece]]

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    nn.PReLU: prelu,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.ConvTranspose1d: transposed_convolution,
    nn.ConvTranspose2d: transposed_convolution,
    nn.ConvTranspose3d: transposed_convolution,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.SyncBatchNorm: batch_norm,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
}
COVERED = ("weight", "bias")  # what a rule knows the gradients of, where the layer has them


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a layer; None for a subclass with a forward of its own."""
    for kind in type(module).__mro__:
        if kind in RULES:
            if type(module).forward is not kind.forward:
                return None
            if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
                return None  # its gradient is scaled by what else is in the sample
            return RULES[kind]
    return None
