r"""Sums over the pairs of all processes, a shard at a time.

Every process keeps its anchors; the shards they meet travel around the ring. Of each anchor a few
sums are gathered, in log space (:math:`\log \sum e^s`) or plainly (:math:`\sum w s`). The backward
sends the shards around once more, each with the gradient it has earned so far, until they are home
again: memory is that of two shards, and no process ever holds the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vicinal.checks import InputError
from vicinal.processes import passed_on

# partial(x, labels, reference, reference_labels, *extra) -> sums of each anchor over the reference
# (over the other anchors if it is None); "log" sums are logarithms, "add" sums plain.
Partial = Callable[..., tuple[Tensor, ...]]


def ring_sums(
    partial: Partial,
    kinds: tuple[str, ...],
    x: Tensor,
    labels: Tensor,
    *extra: Tensor,
    sizes: list[int],
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, ...]:
    """``partial`` over the shards of all processes, differentiable in ``x`` and ``extra``.

    ``sizes``: how many rows each process has.
    """
    return _RingSums.apply(partial, kinds, sizes, group, labels, x, *extra)


class _RingSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        partial: Partial,
        kinds: tuple[str, ...],
        sizes: list[int],
        group: Any,
        labels: Tensor,
        x: Tensor,
        *extra: Tensor,
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        start = {"log": float("-inf"), "add": 0.0}
        totals = [torch.full((len(x),), start[k], dtype=dtype, device=x.device) for k in kinds]
        key, key_labels = x.detach().contiguous(), labels.contiguous()
        for step in range(len(sizes)):
            if len(x) and len(key):
                reference = (None, None) if step == 0 else (key, key_labels)
                sums = partial(x, labels, *reference, *extra)
                totals = [
                    torch.logaddexp(t, s) if kind == "log" else t + s
                    for t, s, kind in zip(totals, sums, kinds, strict=True)
                ]
            if step + 1 < len(sizes):
                key, key_labels = (_pass_on(t, step, sizes, group) for t in (key, key_labels))
        ctx.save_for_backward(x, labels, *extra, *totals)
        ctx.partial, ctx.kinds, ctx.sizes, ctx.group = partial, kinds, sizes, group
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "`mode='ring'` is differentiable once: its shards are on other processes when "
                "create_graph=True asks again. Use mode='gather'."
            )
        x, labels, *rest = ctx.saved_tensors
        extra, totals = rest[: -len(ctx.kinds)], rest[-len(ctx.kinds) :]
        grads = [torch.zeros_like(t) for t in (x, *extra)]
        key, key_labels = x.detach().contiguous(), labels.contiguous()
        key_grad = torch.zeros_like(key)
        for step in range(len(ctx.sizes)):
            if len(x) and len(key):
                found = _partial_grads(
                    ctx, x, labels, extra, totals, upstream, step, key, key_labels
                )
                key_grad = key_grad + found.pop(1)
                grads = [a + b for a, b in zip(grads, found, strict=True)]
            key, key_labels, key_grad = (
                _pass_on(t, step, ctx.sizes, ctx.group) for t in (key, key_labels, key_grad)
            )
        grads[0] = grads[0] + key_grad  # home again after a full round
        return (None, None, None, None, None, *grads)


def _partial_grads(
    ctx: Any,
    x: Tensor,
    labels: Tensor,
    extra: list[Tensor],
    totals: list[Tensor],
    upstream: tuple[Tensor, ...],
    step: int,
    key: Tensor,
    key_labels: Tensor,
) -> list[Tensor]:
    """Gradients of one shard's sums: of the anchors, of the shard, of the extras."""
    with torch.enable_grad():
        x, key, *extra = (t.detach().requires_grad_() for t in (x, key, *extra))
        reference = (None, None) if step == 0 else (key, key_labels)
        sums = ctx.partial(x, labels, *reference, *extra)
    weights = []
    for s, total, g, kind in zip(sums, totals, upstream, ctx.kinds, strict=True):
        # ∂ log(Σ_shards e^s) / ∂s = e^(s - total); an empty sum has no gradient
        share = torch.where(s.detach() == float("-inf"), 0, (s.detach() - total).exp())
        weights.append(g * share if kind == "log" else g)
    wanted = [(s, w) for s, w in zip(sums, weights, strict=True) if s.requires_grad]
    inputs = [x, key, *extra]
    outputs, weights = [s for s, _ in wanted], [w for _, w in wanted]
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


def _pass_on(tensor: Tensor, step: int, sizes: list[int], group: Any) -> Tensor:
    """Send to the next process what this one holds, receive what the previous one held."""
    coming = sizes[(dist.get_rank(group) - step - 1) % len(sizes)]
    return passed_on(tensor, coming, group, f"passing rows around the ring, step {step + 1}")
