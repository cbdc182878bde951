r"""The exact engine: per-sample gradients of every parameter as layer factors, one forward and d
backwards.

A forward hook on each layer takes its input and the *gradient edge* of its output;
``autograd.grad`` with respect to the edges then forms no weight gradient, and in-place activations
after the layer do no harm. :mod:`~vicinal.similarity.plan` decides which parameters have an exact
rule and which are run again by ``vmap(vjp)``; :mod:`~vicinal.similarity.rules` turn inputs and edge
gradients into factors; :mod:`~vicinal.similarity.routing` finds whose rows a layer saw where they
are not the samples, by one more backward pass.

Never a wrong kernel in silence: at first use two samples run again with the gradient of one random
combination of their outputs by an ordinary backward pass. A rule that does not fit the layer, a
model whose samples influence one another, a random layer that stays random in eval: all show as a
difference, and the layer is named. And a batch that goes other ways than the plan knows (another
expert, an earlier exit) is no error: the plan is made anew.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from vicinal.capture.hooks import LayerCall
from vicinal.checks import InputError
from vicinal.similarity import routing
from vicinal.similarity.factors import Factor, alike
from vicinal.similarity.outputs import Contrast, OutputFunction, as_rows
from vicinal.similarity.parts import Assembly, Part
from vicinal.similarity.places import freed_memory_stays, rooms_of, wide
from vicinal.similarity.plan import WHOLE, Changes, Model, Plan, PlanBroken, changes_of, make_plan
from vicinal.similarity.rules import widths
from vicinal.similarity.rules.vjp import twice_differentiable
from vicinal.similarity.selection import select_parameters, unwrapped
from vicinal.similarity.selfcheck import check_against_autograd
from vicinal.similarity.watch import (
    NO_COPIES,
    Inputs,
    WatchedCall,
    behind_reordering,
    check_untouched,
    layers_of,
    reading,
    rows_of,
    take,
    uses,
    wants_company,
    watched,
    watched_call,
)


class Replanned(InputError):
    """Gradients captured before do not fit those of the plan there is now: begin again."""


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

    def first(self) -> Captured:
        """The first sample alone; not what the model returned."""
        row = slice(0, 1)
        parts = [replace(part, factor=part.factor.select(row)) for part in self.parts]
        return Captured(self.outputs[row], tuple(parts), self.returned)


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
        self.precision = next(iter(self.selected.values())).dtype
        self.known: dict[str, Part] = {}  # by first parameter: one sample of the first capture
        self.alike: list[list[int]] = []  # which of these have the same gradients at their outputs
        self.reached: set[str] = set()  # parameters with a gradient somewhere so far
        self.seconds = math.inf  # of CPU time for one sample, in the quickest capture so far
        self._checked = False
        freed_memory_stays()

    def capture(
        self, x: Inputs, target: Tensor | None = None, *, start: int = 0, create_graph: bool = False
    ) -> Captured:
        """f and the factors of its gradients at each row of ``x``, the first being row ``start``
        of its data set.

        Raises :class:`Replanned` if the batch went ways that no batch before it went.
        """
        found = None
        while found is None:
            if self.plan is None:
                self._make_plan(x, target, Changes())
            begun = time.process_time()
            try:
                found = self._capture(x, target, start, create_graph=create_graph)
            except PlanBroken as broken:
                self._replan(x, target, broken.changes)
        self.seconds = min(self.seconds, (time.process_time() - begun) / rows_of(x))
        if self.strict and not self._checked:
            check_against_autograd(self, found, x, target, start)
            self._checked = True
        if not self.known:
            self.alike = alike(found.factors)
            self.known = {
                p.parameters[0]: replace(p, factor=p.factor.select(slice(0, 1)))
                for p in found.parts
            }
        return found

    def _make_plan(self, x: Inputs, target: Tensor | None, changes: Changes) -> None:
        self.plan = make_plan(
            Model(self.model, self.selected, self.f, x, target), changes, self.rules
        )

    def _replan(self, x: Inputs, target: Tensor | None, changes: Changes) -> None:
        """A plan that knows of what just happened; what was captured by the old one is void."""
        assert self.plan is not None
        self._make_plan(x, target, self.plan.changes.joined(changes))
        if self.known:
            self.known = {}
            names = ", ".join(sorted(changes.gathered | changes.whole)[:4])
            raise Replanned(
                f"this batch uses {names} as no batch before it did, so earlier gradients do not "
                "fit. The engine knows now: ask again from the start."
            )

    def f(
        self, output: Any, target: Tensor | None, samples: int, start: int = 0
    ) -> Float[Tensor, "n d"]:
        """The numbers whose gradients are compared, from what the model returned."""
        if isinstance(self.outputs, Contrast):
            return as_rows(self.outputs(output, target, start), samples)
        return as_rows(self.outputs(output, target), samples)

    def _capture(
        self,
        x: Inputs,
        target: Tensor | None,
        start: int,
        *,
        create_graph: bool = False,
    ) -> Captured:
        if rows_of(x) == 1 and wants_company(self.model):  # beside itself
            pair, both = take(x, [0, 0]), None if target is None else target[[0, 0]]
            return self._capture(pair, both, start, create_graph=create_graph).first()
        plan = self.plan
        assert plan is not None
        named = layers_of(self.model)
        layers = {name: named[name] for name in plan.ruled}
        read = reading(self.model, self.selected, prune=not create_graph)
        with read, torch.enable_grad(), twice_differentiable(create_graph):
            returned, calls = self._watched(plan, x, layers, create_graph)
            f = self.f(returned, target, rows_of(x), start)
            self._compare(plan, calls, f)
            if plan.again:
                args, kwargs = ((x,), {}) if isinstance(x, Tensor) else ((), dict(x))
                calls.append(watched_call(LayerCall(WHOLE, self.model, args, kwargs, returned)))
            check_untouched(calls)
            rows = [c for c in calls if c.name in plan.ruled or c.name in plan.copies.bare]
            asked = [c for c in rows if c.name in plan.gathered]
            behind = behind_reordering(returned, rows, plan.gathered)
            asked += [c for c in behind if c.name not in plan.gathered]
            _edge_gradients(f, calls, create_graph, keep=bool(asked))
            if asked and _ask_whose(f, asked, plan):
                astray = _ask_whose(f, rows, plan)  # now of all, not layer by layer
                bare = astray & plan.copies.bare.keys()
                raise PlanBroken(Changes(gathered=frozenset(astray - bare), whole=frozenset(bare)))
            parts = Assembly(
                plan, layers, self.selected, self.known, calls, f.detach(), create_graph
            ).parts()
        return Captured(f, parts, returned) if create_graph else Captured(wide(f.detach()), parts)

    def _watched(
        self, plan: Plan, x: Inputs, layers: Mapping[str, nn.Module], twice: bool
    ) -> tuple[Any, list[WatchedCall]]:
        try:
            return watched(self.model, x, layers, plan.copies, twice)
        except (RuntimeError, ValueError, IndexError):
            if plan.copies == NO_COPIES:
                raise
            # Copies that do not fit this batch, or an own error.
            raise PlanBroken(Changes(plan.copies.layers, frozenset(plan.copies.bare))) from None

    def _compare(self, plan: Plan, calls: Sequence[WatchedCall], f: Tensor) -> None:
        """Raise :class:`PlanBroken` if the forward pass is not what the plan is for."""
        used = uses(f)
        if changes := changes_of(plan, self.selected, calls, used, len(f)):
            raise PlanBroken(changes)
        self.reached |= {name for name, p in self.selected.items() if used[id(p)]}


def _edge_gradients(
    f: Tensor, calls: Sequence[WatchedCall], create_graph: bool, keep: bool
) -> None:
    """d backward passes that stop at the layers' outputs. Through the steps of a recurrence they go
    side by side.
    """
    edges = [edge for call in calls for edge in call.edges]
    shapes = [shape for call in calls for shape in call.shapes]
    starts = torch.eye(f.shape[1]).to(f)[:, None].expand(-1, *f.shape)

    def back(seed: Tensor, keeps: bool = True) -> list[Tensor]:
        found = torch.autograd.grad(f, edges, seed, keeps, create_graph, allow_unused=True)
        return [f.new_zeros(s) if g is None else g for g, s in zip(found, shapes, strict=True)]

    d, rooms = len(starts), dict[tuple[Any, int], Tensor]()
    at = [(edge.node, edge.output_nr) for edge in edges]
    again = [create_graph or keep or j < d - 1 for j in range(d)]
    passes: Iterator[list[Tensor]] = map(back, starts, again)
    # Where a layer is linear at many places, one room for its d gradients, so none is copied later;
    # layers whose outputs are one have one room.
    linear = [widths(call.module) is not None for call in calls for _ in call.shapes]
    apart = d == 1 or create_graph
    roomy = [one and len(s) > 2 and not apart for one, s in zip(linear, shapes, strict=True)]
    around = [layer for call in calls for layer in getattr(call.module, "layer", ())]
    if not apart and any(isinstance(layer, nn.RNNBase) for layer in around):
        refusals = RuntimeError, ValueError, TypeError, UserWarning
        with suppress(*refusals), warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            passes, roomy = map(list, zip(*vmap(back)(starts), strict=True)), [False for _ in roomy]
    for j, grads in enumerate(passes):
        first = {place: i for i, place in reversed([*enumerate(at)]) if roomy[i]}
        if j == 0:
            rooms = dict(zip(first, rooms_of([grads[i] for i in first.values()], d), strict=True))
        copied = {place: rooms[place][j].copy_(grads[i]) for place, i in first.items()}
        grads = [copied.get(place, g) for place, g in zip(at, grads, strict=True)]
        each = iter(grads)
        for call in calls:
            call.grads.append([next(each) for _ in call.shapes])


def _ask_whose(f: Tensor, calls: Sequence[WatchedCall], plan: Plan) -> set[str]:
    """Whose the rows of the gathered among these calls are; the names of those among the others
    that are out of order unseen.
    """
    weights = torch.randn(f.shape[1], generator=torch.Generator().manual_seed(0)).to(f)
    start = weights.expand_as(f)
    base, mixed = routing.tagged(f, [call.edges[0] for call in calls], start)
    astray = set()
    for call, tagged in zip(calls, mixed, strict=True):
        plain = torch.stack([w * g[0].detach() for w, g in zip(weights, call.grads, strict=True)])
        if call.name in plan.gathered:
            call.samples = routing.whose(routing.by_place(call.module, plain), tagged, base)
        elif plain.isfinite().all() and not routing.in_order(routing.whose(plain, tagged, base)):
            astray.add(call.name)
    return astray
