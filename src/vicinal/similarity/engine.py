r"""The exact engine: per-sample gradients of every parameter as layer factors, one forward and d
backwards.

A forward hook on each layer takes its input and the *gradient edge* of its output;
``autograd.grad`` with respect to the edges then forms no weight gradient, and in-place activations
after the layer do no harm. :mod:`~vicinal.similarity.plan` decides once which parameters have an
exact rule and which are run again by ``vmap(vjp)``; :mod:`~vicinal.similarity.rules` turn inputs
and edge gradients into factors.

Never a wrong kernel in silence: at first use two samples are run alone, each with the gradient of
one random combination of its outputs by an ordinary backward pass. A rule that does not fit the
layer, a model whose samples influence one another, a random layer that stays random in eval: all
show as a difference, and the layer is named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.capture.hooks import LayerCall
from vicinal.checks import InputError
from vicinal.similarity.factors import Dense, Factor, Places, mixed, select
from vicinal.similarity.outputs import Contrast, OutputFunction, as_rows
from vicinal.similarity.plan import (
    WHOLE,
    Plan,
    WatchedCall,
    make_plan,
    reading,
    select_parameters,
    unwrapped,
    watched,
    watched_call,
)
from vicinal.similarity.rules import LayerUse, Piece, rule_for
from vicinal.similarity.rules.conv import can_convolve, for_products
from vicinal.similarity.rules.vjp import samplewise, twice_differentiable

LOOPED = "vjp, sample by sample"
# Far above rounding (kernels differ between batch sizes) and far below what any wrong rule gives.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}


@dataclass(frozen=True)
class Part:
    """One factor: the layer and parameters it belongs to, and how it was found."""

    layer: str
    parameters: tuple[str, ...]
    rule: str
    factor: Factor


@dataclass(frozen=True)
class Captured:
    """f(x) and the gradients of f at every sample of one batch.

    The factors are differentiable if captured with ``create_graph=True``; ``returned`` is then
    what the model itself returned.
    """

    outputs: Float[Tensor, "n d"]
    parts: tuple[Part, ...]
    returned: Any = None

    @property
    def factors(self) -> list[Factor]:
        return [part.factor for part in self.parts]


class Engine:
    """Captures per-sample gradients of a model in eval mode; leaves the model as it was.

    >>> engine = Engine(nn.Linear(3, 2))
    >>> captured = engine.capture(torch.ones(4, 3))
    >>> captured.factors[0].self_gram().shape, captured.parts[0].rule
    (torch.Size([4, 2, 2]), 'kronecker')
    """

    def __init__(
        self,
        model: nn.Module,
        outputs: OutputFunction = lambda output, target: output,
        *,
        params: str | Sequence[str] | None = None,
        strict: bool = True,
        rules: bool = True,
    ) -> None:
        self.model = unwrapped(model)
        self.outputs = outputs
        self.selected = select_parameters(self.model, params)
        self.strict = strict
        self.rules = rules
        self.plan: Plan | None = None
        self.known: dict[str, Part] = {}  # by first parameter: one sample of the first capture
        self._checked = False

    def capture(
        self, x: Tensor, target: Tensor | None = None, *, start: int = 0, create_graph: bool = False
    ) -> Captured:
        """f and the factors of its gradients at each row of ``x``, the first being row ``start``
        of its data set.
        """
        if self.plan is None:
            self.plan = make_plan(
                self.model, self.selected, self.f, x, target, strict=self.strict, rules=self.rules
            )
        found = self._capture(x, target, start, self._pieces, create_graph)
        if self.strict and not self._checked:
            check_against_autograd(self, found, x, target, start)
            self._checked = True
        if not self.known:
            self.known = {
                p.parameters[0]: replace(p, factor=p.factor.select(slice(0, 1)))
                for p in found.parts
            }
        return found

    def capture_for_products(
        self, x: Tensor, target: Tensor | None, start: int, seeds: Float[Tensor, "n c d"]
    ) -> list[Factor]:
        """Factors of ``Σ_j seeds(x)_ij ∇f_j``, to be multiplied with totals and for nothing else.

        For batches after the first: how each layer is treated must be known.
        """
        return self._capture(x, target, start, self._for_products, seeds=seeds).factors

    def f(
        self, output: Any, target: Tensor | None, samples: int, start: int = 0
    ) -> Float[Tensor, "n d"]:
        """The numbers whose gradients are compared, from what the model returned."""
        if isinstance(self.outputs, Contrast):
            return as_rows(self.outputs(output, target, start), samples)
        return as_rows(self.outputs(output, target), samples)

    def _capture(
        self,
        x: Tensor,
        target: Tensor | None,
        start: int,
        pieces: Callable[[Plan, WatchedCall, bool], list[Piece]],
        create_graph: bool = False,
        seeds: Float[Tensor, "n c d"] | None = None,
    ) -> Captured:
        plan = self.plan
        assert plan is not None
        names = [name for name in (*plan.ruled, *plan.units) if name != WHOLE]
        layers = {name: self.model.get_submodule(name) for name in names}
        read = reading(self.model, self.selected, prune=not create_graph)
        with read, torch.enable_grad(), twice_differentiable(create_graph):
            returned, calls = watched(self.model, x, layers)
            f = self.f(returned, target, len(x), start)
            if WHOLE in plan.units:
                calls.append(watched_call(LayerCall(WHOLE, self.model, (x,), {}, returned)))
            _check_inputs(calls, plan.units, len(x))
            _edge_gradients(f, calls, create_graph, seeds)
            parts = self._parts(plan, calls, pieces, create_graph)
        return Captured(f, parts, returned) if create_graph else Captured(f.detach(), parts)

    def _parts(
        self,
        plan: Plan,
        calls: list[WatchedCall],
        pieces: Callable[[Plan, WatchedCall, bool], list[Piece]],
        create_graph: bool,
    ) -> tuple[Part, ...]:
        parts: list[Part] = []
        shared: dict[str, list[Tensor]] = {}
        for call in calls:
            if call.name in plan.units:
                parts.append(self._rerun(call, plan.units[call.name], create_graph))
                continue
            names = plan.ruled[call.name]
            for own, factor in pieces(plan, call, create_graph):
                full = tuple(names[name] for name in own)
                if full[0] in plan.shared:
                    shared.setdefault(full[0], []).append(factor.dense())
                else:
                    parts.append(Part(call.name, full, factor.kind, factor.widened()))
        for name, gradients in shared.items():
            total = Dense(functools.reduce(torch.add, gradients)).widened()
            parts.append(Part(name.rpartition(".")[0], (name,), "dense, shared", total))
        place = {name: i for i, name in enumerate(self.selected)}
        return tuple(sorted(parts, key=lambda part: place[part.parameters[0]]))

    def _pieces(self, plan: Plan, call: WatchedCall, create_graph: bool) -> list[Piece]:
        """The factors of one call; a shared parameter's apart, so that they can be summed."""
        use, rule = self._use(plan, call, create_graph), rule_for(call.module)
        assert rule is not None
        names = plan.ruled[call.name]
        alone = [own for own, full in names.items() if full in plan.shared]
        groups = [names.keys() - alone, *({own} for own in alone)]
        return [p for g in groups if g for p in rule(replace(use, wanted=frozenset(g)))]

    def _for_products(self, plan: Plan, call: WatchedCall, create_graph: bool) -> list[Piece]:
        """The same, but of a convolution that is no ghost only what products with totals need."""
        names, use = plan.ruled[call.name], self._use(plan, call, create_graph)
        shared = not plan.shared.isdisjoint(names.values())
        if shared or use.ghost is not False or not can_convolve(call.module):
            return self._pieces(plan, call, create_graph)
        return for_products(use, self.known[names["weight"]].factor.shape)

    def _use(self, plan: Plan, call: WatchedCall, create_graph: bool) -> LayerUse:
        """In the form of the first batch, if there was one: factors of one kind are multiplied."""
        names = plan.ruled[call.name]
        known = self.known.get(names.get("weight", ""))
        ghost = None if known is None else isinstance(known.factor, Places)
        x = call.args[0] if create_graph else call.args[0].detach()
        return LayerUse(call.module, x, [g[0] for g in call.grads], frozenset(names), ghost)

    def _rerun(self, call: WatchedCall, names: dict[str, str], create_graph: bool) -> Part:
        """Gradients of a unit's (or of the model's remaining) parameters by running it again."""
        full = tuple(names.values())
        g, loop = samplewise(
            call,
            {own: self.selected[name] for own, name in names.items()},
            whole=call.name == WHOLE,
            create_graph=create_graph,
            loop=full[0] in self.known and self.known[full[0]].rule == LOOPED,
        )
        return Part(call.name, full, LOOPED if loop else "vmap(vjp)", Dense(g).widened())


