"""Which of the papers' orderings hold in the numbers found: a claim, its two sides, a verdict."""

from __future__ import annotations

from typing import Any

import numpy as np

NEIGHBORS = ("knn", "dudani", "gou", "ned")


def mean_and_error(values: list[float]) -> list[float]:
    """Mean and standard error over seeds (0 with one seed: unknown)."""
    v = np.array(values, dtype=float)
    error = v.std(ddof=1) / len(v) ** 0.5 if len(v) > 1 else 0.0
    return [round(float(v.mean()), 5), round(float(error), 5)]


def claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Each ordering on each data set; differences are paired over the seeds."""
    rows = []
    for name, losses in found.items():
        for loss, facts in losses.items():
            where = f"{name}, {loss}"
            rows += _corruptions(facts, where) + _attacks(facts, where)
        rows += _entanglement(losses, name)
    return rows


def _claim(claim: str, differences: list[float], unit: str = "points") -> dict[str, Any]:
    """Holds when the mean difference is above zero; the error says how surely."""
    mean, error = mean_and_error([100 * d for d in differences])
    return {"claim": claim, "holds": bool(mean > 0), "difference": mean, "error": error,
            "found": f"{mean:+.1f} ± {error:.1f} {unit}"}  # fmt: skip


def _corruptions(facts: dict[str, Any], where: str) -> list[dict[str, Any]]:
    seeds = facts["per_seed_corrupted"]
    rest = [h for h in NEIGHBORS if h != "ned"]
    return [
        _claim(
            f"Karpusha T2 ({where}): NED is the most accurate neighbor head under corruption",
            [s["ned"]["accuracy"] - max(s[h]["accuracy"] for h in rest) for s in seeds],
        ),
        _claim(
            f"Karpusha T2 ({where}): weighted kNN (Dudani) beats kNN under corruption",
            [s["dudani"]["accuracy"] - s["knn"]["accuracy"] for s in seeds],
        ),
        _claim(
            f"Karpusha T2 ({where}): NED has the lowest ECE of the neighbor heads under corruption",
            [min(s[h]["ece"] for h in rest) - s["ned"]["ece"] for s in seeds],
        ),
        _claim(
            f"beyond the paper ({where}): NED has a lower ECE than softmax under corruption",
            [s["softmax"]["ece"] - s["ned"]["ece"] for s in seeds],
        ),
    ]


def _attacks(facts: dict[str, Any], where: str) -> list[dict[str, Any]]:
    seeds = facts["per_seed_attacks"]
    rest = [h for h in NEIGHBORS if h != "ned"]
    rows = []
    for source in ("softmax", "ned"):
        mine = [[v for k, v in s.items() if k.endswith(f"on {source}")] for s in seeds]
        gain = [np.mean([c["ned"][0] - max(c[h][0] for h in rest) for c in s]) for s in mine]
        sharper = [np.mean([min(c[h][1] for h in rest) - c["ned"][1] for c in s]) for s in mine]
        rows += [
            _claim(f"Karpusha T3 ({where}): NED is the most accurate neighbor head, "
                   f"attacks made on {source}", gain),
            _claim(f"Karpusha T3 ({where}): NED has the lowest ECE of the neighbor heads, "
                   f"attacks made on {source}", sharper),
        ]  # fmt: skip
    audits = facts["audit"]
    last = [a[-1]["fitted_accuracy"] - a[-1]["worst_case_accuracy"] for a in audits]
    masked = sum(bool(a[-1]["masked_gradients"]) for a in audits)
    row = _claim(f"audit ({where}): the attack through NED alone overstates the accuracy", last)
    row["found"] += f"; masked gradients flagged in {masked} of {len(audits)} seeds"
    return [*rows, row]


def _entanglement(losses: dict[str, Any], name: str) -> list[dict[str, Any]]:
    plain, entangled = losses["cross-entropy"], losses["entangled"]
    gaps = [
        [np.mean([e["gap"] for e in seed if e["epsilon"] > 0]) for seed in side["dknn"]]
        for side in (plain, entangled)
    ]
    rises = [
        _rise(seed) for side in (plain, entangled) for seed in side["dknn"]
    ]  # accuracy in the upper half of credibility minus the lower half
    lost = [  # accuracy lost to attacks made on the other net
        [np.mean(list(s.values())) for s in side["lost_to_attacks_made_on_the_other_net"]]
        for side in (plain, entangled)
    ]
    return [
        _claim(f"Frosst F14/18/19 ({name}): DkNN accuracy rises with credibility", rises),
        _claim(
            f"Frosst F14 ({name}): entangled nets have the smaller gap between DkNN accuracy and "
            "credibility under FGSM",
            [a - b for a, b in zip(*gaps, strict=True)],
        ),
        _claim(
            f"Frosst F20 ({name}): attacks made on the entangled net transfer worse than the "
            "reverse",
            [b - a for a, b in zip(*lost, strict=True)],
        ),
    ]


def _rise(seed: list[dict[str, Any]]) -> float:
    rows = np.sum([e["rows"] for e in seed], 0)
    right = np.sum([e["right"] for e in seed], 0)
    low, high = slice(0, 2), slice(3, 5)
    return float(
        right[high].sum() / max(rows[high].sum(), 1) - right[low].sum() / max(rows[low].sum(), 1)
    )
