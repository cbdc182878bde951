r"""Four verdicts, each naming one measured thing. A row gets the first that holds:

* **unfamiliar**: more foreign than 95 % of held-out rows, by distances, directions and Gaussians
  together (:mod:`vicinal.confidence.familiarity`; the rate is a promise and a setting). Confidence,
  a share of whatever mass is there, then means nothing.
* **isolated**: less kernel mass around it than around 99 % of held-out rows, or, where the
  network's own neighbor counts N_S are given, fewer of those. It says that few rows carry the
  answer, *not* that the answer is likelier to be wrong: few neighbors do not signal errors.
* **contested**: confidence is below the level that keeps the target accuracy on held-out rows, or
  below two thirds (another class may then hold half the winner's weight), or the neighbors
  disagree with the label as in only 5 % of held-out rows (credibility).
* **supported**: none of these.

Credibility is DkNN's on one layer (Papernot & McDaniel 2018): with :math:`\alpha` the number of
neighbors that do not have the label and calibration rows scored under their true one,
:math:`p = (1 + \#\{\alpha_{cal} \ge \alpha\}) / (n + 1)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError
from vicinal.confidence.familiarity import NEAR_RANK, Familiarity, ascending, count_below
from vicinal.confidence.ned.posterior import NEDParameters, log_density
from vicinal.confidence.support import Evidence
from vicinal.neighbors.neighborhood import Neighborhood, NeighborLabels

VERDICTS = ("supported", "contested", "unfamiliar", "isolated")
SUPPORTED, CONTESTED, UNFAMILIAR, ISOLATED = range(4)
MAJORITY = 2 / 3
_ELEMENTS = 1 << 22  # of a block of votes


@dataclass(frozen=True, eq=False)
class Standards:
    """What held-out rows look like: sorted 5th distances, log-densities and disagreements.

    ``threshold`` is the lowest confidence to accept (infinity: no level can be shown to keep
    ``target_accuracy``). ``source`` is ``"held-out"`` or ``"leave-one-out"``. Without
    ``familiarity`` (heads saved by version 0.1) *unfamiliar* goes by the 5th distance alone.
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
    familiarity: Familiarity | None = None

    @property
    def reachable(self) -> bool:
        """Whether some confidence keeps the target accuracy on the held-out rows."""
        return math.isfinite(self.threshold)

    @property
    def level(self) -> float:
        """The confidence below which a row is contested."""
        return contested_below(self.threshold, self.target_accuracy)


def contested_below(threshold: float, target_accuracy: float) -> float:
    """The confidence below which a row is contested.

    Where the held-out rows are too few to promise anything, a calibrated confidence is still worth
    its face value, so the target accuracy itself takes the threshold's place. A threshold speaks of
    all accepted rows together; the single row needs a clear majority besides.

    >>> contested_below(0.4, 0.9), contested_below(0.8, 0.9), contested_below(math.inf, 0.9)
    (0.6666666666666666, 0.8, 0.9)
    """
    return max(threshold if math.isfinite(threshold) else target_accuracy, MAJORITY)


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
    return 100.0 * count_below(held_out, values).double() / len(held_out)


