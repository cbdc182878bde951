"""``vicinal embed``: what a model says about data, in shards that survive an interruption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from vicinal.capture import Activations, capture
from vicinal.checks import InputError
from vicinal.cli import options
from vicinal.cli.console import Console
from vicinal.cli.model_inputs import ModelInputs, model_inputs
from vicinal.cli.models import model_of
from vicinal.cli.run_folder import emptied, locked, write_json

EXAMPLES = "vicinal embed model.py:make photos/ --weights w.pt --layer fc1 -o train-embeddings"


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(
    options.ModelOptions, options.ImageOptions, options.DataOptions, options.ConsoleOptions
):
    model: Annotated[str, typer.Argument(help="file.py:factory, pkg.module:factory, .ts, .pt2.")]
    data: Annotated[str, typer.Argument(help="Image folder, .npz, .npy or module:dataset.")]
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="Layer to keep; repeatable.")
    ] = None
    out: options.Out = None
    pool: Annotated[str, typer.Option("--pool", help="flatten, mean, max or first.")] = "flatten"
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Rows per forward pass.", min=1)
    ] = 256
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    fresh: options.Fresh = False


def run(options: EmbedOptions) -> None:
    """Load the model, run it over the data, and describe the shards it left."""
    console = Console(options.as_json, options.quiet)
    loaded = model_of(options.model, options, console)
    inputs = model_inputs(options.data, options, size=options.size, gray=options.gray)
    folder = options.out or Path(f"{inputs.rows.name.split('.')[0]}-embeddings")
    with locked(folder):
        if options.fresh:
            emptied(folder)
        acts = _captured(loaded.model, inputs.data, options, folder, console)
        _describe(folder, inputs, options.model)
    shapes = {name: list(acts[name].shape) for name in acts}
    for name, shape in shapes.items():
        console.print(f"{name}: {shape[0]} x {shape[1]}")
    console.print(f"wrote  {folder}")
    console.result({"folder": str(folder), "layers": shapes})


def chosen_device(device: str) -> str | None:
    """``auto`` takes an accelerator if there is one, else leaves the model where it is."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"--device {device} cannot be used here: {first}") from None
    return device


def _captured(
    model: nn.Module, data: Any, options: EmbedOptions, folder: Path, console: Console
) -> Activations:
    """``capture``; a batch that does not fit into memory is halved, which changes no number."""
    device, batch_size = chosen_device(options.device), options.batch_size
    with console.progress("embed") as progress:
        while True:
            try:
                return capture(
                    model,
                    data,
                    options.layer or ["output"],
                    pool=options.pool,
                    batch_size=batch_size,
                    device=device,
                    to=folder,
                    progress=progress,
                )
            except (MemoryError, RuntimeError) as error:
                short = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
                if not short or batch_size == 1:
                    raise
                console.warn(
                    f"out of memory at batch {batch_size} → retrying at {batch_size // 2} "
                    "(result is identical)."
                )
                batch_size //= 2
                emptied(folder)


def _describe(folder: Path, inputs: ModelInputs, model: str) -> None:
    """``embed.json`` beside the shards: ids, class names and images, for audit to read."""
    rows = inputs.rows
    paths = rows.images if rows.images and all(isinstance(p, str) for p in rows.images) else None
    facts = {
        "model": model,
        "data": rows.name,
        "classes": inputs.classes,
        "ids": list(rows.ids) if rows.ids else None,
        "images": None if paths is None else list(paths),
    }
    write_json(folder / "embed.json", facts)
