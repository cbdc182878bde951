"""How fast is the exact gradient kernel k^C, against every way to get the same numbers?

One scalar output (right against rest, all pairs) and ten outputs (whitened trace), on a perceptron
784-512-512-10 and on a convolutional network of 0.8 M parameters, trained on the bundled digits.
Rivals: torch.func, a backward pass per sample, nngeometry, captum, and the pair loop of the
definition (some pairs, times their number). Then 2000 x 2000 against one forward and backward, the
share of the matrix-product rate, and the error of float32 against float64. Last a transformer of 4
layers over 32 tokens, against one forward and d backward passes and against a loop over samples.
``name=`` asks one of the three networks; the others keep what was measured before.

On one thread: threads that wait for each other at the end of every small operation count waiting as
CPU time, up to several times the work where other programs use the cores. Ours and torch.func run
in turn, the best of three; the other rivals run once, after a warm-up on a few samples.
"""

from __future__ import annotations

import copy
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.runner import RESULTS, Measured, gemm_rate, measure, print_table, save
from vicinal.similarity import GradientKernel
from vicinal.similarity.blocks import all_pairs


def digits(n: int) -> tuple[Tensor, Tensor]:
    """n digits of 28 x 28, each a little noisy so that none repeats."""
    raw = load_digits()
    pick = torch.arange(n) % len(raw.target)
    x = torch.tensor(raw.images, dtype=torch.float32)[pick, None] / 16
    x = F.interpolate(x, size=(28, 28), mode="bilinear")
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    return x + 0.1 * noise, torch.tensor(raw.target)[pick]


def perceptron() -> nn.Module:
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def trained(model: nn.Module, epochs: int) -> nn.Module:
    x, y = digits(1797)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def odds(output: Tensor, target: Tensor) -> Tensor:
    """The right class against the rest, between samples of any class."""
    rest = output.scatter(1, target[:, None], float("-inf"))
    return output.gather(1, target[:, None]) - rest.logsumexp(1, keepdim=True)


def cosines(gradients: Tensor) -> Tensor:
    unit = F.normalize(gradients, dim=1)
    return unit @ unit.T


def whitened_trace(gram: Tensor) -> Tensor:
    """k^C from K (n, n, d, d): what every rival must do after its own work."""
    n, _, d, _ = gram.shape
    values, vectors = torch.linalg.eigh(gram[range(n), range(n)].double())
    root = ((vectors * values.clamp_min(1e-12).rsqrt()[:, None]) @ vectors.mT).to(gram.dtype)
    return torch.einsum("nij,nmjk,mki->nm", root, gram, root) / d


# ------------------------------------------------------------------ one output


def by_backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    f = odds(model(x), y)[:, 0]
    rows = [torch.autograd.grad(v, list(model.parameters()), retain_graph=True) for v in f]
    return cosines(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))


