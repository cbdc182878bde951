"""What was done for each layer: the rule, its FLOPs, its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vicinal.similarity.rules import rule_for

if TYPE_CHECKING:
    from vicinal.similarity.engine import Engine


@dataclass(frozen=True)
class LayerExplanation:
    """One factor. ``flops``: of the trace kernel per pair; ``bytes``: per sample; None before
    first use.
    """

    layer: str
    parameters: tuple[str, ...]
    rule: str
    flops: int | None
    bytes: int | None


@dataclass(frozen=True)
class Explanation:
    """The layers in the order of the parameters; prints as a table."""

    layers: tuple[LayerExplanation, ...]

    def __iter__(self) -> Iterator[LayerExplanation]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("layer", "rule", "FLOPs/pair", "bytes/sample", "parameters")
        ]
        for one in self.layers:
            numbers = ("?" if v is None else f"{v:,}" for v in (one.flops, one.bytes))
            rows.append((one.layer, one.rule, *numbers, ", ".join(one.parameters)))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[4]]))
        return "\n".join(lines)


def explain(engine: Engine) -> Explanation:
    """From the last capture; before the first, what the types of the layers promise."""
    if not engine.known:
        return Explanation(tuple(_promised(engine)))
    found = [
        LayerExplanation(
            part.layer,
            part.parameters,
            part.rule if engine.reached.intersection(part.parameters) else "unreached",
            part.factor.pair_flops(),
            part.factor.nbytes // max(len(part.factor), 1),
        )
        for part in engine.known.values()
    ]
    named = {name for part in engine.known.values() for name in part.parameters}
    unreached = [name for name in engine.selected if name not in named]
    found += [LayerExplanation(n.rpartition(".")[0], (n,), "unreached", 0, 0) for n in unreached]
    return Explanation(tuple(found))


def _promised(engine: Engine) -> Iterator[LayerExplanation]:
    for layer, module in engine.model.named_modules():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        names = tuple(f"{layer}.{name}" if layer else name for name in own)
        names = tuple(name for name in names if name in engine.selected)
        if names:
            exact = "exact, chosen by FLOPs at first use"
            rule = exact if rule_for(module) else "vmap(vjp)"
            yield LayerExplanation(layer, names, rule, None, None)
