r"""Which confidence keeps a promised accuracy on rows not yet seen?

For a fixed threshold :math:`t` the accepted rows are a sample of their own, and the Clopper-Pearson
bound says with certainty :math:`1 - \delta` what their accuracy :math:`q(t)` is at least. Choosing
the best of many thresholds after looking spoils that. Testing in an order does not:

* Thresholds are tried from the most confident row down, each distinct confidence in turn, and the
  walk stops at the first that fails. If :math:`t^*` is the highest threshold with
  :math:`q(t^*) < \text{target}`, no worse one is reached without passing the test at :math:`t^*`,
  which has chance at most its level (fixed-sequence testing; Angelopoulos et al. 2021).
* The first few rows can prove nothing, so the walk starts at a count of rows fixed beforehand. One
  unlucky error there would end it; it may therefore start anew at :math:`n/2^j` rows, each start
  with an equal share of :math:`\delta`. A walk that arrives at the next start takes that share
  along (the fallback procedure; Wiens 2003).

The chance of a broken promise is at most :math:`\delta` where accuracy falls as the threshold does.
For other shapes the same holds for thresholds fixed beforehand, and the starts, which are counts,
move with the sample; the tests measure hostile shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from vicinal.evaluation.inputs import IntArray, as_correct, as_vector
from vicinal.evaluation.intervals import check_fraction, clopper_pearson_lower
from vicinal.evaluation.selection import accepted_from_the_top


@dataclass(frozen=True)
class AcceptanceThreshold:
    """Accept ``confidence >= threshold``. Not ``reachable``: the threshold is inf, nothing passes.

    ``accuracy`` is that of the ``accepted`` of ``rows`` here; ``lower_bound``, at least the target,
    is what future accepted rows keep with chance ``1 - delta``.
    """

    reachable: bool
    threshold: float
    coverage: float
    accuracy: float | None
    lower_bound: float | None
    accepted: int
    rows: int
    target: float
    delta: float

    def __str__(self) -> str:
        if not self.reachable:
            return (
                f"No threshold promises accuracy {self.target:g} with certainty {1 - self.delta:g} "
                f"from these {self.rows} rows. Pass more rows, a lower target or a larger delta."
            )
        return (
            f"Accept confidence >= {self.threshold:.6g}: {self.coverage:.1%} of rows "
            f"({self.accepted} of {self.rows}), accuracy {self.accuracy:.4f} here and at least "
            f"{self.lower_bound:.4f} on new rows with certainty {1 - self.delta:g}."
        )


def threshold_for_accuracy(
    confidence: Any, correct: Any, target: float, delta: float = 0.05
) -> AcceptanceThreshold:
    """The lowest threshold whose accepted rows keep accuracy ``target``, with chance 1 − ``delta``.

    Parameters
    ----------
    confidence : (n,) of held-out rows; larger is surer.
    correct : (n,) whether each of them is right.
    target : the accuracy to keep.
    delta : the chance that the promise is broken.

    >>> import numpy as np
    >>> c = np.linspace(0, 1, 400)
    >>> found = threshold_for_accuracy(c, c > 0.3, target=0.9)
    >>> found.reachable, found.lower_bound >= 0.9, found.accuracy > 0.9
    (True, True, True)
    """
    check_fraction(target, "target")
    check_fraction(delta, "delta")
    c = as_vector(confidence, "confidence")
    values, accepted, errors = accepted_from_the_top(c, as_correct(correct, len(c)))
    starts = _starts(len(c), target, delta)
    found, level = _walk(accepted, errors, starts, target, delta)
    if found < 0:
        return AcceptanceThreshold(
            False, math.inf, 0.0, None, None, 0, len(c), float(target), float(delta)
        )
    rows, right = int(accepted[found]), int(accepted[found] - errors[found])
    lower = float(clopper_pearson_lower(np.array(right), np.array(rows), level))
    lower = max(lower, float(target))  # the test passed: below it only by rounding
    return AcceptanceThreshold(
        True, float(values[found]), rows / len(c), right / rows, lower, rows, len(c),
        float(target), float(delta),
    )  # fmt: skip


def _starts(n: int, target: float, delta: float) -> list[int]:
    """n, n/2, n/4, … while a start's share of delta could be met by rows without any error."""
    starts = [n]
    while True:
        following = -(-starts[-1] // 2)
        share = delta / (len(starts) + 1)
        if following == starts[-1] or target**following > share:
            return starts[::-1]
        starts.append(following)


def _walk(
    accepted: IntArray, errors: IntArray, starts: list[int], target: float, delta: float
) -> tuple[int, float]:
    """Position of the lowest threshold reached and the level it was tested at; -1 for none."""
    share = delta / len(starts)
    gates = np.searchsorted(accepted, starts)  # the first threshold that accepts so many rows
    found, found_level, level = -1, 0.0, 0.0
    for j, gate in enumerate(gates):
        end = gates[j + 1] if j + 1 < len(gates) else len(accepted)
        level += share
        group = slice(gate, end)
        # P(at least so many right | target) <= level: the bound is above target, without inverting
        chance = special.betainc(accepted[group] - errors[group], errors[group] + 1.0, target)
        failed = np.flatnonzero(~(chance <= level))  # nan where nothing is right
        passed = int(failed[0]) if len(failed) else end - gate
        if passed:
            found, found_level = int(gate) + passed - 1, level
        if len(failed):
            level = 0.0
    return found, found_level
