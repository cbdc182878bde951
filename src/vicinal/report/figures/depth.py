"""How mixed the classes are layer by layer, and over training, as a share of chance.

Each layer has its own temperature and so its own scale: what can be compared is the ratio to what
shuffled labels would give, 0 where the classes are apart and 1 where they are mixed.
"""

from __future__ import annotations

from vicinal.audits.sections import Layer
from vicinal.report.svg import Figure, Plot, ticks
from vicinal.report.words import count, decimal, name, percent, points

ROW = 26


def share(value: float | None, chance: float) -> float | None:
    """Of the chance level of the same layer, now or at a checkpoint."""
    return None if value is None or chance <= 0 else value / chance


def layers(record: tuple[Layer, ...]) -> Figure:
    """The ratio to chance of each layer, first to last, with its interval."""
    shares = [share(layer.entanglement, layer.chance) or 0.0 for layer in record]
    errors = [share(layer.se, layer.chance) or 0.0 for layer in record]
    most = max(a + 2 * e for a, e in zip(shares, errors, strict=True)) * 1.12
    most = 1.05 if most > 0.5 else max(most, 0.01)  # chance itself is shown where it is near
    edge = 16 + 7.8 * max(len(name(layer.name, 26)) for layer in record)
    plot = Plot((0, most), (0, len(record)), 540, 50 + ROW * len(record), int(edge), 64, 8, 40)
    for at, (layer, value, error) in enumerate(zip(record, shares, errors, strict=True)):
        y = len(record) - at - 0.5
        plot.text(edge - 8, plot.sy(y) + 4, name(layer.name, 26), "tick end")
        plot.segment((plot.left, plot.sy(y)), (plot.width - plot.right, plot.sy(y)), "grid")
        plot.bar((0, value), (y - 0.28, y + 0.28), "soft", 0)
        if error:
            plot.reach(y, value - 2 * error, value + 2 * error)
        plot.dot(value, y, "main")
        plot.text(plot.width - plot.right + 8, plot.sy(y) + 4, percent(value), "tick")
    if most > 1:
        plot.line([(1, 0), (1, len(record))], "ideal")
    plot.bottom_axis(ticks(0, most), lambda v: points(v, 1 if most < 0.05 else 0), "% of chance")
    return Figure(
        "layers",
        "How mixed the classes are, layer by layer",
        "Soft nearest neighbor loss of each layer at its own temperature, as a share of what "
        "shuffled labels would give; first layer on top. 0: every class by itself. 100: no trace "
        "of the classes. Lines: ± 2 standard errors (jackknife over groups of rows).",
        plot.draw("Entanglement of each layer as a share of chance", "wide"),
        ("layer", "share of chance", "±", "entanglement", "±", "chance", "T", "distance", "n"),
        [
            [
                *(layer.name, percent(share(layer.entanglement, layer.chance))),
                *(percent(share(layer.se, layer.chance)), decimal(layer.entanglement, 4)),
                *(decimal(layer.se, 4), decimal(layer.chance, 3)),
                "∞" if layer.temperature is None else f"{layer.temperature:.3g}",
                *(layer.metric, count(layer.n)),
            ]
            for layer in record
        ],
    )


def layer_history(record: tuple[Layer, ...]) -> Figure | None:
    """The same by checkpoint: the deeper the layer, the more classes part over training."""
    logged = [layer for layer in record if len(layer.steps) > 1]
    if not logged:
        return None
    first = min(layer.steps[0] for layer in logged)
    last = max(layer.steps[-1] for layer in logged)
    shares = [[share(v, layer.history_chance) or 0.0 for v in layer.history] for layer in logged]
    paths = [[*zip(layer.steps, s, strict=True)] for layer, s in zip(logged, shares, strict=True)]
    most = max(v for path in paths for _, v in path) * 1.1 or 0.01
    plot = Plot((first, last), (0, most), 540, 270, 44, 140, 26, 40)
    plot.left_axis(ticks(0, most), lambda v: points(v, 1 if most < 0.05 else 0), "% of chance")
    steps = [tick for tick in ticks(first, last) if tick == int(tick)]
    plot.bottom_axis(steps, lambda v: f"{v:g}", "checkpoint")
    for i, path in enumerate(paths):
        plot.line(path, f"n{i % 7}")
    # Names in the order in which the lines end, each beside a piece of its line.
    for at, i in enumerate(sorted(range(len(paths)), key=lambda i: -paths[i][-1][1])):
        y = 30 + at * min(16, 200 / len(paths))
        plot.segment((plot.width - 134, y), (plot.width - 116, y), f"line n{i % 7}")
        plot.text(plot.width - 110, y + 4, name(logged[i].name, 14), "tick")
    return Figure(
        "layer-history",
        "Entanglement over training",
        f"Every layer at every checkpoint, on the same {count(logged[0].history_n)} rows, as a "
        "share of chance; their standard errors are in the table.",
        plot.draw("Entanglement per layer over checkpoints", "wide"),
        ("layer", "checkpoint", "share of chance", "±", "entanglement"),
        [
            [
                *(layer.name, count(s), percent(share(v, layer.history_chance))),
                *(percent(share(e, layer.history_chance)), decimal(v, 4)),
            ]
            for layer in logged
            for s, v, e in zip(layer.steps, layer.history, layer.history_se, strict=True)
        ],
    )
