"""What was done for each layer: the rule, its FLOPs, its bytes; and what pairs will take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vicinal.neighbors.product import product_rate
from vicinal.similarity.plan import opens
from vicinal.similarity.rules import rule_for

if TYPE_CHECKING:
    from vicinal.similarity.engine import Engine


@dataclass(frozen=True)
class LayerExplanation:
    """One factor. ``flops``: of the trace kernel per pair; ``bytes``: per sample; None before
    first use. ``forming``: FLOPs per sample to carry out sums over places first.
    """

    layer: str
    parameters: tuple[str, ...]
    rule: str
    flops: int | None
    bytes: int | None
    forming: int = 0


@dataclass(frozen=True)
class GramCost:
    """What a Gram matrix is expected to take: FLOPs beside the forward and backward passes of a
    capture, the bytes of all gradients, and seconds of CPU time (None before first use).
    """

    flops: float
    bytes: int
    seconds: float | None


@dataclass(frozen=True)
class Explanation:
    """The layers in the order of the parameters; prints as a table."""

    layers: tuple[LayerExplanation, ...]
    budget: int = 2 << 30
    capture_seconds: float | None = None  # of one sample: about one forward and d backwards

    def gram(self, samples: int) -> GramCost:
        """The expected cost of k^C of ``samples`` inputs with one another, after first use.

        >>> layer = LayerExplanation("head", ("head.weight",), "kronecker", 100, 40)
        >>> Explanation((layer,), budget=200).gram(10)
        GramCost(flops=5000.0, bytes=400, seconds=None)
        """
        pairs = samples * samples / 2 * sum(one.flops or 0 for one in self.layers)
        flops = pairs + samples * sum(one.forming for one in self.layers)
        each = sum(one.bytes or 0 for one in self.layers)
        seconds = None
        if self.capture_seconds is not None:
            seconds = samples * self.capture_seconds + flops / product_rate()
        return GramCost(flops, samples * each, seconds)

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
        if all(one.bytes is not None for one in self.layers):
            each = sum(one.bytes or 0 for one in self.layers)
            flops = sum(one.flops or 0 for one in self.layers)
            held = self.budget // 2 // max(each, 1)
            lines.append(
                f"together {flops:,} FLOPs/pair and {each:,} bytes/sample: a Gram matrix of up to "
                f"{held:,} samples holds all in memory"
            )
        if self.capture_seconds is not None:
            cost = self.gram(1000)
            lines.append(
                f"a Gram matrix of 1,000 samples: about {cost.seconds:.2g} s of CPU time and "
                f"{cost.bytes / 2**20:,.0f} MiB of gradients"
            )
        return "\n".join(lines)


def explain(engine: Engine, budget: int) -> Explanation:
    """From the last capture; before the first, what the types of the layers promise."""
    if not engine.known:
        return Explanation(tuple(_promised(engine)), budget)
    found = [
        LayerExplanation(
            part.layer,
            part.parameters,
            part.rule if engine.reached.intersection(part.parameters) else "unreached",
            part.factor.pair_flops(),
            part.factor.nbytes // max(len(part.factor), 1),
            part.factor.form_flops(),
        )
        for part in engine.known.values()
    ]
    named = {name for part in engine.known.values() for name in part.parameters}
    unreached = [name for name in engine.selected if name not in named]
    found += [LayerExplanation(n.rpartition(".")[0], (n,), "unreached", 0, 0) for n in unreached]
    return Explanation(tuple(found), budget, engine.seconds)


def _promised(engine: Engine) -> Iterator[LayerExplanation]:
    for layer, module in engine.model.named_modules():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        names = tuple(f"{layer}.{name}" if layer else name for name in own)
        names = tuple(name for name in names if name in engine.selected)
        if names:
            exact = "exact, chosen by FLOPs at first use"
            rule = exact if opens(module) or rule_for(module) else "vmap(vjp), or by copies"
            yield LayerExplanation(layer, names, rule, None, None)
