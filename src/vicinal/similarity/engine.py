r"""The exact engine: per-sample gradients of every parameter as layer factors, one forward and d
backwards.

A forward hook on each layer takes its input and the *gradient edge* of its output;
``autograd.grad`` with respect to the edges then forms no weight gradient, and in-place activations
after the layer do no harm. :mod:`~vicinal.similarity.plan` decides once which parameters have an
exact rule and which are run again by ``vmap(vjp)``; :mod:`~vicinal.similarity.rules` turn inputs
and edge gradients into factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from vicinal.checks import InputError
from vicinal.similarity.factors import Dense, Factor, Places, mixed, widened
from vicinal.similarity.outputs import OutputFunction, as_rows
from vicinal.similarity.plan import Plan, make_plan, select_parameters, unwrapped
from vicinal.similarity.rules.products import Convolved, can_convolve, for_products
from vicinal.similarity.rules.rule import Call, Piece, apply_rule
from vicinal.similarity.rules.vjp import (
    Rerun,
    out_axis,
    samplewise,
    twice_differentiable,
    unit_axes,
)
from vicinal.similarity.watch import Record, Watch


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

    The factors are differentiable if captured with ``create_graph=True``.
    """

    outputs: Float[Tensor, "n d"]
    parts: tuple[Part, ...]

    @property
    def factors(self) -> list[Factor]:
        return [part.factor for part in self.parts]


