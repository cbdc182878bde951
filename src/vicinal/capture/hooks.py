"""The only forward hooks: what layers take in and put out while a model runs, left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vicinal.checks import InputError, check_choice, closest

Pool = str | Callable[[Tensor], Tensor]
POOLS = ("flatten", "mean", "max", "first")
OUTPUT = "output"  # the model's own output, where no layer bears that name


class LayerCall(NamedTuple):
    """One call of a layer: what went in, by place and by name, and what came out."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class LayerOutput(NamedTuple):
    """The shape of what a layer put out: of its tensor, or of the first of several."""

    shape: tuple[int, ...]
    alone: bool


def layer_names(model: nn.Module) -> list[str]:
    """The names ``capture`` accepts: every submodule, outer before inner.

    >>> layer_names(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    ['0', '1']
    """
    return [name for name, _ in model.named_modules() if name]


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module], take: Callable[[LayerCall], Any], *, first: bool = False
) -> Iterator[None]:
    """While inside, every call of the modules goes to ``take``, in the order of execution.

    ``take`` runs inside the layer's own call, so that an in-place operation further on cannot
    change what it sees; what it returns, if anything, goes on in place of the layer's output.
    ``first``: before the hooks that others put there.
    """

    with ExitStack() as hooks:
        for name, module in modules.items():
            hook = partial(lambda name, *call: take(LayerCall(name, *call)), name)
            handle = module.register_forward_hook(hook, with_kwargs=True, prepend=first)
            hooks.callback(handle.remove)
        yield


@contextmanager
def listening(
    model: nn.Module, layers: Sequence[str], keep: Callable[[str, Tensor], Tensor]
) -> Iterator[dict[str, Tensor]]:
    """While inside, each forward pass leaves ``keep(name, output)`` of the layers in the dict.

    The dict is emptied when the model is called again. A layer that runs twice in one pass leaves
    its last output, with a warning.
    """
    modules = dict(model.named_modules())
    modules.setdefault(OUTPUT, model)
    _check_names(layers, modules)
    kept: dict[str, Tensor] = {}

    def take(call: LayerCall) -> None:
        if call.name in kept:
            warnings.warn(f"layer {call.name!r} ran twice in one forward; its last output is kept.")
        kept[call.name] = keep(call.name, _one_tensor(call.output, call.name))

    start = model.register_forward_pre_hook(lambda *_: kept.clear(), prepend=True)
    try:
        with hooked({name: modules[name] for name in layers}, take):
            yield kept
    finally:
        start.remove()


@contextmanager
def tracing(model: nn.Module) -> Iterator[dict[str, LayerOutput]]:
    """While inside, layers leave the shape of what they put out, in the order in which they run.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with tracing(net) as ran:
    ...     _ = net(torch.ones(4, 2))
    >>> ran["0"].shape, list(ran)
    ((4, 3), ['0', '1'])
    """
    ran: dict[str, LayerOutput] = {}

    def take(call: LayerCall) -> None:
        several = isinstance(call.output, (tuple, list)) and bool(call.output)
        tensor = call.output[0] if several else call.output
        if isinstance(tensor, Tensor):
            ran[call.name] = LayerOutput(tuple(tensor.shape), not several)

    with hooked({name: module for name, module in model.named_modules() if name}, take):
        yield ran


@contextmanager
def restored(model: object) -> Iterator[None]:
    """The model comes back as it was: every module's flag and every parameter's requires_grad.

    Anything but a module is let through: it has nothing to restore.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    flags = [(module, module.training) for module in modules]
    needs = [(p, p.requires_grad) for m in modules[:1] for p in m.parameters()]
    try:
        yield
    finally:
        for p, needed in needs:
            if p.requires_grad != needed:
                p.requires_grad_(needed)
        for module, flag in flags:
            module.training = flag


@contextmanager
def evaluating(model: object, device: torch.device | None = None) -> Iterator[None]:
    """Evaluation mode on ``device``; flags and the model's place come back after."""
    with restored(model):
        if not isinstance(model, nn.Module):
            yield
            return
        home = device_of(model) if device is not None else None
        model.eval()
        try:
            if device is not None:
                model.to(device)
            yield
        finally:
            if home is not None:
                model.to(home)


def device_of(model: object) -> torch.device | None:
    """Where the model's first parameter or buffer lies; None if it has neither."""
    if not isinstance(model, nn.Module):
        return None
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return tensor.device if tensor is not None else None


def pooled(output: Tensor, pool: Pool) -> Tensor:
    """One vector per sample: ``(n, …) -> (n, d)``.

    ``"flatten"`` keeps everything. ``"mean"`` and ``"max"`` go over the places: all dimensions
    behind the channels of ``(n, c, h, w)``, the tokens of ``(n, tokens, d)``. ``"first"`` takes the
    first token. For anything else pass a function.
    """
    if callable(pool):
        return pool(output)
    check_choice(pool, "pool", POOLS)
    if pool == "flatten" or output.ndim <= 2:
        return output.reshape(len(output), -1)
    if pool == "first":
        if output.ndim != 3:
            raise InputError(f'pool="first" needs (n, tokens, d), got {tuple(output.shape)}.')
        return output[:, 0]
    places = output if output.ndim == 3 else output.flatten(2).transpose(1, 2)
    return places.mean(1) if pool == "mean" else places.amax(1)


def _check_names(layers: Sequence[str], modules: dict[str, nn.Module]) -> None:
    if isinstance(layers, str) or not layers:
        raise InputError(f"`layers` must be a list of layer names, got {layers!r}.")
    for name in layers:
        if name not in modules:
            names = [n for n in modules if n]
            near = ", ".join(closest(name, names)) or ", ".join(names[:3])
            raise InputError(
                f"no layer {name!r} in {type(modules[OUTPUT]).__name__}. Close names: {near}. "
                f"All {len(names)}: vicinal layers MODEL, or vicinal.capture.layer_names(model)."
            )


def _one_tensor(output: Any, name: str) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]  # LSTM, attention: the sequence comes first
    kind = f"a {type(output).__name__}"
    if isinstance(output, dict):
        kind = f"dict({', '.join(map(str, output))})"
    raise InputError(
        f"layer {name!r} returned {kind}, not a tensor. Name an inner layer, or wrap the model so "
        "that this layer returns the tensor you mean."
    )
