r"""Products of convolution gradients with a total, without the gradients.

Where only ``⟨G(x), g⟩`` is asked for, ``G(x, i) = Σ_t b_t(x, i) u_t(x)ᵀ`` need not be formed:

``Σ_i ⟨G(x, i), g_i⟩ = Σ_i Σ_t b_t(x, i) · (g_i u_t(x)) = Σ_i ⟨b(x, i), conv(x, g_i)⟩``,

one convolution of the input with the totals in the place of the weights: no patches, and nothing
as large as the weights for each sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.similarity.factors import Dense, Factor, Totals, own_layout

if TYPE_CHECKING:
    from vicinal.similarity.rules.rule import Call, Piece


@dataclass(frozen=True)
class Convolved:
    """The gradients of a convolution's weight, for products with totals in the layout ``shape``."""

    module: Any
    x: Float[Tensor, "n channels ..."]
    grads: tuple[Float[Tensor, "n out ..."], ...]  # of each output; as they come, never stacked
    shape: tuple[int, ...] = ()
    kind = "convolved"

    def __len__(self) -> int:
        return len(self.x)

    def dot(self, total: Totals) -> Float[Tensor, " n"]:
        found = self.x.new_zeros(len(self))
        kernels = own_layout(total[0][None], self.shape).view(-1, *self.module.weight.shape)
        for b, kernel in zip(self.grads, kernels, strict=True):
            found += (self.module._conv_forward(self.x, kernel, None) * b).flatten(1).sum(1)
        return found

    def select(self, index: slice | Tensor) -> Convolved:
        return replace(self, x=self.x[index], grads=tuple(b[index] for b in self.grads))


def can_convolve(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))


def for_products(call: Call, shape: tuple[int, ...]) -> list[Piece]:
    """The pieces of a convolution that is not a ghost, in the order of its rule."""
    x, grads = _wide(call.x), tuple(_wide(b) for b in call.grads)
    pieces: list[Piece] = []
    if "weight" in call.wanted:
        # Of a factor only the product is asked here, which is all that this one has.
        pieces.append((("weight",), cast("Factor", Convolved(call.module, x, grads, shape))))
    if "bias" in call.wanted:
        pieces.append((("bias",), Dense(torch.stack([b.flatten(2).sum(2) for b in grads], 1))))
    return pieces


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, as totals are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
