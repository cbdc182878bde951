"""The sections of the synthetic audits, each counted the plain way with numpy."""

from __future__ import annotations

import base64
import io
import itertools

import numpy as np
from PIL import Image

from vicinal.audits.label_records import Effect, LabelAudit, Suspect
from vicinal.audits.sections import (
    Border,
    Borders,
    Credibility,
    Detection,
    FitPoint,
    Histogram,
    Hub,
    Hubs,
    Map,
    NetworkView,
    Provenance,
    ReliabilityBin,
    RiskCurve,
    SetFacts,
    Threshold,
)
from vicinal.audits.stress_records import Stress, StressExample, StressRow, WorstCase
from vicinal.confidence.verdicts import VERDICTS

K = 12


def neighbors(a, b, k, exclude_self=False):
    squared = ((a[:, None] - b[None]) ** 2).sum(-1)
    if exclude_self:
        np.fill_diagonal(squared, np.inf)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(squared, order, 1)


def vote(distance, labels, classes, scale):
    weight = np.exp(-(distance - distance[:, :1]) / scale * 4)
    weight /= weight.sum(1, keepdims=True)
    proba = np.stack([(weight * (labels == c)).sum(1) for c in range(classes)], 1)
    return proba, weight


def percentile_of(values, reference):
    return np.searchsorted(np.sort(reference), values, side="right") / len(reference) * 100


def share(hits):
    return float(hits.mean()) if len(hits) else None


def facts(name, z, y, fingerprint):
    counts = np.bincount(y)
    return SetFacts(
        name,
        len(z),
        z.shape[1],
        int((counts > 0).sum()),
        counts[counts > 0].min(),
        counts.max(),
        True,
        fingerprint,
    )


def reliability(score, correct, count=10):
    bins = []
    for b in range(count):
        low, high = b / count, (b + 1) / count
        inside = (score > low) & (score <= high)
        m = int(inside.sum())
        if not m:
            bins.append(ReliabilityBin(low, high, 0, None, None, None, None))
            continue
        p = float(correct[inside].mean())
        half = 1.96 * np.sqrt(p * (1 - p) / m) + 0.5 / m
        bins.append(
            ReliabilityBin(
                low, high, m, score[inside].mean(), p, max(0.0, p - half), min(1.0, p + half)
            )
        )
    return tuple(bins)


def risk_coverage(confidence, correct):
    order = np.argsort(-confidence, kind="stable")
    hits, count = np.cumsum(correct[order]), np.arange(1, len(order) + 1)
    accuracy = hits / count
    lower = np.clip(accuracy - 1.64 * np.sqrt(accuracy * (1 - accuracy) / count) - 1 / count, 0, 1)
    take = np.unique(np.linspace(0, len(order) - 1, 80).astype(int))

    def keeping(target):
        good = [i for i in take if lower[i] >= target]
        if not good:
            return Threshold(target, None, None, None, None, len(order), level=target)
        at, value = good[-1], confidence[order][good[-1]]
        shares = count[at] / len(order), accuracy[at], lower[at]
        return Threshold(target, value, *shares, int(count[at]), level=max(value, 2 / 3))

    return RiskCurve(
        "ned",
        confidence[order][take],
        count[take] / len(order),
        accuracy[take],
        lower[take],
        keeping(0.95),
        [keeping(target) for target in (0.9, 0.95, 0.97, 0.9999)],
    )


def label_audit(z, y, own, own_distance, loo, weight):
    suggested = loo.argmax(1)
    rows = np.flatnonzero((suggested != y) & (loo.max(1) > 0.6))
    rows = sorted(rows, key=lambda r: loo[r, y[r]])
    suspects = [
        Suspect(
            int(r),
            f"train#{r}",
            int(y[r]),
            int(suggested[r]),
            loo[r, y[r]],
            loo[r].max(),
            int(r) % 5,
            own[r],
            weight[r],
            own_distance[r],
            0.66,
        )
        for r in rows
    ]
    effects = [Effect(10, 4, 3, 1, 0.951, 0.957), Effect(len(rows), 9, 8, 1, 0.951, 0.972)]
    return LabelAudit(len(y), "leave-one-out by row", suspects, effects)


def credibility_section(credibility, correct, rng):
    edges = np.linspace(0, 1, 11)
    hist = lambda v: np.histogram(v, edges)[0]
    return Credibility(
        reliability(credibility, correct),
        [
            Histogram("query", edges, hist(credibility)),
            Histogram("noise", edges, hist(rng.beta(1, 9, 200))),
        ],
        f"DkNN over 3 layers, k={K}, calibrated on held-out rows",
        [
            Detection("noise", "familiarity ≤ 0.05", 200, 196, 0.05),
            Detection("noise", "credibility ≤ 0.05", 200, 121, 0.05),
        ],
    )


