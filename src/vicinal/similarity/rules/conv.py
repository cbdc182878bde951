r"""Convolutions: ``∂f/∂W = Σ_t b_t u_tᵀ`` with ``u_t`` the patch of the input under place t.

Patches are taken channels-last (one strided copy, a third of the time of ``F.unfold`` for eight
channels or more); the gradients stay in that layout, and ``shape`` says how to come back.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from vicinal.similarity.factors import Dense, Places, stacked
from vicinal.similarity.rules.patches import Geometry, take_patches

if TYPE_CHECKING:
    from vicinal.similarity.rules.rule import Call, Piece


def convolution(call: Call) -> list[Piece]:
    """``nn.Conv1d/2d/3d``: groups, stride, dilation, every padding and padding mode."""
    module, n, d = call.module, len(call.x), len(call.grads)
    b = stacked(call.grads, 1)  # (n, d, out, *places)
    pieces: list[Piece] = []
    if "weight" in call.wanted:
        if module.groups == 1:
            patches, shape = _patches(_padded(call.x, module), module)
            t, width = patches.shape[1:]
            out = b.shape[2]
            ghost = call.ghost
            if ghost is None:
                ghost = t * t * (width + d * out) <= d * width * out
            if ghost:
                at_places = b.flatten(3).permute(0, 3, 1, 2).contiguous()
                return [_with_bias(call, Places(patches, at_places, shape=shape))]
            g = b.reshape(n, d * out, t) @ patches
            pieces.append((("weight",), Dense(g.view(n, d, -1), shape=shape)))
        else:
            patches, shape = _patches(_by_group(_padded(call.x, module), module.groups), module)
            pieces.append((("weight",), Dense(_grouped(b, patches, module.groups), shape=shape)))
    if "bias" in call.wanted:
        pieces.append((("bias",), Dense(b.flatten(3).sum(3))))
    return pieces


def transposed_convolution(call: Call) -> list[Piece]:
    r"""``nn.ConvTranspose*``: the roles change, ``∂f/∂W = Σ_s x_s ũ_sᵀ`` with patches ũ of the
    *gradient*.
    """
    module, x = call.module, call.x
    n, d, groups = len(x), len(call.grads), module.groups
    b = stacked(call.grads, 1)
    pieces: list[Piece] = []
    if "weight" in call.wanted:
        places = tuple(x.shape[2:])
        taken = _cropped_to(_pad_by(b.flatten(0, 1), module.padding), module, places)
        patches, _ = _patches(_by_group(taken, groups), module, channels_last=False)
        patches = patches.view(n, d, groups, prod(places), -1).transpose(
            1, 2
        )  # (n, g, d, t, out k)
        inputs = x.reshape(n, groups, 1, -1, prod(places))
        g = inputs @ patches  # (n, g, d, in, out k)
        pieces.append((("weight",), Dense(g.transpose(1, 2).reshape(n, d, -1))))
    if "bias" in call.wanted:
        pieces.append((("bias",), Dense(b.flatten(3).sum(3))))
    return pieces


def _with_bias(call: Call, places: Places) -> Piece:
    if "bias" not in call.wanted:
        return ("weight",), places
    return ("weight", "bias"), Places(places.a, places.b, bias=True, shape=places.shape)


def _grouped(b: Tensor, patches: Tensor, groups: int) -> Tensor:
    """Each group's gradients against its own patches ``(n g, t, in k)``: ``(n, d, g out in k)``."""
    n, d, out = b.shape[:3]
    t, width = patches.shape[1:]
    split = b.reshape(n, d, groups, out // groups, t).transpose(1, 2)
    g = split.reshape(n * groups, -1, t) @ patches
    return g.view(n, groups, d, out // groups, width).transpose(1, 2).reshape(n, d, -1)


def _by_group(x: Tensor, groups: int) -> Tensor:
    return x.reshape(len(x) * groups, x.shape[1] // groups, *x.shape[2:])


def _padded(x: Tensor, module: Any) -> Tensor:
    if module.padding_mode != "zeros":
        return F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    if isinstance(module.padding, str):
        return F.pad(x, module._reversed_padding_repeated_twice)
    return _pad_by(x, module.padding)


def _pad_by(x: Tensor, padding: tuple[int, ...]) -> Tensor:
    return F.pad(x, [p for p in reversed(padding) for _ in (0, 1)]) if any(padding) else x


def _cropped_to(x: Tensor, module: Any, places: tuple[int, ...]) -> Tensor:
    """The part of a transposed convolution's output that its patches read (or zeros beyond it)."""
    sizes = zip(places, module.kernel_size, module.stride, module.dilation, strict=True)
    needed = [(t - 1) * s + dil * (k - 1) + 1 for t, k, s, dil in sizes]
    missing = [need - have for need, have in zip(needed, x.shape[2:], strict=True)]
    return F.pad(x, [p for m in reversed(missing) for p in (0, m)]) if any(missing) else x


def _patches(
    x: Tensor, module: Any, channels_last: bool | None = None
) -> tuple[Tensor, tuple[int, ...]]:
    """im2col of a padded input, ``(n, t, features)``, and the layout ``(out, *kernel, in)`` if not
    the weight's.
    """
    channels, rank = x.shape[1], x.ndim - 2
    last = channels >= 8 if channels_last is None else channels_last
    if rank == 2 and not last:
        columns = F.unfold(x, module.kernel_size, module.dilation, 0, module.stride)
        return columns.mT, ()
    view = x.movedim(1, -1).contiguous() if last else x.movedim(1, -1)
    if last and x.requires_grad:  # to be differentiated: autograd's own way back is slow
        geometry = Geometry(module.kernel_size, module.stride, module.dilation)
        found = take_patches(view, geometry)
        places = prod(found.shape[1 : rank + 1])
        shape = (module.out_channels, *module.kernel_size, channels)
        return found.view(len(x), places, -1), shape
    for axis in range(rank):
        size, step, dilation = (
            getattr(module, k)[axis] for k in ("kernel_size", "stride", "dilation")
        )
        view = view.unfold(1 + axis, dilation * (size - 1) + 1, step)[..., ::dilation]
    kernel = list(range(rank + 2, 2 * rank + 2))  # (n, *places, channels, *kernel) so far
    order = [*range(rank + 1), *kernel, rank + 1] if last else [*range(rank + 1), rank + 1, *kernel]
    places = prod(view.shape[1 : rank + 1])
    patches = view.permute(order).reshape(len(x), places, -1)
    shape = (module.out_channels, *module.kernel_size, channels) if last and rank else ()
    return patches, shape
