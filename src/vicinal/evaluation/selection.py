r"""What happens if only the confident predictions are accepted?

Rows are accepted from the most confident down; after :math:`r` of :math:`n` rows with :math:`e_r`
errors among them

.. math::

    \mathrm{AURC} = \frac1n\sum_{r=1}^n \frac{e_r}{r}
    \qquad
    \mathrm{AUGRC} = \frac1n\sum_{r=1}^n \frac{e_{r-1} + e_r}{2n}
    = \mathrm{acc}\,(1-\mathrm{acc})(1 - \mathrm{AUROC}) + \tfrac12 (1-\mathrm{acc})^2

(Geifman and El-Yaniv 2017; Traub et al. 2024). Rows of equal confidence can only be accepted
together; inside such a group :math:`e_r` is its expectation over random orders, so no order of the
input changes the areas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vicinal.checks import InputError, check_same_rows
from vicinal.evaluation.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    as_classes,
    as_confidence,
    as_correct,
    as_vector,
    exact_sum,
)
from vicinal.evaluation.intervals import wilson_interval


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """One entry per threshold that tells rows apart, from the most confident down.

    Accepting ``confidence >= threshold[g]`` takes ``accepted[g]`` rows with ``errors[g]`` errors.
    """

    threshold: FloatArray
    accepted: IntArray
    errors: IntArray
    aurc: float
    augrc: float
    excess_aurc: float  # above the area of a ranking with every error last

    @property
    def coverage(self) -> FloatArray:
        return self.accepted / self.accepted[-1]

    @property
    def risk(self) -> FloatArray:
        return self.errors / self.accepted

    def at_coverage(self, coverage: float) -> float:
        """Expected share of errors among the most confident ``coverage`` of the rows."""
        if not 0 < coverage <= 1:
            raise InputError(f"`coverage` must lie in (0, 1], got {coverage!r}.")
        rows = coverage * float(self.accepted[-1])
        errors = np.interp(rows, np.append(0, self.accepted), np.append(0, self.errors))
        return float(errors / rows)


def risk_coverage(confidence: Any, correct: Any) -> RiskCoverage:
    """The curve of errors against accepted rows, and the areas under it.

    >>> curve = risk_coverage([0.9, 0.8, 0.8, 0.1], [True, True, False, False])
    >>> curve.coverage.tolist(), curve.risk.round(3).tolist()
    ([0.25, 0.75, 1.0], [0.0, 0.333, 0.5])
    """
    c = as_vector(confidence, "confidence")  # any score ranks; it need not be a probability
    correct = as_correct(correct, len(c))
    threshold, accepted, errors = accepted_from_the_top(c, correct)
    n, wrong = len(c), int(errors[-1])
    best = _area(np.array([n - wrong, n])[n == wrong :], np.array([0, wrong])[n == wrong :])
    aurc = _area(accepted, errors)
    # trapezoids in integers: a group of m rows between e and e' errors has area m (e + e') / 2
    steps = np.diff(accepted, prepend=0) * (np.append(0, errors[:-1]) + errors)
    augrc = int(steps.sum()) / (2 * n * n)
    return RiskCoverage(threshold, accepted, errors, aurc, augrc, aurc - best)


def area_under_risk_coverage(confidence: Any, correct: Any) -> float:
    """AURC: mean risk over all coverages 1/n, 2/n, …, 1; smaller is better.

    >>> area_under_risk_coverage([0.9, 0.8, 0.7], [True, True, False])  # (0 + 0 + 1/3) / 3
    0.1111111111111111
    """
    return risk_coverage(confidence, correct).aurc


def area_under_generalized_risk_coverage(confidence: Any, correct: Any) -> float:
    """AUGRC: mean over coverages of the chance that a row is accepted *and* wrong."""
    return risk_coverage(confidence, correct).augrc


@dataclass(frozen=True, eq=False)
class ClassTable:
    """One entry per class; a rate without rows is ``nan``. Intervals are Wilson's, 95 %.

    ``recall`` over the rows of the class, ``precision`` and ``confidence`` over the rows predicted
    as it; ``coverage`` is the share of the class's rows at or above the threshold.
    """

    classes: IntArray
    rows: IntArray
    predicted: IntArray
    correct: IntArray
    recall: FloatArray
    recall_low: FloatArray
    recall_high: FloatArray
    precision: FloatArray
    confidence: FloatArray
    coverage: FloatArray
    accepted_precision: FloatArray
    threshold: float

    def __str__(self) -> str:
        names = "class rows predicted recall precision confidence coverage accepted"
        head = "".join(f"{name:>11}" for name in names.split())
        columns = (self.recall, self.precision, self.confidence, self.coverage)
        lines = [
            f"{self.classes[j]:>11}{self.rows[j]:>11}{self.predicted[j]:>11}"
            + "".join(f"{column[j]:>11.4f}" for column in (*columns, self.accepted_precision))
            for j in range(len(self.classes))
        ]
        return "\n".join([head, *lines])


def class_table(
    labels: Any, predicted: Any, confidence: Any, *, threshold: float = 0.0
) -> ClassTable:
    """Where the errors and the confidence are, class by class.

    Parameters
    ----------
    labels, predicted : integer classes (n,).
    confidence : of each prediction, in [0, 1].
    threshold : rows at or above it count as accepted.

    >>> table = class_table([0, 0, 1], [0, 1, 1], [0.9, 0.6, 0.8], threshold=0.7)
    >>> table.recall.tolist(), table.precision.tolist(), table.accepted_precision.tolist()
    ([0.5, 1.0], [1.0, 0.5], [1.0, 1.0])
    """
    c = as_confidence(confidence)
    y, guess = as_classes(labels, len(c), "labels"), as_classes(predicted, len(c), "predicted")
    classes = np.unique(np.concatenate([y, guess]))
    mine, given = y == classes[:, None], guess == classes[:, None]
    taken = c >= threshold
    rows, guesses, hits = mine.sum(1), given.sum(1), (mine & given).sum(1)
    low, high = wilson_interval(hits, rows)
    mean = np.array([exact_sum(c[row]) for row in given])
    nothing = rows == 0
    return ClassTable(
        classes, rows, guesses, hits,
        _rate(hits, rows), np.where(nothing, np.nan, low), np.where(nothing, np.nan, high),
        _rate(hits, guesses), _rate(mean, guesses), _rate((mine & taken).sum(1), rows),
        _rate((mine & given & taken).sum(1), (given & taken).sum(1)), float(threshold),
    )  # fmt: skip


def accepted_from_the_top(
    c: FloatArray, correct: BoolArray
) -> tuple[FloatArray, IntArray, IntArray]:
    """Distinct confidences descending, with rows and errors at or above each."""
    check_same_rows(c, correct, "confidence", "correct")
    order = np.argsort(-c, kind="stable")
    values, errors = c[order] + c.dtype.type(0), (~correct[order]).cumsum()  # + 0: -0.0 is 0.0
    last = np.append(np.flatnonzero(np.diff(values)), len(c) - 1)  # of each group of equals
    return values[last], last + 1, errors[last]


def _area(accepted: IntArray, errors: IntArray) -> float:
    """Mean over r = 1..n of the expected e_r / r, linear inside a group of equal confidence."""
    n = int(accepted[-1])
    rank = np.arange(1, n + 1)
    return exact_sum(np.interp(rank, np.append(0, accepted), np.append(0, errors)) / rank) / n


def _rate(part: Any, whole: IntArray) -> FloatArray:
    return np.where(whole == 0, np.nan, part / np.maximum(whole, 1))
