"""``vicinal layers``: the names of a model's layers, and what they put out for one input."""

from __future__ import annotations

from vicinal.capture import layer_names
from vicinal.checks import InputError
from vicinal.cli.console import Console
from vicinal.cli.models import model_of
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
    shapes = _shapes(loaded.model, options.shape) if options.shape else {}
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


def _shapes(model: object, text: str) -> dict[str, list[int]]:
    """The output shape of each layer for one input of zeros, behind the batch dimension."""
    import torch
    from torch import Tensor, nn

    from vicinal.capture import evaluating
    from vicinal.checks import InputError

    assert isinstance(model, nn.Module)
    try:
        size = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        raise InputError(f"--input must be whole numbers like 3,224,224, got {text!r}.") from None
    seen: dict[str, list[int]] = {}
    handles = []

    def listener(name: str):  # type: ignore[no-untyped-def]  # a forward hook
        def hear(_module: object, _inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(first, Tensor):
                seen[name] = list(first.shape[1:])

        return hear

    try:
        handles = [m.register_forward_hook(listener(n)) for n, m in model.named_modules() if n]
        with evaluating(model, None), torch.no_grad():
            model(torch.zeros(1, *size))
    except Exception as error:
        reached = ", ".join(list(seen)[-3:]) or "none"
        raise InputError(
            f"the model failed on an input of shape (1, {', '.join(map(str, size))}): {error}. "
            f"Last layers reached: {reached}."
        ) from None
    finally:
        for handle in handles:
            handle.remove()
    return seen
