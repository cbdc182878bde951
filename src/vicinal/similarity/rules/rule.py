r"""How each kind of layer writes its per-sample gradient as a factor.

A rule sees one call of a layer: the layer, its input ``(n, ...)``, the d gradients at its output
(one tensor per output coordinate, each ``(n, ...)``), and which of its parameters are wanted. It
answers with :class:`Piece` s. Where a layer acts at T places, the gradient ``Σ_t b_t a_tᵀ`` is
kept as a ghost (T²(in + d·out) per pair) or summed (d·in·out per pair), whichever costs fewer
FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from vicinal.similarity.factors import Dense, Factor, Places, stacked
from vicinal.similarity.rules.conv import convolution, transposed_convolution
from vicinal.similarity.rules.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input and the d gradients at its output."""

    module: Any
    x: Tensor
    grads: Sequence[Tensor]
    wanted: frozenset[str]
    ghost: bool | None = None  # the form an earlier batch chose; None: by FLOPs


Piece: TypeAlias = tuple[tuple[str, ...], Factor]  # (the parameters it covers, their gradients)
Rule: TypeAlias = Callable[[Call], list[Piece]]


def linear(call: Call) -> list[Piece]:
    """``nn.Linear`` on ``(n, ..., in)``: every axis between is a place."""
    n, width = len(call.x), call.x.shape[-1]
    a = call.x.reshape(n, -1, width)
    b = stacked(call.grads, -2).reshape(n, a.shape[1], len(call.grads), -1)
    t, d, out = b.shape[1:]
    weight, bias = "weight" in call.wanted, "bias" in call.wanted
    names = tuple(name for name in ("weight", "bias") if name in call.wanted)
    ghost = call.ghost if call.ghost is not None else t * t * (width + d * out) <= d * width * out
    if weight and (t == 1 or ghost):
        return [(names, Places(a, b, bias=bias))]
    pieces: list[Piece] = []
    if weight:
        g = (b.reshape(n, t, d * out).mT @ a).view(n, d, -1)
        pieces.append((("weight",), Dense(g)))
    if bias:
        pieces.append((("bias",), Dense(b.sum(1))))
    return pieces


def embedding(call: Call) -> list[Piece]:
    """``nn.Embedding``: a linear layer on one-hot inputs, kept as their indices."""
    n, module = len(call.x), call.module
    index = call.x.reshape(n, -1)
    b = stacked(call.grads, -2).reshape(n, index.shape[1], len(call.grads), -1)
    if module.padding_idx is not None:  # autograd gives the padding row no gradient
        b = b * (index != module.padding_idx)[:, :, None, None]
    places = Places(index, b, vocabulary=module.num_embeddings)
    t, d, out = b.shape[1:]
    ghost = call.ghost
    if ghost is None:
        ghost = t * t * d * out <= d * module.num_embeddings * out
    return [(("weight",), places if ghost else Dense(places.dense()))]


def prelu(call: Call) -> list[Piece]:
    """``nn.PReLU``: ``∂f/∂slope_c = Σ_places b min(x, 0)``, one slope or one per channel."""
    b = stacked(call.grads, 1)
    g = b * call.x.clamp_max(0)[:, None]
    if call.module.num_parameters == 1:
        return [(("weight",), Dense(g.flatten(2).sum(2, keepdim=True)))]
    g = g.flatten(3).sum(3) if g.ndim > 3 else g
    return [(("weight",), Dense(g))]


RULES: dict[type[nn.Module], tuple[Rule, frozenset[str]]] = {
    kind: (rule, frozenset(names.split()))
    for rule, names, kinds in (
        (linear, "weight bias", (nn.Linear,)),
        (convolution, "weight bias", (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
        (
            transposed_convolution,
            "weight bias",
            (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        ),
        (embedding, "weight", (nn.Embedding,)),
        (batch_norm, "weight bias", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
        (batch_norm, "weight bias", (nn.SyncBatchNorm,)),
        (group_norm, "weight bias", (nn.GroupNorm,)),
        (layer_norm, "weight bias", (nn.LayerNorm,)),
        (rms_norm, "weight", (nn.RMSNorm,)),
        (instance_norm, "weight bias", (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)),
        (prelu, "weight", (nn.PReLU,)),
    )
    for kind in kinds
}


def rule_for(module: nn.Module) -> tuple[Rule, frozenset[str]] | None:
    """The rule of a layer and the parameters it covers; None for a subclass with a forward of its
    own.
    """
    for kind in type(module).__mro__:
        if kind in RULES:
            if type(module).forward is not kind.forward:
                return None
            if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
                return None  # its gradient is scaled by what else is in the sample
            return RULES[kind]
    return None


def apply_rule(call: Call) -> list[Piece]:
    """The factors of one call of a layer that has a rule."""
    found = rule_for(call.module)
    assert found is not None
    return found[0](call)
