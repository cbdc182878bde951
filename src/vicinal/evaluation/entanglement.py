r"""How mixed are the classes in each layer? The soft nearest neighbor loss at its own temperature.

.. math::

    \min_T\; -\frac1n \sum_i \log
    \frac{\sum_{j \ne i,\, y_j = y_i} e^{-\|x_i - x_j\|^2/T}}{\sum_{j \ne i} e^{-\|x_i - x_j\|^2/T}}

(Frosst 2019, appendix C). The value means nothing alone: as :math:`T \to \infty` it tends to the
*chance level*, the mean :math:`-\log \frac{n_{y_i} - 1}{n - 1}`, which depends on the class sizes
in the sample. So each number comes with its chance level, its temperature and its n.

Its standard error is a jackknife over groups of rows. Rows are one another's neighbors, so the
spread of their terms alone says too little. T is a minimum, so its own error does not enter to
first order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, as_matrix
from vicinal.evaluation.inputs import as_classes, by_class, exact_sum
from vicinal.neighbors.distances import pairwise_distances
from vicinal.neighbors.temperature import chance_level, optimal_temperature
from vicinal.neighbors.tiles.masses import log_masses

GROUPS = 20  # of the jackknife
TILE = 1 << 22  # distances formed at a time


@dataclass(frozen=True)
class LayerEntanglement:
    """``loss`` in nats at ``temperature``; ``ratio`` = loss / chance: 0 apart, 1 fully mixed.

    The temperature is inf where no finite one does better than chance. ``se``: of the loss.
    """

    layer: str
    loss: float
    chance: float
    temperature: float
    rows: int
    dimensions: int
    se: float | None = None

    @property
    def ratio(self) -> float:
        return self.loss / self.chance if self.chance > 0 else 0.0


@dataclass(frozen=True)
class Entanglement:
    """One entry per layer, in the order given."""

    layers: tuple[LayerEntanglement, ...]
    metric: str

    def __getitem__(self, layer: str) -> LayerEntanglement:
        return {entry.layer: entry for entry in self.layers}[layer]

    def __str__(self) -> str:
        width = max(len(entry.layer) for entry in self.layers) + 2
        head = f"{'layer':<{width}}{'loss':>9}{'±':>9}{'chance':>9}{'ratio':>8}{'T':>12}{'n':>8}"
        lines = [
            f"{e.layer:<{width}}{e.loss:>9.4f}{_word(e.se):>9}{e.chance:>9.4f}{e.ratio:>8.3f}"
            f"{e.temperature:>12.4g}{e.rows:>8}"
            for e in self.layers
        ]
        return "\n".join([head, *lines])


def _word(error: float | None) -> str:
    return "–" if error is None else f"{error:.4f}"


def entanglement(
    activations: Any, labels: Any = None, *, metric: str = "sqeuclidean"
) -> Entanglement:
    """Entanglement of each layer: ``{name: (n, d)}``, captured activations, or one matrix.

    ``labels`` may be left out where the activations carry theirs.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> bool(entanglement({"last": x}, [0, 0, 1, 1])["last"].ratio < 0.01)
    True
    """
    layers = getattr(activations, "layers", activations)
    layers = layers if isinstance(layers, Mapping) else {"x": layers}
    labels = getattr(activations, "labels", None) if labels is None else labels
    if labels is None:
        raise InputError(
            "`labels` are missing: entanglement is between classes. Pass (n,) integers."
        )
    if not layers:
        raise InputError("`activations` holds no layer. Pass at least one.")
    entries = tuple(_layer(str(name), rows, labels, metric) for name, rows in layers.items())
    return Entanglement(entries, metric)


def _layer(name: str, rows: Any, labels: Any, metric: str) -> LayerEntanglement:
    x = as_matrix(rows, name).detach().cpu().double()
    y = as_classes(labels, len(x), "labels")
    if len(np.unique(y)) < len(y):
        x, target = by_class(x, y)
        temperature = optimal_temperature(x, target, metric=metric)
        mass = log_masses(x, target, temperature=temperature, metric=metric)
        loss = float((mass.all - mass.own)[torch.isfinite(mass.own)].mean())
        chance = max(chance_level(target), 0.0)
        if chance <= loss:  # T = inf, where every neighbor counts alike, is the best there is
            loss, temperature = chance, math.inf
        error = jackknife_error(x, target, temperature, metric)
        return LayerEntanglement(name, loss, chance, temperature, len(x), x.shape[1], error)
    raise InputError(
        f"`labels` name {len(y)} rows of {len(y)} classes: no row has a peer of its class. "
        "Pass at least two rows of some class."
    )


def jackknife_error(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], temperature: float, metric: str
) -> float | None:
    """Standard error of the mean surprise at T; None where a group holds all peers of a class."""
    n, count = len(x), min(GROUPS, len(x))
    group = torch.from_numpy(np.random.default_rng(0).permutation(n) % count)
    members = [(group == g).nonzero().flatten() for g in range(count)]
    masses = torch.empty(2, n, count, dtype=torch.float64)  # log, of all and of the own class
    for rows in torch.arange(n).split(max(TILE // n, 1)):
        log_weights = -pairwise_distances(x[rows], x, metric=metric) / temperature
        log_weights[torch.arange(len(rows)), rows] = -math.inf
        own = log_weights.masked_fill(labels[rows, None] != labels[None], -math.inf)
        for g, some in enumerate(members):
            masses[0, rows, g] = log_weights[:, some].logsumexp(1)
            masses[1, rows, g] = own[:, some].logsumexp(1)
    without = []
    for g in range(count):
        others = masses[:, group != g][:, :, torch.arange(count) != g].logsumexp(2)
        terms = (others[0] - others[1])[torch.isfinite(others[1])]
        if not len(terms):
            return None
        without.append(exact_sum(terms.numpy()) / len(terms))
    return math.sqrt((count - 1) * float(np.var(without)))
