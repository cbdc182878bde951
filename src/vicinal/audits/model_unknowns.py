r"""What a model's layers and logits say of unknown inputs, beside what its embedding says.

* *energy* of the logits, :math:`-\log \sum_c e^{z_c}` (Liu et al. 2020);
* the distance in direction to the 5th neighbor, layer by layer;
* *DkNN*: how many neighbors over all layers do not have the class that most of them have, the
  nonconformity behind DkNN's credibility (Papernot and McDaniel 2018).

A saved head sees embeddings alone, so these do not decide a verdict. Where a foreign set is given
they are reported beside the parts that do, each and all together, ranked among ordinary query rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.audits.sections import UnknownPart
from vicinal.capture import Activations
from vicinal.confidence.familiarity import COMBINED, NEAR_RANK, Ranks, part_columns
from vicinal.evaluation import auroc, fpr_at_tpr
from vicinal.neighbors.search import ExactSearch

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

ASKED = 25  # neighbors of each layer that vote


class ModelScores(NamedTuple):
    """Larger = more foreign; a column for each name."""

    names: tuple[str, ...]
    titles: tuple[str, ...]
    query: Float[Tensor, "m p"]
    foreign: Float[Tensor, "f p"]


def model_scores(
    support: Activations,
    query: Activations,
    foreign: Activations,
    layers: Sequence[str],
    some: Int[Tensor, " s"],
) -> ModelScores:
    """Of query and foreign rows among ``some`` rows of the support; the output has the logits."""
    assert support.labels is not None
    codes = support.labels.unique(return_inverse=True)[1][some]
    searches = {name: ExactSearch("cosine").build(support[name][some].float()) for name in layers}
    k = min(ASKED, len(some))

    def columns(rows: Activations) -> Float[Tensor, "n p"]:
        energy = -rows["output"].double().flatten(1).logsumexp(1)
        votes = torch.zeros(len(energy), int(codes.max()) + 1, dtype=torch.float64)
        far = []
        for name, search in searches.items():
            near = search.query(rows[name].float(), k)
            far.append(near.distances[:, min(NEAR_RANK, k) - 1].double())
            voters = codes[near.indices]
            votes.scatter_add_(1, voters, torch.ones_like(voters, dtype=votes.dtype))
        against = k * len(searches) - votes.amax(1)
        return torch.stack([energy, *([against] if searches else []), *far], 1)

    names = ("energy", *(("dknn",) if searches else ()), *(f"layer:{name}" for name in searches))
    titles = {"energy": "energy of the logits", "dknn": "DkNN: neighbors that disagree"}
    said = tuple(titles.get(n, f"layer {n.removeprefix('layer:')}: 5th neighbor") for n in names)
    return ModelScores(names, said, columns(query), columns(foreign))


def model_parts(
    facts: Facts, reported: Int[Tensor, " f"], ordinary: Int[Tensor, " r"]
) -> list[UnknownPart]:
    """Each of them, and all with the usual parts; every other ordinary row is ranked among."""
    scores = None if facts.model is None else facts.model.unknowns
    own = facts.foreignness
    if scores is None or own.foreign is None or len(ordinary) < 4:
        return []
    usual = part_columns(COMBINED)
    query = torch.cat([own.query[:, usual], scores.query], 1)[ordinary]
    outside = torch.cat([own.foreign[:, usual], scores.foreign], 1)[reported]
    held, inside = query[::2], query[1::2]

    def line(name: str, title: str, columns: list[int]) -> UnknownPart:
        ranks = Ranks.of(held[:, columns])
        low, high = ranks.p_values(outside[:, columns]), ranks.p_values(inside[:, columns])
        found = float((low <= facts.settings.unfamiliar).double().mean())
        return UnknownPart(name, title, auroc(-high, -low), fpr_at_tpr(-high, -low), found, False)

    lines = [line("with_model", "combination with layers and logits", list(range(query.shape[1])))]
    for at, (name, title) in enumerate(zip(scores.names, scores.titles, strict=True), len(usual)):
        lines.append(line(name, title, [at]))
    return lines
