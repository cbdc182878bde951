r"""How many samples does the network treat like this one? Neighbor counts and their streams.

* soft ``N_S(x) = Σ_x' k^C(x, x') = ⟨u(x), Σ_x' u(x')⟩`` with u the whitened gradient of norm 1:
  linear time, two passes over the data, whatever the number of outputs (section 4.2);
* hard ``N_τ(x) = #{x' : k^C(x, x') ≥ τ}``;
* positive ``N⁺_α(x) = Σ_x' max(k^C, 0)^α``; and ``∫₀¹ N_τ dτ = N⁺_1``.

The paper's sums run over the whole data set, x itself included.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice
from vicinal.similarity.blocks import Block, Blocks
from vicinal.similarity.factors import Factor, Places, Totals, dot, select, trace_gram

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
    asked = support if queries is None else kernel.blocks(queries, form, name="queries")
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
    if asked is support and not kernel.within_class and support.kept():
        chosen = _cheaper_by_pairs(next(iter(support)), support.count)
        if any(chosen):
            return _mixed_counts(support, chosen)
    sums = class_totals(kernel, support)
    parts = []
    for block in asked.again():
        if kernel.within_class:
            assert block.target is not None
            found = block.outputs.new_zeros(len(block))
            for label in block.target.unique():
                rows = (block.target == label).nonzero().flatten()
                if int(label) in sums:
                    found[rows] = dot(select(block.factors, rows), sums[int(label)])
        else:
            found = dot(block.factors, sums[0])
        parts.append(found if block.scale is None else found * block.scale)
    return torch.cat(parts)


def _cheaper_by_pairs(block: Block, n: int) -> list[bool]:
    """Layer by layer: fewer FLOPs over n/2 pairs a sample than over the sum and the product?"""
    linear = [
        4 * f.b.shape[1] * prod(f.b.shape[2:]) * f.a.shape[-1] + 1
        if isinstance(f, Places) and not f.vocabulary
        else 0
        for f in block.factors
    ]
    return [n * f.pair_flops() / 2 < cost for f, cost in zip(block.factors, linear, strict=True)]


def _mixed_counts(support: Blocks, by_pairs: list[bool]) -> Float[Tensor, " n"]:
    """N_S with the layers marked in ``by_pairs`` summed over tiles, the others in linear time."""

    def pick(block: Block, wanted: bool) -> list[Factor]:
        return [f for f, pairs in zip(block.factors, by_pairs, strict=True) if pairs is wanted]

    blocks = list(support)
    sums: dict[int, list[Totals]] = {}
    counts = blocks[0].outputs.new_zeros(support.count)
    for i, one in enumerate(blocks):
        if not all(by_pairs):
            _add(sums, 0, pick(one, False), one.scale)
        mine, weights = pick(one, True), _weights(one)
        _count_within(mine, weights, counts[one.start : one.stop])
        for other in blocks[i + 1 :]:
            tile = trace_gram(mine, pick(other, True))
            counts[one.start : one.stop] += tile @ _weights(other)
            counts[other.start : other.stop] += weights @ tile
    for one in blocks:
        if not all(by_pairs):
            counts[one.start : one.stop] += dot(pick(one, False), sums[0])
        counts[one.start : one.stop] *= _weights(one)
    return counts


def _count_within(factors: list[Factor], weights: Tensor, counts: Tensor) -> None:
    """Adds ``Σ_x' weights(x') k(x, x')`` over one block, halved until a triangle is left."""
    n = len(weights)
    if n <= 256:
        counts += trace_gram(factors, factors) @ weights
        return
    first, second = slice(0, n // 2), slice(n // 2, n)
    left, right = select(factors, first), select(factors, second)
    corner = trace_gram(left, right)
    counts[first] += corner @ weights[second]
    counts[second] += weights[first] @ corner
    _count_within(left, weights[first], counts[first])
    _count_within(right, weights[second], counts[second])


def _weights(block: Block) -> Float[Tensor, " n"]:
    return block.outputs.new_ones(len(block)) if block.scale is None else block.scale


def class_totals(kernel: GradientKernel, support: Blocks) -> dict[int, list[Totals]]:
    """``Σ u(x')`` over the data, or over each class where classes are not compared."""
    sums: dict[int, list[Totals]] = {}
    for block in support:
        if not kernel.within_class:
            _add(sums, 0, block.factors, block.scale)
            continue
        assert block.target is not None
        for label in block.target.unique():
            rows = (block.target == label).nonzero().flatten()
            scale = None if block.scale is None else block.scale[rows]
            _add(sums, int(label), select(block.factors, rows), scale)
    return sums


def pair_counts(
    kernel: GradientKernel, asked: Blocks, support: Blocks, name: str, value: float
) -> Float[Tensor, " n"]:
    """N_τ or N⁺_α by tiles of the upper triangle; no matrix is kept."""
    same = asked is support
    counts: Tensor | None = None
    for i, one in enumerate(asked):
        for other in support.since(i if same else 0):
            share = pair_share(kernel.tile(one, other), name, value)
            if counts is None:
                counts = share.new_zeros(asked.count, dtype=torch.float64)
            counts[one.start : one.stop] += share.sum(1, dtype=torch.float64)
            if same and other.start > one.start:
                counts[other.start : other.stop] += share.sum(0, dtype=torch.float64)
    assert counts is not None
    return counts.to(one.outputs.dtype)


def streaming_topk(kernel: GradientKernel, queries: Blocks, data: Blocks, k: int) -> TopK:
    """Best k so far, merged with each new tile."""
    values, indices = [], []
    for query in queries:
        best = query.outputs.new_full((len(query), k), float("-inf"))
        where = torch.full((len(query), k), -1, device=best.device)
        for block in data:
            tile = kernel.tile(query, block)
            rows = torch.arange(block.start, block.stop, device=best.device)
            candidates = torch.cat([best, tile], 1)
            named = torch.cat([where, rows.expand(len(query), -1)], 1)
            best, at = candidates.topk(k, 1)
            where = named.gather(1, at)
        values.append(best)
        indices.append(where)
    return TopK(torch.cat(values), torch.cat(indices))


def streaming_histogram(
    kernel: GradientKernel, queries: Blocks, data: Blocks, bins: int
) -> SimilarityHistogram:
    """Counts in equal bins of [-1, 1]; similarity 1 falls in the last."""
    rows = []
    for query in queries:
        counts = torch.zeros(len(query), bins, dtype=torch.long)
        for block in data:
            at = ((kernel.tile(query, block) + 1) * (bins / 2)).long().clamp(0, bins - 1).cpu()
            counts.scatter_add_(1, at, torch.ones_like(at))
        rows.append(counts)
    return SimilarityHistogram(torch.cat(rows), torch.linspace(-1, 1, bins + 1))


def _add(
    sums: dict[int, list[Totals]], label: int, factors: list[Any], scale: Tensor | None
) -> None:
    before = sums.get(label)
    if before is None:
        sums[label] = [factor.total(scale) for factor in factors]
    else:
        sums[label] = [f.total(scale, into) for f, into in zip(factors, before, strict=True)]


def pair_share(tile: Float[Tensor, "n m"], name: str, value: float) -> Float[Tensor, "n m"]:
    """What each pair adds to the count."""
    if name == "hard":
        return (tile >= value).to(tile.dtype)
    return torch.where(tile > 0, tile.clamp_min(0).pow(value), torch.zeros_like(tile))


def _own_share(asked: Blocks, name: str, value: float) -> Float[Tensor, " n"]:
    """k^C(x, x) is 1, or 0 without a gradient: what x adds to its own count."""
    own = torch.cat([_self_similarity(block) for block in asked])
    return own if name == "soft" else pair_share(own[:, None], name, value)[:, 0]


def _self_similarity(block: Block) -> Float[Tensor, " n"]:
    return (block.whitening.rank > 0).to(block.outputs.dtype)


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
