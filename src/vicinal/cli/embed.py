"""``vicinal embed``: what a model says about data, in shards that survive an interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vicinal.cli import options

if TYPE_CHECKING:
    from torch import nn

    from vicinal.capture import Activations
    from vicinal.cli.console import Voice
    from vicinal.cli.rows import Rows

NAME = "embed"
EXAMPLES = "vicinal embed model.py:make photos/ --weights w.pt --layer fc1 -o train-embeddings"


def run(
    model: Annotated[str, typer.Argument(help="file.py:factory, pkg.module:factory, .ts, .pt2.")],
    data: Annotated[str, typer.Argument(help="Image folder, .npz, .npy or module:dataset.")],
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="Layer to keep; repeatable.")
    ] = None,
    out: options.Out = None,
    weights: options.Weights = None,
    model_arg: options.ModelArg = None,
    output: options.OutputKey = None,
    pool: Annotated[str, typer.Option("--pool", help="flatten, mean, max or first.")] = "flatten",
    size: Annotated[
        int | None, typer.Option("--size", help="Resize images to this square.")
    ] = None,
    gray: Annotated[bool, typer.Option("--gray", help="Read images with one channel.")] = False,
    batch_size: options.BatchSize = 256,
    device: options.Device = "auto",
    label_key: options.LabelKey = None,
    embedding_key: options.EmbeddingKey = None,
    trust_pickle: options.TrustPickle = False,
    fresh: options.Fresh = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a model over data and keep layers; interrupted, the same command goes on."""
    from vicinal.cli.console import Voice
    from vicinal.cli.data_files import Columns
    from vicinal.cli.models import load_model
    from vicinal.cli.run_folder import locked

    voice = Voice(as_json, quiet)
    loaded = load_model(
        model,
        weights=weights,
        arguments=model_arguments(model_arg),
        output=output,
        trust_pickle=trust_pickle,
    )
    for note in loaded.notes:
        voice.say(note)
    columns = Columns(embedding=embedding_key, label=label_key, trust_pickle=trust_pickle)
    inputs, rows, classes = model_inputs(data, columns, size=size, gray=gray)
    names = layer or ["output"]
    folder = out or Path(f"{rows.name.split('.')[0]}-embeddings")
    if fresh and (folder / "manifest.json").exists():
        shutil.rmtree(folder)
    with voice.progress("embed") as progress:
        acts = captured_with_retries(
            loaded.model,
            inputs,
            names,
            pool=pool,
            batch_size=batch_size,
            device=chosen_device(device),
            to=folder,
            progress=progress,
            voice=voice,
        )
    with locked(folder):
        _describe(folder, rows, classes, model)
    shapes = {name: list(acts[name].shape) for name in acts}
    for name, shape in shapes.items():
        voice.say(f"{name}: {shape[0]} x {shape[1]}")
    voice.say(f"wrote  {folder}")
    voice.result({"folder": str(folder), "layers": shapes})


def model_arguments(pairs: list[str] | None) -> dict[str, str]:
    from vicinal.checks import InputError

    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--model-arg must be name=value, got {pair!r}.")
        found[name] = value
    return found


def chosen_device(device: str) -> str | None:
    """``auto`` takes an accelerator if there is one, else leaves the model where it is."""
    import torch

    from vicinal.checks import InputError

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"--device {device} cannot be used here: {first}") from None
    return device


def model_inputs(
    spec: str, columns: Any, *, size: int | None, gray: bool
) -> tuple[Any, Rows, list[str] | None]:
    """What the model is fed: images of a folder, rows of an array file, or a ``module:dataset``."""
    import numpy as np
    import torch

    from vicinal.cli.data_files import read_rows
    from vicinal.cli.models import imported
    from vicinal.cli.rows import Rows, checked_labels
    from vicinal.labels import labels_of

    if ":" in spec and not Path(spec).exists():
        found = imported(spec, "data")
        data_set = found() if callable(found) and not hasattr(found, "__getitem__") else found
        return data_set, Rows(spec.rpartition(":")[2], None), None
    rows = checked_labels(read_rows(spec, columns))
    codes = classes = None
    if rows.labels is not None:
        classes_array, codes = map(np.asarray, labels_of(rows.labels, len(rows.labels)))
        classes = [str(name) for name in classes_array.tolist()]
    if rows.embeddings is not None:
        x = torch.from_numpy(np.ascontiguousarray(rows.embeddings)).float()
        labels = None if codes is None else torch.from_numpy(codes)
        return (x, labels) if labels is not None else x, rows, classes
    from vicinal.cli.images import ImageFiles

    return ImageFiles(rows.images or [], codes, size=size, gray=gray), rows, classes


def captured_with_retries(
    model: nn.Module,
    inputs: Any,
    layers: list[str],
    *,
    pool: str,
    batch_size: int,
    device: str | None,
    to: Path | None,
    progress: Callable[[int, int | None], None],
    voice: Voice,
) -> Activations:
    """``capture``; a batch that does not fit into memory is halved, which changes no number."""
    from vicinal.capture import capture

    while True:
        try:
            return capture(
                model, inputs, layers, pool=pool, batch_size=batch_size, device=device, to=to,
                progress=progress,
            )  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            short = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
            if not short or batch_size == 1:
                raise
            voice.warn(
                f"out of memory at batch {batch_size} → retrying at {batch_size // 2} "
                "(result is identical)."
            )
            batch_size //= 2
            if to is not None and (to / "manifest.json").exists():
                shutil.rmtree(to)


def _describe(folder: Path, rows: Rows, classes: list[str] | None, model: str) -> None:
    """``embed.json`` beside the shards: ids, class names and images, for audit to read."""
    from vicinal.files import write_atomically

    facts = {
        "model": model,
        "data": rows.name,
        "classes": classes,
        "ids": list(rows.ids) if rows.ids else None,
        "images": [str(p) for p in rows.images]
        if rows.images and _are_paths(rows.images)
        else None,
    }
    write_atomically(folder / "embed.json", json.dumps(facts, ensure_ascii=False, indent=1))


def _are_paths(images: Any) -> bool:
    return all(isinstance(item, str) for item in images)
