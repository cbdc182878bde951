"""Which architectures have exact gradient kernels, and at what cost?

Each network at n = 64 with d = 1 and 10 outputs: k^C and N_S as times of one forward and d backward
passes of the same batch, the peak of memory while the matrix is made, the share of parameters with
an exact rule, and the largest error of the kernel of eight samples against per-sample autograd,
both in float64. Hugging Face's networks have random weights and need `transformers`; without it
they are left out, by name.

On one thread, CPU time, the best of three after a warm-up.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.runner import RESULTS, measure, save
from vicinal.similarity import GradientKernel

QUESTION = "which_architectures_are_exact"
Data = Tensor | dict[str, Tensor]


def perceptron(d: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, d)
    )


def convolutional(d: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, d),
    )  # fmt: skip


class Encoder(nn.Module):
    """nn.TransformerEncoder, 4 layers of width 128."""

    def __init__(self, d: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


class Recurrent(nn.Module):
    """Two layers of width 128."""

    def __init__(self, kind: type[nn.RNNBase], d: int) -> None:
        super().__init__()
        self.cell = kind(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def tokens(n: int, dtype: torch.dtype) -> Data:
    ids = torch.randint(2, 1000, (n, 32), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def rows(*shape: int, name: str = "") -> Callable[[int, torch.dtype], Data]:
    def make(n: int, dtype: torch.dtype) -> Data:
        x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        return {name: x} if name else x

    return make


def architectures() -> dict[str, tuple[Callable[[int], nn.Module], Any]]:
    """Name -> (network of d outputs, its inputs)."""
    found: dict[str, tuple[Callable[[int], nn.Module], Any]] = {
        "MLP 784-512-512": (perceptron, rows(784)),
        "CNN 32-64": (convolutional, rows(1, 28, 28)),
        "TransformerEncoder 4x128": (Encoder, rows(32, 128)),
        "LSTM 2x128, 32 steps": (lambda d: Recurrent(nn.LSTM, d), rows(32, 64)),
        "GRU 2x128, 32 steps": (lambda d: Recurrent(nn.GRU, d), rows(32, 64)),
    }
    try:
        import transformers as hf
    except ImportError:
        print("transformers is not installed: BERT, ViT, GPT-2 and Llama are left out")
        return found
    size = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    size |= {"intermediate_size": 256}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    gpt = {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 1000, **ends}
    builders = {
        "BERT 4x128": lambda d: hf.BertForSequenceClassification(
            hf.BertConfig(vocab_size=1000, num_labels=d, **size)
        ),
        "GPT-2 4x128": lambda d: hf.GPT2ForSequenceClassification(
            hf.GPT2Config(num_labels=d, **gpt)
        ),
        "Llama 4x128": lambda d: hf.LlamaForSequenceClassification(
            hf.LlamaConfig(vocab_size=1000, num_labels=d, **size, **ends)
        ),
    }
    pixels = rows(3, 32, 32, name="pixel_values")
    found |= {name: (build, tokens) for name, build in builders.items()}
    found["ViT 4x128"] = (
        lambda d: hf.ViTForImageClassification(
            hf.ViTConfig(image_size=32, patch_size=8, num_labels=d, **size)
        ),
        pixels,
    )
    return found


def answer(model: nn.Module, data: Data) -> Tensor:
    out = model(data) if isinstance(data, Tensor) else model(**data)
    return getattr(out, "logits", out)


def error(model: nn.Module, make: Any) -> float:
    """Of k^I of eight samples, relative to its largest entry, in float64."""
    model = copy.deepcopy(model).double().eval()
    data = make(8, torch.float64)
    params, grads = [p for p in model.parameters() if p.requires_grad], []
    for i in range(8):
        one = (
            data[i : i + 1]
            if isinstance(data, Tensor)
            else {k: v[i : i + 1] for k, v in data.items()}
        )
        f = answer(model, one)[0]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        each = [torch.autograd.grad(v, params, **options) for v in f]
        grads.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in each]))
    plain = torch.stack(grads)
    exact = torch.einsum("nip,mip->nm", plain, plain) / plain.shape[1]
    found = GradientKernel(model).gram(data, kind="inner")
    return float((found - exact).abs().max() / exact.abs().max())


def row(build: Callable[[int], nn.Module], make: Any, n: int, d: int, repeats: int) -> dict:
    torch.manual_seed(0)
    model = build(d).eval()
    data, kernel = make(n, torch.float32), GradientKernel(model)
    params = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        y = answer(model, data)
        for j in range(d):
            torch.autograd.grad(y[:, j].sum(), params, retain_graph=j < d - 1, allow_unused=True)

    calls = {"step": step, "k^C": lambda: kernel.gram(data), "N_S": lambda: kernel.neighbors(data)}
    found = measure(calls, repeats=repeats)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    ruled = sum(
        sizes[name]
        for layer in kernel.explain()
        if "vjp" not in layer.rule and "sample by sample" not in layer.rule
        for name in layer.parameters
    )
    return {
        "step_cpu": found["step"].cpu,
        "k^C_times_step": found["k^C"].cpu / found["step"].cpu,
        "N_S_times_step": found["N_S"].cpu / found["step"].cpu,
        "peak_mb": found["k^C"].peak_mb,
        "ruled_share": ruled / sum(sizes.values()),
        "relative_error_float64": error(model, make),
    }


def earlier() -> dict[str, dict[str, object]]:
    """What is known: a row is written when it is measured, and stays until it is measured again."""
    path = RESULTS / f"{QUESTION}.json"
    return json.loads(path.read_text())["results"] if path.exists() else {}


def main(
    quick: bool = False,
    data: Path | None = None,
    outputs: tuple[int, ...] = (1, 10),
    repeats: int = 3,
) -> None:
    torch.set_num_threads(1)
    n, repeats = (4, 1) if quick else (64, repeats)
    results = earlier()
    print(f"{'':<28}{'d':>3}{'k^C':>8}{'N_S':>8}{'peak MB':>9}{'ruled':>8}{'error':>10}")
    for d in (1,) if quick else outputs:
        for name, (build, make) in architectures().items():
            found = row(build, make, n, d, repeats)
            results[f"{name}, d={d}"] = found
            print(
                f"{name:<28}{d:>3}{found['k^C_times_step']:>8.2f}{found['N_S_times_step']:>8.2f}"
                f"{found['peak_mb']:>9.0f}{found['ruled_share']:>8.1%}"
                f"{found['relative_error_float64']:>10.1e}",
                flush=True,
            )
            if not quick:
                save(QUESTION, results, n=n)


if __name__ == "__main__":
    main()
