r"""Invariance under a group as a training goal (Charpiat et al. 2019, appendix E.2).

For finite transformations, each sample and its images are to be treated alike:
:class:`OrbitSimilarityLoss`. For infinitesimal ones, gradients are not to change along a direction:
:class:`TangentInvarianceLoss`, ``‖∂_x ∇_θ f(x) · e(x)‖²``.

The latter is the limit of ``‖∇f(x) - ∇f(x + ε e(x))‖² / ε²``: not small gradients are asked for,
but gradients that do not change along e. With the factors ``G = Σ_t b_t ⊗ a_t`` it takes only the
derivatives of a and b along e, ``Ġ = Σ_t b_t ⊗ ȧ_t + ḃ_t ⊗ a_t``, no gradient of the size of the
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vicinal.checks import InputError
from vicinal.similarity.enforce import SimilarityLoss
from vicinal.similarity.enforce_gradients import paired
from vicinal.similarity.factors import Dense, Factor, select
from vicinal.similarity.outputs import OutputFunction
from vicinal.similarity.places import Places


class OrbitSimilarityLoss(SimilarityLoss):
    """Each sample and its images under ``transforms`` are to be treated alike (E.2).

    The mean over the pairs of an orbit costs time linear in the batch.

    Parameters
    ----------
    transforms : callables from a batch to a batch of the same shape; the identity belongs to every
        orbit.
    outputs, params, strict, reduction : as for :class:`~vicinal.similarity.enforce.SimilarityLoss`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> flips = [lambda x: x.flip(-1), lambda x: x.flip(-2)]
    >>> OrbitSimilarityLoss(flips, reduction="none")(model, torch.randn(5, 3, 3)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        transforms: Sequence[Callable[[Tensor], Tensor]],
        *,
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        strict: bool = True,
        reduction: str = "mean",
    ) -> None:
        super().__init__(outputs=outputs, params=params, strict=strict, reduction=reduction)
        if not transforms:
            raise InputError("`transforms` is empty: an orbit of the sample alone has no pairs.")
        self.transforms = list(transforms)

    def forward(self, model: nn.Module, x: Tensor, target: Tensor | None = None) -> Tensor:
        orbit = [x, *(transform(x) for transform in self.transforms)]
        for i, image in enumerate(orbit):
            if image.shape != x.shape:
                raise InputError(
                    f"transform {i - 1} changes the batch's shape from {tuple(x.shape)} to "
                    f"{tuple(image.shape)}. Return one image of the same shape per sample."
                )
        n, m = len(x), len(orbit)
        targets = None if target is None else target.repeat(m, *[1] * (target.ndim - 1))
        g = self.gradients(model, torch.cat(orbit), targets)
        unit = g.unit()
        turns = [select(unit, slice(i * n, (i + 1) * n)) for i in range(m)]
        pairs = [paired(turns[i], turns[j]) for i in range(m) for j in range(i)]
        return self.reduced(g.attached(-torch.stack(pairs).mean(0)))


def tangent_change(factors: Sequence[Factor], x: Tensor, direction: Tensor) -> Float[Tensor, " n"]:
    """``Σ_i ‖Ġ(x, i)‖²``, the change of each sample's gradients along its direction."""
    tensors = [t for factor in factors for t in factor.tensors().values()]
    slopes = _derivatives(tensors, x, direction)
    moved: list[Factor] = []
    for factor in factors:
        count = len(factor.tensors())
        moved.append(_moved(factor, slopes[:count]))
        slopes = slopes[count:]
    return paired(moved, moved)


def _derivatives(tensors: Sequence[Tensor], x: Tensor, direction: Tensor) -> list[Tensor]:
    """Of each tensor along ``direction`` in x: with ``u = Σ ⟨v, t(x)⟩``, ``∂/∂v ⟨∂u/∂x, e⟩``.

    Twice backward rather than once forward: every layer can, and the result is differentiable.
    """
    moving = [i for i, t in enumerate(tensors) if t.requires_grad]
    dual = {i: torch.zeros_like(tensors[i], requires_grad=True) for i in moving}
    (pulled,) = torch.autograd.grad(
        [tensors[i] for i in moving], [x], list(dual.values()), create_graph=True, allow_unused=True
    )
    found = [torch.zeros_like(t) for t in tensors]
    if pulled is not None and pulled.requires_grad:
        slopes = torch.autograd.grad(
            pulled, list(dual.values()), direction, create_graph=True, materialize_grads=True
        )
        for i, slope in zip(moving, slopes, strict=True):
            found[i] = slope
    return found


def _moved(factor: Factor, slopes: Sequence[Tensor]) -> Factor:
    """The derivative of one factor: its places twice over."""
    if isinstance(factor, Dense):
        return Dense(slopes[0])
    slope_a, slope_b = slopes
    if factor.vocabulary:
        return replace(factor, b=slope_b)
    a = torch.cat([F.pad(slope_a, (0, int(factor.bias))), factor.folded().a], 1)
    return Places(a, torch.cat([factor.b, slope_b], 1))


class _PlainNorms(TorchFunctionMode):
    """Norms that average over a sample, as plain arithmetic.

    The fused ones keep their mean and variance as constants for the second derivative, so the
    third, which this loss's gradient is, would be wrong without a word.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.layer_norm:
            return _plain_layer_norm(*args, **kwargs)
        if func is F.instance_norm:
            return _plain_instance_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _plain_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normal = _standardized(input, tuple(range(-len(normalized_shape), 0)), eps)
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def _plain_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:  # running statistics are constants: no harm
        return torch.instance_norm(
            input, weight, bias, running_mean, running_var, False, momentum, eps, False
        )
    normal = _standardized(input, tuple(range(2, input.ndim)), eps)
    each = (1, -1, *(1,) * (input.ndim - 2))
    normal = normal if weight is None else normal * weight.view(each)
    return normal if bias is None else normal + bias.view(each)


def _standardized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centered = x - x.mean(axes, keepdim=True)
    return centered * (centered.square().mean(axes, keepdim=True) + eps).rsqrt()


class TangentInvarianceLoss(SimilarityLoss):
    """``‖∂_x ∇_θ f(x) · e_k(x)‖²``: gradients are not to change along each generator e_k.

    Several outputs are summed; the mean is over samples and generators (``reduction="none"``:
    ``(n, k)``).

    Parameters
    ----------
    generators : callables from a batch to its tangent vectors, of the same shape: the infinitesimal
        elements of a group.
    outputs, params, strict, reduction : as for :class:`~vicinal.similarity.enforce.SimilarityLoss`.

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
        super().__init__(outputs=outputs, params=params, strict=strict, reduction=reduction)
        if not generators:
            raise InputError("`generators` is empty: pass at least one direction.")
        self.generators = list(generators)

    def forward(self, model: nn.Module, x: Tensor, target: Tensor | None = None) -> Tensor:
        if not x.is_floating_point():
            raise InputError(
                f"`x` must be floating point to move along a direction, got {x.dtype}. For tokens, "
                "pass the embedded inputs and the part of the model behind the embedding."
            )
        columns = [self._along(model, x, target, e) for e in self.generators]
        return self.reduced(torch.stack(columns, 1))

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
        x = x if x.requires_grad else x.detach().requires_grad_()
        with _PlainNorms(), torch.enable_grad():
            g = self.gradients(model, x, target)
            return g.attached(tangent_change(g.factors, x, direction.to(x)))
