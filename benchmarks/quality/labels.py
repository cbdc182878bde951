"""Are wrong labels found? The audit's scores and flags against cleanlab's on the same rows.

Planted: 5, 10 and 20 % of the labels replaced, by any other class (even) or by the next (one way);
or none, which asks how many are said to be wrong all the same. Human: CIFAR-10N on features of a
pretrained network, where the folder has them. cleanlab is given what its users give it: out-of-fold
probabilities of a logistic regression with the penalty that cross-validation prefers, on unit rows.
Average precision of the ranking, F1 of the flags, and whether the interval of how many are wrong
holds the number.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss
from sklearn.model_selection import cross_val_predict

from benchmarks.quality.sets import sets
from benchmarks.runner import save
from vicinal.audits.facts import gather
from vicinal.audits.inputs import ready_sets
from vicinal.audits.settings import About, AuditSettings, Job

SETS = ("digits", "FashionMNIST features", "birds 1-100 features", "CIFAR-10 features")
SHARES = (0.05, 0.1, 0.2)
HUMAN = ("aggre_label", "random_label1", "worse_label")
Rows = Any


def cases(data: Path | None, seed: int, quick: bool) -> Iterator[tuple[str, Rows, Rows, Rows]]:
    """Name, rows, given labels, which of them are wrong."""
    for name, x, y in sets(data):
        if name not in SETS:
            continue
        rng = np.random.default_rng(seed)
        most = 400 if quick else max(1500, 20 * len(np.unique(y)))
        some = rng.permutation(len(x))[:most]
        rows, true = x[some], np.unique(y[some], return_inverse=True)[1]
        yield f"{name}, none", rows, true, np.zeros(len(true), bool)
        for share in SHARES:
            for kind in ("even", "one way"):
                given = planted(true, share, kind, rng)
                yield f"{name}, {share:.0%} {kind}", rows, given, given != true
        if data is not None and name.startswith("CIFAR"):
            yield from human(data, x, y, rng)


def planted(true: Rows, share: float, kind: str, rng: np.random.Generator) -> Rows:
    count, moved = int(true.max()) + 1, rng.random(len(true)) < share
    step = rng.integers(1, count, len(true)) if kind == "even" else 1
    return np.where(moved, (true + step) % count, true)


def human(data: Path, x: Rows, y: Rows, rng: np.random.Generator) -> Iterator[Any]:
    """CIFAR-10N's labels of the packed training images, in their order."""
    index = np.load(data / "cifar10" / "labels.npz")["train_index"]
    noisy = np.load(data / "cifar10" / "cifar10n_full50000.npz")
    some = rng.permutation(len(x))[:2000]
    for name in HUMAN:
        given = noisy[name][index][some].astype(np.int64)
        yield f"CIFAR-10N {name}", x[some], given, given != y[some]


class FoundLabels(NamedTuple):
    """Larger ``scores`` are more suspect; ``interval`` of how many are wrong, if it is named."""

    scores: Rows
    flagged: Rows
    interval: tuple[float, float] | None = None


def ours(x: Rows, given: Rows) -> FoundLabels:
    """Scores and suspects of an audit of the labeled rows alone, without its other sections."""
    settings, about = AuditSettings(), About()
    sets = ready_sets((x, given), None, None, settings, about, None)
    noise = gather(sets, None, None, Job(settings, about)).labels.noise
    flagged = np.zeros(len(given), bool)
    flagged[noise.flagged.numpy()] = True
    return FoundLabels(noise.scores.numpy(), flagged, (noise.wrong.low, noise.wrong.high))


def cleanlab(x: Rows, given: Rows) -> FoundLabels:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
    unit = (unit - unit.mean(0)) / unit.std()
    found = [
        cross_val_predict(
            LogisticRegression(C=c, max_iter=200, tol=1e-3),
            unit,
            given,
            cv=4,
            method="predict_proba",
        )
        for c in (1e-3, 1e-2, 1e-1, 1.0)
    ]
    p = min(found, key=lambda q: log_loss(given, q))
    return FoundLabels(-get_label_quality_scores(given, p), find_label_issues(given, p))


JUDGES = {"vicinal": ours, "cleanlab": cleanlab}


def main(
    quick: bool = False, data: Path | None = None, splits: int = 5, work: Path | None = None
) -> None:
    """Every draw, every case, both judges; what ``work`` holds is not asked again.

    With ``splits`` = 0 nothing is: the JSON is written from what it holds.
    """
    if work is not None and splits == 0:
        save("quality_labels", collected(work))
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in range(1 if quick else splits):
        for name, x, given, wrong in cases(data, seed, quick):
            lines = results.setdefault(name, {who: [] for who in JUDGES})
            for who in JUDGES:
                kept = None if work is None else work / f"{name}, {seed}, {who}.json"
                if kept is not None and kept.exists():
                    lines[who].append(json.loads(kept.read_text()))
                    continue
                lines[who].append(judged(who, x, given, wrong))
                if kept is not None:
                    kept.write_text(json.dumps(lines[who][-1]))
            (mine, theirs) = (lines[who][-1] for who in JUDGES)
            rank = f"AP {mine['ap']:.3f} / {theirs['ap']:.3f}   " if wrong.any() else ""
            print(
                f"{name:<40} {rank}F1 {mine['f1']:.3f} / {theirs['f1']:.3f}   {wrong.sum()} wrong, "
                f"{mine['flagged']:.0f} / {theirs['flagged']:.0f} flagged",
                flush=True,
            )
        if not quick:
            save("quality_labels", results, splits=seed + 1)


def collected(work: Path) -> dict[str, dict[str, list[dict[str, float]]]]:
    """The draws that both judges have answered, by case."""
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for path in sorted(work.glob("*, vicinal.json")):
        name, seed, _ = path.stem.rsplit(", ", 2)
        both = {who: work / f"{name}, {seed}, {who}.json" for who in JUDGES}
        if all(kept.exists() for kept in both.values()):
            lines = results.setdefault(name, {who: [] for who in JUDGES})
            for who, kept in both.items():
                lines[who].append(json.loads(kept.read_text()))
    return results


def judged(who: str, x: Rows, given: Rows, wrong: Rows) -> dict[str, float]:
    """Average precision of the ranking, F1 of the flags, and the interval's ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores, flagged, interval = JUDGES[who](x, given)
    hits = float((flagged & wrong).sum())
    found = {
        "ap": float(average_precision_score(wrong, scores)) if wrong.any() else 0.0,
        "f1": 2 * hits / max(float(flagged.sum() + wrong.sum()), 1.0),
        "flagged": int(flagged.sum()),
        "wrong": int(wrong.sum()),
    }
    return found | (dict(zip(("low", "high"), interval, strict=True)) if interval else {})
