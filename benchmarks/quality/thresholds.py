"""Does the threshold keep its promise, and what does it give away?

A head (logistic regression on 1,000 rows) is sure of the other rows by so much. Of these 300 or 800
are drawn to set the threshold for a target accuracy, a hundred times; the rest is fresh. *broken*:
the share of draws in which the accepted fresh rows are right less often than the target (delta
allows 5 %). *coverage*: fresh rows accepted, over those an oracle accepts that knows which of them
are right and takes as many of the surest as keep the target. *known*: the same for a walk that
spends all of delta on one start, the one of ``STARTS`` that is best for this very set and target in
the mean over the draws. Nobody can know it beforehand: about as much as any ordered test can give.

*most*: a share of the oracle's that no rule with this promise exceeds, whatever it tests (Neyman
and Pearson). Let rows be right with the chance that falls with their rank (isotonic, the mean over
bootstraps), and let a rule accept the surest share c, or more, with chance P. In another world the
odds of the surest c are lowered alike, to the target in the mean, and nobody below them is right
more often than that: all that is accepted from c on breaks the promise, so that the rule may do so
with chance delta there. The most powerful test of the one world against the other bounds P, and the
integral of the bound over c up to the oracle's share bounds the mean share. The rule may know both
worlds, which no rule does: a bound, not a goal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from benchmarks.quality.sets import sets
from benchmarks.runner import save
from vicinal.evaluation import threshold_for_accuracy
from vicinal.evaluation.selection import accepted_from_the_top
from vicinal.evaluation.threshold import _walk

TARGETS, TUNED, DRAWS = (0.8, 0.9, 0.95), (300, 800), 500
WORLDS, STEPS, BOOTSTRAPS = 1000, 41, 50  # of the bound: draws, shares of the oracle's, curves
STARTS = (0.4, 0.5, 0.6, 0.7, 0.8)  # of the rows that the oracle accepts
FEWEST = 2_400  # rows beyond the support: 800 to tune on, and enough to see what comes true
Rows = Any


def main(
    quick: bool = False, data: Path | None = None, splits: int = 5, work: Path | None = None
) -> None:
    """Every set that is large enough; ``splits`` and ``work`` are those of the other parts."""
    results: dict[str, dict[str, object]] = {}
    for name, x, y in sets(data):
        if len(x) < 1_000 + (0 if quick else FEWEST):
            continue
        sure, right = answers(x, y, 200 if quick else 1_000)
        for target in TARGETS:
            for tuned in TUNED:
                lines = [drawn(sure, right, target, tuned, seed) for seed in range(DRAWS)]
                found = summed([line for line in lines if line is not None])
                if found is None:
                    continue  # right less often than that, however sure
                found["most"] = most(sure, right, target, tuned)
                results[f"{name}, target {target:g}, {tuned} rows"] = found
                print(f"{name:<24} {target:g} {tuned:>4} {found}", flush=True)
    if not quick:
        save("quality_thresholds", results, draws=DRAWS)


def answers(x: Rows, y: Rows, support: int) -> tuple[Rows, Rows]:
    """How sure a plain head is of the rows it has not seen, and whether it is right."""
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] - x[order[:support]].mean(0)) / x[order[:support]].std(), y[order]
    head = LogisticRegression(C=0.01, max_iter=200, tol=1e-3).fit(x[:support], y[:support])
    p = head.predict_proba(x[support:])
    return p.max(1), head.classes_[p.argmax(1)] == y[support:]


def drawn(sure: Rows, right: Rows, target: float, tuned: int, seed: int) -> dict[str, Any] | None:
    """One draw: the threshold of some rows, and what becomes of the others."""
    order = np.random.default_rng(seed).permutation(len(sure))
    tune, fresh = order[:tuned], order[tuned:]
    level = threshold_for_accuracy(sure[tune], right[tune], target).threshold
    accepted, oracle = sure[fresh] >= level, oracle_coverage(sure[fresh], right[fresh], target)
    if oracle < 0.02:
        return None
    kept = float(right[fresh][accepted].mean()) if accepted.any() else 1.0
    known = [
        float((sure[fresh] >= from_start(sure[tune], right[tune], target, share * oracle)).mean())
        for share in STARTS
    ]
    return {
        "coverage": float(accepted.mean()),
        "oracle": oracle,
        "broken": float(kept < target),
        "known": np.array(known) / oracle,
    }


def from_start(sure: Rows, right: Rows, target: float, share: float, delta: float = 0.05) -> float:
    """The threshold of a walk that starts at a share of the rows, with all of delta there."""
    values, accepted, errors = accepted_from_the_top(sure, right)
    level = np.zeros(len(accepted))
    level[np.searchsorted(accepted, max(int(share * len(sure)), 1))] = delta
    found = _walk(accepted, errors, level, target)[0]
    return float(values[found]) if found >= 0 else float("inf")


def oracle_coverage(sure: Rows, right: Rows, target: float) -> float:
    """The largest share of the surest rows that are right often enough; ties go together."""
    order = np.argsort(-sure, kind="stable")
    kept = np.cumsum(right[order]) / np.arange(1, len(sure) + 1)
    last = np.append(sure[order][1:] != sure[order][:-1], True)
    enough = np.flatnonzero(last & (kept >= target))
    return float((enough[-1] + 1) / len(sure)) if len(enough) else 0.0


def most(sure: Rows, right: Rows, target: float, tuned: int, delta: float = 0.05) -> float:
    """What no rule exceeds in the mean, over the oracle's coverage; from simulated draws."""
    chance, rng = by_rank(sure, right), np.random.default_rng(0)
    kept = np.cumsum(chance) / np.arange(1, len(chance) + 1)
    end = int(np.flatnonzero(kept >= target)[-1]) + 1
    rows = rng.integers(0, len(chance), (WORLDS, tuned))
    came_true = rng.random(rows.shape) < chance[rows]
    counts = np.unique(np.linspace(1, end, STEPS).astype(int))
    power = []
    for count in counts:
        other = spoiled(chance, count, target)
        gain, loss = np.log(chance / other), np.log1p(-chance) - np.log1p(-other)
        ratio = np.sort(np.where(came_true, gain[rows], loss[rows]).sum(1))[::-1]
        level = np.append(np.cumsum(np.exp(-ratio)) / WORLDS, 1.0)  # chance in the other world
        power.append(np.searchsorted(level, delta, side="right") / WORLDS)
    # who accepts more than a count accepts the count: its bound holds up to the next one
    bound = np.minimum.accumulate(np.clip([1.0, *power[:-1]], delta, 1))
    return round(float(np.diff(counts / end, prepend=0) @ bound), 4)


