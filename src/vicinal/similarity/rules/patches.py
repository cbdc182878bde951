r"""Patches of a channels-last input and the way back, each the other's derivative.

Taking patches is linear: its derivative lays patches back where they came from, adding up overlaps,
and the derivative of that takes patches again. Written as a pair, a loss on gradients can be
differentiated as often as it likes at the price of a few strided copies, a third of what autograd's
own way back through ``Tensor.unfold`` takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Geometry(NamedTuple):
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def take_patches(x: Tensor, geometry: Geometry) -> Tensor:
    """``(n, *size, c) -> (n, *places, *kernel, c)`` of an input padded already.

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
