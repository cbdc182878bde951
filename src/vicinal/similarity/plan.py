r"""Which parameter gets its gradient how: decided by two small forward passes, and again when a
batch shows that they did not show everything.

Every chosen parameter falls in one of these groups:

* *ruled*: all its uses are calls of layers with an exact rule, seen by counting the edges that
  lead to it in the autograd graph; what a weight is computed from (weight norm) is its layer's too.
  Several uses (a module called twice, tied weights) are *shared*: summed. A layer whose rows are
  not the samples (an expert that sees some of them, folded or transposed batches) is *gathered*:
  :mod:`~vicinal.similarity.routing` finds whose rows they are, batch by batch. So is a layer that
  was not reached: nothing is known of its rows.
* *again*: the model itself (``WHOLE``) is run again for everything else: bare parameters,
  functional uses such as ``F.linear(h, embedding.weight)``, attention that cannot be opened.
* *copies*: what is the same for all samples (positions, class tokens, scales) becomes a copy for
  each, where that changes nothing: see :class:`~vicinal.similarity.watch.Copies`.
* *unreached*, without a rule: no path from the output so far, so no gradient and no cost.

A batch that does otherwise raises :class:`PlanBroken`; the plan is then made again with what it did
in mind (:class:`Changes`), so nothing that is live is ever dropped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vicinal.similarity import routing
from vicinal.similarity.rules import COVERED, feature_axes, rule_for
from vicinal.similarity.rules.attention import can_open
from vicinal.similarity.rules.inside import InsideMap, insides
from vicinal.similarity.rules.parametrized import edges_each, made_from, originals
from vicinal.similarity.rules.recurrence import can_unroll
from vicinal.similarity.watch import (
    NO_COPIES,
    Copies,
    Inputs,
    WatchedCall,
    check_untouched,
    layers_of,
    reading,
    rows_of,
    take,
    uses,
    watched,
)

WHOLE = "(model)"
OPENED = nn.MultiheadAttention, nn.RNNBase  # layers of which the most can be
Owner = tuple[str, nn.Module, str]  # a layer, its module, its own name for the parameter


class Changes(NamedTuple):
    """What batches taught: layers to be gathered, parameters that need the whole model."""

    gathered: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.gathered or self.whole)

    def joined(self, other: Changes) -> Changes:
        return Changes(self.gathered | other.gathered, self.whole | other.whole)


class PlanBroken(Exception):
    """A batch went other ways than the plan knows; with the changes of it."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes


@dataclass(frozen=True)
class Plan:
    """How each parameter is treated."""

    ruled: dict[str, dict[str, str]]  # layer -> its own name for it -> the model's name for it
    again: tuple[str, ...]
    shared: frozenset[str]
    gathered: frozenset[str]
    changes: Changes
    copies: Copies
    edges: dict[str, int]  # of one call to each ruled parameter: more where weights are computed


class Probe(NamedTuple):
    """A forward pass of a few rows: f, the calls, how often each parameter is used, how often in
    one call if more than once, which layers did not answer row by row, and which had one row per
    sample in their order.
    """

    f: Tensor
    calls: list[WatchedCall]
    used: Counter[int]
    each: Counter[int]
    odd: set[str]
    straight: set[str]


class Model(NamedTuple):
    """What is probed: the model, its chosen parameters, f, some inputs and their targets."""

    module: nn.Module
    selected: dict[str, nn.Parameter]
    f: Callable[[Any, Tensor | None, int], Tensor]
    x: Inputs
    target: Tensor | None


def make_plan(model: Model, changes: Changes, rules: bool = True) -> Plan:
    """Two forward passes, of two rows and of three: what follows the batch is parted from what has
    that length by chance.
    """
    copies, probes = (
        _copies(model, changes) if rules else (NO_COPIES, [_probe(model, rows) for rows in (2, 3)])
    )
    calls = [Counter(call.name for call in probe.calls) for probe in probes]
    straight = (probes[0].straight & probes[1].straight) - changes.gathered
    odd = probes[0].odd | probes[1].odd
    ruled: dict[str, dict[str, str]] = {}
    again: list[str] = []
    shared, edges = set(), {}
    owners = _owners(model.module)
    for full, p in model.selected.items():
        held = [o for o in owners[id(p)] if any(c[o[0]] for c in calls)] or owners[id(p)]
        seen = [sum(c[at] for at, _, _ in held) for c in calls]
        each = max(1, *(probe.each[id(p)] for probe in probes))
        known = all(probe.used[id(p)] <= n * each for probe, n in zip(probes, seen, strict=True))
        ruled_all = all(
            rule_for(m) and made_from(o) in COVERED and at not in odd for at, m, o in held
        )
        if full in copies.bare:
            continue
        if full in changes.whole:
            again.append(full)
        elif rules and known and held and ruled_all:
            edges[full] = each
            for layer, _, own in held:
                ruled.setdefault(layer, {})[own] = full
            if len(held) > 1 or max(seen) > 1:
                shared.add(full)
        elif any(probe.used[id(p)] for probe in probes):
            again.append(full)
    bent = frozenset(ruled.keys() - straight)
    return Plan(ruled, tuple(again), frozenset(shared), bent, changes, copies, edges)


