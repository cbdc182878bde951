r"""Layers that multiply: linear, embedding and PReLU.

Where a linear layer acts at T places, the gradient ``Σ_t b_t a_tᵀ`` is kept as a ghost
(T²(in + d·out) per pair) or summed (d·in·out per pair), whichever costs fewer FLOPs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.similarity.factors import Dense, Places, stacked

if TYPE_CHECKING:
    from vicinal.similarity.rules import LayerUse, Piece


def linear(use: LayerUse) -> list[Piece]:
    """``nn.Linear`` on ``(n, ..., in)``: every axis between is a place."""
    n, width = len(use.x), use.x.shape[-1]
    a = use.x.reshape(n, -1, width)
    b = stacked(use.grads, -2).reshape(n, a.shape[1], len(use.grads), -1)
    t, d, out = b.shape[1:]
    weight, bias = "weight" in use.wanted, "bias" in use.wanted
    names = tuple(name for name in ("weight", "bias") if name in use.wanted)
    ghost = use.ghost if use.ghost is not None else t * t * (width + d * out) <= d * width * out
    if weight and (t == 1 or ghost):
        return [(names, Places(a, b, bias=bias))]
    pieces: list[Piece] = []
    if weight:
        g = (b.reshape(n, t, d * out).mT @ a).view(n, d, -1)
        pieces.append((("weight",), Dense(g)))
    if bias:
        pieces.append((("bias",), Dense(b.sum(1))))
    return pieces


def embedding(use: LayerUse) -> list[Piece]:
    """``nn.Embedding``: a linear layer on one-hot inputs, kept as their indices."""
    n, module = len(use.x), use.module
    index = use.x.reshape(n, -1)
    b = stacked(use.grads, -2).reshape(n, index.shape[1], len(use.grads), -1)
    if module.padding_idx is not None:  # autograd gives the padding row no gradient
        b = b * (index != module.padding_idx)[:, :, None, None]
    places = Places(index, b, vocabulary=module.num_embeddings)
    t, d, out = b.shape[1:]
    ghost = use.ghost
    if ghost is None:
        ghost = t * t * d * out <= d * module.num_embeddings * out
    return [(("weight",), places if ghost else Dense(places.dense()))]


def prelu(use: LayerUse) -> list[Piece]:
    """``nn.PReLU``: ``∂f/∂slope_c = Σ_places b min(x, 0)``, one slope or one per channel."""
    b = stacked(use.grads, 1)
    g = b * use.x.clamp_max(0)[:, None]
    if use.module.num_parameters == 1:
        return [(("weight",), Dense(g.flatten(2).sum(2, keepdim=True)))]
    g = g.flatten(3).sum(3) if g.ndim > 3 else g
    return [(("weight",), Dense(g))]
