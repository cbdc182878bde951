r"""Weights computed from others: ``torch.nn.utils.parametrize`` (weight norm, spectral norm).

A layer whose weight is :math:`W = p(v)` has its own rule for :math:`\partial f/\partial W`; the
chain rule's last step, :math:`\partial f/\partial v = (\partial p/\partial v)^\top \partial
f/\partial W`, is the same map for every sample and output, and small.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from vicinal.similarity.factors import Dense, Factor
from vicinal.similarity.normed import normed
from vicinal.similarity.places import Places

INSIDE = "parametrizations."
ORIGINAL = INSIDE + "weight.original"  # where a weight is computed from one tensor
LENGTHS = ORIGINAL + "0"  # of weight norm


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
    module: Any, tensor: str, factor: Factor, wanted: frozenset[str], apart: bool
) -> list[tuple[tuple[str, ...], Factor]]:
    """The gradients of what a tensor is computed from, out of its own; ``apart``: those of each
    parameter by themselves.
    """
    made = module.parametrizations[tensor]
    held = dict(made.named_parameters())
    only = made[0] if len(made) == 1 else None
    places = isinstance(factor, Places) and not factor.shape and not factor.vocabulary
    flat = factor if isinstance(factor, Places) and places else None
    if flat is not None and type(only) is _WeightNorm and only.dim == 0 and not apart:
        names = tuple(f"{INSIDE}{tensor}.{own}" for own in held)
        if wanted.issuperset(names):
            found: Any = normed(flat, *(p.detach() for p in held.values()))
            return [(names, found)]
    with torch.set_grad_enabled(any(t.requires_grad for t in factor.tensors().values())):
        if type(only) is _WeightNorm:
            found = _of_weight_norm(factor, held, only.dim)
        elif type(only) is _SpectralNorm and flat is not None and only.dim == 0:
            found = {"original": _of_spectral_norm(flat, held["original"], only)}
        else:
            g = factor.dense()
            pull = vjp(lambda inside: functional_call(made, inside, ()), held)[1]
            (pulled,) = vmap(pull)(g.reshape(-1, *getattr(module, tensor).shape))
            found = {own: Dense(t.reshape(*g.shape[:2], -1)) for own, t in pulled.items()}
    by_name = {f"{INSIDE}{tensor}.{own}": factor for own, factor in found.items()}
    return [((name,), factor) for name, factor in by_name.items() if name in wanted]


def _of_weight_norm(factor: Factor, held: dict[str, Tensor], axis: int) -> dict[str, Factor]:
    """``W = g v/‖v‖``: ``∂g = ⟨∂W, v/‖v‖⟩``, and ``∂v`` what is left across v, times ``g/‖v‖``.

    (By hand: torch's own backward of it runs row by row under ``vmap``.)
    """
    size, v = held["original0"], held["original1"]
    over = [i for i in range(v.ndim) if i != axis]  # axis -1: the norm of all of it
    norm = torch.linalg.vector_norm(v, dim=over, keepdim=True)
    unit, stretch = v / norm, size / norm
    g = factor.dense().unflatten(2, v.shape)
    along = (g * unit).sum([i + 2 for i in over], keepdim=True)
    frozen = not (g.requires_grad or unit.requires_grad)
    left = g.addcmul_(along, unit, value=-1) if frozen else g - along * unit
    return {"original0": Dense(along.flatten(2)), "original1": Dense((left * stretch).flatten(2))}


def _of_spectral_norm(factor: Places, weight: Tensor, made: Any) -> Places:
    """``W = V/σ`` with ``σ = uᵀVv``, u and v at rest: ``∂V = (∂W - ⟨∂W, W⟩ u vᵀ)/σ``, one more
    place.
    """
    u, v = made._u, made._v
    sigma = u @ (weight @ v)
    along = torch.einsum("ntdo,nto->nd", factor.b, factor.a @ (weight.mT / sigma))
    place = v.expand(len(factor), 1, -1), -along[:, None, :, None] * u
    b = torch.cat([x.permute(2, 0, 1, 3) for x in (factor.b, place[1])], 2) / sigma
    return replace(factor, a=torch.cat([factor.a, place[0]], 1), b=b.permute(1, 2, 0, 3))
