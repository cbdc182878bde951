r"""The exact engine: per-sample gradients of every parameter as layer factors, one forward and d
backwards.

A forward hook on each layer takes its input and the *gradient edge* of its output;
``autograd.grad`` with respect to the edges then forms no weight gradient, and in-place activations
after the layer do no harm. :mod:`~vicinal.similarity.plan` decides once which parameters have an
exact rule and which are run again by ``vmap(vjp)``; :mod:`~vicinal.similarity.rules` turn inputs
and edge gradients into factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from vicinal.checks import InputError
from vicinal.similarity.factors import Dense, Factor, Places
from vicinal.similarity.outputs import Contrast, OutputFunction, as_rows
from vicinal.similarity.plan import Plan, make_plan, select_parameters, unwrapped
from vicinal.similarity.rules import LayerUse, Piece, rule_for
from vicinal.similarity.rules.conv import can_convolve, for_products
from vicinal.similarity.rules.vjp import (
    Rerun,
    out_axis,
    samplewise,
    twice_differentiable,
    unit_axes,
)
from vicinal.similarity.selfcheck import check_against_autograd
from vicinal.similarity.watch import WatchedCall, watching


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
        self.last: tuple[Part, ...] | None = None  # of the last capture, one sample of each
        self._ghost: dict[str, bool] = {}
        self._loop: dict[str, bool] = {}
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
        found = self._capture(x, target, start, create_graph, self._ruled)
        if self.strict and not self._checked:
            check_against_autograd(self, found, x, target, start)
            self._checked = True
        if self.last is None:
            self.last = tuple(
                Part(p.layer, p.parameters, p.rule, p.factor.select(slice(0, 1)))
                for p in found.parts
            )
        return found

    def capture_for_products(
        self, x: Tensor, target: Tensor | None, start: int, seeds: Float[Tensor, "n c d"]
    ) -> list[Factor]:
        """Factors of ``Σ_j seeds(x)_ij ∇f_j``, to be multiplied with totals and for nothing else.

        For batches after the first: how each layer is treated must be known.
        """
        assert self.last is not None
        return self._capture(x, target, start, False, self._for_products, seeds).factors

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
        create_graph: bool,
        by_rule: Callable[[WatchedCall, bool], list[Piece]],
        seeds: Float[Tensor, "n c d"] | None = None,
    ) -> Captured:
        assert self.plan is not None
        watched = watching(self.model, self.plan.layers, self.selected, prune=not create_graph)
        with watched as watch, torch.enable_grad(), twice_differentiable(create_graph):
            returned = watch.run(x)
            f = self.f(returned, target, len(x), start)
            calls = watch.calls
            if self.plan.rerun:
                calls = [*calls, watch.whole(x, returned)]
            _check_rows(calls, len(x))
            _edge_gradients(f, calls, create_graph, seeds)
            parts = tuple(self._parts(calls, create_graph, by_rule))
        return Captured(f, parts, returned) if create_graph else Captured(f.detach(), parts)

    def _parts(
        self,
        calls: list[WatchedCall],
        create_graph: bool,
        by_rule: Callable[[WatchedCall, bool], list[Piece]],
    ) -> list[Part]:
        assert self.plan is not None
        parts: list[Part] = []
        shared: dict[str, list[Tensor]] = {}
        for call in calls:
            if call.module is self.model and call.whole:
                parts.append(self._rerun("(model)", call, self.plan.rerun, create_graph))
            elif call.name in self.plan.units:
                parts.append(self._rerun(call.name, call, self.plan.units[call.name], create_graph))
            else:
                for names, factor in by_rule(call, create_graph):
                    full = tuple(self.plan.name_of[call.name, name] for name in names)
                    if full[0] in self.plan.shared:
                        shared.setdefault(full[0], []).append(factor.dense())
                    else:
                        parts.append(Part(call.name, full, factor.kind, factor.widened()))
        for name, gradients in shared.items():
            total = torch.stack(gradients).sum(0) if len(gradients) > 1 else gradients[0]
            parts.append(
                Part(name.rpartition(".")[0], (name,), "dense, shared", Dense(total).widened())
            )
        order = self.plan.order
        return sorted(parts, key=lambda part: order[part.parameters[0]])

    def _ruled(self, call: WatchedCall, create_graph: bool) -> list[Piece]:
        """The factors of one call; a shared parameter's apart, so that they can be summed."""
        rule = rule_for(call.module)
        assert rule is not None
        pieces: list[Piece] = []
        for group in self._groups(call.name):
            found = rule(self._use(call, group, create_graph))
            self._ghost.setdefault(_key(call.name, group), isinstance(found[0][1], Places))
            pieces.extend(found)
        return pieces

    def _for_products(self, call: WatchedCall, create_graph: bool) -> list[Piece]:
        """The same, but of a convolution that is no ghost only what products with totals need."""
        assert self.plan is not None
        names = {own: self.plan.name_of[call.name, own] for own in self.plan.ruled[call.name]}
        group = frozenset(names)
        shared = not self.plan.shared.isdisjoint(names.values())
        if shared or self._ghost[_key(call.name, group)] or not can_convolve(call.module):
            return self._ruled(call, create_graph)
        weight = names.get("weight")
        layout = next((p.factor.shape for p in self.last or () if weight in p.parameters), ())
        return for_products(self._use(call, group, create_graph), layout)

    def _groups(self, layer: str) -> list[frozenset[str]]:
        """The parameters of a layer that are asked for: those of its own, and each shared one."""
        assert self.plan is not None
        wanted = self.plan.ruled[layer]
        alone = [n for n in wanted if self.plan.name_of[layer, n] in self.plan.shared]
        own = frozenset(wanted) - set(alone)
        return [*([own] if own else []), *(frozenset([name]) for name in alone)]

    def _use(self, call: WatchedCall, group: frozenset[str], create_graph: bool) -> LayerUse:
        x = call.args[0] if create_graph else call.args[0].detach()
        grads = [output[0] for output in call.grads]
        return LayerUse(call.module, x, grads, group, self._ghost.get(_key(call.name, group)))

    def _rerun(
        self, name: str, call: WatchedCall, params: dict[str, str], create_graph: bool
    ) -> Part:
        """Gradients of a unit's (or of the model's remaining) parameters by running it again."""
        axes = ((0,), {}) if call.whole else unit_axes(call.module, call.args, call.kwargs)
        if axes is None:
            raise InputError(f"the inputs of layer `{name}` changed their form between batches.")
        leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
        flat_axes = pytree.tree_leaves(axes)
        if not create_graph:
            leaves = [v.detach() if isinstance(v, Tensor) else v for v in leaves]
        run = Rerun(
            call.module,
            leaves,
            spec,
            [a if isinstance(v, Tensor) else None for v, a in zip(leaves, flat_axes, strict=True)],
            call.grads,
            [0 if call.whole else out_axis(call.module, i) for i in call.returned],
            call.returned,
        )
        local = {own: self.selected[full] for own, full in params.items()}
        g, loop = samplewise(
            run, local, create_graph=create_graph, loop=self._loop.get(name, False)
        )
        self._loop[name] = loop
        rule = "vjp, sample by sample" if loop else "vmap(vjp)"
        return Part(name, tuple(params.values()), rule, Dense(g).widened())


def _key(layer: str, group: frozenset[str]) -> str:
    return f"{layer}.{'+'.join(sorted(group))}"


def _check_rows(calls: Sequence[WatchedCall], samples: int) -> None:
    for call in calls:
        if call.batch_first and len(call.args[0]) != samples:
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
        grads = torch.autograd.grad(
            f,
            edges,
            seed,
            retain_graph=create_graph or bool(j < d - 1),
            create_graph=create_graph,
            allow_unused=True,
        )
        rest = iter(grads)
        for call in calls:
            found = [(next(rest), shape) for shape in call.shapes]
            call.grads.append([f.new_zeros(s) if g is None else g for g, s in found])
