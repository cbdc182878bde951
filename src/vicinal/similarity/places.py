"""Gradients as sums over places; :mod:`~vicinal.similarity.factors` says what they answer."""

from __future__ import annotations

import functools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.neighbors.product import product

Room = Callable[..., Tensor]  # (like, *shape): where a tensor is put
TILE_BYTES = 16 << 20  # the largest temporary of one Gram product: malloc keeps it for the next
CACHE_BYTES = 1 << 20  # of what is written and read again at once
LARGE_BYTES = 32 << 20  # from here on malloc asks the system anew for every tensor
ALIGNED = 64  # numbers: where one of several rooms in one may begin
DOUBLE_ROWS = 64  # of small factors in float64 at a time: they stay in the cache


class Tensors:
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
class Places(Tensors):
    """``G(x, i) = Σ_t b[x, t, i] ⊗ a[x, t]``, a bias being the weight of one more input, 1.

    ``a``: inputs ``(n, t, in)``, or integers ``(n, t)`` that stand for one-hot rows of width
    ``vocabulary``. ``b``: gradients at the output ``(n, t, d, out)``; in memory each output's lie
    together, so that matrix products take them as they are (:func:`outputs_apart`).
    """

    a: Tensor
    b: Float[Tensor, "n t d out"]
    bias: bool = False
    vocabulary: int = 0  # > 0: `a` holds the indices of an embedding
    shape: tuple[int, ...] = ()  # of b's features x a's, where the parameter's layout is another

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
        mine, theirs = replace(self.folded(), shape=()), replace(other.folded(), shape=())
        for first in range(0, self.b.shape[3], step):
            some = slice(first, first + step)
            left = replace(mine, b=self.b[..., some]).dense()
            yield left, left if other is self else replace(theirs, b=other.b[..., some]).dense()

    def _as_ghosts(self, other: Places, pair: int = 1, size: int = 1) -> bool:
        """Whether a tile costs less place by place than by carrying out the sums first."""
        n, m, t, s = len(self), len(other), self.b.shape[1], other.b.shape[1]
        places = n * t + (0 if other is self else m * s)
        forming = 0 if self.vocabulary else places * self._size()
        return n * m * self._pair(t, s) * pair <= forming + n * m * self._size() * size

    def self_gram(self) -> Float[Tensor, "n d d"]:
        t, d, out = self.b.shape[1:]
        inner = self.inner_rows(self)
        if t == 1:  # in float64, for its inverse root amplifies rounding
            rows = (part.double() for part in self.b[:, 0].split(DOUBLE_ROWS))
            return inner * torch.cat([b @ b.mT for b in rows])
        found: list[Tensor] = []
        step = max(1, CACHE_BYTES // max(1, self.b[0].nbytes))
        for right in self._each_output().split(step, 1):
            some = slice(len(found) * step, len(found) * step + right.shape[1])
            left = (inner[some] if len(inner) > 1 else inner) @ right
            size = (d, right.shape[1], t * out)
            found.append(left.reshape(size).transpose(0, 1) @ right.reshape(size).permute(1, 2, 0))
        return torch.cat(found)

    def trace_gram(self, other: Places, into: Tensor | None = None) -> Float[Tensor, "n m"]:
        n, t = self.b.shape[:2]
        m, s = other.b.shape[:2]
        if t == s == 1:
            gram = product(self.b.reshape(n, -1), other.b.reshape(m, -1))
            inner = self._inner(other)
            gram = gram * inner if gram.requires_grad or inner.requires_grad else gram.mul_(inner)
            return gram if into is None else into.add_(gram)
        terms = [self._by_places(other)] if self._as_ghosts(other) else self._by_outputs(other)
        gram = functools.reduce(torch.add, terms)
        return gram if into is None else into.add_(gram)

    def _by_outputs(self, other: Places) -> Iterator[Float[Tensor, "n m"]]:
        """The trace's terms, with the sums over places carried out."""
        for i in range(self.outputs):
            one = replace(self, b=self.b[:, :, i : i + 1])
            two = one if other is self else replace(other, b=other.b[:, :, i : i + 1])
            for left, right in one._carried_out(two):
                yield product(left.flatten(1), right.flatten(1))

    def _by_places(self, other: Places) -> Float[Tensor, "n m"]:
        (n, t), (m, s) = self.b.shape[:2], other.b.shape[:2]
        rows = max(1, TILE_BYTES // max(1, self.b.element_size() * t * m * s))
        parts, right = [], other.b.flatten(2).flatten(0, 1)  # the outputs side by side: one product
        for start in range(0, n, rows):
            part = self.select(slice(start, start + rows))
            pairs = part._inner(other) * product(part.b.flatten(2).flatten(0, 1), right)
            parts.append(pairs.view(len(part), t, m, s).sum((1, 3)))
        return torch.cat(parts)

    def _each_output(self) -> Float[Tensor, "d n t out"]:
        return self.b.permute(2, 0, 1, 3)

    def _rows(self) -> Float[Tensor, "d n_t out"]:
        return self._each_output().reshape(self.outputs, -1, self.b.shape[3])

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
        n, t, d, out = self.b.shape
        if t == 1:
            return replace(self, b=(w @ self.b[:, 0])[:, None])
        flat = self._each_output().reshape(d, n, t * out).transpose(0, 1)
        return replace(self, b=(w @ flat).unflatten(2, (t, out)).transpose(1, 2))

    def remixed(self, w: Float[Tensor, "n d d"]) -> Places:
        """:meth:`mixed`, written over what there was: nothing as large is made anew."""
        n, t, d, out = self.b.shape
        each = self._each_output()
        if t == 1 or not each.is_contiguous() or self.b.requires_grad or w.requires_grad:
            return self.mixed(w)
        rewritten(each.view(d, n, t * out).transpose(0, 1), w)
        return self

    def total(self, weights: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """``(d, out, in)``, the bias' at the end; of an embedding ``(vocabulary, d, out)``."""
        if self.vocabulary:
            size = (self.vocabulary, *self.b.shape[2:])
            table = self.b.new_zeros(size) if into is None else into
            b = self.b if weights is None else self.b * weights[:, None, None, None]
            return table.index_add(0, self.a.flatten(), b.flatten(0, 1))
        a = self.a if weights is None else self.a * weights[:, None, None]
        a = a.reshape(-1, self.a.shape[-1]).T
        a = a.contiguous() if self.outputs > 1 else a
        size, width = (self.outputs, len(a) + self.bias, self.b.shape[3]), len(a)
        found = self.b.new_zeros(size) if into is None else into.mT
        ones = self.b.new_ones(len(self)) if weights is None else weights
        ones = ones.repeat_interleave(self.b.shape[1])
        for i, b in enumerate(self._rows()):
            found[i, :width].add_(product(a, b.T))
            if self.bias:
                found[i, -1].add_(ones @ b)
        return found.mT

    def dot(self, total: Tensor) -> Float[Tensor, " n"]:
        """Output by output: what it is multiplied with is used while it is in the cache."""
        n = len(self)
        step = max(1, CACHE_BYTES // max(1, self.b[0, :, 0].nbytes))
        if n > step:
            parts = (self.select(slice(i, i + step)) for i in range(0, n, step))
            return torch.cat([part.dot(total) for part in parts])
        a = self.a.flatten() if self.vocabulary else self.a.reshape(-1, self.a.shape[-1])
        found = []
        for i, b in enumerate(self._rows()):
            if self.vocabulary:
                against = total[a, i]
            else:
                weight, bias = total[i].tensor_split([a.shape[1]], 1)
                against = product(a, weight, bias[:, 0] if self.bias else None)
            found.append(torch.linalg.vecdot(b.reshape(n, -1), against.reshape(n, -1)))
        return functools.reduce(torch.add, found)

    def dense(self, onto: Tensor | None = None) -> Float[Tensor, "n d p"]:
        """The gradients, added ``onto`` others: an embedding's into their memory."""
        n, t, d, out = self.b.shape
        if self.vocabulary:
            size = (n, d, self.vocabulary, out)
            table = self.b.new_zeros(size) if onto is None else onto.view(size)
            at, rows = self.a[:, None, :, None].expand(-1, d, -1, out), self.b.transpose(1, 2)
            own = table.is_contiguous() and not (table.requires_grad or rows.requires_grad)
            return (table.scatter_add_ if own else table.scatter_add)(2, at, rows).flatten(2)
        b = self.b.reshape(n, t, d * out).mT
        weight = own_layout((b * self.a if t == 1 else b @ self.a).view(n, d, -1), self.shape)
        whole = torch.cat([weight, self.b.sum(1)], 2) if self.bias else weight
        return whole if onto is None else onto + whole

    def _inner(self, other: Places) -> Tensor:
        """Inner products of the inputs at every pair of places, (n t, m s); 1 more with a bias."""
        if self.vocabulary:
            return (self.a.reshape(-1, 1) == other.a.reshape(1, -1)).to(self.b.dtype)
        if self.bias != other.bias:
            return self.folded()._inner(other.folded())
        inner = product(*(f.a.reshape(-1, f.a.shape[-1]) for f in (self, other)))
        return inner + 1 if self.bias and inner.requires_grad else inner.add_(float(self.bias))

    def inner_rows(self, other: Places) -> Float[Tensor, "n t s"]:
        """The same, but only of each sample with that of the same row."""
        if self.vocabulary:
            return (self.a[:, :, None] == other.a[:, None, :]).to(self.b.dtype)
        return self.a @ other.a.mT + float(self.bias)

    def folded(self) -> Places:
        """With the bias' input among the others."""
        if not self.bias:
            return self
        ones = self.a.new_ones(*self.a.shape[:2], 1)
        return replace(self, a=torch.cat([self.a, ones], 2), bias=False)


def rewritten(g: Float[Tensor, "n d p"], w: Float[Tensor, "n d d"]) -> Float[Tensor, "n d p"]:
    """``w @ g`` in the place of g, of as many samples at a time as stay in the cache."""
    step = max(1, CACHE_BYTES // max(1, g[0].nbytes))
    for some, by in zip(g.split(step), w.to(g.dtype).split(step), strict=True):
        some.copy_(by @ some)
    return g


def room(like: Tensor, *shape: int) -> Tensor:
    """Empty, on large pages where the system has them: to be given 40 MB page by page takes longer
    than to fill them.
    """
    size = prod(shape) * like.element_size()
    if size < LARGE_BYTES or like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system that was built without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


@functools.cache
def freed_memory_stays() -> None:
    """malloc hands what is freed back to the system, to ask for it anew page by page in every
    capture, until it has once seen a large tensor freed: then it keeps as much.
    """
    torch.empty(LARGE_BYTES - (1 << 20), dtype=torch.uint8)


def rooms_of(grads: Sequence[Tensor], d: int) -> list[Tensor]:
    """Empty, for d like each: side by side in one room, so that small ones are on large pages."""
    if len({(g.dtype, g.device) for g in grads}) != 1:
        return [room(g, d, *g.shape) for g in grads]
    sizes = [-(-d * g.numel() // ALIGNED) * ALIGNED for g in grads]
    parts = room(grads[0], sum(sizes)).split(sizes)
    return [p[: d * g.numel()].view(d, *g.shape) for p, g in zip(parts, grads, strict=True)]


def disk_room(like: Tensor, *shape: int) -> Tensor:
    """Empty, in a file that is gone with the tensor: memory holds what is in use."""
    if not (size := prod(shape)):
        return like.new_empty(shape)
    with tempfile.TemporaryDirectory(prefix="vicinal-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "room")
        with path.open("wb") as file, suppress(AttributeError):  # not on every system
            os.posix_fallocate(file.fileno(), 0, size * like.element_size())
        found = torch.from_file(str(path), shared=True, size=size, dtype=like.dtype)
    return found.view(shape)


def outputs_apart(grads: Sequence[Float[Tensor, "n t out"]]) -> Float[Tensor, "n t d out"]:
    """The gradients of the d outputs, one after the other in memory where there are places."""
    if len(grads) == 1:
        return grads[0].unsqueeze(2)
    if grads[0].shape[1] == 1:
        return torch.stack(list(grads), 2)
    return _one_after_another(grads).permute(1, 2, 0, 3)


def _one_after_another(grads: Sequence[Tensor]) -> Tensor:
    """Along a new first axis; not copied if they lie so already."""
    first, size = grads[0], grads[0].numel()
    lie = all(
        g.is_contiguous()
        and not g.requires_grad
        and g.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and g.storage_offset() == first.storage_offset() + i * size
        for i, g in enumerate(grads)
    )
    if not lie:
        return torch.stack(list(grads))
    return first.as_strided((len(grads), *first.shape), (size, *first.stride()))


def own_layout(flat: Float[Tensor, "n d p"], shape: tuple[int, ...]) -> Float[Tensor, "n d p"]:
    """Gradients stored as ``(..., *kernel, in)`` in the layout ``(..., in, *kernel)`` of the
    weight; those of a weight that is kept transposed, ``shape`` (out, in), as ``(in, out)``.
    """
    if not shape:
        return flat
    whole = flat.reshape(*flat.shape[:2], *shape)
    return (whole.mT if len(shape) == 2 else whole.movedim(-1, 3)).flatten(2)


def wide(x: Tensor) -> Tensor:
    """Half precision as float32: squared norms overflow float16 past 256."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
