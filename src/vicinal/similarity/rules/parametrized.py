r"""Weights computed from others: ``torch.nn.utils.parametrize`` (weight norm, spectral norm).

A layer whose weight is :math:`W = p(v)` has its own rule for :math:`\partial f/\partial W`; the
chain rule's last step, :math:`\partial f/\partial v = (\partial p/\partial v)^\top \partial
f/\partial W`, is the same map for every sample and output, and small.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from vicinal.similarity.factors import Dense, Factor

INSIDE = "parametrizations."


def originals(module: nn.Module, covered: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """What the covered tensors of a layer are computed from, by the layer's own names.

    >>> layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> list(originals(layer, ("weight", "bias")))
    ['parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    if not is_parametrized(module):
        return {}
    inside: Any = module.parametrizations
    found = {name: inside[name].named_parameters() for name in covered if name in inside}
    return {f"{INSIDE}{name}.{own}": p for name, held in found.items() for own, p in held}


def made_from(own: str) -> str:
    """The tensor of a layer that a parameter is, or makes up.

    >>> made_from("parametrizations.weight.original0"), made_from("bias")
    ('weight', 'bias')
    """
    return own.removeprefix(INSIDE).split(".")[0] if own.startswith(INSIDE) else own


def edges_each(module: nn.Module, own: str, p: Tensor, uses: Any) -> int:
    """How many edges of the graph lead to a parameter each time its layer is called."""
    if not own.startswith(INSIDE):
        return 1
    counted: Counter[int] = uses(getattr(module, made_from(own)))
    return max(1, counted[id(p)])


def pulled_back(
    module: Any, tensor: str, factor: Factor, wanted: frozenset[str]
) -> list[tuple[tuple[str, ...], Factor]]:
    """The gradients of what a tensor is computed from, out of its own."""
    made = module.parametrizations[tensor]
    g = factor.dense()
    held = dict(made.named_parameters())
    with torch.set_grad_enabled(g.requires_grad):
        rows = g.reshape(-1, *getattr(module, tensor).shape)
        if len(made) == 1 and type(made[0]) is _WeightNorm:
            found = _of_weight_norm(rows, held, made[0].dim)
        else:
            pull = vjp(lambda inside: functional_call(made, inside, ()), held)[1]
            (found,) = vmap(pull)(rows)
    names = {f"{INSIDE}{tensor}.{own}": own for own in found}
    return [
        ((name,), Dense(found[own].reshape(*g.shape[:2], -1)))
        for name, own in names.items()
        if name in wanted
    ]


def _of_weight_norm(rows: Tensor, held: dict[str, Tensor], axis: int) -> dict[str, Tensor]:
    """``W = g v/‖v‖``: ``∂g = ⟨∂W, v/‖v‖⟩``, and ``∂v`` what is left across v, times ``g/‖v‖``.

    (By hand: torch's own backward of it runs row by row under ``vmap``.)
    """
    size, v = held["original0"], held["original1"]
    over = [i for i in range(v.ndim) if i != axis]  # axis -1: the norm of all of it
    norm = torch.linalg.vector_norm(v, dim=over, keepdim=True)
    unit = v / norm
    along = (rows * unit).sum([i + 1 for i in over], keepdim=True)
    return {"original0": along, "original1": (size / norm) * (rows - along * unit)}
