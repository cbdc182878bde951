r"""Invariance along directions: ``‖∂_x ∇_θ f(x) · e(x)‖²`` (Charpiat et al. 2019, appendix E.2).

The limit of ``‖∇f(x) - ∇f(x + ε e(x))‖² / ε²``: not small gradients are asked for, but gradients
that do not change along e. The factors ``G = Σ_t b_t ⊗ a_t`` are captured with dual numbers, so that
``Ġ = Σ_t b_t ⊗ ȧ_t + ḃ_t ⊗ a_t`` costs one pass per direction and its norm is a product of factors;
no gradient of the size of the parameters is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from vicinal.checks import InputError, check_choice
from vicinal.similarity.enforce import REDUCTIONS
from vicinal.similarity.enforce_gradients import Gradients, paired, similarity_gradients
from vicinal.similarity.factors import Dense, Factor, Places
from vicinal.similarity.outputs import OutputFunction


def tangent_change(factors: Sequence[Factor]) -> Float[Tensor, " n"]:
    """``Σ_i ‖Ġ(x, i)‖²`` of dual factors, where ``Ġ`` is their derivative along the direction."""
    moved = [piece for factor in factors for piece in _tangent(factor)]
    return paired(moved, moved)


def _tangent(factor: Factor) -> list[Factor]:
    """The derivative of one factor: places twice over, and the bias' apart."""
    if isinstance(factor, Dense):
        return [Dense(_parts(factor.g)[1])]
    a, slope_a = _parts(factor.a)
    b, slope_b = _parts(factor.b)
    pieces: list[Factor] = []
    if factor.weight and factor.vocabulary:
        pieces.append(replace(factor, a=a, b=slope_b, bias=False))
    elif factor.weight:
        both = Places(torch.cat([slope_a, a], 1), torch.cat([b, slope_b], 1))
        pieces.append(both)
    if factor.bias:
        pieces.append(Dense(slope_b.sum(1)))
    return pieces


def _parts(dual: Tensor) -> tuple[Tensor, Tensor]:
    primal, tangent = forward_ad.unpack_dual(dual)
    return primal, torch.zeros_like(primal) if tangent is None else tangent


class TangentInvarianceLoss(nn.Module):
    """``‖∂_x ∇_θ f(x) · e_k(x)‖²``: gradients are not to change along each generator e_k.

    ``generators`` are callables from a batch to its tangent vectors, of the same shape: the
    infinitesimal elements of a group. Several outputs are summed; the mean is over samples and
    generators (``reduction="none"``: ``(n, k)``).

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> rotation = lambda x: torch.stack([-x[:, 1], x[:, 0]], 1)
    >>> loss = TangentInvarianceLoss([rotation])(model, torch.randn(5, 2))
    >>> loss.backward()
    >>> bool(loss > 0)
    True
    """

    def __init__(
        self,
        generators: Sequence[Callable[[Tensor], Tensor]],
        *,
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        strict: bool = True,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_choice(reduction, "reduction", REDUCTIONS)
        if not generators:
            raise InputError("`generators` is empty: pass at least one direction.")
        self.generators = list(generators)
        self.outputs, self.params, self.strict = outputs, params, strict
        self.reduction = reduction

    def forward(self, model: nn.Module, x: Tensor, target: Tensor | None = None) -> Tensor:
        if not x.is_floating_point():
            raise InputError(
                f"`x` must be floating point to move along a direction, got {x.dtype}. For tokens, "
                "pass the embedded inputs and the part of the model behind the embedding."
            )
        columns = [self._along(model, x, target, e) for e in self.generators]
        values = torch.stack(columns, 1)
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    def _along(
        self,
        model: nn.Module,
        x: Tensor,
        target: Tensor | None,
        generator: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, " n"]:
        direction = generator(x)
        if direction.shape != x.shape:
            raise InputError(
                f"a generator must return one tangent vector per sample, of shape "
                f"{tuple(x.shape)}, got {tuple(direction.shape)}."
            )
        with forward_ad.dual_level():
            g = self._gradients(model, forward_ad.make_dual(x, direction.to(x)), target)
            return g.attached(tangent_change(g.factors))

    def _gradients(self, model: nn.Module, x: Tensor, target: Tensor | None) -> Gradients:
        try:
            return similarity_gradients(
                model, x, target, outputs=self.outputs, params=self.params, strict=self.strict
            )
        except NotImplementedError as error:
            raise InputError(
                f"a layer has no forward-mode derivative, which this loss needs: {error} Leave "
                "it out of `model`, or use OrbitSimilarityLoss with small steps."
            ) from error
