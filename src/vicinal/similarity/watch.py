"""A forward pass that is watched: every layer's inputs, the gradient edges of its outputs, and how
often each parameter is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.utils import _pytree as pytree

from vicinal.capture.hooks import LayerCall, hooked, restored
from vicinal.checks import InputError
from vicinal.similarity.outputs import logits
from vicinal.similarity.rules.attention import opened, projections
from vicinal.similarity.rules.inside import InsideMap, insides, seen
from vicinal.similarity.rules.recurrence import gates, unrolled

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]  # of some samples, one row each
REORDERING = ("Index", "Gather", "Scatter", "MaskedS", "Take", "Sort", "Topk", "Flip", "Roll")
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm


class Copies(NamedTuple):
    """What is the same for all samples and is given to each as a copy of its own, so that each has
    a gradient of its own: layers that saw one row for all (positions), and parameters that no layer
    with a rule holds (class tokens, scales), with how many axes lie between samples and theirs.
    """

    layers: frozenset[str] = frozenset()
    bare: Mapping[str, int] = MappingProxyType({})


NO_COPIES = Copies()


@dataclass
class WatchedCall:
    """One call of a layer: its inputs, the edges of its outputs, and the gradients there."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[Any]
    returned: list[int]  # which leaves of what it returned they belong to
    shapes: list[torch.Size]
    version: int
    grads: list[list[Tensor]] = field(default_factory=list)  # [output of f][edge]
    samples: Tensor | None = None  # of each row of its input, where rows are not the samples


def watched_call(call: LayerCall) -> WatchedCall:
    """A call with the edges of what it returned."""
    name, module, args, kwargs, output = call
    leaves = leaves_of(output)
    returned = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    edges = [get_gradient_edge(leaves[i]) for i in returned]
    shapes = [leaves[i].shape for i in returned]
    version = args[0]._version if edges and args and isinstance(args[0], Tensor) else 0
    return WatchedCall(name, module, args, kwargs, edges, returned, shapes, version)


def leaves_of(output: Any) -> list[Any]:
    """What a layer or a model returned, one by one; of a record its logits."""
    return [logits(leaf) for leaf in pytree.tree_leaves(output)]


def rows_of(x: Inputs) -> int:
    return len(x) if isinstance(x, Tensor) else len(next(iter(x.values())))


def take(x: Inputs, index: slice | Tensor | list[int]) -> Inputs:
    return x[index] if isinstance(x, Tensor) else {name: t[index] for name, t in x.items()}


def run(model: nn.Module, x: Inputs, params: Mapping[str, Tensor] | None = None) -> Any:
    """The model's answer to a tensor, or to tensors by name; with other parameters if given."""
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else ((), dict(x))
    try:
        return (
            functional_call(model, dict(params), args, kwargs) if params else model(*args, **kwargs)
        )
    except RuntimeError as error:
        held = next((p.dtype for p in model.parameters()), None)
        kinds = isinstance(x, Tensor) and x.dtype != held and "type" in str(error)
        if not kinds and "shapes cannot be multiplied" not in str(error):
            raise
        given = f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else "tensors by name"
        raise InputError(
            f"the model, which holds {held}, cannot take {given}: {error}. Pass data of the shape "
            "and dtype that it was made for."
        ) from error


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by name, with the linear maps inside attention and recurrent layers, and the
    plain layers inside their subclasses.
    """
    return {
        **dict(model.named_modules()), **projections(model), **gates(model), **insides(model)
    }  # fmt: skip


def watched(
    model: nn.Module,
    x: Inputs,
    layers: Mapping[str, nn.Module],
    copies: Copies = NO_COPIES,
    twice: bool = False,
) -> tuple[Any, list[WatchedCall]]:
    """What the model returns, and the calls of these of its :func:`layers_of` that led to it;
    ``twice``: their gradients will be differentiated.
    """
    rows, calls = rows_of(x), []
    own = {}
    for name, axes in copies.bare.items():
        own[name] = _for_each(model.get_parameter(name), axes, rows)
        calls.append(watched_call(LayerCall(name, model, (own[name],), {}, own[name])))

    def note(call: LayerCall) -> Tensor | None:
        if not call.args:  # the first input by name: layers take it as `input`, `x` or `query`
            values = list(call.kwargs.items())
            call = call._replace(args=(values[0][1],), kwargs=dict(values[1:]))
        copied = None
        if call.name in copies.layers and len(call.output) == 1:
            first = call.args[0].expand(rows, *call.args[0].shape[1:])
            copied = call.output.expand(rows, *call.output.shape[1:])
            call = call._replace(args=(first, *call.args[1:]), output=copied)
        calls.append(watched_call(call))
        return copied

    own_maps = {name: m for name, m in layers.items() if isinstance(m, InsideMap)}
    inside = {**projections(model), **gates(model), **own_maps}
    with (
        opened(inside),
        unrolled(inside, twice),
        hooked(layers, note, first=True),
        seen({name: layers[name] for name in insides(model) if name in layers}, note),
    ):
        output = run(model, x, own)
    return output, [call for call in calls if call.edges]


def _for_each(p: Tensor, axes: int, rows: int) -> Tensor:
    """A parameter for each sample; ``axes`` < 0: in place of its first axis, of length 1."""
    if axes < 0:
        return p.expand(rows, *p.shape[1:])
    return p.reshape(*[1] * (axes + 1), *p.shape).expand(rows, *[1] * axes, *p.shape)


def check_untouched(calls: Iterable[WatchedCall]) -> None:
    """Refuse a model that writes over what a layer took in."""
    for call in calls:
        if call.args and isinstance(call.args[0], Tensor) and call.args[0]._version != call.version:
            raise InputError(
                f"the input of layer `{call.name}` was changed in place after the layer used "
                "it, so its gradient is lost (autograd refuses this too). Use the out-of-place "
                "operation."
            )


def uses(output: Tensor) -> Counter[int]:
    """Edges into each leaf of the autograd graph, by the leaf's identity."""
    following = (after for node in graph([output]) for after, _ in node.next_functions)
    return Counter(id(after.variable) for after in following if hasattr(after, "variable"))


