r"""What a model's layers and logits say of unknown inputs, beside what its embedding says.

* *energy* of the logits, :math:`-\log \sum_c e^{z_c}` (Liu et al. 2020);
* the distance in direction to the 5th neighbor, layer by layer;
* *DkNN*: how many neighbors over all layers do not have the class that most of them have, the
  nonconformity behind DkNN's credibility (Papernot and McDaniel 2018).

They are parts of the familiarity that an audit of a model goes by, ranked among held-out rows as
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
from vicinal.neighbors.search import ExactSearch

ASKED = 25  # neighbors of each layer that vote
TITLES = {"energy": "energy of the logits", "dknn": "DkNN: neighbors that disagree"}


class ModelScores(NamedTuple):
    """Larger = more foreign; a column for each part, and each set's rows by the set's name."""

    titles: dict[str, str]  # of the parts, by name
    rows: dict[str, Float[Tensor, "n p"]]


def model_scores(
    support: Activations,
    sets: Mapping[str, Activations | None],
    layers: Sequence[str],
    some: Int[Tensor, " s"],
) -> ModelScores:
    """Of the sets' rows among ``some`` rows of the support; an output for every class is logits."""
    assert support.labels is not None
    codes = support.labels.unique(return_inverse=True)[1][some]
    searches = {name: ExactSearch("cosine").build(support[name][some].float()) for name in layers}
    k = min(ASKED, len(some))
    given = {name: acts for name, acts in sets.items() if acts is not None}
    width = min(acts["output"].flatten(1).shape[1] for acts in given.values())
    logits = width > max(int(support.labels.max()), 1)

    def columns(rows: Activations) -> Float[Tensor, "n p"]:
        output = rows["output"].double().flatten(1)
        votes = torch.zeros(len(output), int(codes.max()) + 1, dtype=torch.float64)
        far = []
        for name, search in searches.items():
            near = search.query(rows[name].float(), k)
            far.append(near.distances[:, min(NEAR_RANK, k) - 1].double())
            voters = codes[near.indices]
            votes.scatter_add_(1, voters, torch.ones_like(voters, dtype=votes.dtype))
        against = [k * len(searches) - votes.amax(1)] if searches else []
        energy = [-output.logsumexp(1)] if logits else []
        return torch.stack([*energy, *against, *far], 1)

    names = [*(["energy"] if logits else []), *(["dknn"] if searches else [])]
    said = {name: TITLES[name] for name in names}
    said |= {f"layer:{name}": f"layer {name}: 5th neighbor" for name in searches}
    return ModelScores(said, {name: columns(acts) for name, acts in given.items()} if said else {})
