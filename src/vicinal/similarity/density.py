r"""How many samples does the network treat like this one? Neighbor counts and their streams.

* soft ``N_S(x) = Σ_x' k^C(x, x') = ⟨u(x), Σ_x' u(x')⟩`` with u the whitened gradient of norm 1:
  linear time, two passes over the data, whatever the number of outputs (section 4.2);
* hard ``N_τ(x) = #{x' : k^C(x, x') ≥ τ}``;
* positive ``N⁺_α(x) = Σ_x' max(k^C, 0)^α``; and ``∫₀¹ N_τ dτ = N⁺_1``.

The paper's sums run over the whole data set, x itself included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.similarity.block import Block
from vicinal.similarity.blocks import Blocks, pairs, symmetric
from vicinal.similarity.factors import Dense, dot, select

if TYPE_CHECKING:
    from vicinal.similarity.kernel import GradientKernel

ESTIMATORS = ("soft", "hard", "positive")


class TopK(NamedTuple):
    """The k most similar rows of a data set, most similar first."""

    similarities: Float[Tensor, "q k"]
    indices: Int[Tensor, "q k"]


class SimilarityHistogram(NamedTuple):
    """Counts of similarities to a whole data set, per query."""

    counts: Int[Tensor, "q bins"]
    edges: Float[Tensor, " bins_and_1"]


def neighbors(
    kernel: GradientKernel,
    data: Any,
    estimator: str | tuple[str, float],
    include_self: bool,
    queries: Any,
) -> Float[Tensor, " n"]:
    """See :meth:`GradientKernel.neighbors`."""
    name, value = read_estimator(estimator)
    form = "sum" if name == "soft" else "unit"
    support = kernel.blocks(data, form)
    asked = support if queries is None else kernel.blocks(queries, form, name="queries", once=True)
    if name == "soft":
        counts = soft_counts(kernel, asked, support)
    else:
        counts = pair_counts(kernel, asked, support, name, value)
    if not include_self and queries is None:
        counts = counts - _own_share(asked, name, value)
    return counts


def soft_counts(kernel: GradientKernel, asked: Blocks, support: Blocks) -> Float[Tensor, " n"]:
    """``⟨u(x), Σ u⟩``: one pass that sums, one that multiplies.

    Where all gradients are kept and the data are few, some layers cost less by pairs: n(in + d·out)
    a sample against the 4·d·in·out of summing and multiplying. These go by tiles.
    """
    if asked is support and not kernel.within_class and support.fits:
        chosen = [_cheaper_by_pairs(f, support.count) for f in next(iter(support)).factors]
        if any(chosen):
            return _mixed_counts(kernel, support, chosen)
    sums = class_totals(kernel, support)
    return torch.cat([times_totals(kernel, block, sums) for block in asked])


def _cheaper_by_pairs(f: Any, n: int) -> bool:
    """Fewer FLOPs over n/2 pairs a sample than over the sum and the product? Where pairs would need
    sums carried out first, summing over the samples as well costs no more.
    """
    if isinstance(f, Dense) or f.vocabulary or f.form_flops():
        return False
    return n * f.pair_flops() / 2 <= 4 * f.b[0].numel() * f.a.shape[-1]


def _mixed_counts(
    kernel: GradientKernel, support: Blocks, by_pairs: list[bool]
) -> Float[Tensor, " n"]:
    """N_S with the layers marked in ``by_pairs`` summed over tiles, the others in linear time."""

    def pick(block: Block, wanted: bool) -> Block:
        chosen = zip(block.factors, by_pairs, strict=True)
        return replace(block, factors=[f for f, pairs in chosen if pairs is wanted])

    blocks = [pick(block, True) for block in support]
    rest = [] if all(by_pairs) else [pick(block, False) for block in support]
    counts = blocks[0].outputs.new_zeros(support.count)
    for i, one in enumerate(blocks):
        rows = slice(one.start, one.stop)
        counts[rows] += symmetric(one, kernel.tile).sum(1)
        for other in blocks[i + 1 :]:
            found = kernel.tile(one, other)
            counts[rows] += found.sum(1)
            counts[other.start : other.stop] += found.sum(0)
    sums = class_totals(kernel, rest)
    for one in rest:
        counts[one.start : one.stop] += times_totals(kernel, one, sums)
    return counts


def class_totals(kernel: GradientKernel, support: Iterable[Block]) -> dict[int, list[Tensor]]:
    """``Σ u(x')`` over the data, or over each class where classes are not compared."""
    sums: dict[int, list[Any]] = {}
    for block in support:
        for label, rows in _classes(kernel, block):
            scale = None if block.scale is None else block.scale[rows]
            factors = select(block.factors, rows)
            before = sums.get(label, [None for _ in factors])
            sums[label] = [
                f.total(scale, so_far) for f, so_far in zip(factors, before, strict=True)
            ]
    return sums


def times_totals(
    kernel: GradientKernel, block: Block, sums: dict[int, list[Tensor]]
) -> Float[Tensor, " n"]:
    """``⟨u(x), Σ u⟩`` of a block, with the sums of each sample's own class if they are apart."""
    kind = torch.promote_types(block.outputs.dtype, torch.float32)  # as wide as the factors
    found = block.outputs.new_zeros(len(block), dtype=kind)
    for label, rows in _classes(kernel, block):
        if label in sums:
            found[rows] = dot(select(block.factors, rows), sums[label])
    return found if block.scale is None else found * block.scale


def _classes(kernel: GradientKernel, block: Block) -> Iterator[tuple[int, slice | Tensor]]:
    """The rows of each class of a block; all of them, as class 0, where classes are compared."""
    if not kernel.within_class:
        yield 0, slice(None)
        return
    assert block.target is not None
    for label in block.target.unique():
        yield int(label), (block.target == label).nonzero().flatten()


def pair_counts(
    kernel: GradientKernel, asked: Blocks, support: Blocks, name: str, value: float
) -> Float[Tensor, " n"]:
    """N_τ or N⁺_α by tiles of the upper triangle; no matrix is kept."""
    same = asked is support
    counts: Tensor | None = None
    for one, other in pairs(asked, support):
        share = pair_share(kernel.tile(one, other), name, value)
        if counts is None:
            counts = share.new_zeros(asked.count, dtype=torch.float64)
        counts[one.start : one.stop] += share.sum(1, dtype=torch.float64)
        if same and other.start > one.start:
            counts[other.start : other.stop] += share.sum(0, dtype=torch.float64)
    assert counts is not None
    return counts.to(one.outputs.dtype)


def best_of(tiles: Iterable[tuple[int, Float[Tensor, "q m"]]], k: int) -> TopK:
    """Best k so far, merged with each new tile, which says what number its first column has."""
    best: TopK | None = None
    for start, tile in tiles:
        rows = torch.arange(start, start + tile.shape[1], device=tile.device).expand_as(tile)
        if best is not None:
            tile, rows = torch.cat([best[0], tile], 1), torch.cat([best[1], rows], 1)
        values, at = tile.topk(min(k, tile.shape[1]), 1)
        best = TopK(values, rows.gather(1, at))
    assert best is not None
    return best


def joined_topk(parts: Sequence[TopK]) -> TopK:
    return TopK(torch.cat([p.similarities for p in parts]), torch.cat([p.indices for p in parts]))


def streaming_histogram(
    kernel: GradientKernel, queries: Blocks, data: Blocks, bins: int
) -> SimilarityHistogram:
    """Counts in equal bins of [-1, 1]; similarity 1 falls in the last."""
    rows = []
    for query in queries:
        counts = [counted(kernel.tile(query, block), bins).counts for block in data]
        rows.append(torch.stack(counts).sum(0))
    return SimilarityHistogram(torch.cat(rows), torch.linspace(-1, 1, bins + 1))


def counted(tile: Float[Tensor, "q m"], bins: int) -> SimilarityHistogram:
    """Of similarities that are there."""
    at = ((tile + 1) * (bins / 2)).long().clamp(0, bins - 1).cpu()
    counts = torch.zeros(len(tile), bins, dtype=torch.long)
    counts.scatter_add_(1, at, torch.ones_like(at))
    return SimilarityHistogram(counts, torch.linspace(-1, 1, bins + 1))


def pair_share(tile: Float[Tensor, "n m"], name: str, value: float) -> Float[Tensor, "n m"]:
    """What each pair adds to the count."""
    if name == "hard":
        return (tile >= value).to(tile.dtype)
    return torch.where(tile > 0, tile.clamp_min(0).pow(value), torch.zeros_like(tile))


def _own_share(asked: Blocks, name: str, value: float) -> Float[Tensor, " n"]:
    """k^C(x, x) is 1, or 0 without a gradient: what x adds to its own count."""
    own = torch.cat([(block.whitening.rank > 0).to(block.outputs.dtype) for block in asked])
    return own if name == "soft" else pair_share(own[:, None], name, value)[:, 0]


def read_estimator(estimator: str | tuple[str, float]) -> tuple[str, float]:
    name: str = estimator if isinstance(estimator, str) else estimator[0]
    value: float | None = None if isinstance(estimator, str) else estimator[1]
    check_choice(name, "estimator", ESTIMATORS)
    if name == "soft":
        return "soft", 0.0
    if value is None:
        example = '("hard", 0.9)' if name == "hard" else '("positive", 2.0)'
        raise InputError(f'`estimator`="{name}" needs its parameter: pass {example}.')
    if name == "positive" and not value > 0:
        raise InputError(f"alpha of the positive estimator must be above 0, got {value!r}.")
    if name == "hard" and not -1 <= value <= 1:
        raise InputError(f"tau of the hard estimator must lie in [-1, 1], got {value!r}.")
    return name, float(value)