def _copies(model: Model, changes: Changes) -> tuple[Copies, list[Probe]]:
    """What can be given to each sample as a copy without changing f, and the probes with it."""
    probes = [_probe(model, rows) for rows in (2, 3)]
    lone = set.intersection(*({c.name for c in p.calls if _lone(c)} for p in probes))
    lone -= {c.name for p in probes for c in p.calls if not _lone(c)} | changes.gathered
    bare = {}
    owners = _owners(model.module)
    idle = insides(model.module).keys() - {c.name for p in probes for c in p.calls}
    for full, p in model.selected.items():
        held = [m for at, m, _ in owners[id(p)] if at not in idle]
        loose = not any(rule_for(m) or isinstance(m, OPENED) for m in held)
        if loose and all(probe.used[id(p)] for probe in probes) and full not in changes.whole:
            bare[full] = -1 if p.ndim > 1 and len(p) == 1 else 0 if p.ndim > 1 else 1
    for guess in (Copies(frozenset(lone), bare), Copies(frozenset(lone)), Copies(bare=bare)):
        if not guess.layers and not guess.bare:
            continue
        try:
            again = [_probe(model, rows, guess) for rows in (2, 3)]
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue  # the shapes do not go together
        equal = all(torch.allclose(a.f, b.f, rtol=1e-3) for a, b in zip(probes, again, strict=True))
        if equal and all({*guess.layers, *guess.bare} <= probe.straight for probe in again):
            return guess, again
    return NO_COPIES, probes


def _lone(call: WatchedCall) -> bool:
    """One row for all samples."""
    x = call.args[0]
    single = call.returned == [0] and isinstance(x, Tensor) and x.ndim > 0
    return single and len(x) == 1 == call.shapes[0][0]


def changes_of(
    plan: Plan,
    selected: Mapping[str, nn.Parameter],
    calls: Sequence[WatchedCall],
    used: Counter[int],
    rows: int,
) -> Changes:
    """What a batch of ``rows`` samples did otherwise than planned."""
    number = Counter(call.name for call in calls)
    gathered = {c.name for c in calls if c.name in plan.ruled and len(c.args[0]) != rows}
    for layer, names in plan.ruled.items():
        if number[layer] > 1 and not plan.shared.issuperset(names.values()):
            gathered.add(layer)
    seen: Counter[str] = Counter()
    for layer, names in plan.ruled.items():
        for full in names.values():
            seen[full] += number[layer] * plan.edges.get(full, 1)
    seen.update(plan.copies.bare.keys())
    whole = {n for n, p in selected.items() if n not in plan.again and used[id(p)] > seen[n]}
    return Changes(frozenset(gathered - plan.gathered), frozenset(whole))


def _probe(model: Model, rows: int, copies: Copies = NO_COPIES) -> Probe:
    module, selected, f, x, target = model
    pick = torch.arange(rows) % rows_of(x)
    layers = {n: m for n, m in layers_of(module).items() if rule_for(m)}
    with reading(module, selected), torch.enable_grad():
        output, calls = watched(module, take(x, pick), layers, copies)
        found = f(output, None if target is None else target[pick], rows)
        check_untouched(calls)
        odd = {call.name for call in calls if not _by_rows(call)}
        straight = _straight(found, [call for call in calls if call.name not in odd])
        inside = [(m, own, p) for m in layers.values() for own, p in originals(m, COVERED).items()]
        each = Counter({id(p): edges_each(m, own, p, uses) for m, own, p in inside})
    return Probe(found.detach(), calls, uses(found), each, odd, straight)


def _straight(f: Tensor, calls: Sequence[WatchedCall]) -> set[str]:
    """Layers all of whose calls had one row per sample, in the order of the samples."""
    if not calls:
        return set()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(f.shape[1], generator=generator).to(f).expand_as(f)
    edges = [call.edges[0] for call in calls]
    plain = torch.autograd.grad(f, edges, start, True, allow_unused=True)
    base, mixed = routing.tagged(f, edges, start)
    bent = set()
    for call, g, tagged in zip(calls, plain, mixed, strict=True):
        told = g is not None and bool(g.isfinite().all())
        crossed = told and not routing.in_order(routing.whose(g[None], tagged, base))
        if len(call.args[0]) != len(f) or crossed:
            bent.add(call.name)
    return {call.name for call in calls} - bent


def opens(module: nn.Module) -> bool:
    """Whether the parameters of a layer are those of linear maps inside it."""
    return can_unroll(module) or (isinstance(module, nn.MultiheadAttention) and can_open(module))


def _owners(model: nn.Module) -> dict[int, list[Owner]]:
    """Every (layer, module, local name) under which a parameter is held, by its identity."""
    found: dict[int, list[Owner]] = defaultdict(list)
    for layer, module in layers_of(model).items():
        if isinstance(module, InsideMap):
            held = {own: getattr(module, own) for own in COVERED}
        elif opens(module):
            held = {}
        else:
            held = dict(module.named_parameters(recurse=False, remove_duplicate=False))
            held |= originals(module, COVERED) if rule_for(module) else {}
        for own, p in held.items():
            found[id(p)].append((layer, module, own))
    return found


def _by_rows(call: WatchedCall) -> bool:
    """Whether a call took a tensor and answered row by row."""
    x = call.args[0]
    if call.returned != [0] or not isinstance(x, Tensor) or x.ndim == 0:
        return False
    axes = feature_axes(call.module)
    lead = 1 if axes is None else len(call.shapes[0]) - axes
    return lead > 0 and x.shape[:lead] == call.shapes[0][:lead]
