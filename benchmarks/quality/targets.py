"""Does the promise hold where the target was chosen on the rows that set the threshold?

Thirty made worlds: confidences of five shapes, true to their word, too high or too low, in samples
of 200 and 1,000 rows. In each, a hundred times, ``reachable_target`` chooses a target and the
threshold is set on the same rows. *broken*: the share of draws whose accepted fresh rows are right
less often than was promised, by the world's own law; 5 % are allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import save
from vicinal.evaluation import reachable_target, threshold_for_accuracy

DELTA, DRAWS, ROWS = 0.05, 300, (200, 1000)
Values = Any
SHAPES: dict[str, Callable[[Values], Values]] = {  # confidences from evenly spread numbers
    "mostly sure": lambda u: 1 - 0.5 * u**6,
    "hard": lambda u: 0.3 + 0.7 * u,
    "at the targets": lambda u: 0.9 + 0.1 * u,
    "all alike": lambda u: 0.92 + 0.075 * u,
    "two kinds": lambda u: np.where(u < 0.6, 0.97 + 0.03 * u, 0.5 + 0.4 * u),
}
ERRORS = {"true": 0.0, "too high": 0.06, "too low": -0.05}


def main(
    quick: bool = False, data: Path | None = None, splits: int = 5, work: Path | None = None
) -> None:
    """Every world; ``data``, ``splits`` and ``work`` are those of the other parts."""
    results, draws = {}, 20 if quick else DRAWS
    for rows in ROWS:
        for shape, confidences in SHAPES.items():
            for error, above in ERRORS.items():
                name = f"{shape}, {error}, {rows} rows"
                results[name] = found = world(confidences, above, rows, draws)
                print(f"{name:<36} {found}", flush=True)
                if not quick:  # after every world: a run that is stopped leaves what it measured
                    save("quality_targets", results, draws=DRAWS)


def world(
    confidences: Callable[[Values], Values], above: float, rows: int, draws: int
) -> dict[str, float]:
    """Broken promises, rows accepted, and the mean target chosen."""
    rng = np.random.default_rng(0)
    law = np.sort(confidences(np.linspace(0, 1, 20_001)))[::-1]
    kept = np.cumsum(np.clip(law - above, 0, 1)) / np.arange(1, len(law) + 1)  # above each
    found = []
    for _ in range(draws):
        c = confidences(rng.random(rows))
        right = rng.random(rows) < np.clip(c - above, 0, 1)
        chosen = reachable_target(c, right, DELTA)
        cut = threshold_for_accuracy(c, right, chosen.target, DELTA)
        last = np.searchsorted(-law, -cut.threshold, side="right") - 1
        broken = cut.reachable and last >= 0 and kept[last] < chosen.target
        found.append((broken, cut.coverage, chosen.target))
    broken, coverage, target = np.array(found, float).mean(0).round(4).tolist()
    return {"broken": broken, "coverage": coverage, "target": target}
