r"""Which confidence keeps a promised accuracy on rows not yet seen?

For a fixed threshold :math:`t` the accepted rows are a sample of their own, and an exact binomial
test says with certainty :math:`1 - \delta` whether their accuracy :math:`q(t)` reaches the target.
Choosing the best of many thresholds after looking spoils that. Testing in an order does not:

* Thresholds are walked from a start down, each distinct confidence in turn, to the first that
  fails. If :math:`t^*` is the highest with :math:`q(t^*) < \text{target}`, no worse one is reached
  without passing at :math:`t^*`, which has chance at most the level (Angelopoulos et al. 2021).
* A start is a count of rows that what came true has no say in. Most of :math:`\delta` goes to the
  one that the confidences themselves foresee, where :math:`\sum c_i` exceeds what the test asks
  for by the most standard deviations :math:`\sqrt{\sum c_i (1 - c_i)}`; the rest to
  :math:`n, n/2, n/4, …` rows, should the confidences mislead. A walk that arrives at the next start
  takes its share along (the fallback procedure; Wiens 2003).

The chance of a broken promise is at most :math:`\delta` where accuracy falls as the threshold does.
For other shapes the same holds for thresholds fixed beforehand, and the starts, which are counts,
move with the sample; the tests measure hostile shapes.

Where nobody names a target, :func:`reachable_target` does: the highest of 0.90, 0.95, 0.97 and 0.99
that at least half of the rows can be shown to meet, else the accuracy itself, or less where the
confidences are too high by more than chance and half of the rows cannot meet that either. That
choice looks at the same rows, so it is not covered by the argument above: nested targets, each
tested at :math:`\delta`, of which one is reported. ``benchmarks/quality/targets.py`` measures it in
thirty made worlds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vicinal.checks import check_share
from vicinal.evaluation.inputs import FloatArray, IntArray, as_correct, as_vector
from vicinal.evaluation.intervals import clopper_pearson_lower
from vicinal.evaluation.selection import accepted_from_the_top

TARGETS = (0.99, 0.97, 0.95, 0.90)
LISTED = "90, 95, 97 and 99 %"
LOWER = (0.85, 0.80, 0.75, 0.70, 0.60, 0.50)  # for confidences that do not come true
ENOUGH = 0.5  # of the rows meet a target that is chosen for them
FORESEEN = 0.7  # share of delta that goes where the confidences foresee a pass
CANDIDATES = 2000  # thresholds, evenly spread, among which that place is looked for
Curve = tuple[FloatArray, IntArray, IntArray]  # confidences descending; rows, errors from each up


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
    confidence : (n,) of held-out rows; any score, but probabilities also say where to start.
    correct : (n,) whether each of them is right.
    target : the accuracy to keep.
    delta : the chance that the promise is broken.

    >>> c = np.linspace(0, 1, 400)
    >>> found = threshold_for_accuracy(c, c > 0.3, target=0.9)
    >>> found.reachable, found.lower_bound >= 0.9, found.accuracy > 0.9
    (True, True, True)
    """
    c = as_vector(confidence, "confidence")
    return threshold_on(accepted_from_the_top(c, as_correct(correct, len(c))), target, delta)


def threshold_on(curve: Curve, target: float, delta: float = 0.05) -> AcceptanceThreshold:
    """The same from the rows and errors at or above each confidence: sorted once for any target."""
    check_share(target, "target")
    check_share(delta, "delta")
    values, accepted, errors = curve
    share = _shares(values.astype(float), accepted, target, delta)
    found, level = _walk(accepted, errors, share, target)
    n = int(accepted[-1])
    asked = (n, float(target), float(delta))
    if found < 0:
        return AcceptanceThreshold(False, math.inf, 0.0, None, None, 0, *asked)
    rows, right = int(accepted[found]), int(accepted[found] - errors[found])
    lower = float(clopper_pearson_lower(np.array(right), np.array(rows), level))
    lower = max(lower, float(target))  # the test passed: below it only by rounding
    at = float(values[found])
    return AcceptanceThreshold(True, at, rows / n, right / rows, lower, rows, *asked)


class ChosenTarget(NamedTuple):
    """A target accuracy, and why it is this one; no words where somebody named it."""

    target: float
    reason: str = ""


def reachable_target(confidence: Any, correct: Any = None, delta: float = 0.05) -> ChosenTarget:
    """The highest usual target that at least half of the rows can be shown to meet.

    Else the accuracy itself, in whole percent and at most 0.90; less where confidences are too high
    and half of the rows cannot meet that. Without ``correct`` the confidences alone decide.

    Parameters
    ----------
    confidence : (n,) of held-out rows, probabilities.
    correct : (n,) whether each of them is right, where that is known.
    delta : the chance that the promise of the threshold is broken.

    >>> c = np.linspace(0.8, 1, 400)
    >>> right = np.random.default_rng(0).random(400) < c
    >>> chosen = reachable_target(c, right)
    >>> chosen.target, threshold_for_accuracy(c, right, chosen.target).coverage > 0.5
    (0.9, True)
    """
    check_share(delta, "delta")
    c = np.clip(as_vector(confidence, "confidence"), 0, 1)
    right = None if correct is None else as_correct(correct, len(c))
    overall = math.fsum(c if right is None else right) / len(c)
    own = min(max(math.floor(100 * overall) / 100, 0.01), TARGETS[-1])
    if right is None:
        foreseen = next((t for t in TARGETS if _half_foreseen(c, t, delta)), own)
        return ChosenTarget(foreseen, "what the confidences foresee; no label could test it")
    below = [t for t in LOWER if t < own and _too_high(c, right)]
    curve = accepted_from_the_top(c, right)
    for target in (*TARGETS, own, *below):
        met = threshold_on(curve, target, delta).coverage
        if met >= ENOUGH:
            return ChosenTarget(target, _why(target, own, f"{100 * met:.1f} %"))
    why = f"the accuracy itself: half of the rows cannot be shown to meet it or any of {LISTED}"
    if own == TARGETS[-1]:
        why = f"the lowest of {LISTED}: half of the rows cannot be shown to meet any of them"
    return ChosenTarget(own, why)


