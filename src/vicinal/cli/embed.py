"""``vicinal embed``: what a model says about data, in shards that survive an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vicinal.capture import Activations, ShardStore, capture
from vicinal.capture.hooks import POOLS
from vicinal.capture.shards import is_capture
from vicinal.checks import InputError, check_choice, plural
from vicinal.cli.console import Clock, Console
from vicinal.cli.folders import DESCRIBED, NEW, forget, locked, swap, write_json
from vicinal.cli.model_inputs import ImageReading, ModelInputs, model_inputs, what_would_fit
from vicinal.cli.models import model_of
from vicinal.cli.user_code import place_of
from vicinal.cli.verbs import EmbedOptions
from vicinal.files import remove_tree


def run(options: EmbedOptions) -> None:
    """Load the model, run it over the data, and describe the shards it left."""
    console = Console(options.as_json, options.quiet)
    check_choice(options.pool, "--pool", POOLS)
    clock = Clock("model")
    loaded = model_of(options.model, options, console)
    how = ImageReading.of(options).filled(loaded.named)
    inputs = model_inputs(options.data, options, how, loaded.tokenize)
    folder = options.out or Path(f"{inputs.rows.name.split('.')[0]}-embeddings")
    clock.now("embed")
    with locked(folder, "capture"):
        place = _place(folder, options.fresh)
        acts: Any = _captured(loaded.model, inputs.data, options, place, console)
        _describe(place, inputs, options.model)
        if place != folder:
            swap(folder)
            acts = ShardStore(folder)
    shapes = {}
    for name in acts:
        shapes[name] = list((rows := acts[name]).shape)
        console.print(f"{name}: {len(rows):,} x {rows.shape[1]}")
        if bad := int((~rows.isfinite().flatten(1).all(1)).sum()):
            console.warn(
                f"{bad} of {plural(len(rows), 'row')} of {name} {'is' if bad == 1 else 'are'} not "
                "finite numbers: an audit refuses them, or leaves them out with --drop-bad."
            )
    console.print(f"wrote  {folder}\n{clock}")
    console.result({"folder": str(folder), "layers": shapes})


def chosen_device(device: str) -> str | None:
    """``auto`` takes an accelerator if there is one, else leaves the model where it is."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else None
    try:
        torch.zeros(1, device=device)
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"--device {device} cannot be used here: {first}") from None
    return device


def _captured(
    model: nn.Module, data: Any, options: EmbedOptions, folder: Path, console: Console
) -> Activations:
    """``capture``; a batch that does not fit into memory is halved, which changes no number."""
    device, batch_size = chosen_device(options.device), options.batch_size

    def again() -> nn.Module:  # in other processes
        return model_of(options.model, options, Console(as_json=True, quiet=True)).model

    with console.progress("embed") as progress:
        while True:
            try:
                return capture(
                    model, data, options.layer or ["output"], pool=options.pool,
                    batch_size=batch_size, device=device, to=folder, progress=progress,
                    on=options.on, load=again,
                )  # fmt: skip
            except InputError:
                raise
            except (Exception, SystemExit) as error:
                short = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
                if not short or batch_size == 1:
                    raise _failed(error, what_would_fit(model, data)) from error
                console.warn(
                    f"out of memory at batch {batch_size} → retrying at {batch_size // 2} "
                    "(result is identical)."
                )
                batch_size //= 2
                forget(folder)


def _failed(error: BaseException, hint: str) -> InputError:
    """The model's answer, or the data set's, as theirs."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    where = f" ({place})" if (place := place_of(error)) else ""
    said = f"the model failed on its inputs: {kind}{first[:300]}{where}"
    return InputError(f"{said}. {hint}" if hint else said)


def _place(folder: Path, fresh: bool) -> Path:
    """Where to capture: beside what is there, so that it stays whole until the new one is."""
    new = folder / NEW
    if fresh or (is_capture(new) and ShardStore(new).rows == 0):
        remove_tree(new)
    return folder if is_capture(folder) and not fresh else new


def _describe(folder: Path, inputs: ModelInputs, model: str) -> None:
    """``embed.json`` beside the shards: ids, class names and images, for audit to read."""
    rows = inputs.rows
    paths = rows.images if rows.images and all(isinstance(p, str) for p in rows.images) else None
    facts = {
        "model": model,
        "data": rows.name,
        "classes": inputs.classes,
        "ids": list(rows.ids) if rows.ids else None,
        "images": None if paths is None else [os.path.abspath(path) for path in paths],
    }
    write_json(folder / DESCRIBED, facts)
