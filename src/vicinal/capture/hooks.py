"""Listening to layers while a model runs, and leaving it as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.checks import InputError, check_choice, closest

Pool = str | Callable[[Tensor], Tensor]
POOLS = ("flatten", "mean", "max", "first")
OUTPUT = "output"  # the model's own output, where no layer bears that name


def layer_names(model: nn.Module) -> list[str]:
    """The names ``capture`` accepts: every submodule, outer before inner.

    >>> layer_names(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    ['0', '1']
    """
    return [name for name, _ in model.named_modules() if name]


@contextmanager
def listening(
    model: nn.Module, layers: Sequence[str], keep: Callable[[str, Tensor], Tensor]
) -> Iterator[dict[str, Tensor]]:
    """While inside, each forward pass leaves ``keep(name, output)`` of the layers in the dict.

    ``keep`` runs inside the layer's own call, so that an in-place operation further on cannot
    change what was heard. A layer that runs twice in one pass is heard at its last run, with a
    warning.
    """
    modules = dict(model.named_modules())
    modules.setdefault(OUTPUT, model)
    _check_names(layers, modules)
    heard: dict[str, Tensor] = {}
    handles = []

    def listener(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hear(module: nn.Module, inputs: Any, output: Any) -> None:
            if name in heard:
                warnings.warn(f"layer {name!r} ran twice in one forward; its last output is kept.")
            heard[name] = keep(name, _one_tensor(output, name))

        return hear

    try:
        handles += [modules[name].register_forward_hook(listener(name)) for name in layers]
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluating(model: nn.Module, device: torch.device | None) -> Iterator[None]:
    """Evaluation mode on ``device``; every module's flag and the model's place come back after."""
    flags = {module: module.training for module in model.modules()}
    parameter = next(iter(model.parameters()), None)
    home = parameter.device if parameter is not None else None
    try:
        model.eval()
        if device is not None:
            model.to(device)
        yield
    finally:
        if device is not None and home is not None:
            model.to(home)
        for module, flag in flags.items():
            module.training = flag


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
                f"All {len(names)}: vicinal.capture.layer_names(model)."
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
