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

from vicinal.similarity.factors import Dense, Factor, Totals, own_layout, stacked

if TYPE_CHECKING:
    from vicinal.similarity.rules import Call, Piece


@dataclass(frozen=True)
class Convolved:
    """The gradients of a convolution's weight, for products with totals in the layout ``shape``."""

    module: Any
    x: Float[Tensor, "n channels ..."]
    b: Float[Tensor, "n d out ..."]
    shape: tuple[int, ...] = ()
    kind = "convolved"

    def __len__(self) -> int:
        return len(self.b)

    @property
    def outputs(self) -> int:
        return self.b.shape[1]

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.b.nbytes

    def dot(self, total: Totals) -> Float[Tensor, " n"]:
        (n, d, out), groups = self.b.shape[:3], self.module.groups
        kernels = own_layout(total[0][None], self.shape).view(
            d, groups, out // groups, *self.module.weight.shape[1:]
        )
        kernels = kernels.transpose(0, 1).flatten(0, 2)  # group by group, as convolutions want them
        moved = self.module._conv_forward(self.x, kernels, None)
        places = moved.shape[2:]
        moved = moved.reshape(n, groups, d, out // groups, *places).transpose(1, 2)
        b = self.b.reshape(n, d, groups, out // groups, *places)
        return (moved * b).flatten(1).sum(1)

    def select(self, index: slice | Tensor) -> Convolved:
        return replace(self, x=self.x[index], b=self.b[index])


def can_convolve(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))


def for_products(call: Call, shape: tuple[int, ...]) -> list[Piece]:
    """The pieces of a convolution that is not a ghost, in the order of its rule."""
    x, b = _wide(call.x), _wide(stacked(call.grads, 1))
    pieces: list[Piece] = []
    if "weight" in call.wanted:
        # Of a factor only the product is asked here, which is all that this one has.
        pieces.append((("weight",), cast("Factor", Convolved(call.module, x, b, shape))))
    if "bias" in call.wanted:
        pieces.append((("bias",), Dense(b.flatten(3).sum(3))))
    return pieces


def _wide(x: Tensor) -> Tensor:
    """Half precision as float32, as totals are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