def _check_inputs(calls: Sequence[WatchedCall], units: Collection[str], samples: int) -> None:
    for call in calls:
        if call.name not in units and len(call.args[0]) != samples:
            raise InputError(
                f"layer `{call.name}` saw {len(call.args[0])} rows for {samples} samples, but "
                "one row per sample before. A model that folds its batch only for some inputs has "
                "no per-sample gradients here; pass batches of one shape."
            )
        if call.args[0]._version != call.version:
            raise InputError(
                f"the input of layer `{call.name}` was changed in place after the layer used "
                "it, so its gradient is lost (autograd refuses this too). Use the out-of-place "
                "operation."
            )


def _edge_gradients(
    f: Tensor, calls: Sequence[WatchedCall], create_graph: bool, seeds: Tensor | None
) -> None:
    """d backward passes that stop at the layers' outputs; from each output, or from seeds."""
    edges = [edge for call in calls for edge in call.edges]
    d = f.shape[1] if seeds is None else seeds.shape[1]
    for j in range(d):
        if seeds is None:
            seed = torch.zeros_like(f)
            seed[:, j] = 1
        else:
            seed = seeds[:, j].to(f.dtype)
        keep = create_graph or j < d - 1
        found = iter(torch.autograd.grad(f, edges, seed, keep, create_graph, allow_unused=True))
        for call in calls:
            here = [(next(found), shape) for shape in call.shapes]
            call.grads.append([f.new_zeros(s) if g is None else g for g, s in here])


