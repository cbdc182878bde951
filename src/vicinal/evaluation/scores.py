r"""Proper scores: log loss with its infinite rows counted, and the Brier score.

.. math::

    \mathrm{NLL} = -\frac1n\sum_i \log p_i(y_i) \qquad
    \mathrm{Brier} = \frac1n\sum_i\sum_c (p_i(c) - [y_i = c])^2

A neighbor head gives probability exactly 0 to a class that none of the k neighbors has. Such a row
has infinite log loss. It is neither clipped nor dropped: the value is ``inf``, with the number of
such rows and the mean of the others beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vicinal.checks import InputError, as_tensor, check_distributions, check_same_rows
from vicinal.evaluation.inputs import (
    FloatArray,
    as_columns,
    as_confidence,
    as_correct,
    as_probabilities,
    exact_sum,
)


class LogLoss(float):
    """A mean log loss, ``inf`` if any row's is, that knows its rows.

    ``rows`` in all, ``infinite`` of them; ``finite_mean`` is the mean over the others.
    """

    infinite: int
    finite_mean: float
    rows: int

    @classmethod
    def of(cls, surprises: FloatArray) -> LogLoss:
        finite = surprises[np.isfinite(surprises)]
        infinite = len(surprises) - len(finite)
        mean = exact_sum(finite) / len(finite) + 0.0 if len(finite) else float("nan")
        value = cls(float("inf") if infinite else mean)
        value.infinite, value.finite_mean, value.rows = infinite, mean, len(surprises)
        return value


def negative_log_likelihood(
    probabilities: Any, labels: Any, *, log_probabilities: bool = False
) -> LogLoss:
    """Mean −log p(label); ``labels`` are column numbers (n,) or soft labels (n, c).

    >>> loss = negative_log_likelihood([[0.5, 0.5], [1.0, 0.0]], [0, 1])
    >>> float(loss), loss.infinite, round(loss.finite_mean, 4)
    (inf, 1, 0.6931)
    """
    p = _log_rows(probabilities) if log_probabilities else as_probabilities(probabilities)
    log = (lambda v: v) if log_probabilities else _log
    y = as_tensor(labels, "labels").detach().cpu()
    if y.ndim != 2:
        return LogLoss.of(-log(p[np.arange(len(p)), as_columns(y, *p.shape)]))
    target = _soft_rows(y, p.shape)
    surprise = np.zeros(len(p))
    for c in range(p.shape[1]):  # column by column: a row's sum cannot depend on its neighbors
        wanted = target[:, c] > 0  # 0 log 0 = 0
        surprise[wanted] -= log(p[wanted, c]) * target[wanted, c]
    return LogLoss.of(surprise)


def brier_score(probabilities: Any, labels: Any) -> float:
    """Mean squared distance to the one-hot label: 0 best, 2 worst (Brier 1950).

    With probabilities (n,) of one event and ``labels`` saying whether it came: the squared
    difference alone, 0 to 1 (half the two-column value).

    >>> brier_score([[0.75, 0.25], [0.5, 0.5]], [0, 1]), brier_score([0.75, 0.5], [1, 0])
    (0.3125, 0.15625)
    """
    p = as_tensor(probabilities, "probabilities").detach().cpu()
    if p.ndim == 1:
        c = as_confidence(p, "probabilities").astype(float)
        return exact_sum((c - as_correct(labels, len(c), "labels")) ** 2) / len(c)
    rows = as_probabilities(p).astype(float)
    y = as_tensor(labels, "labels").detach().cpu()
    if y.ndim == 2:
        target = _soft_rows(y, rows.shape)
    else:
        target = np.zeros_like(rows)
        target[np.arange(len(rows)), as_columns(y, *rows.shape)] = 1
    return exact_sum(((rows - target) ** 2).ravel()) / len(rows)


def _log(p: FloatArray) -> FloatArray:
    """Logarithms taken in sorted order: a vector unit may round by position in the array."""
    order = np.argsort(p, kind="stable")
    out = np.empty(len(p))
    with np.errstate(divide="ignore"):
        out[order] = np.log(p[order].astype(float))
    return out


def _log_rows(value: Any) -> FloatArray:
    """(n, c) log-probabilities in float64; each row must be a distribution."""
    log_p = as_tensor(value, "probabilities").detach().cpu().double()
    if log_p.ndim != 2 or len(log_p) == 0 or bool(log_p.isnan().any()):
        raise InputError(
            "`probabilities` as logarithms must be a matrix (rows, classes) without NaN, "
            f"got shape {tuple(log_p.shape)}."
        )
    check_distributions(log_p.exp(), "probabilities")
    return np.ascontiguousarray(log_p.numpy())


def _soft_rows(y: Any, shape: tuple[int, ...]) -> FloatArray:
    check_same_rows(range(shape[0]), y, "probabilities", "labels")
    target = as_probabilities(y, "labels").astype(float)
    if target.shape != shape:
        raise InputError(
            f"soft `labels` have {target.shape[1]} columns, `probabilities` {shape[1]}. "
            "They must name the same classes."
        )
    return target
