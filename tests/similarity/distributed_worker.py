"""What one process of a gloo group does: counts and kernels of its shard, results to a file."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from similarity.zoo import make
from vicinal.similarity import GradientKernel
from vicinal.similarity.distributed import distributed_gram, distributed_neighbors

ROWS = 11
SHARDS = [7, 4]  # uneven
BUDGET = 1 << 13  # bytes: a shard then travels in several blocks
CASES = {  # the network, what f is, and the shards
    "perceptron": ("perceptron", "logits", SHARDS),
    "shared and tied": ("called_twice", "logits", SHARDS),
    "words": ("language_model", "log_prob", SHARDS),
    "within classes": ("perceptron", "contrast", SHARDS),
    "nothing on one": ("perceptron", "logits", [ROWS, 0]),
}


def case(name):
    network, outputs, shards = CASES[name]
    model, x = make(network, n=ROWS)
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 1, 2, 2, 0, 2])  # class 2 is on one process only
    budget = BUDGET if outputs == "logits" else 2 << 30
    kernel = GradientKernel(model, outputs=outputs, memory_budget=budget)
    return kernel, x, labels, shards


def main(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", Path(folder, "store").as_uri(), rank=rank, world_size=world)
    out = {}
    for name in CASES:
        kernel, x, labels, shards = case(name)
        rows = slice(sum(shards[:rank]), sum(shards[: rank + 1]))
        data = (x[rows], labels[rows]) if kernel.within_class else x[rows]
        out[f"{name}/soft"] = distributed_neighbors(kernel, data)
        out[f"{name}/others"] = distributed_neighbors(kernel, data, include_self=False)
        out[f"{name}/gram"] = distributed_gram(kernel, data)
    save_file({k: v.detach().contiguous() for k, v in out.items()},
              Path(folder, f"rank{rank}.safetensors"))  # fmt: skip
    dist.destroy_process_group()