def check_against_autograd(
    engine: Engine, captured: Captured, x: Tensor, target: Tensor | None, start: int = 0
) -> None:
    """Raise :class:`InputError` naming the first layer whose gradient differs."""
    d = captured.outputs.shape[1]
    direction = torch.randn(d, generator=torch.Generator().manual_seed(0)).to(captured.outputs)
    for i in sorted({0, len(x) - 1}):
        own = None if target is None else target[i : i + 1]
        with reading(engine.model, engine.selected), torch.enable_grad():
            f = engine.f(engine.model(x[i : i + 1]), own, 1, start + i)
            grads = torch.autograd.grad(
                f[0] @ direction,
                list(engine.selected.values()),
                allow_unused=True,
                materialize_grads=True,
            )
        expected = dict(zip(engine.selected, (g.to_dense().flatten() for g in grads), strict=True))
        scale = max(float(g.norm()) for g in expected.values())
        ours = mixed(select(captured.factors, slice(i, i + 1)), direction.expand(1, 1, -1))
        for part, factor in zip(captured.parts, ours, strict=True):
            wanted = torch.cat([expected[name] for name in part.parameters])
            found = factor.dense().detach().flatten()
            error, norm = float((found - wanted).norm()), float(wanted.norm())
            if not error <= TOLERANCE.get(found.dtype, 0.1) * (norm + 1e-3 * scale):
                raise InputError(
                    f"the gradient of layer `{part.layer}` ({part.rule}) differs from plain "
                    f"autograd on sample {i} run alone by {error:.3g}, at a norm of {norm:.3g}. "
                    "Either samples of a batch influence one another, or the forward pass is "
                    "random in eval mode. Make the model act on each sample by itself, leave the "
                    "layer out with `params`, or pass strict=False to accept it."
                )
