r"""The gradients of a batch as factors that can be differentiated again.

A loss on similarities needs the derivative of gradients. The engine's factors are captured with
``create_graph=True``, so one forward, d backwards to the layers' outputs and small products give
every similarity of a batch exactly, and one ordinary ``backward()`` its derivative. Nothing is kept
on the model: what was learned about its layers is remembered as long as the model lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vicinal.checks import InputError
from vicinal.similarity.engine import Engine
from vicinal.similarity.factors import Dense, Factor, mixed, self_gram
from vicinal.similarity.outputs import (
    Contrast,
    OutputFunction,
    deficiency,
    describe,
    make_outputs,
)
from vicinal.similarity.places import Places
from vicinal.similarity.plan import Plan
from vicinal.similarity.selfcheck import check_against_autograd
from vicinal.similarity.whitening import inverse_roots


@dataclass(frozen=True)
class Gradients:
    """∇f at every sample of a batch, differentiable; ``output`` is what the model returned.

    The one forward pass behind it may serve the task's own loss as well.
    """

    output: Any
    f: Float[Tensor, "n d"]
    factors: list[Factor]
    target: Tensor | None
    deficiency: int = 0
    within_class: bool = False

    def __len__(self) -> int:
        return len(self.factors[0])

    def inner(self) -> Float[Tensor, "n n"]:
        """``Tr K(x, x')`` of every pair."""
        return symmetric_gram(self.factors)

    def correlation(self) -> Float[Tensor, "n n"]:
        """k^C of every pair (eq. 2; for vectors eq. 5); 0 for a sample without a gradient."""
        if self.factors[0].outputs > 1:
            k = symmetric_gram(self.unit())
        else:
            gram = self.inner()
            root = inverse_norm(gram.diagonal(), gram.dtype)
            k = (root[:, None] * gram * root[None]).to(gram.dtype)
        if not self.within_class:
            return k
        assert self.target is not None  # Contrast has refused data without labels by now
        return k * (self.target[:, None] == self.target[None])

    def attached(self, value: Tensor) -> Tensor:
        """``value``, so that ``backward()`` runs even if no gradient depends on the parameters."""
        return value if value.requires_grad else value + 0 * self.f.sum()

    def unit(self) -> list[Factor]:
        """``K(x, x)^-½ G / √r``: gradients whose inner products are k^C."""
        gram = self_gram(self.factors)
        kind = self.factors[0].tensors()["b" if isinstance(self.factors[0], Places) else "g"].dtype
        if gram.shape[-1] == 1:
            return mixed(self.factors, inverse_norm(gram, kind))
        root, rank = inverse_root(gram, kind, self.deficiency)
        return mixed(self.factors, root / rank.clamp_min(1).to(root).sqrt()[:, None, None])


def similarity_gradients(
    model: nn.Module,
    x: Tensor,
    target: Tensor | None = None,
    *,
    outputs: str | OutputFunction = "logits",
    params: str | Sequence[str] | None = None,
    strict: bool = True,
) -> Gradients:
    """The differentiable gradients of f at each row of ``x``.

    The model is read in eval mode and comes back as it was.

    Parameters
    ----------
    model
        The network.
    x
        Inputs, one row per sample.
    target
        What ``outputs`` needs beside the model's output, labels for instance.
    outputs, params, strict
        As for :class:`~vicinal.similarity.GradientKernel`.

    Examples
    --------
    >>> model = nn.Linear(3, 2)
    >>> g = similarity_gradients(model, torch.eye(3))
    >>> g.output.shape, g.correlation().shape, g.correlation().requires_grad
    (torch.Size([3, 2]), torch.Size([3, 3]), False)

    (A linear model's gradients do not depend on its weights.)
    """
    chosen = make_outputs(outputs)
    engine, known = prepared_engine(model, chosen, x, params=params, strict=strict)
    captured = engine.capture(x, target, create_graph=True)
    known.plan = engine.plan
    if strict and not known.checked and bool(captured.outputs.isfinite().all()):
        check_against_autograd(engine, captured, x, target)
        known.checked = True
    within = isinstance(chosen, Contrast) and chosen.within_class
    return Gradients(
        captured.returned, captured.outputs, captured.factors, target, deficiency(chosen), within
    )


# ------------------------------------------------------- what is remembered of a model


@dataclass
class _Known:
    plan: Plan | None = None
    checked: bool = False


_MODELS: WeakKeyDictionary[nn.Module, dict[object, _Known]] = WeakKeyDictionary()


def prepared_engine(
    model: nn.Module,
    outputs: OutputFunction,
    x: Tensor,
    *,
    params: str | Sequence[str] | None,
    strict: bool,
) -> tuple[Engine, _Known]:
    """An engine with the plan of an earlier step, if nothing about the model's layers changed."""
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        what = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"`x` must be a tensor with one row per sample, got {what}.")
    engine = Engine(model, outputs, params=params, strict=strict)
    engine._checked = True  # done here, once per model, and not on a batch with NaN
    key = (
        describe(outputs),
        strict,
        x.ndim,
        x.dtype,
        tuple((name, id(p)) for name, p in engine.selected.items()),
        tuple((name, type(module)) for name, module in engine.model.named_modules()),
        tuple(name for name, _ in engine.model.named_parameters(remove_duplicate=False)),
    )
    plans = _MODELS.setdefault(engine.model, {})
    if key not in plans and len(plans) >= 8:  # outputs made anew at every step
        plans.clear()
    known = plans.setdefault(key, _Known())
    engine.plan = known.plan
    return engine, known


