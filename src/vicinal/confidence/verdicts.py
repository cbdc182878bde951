r"""Four verdicts, each naming one measured thing, in this order:

===============
======================================================================================
                **unfamiliar**  the k-th neighbor is farther than that of 99 % of held-out rows:
                confidence, a share of whatever mass is there, means nothing
**isolated**    less kernel mass around it than around 99 % of held-out rows (no close neighbor,
                though the k-th is at an ordinary distance), or, where the network's own neighbor
                counts N_S are given, fewer of those
**contested**   confidence is below the level that keeps the target accuracy on held-out rows, or
                the neighbors disagree with the label as in only 5 % of held-out rows (credibility)
**supported**   none of these
===============
======================================================================================

Credibility is DkNN's on one layer (Papernot & McDaniel 2018): with :math:`\alpha` the number of
neighbors that do not have the label and calibration rows scored under their true one,
:math:`p = (1 + \#\{\alpha_{cal} \ge \alpha\}) / (n + 1)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from vicinal.checks import InputError

VERDICTS = ("supported", "contested", "unfamiliar", "isolated")
SUPPORTED, CONTESTED, UNFAMILIAR, ISOLATED = range(4)


@dataclass(frozen=True, eq=False)
class Standards:
    """What held-out rows look like: sorted k-th distances, log-densities and disagreements.

    ``threshold`` is the lowest confidence to accept (infinity: no level reaches
    ``target_accuracy``). ``source`` is ``"held-out"`` or ``"leave-one-out"``.
    """

    kth_distances: Float[Tensor, " m"]
    log_densities: Float[Tensor, " m"]
    disagreements: Float[Tensor, " m"]
    threshold: float
    target_accuracy: float
    source: str
    far_percentile: float = 99.0
    sparse_percentile: float = 1.0
    low_credibility: float = 0.05


def share_below(held_out: Float[Tensor, " m"], values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Percent of (sorted) held-out values that are smaller.

    >>> share_below(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 2.5, 9.0]))
    tensor([  0.,  50., 100.], dtype=torch.float64)
    """
    return 100.0 * torch.searchsorted(held_out, values.to(held_out)).double() / len(held_out)


def conformal_p(held_out: Float[Tensor, " m"], scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """(1 + #{held-out >= score}) / (m + 1), ``held_out`` sorted.

    >>> conformal_p(torch.tensor([0.0, 0.0, 1.0, 5.0]), torch.tensor([1.0, 6.0]))
    tensor([0.6000, 0.2000], dtype=torch.float64)
    """
    reaching = len(held_out) - torch.searchsorted(held_out, scores.to(held_out))
    return (1 + reaching).double() / (len(held_out) + 1)


def disagreement(
    neighbors: Int[Tensor, "n k"] | Float[Tensor, "n k c"], labels: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """How many of the neighbors do not have the row's label (soft labels: how much of them)."""
    if neighbors.ndim == 2:
        return (neighbors != labels[:, None]).sum(1).double()
    own = neighbors.gather(2, labels[:, None, None].expand(-1, neighbors.shape[1], 1))
    return (1 - own[:, :, 0].double()).sum(1)


def accepted_from(
    confidence: NDArray[Any], correct: NDArray[Any], target: float, delta: float = 0.05
) -> float:
    """The lowest confidence from which on accuracy is at least ``target``, with chance 1 - delta.

    Ten levels are tried, each accepting a tenth more of the rows, and each pays a tenth of
    ``delta`` for being one of many (Bonferroni); the bound is Clopper and Pearson's. Rows of equal
    confidence are accepted together. Infinity where no level holds.

    >>> c = np.linspace(0, 1, 400)
    >>> 0.25 < accepted_from(c, c > 0.3, target=0.9) < 0.4
    True
    """
    order = np.argsort(-confidence, kind="stable")
    confidence, correct = confidence[order], np.asarray(correct)[order]
    best, levels = np.inf, 10
    for level in range(1, levels + 1):
        cut = confidence[max(len(confidence) * level // levels, 1) - 1]
        n = int((confidence >= cut).sum())
        right = int(correct[:n].sum())
        bound = beta.ppf(delta / levels, right, n - right + 1) if right else 0.0
        if bound >= target:
            best = float(cut)
    return best


def verdict_codes(
    standards: Standards,
    near_percentile: Float[Tensor, " n"],
    density_percentile: Float[Tensor, " n"],
    credibility: Float[Tensor, " n"],
    confidence: Float[Tensor, " n"],
    crowding: Float[Tensor, " n"] | None = None,
) -> Int[Tensor, " n"]:
    """Positions in ``VERDICTS``; ``crowding`` are percentiles of N_S, where there are any."""
    codes = torch.full(near_percentile.shape, SUPPORTED)
    doubtful = credibility <= standards.low_credibility
    codes[(confidence < standards.threshold) | doubtful] = CONTESTED
    codes[density_percentile <= standards.sparse_percentile] = ISOLATED
    if crowding is not None:
        if crowding.shape != codes.shape:
            raise InputError(
                f"`crowding` must hold one percentile per row: {len(codes)} rows, got shape "
                f"{tuple(crowding.shape)}."
            )
        codes[crowding <= standards.sparse_percentile] = ISOLATED
    codes[near_percentile >= standards.far_percentile] = UNFAMILIAR
    return codes
