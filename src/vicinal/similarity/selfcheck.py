r"""Never a wrong kernel in silence: the factors of two samples against plain autograd.

Each of the two samples is run alone, and the gradient of one random combination of its outputs is
taken by an ordinary backward pass. A rule that does not fit the layer, a model whose samples
influence one another, a random layer that stays random in eval: all show as a difference, and the
layer is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.similarity.factors import mixed, select
from vicinal.similarity.watch import watching

if TYPE_CHECKING:
    from vicinal.similarity.engine import Captured, Engine

# Far above rounding (kernels differ between batch sizes) and far below what any wrong rule gives.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}


def check_against_autograd(
    engine: Engine, captured: Captured, x: Tensor, target: Tensor | None, start: int = 0
) -> None:
    """Raise :class:`InputError` naming the first layer whose gradient differs."""
    d = captured.outputs.shape[1]
    direction = torch.randn(d, generator=torch.Generator().manual_seed(0)).to(captured.outputs)
    for i in sorted({0, len(x) - 1}):
        own = None if target is None else target[i : i + 1]
        expected = _plain(engine, x[i : i + 1], own, start + i, direction)
        scale = max(float(g.norm()) for g in expected.values())
        ours = mixed(select(captured.factors, slice(i, i + 1)), direction.expand(1, 1, -1))
        for part, factor in zip(captured.parts, ours, strict=True):
            wanted = torch.cat([expected[name].flatten() for name in part.parameters])
            found = factor.dense().detach().flatten()
            tolerance = TOLERANCE.get(found.dtype, 0.1)
            error = float((found - wanted).norm())
            if not error <= tolerance * (float(wanted.norm()) + 1e-3 * scale):
                raise InputError(_sentence(part.layer, part.rule, i, error, float(wanted.norm())))


def _plain(
    engine: Engine, x: Tensor, target: Tensor | None, start: int, direction: Tensor
) -> dict[str, Tensor]:
    """Gradient of ``⟨direction, f⟩`` for one sample alone, by an ordinary backward pass."""
    with watching(engine.model, ((), ()), engine.selected), torch.enable_grad():
        f = engine.f(engine.model(x), target, len(x), start)
        grads = torch.autograd.grad(
            (f[0] * direction).sum(),
            list(engine.selected.values()),
            allow_unused=True,
            materialize_grads=True,
        )
    return {name: g.to_dense() for name, g in zip(engine.selected, grads, strict=True)}


def _sentence(layer: str, rule: str, sample: int, error: float, norm: float) -> str:
    return (
        f"the gradient of layer `{layer}` ({rule}) differs from plain autograd on sample {sample} "
        f"run alone by {error:.3g}, at a norm of {norm:.3g}. Either samples of a batch influence "
        "one another, or the forward pass is random in eval mode. Make the model act on each "
        "sample by itself, leave the layer out with `params`, or pass strict=False to accept it."
    )
