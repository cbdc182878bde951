"""Small nets trained by graph smoothness or by cross-entropy: what all files of the paper share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.fit import accuracy, batches, fit, one_cycle, outputs
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from vicinal.confidence import KNNClassifier
from vicinal.losses import GraphSmoothnessLoss

Pair = tuple[Tensor, Tensor]


def rows_of(source: Source, name: str, train: int, test: int, seed: int) -> tuple[Pair, Pair]:
    """Rows to train on from the training set, rows to test on from the test set."""
    if name == "digits":
        first, second = parts(*images(source, name), (train, test), seed)
        return first, second
    (first,) = parts(*images(source, name), (train,), seed)
    (second,) = parts(*images(source, name, "test"), (test,), seed)
    return first, second


def trained(
    train: Pair,
    out: int,
    steps: int,
    seed: int,
    *,
    smooth: dict | None = None,
    rate: float | None = None,
    net: str = "res8",
    width: int = 16,
    last: Callable[[], nn.Module] | None = None,
    after: Callable[[nn.Module, int], None] | None = None,
) -> nn.Sequential:
    """Batches of 100, one cycle of SGD. ``smooth`` holds alpha, k, normalize; None: cross-entropy.

    The sum of the paper over some 9,000 pairs does not train at its rate of 0.1; the mean does at a
    rate of 5, which is the default here (cross-entropy: 0.1). ``net="preact_resnet18"`` is the
    paper's, with its sum, rate, decay and momentum, and the flips and crops of that net's code.
    """
    x, y = train
    paper = net == "preact_resnet18"
    with nets.seeded(seed):
        end = [last()] if last else []
        model = nn.Sequential(body_of(net, x, out, width), *end).to(x.device)
    rule, usual, momentum = F.cross_entropy, 0.1, 0.9
    if smooth is not None:
        rule = GraphSmoothnessLoss(**smooth, reduction="sum" if paper else "mean")
        usual, momentum = (usual, momentum) if paper else (5.0, 0.0)
    rate, decay = rate or usual, 1e-4 if paper else 0.0
    optimizer = torch.optim.SGD(
        model.parameters(), rate, momentum, weight_decay=decay, nesterov=paper
    )
    draws = torch.Generator().manual_seed(seed)

    def loss(rows: Tensor, _: int) -> Tensor:
        return rule(model(jittered(x[rows], draws) if paper else x[rows]), y[rows])

    def look(step: int) -> None:
        if after is not None:
            after(model, step)

    falls = [steps // 2, 3 * steps // 4]  # epochs 100 and 150 of 200
    pace = MultiStepLR(optimizer, falls) if paper else one_cycle(optimizer, rate, steps)
    return fit(model, loss, batches(len(x), 100, steps, seed), optimizer, pace, look)


def body_of(net: str, x: Tensor, out: int, width: int) -> nn.Module:
    """``res8``, a ResNet of three blocks, or ``preact_resnet18``, the paper's."""
    if net == "preact_resnet18":
        return nets.preact_resnet18(x.shape[1], out)
    small = nets.res8(x.shape[1], width, out, stem=2 if x.shape[-1] > 16 else 1)
    return small.to(memory_format=torch.channels_last)  # three quarters of the time


def jittered(x: Tensor, draws: torch.Generator) -> Tensor:
    """Each image flipped or not, and cut out of its zero-padded self, up to 4 px off."""
    n, side = len(x), torch.arange(x.shape[-1])
    flip = torch.rand(n, 1, 1, 1, generator=draws).to(x.device) < 0.5
    padded = F.pad(torch.where(flip, x.flip(3), x), (4, 4, 4, 4))
    down, right = (side + torch.randint(9, (2, n, 1), generator=draws)).to(x.device)
    every = torch.arange(n, device=x.device)[:, None, None]
    return padded[every, :, down[:, :, None], right[:, None]].movedim(3, 1)


def embed(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs of unit length, as the loss saw them."""
    return F.normalize(outputs(model, x))


def error_of_neighbors(model: nn.Module, train: Pair, test: Pair, k: int = 10) -> float:
    """Test error, %, of k nearest neighbors among the training rows."""
    head = KNNClassifier(k).fit(embed(model, train[0]), train[1])
    return 100 * float((head.predict(embed(model, test[0])) != test[1]).double().mean())


def errors_of_heads(model: nn.Module, train: Pair, test: Pair) -> dict[str, float]:
    """Test errors, %, of 1-NN, 10-NN and an RBF-SVC on the outputs."""
    z, z_test = (embed(model, x).cpu() for x, _ in (train, test))
    svc = SVC().fit(z, train[1].cpu())
    near = {f"{k}-NN": error_of_neighbors(model, train, test, k) for k in (1, 10)}
    return {**near, "SVC": 100 - 100 * svc.score(z_test, test[1].cpu())}


def chosen(
    train: Pair, steps: int, seed: int, rates: Sequence[Sequence[float]], alpha: float, net: str
) -> list[dict]:
    """How to call :func:`trained` by cross-entropy and by graph smoothness, ``rates`` for each.

    Of these the one that errs least on a held-out tenth, graph smoothness by 10-NN.
    """
    cut, best = len(train[1]) // 10, []
    held, rest = ((train[0][rows], train[1][rows]) for rows in (slice(cut), slice(cut, None)))
    for smooth, some in zip((None, {"alpha": alpha}), rates, strict=True):
        ways, errors = [{"net": net, "smooth": smooth, "rate": rate} for rate in some], []
        for way in ways if len(ways) > 1 else ():
            model = trained(rest, 10, steps, seed, **way)
            own = 100 - 100 * accuracy(model, *held)
            errors.append(error_of_neighbors(model, rest, held) if smooth else own)
        best.append(ways[errors.index(min(errors)) if errors else 0])
    return best
