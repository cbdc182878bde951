r"""Four verdicts, each naming one measured thing. A row gets the first that holds:

* **unfamiliar**: its 5th neighbor is farther than that of 99 % of held-out rows. Confidence, a
  share of whatever mass is there, then means nothing.
* **isolated**: less kernel mass around it than around 99 % of held-out rows (no close neighbor,
  though the 5th is at an ordinary distance), or, where the network's own neighbor counts N_S are
  given, fewer of those.
* **contested**: confidence is below the level that keeps the target accuracy on held-out rows, or
  below two thirds (another class may then hold half the winner's weight), or the neighbors
  disagree with the label as in only 5 % of held-out rows (credibility).
* **supported**: none of these.

Credibility is DkNN's on one layer (Papernot & McDaniel 2018): with :math:`\alpha` the number of
neighbors that do not have the label and calibration rows scored under their true one,
:math:`p = (1 + \#\{\alpha_{cal} \ge \alpha\}) / (n + 1)`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
NEAR_RANK = 5
MAJORITY = 2 / 3


@dataclass(frozen=True, eq=False)
class Standards:
    """What held-out rows look like: sorted 5th distances, log-densities and disagreements.

    ``threshold`` is the lowest confidence to accept (infinity: no level can be shown to keep
    ``target_accuracy``). ``source`` is ``"held-out"`` or ``"leave-one-out"``.
    """

    near_distances: Float[Tensor, " m"]
    log_densities: Float[Tensor, " m"]
    disagreements: Float[Tensor, " m"]
    threshold: float
    target_accuracy: float
    source: str
    far_percentile: float = 99.0
    sparse_percentile: float = 1.0
    low_credibility: float = 0.05

    @property
    def reachable(self) -> bool:
        """Whether some confidence keeps the target accuracy on the held-out rows."""
        return bool(np.isfinite(self.threshold))

    @property
    def level(self) -> float:
        """The confidence below which a row is contested.

        Where the held-out rows are too few to promise anything, a calibrated confidence is still
        worth its face value, so the target accuracy itself takes the threshold's place. A threshold
        speaks of all accepted rows together; the single row needs a clear majority besides.
        """
        return max(self.threshold if self.reachable else self.target_accuracy, MAJORITY)


def near_distance(distances: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """How far the 5th neighbor is: near enough to be local, deep enough to survive a duplicate.

    The k-th would not do: with k above the class sizes it measures the gap between classes.
    """
    return distances[:, min(NEAR_RANK, distances.shape[1]) - 1].contiguous()


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


def reason(
    verdict: str,
    standards: Standards,
    *,
    label: str,
    votes: Sequence[tuple[str, int]],
    confidence: float,
    near_percentile: float,
    density_percentile: float,
    crowding: float | None = None,
) -> str:
    """One line: the measured thing behind a verdict. ``votes``: (label, neighbors), most first."""
    held = "support rows left out" if standards.source == "leave-one-out" else "held-out rows"
    if verdict == "unfamiliar":
        return f"farther than {near_percentile:.0f} % of {held}; confidence not meaningful"
    if verdict == "isolated":
        if crowding is not None and crowding <= standards.sparse_percentile:
            return f"the network has it in its lowest {crowding:.1f} % of crowding"
        return f"less support around it than around {100 - density_percentile:.0f} % of {held}"
    if verdict == "supported":
        return f"{dict(votes).get(label, 0)}/{sum(n for _, n in votes)} neighbors {label}"
    split = " · ".join(f"{name} {count}" for name, count in votes[:3])
    if confidence >= standards.level:
        return f"{split}; neighbors disagree more than for 95 % of {held}"
    if standards.level == MAJORITY:
        return f"{split}; confidence below {MAJORITY:.2f}: no clear majority of the weight"
    if standards.reachable:
        target = f"{standards.target_accuracy:.0%}"
        return f"{split}; confidence below {standards.level:.2f}, which keeps {target} accuracy"
    return (
        f"{split}; confidence below {standards.level:.2f}, and too few {held} to promise accuracy"
    )


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
    codes[(confidence < standards.level) | doubtful] = CONTESTED
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
