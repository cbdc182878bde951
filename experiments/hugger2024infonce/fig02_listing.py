"""Figure 2: the listing of soft-target InfoNCE and the library's function are one loss.

Claim (Hugger 2024, section 3.2): the listing is the loss. It forms all pairs of rows and targets,
(n, n, classes). Eq. 5 and 30 divide by the temperature twice; the listing, once, is right. It comes
with no numbers.

Here: value and gradient of both, in float64, and the ratio of their CPU times.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from experiments.data import Source
from experiments.draw import bars, tidy
from experiments.record import Claim
from experiments.runner import main
from torch import Tensor, nn

from vicinal.losses import info_nce


@dataclass(frozen=True)
class Settings:
    rows: tuple[int, ...] = (64, 256, 512)
    classes: int = 200
    temperature: float = 0.7
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PRESETS = {
    "quick": Settings(rows=(32, 64), classes=20, seeds=(0,)),
    "cpu": Settings(),
    "paper": Settings(rows=(256, 1024)),
}
THEIRS: dict[str, float] = {}
SMALLER = "nothing: an identity"


def listing(logits: Tensor, targets: Tensor, noise_probs: Tensor, T: float) -> Tensor:
    """Figure 2 as printed, but for `.cuda()`."""
    N, K = targets.shape
    log_noise = torch.log(noise_probs).unsqueeze(0)
    targets = targets.repeat(N, 1).unsqueeze(1).reshape(N, N, K)
    logits = (logits / T) - log_noise
    logits = (logits.unsqueeze(1) * targets).sum(-1)
    logits = logits - (torch.max(logits, dim=1, keepdim=True)[0]).detach()
    labels = torch.arange(N, dtype=torch.long)
    return nn.CrossEntropyLoss()(logits, labels)


def measured(loss, logits: Tensor) -> tuple[float, Tensor, float]:
    """Value, gradient, CPU seconds (the least of three)."""
    seconds = []
    for _ in range(3):
        z, start = logits.clone().requires_grad_(), time.process_time()
        value = loss(z)
        value.backward()
        seconds.append(time.process_time() - start)
    return float(value.detach()), z.grad, max(min(seconds), 1e-6)


def run(settings: Settings, seed: int, source: Source) -> dict:
    draws, found = torch.Generator().manual_seed(seed), {}
    for n in settings.rows:
        z = torch.randn(n, settings.classes, generator=draws, dtype=torch.float64)
        targets = torch.randn(n, settings.classes, generator=draws, dtype=torch.float64).softmax(1)
        eta = torch.rand(settings.classes, generator=draws, dtype=torch.float64).softmax(0)
        how = {"noise": eta, "temperature": settings.temperature}
        ours = measured(lambda x, t=targets, h=how: info_nce(x, t, **h), z)
        listed = measured(lambda x, t=targets, e=eta: listing(x, t, e, settings.temperature), z)
        found[f"n = {n}"] = {
            "value": abs(ours[0] - listed[0]),
            "gradient": float((ours[1] - listed[1]).abs().max()),
            "times": listed[2] / ours[2],
        }
    return {"at": found}


def claims(rows: list[dict]) -> list[Claim]:
    told = []
    for n in rows[0]["at"]:
        seen = [row["at"][n] for row in rows]
        for what in ("value", "gradient"):
            agree = [-math.log10(max(s[what], 1e-16)) for s in seen]
            told.append(Claim(f"{n}: the {what} agrees in over 10 digits", agree, needs=10.0))
        faster = [s["times"] for s in seen]
        told.append(Claim(f"{n}: times faster than the listing", faster, needs=1.0, beyond=True))
    return told


def draw(rows: list[dict], figure) -> None:
    ax = figure.subplots()
    at = rows[0]["at"]
    bars(ax, {n: {"times": [row["at"][n]["times"] for row in rows]} for n in at})
    ax.set_yscale("log")
    tidy(ax, "CPU time of the listing / of the library, forward and backward, float64")


if __name__ == "__main__":
    main(__file__)
