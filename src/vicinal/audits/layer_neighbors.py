r"""The neighbors of rows in each layer of a model: what they vote for, how foreign they call a row.

* *energy* of the logits, :math:`-\log \sum_c e^{z_c}` (Liu et al. 2020);
* the distance in direction to the 5th neighbor, layer by layer;
* *DkNN*: how many neighbors over all layers do not have the class that most of them have, the
  nonconformity behind DkNN's credibility (Papernot and McDaniel 2018).

These are parts of the familiarity that an audit of a model goes by, ranked among held-out rows as
the others are. Support rows do not rank them: the network was trained on those, and its energy
there promises nothing. A saved head sees embeddings alone and goes without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.capture import Activations
from vicinal.confidence.familiarity import NEAR_RANK
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch

LAYER_K = 25  # neighbors of each layer that vote
TITLES = {"energy": "energy of the logits", "dknn": "DkNN: neighbors that disagree"}
Layers = dict[str, Neighborhood]  # by the layer's name, labeled with codes


class ModelScores(NamedTuple):
    """Larger = more foreign; a column for each part, and each set's rows by the set's name."""

    titles: dict[str, str]  # of the parts, by name
    rows: dict[str, Float[Tensor, "n p"]]


def layer_neighbors(
    sets: Mapping[str, Activations | None], layers: Sequence[str], some: Int[Tensor, " s"]
) -> dict[str, Layers]:
    """Of every set's rows among ``some`` rows of the support, which do not see themselves."""
    support = sets["support"]
    assert support is not None
    assert support.labels is not None
    codes = support.labels.unique(return_inverse=True)[1]
    place = torch.full((len(codes),), -1)
    place[some] = torch.arange(len(some))
    found: dict[str, Layers] = {name: {} for name, acts in sets.items() if acts is not None}
    for layer in layers:
        search = ExactSearch("cosine").build(support[layer][some].float())
        for name, near in found.items():
            rows, own = sets[name], place if name == "support" else None
            assert rows is not None
            asked = rows[layer].float()
            far, which = search.query(asked, min(LAYER_K, len(some) - 1), exclude=own)
            near[layer] = Neighborhood(far, some[which], codes[some[which]])
    return found


def votes(near: Neighborhood, classes: int) -> Float[Tensor, "n c"]:
    """How many neighbors each class has."""
    ones = torch.ones(near.labels.shape, dtype=torch.float64)
    return torch.zeros(near.size, classes, dtype=torch.float64).scatter_add_(1, near.labels, ones)


def layer_votes(
    layers: Layers, labels: Int[Tensor, " s"]
) -> tuple[Int[Tensor, "n l"], Float[Tensor, "n l"]]:
    """What each layer's neighbors vote for, and the share of them; ``labels``: the support's."""
    classes = len(labels.unique())
    shares = [(votes(near, classes) / near.k).float().max(1) for near in layers.values()]
    return torch.stack([s.indices for s in shares], 1), torch.stack([s.values for s in shares], 1)


def model_scores(
    near: Mapping[str, Layers],
    outputs: Mapping[str, Float[Tensor, "n o"]],
    labels: Int[Tensor, " s"],
) -> ModelScores:
    """Of each set that has ``outputs``: they are logits where none of the ``labels`` lacks one."""
    width = min(output.flatten(1).shape[1] for output in outputs.values())
    logits, classes = width > max(int(labels.max()), 1), len(labels.unique())

    def columns(name: str) -> Float[Tensor, "n p"]:
        layers = near[name].values()
        far = [hood.distances[:, min(NEAR_RANK, hood.k) - 1].double() for hood in layers]
        against = []
        if layers:
            agreed = torch.stack([votes(hood, classes) for hood in layers]).sum(0)
            against = [sum(hood.k for hood in layers) - agreed.amax(1)]
        energy = [-outputs[name].double().flatten(1).logsumexp(1)] if logits else []
        return torch.stack([*energy, *against, *far], 1)

    searched = list(next(iter(near.values())))
    names = [*(["energy"] if logits else []), *(["dknn"] if searched else [])]
    said = {name: TITLES[name] for name in names}
    said |= {f"layer:{name}": f"layer {name}: 5th neighbor" for name in searched}
    return ModelScores(said, {name: columns(name) for name in outputs} if said else {})
