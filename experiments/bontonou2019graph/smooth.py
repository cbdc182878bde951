"""Small nets trained by graph smoothness or by cross-entropy: what all files of the paper share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from experiments import nets
from experiments.data import Source, images, parts
from experiments.fit import accuracy, batches, fit, one_cycle, outputs
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
    width: int = 12,
    last: Callable[[], nn.Module] | None = None,
    after: Callable[[nn.Module, int], None] | None = None,
) -> nn.Sequential:
    """Batches of 100, one cycle of SGD. ``smooth`` holds alpha, k, normalize; None: cross-entropy.

    The sum of the paper over some 9,000 pairs does not train at its rate of 0.1; the mean does at a
    rate of 5, which is the default here (cross-entropy: 0.1). Images in color, the paper's, get its
    PreActResNet-18, sum, rate, decay and momentum, and the flips and crops of that net's code.
    """
    x, y = train
    paper = x.shape[1] == 3
    with nets.seeded(seed):
        end = [last()] if last else []
        body = nets.preact_resnet18(3, out) if paper else nets.convolutions(x, out, width)
        model = nn.Sequential(body, *end).to(x.device)
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


def chosen(train: Pair, steps: int, seed: int, ways: Sequence[dict]) -> dict:
    """Of several ways to call :func:`trained`, the one that errs least on a held-out tenth.

    Cross-entropy by its classes, graph smoothness by 10-NN.
    """
    if len(ways) == 1:
        return ways[0]
    cut = len(train[1]) // 10
    held, rest = ((train[0][rows], train[1][rows]) for rows in (slice(cut), slice(cut, None)))
    errors = []
    for way in ways:
        model = trained(rest, 10, steps, seed, **way)
        own = 100 - 100 * accuracy(model, *held)
        errors.append(error_of_neighbors(model, rest, held) if way.get("smooth") else own)
    return ways[errors.index(min(errors))]
