"""From the watched calls of a batch to the factors of its gradients, layer by layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from vicinal.similarity import routing
from vicinal.similarity.factors import Dense, Factor, stacked
from vicinal.similarity.normed import Normed
from vicinal.similarity.places import Places
from vicinal.similarity.plan import WHOLE, Changes, Plan, PlanBroken
from vicinal.similarity.rules import LayerUse, Piece, rule_for
from vicinal.similarity.rules.parametrized import LENGTHS, ORIGINAL, made_from, pulled_back
from vicinal.similarity.rules.vjp import Rerun
from vicinal.similarity.watch import WatchedCall

LOOPED = "vjp, sample by sample"


@dataclass(frozen=True)
class Part:
    """One factor: the layer and parameters it belongs to, and how it was found."""

    layer: str
    parameters: tuple[str, ...]
    rule: str
    factor: Factor


@dataclass(frozen=True)
class Assembly:
    """A batch whose backward passes are done.

    Parameters
    ----------
    plan, layers, selected
        How each parameter is treated, the modules by name, the parameters by name.
    known
        Parts of an earlier batch by their first parameter: factors of one kind are multiplied, so
        each layer keeps the form it had.
    calls
        What the layers took in, and the gradients at their outputs.
    like
        A tensor ``(samples, gradients per sample)`` of the model's dtype.
    create_graph
        Whether the factors are to be differentiated.
    """

    plan: Plan
    layers: Mapping[str, nn.Module]
    selected: Mapping[str, nn.Parameter]
    known: Mapping[str, Part]
    calls: Sequence[WatchedCall]
    like: Tensor
    create_graph: bool = False

    def parts(self) -> tuple[Part, ...]:
        """In the order of the parameters."""
        parts = [self._rerun(call) for call in self.calls if call.name == WHOLE]
        parts += [self._copied(call) for call in self.calls if call.name in self.plan.copies.bare]
        shared: dict[str, list[Factor]] = {}
        for layer, names in self.plan.ruled.items():
            for own, factor in self._pieces(layer):
                full = tuple(names[name] for name in own)
                if full[0] in self.plan.shared:
                    shared.setdefault(full[0], []).append(factor)
                else:
                    parts.append(Part(layer, full, factor.kind, factor.widened()))
        for name, factors in shared.items():
            total = self._summed(name, factors).widened()
            parts.append(Part(name.rpartition(".")[0], (name,), f"{total.kind}, shared", total))
        place = {name: i for i, name in enumerate(self.selected)}
        return tuple(sorted(parts, key=lambda part: place[part.parameters[0]]))

    def _summed(self, name: str, factors: Sequence[Factor]) -> Factor:
        """The gradients of several uses: all their places, or the sum itself where it is small."""
        known = self.known.get(name)
        rows = [f for f in factors if isinstance(f, Places) and not f.vocabulary and not f.shape]
        if len(rows) == len(factors) and (known is None or isinstance(known.factor, Places)):
            t, d, out = sum(f.b.shape[1] for f in rows), *rows[0].b.shape[2:]
            width = rows[0].a.shape[-1]
            if known is not None or t * (width + d * out) <= d * width * out:
                b = torch.cat([f.b.permute(2, 0, 1, 3) for f in rows], 2).permute(1, 2, 0, 3)
                return replace(rows[0], a=torch.cat([f.a for f in rows], 1), b=b)
        tables_last = sorted(factors, key=lambda f: isinstance(f, Places) and f.vocabulary > 0)
        return Dense(functools.reduce(lambda g, f: f.dense(g), tables_last, None))

    def _pieces(self, layer: str) -> list[Piece]:
        """The factors of a layer's calls; a shared parameter apart, to be summed."""
        names = self.plan.ruled[layer]
        calls = [call for call in self.calls if call.name == layer]
        computed = {made_from(own) for own in names} - names.keys()
        plain = {own for own in names if made_from(own) == own}
        alone = [own for own in names if own in plain and names[own] in self.plan.shared]
        groups = [plain - {*alone}, *({own} for own in alone), *({own} for own in computed)]
        found: list[Piece] = []
        for wanted in map(frozenset, filter(None, groups)):
            if not calls:
                found += routing.nothing(self._use(layer, wanted), self.like)
            elif layer in self.plan.gathered:
                found += self._gathered(layer, wanted, calls)
            else:
                uses = [self._use(layer, wanted, call) for call in calls]
                found += [piece for use in uses for piece in _by_rule(use)]
        return [part for piece in found for part in self._originals(layer, computed, piece)]

    def _originals(self, layer: str, computed: set[str], piece: Piece) -> list[Piece]:
        """A piece, or those of the parameters that its tensor is computed from."""
        (first, *_), factor = piece
        if first not in computed:
            return [piece]
        names = self.plan.ruled[layer]
        known = self.known.get(names.get(LENGTHS, ""))
        apart = self.create_graph or not self.plan.shared.isdisjoint(names.values())
        apart = apart or not (known is None or isinstance(known.factor, Normed))
        return pulled_back(self.layers[layer], first, factor, frozenset(names), apart)

    def _gathered(
        self, layer: str, wanted: frozenset[str], calls: Sequence[WatchedCall]
    ) -> list[Piece]:
        """The factors of calls whose rows are not the samples, all calls together."""
        owners = [call.samples for call in calls if call.samples is not None]
        if len(owners) < len(calls):  # rows of several samples at once
            raise PlanBroken(Changes(whole=frozenset(self.plan.ruled[layer].values())))
        uses = [routing.as_rows(self._use(layer, wanted, call)) for call in calls]
        rows = routing.joined([_by_rule(use) for use in uses])
        return routing.gathered(uses[0], rows, torch.cat(owners), len(self.like))

    def _use(self, layer: str, wanted: frozenset[str], call: WatchedCall | None = None) -> LayerUse:
        """In the form of the first batch, if there was one."""
        names = self.plan.ruled[layer]
        known = self.known.get(names.get("weight", names.get(ORIGINAL, "")))
        ghost = None if known is None else isinstance(known.factor, Places)
        if LENGTHS in names and names[LENGTHS] in self.known:  # else the sums are taken later
            ghost = isinstance(self.known[names[LENGTHS]].factor, Normed) or None
        if not ghost and names.get("weight") in self.plan.shared:
            ghost = None  # it is summed anyway
        if call is None:
            return LayerUse(self.layers[layer], self.like, [], wanted, ghost)
        x = call.args[0] if self.create_graph else call.args[0].detach()
        return LayerUse(call.module, x, [g[0] for g in call.grads], wanted, ghost)

    def _copied(self, call: WatchedCall) -> Part:
        """The gradients of a parameter of which each sample had a copy: those of the copies."""
        g = stacked([g[0] for g in call.grads], 1)
        found = Dense(g.reshape(len(g), len(call.grads), self.selected[call.name].numel()))
        return Part(call.name.rpartition(".")[0], (call.name,), found.kind, found.widened())

    def _rerun(self, call: WatchedCall) -> Part:
        """Gradients of the model's remaining parameters by running it again."""
        full = self.plan.again
        x = call.args[0] if call.args else call.kwargs
        if not self.create_graph:
            x = tree_map(torch.detach, x)
        g, loop = Rerun(call.module, x, call.returned, call.grads).gradients(
            {name: self.selected[name] for name in full},
            create_graph=self.create_graph,
            loop=full[0] in self.known and self.known[full[0]].rule == LOOPED,
        )
        return Part(WHOLE, full, LOOPED if loop else "vmap(vjp)", Dense(g).widened())


def _by_rule(use: LayerUse) -> list[Piece]:
    rule = rule_for(use.module)
    assert rule is not None
    return rule(use)
