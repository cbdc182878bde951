r"""Convolutions: ``∂f/∂W = Σ_t b_t u_tᵀ`` with ``u_t`` the patch of the input under place t.

Patches are taken channels-last (one strided copy, a third of the time of ``F.unfold`` for eight
channels or more); the gradients stay in that layout, and ``shape`` says how to come back. Where
only products with a total are asked for, no patches are taken at all (:func:`for_products`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.similarity.factors import Dense, Factor, stacked
from vicinal.similarity.places import Places, Totals, own_layout, wide

if TYPE_CHECKING:
    from vicinal.similarity.rules import LayerUse, Piece


def convolution(use: LayerUse) -> list[Piece]:
    """``nn.Conv1d/2d/3d``: groups, stride, dilation, every padding and padding mode."""
    module, groups = use.module, use.module.groups
    b = stacked(use.grads, 1)  # (n, d, out, *places)
    pieces: list[Piece] = []
    if "weight" in use.wanted:
        patches, shape = _patches(_by_group(_padded(use.x, module), groups), module)
        (n, d, out), (t, width) = b.shape[:3], patches.shape[1:]
        if groups == 1 and use.keeps_ghost(t, width, out):
            at_places = b.flatten(3).permute(0, 3, 1, 2).contiguous()
            return use.ghosts(Places(patches, at_places, bias="bias" in use.wanted, shape=shape))
        split = b.reshape(n, d, groups, out // groups, t).transpose(1, 2)
        g = split.reshape(n * groups, -1, t) @ patches  # each group's against its own patches
        g = g.view(n, groups, d, -1).transpose(1, 2).reshape(n, d, -1)
        pieces.append((("weight",), Dense(g, shape=shape)))
    if "bias" in use.wanted:
        pieces.append((("bias",), Dense(b.flatten(3).sum(3))))
    return pieces


def transposed_convolution(use: LayerUse) -> list[Piece]:
    r"""``nn.ConvTranspose*``: the roles change, ``∂f/∂W = Σ_s x_s ũ_sᵀ`` with patches ũ of the
    *gradient*.
    """
    module, x = use.module, use.x
    n, d, groups = len(x), len(use.grads), module.groups
    b = stacked(use.grads, 1)
    pieces: list[Piece] = []
    if "weight" in use.wanted:
        places = tuple(x.shape[2:])
        taken = _cropped_to(_pad_by(b.flatten(0, 1), module.padding), module, places)
        patches, shape = _patches(_by_group(taken, groups), module)
        patches = patches.view(n, d, groups, prod(places), -1).transpose(1, 2)
        inputs = x.reshape(n, groups, 1, -1, prod(places))
        g = inputs @ patches  # (n, g, d, in, k out)
        pieces.append((("weight",), Dense(g.transpose(1, 2).reshape(n, d, -1), shape=shape)))
    if "bias" in use.wanted:
        pieces.append((("bias",), Dense(b.flatten(3).sum(3))))
    return pieces


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


def _patches(x: Tensor, module: Any) -> tuple[Tensor, tuple[int, ...]]:
    """im2col of a padded input, ``(n, t, features)``, and the layout ``(out, *kernel, in)`` of a
    gradient made of it, if that is not the weight's.
    """
    channels, rank = x.shape[1], x.ndim - 2
    if rank == 2 and channels < 8:
        return F.unfold(x, module.kernel_size, module.dilation, 0, module.stride).mT, ()
    geometry = Geometry(module.kernel_size, module.stride, module.dilation)
    found = take_patches(x.movedim(1, -1).contiguous(), geometry)
    shape = (module.weight.shape[0], *module.kernel_size, channels)
    return found.view(len(x), prod(found.shape[1 : rank + 1]), -1), shape


# ------------------------------------------------------- products with a total


@dataclass(frozen=True)
class Convolved:
    r"""The gradients of a convolution's weight where only products with a total are asked for.

    ``G(x, i) = Σ_t b_t(x, i) u_t(x)ᵀ`` need not be formed:
    ``Σ_i ⟨G(x, i), g_i⟩ = Σ_i Σ_t b_t(x, i) · (g_i u_t(x)) = Σ_i ⟨b(x, i), conv(x, g_i)⟩``,
    one convolution of the input with the totals (in the layout ``shape``) in the place of the
    weights: no patches, and nothing as large as the weights for each sample.
    """

    module: Any
    x: Float[Tensor, "n channels ..."]
    grads: tuple[Float[Tensor, "n out ..."], ...]  # of each output; as they come, never stacked
    shape: tuple[int, ...] = ()
    kind = "convolved"

    def __len__(self) -> int:
        return len(self.x)

    def dot(self, total: Totals) -> Float[Tensor, " n"]:
        found = self.x.new_zeros(len(self))
        kernels = own_layout(total[0][None], self.shape).view(-1, *self.module.weight.shape)
        for b, kernel in zip(self.grads, kernels, strict=True):
            found += (self.module._conv_forward(self.x, kernel, None) * b).flatten(1).sum(1)
        return found

    def widened(self) -> Convolved:
        return self

    def select(self, index: slice | Tensor) -> Convolved:
        return replace(self, x=self.x[index], grads=tuple(b[index] for b in self.grads))


def can_convolve(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))


def for_products(use: LayerUse, shape: tuple[int, ...]) -> list[Piece]:
    """The pieces of a convolution that is not a ghost, in the order of its rule."""
    x, grads = wide(use.x), tuple(wide(b) for b in use.grads)
    pieces: list[Piece] = []
    if "weight" in use.wanted:
        # Of a factor only the product is asked here, which is all that this one has.
        pieces.append((("weight",), cast("Factor", Convolved(use.module, x, grads, shape))))
    if "bias" in use.wanted:
        pieces.append((("bias",), Dense(torch.stack([b.flatten(2).sum(2) for b in grads], 1))))
    return pieces


# ------------------------------------------------------- patches and the way back


class Geometry(NamedTuple):
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def take_patches(x: Tensor, geometry: Geometry) -> Tensor:
    """``(n, *size, c) -> (n, *places, *kernel, c)`` of an input padded already.

    Taking patches is linear: its derivative lays patches back where they came from, adding up
    overlaps, and the derivative of that takes patches again. Written as a pair, a loss on gradients
    can be differentiated as often as it likes at the price of a few strided copies, a third of what
    autograd's own way back through ``Tensor.unfold`` takes.

    >>> x = torch.arange(4.0).view(1, 4, 1).requires_grad_()
    >>> patches = take_patches(x, Geometry((2,), (1,), (1,)))
    >>> patches.flatten(1).tolist()
    [[0.0, 1.0, 1.0, 2.0, 2.0, 3.0]]
    >>> patches.sum().backward()
    >>> x.grad.flatten().tolist()  # how many patches each entry lies in
    [1.0, 2.0, 2.0, 1.0]
    """
    found: Tensor = _Take.apply(x, geometry)
    return found


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.size, ctx.geometry = x.shape[1:-1], geometry
        view, rank = x, x.ndim - 2
        for axis, (k, step, dilation) in enumerate(zip(*geometry, strict=True)):
            view = view.unfold(1 + axis, dilation * (k - 1) + 1, step)[..., ::dilation]
        kernel = range(rank + 2, 2 * rank + 2)  # (n, *places, c, *kernel) so far
        return view.permute(*range(rank + 1), *kernel, rank + 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _LayBack.apply(grad, ctx.size, ctx.geometry), None


class _LayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        rank = len(size)
        found = patches.new_zeros(len(patches), *size, patches.shape[-1])
        places = tuple(patches.shape[1 : rank + 1])
        by_entry = patches.movedim(tuple(range(rank + 1, 2 * rank + 1)), tuple(range(rank)))
        for offset, at in _corners(places, geometry):
            found[(slice(None), *at)] += by_entry[offset]
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Take.apply(grad, ctx.geometry), None, None


def _corners(
    places: tuple[int, ...], geometry: Geometry
) -> Iterator[tuple[tuple[int, ...], list[slice]]]:
    """Each entry of the kernel, and where in the input it looks over all places."""
    for offset in product(*(range(k) for k in geometry.kernel)):
        yield (
            offset,
            [
                slice(i * dilation, i * dilation + (t - 1) * step + 1, step)
                for i, t, step, dilation in zip(
                    offset, places, geometry.stride, geometry.dilation, strict=True
                )
            ],
        )
