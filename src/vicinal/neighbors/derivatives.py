r"""Any order of derivative, any transform, for what has its gradient written out.

A gradient written by hand is fast and keeps little, but autograd cannot differentiate it again, nor
can ``torch.func`` look inside. Where either is asked for, the same quantity is formed anew as a
plain formula of ordinary operations, all pairs at once:

.. math:: \nabla_x \langle u, f(x) \rangle \quad\text{with a graph of its own in } x \text{ and } u

so that gradient penalties, Hessians and MAML's steps through a gradient are right to any order. The
first derivative alone never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vicinal.checks import InputError

PAIRS = 1 << 24  # formed at once: some 30 buffers of this size live while a gradient is derived


def is_functional() -> bool:
    """Is a transform of ``torch.func`` (grad, vmap, jvp, hessian, ...) at work?"""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_derived_again(upstream: Tensor) -> bool:
    """In a backward: shall its result be differentiable, or is a batch of gradients taken?"""
    if torch.compiler.is_compiling():
        return False  # torch.compile has its own sentence for double backward
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._functorch.is_legacy_batchedtensor(upstream)  # autograd's is_grads_batched


def derived(
    formula: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    upstream: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of ``⟨upstream, formula(*inputs)⟩`` in the inputs, differentiable themselves.

    Call it in a backward with what the forward was given. None where an input has no gradient.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> (slope,) = derived(lambda x: x**3, [x], [torch.tensor(1.0)])
    >>> slope.detach(), torch.autograd.grad(slope, x)[0]  # 3x² and 6x
    (tensor(27.), tensor(18.))
    """
    graph = torch.is_grad_enabled()
    device = next(t.device.type for t in inputs if t is not None)
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        # Views: an input that was made from another one must not pass its share on to it twice.
        own = [None if t is None else t.view_as(t) for t in inputs]
        found = formula(*own)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    pairs = [
        (out, g)
        for out, g in zip(outputs, upstream, strict=True)
        if out.requires_grad and g is not None
    ]
    wanted = [t for t in own if t is not None and t.requires_grad]
    if not pairs or not wanted:
        return [None] * len(own)
    outs, grads = zip(*pairs, strict=True)
    slopes = iter(torch.autograd.grad(outs, wanted, grads, create_graph=graph, allow_unused=True))
    return [next(slopes) if t is not None and t.requires_grad else None for t in own]


def check_pairs(rows: int, columns: int) -> None:
    """A plain formula holds every pair: past what memory holds that is a sentence, not a crash."""
    if rows * columns > PAIRS:
        raise InputError(
            f"{rows} × {columns} pairs are too many for a derivative of a gradient "
            f"(create_graph=True) or a transform of torch.func: both form all pairs at once, and "
            f"{PAIRS} is the limit. Pass fewer rows, or take first derivatives with backward()."
        )


def one_by_one(operator: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, int]]:
    """A rule for ``register_vmap``: the operator looks at its data, so each sample is a call."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        calls = (
            [a if d is None else a.select(d, sample) for a, d in zip(args, in_dims, strict=True)]
            for sample in range(info.batch_size)
        )
        return torch.stack([operator(*call) for call in calls]), 0

    return rule
