r"""How each kind of layer writes its per-sample gradient as a factor: one table, one rule a kind.

A rule sees one use of a layer and answers with factors and the parameters they belong to.
Convolutions have :mod:`~vicinal.similarity.rules.conv` to themselves; what has no rule goes by
:mod:`~vicinal.similarity.rules.vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.similarity.factors import Dense, Factor, stacked
from vicinal.similarity.places import Places, outputs_apart
from vicinal.similarity.rules.conv import convolution, transposed_convolution
from vicinal.similarity.rules.inside import InsideMap

COVERED = ("weight", "bias")  # what a rule knows the gradients of, where the layer has them


@dataclass(frozen=True)
class LayerUse:
    """One use of a layer: its input ``(n, ...)``, the d gradients at its output, each ``(n,
    ...)``, and which of its parameters are wanted.
    """

    module: Any
    x: Tensor
    grads: Sequence[Tensor]
    wanted: frozenset[str]
    ghost: bool | None = None  # the form an earlier batch chose; None: by FLOPs

    def keeps_ghost(self, places: int, width: int, out: int) -> bool:
        """Whether ``Σ_t b_t a_tᵀ`` stays a sum of T²(in + d·out) FLOPs per pair, or is carried out
        for d·in·out.
        """
        d = len(self.grads)
        cheaper = places**2 * (width + d * out) <= d * width * out
        return cheaper if self.ghost is None else self.ghost

    def keeps_places(self, places: int, width: int, out: int) -> bool:
        """Whether the places are no more than twice as large as the gradients they make up."""
        d = len(self.grads)
        smaller = places * (width + d * out) <= 2 * d * width * out
        return smaller if self.ghost is None else self.ghost

    def ghosts(
        self, a: Tensor, b: Tensor, *, vocabulary: int = 0, shape: tuple[int, ...] = ()
    ) -> list[Piece]:
        """The one piece of a ghost: it holds the bias as well."""
        names = tuple(name for name in COVERED if name in self.wanted)
        return [(names, Places(a, b, "bias" in names, vocabulary, shape))]


Piece: TypeAlias = tuple[tuple[str, ...], Factor]  # (the parameters it covers, their gradients)
Rule: TypeAlias = Callable[[LayerUse], list[Piece]]


def linear(use: LayerUse) -> list[Piece]:
    """``nn.Linear`` on ``(n, ..., in)``: every axis between is a place."""
    n, width = len(use.x), use.x.shape[-1]
    a = use.x.reshape(n, -1, width)
    b = outputs_apart([g.reshape(n, a.shape[1], -1) for g in use.grads])
    t, d, out = b.shape[1:]
    if "weight" in use.wanted and (t == 1 or use.keeps_places(t, width, out)):
        return use.ghosts(a, b)
    pieces: list[Piece] = []
    if "weight" in use.wanted:
        g = (b.reshape(n, t, d * out).mT @ a).view(n, d, -1)
        pieces.append((("weight",), Dense(g)))
    if "bias" in use.wanted:
        pieces.append((("bias",), Dense(b.sum(1))))
    return pieces


def transposed_linear(use: LayerUse) -> list[Piece]:
    """A linear layer whose weight is kept as ``(in, out)``: ``Conv1D`` of Hugging Face's GPT-2."""
    shape = tuple(use.module.weight.shape[::-1])
    return [(n, replace(f, shape=shape)) if n[0] == "weight" else (n, f) for n, f in linear(use)]


def embedding(use: LayerUse) -> list[Piece]:
    """``nn.Embedding``: a linear layer on one-hot inputs, kept as their indices."""
    n, module = len(use.x), use.module
    index = use.x.reshape(n, -1)
    b = outputs_apart([g.reshape(n, index.shape[1], -1) for g in use.grads])
    if module.padding_idx is not None:  # autograd gives the padding row no gradient
        b = b * (index != module.padding_idx)[:, :, None, None]
    places = Places(index, b, vocabulary=module.num_embeddings)
    # one-hot inputs are integers: the places are nearly always smaller than a table a sample
    ghost = use.ghost if use.ghost is not None else b.shape[1] <= 2 * module.num_embeddings
    return [(("weight",), places if ghost else Dense(places.dense()))]


def prelu(use: LayerUse) -> list[Piece]:
    """``nn.PReLU``: ``∂f/∂slope_c = Σ_places b min(x, 0)``, one slope or one per channel."""
    g = stacked(use.grads, 1) * use.x.clamp_max(0)[:, None]
    one = use.module.num_parameters == 1
    return [(("weight",), Dense(g.flatten(2).sum(2, keepdim=True) if one else _over_places(g)))]


def channel_norm(use: LayerUse) -> list[Piece]:
    """Batch, instance and group norms in eval: ``∂f/∂γ_c = Σ_places b x̂``, ``∂f/∂β_c = Σ b``."""
    module, x, eps = use.module, use.x, use.module.eps
    if isinstance(module, nn.GroupNorm):
        normal = F.group_norm(x, module.num_groups, eps=eps)
    elif module.running_mean is None:  # an instance norm, of each sample by itself
        normal = F.instance_norm(x, eps=eps)
    else:
        normal = F.batch_norm(x, module.running_mean, module.running_var, eps=eps)
    return _scale_and_shift(use, normal, _over_places)


def feature_norm(use: LayerUse) -> list[Piece]:
    """Layer and RMS norms, the same with parameters along the last axes."""
    module = use.module
    norm = F.layer_norm if isinstance(module, nn.LayerNorm) else F.rms_norm
    normal = norm(use.x, module.normalized_shape, eps=module.eps)
    features = module.weight.numel()
    return _scale_and_shift(use, normal, lambda g: g.reshape(*g.shape[:2], -1, features).sum(2))


def _scale_and_shift(
    use: LayerUse, normal: Tensor, summed: Callable[[Tensor], Tensor]
) -> list[Piece]:
    # Output by output: what is multiplied is summed while it is in the cache.
    times = {"weight": lambda b: b * normal, "bias": lambda b: b}
    return [
        ((name,), Dense(torch.cat([summed(times[name](b)[:, None]) for b in use.grads], 1)))
        for name in COVERED
        if name in use.wanted
    ]


def _over_places(g: Tensor) -> Tensor:
    """``(n, d, channels, *places)`` summed over the places."""
    return g.flatten(3).sum(3) if g.ndim > 3 else g


RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, InsideMap), linear),
    nn.Embedding: embedding,
    nn.PReLU: prelu,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), transposed_convolution
    ),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), channel_norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), channel_norm),
    **dict.fromkeys((nn.SyncBatchNorm, nn.GroupNorm), channel_norm),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), feature_norm),
}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a layer; None for a subclass with a forward of its own."""
    for kind in type(module).__mro__:
        if kind in RULES:
            if type(module).forward is not kind.forward:
                return None
            if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
                return None  # its gradient is scaled by what else is in the sample
            return RULES[kind]
    return transposed_linear if _is_transposed(module) else None


def _is_transposed(module: nn.Module) -> bool:
    """By name: the library is not asked for."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def widths(module: Any) -> tuple[int, int] | None:
    """Features in and out of a layer that is a linear map at every place."""
    transposed = _is_transposed(module)
    if not transposed and not isinstance(module, (nn.Linear, InsideMap)):
        return None
    first, second = module.weight.shape
    return (first, second) if transposed else (second, first)


def feature_axes(module: nn.Module) -> int | None:
    """How many of the last axes of its output a layer that acts on each place by itself needs
    together; None: all but the first.
    """
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return len(module.normalized_shape)
    return 1 if isinstance(module, nn.Embedding) or widths(module) is not None else None
