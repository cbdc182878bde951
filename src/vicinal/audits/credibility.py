"""The conformal view: are credibilities even where the sets are alike, and low where they are not?

Rows known to be unlike the support come from two places: a foreign set, where one was given, and
the strongest corruptions and attacks of the stress. Each is asked how many rows a low credibility,
or a low familiarity, would have flagged, beside how many ordinary rows it flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.audits.familiarity import by_saved_head, foreign_judged, halves, ordinary_rows
from vicinal.audits.scoring import listed_bins
from vicinal.audits.sections import Credibility, Detection, Histogram, ReliabilityBin
from vicinal.evaluation import reliability

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

Pair = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]  # credibility, familiarity
EDGES = np.linspace(0, 1, 11)


def credibility_of(facts: Facts) -> Credibility:
    """Accuracy by credibility, the p-values of each set, and what low ones catch."""
    p, score = facts.verdicts.credibility, facts.score
    others = unlike(facts)
    bins: tuple[ReliabilityBin, ...] = ()
    if score is not None:
        bins = listed_bins(reliability(p.numpy()[score.rows], score.right, bins=10))
    how = (
        f"neighbors (k={facts.neighborhood.k}) that do not have the predicted label, ranked among "
        "held-out rows"
    )
    histograms = [_histogram("query", p)]
    histograms += [_histogram(name, pair[0]) for name, pair in others.items()]
    return Credibility(bins, tuple(histograms), how, _detections(facts, others))


def unlike(facts: Facts) -> dict[str, Pair]:
    """Rows that are not like the support, by what they are: foreign, corrupted, attacked."""
    found: dict[str, Pair] = {}
    if facts.sets.foreign is not None:
        rows, judged = halves(facts)[1], foreign_judged(facts)
        assert judged.familiarity is not None
        found[facts.sets.foreign.name] = judged.credibility[rows], judged.familiarity[rows]
    for name, judgements in facts.stressed.strongest.items():
        credible = [torch.as_tensor(judged.credibility).double() for judged in judgements]
        familiar = [torch.as_tensor(judged.familiarity).double() for judged in judgements]
        found[name] = torch.cat(credible), torch.cat(familiar)
    return found


def _histogram(name: str, p: Float[Tensor, " n"]) -> Histogram:
    counts, _ = np.histogram(p.numpy(), bins=EDGES)
    return Histogram(name, tuple(EDGES), tuple(counts.tolist()))


def _detections(facts: Facts, others: dict[str, Pair]) -> tuple[Detection, ...]:
    """Each detector on each set; its false alarms are of ordinary query rows, out of fold."""
    ordinary, rate = ordinary_rows(facts), facts.settings.unfamiliar
    own: Pair = (facts.verdicts.credibility[ordinary], facts.verdicts.familiarity[ordinary])
    stressed = facts.stressed.strongest  # rows that the saved head judged
    head = (own[0], by_saved_head(facts)[ordinary]) if stressed else own
    low = facts.standards.low_credibility
    detectors = ((f"credibility ≤ {low:g}", 0, low), (f"familiarity ≤ {rate:g}", 1, rate))
    return tuple(
        Detection(
            set=name,
            detector=title,
            rows=len(pair[at]),
            flagged=int((pair[at] <= level).sum()),
            false_alarms=float(((head if name in stressed else own)[at] <= level).double().mean()),
        )
        for name, pair in others.items()
        for title, at, level in detectors
        if len(ordinary)
    )
