"""``vicinal layers``: the names of a model's layers, and what they put out for one input."""

from __future__ import annotations

from typing import Annotated

import typer

from vicinal.cli import options

NAME = "layers"
EXAMPLES = "vicinal layers model.py:make --weights w.pt --input 1,28,28"


def run(
    model: Annotated[str, typer.Argument(help="file.py:factory or pkg.module:factory.")],
    weights: options.Weights = None,
    model_arg: options.ModelArg = None,
    shape: Annotated[
        str | None, typer.Option("--input", help="Shape of one input, e.g. 3,224,224: show shapes.")
    ] = None,
    trust_pickle: options.TrustPickle = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """List layer names, kinds and parameter counts; with --input also output shapes."""
    from vicinal.capture import layer_names
    from vicinal.checks import InputError
    from vicinal.cli.console import Voice
    from vicinal.cli.embed import model_arguments
    from vicinal.cli.models import load_model

    voice = Voice(as_json, quiet)
    loaded = load_model(
        model,
        weights=weights,
        arguments=model_arguments(model_arg),
        trust_pickle=trust_pickle,
    )
    if not loaded.hooks:
        raise InputError(f"{model} is a compiled program; its layers cannot be listened to.")
    for note in loaded.notes:
        voice.say(note)
    modules = dict(loaded.model.named_modules())
    shapes = _shapes(loaded.model, shape) if shape else {}
    rows = [
        {
            "name": name,
            "kind": type(modules[name]).__name__,
            "parameters": sum(p.numel() for p in modules[name].parameters()),
            "output": shapes.get(name),
        }
        for name in layer_names(loaded.model)
    ]
    width = max((len(str(row["name"])) for row in rows), default=4)
    for row in rows:
        out = "x".join(map(str, row["output"])) if row["output"] else ("not run" if shape else "")
        voice.say(f"{row['name']:<{width}}  {row['kind']:<20} {row['parameters']:>12,}  {out}")
    voice.result(rows)


def _shapes(model: object, text: str) -> dict[str, list[int]]:
    """The output shape of each layer for one input of zeros, behind the batch dimension."""
    import torch
    from torch import nn

    from vicinal.capture import evaluating, tracing
    from vicinal.checks import InputError

    assert isinstance(model, nn.Module)
    try:
        size = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        raise InputError(f"--input must be whole numbers like 3,224,224, got {text!r}.") from None
    with tracing(model) as ran:
        try:
            with evaluating(model), torch.no_grad():
                model(torch.zeros(1, *size))
        except Exception as error:
            reached = ", ".join(list(ran)[-3:]) or "none"
            raise InputError(
                f"the model failed on an input of shape (1, {', '.join(map(str, size))}): {error}. "
                f"Last layers reached: {reached}."
            ) from None
    return {name: list(output.shape[1:]) for name, output in ran.items()}
