"""Figure 24: the first kernels of an entangled net are noisier.

Claim (Frosst 2019, last figure): first-layer kernels of nets whose soft nearest neighbor loss was
maximized look noisier than those of plain nets. No numbers are printed.

Here: the nets of Figure 14, 5x5 kernels; noise is the share of a kernel's energy outside the lowest
3x3 coefficients of its cosine transform. The kernels before training stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from experiments import nets
from experiments.data import Source
from experiments.draw import sheet, tidy
from experiments.frosst2019snnl.entangled import QUICK, Recipe, net
from experiments.record import Claim, difference
from experiments.runner import main
from scipy.fft import dctn

KINDS = ("start", "plain", "entangled")


@dataclass(frozen=True)
class Settings:
    data: tuple[str, ...] = ("mnist", "fashion_mnist")
    recipe: Recipe = field(default_factory=Recipe)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(("digits",), QUICK, (0,)),
    "cpu": Settings(),
    "paper": Settings(recipe=Recipe(59_000, 20, 64)),
}
THEIRS: dict[str, float] = {}
SMALLER = "16 kernels a net, 10,000 rows"
WHY = "training smooths the kernels of both nets; the entangled one keeps more of its random start"


def noise(kernels: np.ndarray) -> float:
    """Share of energy outside the lower half of frequencies, mean over kernels."""
    energy, low = dctn(kernels, axes=(1, 2), norm="ortho") ** 2, (kernels.shape[-1] + 1) // 2
    return float(1 - (energy[:, :low, :low].sum((1, 2)) / energy.sum((1, 2))).mean())


def run(settings: Settings, seed: int, source: Source) -> dict:
    found: dict = {}
    for data in settings.data:
        with nets.seeded(seed):
            start = nets.cnn(8 if data == "digits" else 28, width=settings.recipe.width)
        models = {k: net(source, data, settings.recipe, k, seed) for k in KINDS[1:]}
        kernels = {
            kind: model[0].weight.detach().cpu().numpy()[:, 0]
            for kind, model in ({"start": start} | models).items()
        }
        found[data] = {kind: {"noise": noise(w)} for kind, w in kernels.items()}
        for kind, w in kernels.items():
            if seed == settings.seeds[0]:
                found[data][kind]["kernels"] = w[:16].round(3)
    return found


def claims(rows: list[dict]) -> list[Claim]:
    sets = [d for d in ("mnist", "fashion_mnist", "digits") if d in rows[0]]
    told = "share of high frequencies"
    made = [
        Claim(f"{d}: {told}, entangled − plain",
              difference(rows, f"{d}.entangled.noise", f"{d}.plain.noise"))
        for d in sets
    ]  # fmt: skip
    return made + [
        Claim(f"{d}: {told}, entangled − start", beyond=True,
              values=difference(rows, f"{d}.entangled.noise", f"{d}.start.noise"))
        for d in sets
    ]  # fmt: skip


def draw(rows: list[dict], figure) -> None:
    sets = [d for d in ("mnist", "fashion_mnist", "digits") if d in rows[0]]
    figure.set_figheight(1.0 * len(KINDS))
    figure.suptitle("first kernels, and their share of high frequencies", fontsize=9)
    axes = figure.subplots(len(KINDS), len(sets), squeeze=False)
    for column, data in enumerate(sets):
        for line, kind in enumerate(KINDS):
            held = np.array(rows[0][data][kind]["kernels"])
            held = (held / np.abs(held).max((1, 2), keepdims=True) + 1) / 2
            ax = axes[line, column]
            ax.imshow(sheet(held, 8), cmap="gray", vmin=0, vmax=1)
            share = np.mean([row[data][kind]["noise"] for row in rows])
            tidy(ax, f"{data}, {kind}: {share:.2f}").set_axis_off()


if __name__ == "__main__":
    main(__file__)
