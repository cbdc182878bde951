r"""Whose rows does a layer see? Exact gradients where rows are not the samples.

An expert sees the rows that were routed to it, a folded layer sees (samples x places), a layer that
runs time first sees them transposed. Nothing in a tensor says which sample a row belongs to, but
the gradient does: start one more backward pass from ``r_i · f(x_i)`` instead of ``f(x_i)``, with
another number r_i for each sample; where the rows of x_i arrive, the gradient is r_i times what it
was. A row whose gradient is no such multiple mixes samples, and :func:`whose` gives the layer up; a
row without gradient belongs to nobody and costs nothing.

The rule of the layer then sees every row as a sample of its own, and :func:`gathered` puts what it
answers together: places of one sample side by side, gradients of one sample summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.similarity.factors import Dense, together
from vicinal.similarity.places import Places
from vicinal.similarity.rules import COVERED, LayerUse, Piece, feature_axes, widths

NOBODY = -1


class Tags(NamedTuple):
    """``r = 1 + digit / base`` of every sample's number, one pass a digit."""

    base: int
    factors: Float[Tensor, "passes n"]


def tags(samples: int, precision: torch.dtype) -> Tags:
    """As few passes as the precision can tell apart: one for float32 and a thousand samples.

    >>> tags(4, torch.float32).factors.tolist()
    [[1.0, 1.25, 1.5, 1.75]]
    >>> tags(1000, torch.bfloat16).factors.shape[0]
    10
    """
    base = min(max(samples, 2), max(2, int(1 / (256 * torch.finfo(precision).eps))))
    passes = 1
    while base**passes < samples:
        passes += 1
    number = torch.arange(samples)
    digits = torch.stack([number // base**k % base for k in range(passes)])
    return Tags(base, 1 + digits / base)


def tagged(
    f: Float[Tensor, "n d"], edges: Sequence[Any], start: Float[Tensor, "n d"]
) -> tuple[int, list[Tensor | None]]:
    """The base of the tags, and at each edge the gradients ``(passes, ...)`` of the tagged passes
    that begin with ``start``; None where none arrives.
    """
    base, factors = tags(len(f), f.dtype)
    passes = [
        torch.autograd.grad(f, edges, start * r[:, None], True, allow_unused=True)
        for r in factors.to(f)
    ]
    return base, [None if g[0] is None else torch.stack(g) for g in zip(*passes, strict=True)]


def whose(
    plain: Float[Tensor, "d k ..."], mixed: Float[Tensor, "p k ..."] | None, base: int
) -> Int[Tensor, " k"] | None:
    """The sample of each row; None if some row belongs to several, or is not finite.

    ``plain``: the gradients of the outputs, weighted as the passes of ``mixed`` started.
    """
    eps = torch.finfo(plain.dtype).eps
    plain = plain.flatten(2) if plain.ndim > 2 else plain[:, :, None]
    largest = plain.abs().amax((0, 2)) if plain.numel() else plain.new_zeros(plain.shape[1])
    largest = largest.double()
    live = largest > 0
    found = torch.zeros(len(largest), dtype=torch.long, device=plain.device)
    if not bool(largest.isfinite().all()):
        return None
    if mixed is None or not bool(live.any()):
        return found + NOBODY
    unit = torch.where(live, largest, 1)[:, None]  # squares of the rows stay numbers
    together = plain.sum(0).double() / unit
    norm = together.norm(dim=1)
    unsure = largest <= 64 * eps * largest.amax()  # rounding of larger rows
    good = norm >= 1e-3
    for k, with_tags in enumerate(mixed.double().reshape(len(mixed), *together.shape)):
        with_tags = with_tags / unit
        ratio = (with_tags * together).sum(1) / torch.where(norm > 0, norm.square(), 1)
        digit = ((ratio - 1) * base).round().clamp(0, base - 1)
        rest = (with_tags - (1 + digit / base)[:, None] * together).norm(dim=1)
        good &= rest <= norm / (4 * base)
        found += digit.long() * base**k
    return torch.where(live, found, NOBODY) if bool((good | unsure | ~live).all()) else None


def in_order(owner: Int[Tensor, " k"] | None) -> bool:
    """Whether every row that has a gradient is the sample of its own number."""
    if owner is None:
        return False
    return bool(((owner == torch.arange(len(owner)).to(owner)) | (owner == NOBODY)).all())


def by_place(module: nn.Module, gradient: Float[Tensor, "d ..."]) -> Float[Tensor, "d k ..."]:
    """Gradients at a layer's output with all axes that count its rows as one."""
    lead = _leading(module, gradient[0])
    return gradient.reshape(
        len(gradient), prod(gradient.shape[1 : lead + 1]), *gradient.shape[lead + 1 :]
    )


def as_rows(use: LayerUse) -> LayerUse:
    """Every row, or every place of a layer that acts on each place by itself, as a sample."""
    shape, lead = use.grads[0].shape, _leading(use.module, use.grads[0])
    return replace(
        use,
        x=use.x.reshape(prod(shape[:lead]), *use.x.shape[lead:]),
        grads=[g.reshape(prod(shape[:lead]), *shape[lead:]) for g in use.grads],
    )


def joined(calls: Sequence[list[Piece]]) -> list[Piece]:
    """The pieces of several calls of one layer, all rows together."""
    kinds = zip(*calls, strict=True)
    return [(same[0][0], together([factor for _, factor in same])) for same in kinds]


def _leading(module: nn.Module, output: Tensor) -> int:
    """How many axes of a layer's output count its rows."""
    axes = feature_axes(module)
    return 1 if axes is None else output.ndim - axes


def gathered(use: LayerUse, rows: Sequence[Piece], owner: Int[Tensor, " k"], n: int) -> list[Piece]:
    """The pieces of n samples from those of their rows."""
    kept = (owner != NOBODY).nonzero().flatten()
    kept = kept[owner[kept].argsort(stable=True)]
    owner = owner[kept].clamp_max(n - 1)  # a row of mere rounding may say anything
    counts = owner.bincount(minlength=n)
    place = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    longest = int(counts.max()) if n else 0
    pieces: list[Piece] = []
    for names, factor in rows:
        mine = factor.select(kept)
        if isinstance(mine, Dense):
            g = mine.g.new_zeros(n, *mine.g.shape[1:]).index_add(0, owner, mine.g)
            pieces.append((names, replace(mine, g=g)))
        else:
            pieces += _side_by_side(use, names, mine, (owner, place), (n, longest))
    return pieces


def _side_by_side(
    use: LayerUse,
    names: tuple[str, ...],
    rows: Places,
    at: tuple[Tensor, Tensor],
    size: tuple[int, int],
) -> list[Piece]:
    """Places of rows as places of their samples, filled up with zeros."""

    def spread(t: Tensor) -> Tensor:
        blank = t.new_zeros(*size, *t.shape[1:])
        return blank.index_put(at, t).flatten(1, 2)

    found = replace(rows, a=spread(rows.a), b=spread(rows.b))
    t, out = found.b.shape[1], found.b.shape[3]
    if found.vocabulary or use.keeps_places(t, found.a.shape[-1], out):
        return [(names, found)]
    g = found.dense()
    both = g.tensor_split([g.shape[2] - out * found.bias], 2)
    return [((name,), Dense(part)) for name, part in zip(names, both, strict=False)]


def nothing(use: LayerUse, like: Float[Tensor, "n d"]) -> list[Piece]:
    """The pieces of a layer that no sample of a batch reached."""
    (n, d), module = like.shape, use.module
    if "weight" in use.wanted and use.ghost is not False:
        size = widths(module)
        if size is not None:
            a, b = like.new_zeros(n, 0, size[0]), like.new_zeros(n, 0, d, size[1])
            return use.ghosts(a, b)
        if isinstance(module, nn.Embedding):
            index = torch.zeros(n, 0, dtype=torch.long, device=like.device)
            b = like.new_zeros(n, 0, d, module.embedding_dim)
            return use.ghosts(index, b, vocabulary=module.num_embeddings)
    own = [name for name in COVERED if name in use.wanted]
    sizes = [getattr(module, name).numel() for name in own]
    zero = like.new_zeros(())
    return [((name,), Dense(zero.expand(n, d, p))) for name, p in zip(own, sizes, strict=True)]
