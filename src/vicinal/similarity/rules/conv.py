r"""Convolutions: ``∂f/∂W = Σ_t b_t u_tᵀ`` with ``u_t`` the patch of the input under place t.

Patches are taken channels-last (one strided copy, a third of the time of ``F.unfold`` for eight
channels or more), of a few samples at a time, so that they are used while they are in the cache;
the gradients stay in that layout, and ``shape`` says how to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vicinal.neighbors.product import products
from vicinal.similarity.factors import Dense, stacked
from vicinal.similarity.places import CACHE_BYTES, outputs_apart, room

if TYPE_CHECKING:
    from vicinal.similarity.rules import LayerUse, Piece


def convolution(use: LayerUse) -> list[Piece]:
    """``nn.Conv1d/2d/3d``: groups, stride, dilation, every padding and padding mode."""
    module, grads, groups = use.module, use.grads, use.module.groups
    _, out, *places = grads[0].shape
    t, width = prod(places), prod(module.weight.shape[1:])
    # Patches that do not overlap are no larger than the input: a linear layer at its places.
    apart = module.stride == module.kernel_size and set(module.dilation) == {1}
    keeps = use.keeps_places if apart else use.keeps_ghost
    if "weight" in use.wanted and groups == 1 and keeps(t, width, out):
        patches, shape = _patches(_padded(use.x, module), module), layout(module)
        b = outputs_apart([g.flatten(2).mT.contiguous() for g in grads])
        return use.ghosts(patches, b, shape=shape)

    def gradient(rows: slice) -> Tensor:
        patches = _patches(_by_group(_padded(use.x[rows], module), groups), module)
        b = stacked([g[rows] for g in grads], 1)
        split = b.reshape(len(b), -1, groups, out // groups, t).transpose(1, 2)
        # each group's against its own patches
        g = products(split.reshape(len(patches), -1, t), patches.mT)
        return g.view(len(b), groups, len(grads), -1).transpose(1, 2).flatten(2)

    return _pieces(use, gradient, t * (width * groups + len(grads) * out))


def transposed_convolution(use: LayerUse) -> list[Piece]:
    r"""``nn.ConvTranspose*``: the roles change, ``∂f/∂W = Σ_s x_s ũ_sᵀ`` with patches ũ of the
    *gradient*.
    """
    module, d, groups = use.module, len(use.grads), use.module.groups
    places, width = tuple(use.x.shape[2:]), prod(module.weight.shape[1:])

    def gradient(rows: slice) -> Tensor:
        b = stacked([g[rows] for g in use.grads], 1)
        taken = _cropped_to(_pad_by(b.flatten(0, 1), module.padding), module, places)
        patches = _patches(_by_group(taken, groups), module)
        patches = patches.view(len(b), d, groups, prod(places), -1).transpose(1, 2)
        inputs = use.x[rows].reshape(len(b), groups, 1, -1, prod(places))
        return (inputs @ patches).transpose(1, 2).reshape(len(b), d, -1)  # of (n, g, d, in, k out)

    return _pieces(use, gradient, d * prod(places) * width * groups)


def _pieces(use: LayerUse, gradient: Callable[[slice], Tensor], each: int) -> list[Piece]:
    """The weight's gradients, of so few samples at a time that what is multiplied, ``each``
    numbers, stays in the cache; and the bias'.
    """
    pieces: list[Piece] = []
    n, step = len(use.x), max(1, 2 * CACHE_BYTES // (each * use.x.element_size()))
    if "weight" in use.wanted:
        if n <= step or use.x.requires_grad or use.grads[0].requires_grad:
            g = gradient(slice(None))
        else:
            g = room(use.x, n, len(use.grads), use.module.weight.numel())
            for rows in (slice(first, first + step) for first in range(0, n, step)):
                g[rows] = gradient(rows)
        pieces.append((("weight",), Dense(g, shape=layout(use.module))))
    if "bias" in use.wanted:
        pieces.append((("bias",), Dense(stacked([b.flatten(2).sum(2) for b in use.grads], 1))))
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


def _patches(x: Tensor, module: Any) -> Float[Tensor, "n t features"]:
    """im2col of a padded input."""
    if not layout(module):
        return F.unfold(x, module.kernel_size, module.dilation, 0, module.stride).mT
    geometry = Geometry(module.kernel_size, module.stride, module.dilation)
    found = take_patches(x.movedim(1, -1).contiguous(), geometry)
    return found.view(len(x), prod(found.shape[1 : x.ndim - 1]), -1)


def layout(module: Any) -> tuple[int, ...]:
    """``(out, *kernel, in)`` of gradients made of patches, if that is not the weight's own:
    pictures of few channels are unfolded.
    """
    (out, channels, *kernel) = module.weight.shape
    return () if len(kernel) == 2 and channels < 8 else (out, *kernel, channels)


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
        first = [i * dilation for i, dilation in zip(offset, geometry.dilation, strict=True)]
        axes = zip(first, places, geometry.stride, strict=True)
        yield offset, [slice(at, at + (t - 1) * step + 1, step) for at, t, step in axes]
