"""The papers in plain loops: slow, obvious, float64, one term at a time.

Every fast path in ``src`` is tested against its twin here. No vectorization in this file: a loop
per sum of the formula, ``math.exp`` and ``math.log`` on Python floats. Grouped by room.
"""

from __future__ import annotations

import math

# ------------------------------------------------------------------ neighbors


def distance(a, b, metric="sqeuclidean"):
    """Distance between two vectors, scipy's names. A zero row has cosine distance 1 to all."""
    if metric == "cosine":
        na = math.sqrt(sum(float(u) ** 2 for u in a))
        nb = math.sqrt(sum(float(v) ** 2 for v in b))
        dot = sum(float(u) * float(v) for u, v in zip(a, b, strict=True))
        return 1.0 - (dot / (na * nb) if na > 0 and nb > 0 else 0.0)
    squared = sum((float(u) - float(v)) ** 2 for u, v in zip(a, b, strict=True))
    return squared if metric == "sqeuclidean" else math.sqrt(squared)


def log_sum_exp(values):
    """log Σ exp v, the largest taken out first; -inf of nothing."""
    values = list(values)
    if not values or max(values) == -math.inf:
        return -math.inf
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))
