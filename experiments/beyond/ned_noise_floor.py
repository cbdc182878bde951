"""NED with everything fitted reaches the noise floor of ECE, and is never worse than eq. 3.

Ours, not the paper's: beside eq. 3 of Karpusha 2020, its sharpness, background and class
bandwidths fitted leave-one-out. ECE of a finite sample has a floor, what a perfectly calibrated
head would read; the goal is a ratio of at most 1.3, and a log-loss not above that of eq. 3.

Here: five settings of scikit-learn's digits. The fit's prior and its rule for keeping a parameter
were chosen on splits 0 to 5; splits 6 to 11 are fresh.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from experiments.data import Source, images
from experiments.draw import COLORS, dots, tidy
from experiments.karpusha2020ned.retrieval import halves
from experiments.record import Claim, difference
from experiments.runner import main
from sklearn.decomposition import PCA

from vicinal.confidence import NEDClassifier
from vicinal.evaluation import expected_calibration_error, noise_floor

FLOOR = 1e-12  # a probability of 0 counts as this in the log-loss
FITTED = {"sharpness": "fit", "background": "fit", "bandwidth": "class"}


@dataclass(frozen=True)
class Settings:
    sets: tuple[str, ...] = ("noisy", "pca3", "disjoint", "pca16", "imbalance")
    k: int = 100
    seeds: tuple[int, ...] = (6, 7, 8, 9, 10, 11)


QUICK = Settings(sets=("noisy", "pca3"), seeds=(6,))
PRESETS = {"quick": QUICK, "cpu": Settings(), "paper": Settings()}
THEIRS: dict[str, float] = {}
SMALLER = "digits"


def split(source: Source, name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Support rows and labels, query rows and labels."""
    rng = np.random.default_rng(seed)
    x, y = images(source, "digits")
    x, y = x.flatten(1).double().numpy(), y.numpy()
    order = rng.permutation(len(x))
    if name == "disjoint":  # the embedding learns 0-4 and is judged on 5-9
        seen = halves(source, "digits", "normalized softmax", 120, 16, seed)
        return tuple(t.numpy() for t in (*seen.support, *seen.query))
    if name in ("noisy", "imbalance"):
        x = x + rng.normal(0, 0.45, x.shape)
    if name == "imbalance":
        keep = [np.flatnonzero(c == y)[: int(180 * 0.7**c) + 6] for c in range(10)]
        order = rng.permutation(np.concatenate(keep))
    a, b = order[: len(order) // 2], order[len(order) // 2 :]
    components = int(name.removeprefix("pca")) if name.startswith("pca") else 20
    pca = PCA(components, random_state=0).fit(x[a])
    return pca.transform(x[a]), y[a], pca.transform(x[b]), y[b]


def scores(head: NEDClassifier, rows, labels, queries, truth) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = np.asarray(head.fit(rows, labels).predict_proba(queries), dtype=np.float64)
    p = p / p.sum(1, keepdims=True)
    own = p[np.arange(len(p)), np.searchsorted(head.classes_, truth)]
    correct = head.classes_[p.argmax(1)] == truth
    return {
        "ratio": expected_calibration_error(p.max(1), correct) / float(noise_floor(p.max(1))),
        "nll": float(-np.log(np.maximum(own, FLOOR)).mean()),
    }


def run(settings: Settings, seed: int, source: Source) -> dict:
    found = {}
    for name in settings.sets:
        parts = split(source, name, seed)
        heads = {"eq3": NEDClassifier(settings.k), "fitted": NEDClassifier(settings.k, **FITTED)}
        found[name] = {head: scores(made, *parts) for head, made in heads.items()}
    return {"sets": found}


def claims(rows: list[dict]) -> list[Claim]:
    told = []
    for name in rows[0]["sets"]:
        above = [1.3 - row["sets"][name]["fitted"]["ratio"] for row in rows]
        gain = difference(rows, f"sets.{name}.eq3.nll", f"sets.{name}.fitted.nll")
        told += [
            Claim(f"{name}: ECE at most 1.3 of its floor", above, beyond=True),
            Claim(f"{name}: log-loss not above eq. 3's", gain, needs=-0.001, beyond=True),
        ]
    return told


def draw(rows: list[dict], figure) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for head, color in zip(("eq3", "fitted"), COLORS, strict=False):
        for ax, what in ((left, "ratio"), (right, "nll")):
            told = {n: [r["sets"][n][head][what] for r in rows] for n in rows[0]["sets"]}
            dots(ax, told, color=color)
    left.axvline(1, color="k", linewidth=0.6)
    tidy(left, "ECE / noise floor")
    tidy(right, "log-loss (blue: eq. 3, orange: fitted)")


if __name__ == "__main__":
    main(__file__)
