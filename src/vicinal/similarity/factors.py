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
``total(weights)``        ``g_i = Σ_x weights(x) G(x, i)``                      tensors ``(d, ...)``
``dot(total)``            ``Σ_i ⟨G(x, i), g_i⟩``                                ``(n,)``
``dense()``               the gradients in the parameters' own layout           ``(n, d, p)``
========================= ===================================================== ==================

The trace is one matrix product per factor, ``(A Aᵀ) ∘ (B Bᵀ)`` with B flattened over outputs: it
costs n²(in + d·out), never n²·d²·p. (A long file: the two kinds are read side by side.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Totals: TypeAlias = tuple[Tensor, ...]
TILE_BYTES = 64 << 20  # the largest temporary of one Gram product
DOUBLE_ROWS = 64  # of small factors in float64 at a time: they stay in the cache


class _Tensors:
    """What both kinds do to their tensors one by one."""

    def tensors(self) -> dict[str, Tensor]:
        return {name: t for name, t in vars(self).items() if isinstance(t, Tensor)}

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors().values())

    def select(self, index: slice | Tensor) -> Self:
        return self._each(lambda t: t[index])

    def widened(self) -> Self:
        return self._each(wide)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, **{name: change(t) for name, t in self.tensors().items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class Places(_Tensors):
    """``G(x, i) = Σ_t b[x, t, i] ⊗ a[x, t]``, and the bias' gradient ``Σ_t b[x, t, i]`` if any.

    ``a``: inputs ``(n, t, in)``, or integers ``(n, t)`` that stand for one-hot rows of width
    ``vocabulary``. ``b``: gradients at the output ``(n, t, d, out)``.
    """

    a: Tensor
    b: Float[Tensor, "n t d out"]
    weight: bool = True
    bias: bool = False
    vocabulary: int = 0  # > 0: `a` holds the indices of an embedding
    shape: tuple[int, ...] = ()  # of b's features x a's, where the parameter's layout is another
    one: Float[Tensor, " n"] | None = None  # the bias' input, where samples were rescaled; None: 1

    @property
    def outputs(self) -> int:
        return self.b.shape[2]

    @property
    def kind(self) -> str:
        return "kronecker" if self.b.shape[1] == 1 else "ghost"

    def pair_flops(self) -> int:
        """Of the trace kernel of one pair of samples."""
        t = self.b.shape[1]
        return 2 * min(self._pair(t, t), self._size() if t > 1 else self._pair(t, t))

    def form_flops(self) -> int:
        """Of carrying out the sum over the places of one sample, if that is the cheaper way."""
        t = self.b.shape[1]
        return 0 if self._pair(t, t) <= self._size() else 2 * t * self._size()

    def _pair(self, t: int, s: int) -> int:
        """Multiplications of a pair by ``Σ_ts ⟨a_t, a_s⟩ ⟨b_t, b_s⟩``."""
        d, out = self.b.shape[2:]
        return t * s * ((1 if self.vocabulary else self.a.shape[-1]) + d * out)

    def _size(self) -> int:
        """Numbers of one sample's gradients."""
        return (self.vocabulary or self.a.shape[-1]) * prod(self.b.shape[2:])

    def _carried_out(self, other: Places) -> Iterator[tuple[Tensor, Tensor]]:
        """The gradients themselves ``(n, d, p)`` and the other's, a few of the layer's features
        out at a time: nothing as large as the weights is kept for each sample.
        """
        each = (len(self) + len(other)) * self._size() * self.b.element_size()
        step = max(1, TILE_BYTES * self.b.shape[3] // max(each, 1))
        for first in range(0, self.b.shape[3], step):
            some = slice(first, first + step)
            left = replace(self, b=self.b[..., some], shape=()).dense()
            same = other is self
            yield left, left if same else replace(other, b=other.b[..., some], shape=()).dense()

    def _as_ghosts(self, other: Places, pair: int = 1, size: int = 1) -> bool:
        """Whether a tile costs less place by place than by carrying out the sums first."""
        n, m, t, s = len(self), len(other), self.b.shape[1], other.b.shape[1]
        places = n * t + (0 if other is self else m * s)
        forming = 0 if self.vocabulary else places * self._size()
        return (
            not self.weight
            or n * m * self._pair(t, s) * pair <= forming + n * m * self._size() * size
        )

    def self_gram(self) -> Float[Tensor, "n d d"]:
        n, t, d, out = self.b.shape
        inner = self.inner_rows(self)
        if t == 1:  # in float64, for its inverse root amplifies rounding
            rows = (part.double() for part in self.b[:, 0].split(DOUBLE_ROWS))
            return inner * torch.cat([b @ b.mT for b in rows])
        flat = self.b.reshape(n, t, d * out)
        left = (
            (inner.expand(n, t, t) @ flat).view(n, t, d, out).transpose(1, 2).reshape(n, d, t * out)
        )
        right = self.b.transpose(1, 2).reshape(n, d, t * out)
        return left @ right.mT

    def trace_gram(self, other: Places, into: Tensor | None = None) -> Float[Tensor, "n m"]:
        n, t = self.b.shape[:2]
        m, s = other.b.shape[:2]
        if t == s == 1:
            gram = self.b.reshape(n, -1) @ other.b.reshape(m, -1).T
            inner = self._inner(other)
            gram = gram * inner if gram.requires_grad or inner.requires_grad else gram.mul_(inner)
            return gram if into is None else into.add_(gram)
        if self._as_ghosts(other):
            gram = self._by_places(other)
        else:
            made = self._carried_out(other)
            gram = functools.reduce(torch.add, (a.flatten(1) @ b.flatten(1).T for a, b in made))
        return gram if into is None else into.add_(gram)

    def _by_places(self, other: Places) -> Float[Tensor, "n m"]:
        (n, t), (m, s) = self.b.shape[:2], other.b.shape[:2]
        rows = max(1, TILE_BYTES // max(1, self.b.element_size() * t * m * s))
        parts = []
        for start in range(0, n, rows):
            part = self.select(slice(start, start + rows))
            left, right = (x.b.flatten(2).flatten(0, 1) for x in (part, other))
            product = part._inner(other) * (left @ right.T)
            parts.append(product.view(len(part), t, m, s).sum((1, 3)))
        return torch.cat(parts)

    def matrix_gram(self, other: Places) -> Float[Tensor, "n m d e"]:
        n, t, d, _ = self.b.shape
        m, s, e, _ = other.b.shape
        if t * s > 1 and not self._as_ghosts(other, pair=d, size=d):
            made = self._carried_out(other)
            products = (a.flatten(0, 1) @ b.flatten(0, 1).T for a, b in made)
            return functools.reduce(torch.add, products).view(n, d, m, e).transpose(1, 2)
        rows = max(1, TILE_BYTES // max(1, self.b.element_size() * t * d * m * s * e))
        parts = []
        for start in range(0, n, rows):
            part = self.select(slice(start, start + rows))
            outer = part.b.flatten(0, 2) @ other.b.flatten(0, 2).T
            product = outer.view(len(part) * t, d, m * s, e) * part._inner(other)[:, None, :, None]
            parts.append(product.view(len(part), t, d, m, s, e).sum((1, 4)).transpose(1, 2))
        return torch.cat(parts)

    def mixed(self, w: Float[Tensor, "n c d"]) -> Places:
        w = w.to(self.b.dtype)
        if self.b.shape[1] == 1:
            return replace(self, b=(w @ self.b[:, 0])[:, None])
        return replace(self, b=w[:, None] @ self.b)

    def total(self, weights: Tensor | None = None, into: Totals | None = None) -> Totals:
        b = self.b if weights is None else self.b * weights[:, None, None, None]
        _, _, d, out = b.shape
        flat = b.reshape(-1, d * out)
        found: list[Tensor] = []
        if self.weight and self.vocabulary:
            rows = flat.new_zeros(self.vocabulary, d * out) if into is None else into[0]
            found.append(rows.index_add(0, self.a.flatten(), flat))
        elif self.weight:
            a = self.a.reshape(-1, self.a.shape[-1])
            found.append(flat.T @ a if into is None else into[0].addmm_(flat.T, a))
        if self.bias:
            summed = self._with_one(b).sum((0, 1)).flatten()
            found.append(summed if into is None else into[-1].add_(summed))
        return tuple(found)

    def dot(self, total: Totals) -> Float[Tensor, " n"]:
        n = len(self)
        flat = self.b.reshape(-1, prod(self.b.shape[2:]))
        if self.weight and self.vocabulary:
            against = total[0][self.a.flatten()]
        elif self.weight:
            a = self.a.reshape(-1, self.a.shape[-1])
            against = (
                torch.addmm(self._bias_of(total[-1]), a, total[0].T)
                if self.bias
                else a @ total[0].T
            )
        else:
            against = self._bias_of(total[-1])
        return (flat * against).view(n, -1).sum(1)

    def dense(self) -> Float[Tensor, "n d p"]:
        n, t, d, out = self.b.shape
        found: list[Tensor] = []
        if self.weight and self.vocabulary:
            rows = self.b.new_zeros(n, self.vocabulary, d * out)
            at = self.a[:, :, None].expand(-1, -1, d * out)
            rows = rows.scatter_add(1, at, self.b.reshape(n, t, d * out))
            found.append(rows.view(n, -1, d, out).transpose(1, 2).flatten(2))
        elif self.weight:
            weight = (self.b.reshape(n, t, d * out).mT @ self.a).view(n, d, -1)
            found.append(own_layout(weight, self.shape))
        if self.bias:
            found.append(self._with_one(self.b).sum(1))
        return torch.cat(found, 2) if len(found) > 1 else found[0]

    def _inner(self, other: Places) -> Tensor:
        """Inner products of the inputs at every pair of places, (n t, m s); 1 more with a bias."""
        if not self.weight:
            return self.b.new_ones(1, 1)
        if self.vocabulary:
            return (self.a.reshape(-1, 1) == other.a.reshape(1, -1)).to(self.b.dtype)
        inner = self.a.reshape(-1, self.a.shape[-1]) @ other.a.reshape(-1, self.a.shape[-1]).T
        if self.bias and (self.one is not None or other.one is not None):
            return inner + self._ones()[:, None] * other._ones()[None]
        return inner + 1 if self.bias and inner.requires_grad else inner.add_(float(self.bias))

    def _ones(self) -> Float[Tensor, " n_t"]:
        """The bias' input at every place."""
        one = self.a.new_ones(len(self)) if self.one is None else self.one
        return one.repeat_interleave(self.a.shape[1])

    def _with_one(self, b: Tensor) -> Tensor:
        return b if self.one is None else b * self.one.view(-1, *[1] * (b.ndim - 1))

    def _bias_of(self, total: Tensor) -> Tensor:
        return total if self.one is None else self._ones()[:, None] * total

    def inner_rows(self, other: Places) -> Float[Tensor, "n t s"]:
        """The same, but only of each sample with that of the same row."""
        if not self.weight:
            return self.b.new_ones(1, 1, 1)
        if self.vocabulary:
            return (self.a[:, :, None] == other.a[:, None, :]).to(self.b.dtype)
        if self.bias and self.one is not None and other.one is not None:
            return self.a @ other.a.mT + (self.one * other.one)[:, None, None]
        return self.a @ other.a.mT + float(self.bias)


@dataclass(frozen=True)
class Dense(_Tensors):
    """The per-sample gradients themselves: ``g`` is ``(n, d, p)``.

    With ``mix`` they stand for ``Σ_j mix(x)_ij g(x, j)``: sums and products take it in their
    stride, d numbers for p, so nothing as large as the weights is written again.
    """

    g: Float[Tensor, "n d p"]
    shape: tuple[int, ...] = ()  # (out, *kernel, in) where the kernel was unfolded channels-last
    mix: Float[Tensor, "n d d"] | None = None
    kind = "dense"

    @property
    def outputs(self) -> int:
        return self.g.shape[1]

    def pair_flops(self) -> int:
        return 2 * prod(self.g.shape[1:])

    def form_flops(self) -> int:
        return 0

    def self_gram(self) -> Float[Tensor, "n d d"]:
        g = self._whole()
        if self.outputs == 1:  # a matrix product of one row leaves the cores idle
            return g.square().sum(2, keepdim=True)
        return g @ g.mT

    def trace_gram(self, other: Dense, into: Tensor | None = None) -> Float[Tensor, "n m"]:
        left, right = self._whole().flatten(1), other._whole().flatten(1).T
        return left @ right if into is None else into.addmm_(left, right)

    def matrix_gram(self, other: Dense) -> Float[Tensor, "n m d e"]:
        flat = self._whole().flatten(0, 1) @ other._whole().flatten(0, 1).T
        return flat.view(len(self), self.outputs, len(other), other.outputs).transpose(1, 2)

    def mixed(self, w: Float[Tensor, "n c d"]) -> Dense:
        w, g = w.to(self.g.dtype), self._whole()
        return replace(self, g=g * w if w.shape[1:] == (1, 1) else w @ g, mix=None)

    def to_mix(self, w: Float[Tensor, "n d d"]) -> Dense:
        """:meth:`mixed`, but on the way."""
        return replace(self, g=self._whole(), mix=w.to(self.g.dtype))

    def total(self, weights: Tensor | None = None, into: Totals | None = None) -> Totals:
        if self.mix is not None:  # Σ_x Σ_j mix(x)_ij g(x, j): one product, (d, n d) by (n d, p)
            mix = self.mix if weights is None else self.mix * weights[:, None, None]
            found = mix.transpose(0, 1).flatten(1) @ self.g.flatten(0, 1)
        elif weights is None:
            found = self.g.sum(0)
        else:
            found = (weights @ self.g.flatten(1)).view(self.g.shape[1:])
        return (found if into is None else into[0].add_(found),)

    def dot(self, total: Totals) -> Float[Tensor, " n"]:
        if self.mix is None:
            return self.g.flatten(1) @ total[0].flatten()
        each = (self.g.flatten(0, 1) @ total[0].T).view(self.g.shape[0], self.g.shape[1], -1)
        return (each.mT * self.mix).sum((1, 2))

    def dense(self) -> Float[Tensor, "n d p"]:
        return own_layout(self._whole(), self.shape)

    def _whole(self) -> Float[Tensor, "n d p"]:
        return self.g if self.mix is None else self.mix @ self.g


Factor: TypeAlias = Places | Dense


def stacked(grads: Sequence[Tensor], axis: int) -> Tensor:
    """The gradients of the d outputs along a new axis; a single one is not copied."""
    return grads[0].unsqueeze(axis) if len(grads) == 1 else torch.stack(list(grads), axis)


def own_layout(flat: Float[Tensor, "n d p"], shape: tuple[int, ...]) -> Float[Tensor, "n d p"]:
    """Gradients stored as ``(..., *kernel, in)`` in the layout ``(..., in, *kernel)`` of the
    weight; those of a weight that is kept transposed, ``shape`` (out, in), as ``(in, out)``.
    """
    if not shape:
        return flat
    whole = flat.reshape(*flat.shape[:2], *shape)
    return (whole.mT if len(shape) == 2 else whole.movedim(-1, 3)).flatten(2)


def self_gram(factors: Sequence[Factor]) -> Float[Tensor, "n d d"]:
    """``K(x, x)`` of every sample, summed over the layers in float64."""
    found = factors[0].self_gram().double()
    for factor in factors[1:]:
        found = found + factor.self_gram()
    return found


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
    found = left[0].matrix_gram(right[0])  # type: ignore[arg-type]
    for a, b in zip(left[1:], right[1:], strict=True):
        found = found + a.matrix_gram(b)  # type: ignore[arg-type]
    return found


def mixed(factors: Sequence[Factor], w: Float[Tensor, "n c d"]) -> list[Factor]:
    """Every layer's gradients with their outputs mixed by the same matrix per sample."""
    return [factor.mixed(w) for factor in factors]


def dot(factors: Sequence[Factor], totals: Sequence[Totals]) -> Float[Tensor, " n"]:
    """``⟨G(x), g⟩`` of every sample, summed over outputs and layers."""
    found = factors[0].dot(totals[0])
    for factor, g in zip(factors[1:], totals[1:], strict=True):
        found = found + factor.dot(g)
    return found


def select(factors: Sequence[Factor], index: slice | Tensor) -> list[Factor]:
    return [factor.select(index) for factor in factors]


def together(parts: Sequence[Factor]) -> Factor:
    """The samples of several factors of one layer; of unequal places the fewer are filled up."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Dense):
        mixes = [p.mix for p in parts if isinstance(p, Dense) and p.mix is not None]
        g = torch.cat([p.g for p in parts if isinstance(p, Dense)])
        return replace(first, g=g, mix=torch.cat(mixes) if mixes else None)
    rows = [p for p in parts if isinstance(p, Places)]
    longest = max(p.b.shape[1] for p in rows)
    ones = [p.b.new_ones(len(p)) if p.one is None else p.one for p in rows]
    return replace(
        first,
        a=torch.cat([_filled(p.a, longest) for p in rows]),
        b=torch.cat([_filled(p.b, longest) for p in rows]),
        one=None if all(p.one is None for p in rows) else torch.cat(ones),
    )


def _filled(x: Tensor, places: int) -> Tensor:
    missing = places - x.shape[1]
    return torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], 1) if missing else x


def wide(x: Tensor) -> Tensor:
    """Half precision as float32: squared norms overflow float16 past 256."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