# ------------------------------------------------------- products of gradients


def symmetric_gram(factors: Sequence[Factor]) -> Float[Tensor, "n n"]:
    """``Tr K`` of a batch with itself; one product backward where autograd would take two."""
    return torch.stack([_symmetric(factor) for factor in factors]).sum(0)


def _symmetric(factor: Factor) -> Float[Tensor, "n n"]:
    if isinstance(factor, Dense):
        return _Square.apply(factor.g.flatten(1))
    if factor.b.shape[1] > 1 or factor.vocabulary:
        return factor.trace_gram(factor)
    inner = _Square.apply(factor.a.flatten(1)) + float(factor.bias)
    return inner * _Square.apply(factor.b.flatten(1))


class _Square(torch.autograd.Function):
    """``A Aᵀ``, whose derivative is ``(C + Cᵀ) A``."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a @ a.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return (grad + grad.T) @ a


def paired(left: Sequence[Factor], right: Sequence[Factor]) -> Float[Tensor, " n"]:
    """``Σ_i ⟨G(x_i), G(x'_i)⟩`` row by row."""
    return torch.stack([_paired(a, b) for a, b in zip(left, right, strict=True)]).sum(0)


def _paired(left: Factor, right: Factor) -> Float[Tensor, " n"]:
    if isinstance(left, Dense):
        return (left.g * cast("Dense", right).g).flatten(1).sum(1)
    other = cast("Places", right)
    outer = left.b.flatten(2) @ other.b.flatten(2).mT  # (n, t, s)
    return (left.inner_rows(other) * outer).sum((1, 2))


# ------------------------------------------------------- normalization, safe to differentiate


def inverse_norm(squared: Tensor, precision: torch.dtype) -> Tensor:
    """``1 / ‖∇f‖`` in float64; 0, with zero derivative, where there is no gradient.

    >>> inverse_norm(torch.tensor([4.0, 0.0]), torch.float32).tolist()
    [0.5, 0.0]
    """
    squared = squared.double()
    kept = squared > torch.finfo(precision).tiny  # below, 1 / squared would overflow
    return torch.where(kept, squared, torch.ones_like(squared)).rsqrt() * kept


def inverse_root(
    gram: Float[Tensor, "n d d"], precision: torch.dtype, deficiency: int = 0
) -> tuple[Float[Tensor, "n d d"], Float[Tensor, " n"]]:
    """``K^-½`` on the range of K, and its rank, as in ``whiten`` but differentiable."""
    root, rank = _InverseRoot.apply(gram.double(), torch.finfo(precision).eps, deficiency)
    return root, rank


class _InverseRoot(torch.autograd.Function):
    r"""The derivative of ``f(K) = V f(λ) Vᵀ`` by divided differences of f in the eigenbasis.

    With ``s = λ^-½`` on the range and 0 elsewhere,
    ``(f(λ_i) - f(λ_j)) / (λ_i - λ_j) = -(s_i s_j)² / (s_i + s_j)`` on the range (finite for equal
    eigenvalues, where differentiating ``eigh`` itself gives infinity) and ``s_i³`` between the
    range and the kernel, as long as the rank stays.
    """

    @staticmethod
    def forward(ctx: Any, gram: Tensor, eps: float, deficiency: int) -> tuple[Tensor, Tensor]:
        good = gram.isfinite().all(-1).all(-1)[:, None, None]
        gram = torch.where(good, gram, torch.eye(gram.shape[-1]).to(gram))  # NaN stays in factors
        s, vectors = inverse_roots(gram, eps, deficiency)
        rank = (s > 0).sum(1)
        ctx.save_for_backward(vectors, s)
        ctx.mark_non_differentiable(rank)
        return (vectors * s[:, None, :]) @ vectors.mT, rank

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: object) -> tuple[Tensor, None, None]:
        vectors, s = ctx.saved_tensors
        one, other = s[:, :, None], s[:, None, :]
        both = (one > 0) & (other > 0)
        total = torch.where(both, one + other, torch.ones_like(one))
        slope = torch.where(both, -((one * other) ** 2) / total, one**3 + other**3)
        inside = vectors.mT @ (0.5 * (grad + grad.mT)) @ vectors
        return vectors @ (slope * inside) @ vectors.mT, None, None
