r"""Per-sample gradients of any module by its own vector-Jacobian products: the road for all that
has no rule.

The module is run again on each sample alone, ``vmap(vjp)`` with one vmap level and a loop over the
d outputs (nested vmaps fail on PReLU and others), for the parameters asked for and no others. What
vmap cannot trace (recurrent layers, data-dependent branches) is run sample by sample: slow, exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Rerun:
    """A module's call to repeat per sample: its inputs' leaves, which axis of each is the batch."""

    module: nn.Module
    leaves: Sequence[Any]
    spec: Any
    batch_axes: Sequence[int | None]
    cotangents: Sequence[Sequence[Tensor]]  # [output coordinate][tensor the module returned]
    out_axes: Sequence[int]
    returned: Sequence[int]  # which leaves of what it returned carry gradient

    def __call__(self, params: Mapping[str, Tensor], leaves: Sequence[Any]) -> list[Tensor]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self.spec)
        found = pytree.tree_leaves(functional_call(self.module, dict(params), args, kwargs))
        return [found[i] for i in self.returned]


def by_vmap(run: Rerun, params: Mapping[str, Tensor]) -> Float[Tensor, "n d p"]:
    """All samples at once."""
    batched = [i for i, axis in enumerate(run.batch_axes) if axis is not None]
    axes = [axis for axis in run.batch_axes if axis is not None]

    def one(inputs: list[Tensor], cotangents: list[list[Tensor]]) -> Tensor:
        leaves = list(run.leaves)
        for i, axis, value in zip(batched, axes, inputs, strict=True):
            leaves[i] = value.unsqueeze(axis)
        pull = torch.func.vjp(lambda p: run(p, leaves), dict(params))[1]
        rows = []
        for output in cotangents:
            pulled = pull([c.unsqueeze(a) for c, a in zip(output, run.out_axes, strict=True)])[0]
            rows.append(torch.cat([g.flatten() for g in pulled.values()]))
        return torch.stack(rows)

    inputs = [run.leaves[i] for i in batched]
    out_axes = [list(run.out_axes) for _ in run.cotangents]
    mapped = torch.func.vmap(one, in_dims=(axes, out_axes))
    return mapped(inputs, [list(c) for c in run.cotangents])


def by_loop(run: Rerun, params: Mapping[str, Tensor], create_graph: bool) -> Float[Tensor, "n d p"]:
    """One sample after another by plain autograd."""
    n = run.cotangents[0][0].shape[run.out_axes[0]]
    samples = []
    for i in range(n):
        leaves = [
            leaf if axis is None else leaf.narrow(axis, i, 1)
            for leaf, axis in zip(run.leaves, run.batch_axes, strict=True)
        ]
        with torch.enable_grad():
            returned = run(params, leaves)
            rows = []
            for output in run.cotangents:
                grads = torch.autograd.grad(
                    returned,
                    list(params.values()),
                    [c.narrow(a, i, 1) for c, a in zip(output, run.out_axes, strict=True)],
                    retain_graph=True,
                    create_graph=create_graph,
                    materialize_grads=True,
                )
                rows.append(torch.cat([g.to_dense().flatten() for g in grads]))
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def samplewise(
    run: Rerun, params: Mapping[str, Tensor], *, create_graph: bool, loop: bool
) -> tuple[Float[Tensor, "n d p"], bool]:
    """Gradients ``(n, d, p)`` in the order of ``params``, and whether it took the loop."""
    if not create_graph:
        params = {name: p.detach().requires_grad_() for name, p in params.items()}
    if not loop and not isinstance(run.module, nn.RNNBase):
        try:
            with twice_differentiable(True), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                found = by_vmap(run, params)
                return found if create_graph else found.detach(), False
        except (RuntimeError, ValueError, NotImplementedError, TypeError):
            pass  # vmap's refusals have no type of their own; the loop settles whether it is ours
    return by_loop(run, params, create_graph), True


def twice_differentiable(wanted: bool) -> AbstractContextManager[None]:
    """Attention by plain products where it must be mapped or differentiated again: the fused ones
    cannot.
    """
    return sdpa_kernel(SDPBackend.MATH) if wanted else nullcontext()


def unit_axes(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Batch axis of every input of a module that is treated as one unit; None if it cannot be
    told.
    """
    first = args[0] if args else None
    if not isinstance(first, Tensor) or first.ndim != 3:
        return None
    axis = 0 if getattr(module, "batch_first", False) else 1
    if isinstance(module, nn.MultiheadAttention):
        named = {
            "key_padding_mask": 0,
            "attn_mask": None,
            "query": axis,
            "key": axis,
            "value": axis,
        }
        mask = kwargs.get("attn_mask", args[5] if len(args) > 5 else None)
        if mask is not None and mask.ndim == 3:
            return None  # (n heads, l, s): samples and heads are folded together
        places = (axis, axis, axis, 0, None, None, None, None)
        return tuple(places[: len(args)]), {k: named.get(k) for k in kwargs}
    states = tuple(pytree.tree_map(lambda _: 1, state) for state in args[1:])
    return (axis, *states), {k: pytree.tree_map(lambda _: 1, v) for k, v in kwargs.items()}


def out_axis(module: nn.Module, leaf: int) -> int:
    """Batch axis of what a unit returned: attention (output, weights), recurrence (output,
    states).
    """
    if leaf == 0:
        return 0 if getattr(module, "batch_first", False) else 1
    return 0 if isinstance(module, nn.MultiheadAttention) else 1