def conformal_p(held_out: Float[Tensor, " m"], scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """(1 + #{held-out >= score}) / (m + 1), ``held_out`` sorted.

    >>> conformal_p(torch.tensor([0.0, 0.0, 1.0, 5.0]), torch.tensor([1.0, 6.0]))
    tensor([0.6000, 0.2000], dtype=torch.float64)
    """
    reaching = len(held_out) - count_below(held_out, scores)
    return (1 + reaching).double() / (len(held_out) + 1)


def disagreement(neighbors: NeighborLabels, codes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """How many of the neighbors do not have the row's label (soft labels: how much of them)."""
    if neighbors.ndim == 2:
        return (neighbors != codes[:, None]).sum(1, dtype=torch.int32).double()
    own = neighbors.gather(2, codes[:, None, None].expand(-1, neighbors.shape[1], 1))
    return (1 - own[:, :, 0].double()).sum(1)


def standards_of(
    evidence: Evidence,
    parameters: NEDParameters,
    threshold: float,
    target_accuracy: float,
    familiarity: Familiarity | None = None,
) -> Standards:
    """What rows that were not fitted on look like: those of ``evidence``, with their own labels.

    Parameters
    ----------
    evidence : held-out rows, or the support's own, left out in turn; hard targets.
    parameters : NED's, for the densities.
    threshold : the lowest confidence to accept; infinity where none can be promised.
    target_accuracy : what the threshold keeps.
    familiarity : ranks of the same rows in its parts.
    """
    return Standards(
        near_distances=ascending(near_distance(evidence.distances)),
        log_densities=ascending(log_density(evidence.neighborhood, parameters)),
        disagreements=ascending(disagreement(evidence.labels, evidence.targets)),
        threshold=threshold,
        target_accuracy=target_accuracy,
        source="leave-one-out" if evidence.leave_one_out else "held-out",
        familiarity=familiarity,
    )


class Judged(NamedTuple):
    """Rows against the standards; ``codes`` are positions in ``VERDICTS``."""

    credibility: Float[Tensor, " n"]
    near_percentile: Float[Tensor, " n"]
    density_percentile: Float[Tensor, " n"]
    codes: Int[Tensor, " n"]
    crowding: Float[Tensor, " n"] | None = None
    familiarity: Float[Tensor, " n"] | None = None


def judge(
    neighborhood: Neighborhood,
    predicted: Int[Tensor, " n"],
    confidence: Float[Tensor, " n"],
    parameters: NEDParameters,
    standards: Standards,
    crowding: Float[Tensor, " n"] | None = None,
    scores: Float[Tensor, "n p"] | None = None,
) -> Judged:
    """Rows by their labeled neighbors: how credible, how far, how dense, and the verdict.

    Parameters
    ----------
    neighborhood : the rows' neighbors, labeled.
    predicted : codes of the classes that are predicted.
    confidence : the probability of each.
    parameters : NED's, the ones the standards were measured with.
    standards : what held-out rows look like.
    crowding : percentiles of the network's own N_S, where there are any.
    scores : of the rows in every part of familiarity.
    """
    exact = neighborhood.double()
    credibility = conformal_p(standards.disagreements, disagreement(exact.labels, predicted))
    near = share_below(standards.near_distances, near_distance(exact.distances))
    density = share_below(standards.log_densities, log_density(exact, parameters))
    familiar = None
    if standards.familiarity is not None and scores is not None:
        familiar = standards.familiarity.p_values(scores)
    codes = verdict_codes(standards, near, density, credibility, confidence, crowding, familiar)
    return Judged(credibility, near, density, codes, crowding, familiar)


def reasons(
    judged: Judged,
    neighborhood: Neighborhood,
    predicted: Int[Tensor, " n"],
    confidence: Float[Tensor, " n"],
    standards: Standards,
    names: Sequence[str],
    weights: Float[Tensor, "n k"],
    linear_share: Float[Tensor, " n"] | None = None,
) -> list[str]:
    """One line per row: the measured thing behind its verdict.

    Parameters
    ----------
    judged : what :func:`judge` found.
    neighborhood, predicted, confidence, standards : what it was asked with.
    names : of the classes, in the order of their codes.
    weights : the neighbors' shares of the answer.
    linear_share : how much of the answer a linear part carries, where there is one.
    """
    labels = neighborhood.labels
    labels = labels if labels.ndim == 2 else labels.argmax(2)
    held = "support rows left out" if standards.source == "leave-one-out" else "held-out rows"
    found = shares_of_weight(labels, weights, names, predicted, linear_share)
    lines = {
        CONTESTED: lambda rows: _contested(found, rows, confidence, standards, held),
        UNFAMILIAR: lambda rows: _unfamiliar(judged, rows, held),
        ISOLATED: lambda rows: _isolated(judged, rows, standards, held),
    }
    for code, written in lines.items():
        rows = (judged.codes == code).nonzero().flatten()
        for row, line in zip(rows.tolist(), written(rows), strict=True):
            found[row] = line
    return found


def shares_of_weight(
    labels: Int[Tensor, "n k"],
    weights: Float[Tensor, "n k"],
    names: Sequence[str],
    predicted: Int[Tensor, " n"],
    linear_share: Float[Tensor, " n"] | None,
    most: int = 3,
) -> list[str]:
    """The neighbors' vote by weight, ``cat 72 % · dog 28 %``, and who else decided, if someone did.

    Parameters
    ----------
    labels, weights : of the neighbors.
    names : of the classes; one that is a number is called a class, beside so many percent.
    predicted : codes of the answer.
    linear_share : of the answer, where a linear part carries some of it.
    most : classes in a line.

    >>> one = torch.tensor([[2, 0, 0]]), torch.tensor([[0.5, 0.3, 0.2]])
    >>> shares_of_weight(*one, ["a", "b", "c"], torch.tensor([2]), None)
    ['neighbors c 50 % · a 50 %']
    >>> shares_of_weight(*one, ["0", "1", "2"], torch.tensor([2]), None)
    ['neighbors class 2 50 % · class 0 50 %']
    """
    found, block = list[str](), max(_ELEMENTS // max(len(names), 1), 1)
    carried = None if linear_share is None else (100 * linear_share).round().long().tolist()
    names = [f"class {name}" if str(name).isdecimal() else str(name) for name in names]
    vote = cache(lambda code, percent: f"{names[code]} {percent} %")  # few, said of many rows
    for start in range(0, len(labels), block):
        part, weight = labels[start : start + block], weights[start : start + block].double()
        none = torch.zeros(len(part), len(names), dtype=torch.float64)
        shares = none.scatter_add_(1, part, weight)
        own = predicted[start : start + block, None]
        # The answer's own class goes first among equals.
        order = shares.scatter_add(1, own, torch.full(own.shape, 1e-6).double())
        top = order.topk(min(most, len(names)), 1).indices
        held = shares.gather(1, top)
        percents, tolds = (100 * held).round().long(), (held >= 5e-3).sum(1)
        pairs = (zip(*column.T.tolist(), strict=True) for column in (top, percents))
        lines = zip(*pairs, tolds.tolist(), own[:, 0].tolist(), strict=True)
        for row, (codes, percent, told, code) in enumerate(lines, start):
            line = "neighbors " + " · ".join(map(vote, codes[:told], percent[:told]))
            if codes[0] != code:
                by = "the prior" if carried is None else "the linear part"
                line += f"; {by} decides for {names[code]}"
            elif carried is not None:
                line += f"; {carried[row]} % of the lead is the linear part's"
            found.append(line)
    return found


def _contested(
    votes: list[str], rows: Tensor, confidence: Tensor, standards: Standards, held: str
) -> list[str]:
    surely = f"neighbors disagree more than for 95 % of {held}"
    below = f"confidence below {standards.level:.2f}"
    if standards.level == MAJORITY:
        below += ": no clear majority"
    elif standards.reachable:
        below += f", which keeps {100 * standards.target_accuracy:.3g} % accuracy"
    else:
        below += f", and no level is shown to keep {100 * standards.target_accuracy:.3g} %"
    sure = (confidence >= standards.level).tolist()
    return [f"{votes[row]}; {surely if sure[row] else below}" for row in rows.tolist()]


def _unfamiliar(judged: Judged, rows: Tensor, held: str) -> list[str]:
    how, share = "farther", judged.near_percentile[rows]
    if judged.familiarity is not None:
        how, share = "more foreign", 100 * (1 - judged.familiarity[rows])
    return [f"{how} than {p:.0f} % of {held}; confidence not meaningful" for p in share.tolist()]


def _isolated(judged: Judged, rows: Tensor, standards: Standards, held: str) -> list[str]:
    sparse = (100 - judged.density_percentile[rows]).tolist()
    lines = [f"less support around it than around {p:.0f} % of {held}" for p in sparse]
    if judged.crowding is not None:
        for at, share in enumerate(judged.crowding[rows].tolist()):
            if share <= standards.sparse_percentile:
                few = f"the network treats few inputs like it (lowest {share:.1f} %)"
                lines[at] = f"{few}; by itself no sign of an error"
    return lines


def verdict_codes(
    standards: Standards,
    near_percentile: Float[Tensor, " n"],
    density_percentile: Float[Tensor, " n"],
    credibility: Float[Tensor, " n"],
    confidence: Float[Tensor, " n"],
    crowding: Float[Tensor, " n"] | None = None,
    familiar: Float[Tensor, " n"] | None = None,
) -> Int[Tensor, " n"]:
    """Positions in ``VERDICTS``, by the first rule that holds.

    Parameters
    ----------
    standards : what held-out rows look like.
    near_percentile, density_percentile, credibility, confidence : (n,) of the rows to judge.
    crowding : percentiles of N_S, where there are any.
    familiar : p-values of familiarity; without them *unfamiliar* goes by ``near_percentile``.
    """
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
    if standards.familiarity is None or familiar is None:
        codes[near_percentile >= standards.far_percentile] = UNFAMILIAR
    else:
        codes[familiar <= standards.familiarity.rate] = UNFAMILIAR
    return codes