def borders(y, own, distance, scale, c):
    total = np.zeros((c, c))
    for i, row in enumerate(own):
        for j, d in zip(row, distance[i], strict=True):
            if y[i] != y[j]:
                a, b = sorted((y[i], y[j]))
                total[a, b] += np.exp(-d / scale)
    total /= total.sum()
    pairs = [
        Border(a, b, total[a, b]) for a in range(c) for b in range(a + 1, c) if total[a, b] > 0
    ]
    return Borders(
        sorted(pairs, key=lambda p: -p.share), f"graph of {K} neighbors in the support", 31.5
    )


def network_section(zq, crowd, proba):
    variance = 1 - (proba**2).sum(1)
    group = np.select(
        [(crowd < 50) & (variance < 0.3), (crowd >= 50) & (variance < 0.3), crowd >= 50],
        ["isolated", "well fitted", "ambiguous"],
        "memorized",
    )
    edges = np.linspace(0, 100, 11)
    inside = [np.flatnonzero((crowd >= a) & (crowd < b))[:4] for a, b in itertools.pairwise(edges)]
    inside = tuple(tuple(int(i) for i in rows) for rows in inside)
    return NetworkView(
        "query",
        "gradients of all 4,810 parameters, exact",
        len(zq),
        Histogram("N_S percentile", edges, np.histogram(crowd, edges)[0], inside),
        [FitPoint(i, crowd[i], variance[i], group[i]) for i in range(len(zq))],
        Histogram("denoising factor", edges / 100, np.histogram(proba.max(1), edges / 100)[0]),
        "Heuristic for classification.",
        [Histogram("0", edges / 50 - 1, np.histogram(crowd / 50 - 1, edges / 50 - 1)[0])],
        0.41,
        10,
        "query",
    )


def make_map(zq, z):
    center = z.mean(0)
    _, _, axes = np.linalg.svd(z - center, full_matrices=False)
    a, b = (zq - center) @ axes[:2].T, (z - center) @ axes[:2].T
    true, _ = neighbors(zq, z, 10)
    seen, _ = neighbors(a, b, 10)
    kept = np.mean([len(set(t) & set(s)) / 10 for t, s in zip(true, seen, strict=True)])
    return Map("PCA", a[:, 0], a[:, 1], kept, np.arange(len(z)), b[:, 0], b[:, 1])


def make_hubs(near, weight):
    used, appearances = np.unique(near, return_counts=True)
    carried = np.array([weight[near == r].sum() for r in used]) / weight.sum()
    order = np.argsort(-carried)[:8]
    return Hubs([Hub(int(used[i]), int(appearances[i]), carried[i]) for i in order], 0.105)


def stressed_row(name, kind, level, accuracy, verdicts, slipped):
    return StressRow(
        name, kind, level, accuracy, 0.02, 0.03, 0.02, 0.9, 0.4,
        dict(zip(VERDICTS, verdicts, strict=True)), slipped, accuracy - 0.05, 0.06,
    )  # fmt: skip


def stress():
    picture = io.BytesIO()
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(picture, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    return Stress(
        rows=120,
        how="120 rows of the query drawn by the seed",
        cost="120 query rows under 1 corruption: 840 forward and 360 backward passes of a row",
        results=(
            stressed_row("clean", "clean", None, 0.96, (0.8, 0.15, 0.05, 0), 0.01),
            stressed_row("fog", "corruption", 1.0, 0.9, (0.7, 0.2, 0.1, 0), 0.02),
            stressed_row("fog", "corruption", 5.0, 0.4, (0.1, 0.3, 0.6, 0), 0.04),
            stressed_row("fgsm", "attack", 8 / 255, 0.7, (0.5, 0.4, 0.1, 0), 0.0),
        ),
        worst=2,
        examples=(
            StressExample(3, 0, 1, 0.97, "supported", uri, uri),
            StressExample(5, 1, 0, 0.7, "contested"),
        ),
        attack=WorstCase(8 / 255, 64, 0.95, 0.6, 0.55, 0.7, 0.5, False, "No sign of masking."),
    )


def provenance():
    return Provenance(
        "0.1.0",
        0,
        "vicinal audit train.npz test.npz",
        "vicinal audit --config config.yaml",
        "2026-01-01T00:00:00Z",
        12.5,
        "cpu",
        {"torch": "2.13.0", "numpy": "2.4.6"},
        {"k": "auto", "metric": "sqeuclidean"},
    )
