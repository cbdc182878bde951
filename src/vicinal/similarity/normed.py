r"""Gradients of a linear map whose rows have a length of their own, ``W_o = g_o v_o / ‖v_o‖``.

With :math:`\hat v = v/\|v\|`, :math:`\kappa = g/\|v\|` and :math:`G_o = \partial f/\partial W_o`
the gradients are :math:`s_o = \langle\hat v_o, G_o\rangle` in g and :math:`\kappa_o (G_o - s_o
\hat v_o)` in v, so of two samples

.. math:: K = \sum_o \kappa_o^2 \langle G_o, G'_o\rangle + (1 - \kappa_o^2)\, s_o s'_o :

places whose b is stretched by κ, and one number beside each feature, whose weight is below zero
where g exceeds the length of v. (It is the kernel of the features :math:`|\kappa| G + (1 -
|\kappa|)\, s \hat v`, which a sketch projects.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.similarity.factors import Dense
from vicinal.similarity.places import Places, Tensors, wide


class NormedRows(NamedTuple):
    """Of the map: v̂ and κ, the same for all samples."""

    unit: Float[Tensor, "out in"]
    stretch: Float[Tensor, " out"]


@dataclass(frozen=True)
class Normed(Tensors):
    """The parameters g and v together; see above. Answers what :mod:`factors` asks.

    ``a`` and ``b`` are those of :class:`Places`, b stretched by ``|κ|``.
    """

    a: Float[Tensor, "n t in"]
    b: Float[Tensor, "n t d out"]
    s: Float[Tensor, "n d out"]
    rows: NormedRows
    vocabulary = 0

    @property
    def kind(self) -> str:
        return f"{self.map().kind}, normed"

    def pair_flops(self) -> int:
        return self.map().pair_flops() + 2 * self.s[0].numel()

    def form_flops(self) -> int:
        return self.map().form_flops()

    def self_gram(self) -> Float[Tensor, "n d d"]:
        return self.map().self_gram() + self._weighted() @ self.s.mT

    def trace_gram(self, other: Normed, into: Tensor | None = None) -> Float[Tensor, "n m"]:
        beside = Dense(self._weighted()).trace_gram(Dense(other.s), into)
        return self.map().trace_gram(other.map(), beside)

    def matrix_gram(self, other: Normed) -> Float[Tensor, "n m d e"]:
        beside = Dense(self._weighted()).matrix_gram(Dense(other.s))
        return beside + self.map().matrix_gram(other.map())

    def mixed(self, w: Float[Tensor, "n c d"]) -> Normed:
        return replace(self, b=self.map().mixed(w).b, s=w.to(self.s.dtype) @ self.s)

    def remixed(self, w: Float[Tensor, "n d d"]) -> Normed:
        return replace(self, b=self.map().remixed(w).b, s=w.to(self.s.dtype) @ self.s)

    def total(self, weights: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """``(d, out, in)``, that of s at the end."""
        size = (self.s.shape[1], *self.rows.unit.shape)
        found = self.b.new_zeros(*size[:2], size[2] + 1) if into is None else into
        self.map().total(weights, found[..., :-1])
        found[..., -1].add_(Dense(self.s).total(weights))
        return found

    def dot(self, total: Tensor) -> Float[Tensor, " n"]:
        return Dense(self._weighted()).dot(total[..., -1]) + self.map().dot(total[..., :-1])

    def dense(self, onto: Tensor | None = None) -> Float[Tensor, "n d p"]:
        """The gradients in g, then those in v."""
        unit, stretch = self.rows
        g = self.map().dense().unflatten(2, unit.shape)
        v = g * stretch.sign()[:, None] - (self.s * stretch)[..., None] * unit
        found = torch.cat([self.s, v.flatten(2)], 2)
        return found if onto is None else onto + found

    def along(self) -> Float[Tensor, "n d out"]:
        """How much of each v̂ the features hold beside the places."""
        return self.s * (1 - self.rows.stretch.abs())

    def map(self) -> Places:
        return Places(self.a, self.b)

    def _weighted(self) -> Float[Tensor, "n d out"]:
        return self.s * (1 - self.rows.stretch.square())


def normed(factor: Places, g: Float[Tensor, "out ..."], v: Float[Tensor, "out ..."]) -> Normed:
    """The gradients in g and v out of those in W."""
    v = v.flatten(1)
    length = torch.linalg.vector_norm(v, dim=1)
    rows = NormedRows(wide(v / length[:, None]), wide(g.flatten() / length))
    a, b = wide(factor.a), wide(factor.b)
    s = torch.einsum("ntdo,nto->ndo", b, a @ rows.unit.mT)
    return Normed(a, b * rows.stretch.abs(), s, rows)
