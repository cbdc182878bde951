"""Never a wrong kernel in silence: captured gradients against an ordinary backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vicinal.checks import InputError
from vicinal.similarity.factors import mixed, select
from vicinal.similarity.watch import Inputs, reading, run, take

if TYPE_CHECKING:
    from vicinal.similarity.engine import Captured, Engine

# Far above rounding (kernels differ between batch sizes) and far below what any wrong rule gives.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}


def check_against_autograd(
    engine: Engine, captured: Captured, x: Inputs, target: Tensor | None, start: int = 0
) -> None:
    """Raise :class:`InputError` naming the first layer whose gradient differs.

    The first and the last sample run again in a batch of their own kind, each twice: a gradient
    that depends on its company shows, and no batch of one meets kernels that are wrong for it.
    """
    d = captured.outputs.shape[1]
    direction = torch.randn(d, generator=torch.Generator().manual_seed(0)).to(captured.outputs)
    for row in sorted({0, len(captured.outputs) - 1}):
        twice = torch.tensor([row, row])
        own = None if target is None else target[twice]
        with reading(engine.model, engine.selected), torch.enable_grad():
            f = engine.f(run(engine.model, take(x, twice)), own, 2, start + row)
            along, chosen = f[0] @ direction.to(f.dtype), list(engine.selected.values())
            grads = torch.autograd.grad(along, chosen, materialize_grads=True)
        expected = dict(zip(engine.selected, (g.to_dense().flatten() for g in grads), strict=True))
        scale = max(float(g.norm()) for g in expected.values())
        ours = mixed(select(captured.factors, slice(row, row + 1)), direction.expand(1, 1, -1))
        for part, factor in zip(captured.parts, ours, strict=True):
            wanted = torch.cat([expected[name] for name in part.parameters])
            found = factor.dense().detach().flatten()
            error, norm = float((found - wanted).norm()), float(wanted.norm())
            if not error <= TOLERANCE.get(wanted.dtype, 0.1) * (norm + 1e-3 * scale):
                raise InputError(
                    f"the gradient of layer `{part.layer}` ({part.rule}) differs from plain "
                    f"autograd on sample {start + row} run with itself by {error:.3g}, at a norm "
                    f"of {norm:.3g}. Either samples of a batch influence one another, or the "
                    "forward pass is random in eval mode. Make the model act on each sample by "
                    "itself, leave the layer out with `params`, or pass strict=False to accept it."
                )
