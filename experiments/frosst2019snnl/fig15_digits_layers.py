"""Figure 15's measure on digits: entanglement per layer, with SNNL ignored, minimized, maximized.

Claims: without the loss, the hidden layers stay entangled and the last one is not; minimizing the
loss on the hidden layers disentangles them; maximizing it entangles them more while the network
still classifies (the paper's main result about hidden layers).

    python -m experiments.frosst2019snnl.fig15_digits_layers --preset quick
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vicinal.capture import capture
from vicinal.losses import LayerwiseLoss, SoftNearestNeighborLoss, soft_nearest_neighbor_loss
from vicinal.neighbors import chance_level, optimal_temperature

RESULTS = Path(__file__).parent / "results"
LAYERS = ("1", "3", "4")  # two hidden layers after their ReLU, and the logits
# The weight of the loss on each hidden layer; negative maximizes, where more drowns the classes.
PULLS = {"cross-entropy alone": 0.0, "+ SNNL minimized": 0.4, "+ SNNL maximized": -0.1}


@dataclass(frozen=True)
class Settings:
    width: int = 64
    epochs: int = 15
    batch: int = 130  # ten of them: no batch is too small to have peers
    rate: float = 3e-3
    seed: int = 0


PRESETS = {"quick": Settings(epochs=12), "cpu": Settings(width=128, epochs=40)}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    return x[:1300], y[:1300], x[1300:], y[1300:]


def train(pull: float, settings: Settings, x: Tensor, y: Tensor) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        w = settings.width
        model = nn.Sequential(
            nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 10)
        )
    generator = torch.Generator().manual_seed(settings.seed)
    # Cosine distances: a maximized loss cannot win by shrinking all activations.
    parts = {
        name: SoftNearestNeighborLoss(0.1, learn_temperature=True, metric="cosine",
                                      entangle="min" if pull >= 0 else "max")
        for name in ("1", "3")
    }  # fmt: skip
    hidden = LayerwiseLoss(parts, layers=dict.fromkeys(parts, abs(pull)))
    temperatures = {"params": hidden.parameters(), "lr": 0.1}  # they follow the network at once
    optimizer = torch.optim.Adam([{"params": model.parameters()}, temperatures], lr=settings.rate)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(settings.batch):
            with hidden.watch(model) as activations:
                loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            (loss + hidden(activations, y[rows])).backward()
            optimizer.step()
    return model


def run(settings: Settings) -> dict[str, dict[str, float]]:
    x, y, x_test, y_test = digits()
    results = {}
    for name, pull in PULLS.items():
        model = train(pull, settings, x, y)
        row = {"accuracy": float((model(x_test).argmax(1) == y_test).float().mean())}
        layers = capture(model, (x_test, y_test), list(LAYERS))
        for layer in LAYERS:
            t = optimal_temperature(layers[layer], y_test, metric="cosine")
            loss = soft_nearest_neighbor_loss(layers[layer], y_test, temperature=t, metric="cosine")
            row[f"layer {layer}"] = float(loss) / chance_level(y_test)
        results[name] = row
    return results


def claims(results: dict[str, dict[str, float]]) -> dict[str, bool]:
    plain, low, high = results.values()
    return {
        "cross-entropy alone: the first hidden layer is more entangled than the logits":
            plain["layer 1"] > plain["layer 4"],
        "minimizing disentangles both hidden layers":
            all(low[layer] < plain[layer] for layer in ("layer 1", "layer 3")),
        "maximizing entangles both hidden layers":
            all(high[layer] > plain[layer] for layer in ("layer 1", "layer 3")),
        "the network that entangles still classifies (within 5 points)":
            high["accuracy"] > plain["accuracy"] - 0.05,
    }  # fmt: skip


def show(results: dict[str, dict[str, float]]) -> None:
    print("entanglement (SNNL at its best temperature / chance) on held-out digits")
    print(f"{'':<22}" + "".join(f"{key:>12}" for key in results["cross-entropy alone"]))
    for name, row in results.items():
        print(f"{name:<22}" + "".join(f"{value:>12.3f}" for value in row.values()))
    for claim, holds in claims(results).items():
        print(f"{'holds  ' if holds else 'differs'}  {claim}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    preset = parser.parse_args().preset
    results = run(PRESETS[preset])
    show(results)
    record = {"settings": asdict(PRESETS[preset]), "results": results, "claims": claims(results)}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"fig15_digits_layers.{preset}.json"
    path.with_suffix(".partial").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".partial").replace(path)


if __name__ == "__main__":
    main()
