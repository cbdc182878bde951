"""What does NED cost: against scikit-learn's brute force, and beside the search it reads off?

Clustered embeddings, 128 dimensions, float32, 100,000 support rows, k = 100: predict_proba against
``KNeighborsClassifier(algorithm="brute", weights="distance")``; every score of one search (label,
probabilities, credibility, distances, density, verdict, retrieval) against the search alone; the
fits on the leave-one-out graph against building it (at 10,000 rows); effects of thousands of edits.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.runner import Measured, measure, print_table, save
from vicinal.confidence import NEDClassifier, TrustHead
from vicinal.evaluation import recall_at_k
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.search import make_search

K, DIMENSIONS, CLASSES = 100, 128, 100


def clusters(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping classes, as embeddings are: each row is its class's center and noise."""
    centers = torch.randn(CLASSES, DIMENSIONS, generator=torch.Generator().manual_seed(9))
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=rng)
    return centers[y] * 0.35 + torch.randn(n, DIMENSIONS, generator=rng), y


def against_scikit_learn(support: int, queries: int, repeats: int) -> dict[str, Measured]:
    (x, y), (q, _) = clusters(support, 0), clusters(queries, 1)
    theirs = KNeighborsClassifier(K, weights="distance", algorithm="brute").fit(x, y)
    rivals = {"scikit-learn brute": lambda: theirs.predict_proba(q.numpy())}
    for search in ("exact", "faiss"):
        ned = NEDClassifier(k=K, temperature=20.0, search=search).fit(x, y)
        rivals[f"NED, {search} search"] = lambda ned=ned: ned.predict_proba(q)
    rows = measure(rivals, repeats=repeats)
    print_table(f"predict_proba, {support:,} x {queries:,}", rows, against="scikit-learn brute")
    return rows


def beside_the_search(support: int, queries: int, repeats: int) -> dict[str, Measured]:
    (x, y), (q, truth) = clusters(support, 0), clusters(queries, 1)
    head = TrustHead.of(
        NEDClassifier(k=K, temperature=20.0).fit(x, y), clusters(2000, 2), target_accuracy=0.8
    )

    def everything() -> object:
        out = head.predict(q)
        return out.counts(), recall_at_k(out.neighbors, truth, y, k=5)

    rivals = {"the search": lambda: head.ned.neighborhood_of(q), "every score of it": everything}
    rows = measure(rivals, repeats=repeats)
    print_table(f"one search, {support:,} x {queries:,}", rows, against="the search")
    return rows


def fits_on_the_graph(support: int, repeats: int) -> dict[str, Measured]:
    x, y = clusters(support, 0)
    search = make_search("exact", "sqeuclidean").build(x)
    plain = NEDClassifier(k=K).fit(x, y)
    full = NEDClassifier(k=K, sharpness="fit", background="fit", bandwidth="class").fit(x, y)
    rivals = {
        "leave-one-out graph": lambda: NeighborGraph.build(search, K),
        "temperature from the graph": plain.refit,
        "everything from the graph": full.refit,
    }
    rows = measure(rivals, repeats=repeats)
    print_table(f"fits, {support:,} rows", rows, against="leave-one-out graph")
    return rows


def effects(support: int, queries: int, repeats: int) -> dict[str, Measured]:
    (x, y), (q, _) = clusters(support, 0), clusters(queries, 1)
    ned = NEDClassifier(k=K, temperature=20.0).fit(x, y)
    ids, new = torch.arange(2000), (y[:2000] + 1) % CLASSES
    rivals = {
        "the search": lambda: ned.neighborhood_of(q),
        "2,000 relabels, each alone": lambda: ned.label_effects(q, ids, new),
        "2,000 removals, each alone": lambda: ned.label_effects(q, ids),
        "2,000 relabels, together": lambda: ned.joint_effect(q, ids, new),
    }
    rows = measure(rivals, repeats=repeats)
    print_table(f"effects, {support:,} x {queries:,}", rows, against="the search")
    return rows


def main(quick: bool = False, data: Path | None = None) -> None:
    warnings.simplefilter("ignore")
    big, few, repeats = (5_000, 256, 1) if quick else (100_000, 1_000, 4)
    middle, many = (2_000, 300) if quick else (10_000, 3_000)
    results = {
        f"predict_proba {big}x{few}": against_scikit_learn(big, few, repeats),
        f"one search {big}x{few}": beside_the_search(big, few, repeats),
        f"fits {middle}": fits_on_the_graph(middle, repeats),
        f"effects {middle}x{many}": effects(middle, many, repeats),
    }
    if not quick:
        save("what_does_ned_cost", results, k=K, dimensions=DIMENSIONS)
