"""What do NT-Xent, triplets and the other pair losses cost, against pytorch-metric-learning?

One thread, CPU time and peak memory of forward and backward, d = 128. Values agree to rounding. And
all triplets at n = 8192, four billion of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as pml
from torch import Tensor

from benchmarks.runner import measure, print_table, save
from benchmarks.what_does_soft_target_infonce_cost import own_pages, with_memory
from vicinal import losses

Loss = Callable[[Tensor, Tensor], Tensor]
PLAIN = distances.LpDistance(normalize_embeddings=False)
DOT = distances.DotProductSimilarity(normalize_embeddings=False)
RIVALS: dict[str, tuple[Loss, Loss, int]] = {  # ours, theirs, samples per class
    "NT-Xent": (losses.NTXentLoss(), pml.NTXentLoss(temperature=0.1), 2),
    "all triplets": (losses.TripletLoss(), pml.TripletMarginLoss(margin=0.2, distance=PLAIN), 8),
    "supervised contrastive": (
        losses.SupervisedContrastiveLoss(),
        pml.SupConLoss(temperature=0.1),
        8,
    ),
    "N-pairs": (losses.NPairsLoss(), pml.NPairsLoss(distance=DOT), 2),
    "contrastive": (losses.ContrastiveLoss(), pml.ContrastiveLoss(distance=PLAIN), 8),
    "multi-similarity": (losses.MultiSimilarityLoss(), pml.MultiSimilarityLoss(), 8),
    "circle": (losses.CircleLoss(), pml.CircleLoss(), 8),
}


def step(loss: Loss, n: int, per_class: int) -> Callable[[], Tensor]:
    x = torch.randn(n, 128, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.arange(n // per_class).repeat(per_class)

    def run() -> Tensor:
        x.grad = None
        value = loss(x, labels)
        value.backward()
        return value.detach()

    return run


def pairs(name: str, n: int) -> dict[str, Callable[[], Tensor]]:
    ours, theirs, per_class = RIVALS[name]
    return {
        "pytorch-metric-learning": step(theirs, n, per_class),
        "vicinal": step(ours, n, per_class),
    }


def main(quick: bool = False, data: Path | None = None) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    n = 64 if quick else 512
    times, results, facts = {}, {}, {}
    for name in RIVALS:
        both = measure(pairs(name, n), repeats=2, warmup=0)
        ours = {"vicinal": pairs(name, n)["vicinal"]}
        times[name] = {**both, **measure(ours, repeats=5 if quick else 30)}
    with own_pages():
        for name in RIVALS:
            rows = with_memory(times[name], measure(pairs(name, n), repeats=1, warmup=0))
            case = f"{name}, n={n}"
            print_table(case, rows, against="pytorch-metric-learning")
            results[case] = rows
            facts[case] = {
                "faster": rows["pytorch-metric-learning"].cpu / rows["vicinal"].cpu,
                "leaner": rows["pytorch-metric-learning"].peak_mb
                / max(rows["vicinal"].peak_mb, 0.1),
            }
        large = 512 if quick else 8192
        row = measure({"vicinal": step(losses.TripletLoss(), large, 64)}, repeats=1, warmup=0)
        print_table(f"all triplets, n={large}", row, against="vicinal")
        results[f"all triplets, n={large}"] = row
    if not quick:
        save("what_do_contrastive_losses_cost", results, ratios=facts)
    torch.set_num_threads(threads)