class Engine:
    """Captures per-sample gradients of a model; leaves the model as it was.

    ``training=True`` keeps dropout and the like as they are (for losses during training);
    otherwise the model is put in eval for the duration of each capture.

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
        training: bool = False,
        rules: bool = True,
    ) -> None:
        self.model = unwrapped(model)
        self.outputs = outputs
        self.selected = select_parameters(self.model, params)
        self.strict = strict
        self.training = training
        self.rules = rules
        self.plan: Plan | None = None
        self.last: tuple[Part, ...] | None = None  # of the last capture, one sample of each
        self._ghost: dict[str, bool] = {}
        self._loop: dict[str, bool] = {}
        self._checked = False

    def capture(
        self, x: Tensor, target: Tensor | None = None, *, create_graph: bool = False
    ) -> Captured:
        """f and the factors of its gradients at each row of ``x``."""
        if self.plan is None:
            self.plan = make_plan(
                self.model, self.selected, self._f, x, target, strict=self.strict, rules=self.rules
            )
        found = self._capture(x, target, create_graph)
        if self.strict and not self._checked:
            from vicinal.similarity.selfcheck import check_against_autograd

            check_against_autograd(self, found, x, target)
            self._checked = True
        if self.last is None:
            self.last = tuple(
                Part(p.layer, p.parameters, p.rule, p.factor.select(slice(0, 1)))
                for p in found.parts
            )
        return found

    def capture_for_products(
        self, x: Tensor, target: Tensor | None, seeds: Float[Tensor, "n c d"]
    ) -> list[Factor]:
        """Factors of ``Σ_j seeds(x)_ij ∇f_j``, to be multiplied with totals and for nothing else.

        For batches after the first: how each layer is treated must be known.
        """
        assert self.last is not None
        parts = self._capture(x, target, create_graph=False, seeds=seeds).parts
        return [part.factor for part in parts]

    def _f(self, output: Any, target: Tensor | None, samples: int) -> Float[Tensor, "n d"]:
        return as_rows(self.outputs(output, target), samples)

    def _capture(
        self,
        x: Tensor,
        target: Tensor | None,
        create_graph: bool,
        seeds: Float[Tensor, "n c d"] | None = None,
    ) -> Captured:
        assert self.plan is not None
        keep = self.training or create_graph
        watch = Watch(
            self.model, self.plan.layers, self.selected, prune=not keep, train=self.training
        )
        with watch, torch.enable_grad(), twice_differentiable(create_graph):
            raw = watch.run(x)
            f = self._f(raw, target, len(x))
            records = watch.records
            if self.plan.rerun:
                records = [*records, watch.whole(self.model, x, raw)]
            _check_rows(records, len(x))
            self._edge_gradients(f, records, create_graph, seeds)
            parts = self._parts(records, create_graph, products=seeds is not None)
        return Captured(f if create_graph else f.detach(), tuple(parts))

    def _edge_gradients(
        self, f: Tensor, records: list[Record], create_graph: bool, seeds: Tensor | None = None
    ) -> None:
        """d backward passes that stop at the layers' outputs; from each output, or from seeds."""
        edges = [edge for record in records for edge in record.edges]
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
            for record in records:
                found = [(next(rest), shape) for shape in record.shapes]
                record.grads.append([f.new_zeros(s) if g is None else g for g, s in found])

    def _parts(
        self, records: list[Record], create_graph: bool, products: bool = False
    ) -> list[Part]:
        assert self.plan is not None
        parts: list[Part] = []
        shared: dict[str, list[Tensor]] = {}
        for record in records:
            if record.module is self.model and record.whole:
                parts.append(self._rerun("(model)", record, self.plan.rerun, create_graph))
            elif record.name in self.plan.units:
                parts.append(
                    self._rerun(record.name, record, self.plan.units[record.name], create_graph)
                )
            else:
                for names, factor in self._ruled(record, create_graph, products):
                    full = tuple(self.plan.name_of[record.name, name] for name in names)
                    if full[0] in self.plan.shared:
                        shared.setdefault(full[0], []).append(factor.dense())
                    else:
                        wide = factor if isinstance(factor, Convolved) else widened(factor)
                        parts.append(Part(record.name, full, factor.kind, wide))
        for name, gradients in shared.items():
            total = torch.stack(gradients).sum(0) if len(gradients) > 1 else gradients[0]
            parts.append(
                Part(name.rpartition(".")[0], (name,), "dense, shared", widened(Dense(total)))
            )
        order = self.plan.order
        return sorted(parts, key=lambda part: order[part.parameters[0]])

    def _ruled(self, record: Record, create_graph: bool, products: bool) -> list[Piece]:
        """The factors of one call; a shared parameter's apart, so that they can be summed."""
        assert self.plan is not None
        wanted = self.plan.ruled[record.name]
        x = record.args[0] if create_graph else record.args[0].detach()
        grads = [output[0] for output in record.grads]
        alone = [n for n in wanted if self.plan.name_of[record.name, n] in self.plan.shared]
        groups = [frozenset(wanted) - set(alone), *(frozenset([name]) for name in alone)]
        pieces: list[Piece] = []
        for group in filter(None, groups):
            key = f"{record.name}.{'+'.join(sorted(group))}"
            call = Call(record.module, x, grads, group, self._ghost.get(key))
            if products and not alone and call.ghost is False and can_convolve(record.module):
                pieces.extend(for_products(call, self._layout(record.name)))
                continue
            found = apply_rule(call)
            self._ghost.setdefault(key, isinstance(found[0][1], Places))
            pieces.extend(found)
        return pieces

    def _layout(self, layer: str) -> tuple[int, ...]:
        """In which the gradients of a layer's weight were stored before."""
        assert self.plan is not None
        weight = self.plan.name_of[layer, "weight"]
        return next(p.factor.shape for p in self.last or () if weight in p.parameters)

    def _rerun(self, name: str, record: Record, params: dict[str, str], create_graph: bool) -> Part:
        """Gradients of a unit's (or of the model's remaining) parameters by running it again."""
        axes = ((0,), {}) if record.whole else unit_axes(record.module, record.args, record.kwargs)
        if axes is None:
            raise InputError(f"the inputs of layer `{name}` changed their form between batches.")
        leaves, spec = pytree.tree_flatten((record.args, record.kwargs))
        flat_axes = pytree.tree_leaves(axes)
        if not create_graph:
            leaves = [v.detach() if isinstance(v, Tensor) else v for v in leaves]
        run = Rerun(
            record.module,
            leaves,
            spec,
            [a if isinstance(v, Tensor) else None for v, a in zip(leaves, flat_axes, strict=True)],
            record.grads,
            [0 if record.whole else out_axis(record.module, i) for i in record.returned],
            record.returned,
        )
        local = {own: self.selected[full] for own, full in params.items()}
        g, loop = samplewise(
            run, local, create_graph=create_graph, loop=self._loop.get(name, False)
        )
        self._loop[name] = loop
        rule = "vjp, sample by sample" if loop else "vmap(vjp)"
        return Part(name, tuple(params.values()), rule, widened(Dense(g)))


def combined(factors: Sequence[Factor], direction: Float[Tensor, " d"]) -> list[Factor]:
    """The factors of the one output ``Σ_j direction_j f_j``."""
    w = direction.expand(len(factors[0]), 1, -1)
    return mixed(factors, w)


def _check_rows(records: Sequence[Record], samples: int) -> None:
    for record in records:
        if record.batch_first and len(record.args[0]) != samples:
            raise InputError(
                f"layer `{record.name}` saw {len(record.args[0])} rows for {samples} samples, but "
                "one row per sample before. A model that folds its batch only for some inputs has "
                "no per-sample gradients here; pass batches of one shape."
            )
        if record.args[0]._version != record.version:
            raise InputError(
                f"the input of layer `{record.name}` was changed in place after the layer used "
                "it, so its gradient is lost (autograd refuses this too). Use the out-of-place "
                "operation."
            )
