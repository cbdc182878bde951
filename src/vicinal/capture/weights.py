"""Weights from a file, read without running code, and fitted into a model however it was wrapped.

Training checkpoints are unwrapped, prefixes of parallel or compiled models removed and those of a
wrapper around this model added; all parameters must match, and the notes say what was done.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vicinal.checks import InputError
from vicinal.files import reading, regular_file

WRAPPERS = ("state_dict", "model_state_dict", "model", "ema", "net")
PREFIXES = ("module.", "_orig_mod.", "model.")


def read_weights(path: str | Path, *, trust_pickle: bool = False, fix: str = "") -> Any:
    """What a checkpoint holds: safetensors, or torch's own format with ``weights_only=True``.

    Parameters
    ----------
    path : the file.
    trust_pickle : read one that holds pickled objects. They can run any code.
    fix : what to do about a file that cannot be read.
    """
    regular_file(path)
    with reading(f"weights from {Path(path).name}", fix or "Save model.state_dict() alone."):
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about pickles that it then refuses
            found = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
        return found.state_dict() if isinstance(found, nn.Module) else found


def load_weights(model: nn.Module, found: Any, name: str) -> tuple[str, ...]:
    """Load the reading of ``found`` that matches the most parameters; all must match.

    Parameters
    ----------
    model : gets the weights.
    found : a state dict, or a checkpoint that holds one.
    name : what ``found`` is called in the notes.

    >>> net = nn.Linear(2, 1)
    >>> load_weights(net, {"epoch": 3, "state_dict": net.state_dict()}, "c.pt")
    ("weights: 2/2 parameters match c.pt['state_dict']",)
    """
    wanted = model.state_dict()
    best: tuple[int, str, dict[str, Tensor]] = (-1, "", {})
    with reading(f"weights from {name}", "Save model.state_dict() alone."):
        readings = _readings(found, _common_prefix(wanted))
    for how, candidate in readings:
        hits = sum(k in wanted and _alike(wanted[k], v) for k, v in candidate.items())
        if hits > best[0]:
            best = (hits, how, candidate)
    hits, how, state = best
    if hits < len(wanted):
        keys = f"a {type(found).__name__}"
        if isinstance(found, Mapping):
            keys = ", ".join(list(map(str, found))[:3])
        missing = next(k for k in wanted if k not in state or not _alike(wanted[k], state[k]))
        raise InputError(
            f"weights match {max(hits, 0)} of {len(wanted)} parameters of the model (first without "
            f"a match: {missing}). {name} holds: {keys}."
        )
    with reading(f"weights from {name}", "Save model.state_dict() alone."):
        model.load_state_dict({key: state[key] for key in wanted})
    extra = len(state) - len(wanted)
    notes = [f"weights: {hits}/{len(wanted)} parameters match {name}{how}"]
    return tuple(notes + ([f"weights: {extra} entries of {name} were not used"] if extra else []))


def _alike(wanted: Tensor, found: Tensor) -> bool:
    """The same shape and kind: values that are there, real where real ones are wanted."""
    kinds = ((t.shape, t.layout, t.is_complex(), t.is_meta) for t in (wanted, found))
    return next(kinds) == next(kinds)


def _common_prefix(names: Mapping[str, Tensor]) -> str:
    """That of a wrapper: ``inner.`` where every parameter is of the model inside."""
    first = next(iter(names), "")
    parts = [first[: dot.end()] for dot in re.finditer(r"\.", first)]
    shared = [part for part in parts if all(name.startswith(part) for name in names)]
    return shared[-1] if shared else ""


def _readings(found: Any, prefix: str) -> list[tuple[str, dict[str, Tensor]]]:
    """The file as it is, unwrapped, each without its prefixes, and with the model's own."""
    if not isinstance(found, Mapping):
        return []
    outer = [("", found)]
    outer += [(f"[{k!r}]", found[k]) for k in WRAPPERS if isinstance(found.get(k), Mapping)]
    readings = []
    for how, mapping in outer:
        tensors = {k: v for k, v in mapping.items() if isinstance(v, Tensor)}
        readings.append((how, tensors))
        for taken in PREFIXES:
            if any(k.startswith(taken) for k in tensors):
                bare = {k.removeprefix(taken): v for k, v in tensors.items()}
                readings.append((f"{how} after removing {taken!r}", bare))
    inside = [(f"{how} inside {prefix!r}", {prefix + k: v for k, v in state.items()})
              for how, state in readings]  # fmt: skip
    return readings + (inside if prefix else [])