def by_func(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    params = {name: p.detach() for name, p in model.named_parameters()}

    def one(p: dict[str, Tensor], a: Tensor, t: Tensor) -> Tensor:
        return odds(functional_call(model, p, (a[None],)), t[None])[0, 0]

    grads = vmap(grad(one), (None, 0, 0))(params, x, y)
    return cosines(torch.cat([g.flatten(1) for g in grads.values()], 1))


def _nngeometry(model: nn.Module, f: Any, x: Tensor, y: Tensor, batch: int) -> Tensor:
    from nngeometry.backend import TorchHooksJacobianBackend
    from nngeometry.layercollection import LayerCollection
    from nngeometry.object.fspace import FMatDense

    layers = LayerCollection.from_model(model)
    backend = TorchHooksJacobianBackend(layer_collection=layers, model=model, function=f)
    loader = DataLoader(TensorDataset(x.clone(), y), batch_size=batch)
    gram: Tensor = FMatDense(generator=backend, examples=loader).data
    return gram


def by_nngeometry(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    gram = _nngeometry(model, lambda a, t: odds(model(a), t), x, y, 256)[0, :, 0]
    scale = gram.diagonal().rsqrt()
    return gram * scale[:, None] * scale[None]


def by_captum(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    from captum.influence import TracInCP

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return odds(output, target)[:, 0]

    loss.reduction = "none"  # type: ignore[attr-defined]  # captum asks for it
    tracin = TracInCP(
        model, TensorDataset(x, y), ["now"], lambda m, p: 1.0, loss_fn=loss, batch_size=64
    )
    gram = tracin.influence((x, y))
    scale = gram.diagonal().rsqrt()
    return gram * scale[:, None] * scale[None]


def pair_loop(model: nn.Module, x: Tensor, y: Tensor, pairs: int = 20) -> float:
    """CPU seconds of one pair by the definition: two gradients, flattened, their cosine."""
    params = list(model.parameters())
    start = time.process_time()
    for i in range(pairs):
        both = []
        for j in (i, i + 1):
            f = odds(model(x[j : j + 1]), y[j : j + 1])[0, 0]
            both.append(torch.cat([g.flatten() for g in torch.autograd.grad(f, params)]))
        F.cosine_similarity(both[0], both[1], dim=0).item()
    return (time.process_time() - start) / pairs


# ----------------------------------------------------------------- ten outputs


def by_backward_vector(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    params = list(model.parameters())
    f = model(x)
    rows = [torch.autograd.grad(v, params, retain_graph=True) for v in f.flatten()]
    g = torch.stack([torch.cat([p.flatten() for p in row]) for row in rows])
    n, d = f.shape
    return whitened_trace((g @ g.T).view(n, d, n, d).transpose(1, 2))


def by_func_vector(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    params = {name: p.detach() for name, p in model.named_parameters()}

    def one(p: dict[str, Tensor], a: Tensor) -> Tensor:
        return functional_call(model, p, (a[None],))[0]

    grads = vmap(jacrev(one), (None, 0))(params, x)
    g = torch.cat([v.flatten(2) for v in grads.values()], 2).flatten(0, 1)
    n, d = len(x), len(g) // len(x)
    return whitened_trace((g @ g.T).view(n, d, n, d).transpose(1, 2))


def by_nngeometry_vector(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    gram = _nngeometry(model, lambda a, t: model(a), x, y, len(x))
    return whitened_trace(gram.permute(1, 3, 0, 2))


# ---------------------------------------------------------------- transformers


class Encoder(nn.Module):
    """nn.TransformerEncoder, 4 layers of width 128, over 32 tokens."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


def by_loop(model: nn.Module, x: Tensor) -> Tensor:
    """k^C by one forward and d backward passes of each sample alone."""
    params, rows = list(model.parameters()), []
    for i in range(len(x)):
        y = model(x[i : i + 1])[0]
        grads = [torch.autograd.grad(v, params, retain_graph=True) for v in y]
        rows.append(torch.stack([torch.cat([g.flatten() for g in each]) for each in grads]))
    g = torch.stack(rows)
    n, d = g.shape[:2]
    return whitened_trace((g.flatten(0, 1) @ g.flatten(0, 1).T).view(n, d, n, d).transpose(1, 2))


def transformer(n: int, outputs: int, repeats: int) -> dict[str, object]:
    """k^C, N_S and the loop beside one forward and d backward passes of the same batch."""
    model = Encoder(outputs).eval()
    x = torch.randn(n, 32, 128, generator=torch.Generator().manual_seed(0))
    kernel, params = GradientKernel(model), list(model.parameters())

    def step() -> None:
        y = model(x)
        for j in range(outputs):
            torch.autograd.grad(y[:, j].sum(), params, retain_graph=j < outputs - 1)

    calls = {"forward + d backwards": step, "k^C": lambda: kernel.gram(x)}
    rows = measure({**calls, "N_S": lambda: kernel.neighbors(x)}, repeats=repeats)
    rows |= measure({"a loop over samples": lambda: by_loop(model, x)}, repeats=1, warmup=0)
    few = x[:8]
    exact = by_loop(copy.deepcopy(model).double(), few.double())
    error = float((GradientKernel(model).gram(few).double() - exact).abs().max())
    double = GradientKernel(copy.deepcopy(model).double()).gram(few.double())
    print_table(f"transformer, {outputs} outputs, n={n}", rows, against="forward + d backwards")
    print("largest error:", error, "in float64:", float((double - exact).abs().max()))
    return {**rows, "error": error, "error in float64": float((double - exact).abs().max())}


# ------------------------------------------------------------------- the table


def compare(model: nn.Module, n: int, outputs: object, rivals: dict) -> dict:
    """Our time and torch.func's (in turn, the best of three), the other rivals' (of one run),
    everyone's distance from float64.
    """
    x, y = digits(n)
    data = (x, y)
    kernel = GradientKernel(model, outputs=outputs)
    found: dict[str, Tensor] = {"vicinal": kernel.gram(data)}

    def run(name: str) -> None:
        found[name] = rivals[name](model, x, y).detach()

    for rival in rivals.values():
        rival(model, x[:16], y[:16])
    calls = {name: (lambda name=name: run(name)) for name in rivals}
    first = {"vicinal": lambda: kernel.gram(data), "torch.func": calls.pop("torch.func")}
    rows = measure(first, repeats=3)
    rows |= measure(calls, repeats=1, warmup=0)
    exact = GradientKernel(copy.deepcopy(model).double(), outputs=outputs).gram((x.double(), y))
    errors = {name: float((k.double() - exact).abs().max()) for name, k in found.items()}
    return {"rows": rows, "errors": errors}


def against_one_step(model: nn.Module, n: int, rate: float, repeats: int) -> dict[str, object]:
    """n x n scalar k^C beside one forward and backward of the same n samples, and GEMM share."""
    x, y = digits(n)
    kernel = GradientKernel(model, outputs=odds)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()

    calls = {"forward + backward": step, "k^C": lambda: kernel.gram((x, y))}
    rows: dict[str, object] = dict(measure(calls, repeats=repeats))
    model.zero_grad()
    blocks = kernel.blocks((x, y), "unit")
    list(blocks)  # captured and kept: what is timed below is the Gram stage alone

    def gram_stage() -> None:
        all_pairs(blocks, blocks, kernel.tile)

    stage = measure({"gram": gram_stage}, repeats=repeats)["gram"].cpu
    flops = sum(layer.flops or 0 for layer in kernel.explain()) * n * n / 2
    times = rows["k^C"].cpu, rows["forward + backward"].cpu  # type: ignore[attr-defined]
    rows["times one step"] = times[0] / times[1]
    rows["share of GEMM rate"] = flops / stage / rate
    return rows


def main(quick: bool = False, data: Path | None = None, name: str = "") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    asked, path = name, RESULTS / "how_fast_is_the_gradient_kernel.json"
    rate = gemm_rate(n=512, inner=512) if quick else gemm_rate(n=1024, inner=512)
    scalar = {"torch.func": by_func, "backward per sample": by_backward}
    vector = {"torch.func": by_func_vector, "backward per sample": by_backward_vector}
    if find_spec("nngeometry"):
        scalar["nngeometry"], vector["nngeometry"] = by_nngeometry, by_nngeometry_vector
    if find_spec("captum"):
        scalar["captum TracInCP"] = by_captum
    print("rivals:", *scalar)  # those that are installed
    results: dict[str, dict[str, object]] = {}
    if asked and path.exists():
        results = json.loads(path.read_text())["results"]
    for name, make, sizes in (
        ("perceptron", perceptron, (16, 2, 32) if quick else (512, 128, 2000)),
        ("convolutional", convolutional, (8, 2, 16) if quick else (256, 32, 2000)),
    ):
        if asked not in name:
            continue
        model = trained(make(), 0 if quick else 2)
        cases = ((sizes[0], odds, scalar, "1 output"), (sizes[1], "logits", vector, "10 outputs"))
        for n, outputs, rivals, what in cases:
            title = f"{name}, {what}, n={n}"
            found = compare(model, n, outputs, rivals)
            rows: dict[str, Measured] = found["rows"]
            print_table(title, rows, against="torch.func")
            print("largest error against float64:", found["errors"])
            results[title] = {**rows, "errors": found["errors"]}
            if what == "1 output":
                x, y = digits(32)
                each = pair_loop(model, x, y)
                ratio = each * n * n / 2 / rows["vicinal"].cpu
                results[title] |= {
                    "pair loop, seconds a pair": each,
                    "pair loop, times ours": ratio,
                }
                print(f"pair loop of the definition: {each * 1e3:.2f} ms a pair, {ratio:.0f}x ours")
        title = f"{name}, 1 output, {sizes[2]} x {sizes[2]}"
        results[title] = against_one_step(model, sizes[2], rate, 2 if quick else 3)
        print(title, {k: v if isinstance(v, float) else v.cpu for k, v in results[title].items()})  # type: ignore[attr-defined]
    for outputs in (2,) if quick else (1, 10) if asked in "transformer" else ():
        for n in (3,) if quick else (24, 64):
            title = f"transformer, {outputs} outputs, n={n}"
            results[title] = transformer(n, outputs, 1 if quick else 2)
    if not quick:
        save("how_fast_is_the_gradient_kernel", results, gemm_gflop_per_cpu_second=rate / 1e9)
