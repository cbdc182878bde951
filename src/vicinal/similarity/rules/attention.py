r"""Attention opened: ``nn.MultiheadAttention`` as the linear maps and products it is made of.

``(q, k, v) = split(W_in x + b_in)``, ``softmax(q kᵀ / √h + mask) v``, ``W_out · + b_out``: the
parameters are those of two linear layers, but torch applies them out of sight of any hook. While
:func:`opened`, attention layers run the lines below instead, which call a map for
W_in and the layer's own ``out_proj``; so both are watched like any linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.similarity.rules.inside import InsideMap, running

INSIDE = ".in_proj"  # how the projection of an attention layer is called


def projections(model: nn.Module) -> dict[str, InsideMap]:
    """One for every attention layer that can be opened, by the name it is watched under."""
    return {
        name + INSIDE: InsideMap(module, "in_proj_weight", "in_proj_bias")
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention) and can_open(module)
    }


def can_open(module: nn.MultiheadAttention) -> bool:
    """With inputs of one width, no learned extra key, and torch's own forward."""
    own = type(module).forward is nn.MultiheadAttention.forward and "forward" not in vars(module)
    plain = module.bias_k is None and module.bias_v is None and not module.add_zero_attn
    return own and plain and module.in_proj_weight is not None


def opened(inside: Mapping[str, InsideMap]) -> AbstractContextManager[None]:
    """While inside, the attention layers of these maps run open."""
    maps = {one.layer[0]: one for one in inside.values()}
    attention = {
        layer: one for layer, one in maps.items() if isinstance(layer, nn.MultiheadAttention)
    }
    return running({layer: partial(attend, layer, one) for layer, one in attention.items()})


def attend(
    module: nn.MultiheadAttention,
    project: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``nn.MultiheadAttention.forward`` in eval mode, argument by argument.

    Inputs that differ are projected side by side: places of the same linear layer, of which each
    uses a third.
    """
    if query.ndim != 3:  # a single sample: as torch does it, unseen
        rest = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        return type(module).forward(module, query, key, value, *rest)
    inputs = (
        [query] if query is key is value else [query, key] if key is value else [query, key, value]
    )
    inputs = [x if module.batch_first else x.transpose(0, 1) for x in inputs]
    n, e, heads = len(inputs[0]), module.embed_dim, module.num_heads
    ends = [0, *accumulate(x.shape[1] for x in inputs)]
    projected = project(inputs[0] if len(inputs) == 1 else torch.cat(inputs, 1))
    at = [min(i, len(inputs) - 1) for i in range(3)]
    q, k, v = (
        projected[:, ends[j] : ends[j + 1], i * e : (i + 1) * e]
        .reshape(n, -1, heads, e // heads)
        .transpose(1, 2)
        for i, j in enumerate(at)
    )
    causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal else _mask(attn_mask, key_padding_mask, q)
    weights = None
    if need_weights:
        scores = q @ k.mT / sqrt(e // heads)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        found = weights @ v
    else:
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    out = module.out_proj(found.transpose(1, 2).flatten(2))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return out if module.batch_first else out.transpose(0, 1), weights


def _mask(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as numbers to add to the scores ``(n, heads, l, s)``."""
    found: Any = None
    if attn_mask is not None:
        added = _added(attn_mask, q)
        found = added.view(*q.shape[:2], *added.shape[1:]) if added.ndim == 3 else added
    if padding is not None:
        added = _added(padding, q)[:, None, None]
        found = added if found is None else found + added
    return found


def _added(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, float("-inf"))