def by_rank(sure: Rows, right: Rows) -> Rows:
    """The chance of being right, surest first: isotonic in the rank, the mean over bootstraps."""
    order, n = np.argsort(-sure, kind="stable"), len(sure)
    found, rng = np.zeros(n), np.random.default_rng(0)
    for _ in range(BOOTSTRAPS):
        some = np.sort(rng.integers(0, n, n))
        model = IsotonicRegression(increasing=False, out_of_bounds="clip")
        found += model.fit(some, right[order][some]).predict(np.arange(n))
    return (found / BOOTSTRAPS * n + 0.5) / (n + 1)  # never quite sure


def spoiled(chance: Rows, count: int, target: float) -> Rows:
    """The world next to this one in which accepting so many, or more, breaks the promise."""
    log_odds = np.log(chance[:count]) - np.log1p(-chance[:count])
    by = brentq(lambda by: expit(log_odds - by).mean() - target, -30, 60)
    return np.concatenate([expit(log_odds - by), np.minimum(chance[count:], target)])


def summed(lines: list[dict[str, Any]]) -> dict[str, float] | None:
    if len(lines) < DRAWS // 2:
        return None
    ratio = np.array([line["coverage"] / line["oracle"] for line in lines])
    return {
        "coverage": round(float(np.mean([line["coverage"] for line in lines])), 4),
        "oracle": round(float(np.mean([line["oracle"] for line in lines])), 4),
        "share": round(float(ratio.mean()), 4),
        "share_se": round(float(ratio.std(ddof=1) / len(ratio) ** 0.5), 4),
        "known": round(float(np.mean([line["known"] for line in lines], axis=0).max()), 4),
        "broken": round(float(np.mean([line["broken"] for line in lines])), 4),
    }