def behind_reordering(
    returned: Any, calls: Iterable[WatchedCall], unordered: Collection[str] = ()
) -> list[WatchedCall]:
    """The first calls on the ways from what a model returned back through where rows may have
    changed their order.

    If the rows of these are in order, so are those of the calls before them; ``unordered`` are
    layers whose rows are not, and say nothing of what is before.
    """
    tensors = [t for t in leaves_of(returned) if isinstance(t, Tensor)]
    at = {edge.node: call for call in calls for edge in call.edges}
    found: dict[int, WatchedCall] = {}
    stack = [(tensor.grad_fn, False) for tensor in tensors]
    seen: set[tuple[Any, bool]] = set()
    while stack:
        node, astray = stack.pop()
        if node is None or (node, astray) in seen:
            continue
        seen.add((node, astray))
        call = at.get(node)
        if astray and call is not None:
            found[id(call)] = call
            astray = call.name in unordered
        astray = astray or node.name().startswith(REORDERING)
        stack += [(after, astray) for after, _ in node.next_functions]
    return list(found.values())


def graph(outputs: Iterable[Tensor]) -> Iterator[Any]:
    """Every node of the autograd graph that leads to these tensors."""
    seen: set[Any] = {None}
    stack: list[Any] = [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [after for after, _ in node.next_functions]
            yield node


@contextmanager
def reading(
    model: nn.Module, selected: Mapping[str, nn.Parameter], *, prune: bool = True
) -> Iterator[None]:
    """Eval mode, and no other parameter trainable than those ``selected`` (``prune=False``: they as
    well); the model comes back as it was.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise InputError(
                f"batch norm `{name}` keeps no running statistics, so each sample's output "
                "depends on the others in its batch and has no gradient of its own. Build it with "
                "track_running_stats=True, or use GroupNorm."
            )
    chosen = {id(p) for p in selected.values()}
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as after:
        after.enter_context(restored(model))
        after.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)  # it calls no layer: nothing to watch
        model.eval()
        for p in model.parameters():
            p.requires_grad_(id(p) in chosen or (p.requires_grad and not prune))
        yield


def training_batch_norm(model: nn.Module) -> str | None:
    """The name of a batch norm in train mode, if there is one."""
    modules = model.named_modules()
    return next((n for n, m in modules if isinstance(m, _BATCH_NORMS) and m.training), None)


def wants_company(model: nn.Module) -> bool:
    """Whether a sample must not run alone: torch's backward of a batch norm in eval mode is wrong
    for a batch of one whose gradient comes transposed.
    """
    return any(isinstance(module, _BATCH_NORMS) for module in model.modules())
