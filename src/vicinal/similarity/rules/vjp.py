r"""Per-sample gradients of any module by its own vector-Jacobian products: the road for all that
has no rule.

The module is run again on each sample alone, ``vmap(vjp)`` with one vmap level and a loop over the
d outputs (nested vmaps fail on PReLU and others), for the parameters asked for and no others. What
vmap cannot trace (recurrent layers, data-dependent branches) is run sample by sample: slow, exact.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from vicinal.checks import InputError
from vicinal.similarity.watch import leaves_of, wants_company

if TYPE_CHECKING:
    from vicinal.similarity.watch import WatchedCall


@dataclass(frozen=True)
class Rerun:
    """A call to repeat per sample: its inputs' leaves, which axis of each is the batch."""

    watched: WatchedCall
    leaves: list[Any]
    spec: Any
    axes: list[int | None]
    out_axes: list[int]  # of each tensor it returned that carries gradient

    def __call__(self, params: dict[str, Tensor], leaves: list[Any]) -> list[Tensor]:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        found = leaves_of(functional_call(self.watched.module, params, args, kwargs))
        return [found[i] for i in self.watched.returned]


def samplewise(
    call: WatchedCall, params: dict[str, Tensor], *, whole: bool, create_graph: bool, loop: bool
) -> tuple[Float[Tensor, "n d p"], bool]:
    """Gradients ``(n, d, p)`` in the order of ``params``, and whether it took the loop.

    The call is a unit's, or of the ``whole`` model, whose batch axis is always the first.
    """
    every = tuple(0 for _ in call.args), dict.fromkeys(call.kwargs, 0)
    axes = every if whole else unit_axes(call.module, call.args, call.kwargs)
    if axes is None:
        raise InputError(f"the inputs of layer `{call.name}` changed their form between batches.")
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    flat = zip(leaves, pytree.tree_leaves(axes), strict=True)
    batched = [axis if isinstance(v, Tensor) else None for v, axis in flat]
    if not create_graph:
        leaves = [v.detach() if isinstance(v, Tensor) else v for v in leaves]
        params = {name: p.detach().requires_grad_() for name, p in params.items()}
    out_axes = [0 if whole else out_axis(call.module, i) for i in call.returned]
    run = Rerun(call, leaves, spec, batched, out_axes)
    if not loop and not isinstance(call.module, nn.RNNBase):
        try:
            with twice_differentiable(True), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                found = _by_vmap(run, params)
                return found if create_graph else found.detach(), False
        except (RuntimeError, ValueError, NotImplementedError, TypeError):
            pass  # vmap's refusals have no type of their own; the loop settles whether it is ours
    return _by_loop(run, params, create_graph), True


def _by_vmap(run: Rerun, params: dict[str, Tensor]) -> Float[Tensor, "n d p"]:
    """All samples at once."""
    batched = {i: axis for i, axis in enumerate(run.axes) if axis is not None}

    def one(inputs: list[Tensor], cotangents: list[list[Tensor]]) -> Tensor:
        leaves = list(run.leaves)
        for (i, axis), value in zip(batched.items(), inputs, strict=True):
            leaves[i] = value.unsqueeze(axis)
        pull = torch.func.vjp(lambda p: run(p, leaves), params)[1]
        rows = []
        for output in cotangents:
            pulled = pull([c.unsqueeze(a) for c, a in zip(output, run.out_axes, strict=True)])[0]
            rows.append(torch.cat([g.flatten() for g in pulled.values()]))
        return torch.stack(rows)

    grads = run.watched.grads
    mapped = torch.func.vmap(one, in_dims=(list(batched.values()), [run.out_axes] * len(grads)))
    return mapped([run.leaves[i] for i in batched], grads)


def _by_loop(run: Rerun, params: dict[str, Tensor], create_graph: bool) -> Float[Tensor, "n d p"]:
    """One sample after another by plain autograd; beside itself where it must not run alone."""
    grads = run.watched.grads
    pair = wants_company(run.watched.module)

    def one(t: Tensor, axis: int, i: int, beside: Any = torch.clone) -> Tensor:
        alone = t.narrow(axis, i, 1)
        return torch.cat([alone, beside(alone)], axis) if pair else alone

    samples, held = [], list(params.values())
    for i in range(grads[0][0].shape[run.out_axes[0]]):
        pairs = zip(run.leaves, run.axes, strict=True)
        leaves = [leaf if axis is None else one(leaf, axis, i) for leaf, axis in pairs]
        with torch.enable_grad():
            returned, rows = run(params, leaves), []
            for output in grads:
                each = zip(output, run.out_axes, strict=True)
                seeds = [one(c, axis, i, torch.zeros_like) for c, axis in each]
                again = True, create_graph
                found = torch.autograd.grad(returned, held, seeds, *again, materialize_grads=True)
                rows.append(torch.cat([g.to_dense().flatten() for g in found]))
        samples.append(torch.stack(rows))
    return torch.stack(samples)


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
        named = {"query": axis, "key": axis, "value": axis, "key_padding_mask": 0}
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
