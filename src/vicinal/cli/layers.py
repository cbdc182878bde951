"""``vicinal layers``: the names of a model's layers, and what they put out for one input."""

from __future__ import annotations

import math
import re

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from vicinal.capture import evaluating, layer_names, tracing
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.models import model_of
from vicinal.cli.user_code import described
from vicinal.cli.verbs import LayersOptions


def run(options: LayersOptions) -> None:
    """Load the model and print one line per layer."""
    console = Console(options.as_json, options.quiet)
    loaded = model_of(options.model, options, console)
    if not loaded.hooks:
        raise InputError(
            f"{options.model} is a compiled program; its layers cannot be listened to."
        )
    modules = dict(loaded.model.named_modules())
    shapes = {} if options.shape is None else _shapes(loaded.model, options.shape)
    if any(map(is_lazy, loaded.model.parameters())):
        why = f"{options.model} has lazy layers, which have no size before a first input"
        raise InputError(f"{why}. Give its shape: --input 3,224,224.")
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
    absent = "not run" if options.shape else ""
    for row in rows:
        out = "x".join(map(str, row["output"])) if row["output"] else absent
        console.print(f"{row['name']:<{width}}  {row['kind']:<20} {row['parameters']:>12,}  {out}")
    console.result(rows)


def _shapes(model: nn.Module, text: str) -> dict[str, list[int]]:
    """The output shape of each layer for one input of zeros, behind the batch dimension."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}([,x][1-9][0-9]{0,5})*", text.replace(" ", "")):
        raise InputError(f"--input must be whole numbers like 3,224,224, got {text!r}.")
    size = [int(part) for part in text.replace("x", ",").split(",")]
    if math.prod(size) > 2**30:
        raise InputError(f"--input {text} is too large: {math.prod(size):,} numbers.")
    with tracing(model) as ran:
        try:
            with evaluating(model), torch.no_grad():
                model(torch.zeros(1, *size))
        except (Exception, SystemExit) as error:
            reached = ", ".join(list(ran)[-3:]) or "none"
            shape = f"(1, {', '.join(map(str, size))})"
            raise InputError(
                f"the model failed on an input of shape {shape}: {described(error)}. "
                f"Last layers reached: {reached}."
            ) from None
    return {name: list(output.shape[1:]) for name, output in ran.items()}
