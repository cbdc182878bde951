r"""Per-sample gradients kept as the small factors they are products of.

A layer's gradient for sample x and output i is never stored where it need not be:

* :class:`Places`: ``G(x, i) = Σ_t b_t(x, i) a_t(x)ᵀ``, a sum over T places of (gradient at the
  layer's output) ⊗ (input). One place is a Kronecker product, several are a "ghost" of the
  gradient; an embedding is the same with one-hot inputs, kept as integers.
* :class:`Dense`: the gradient itself, where it is smaller than its factors (convolutions, norms).

What is small to keep need not be quick to multiply: a tile of the Gram matrix costs T²(in + d·out)
a pair by the places, d·in·out with the sums carried out, which happens slice by slice where it is
the cheaper way.

Both answer the same questions, and every answer is differentiable when the factors were captured
with ``create_graph=True``:

========================= ===================================================== ==================
``self_gram()``           ``K(x, x)_ij = ⟨G(x, i), G(x, j)⟩``                    ``(n, d, d)``
``trace_gram(other)``     ``Tr K(x, x') = Σ_i ⟨G(x, i), G(x', i)⟩``              ``(n, m)``
``matrix_gram(other)``    ``K(x, x')``                                          ``(n, m, d, d)``
``mixed(w)``              ``G(x, i) ← Σ_j w(x)_ij G(x, j)`` (whitening, scaling) a factor
``total(weights)``        ``g_i = Σ_x weights(x) G(x, i)``                      ``(d, ...)``
``dot(total)``            ``Σ_i ⟨G(x, i), g_i⟩``                                ``(n,)``
``dense()``               the gradients in the parameters' own layout           ``(n, d, p)``
========================= ===================================================== ==================

The trace is one matrix product per factor, ``(A Aᵀ) ∘ (B Bᵀ)`` with B flattened over outputs: it
costs n²(in + d·out), never n²·d²·p. (A long file: the two kinds are read side by side.)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.neighbors.product import product
from vicinal.similarity.places import Places, Room, Tensors, own_layout, rewritten, room


@dataclass(frozen=True)
class Dense(Tensors):
    """The per-sample gradients themselves: ``g`` is ``(n, d, p)``."""

    g: Float[Tensor, "n d p"]
    shape: tuple[int, ...] = ()  # (out, *kernel, in) where the kernel was unfolded channels-last
    kind = "dense"

    @property
    def outputs(self) -> int:
        return self.g.shape[1]

    def pair_flops(self) -> int:
        return 2 * prod(self.g.shape[1:])

    def form_flops(self) -> int:
        return 0

    def self_gram(self) -> Float[Tensor, "n d d"]:
        if self.outputs == 1:  # a matrix product of one row leaves the cores idle
            return torch.linalg.vecdot(self.g, self.g)[..., None]
        return self.g @ self.g.mT

    def trace_gram(self, other: Dense, into: Tensor | None = None) -> Float[Tensor, "n m"]:
        gram = product(self.g.flatten(1), other.g.flatten(1))
        return gram if into is None else into.add_(gram)

    def matrix_gram(self, other: Dense) -> Float[Tensor, "n m d e"]:
        flat = self.g.flatten(0, 1) @ other.g.flatten(0, 1).T
        return flat.view(len(self), self.outputs, len(other), other.outputs).transpose(1, 2)

    def mixed(self, w: Float[Tensor, "n c d"]) -> Dense:
        w = w.to(self.g.dtype)
        return replace(self, g=self.g * w if w.shape[1:] == (1, 1) else w @ self.g)

    def remixed(self, w: Float[Tensor, "n d d"]) -> Dense:
        """:meth:`mixed`, written over what there was."""
        if not self.g.is_contiguous() or self.g.requires_grad or w.requires_grad:
            return self.mixed(w)
        return replace(self, g=rewritten(self.g, w))

    def total(self, weights: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        found = self.g.sum(0) if weights is None else torch.tensordot(weights, self.g, 1)
        return found if into is None else into.add_(found)

    def dot(self, total: Tensor) -> Float[Tensor, " n"]:
        return self.g.flatten(1) @ total.flatten()

    def dense(self, onto: Tensor | None = None) -> Float[Tensor, "n d p"]:
        g = own_layout(self.g, self.shape)
        return g if onto is None else onto + g


Factor: TypeAlias = Places | Dense


def stacked(grads: Sequence[Tensor], axis: int) -> Tensor:
    """The gradients of the d outputs along a new axis; a single one is not copied."""
    return grads[0].unsqueeze(axis) if len(grads) == 1 else torch.stack(list(grads), axis)


def self_gram(factors: Sequence[Factor]) -> Float[Tensor, "n d d"]:
    """``K(x, x)`` of every sample, summed over the layers in float64."""
    return functools.reduce(torch.add, (factor.self_gram().double() for factor in factors))


def trace_gram(left: Sequence[Factor], right: Sequence[Factor]) -> Float[Tensor, "n m"]:
    """``Tr K(x, x')`` of every pair; in place where no one will differentiate it."""
    frozen = not any(t.requires_grad for f in (*left, *right) for t in f.tensors().values())
    found = left[0].trace_gram(right[0])  # type: ignore[arg-type]  # pairs are of one kind
    for a, b in zip(left[1:], right[1:], strict=True):
        if frozen:
            a.trace_gram(b, found)  # type: ignore[arg-type]
        else:
            found = found + a.trace_gram(b)  # type: ignore[arg-type]
    return found


def matrix_gram(left: Sequence[Factor], right: Sequence[Factor]) -> Float[Tensor, "n m d e"]:
    """``K(x, x')`` of every pair."""
    each = zip(left, right, strict=True)
    return functools.reduce(torch.add, (a.matrix_gram(b) for a, b in each))  # type: ignore[arg-type]


def mixed(factors: Sequence[Factor], w: Float[Tensor, "n c d"]) -> list[Factor]:
    """Every layer's gradients with their outputs mixed by the same matrix per sample."""
    return [factor.mixed(w) for factor in factors]


def dot(factors: Sequence[Factor], totals: Sequence[Tensor]) -> Float[Tensor, " n"]:
    """``⟨G(x), g⟩`` of every sample, summed over outputs and layers."""
    each = zip(factors, totals, strict=True)
    return functools.reduce(torch.add, (factor.dot(g) for factor, g in each))


def select(factors: Sequence[Factor], index: slice | Tensor) -> list[Factor]:
    return [factor.select(index) for factor in factors]


def alike(factors: Sequence[Factor]) -> list[list[int]]:
    """The layers by the gradients at their outputs: those of two maps whose answers are added (of
    the inputs and of the states of an LSTM) are the same tensor.
    """
    found: dict[Any, list[int]] = {}
    for i, f in enumerate(factors):
        plain = isinstance(f, Places) and not f.vocabulary and not f.shape
        at = (f.b.data_ptr(), f.b.shape) if isinstance(f, Places) and plain and f.b.numel() else i
        found.setdefault(at, []).append(i)
    return list(found.values())


def merged(factors: Sequence[Factor], groups: Sequence[Sequence[int]]) -> list[Factor]:
    """Maps with the same gradients at their outputs as one, of all their inputs: what is summed
    over the places is summed once.
    """
    found: list[Factor] = []
    for group in groups:
        maps = [f for f in (factors[i] for i in group) if isinstance(f, Places)]
        if len(group) == 1:
            found.append(factors[group[0]])
        else:
            ones = maps[0].a.new_ones(*maps[0].a.shape[:2], sum(f.bias for f in maps))
            a = torch.cat([*(f.a for f in maps), ones], 2)
            found.append(replace(maps[0], a=a, bias=False))
    return found


def together(parts: Sequence[Factor]) -> Factor:
    """The samples of several factors of one layer."""
    whole, at, rows = None, 0, sum(map(len, parts))
    for part in parts:
        whole, at = laid(whole, part, at, rows, room), at + len(part)
    assert whole is not None
    return whole


def laid(whole: Factor | None, part: Factor, at: int, rows: int, room: Room) -> Factor:
    """A factor of ``rows`` samples with those of ``part`` from number ``at`` on."""
    if isinstance(whole, Places) and isinstance(part, Places) and whole.bias != part.bias:
        whole, part = whole.folded(), part.folded()
    into = {} if whole is None else whole.tensors()
    each = part.tensors().items()
    found: Any = {name: _laid(into.get(name), t, at, rows, room) for name, t in each}
    return replace(part, **found)


def _laid(whole: Tensor | None, part: Tensor, at: int, rows: int, room: Room) -> Tensor:
    """Of unequal places the fewer are filled up with zeros."""
    if whole is None or part.shape[1] > whole.shape[1]:
        before, size = whole, (rows, *part.shape[1:])
        order = sorted(range(part.ndim), key=part.stride, reverse=True)  # as they lie in memory
        whole = room(part, *(size[i] for i in order)).permute(
            [order.index(i) for i in range(len(order))]
        )
        if before is not None:
            whole = _laid(whole, before[:at], 0, rows, room)
    mine = whole[at : at + len(part)]
    mine[:, : part.shape[1]] = part
    mine[:, part.shape[1] :] = 0
    return whole
