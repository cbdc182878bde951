"""Heads under 15 x 5 corruptions and three attacks, on plain and entangled nets.

The shape of Karpusha 2020, Tables 2 and 3 (softmax, kNN, Dudani, Gou, NED: accuracy and ECE) and of
Frosst 2019, Figures 14 and 18 to 20 (DkNN accuracy by credibility, transfer), on digits and on a
subset of FashionMNIST, with standard errors over seeds.

    python experiments/robustness/corruptions_and_attacks.py --data DIR --preset cpu
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scoreboard
import torch
from orderings import claims, mean_and_error
from small_nets import LOSSES, Parts, hidden, parts_of, small_net, train
from torch import Tensor, nn

from vicinal.confidence import DeepKNN, KNNClassifier, NEDClassifier
from vicinal.perturbations import CORRUPTIONS, fgsm
from vicinal.studies import PerturbationReport, attack_audit, robustness_report

RESULTS = Path(__file__).parent / "results"
HEADS = ("softmax", "knn", "dudani", "gou", "ned")
ATTACKS = ("fgsm", "bim", "pgd")
CONSTANTS = "cifar"  # CIFAR-10-C's: both data sets are small images
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Settings:
    seeds: int
    steps: int
    k: int
    epsilons: tuple[float, float]
    digits: tuple[int, int, int, int]  # rows to train on, to vote, to calibrate, to test
    fashion: tuple[int, int, int, int]


PRESETS = {
    "quick": Settings(1, 60, 20, (0.05, 0.1), (500, 300, 100, 60), (500, 300, 100, 60)),
    "cpu": Settings(3, 200, 30, (0.05, 0.1), (600, 400, 150, 150), (1500, 700, 200, 150)),
}


def run(settings: Settings, name: str, data: Path) -> dict[str, Any]:
    """One data set: both losses, every seed."""
    nets: dict[str, list[dict[str, Any]]] = {loss: [] for loss in LOSSES}
    for seed in range(settings.seeds):
        parts = parts_of(name, getattr(settings, name), data, seed)
        size = parts.test[0].shape[-1]
        pair = {
            loss: train(small_net(size, seed), parts.train, loss, settings.steps, seed)
            for loss in LOSSES
        }
        for loss, other in zip(LOSSES, reversed(LOSSES), strict=True):
            nets[loss].append(one(settings, parts, pair[loss], pair[other], seed))
    return {loss: summary(runs) for loss, runs in nets.items()}


def one(
    settings: Settings, parts: Parts, net: nn.Sequential, other: nn.Sequential, seed: int
) -> dict[str, Any]:
    """One net: the report, the audit, DkNN by credibility, and attacks made on the ``other`` net.

    The support is disjoint from the training rows: on those the embedding is always right, and a
    temperature fitted there means nothing. DkNN looks among the training rows, as in its paper.
    """
    x, y = parts.test
    support = net[0](parts.support[0]).detach()
    knn = {
        name: KNNClassifier(k=settings.k, weights=weights).fit(support, parts.support[1])
        for name, weights in (("knn", "uniform"), ("dudani", "dudani"), ("gou", "gou"))
    }
    ned = NEDClassifier(k=settings.k).fit(support, parts.support[1])
    dknn = DeepKNN(k=settings.k).fit(hidden(net, parts.train[0]), parts.train[1])
    dknn.calibrate(hidden(net, parts.calib[0]), parts.calib[1])
    report = robustness_report(
        {"softmax": net[1], **knn, "ned": ned}, x, y, embed=net[0],
        credibility=lambda images: dknn.credibility(hidden(net, images)),
        sources={"softmax": net, "ned": nn.Sequential(net[0], ned.module())},
        attacks=ATTACKS, epsilons=settings.epsilons, constants=CONSTANTS,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    audits = [
        attack_audit(ned, x, y, epsilon, net=net[0], proxy=net,
                     generator=torch.Generator().manual_seed(seed))
        for epsilon in settings.epsilons
    ]  # fmt: skip
    moved = {0.0: x} | {e: fgsm(net, x, y, e) for e in (0.02, *settings.epsilons)}
    return {
        "report": report,
        "audit": [{k: v for k, v in asdict(a).items() if not isinstance(v, tuple)} for a in audits],
        "dknn": [by_credibility(dknn, net, images, y, e) for e, images in moved.items()],
        "transfer": {
            str(e): float((net(x).argmax(1) == y).double().mean())
            - float((net(fgsm(other, x, y, e)).argmax(1) == y).double().mean())
            for e in settings.epsilons
        },
    }


def by_credibility(
    dknn: DeepKNN, net: nn.Sequential, images: Tensor, y: Tensor, epsilon: float
) -> dict[str, Any]:
    """DkNN's accuracy within bins of its credibility, and the gap of the two means."""
    out = dknn.evaluate(hidden(net, images))
    right, trust = (out.labels == y).double().numpy(), np.asarray(out.credibility)
    place = np.clip(np.digitize(trust, EDGES[1:-1]), 0, len(EDGES) - 2)
    return {
        "epsilon": epsilon,
        "accuracy": float(right.mean()),
        "credibility": float(trust.mean()),
        "gap": float(abs(right.mean() - trust.mean())),
        "rows": [int((place == b).sum()) for b in range(len(EDGES) - 1)],
        "right": [float(right[place == b].sum()) for b in range(len(EDGES) - 1)],
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and standard errors over the seeds."""
    reports: list[PerturbationReport] = [r["report"] for r in runs]
    cases = list(dict.fromkeys((r.perturbation, r.level, r.source) for r in reports[0].rows))
    table: dict[str, Any] = {}
    for case in cases:
        rows = {h: [r.row(h, case[0], case[1], case[2]) for r in reports] for h in HEADS}
        label = " ".join(str(part) for part in case if part not in (None, 0.0))
        table[label] = {
            head: {key: mean_and_error([getattr(r, key) for r in mine])
                   for key in ("accuracy", "ece", "noise_floor", "credibility")}
            for head, mine in rows.items()
        }  # fmt: skip
    corrupted = [
        {h: {key: float(np.mean([getattr(row, key) for row in r.rows
                                 if row.head == h and row.kind == "corruption"]))
             for key in ("accuracy", "ece", "noise_floor")} for h in HEADS}
        for r in reports
    ]  # fmt: skip
    return {
        "cases": table,
        "corrupted": {h: {key: mean_and_error([c[h][key] for c in corrupted])
                          for key in corrupted[0][h]} for h in HEADS},
        "mce": {h: mean_and_error([r.mean_corruption_error(h) for r in reports]) for h in HEADS},
        "per_seed_corrupted": corrupted,
        "per_seed_attacks": [
            {
                f"{case[0]} {case[1]} on {case[2]}": {
                    h: [report.row(h, *case).accuracy, report.row(h, *case).ece] for h in HEADS
                }
                for case in cases
                if case[2]
            }
            for report in reports
        ],
        "audit": [r["audit"] for r in runs],
        "dknn": [r["dknn"] for r in runs],
        "lost_to_attacks_made_on_the_other_net": [r["transfer"] for r in runs],
    }  # fmt: skip


def show(found: dict[str, Any]) -> str:
    lines = []
    for name, losses in found.items():
        for loss, facts in losses.items():
            lines.append(f"\n{name}, {loss}: accuracy ± se / ECE ± se (floor), %")
            cases = {"clean": facts["cases"]["clean"], "15 x 5 corruptions": facts["corrupted"]}
            cases |= {k: v for k, v in facts["cases"].items() if k.split()[0] in ATTACKS}
            lines += [
                f"  {case:<24}" + "".join(cell(row[h]) for h in HEADS)
                for case, row in cases.items()
            ]
    lines.append("\nThe papers' orderings")
    lines += [
        f"  [{'holds' if c['holds'] else 'does not hold'}] {c['claim']}: {c['found']}"
        for c in claims(found)
    ]
    return "\n".join(lines)


def cell(row: dict[str, list[float]]) -> str:
    (a, ae), (e, ee), (f, _) = row["accuracy"], row["ece"], row["noise_floor"]
    return f"{100 * a:6.1f}±{100 * ae:3.1f}/{100 * e:5.1f}±{100 * ee:3.1f} ({100 * f:3.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with fashion_mnist/")
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    arguments = parser.parse_args()
    settings = PRESETS[arguments.preset]
    found: dict[str, Any] = {}
    for name in ("digits", "fashion"):
        found[name] = run(settings, name, arguments.data)
        if arguments.preset != "quick":
            save(settings, found, arguments.preset)
    print(show(found))


def save(settings: Settings, found: dict[str, Any], preset: str) -> None:
    """To a temporary name first; after each data set, so that a cut run keeps what it has."""
    record = {"settings": asdict(settings), "corruptions": CORRUPTIONS, "constants": CONSTANTS,
              "found": found, "orderings": claims(found)}  # fmt: skip
    path = RESULTS / f"corruptions_and_attacks.{preset}.json"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record) + "\n")
    partial.replace(path)
    scoreboard.write(record)


if __name__ == "__main__":
    main()
