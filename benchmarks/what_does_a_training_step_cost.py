"""What does a whole training step cost with our losses, against plain cross-entropy?

ResNet-20 on 32 x 32 pictures, forward, backward and SGD: cross-entropy alone; with the soft nearest
neighbor loss at four layers by `LayerwiseLoss`, of pooled activations and of all of them; the same
by the dense formula (at batch 4096 of pooled ones alone, once after a warm-up). And soft-target
InfoNCE of MixUp targets at 1,000 classes, against the step with cross-entropy of the mixed targets
and with the paper's listing (its n² c scores: at batch 64).

At batch 4096 also by themselves, on random activations: a cross-entropy step takes eight times that
of batch 512 there, and 8 GB.

The floor of whole activations is measured beside them: for each layer the products of half of the
pairs and the one product of the gradient, 3 n² d operations, which no exact loss of all pairs can
do without, by the quicker of torch's two libraries and with nothing else around them.

One thread, CPU time; "extra" is what a step costs beyond that of cross-entropy, in its units.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.runner import Measured, measure, save
from benchmarks.what_does_soft_target_infonce_cost import listing
from vicinal.losses import (
    LayerwiseLoss,
    SoftNearestNeighborLoss,
    info_nce,
    mixup,
    soft_target_cross_entropy,
)
from vicinal.neighbors.product import product

QUESTION = "what_does_a_training_step_cost"
POOLED = {f"pooled.{i}": -0.1 for i in range(4)}
FLOOR = "the products of all of them alone"
WHOLE = {f"stages.{i}": -0.1 for i in range(4)}


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        short = nn.Conv2d(width, out, 1, stride, bias=False)
        self.short = nn.Identity() if width == out else short

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(h)) + self.short(x))


class ResNet20(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        stages = [
            nn.Sequential(Block(a, b, s), Block(b, b, 1), Block(b, b, 1)) for a, b, s in widths
        ]
        self.stages = nn.ModuleList([stem, *stages])
        pool = [nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()) for _ in range(4)]
        self.pooled = nn.ModuleList(pool)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        for stage, pool in zip(self.stages, self.pooled, strict=True):
            x = stage(x)
            h = pool(x)
        return self.head(h)


def dense(x: Tensor, y: Tensor) -> Tensor:
    """The soft nearest neighbor loss as one would write it."""
    x = x.flatten(1)
    squares = x.square().sum(1)
    d = (squares[:, None] + squares - 2 * x @ x.T).clamp_min(0)
    s = (-d / 100).masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    own = s.masked_fill(y[:, None] != y, -torch.inf)
    return (torch.logsumexp(s, 1) - torch.logsumexp(own, 1)).mean()


def floor(batch: int) -> Callable[[], None]:
    """The products that whole activations need, alone: half of the pairs, and the gradient."""
    layers = [torch.randn(batch, width) for width in (16384, 16384, 8192, 4096)]
    slopes, stripes = torch.randn(batch, batch), range(0, batch, 128)

    def call() -> None:
        for rows in layers:
            for i in stripes:
                product(rows[i : i + 128], rows[i:])
            product(slopes, rows.T)

    return call


def stepping(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def entangled(batch: int, forms: dict[str, dict[str, float]]) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    model = ResNet20(10)
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10

    def with_layers(loss: Callable[[Tensor, Tensor], Tensor], layers: dict[str, float]):
        layerwise = LayerwiseLoss(loss, layers)

        def total() -> Tensor:
            with layerwise.watch(model) as activations:
                logits = model(x)
            return F.cross_entropy(logits, y) + layerwise(activations, y)

        return total

    calls = {"cross-entropy": stepping(model, lambda: F.cross_entropy(model(x), y))}
    ours = SoftNearestNeighborLoss(temperature=100.0)
    for form, layers in forms.items():
        calls[f"with SNNL, {form}"] = stepping(model, with_layers(ours, layers))
        calls[f"with dense SNNL, {form}"] = stepping(model, with_layers(dense, layers))
    return calls


def mixed(batch: int, listed: bool) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    classes, model = 1000, ResNet20(1000)
    x, y = torch.randn(batch, 3, 32, 32), torch.arange(batch) % classes
    x, targets = mixup(x, y, 0.2, generator=torch.Generator().manual_seed(0))
    calls = {
        "cross-entropy": lambda: soft_target_cross_entropy(model(x), targets),
        "soft-target InfoNCE": lambda: info_nce(model(x), targets),
    }
    if listed:
        rows = F.one_hot(targets.a, classes) * targets.lam.reshape(-1, 1)
        rows = rows + F.one_hot(targets.b, classes) * (1 - targets.lam.reshape(-1, 1))
        noise = torch.full((classes,), 1 / classes)
        calls["the paper's listing"] = lambda: listing(model(x), rows.float(), noise)
    return {name: stepping(model, loss) for name, loss in calls.items()}


def alone(batch: int) -> dict[str, Callable[[], None]]:
    """The losses without a network."""
    torch.manual_seed(0)
    hidden = [torch.randn(batch, width, requires_grad=True) for width in (16, 16, 32, 64)]
    logits, y = torch.randn(batch, 1000, requires_grad=True), torch.arange(batch) % 10
    _, targets = mixup(torch.zeros(batch, 1), torch.arange(batch) % 1000, 0.2)
    ours = SoftNearestNeighborLoss(temperature=100.0)
    return {
        "SNNL, pooled": lambda: torch.stack([ours(h, y) for h in hidden]).sum().backward(),
        "soft-target InfoNCE": lambda: info_nce(logits, targets).backward(),
        "cross-entropy": lambda: soft_target_cross_entropy(logits, targets).backward(),
    }


def shown(title: str, rows: dict[str, Measured]) -> dict[str, object]:
    base = rows["cross-entropy"].cpu
    extra = {name: row.cpu / base - 1 for name, row in rows.items() if name != "cross-entropy"}
    if FLOOR in rows:
        extra[FLOOR] += 1
    print(f"{title}: cross-entropy {base:.2f} s;", {k: f"{v:+.1%}" for k, v in extra.items()})
    return {**rows, "extra": extra}


def by_themselves(batch: int, step: float) -> dict[str, object]:
    """What the losses alone cost in cross-entropy steps; InfoNCE beyond its cross-entropy."""
    rows = measure(alone(batch), repeats=2)
    nce = rows["soft-target InfoNCE"].cpu - rows["cross-entropy"].cpu
    extra = {"SNNL, pooled": rows["SNNL, pooled"].cpu / step, "soft-target InfoNCE": nce / step}
    print(f"losses alone, batch {batch}:", {k: f"{v:+.1%}" for k, v in extra.items()})
    return {**rows, "extra": extra}


def main(
    quick: bool = False, data: Path | None = None, batches: tuple[int, ...] = (512, 4096)
) -> None:
    torch.set_num_threads(1)
    results: dict[str, dict[str, object]] = {}
    for batch in (16,) if quick else (64, 512):
        rows = measure(mixed(batch, batch <= 64), repeats=1 if quick else 3, warmup=1)
        results[f"MixUp, 1000 classes, batch {batch}"] = shown(f"MixUp, batch {batch}", rows)
    for batch in (16,) if quick else batches:
        forms = {"pooled": POOLED} if batch > 512 else {"pooled": POOLED, "all of them": WHOLE}
        repeats = 1 if quick or batch > 512 else 3
        calls = entangled(batch, forms)
        if batch <= 512:
            calls[FLOOR] = floor(batch)
        rows = measure(calls, repeats=repeats, warmup=1)
        results[f"SNNL at four layers, batch {batch}"] = shown(f"batch {batch}", rows)
        if batch == 512:
            results["losses alone, batch 4096"] = by_themselves(4096, rows["cross-entropy"].cpu * 8)
        if not quick:
            save(QUESTION, results)


if __name__ == "__main__":
    main()
