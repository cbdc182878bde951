"""Entanglement by layer, and over the checkpoints of a training (Frosst 2019, appendix C).

The same rows at every checkpoint, each layer at its own temperature: what can be compared is the
ratio to chance.
"""

from __future__ import annotations

import copy
import glob
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vicinal.audits.sections import Layer
from vicinal.capture import Activations, capture, load_weights, read_weights
from vicinal.checks import InputError
from vicinal.evaluation import entanglement

ENTANGLED_ROWS = 1500
HISTORY_ROWS = 500  # at every checkpoint
WIDE = 8192  # features; wider maps are averaged over their places


def compact(output: Tensor) -> Tensor:
    """One vector a row: all features where they are few, else averaged over their places."""
    if output[0].numel() <= WIDE or output.ndim == 2:
        return output.reshape(len(output), -1)
    places = output if output.ndim == 3 else output.flatten(2).transpose(1, 2)
    return places.mean(1)


def sampled(count: int, most: int, seed: int) -> Tensor:
    """Some rows, ascending."""
    return torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(count)[:most]))


def entangled(acts: Activations, names: Sequence[str], seed: int) -> tuple[Layer, ...]:
    """Of the rows that were captured, or a sample of them."""
    assert acts.labels is not None
    rows = sampled(len(acts.labels), ENTANGLED_ROWS, seed)
    found = entanglement({name: acts[name][rows] for name in names}, acts.labels[rows])
    return tuple(
        Layer(
            layer.layer, layer.loss, layer.chance,
            layer.temperature if math.isfinite(layer.temperature) else None, layer.rows, layer.se,
        )
        for layer in found.layers
    )  # fmt: skip


def states_of(checkpoints: Any) -> dict[int, Any]:
    """What ``checkpoints`` name, by step, in the order of the steps.

    A step is the last number in a file's name; where files have none, or share one, their place.

    >>> list(states_of({10: "b.pt", 2: "a.pt"}))
    [2, 10]
    """
    if checkpoints is None:
        return {}
    if isinstance(checkpoints, Mapping):
        return {int(step): checkpoints[step] for step in sorted(checkpoints)}
    if isinstance(checkpoints, (str, Path)):
        files = glob.glob(str(checkpoints))
        if not files:
            raise InputError(f"no checkpoint matches {str(checkpoints)!r}.")
    else:
        files = [str(path) for path in checkpoints]
    files.sort(key=_natural)
    numbers = [re.findall(r"\d+", Path(path).stem)[-1:] for path in files]
    steps = [int(found[0]) if found else -1 for found in numbers]
    if len(set(steps)) < len(files) or min(steps, default=0) < 0:
        return dict(enumerate(files, start=1))
    return dict(sorted(zip(steps, files, strict=True)))


def _natural(path: str) -> list[Any]:
    """Names with their numbers as numbers: step_9 before step_10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", path))]


def with_history(
    layers: tuple[Layer, ...],
    states: Mapping[int, Any],
    model: nn.Module,
    data: Any,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> tuple[Layer, ...]:
    """The same layers at every checkpoint, on the same rows ``data``."""
    net, names, found = copy.deepcopy(model), [layer.name for layer in layers], []
    for at, (step, state) in enumerate(states.items()):
        load_weights(net, *_read(step, state))
        found.append(entangled(capture(net, data, names, pool=compact), names, seed))
        progress("checkpoints", at + 1, len(states))
    return tuple(
        replace(
            layer,
            steps=tuple(states),
            history=tuple(past[place].entanglement for past in found),
            history_se=tuple(past[place].se for past in found),
            history_n=found[0][place].n,
            history_chance=found[0][place].chance,
        )
        for place, layer in enumerate(layers)
    )


def _read(step: int, state: Any) -> tuple[Any, str]:
    """A state dict and what to call it: of a file, as it is, or made when it is its turn."""
    if isinstance(state, (str, Path)):
        return read_weights(state), Path(state).name
    return state() if callable(state) else state, f"checkpoint {step}"