def _why(target: float, own: float, met: str) -> str:
    if target in TARGETS:
        return f"the highest of {LISTED} that at least half of the rows meet ({met} do)"
    lead = (
        "the accuracy itself" if target == own else "below the accuracy, confidences are too high"
    )
    return f"{lead}: {met} of the rows meet it, fewer than half {100 * TARGETS[-1]:g} %"


def _too_high(c: FloatArray, right: NDArray[np.bool_]) -> bool:
    """Beyond two standard errors of what the confidences foresee."""
    return bool(math.fsum(c) - right.sum() > 2 * math.sqrt(math.fsum(c * (1 - c))))


def _half_foreseen(c: FloatArray, target: float, level: float) -> bool:
    """Whether half of the rows, or more, pass the test if the confidences come true."""
    best = np.sort(c)[::-1]
    rows = np.arange(1, len(c) + 1)[-(-len(c) // 2) - 1 :]
    return bool((np.cumsum(best)[rows - 1] >= _needed(rows.tobytes(), target, level)).any())


def _shares(c: FloatArray, accepted: IntArray, target: float, delta: float) -> FloatArray:
    """What each threshold adds to the level of a walk that starts or arrives at it; mostly 0."""
    share = np.zeros(len(accepted))
    foreseen = _foreseen(c, accepted, target, FORESEEN * delta)
    rest = delta * (1 - FORESEEN * len(foreseen))
    starts = _halves(int(accepted[-1]), target, rest)
    # at the first threshold that accepts so many rows, which may be one for several starts
    np.add.at(share, np.searchsorted(accepted, starts), rest / len(starts))
    share[foreseen] += FORESEEN * delta
    return share


def _foreseen(c: FloatArray, accepted: IntArray, target: float, level: float) -> list[int]:
    """Where a test is likeliest to pass if the confidences come true; none if they cannot say."""
    if c[0] > 1 or c[-1] < 0 or target ** int(accepted[-1]) > level:
        return []
    rows = np.diff(accepted, prepend=0)
    right, variance = np.cumsum(rows * c), np.cumsum(rows * c * (1 - c))
    some = np.unique(np.linspace(0, len(accepted) - 1, CANDIDATES).astype(int))
    needed = _needed(accepted[some].tobytes(), target, level)
    z = (right[some] - needed) / np.sqrt(np.maximum(variance[some], np.finfo(float).tiny))
    return [int(some[np.argmax(np.where(needed <= accepted[some], z, -np.inf))])]


@lru_cache(maxsize=8)  # whatever ranks without ties asks for the same places
def _needed(rows: bytes, target: float, level: float) -> FloatArray:
    """The fewest right that pass the test, of so many rows."""
    return np.ceil(special.bdtrik(1 - level, np.frombuffer(rows, np.int64), target)) + 1


def _halves(n: int, target: float, delta: float) -> list[int]:
    """n, n/2, n/4, … while a start's share of delta could be met by rows without any error."""
    starts = [n]
    while (m := -(-starts[-1] // 2)) < starts[-1] and target**m <= delta / (len(starts) + 1):
        starts.append(m)
    return starts


def _walk(rows: IntArray, errors: IntArray, share: FloatArray, target: float) -> tuple[int, float]:
    """Position of the lowest threshold reached and the level it was tested at; -1 for none."""
    gates = np.flatnonzero(share).tolist()
    found, found_level, level = -1, 0.0, 0.0
    for gate, end in pairwise([*gates, len(rows)]):
        level += float(share[gate])
        last = _last_passed(rows[gate:end], errors[gate:end], target, level) + gate
        if last >= gate:
            found, found_level = last, level
        level = 0.0 if last < end - 1 else level
    return found, found_level


def _last_passed(rows: IntArray, errors: IntArray, target: float, level: float) -> int:
    """The place before the first that fails; places are tested some at a time, ever more."""
    for start, end in pairwise([0, *(64 << np.arange(len(rows).bit_length())).tolist()]):
        n, wrong = rows[start:end], errors[start:end]
        # P(at least so many right | target) <= level: the bound is above target, without inverting
        chance = special.betainc(n - wrong, wrong + 1.0, target)  # nan where nothing is right
        failed = np.flatnonzero(~(chance <= level))
        if len(failed):
            return start + int(failed[0]) - 1
    return len(rows) - 1
