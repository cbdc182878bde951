"""How many of ten neighbors does the map keep, ours and others', and in what time?

The rows are those that an audit maps: support and query in the space it fitted, of digits (the
demo), docstrings, and, below ``--data``, clothes, letters, CIFAR-10 and birds. Rivals that are
installed (openTSNE, UMAP, PaCMAP; scikit-learn's t-SNE always is) get the same rows, at their own
settings and at one that looks at ten neighbors. CPU seconds are of one run each, compiled before.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from experiments.data import NoDataError, Source, images
from experiments.reports import REPORTS, pictures

from benchmarks.runner import save
from vicinal.audits import map as maps
from vicinal.neighbors.tsne import neighbor_map

SETS = ("digits", "docstrings", "clothes", "letters", "cifar10n", "birds")
Rows = np.ndarray


def mapped(name: str, source: Source) -> tuple[torch.Tensor, int]:
    """The rows that the audit ``name`` draws, query first, and how many of them are the query's."""
    seen: list[tuple[torch.Tensor, int]] = []
    drawing = maps.true_neighbors

    def watched(rows: torch.Tensor, asked: torch.Tensor, metric: str) -> torch.Tensor:
        seen.append((rows, int(asked.max()) + 1))
        return drawing(rows, asked, metric)

    with patch.object(maps, "true_neighbors", watched):
        letters(source) if name == "letters" else REPORTS[name].make(source)
    return seen[0]


def letters(source: Source) -> None:
    x, y = images(source, "notmnist", "test")
    pictures("notMNIST", x.flatten(1), x, np.array(list("ABCDEFGHIJ"))[y.numpy()])


def ours(rows: Rows) -> Rows:
    x = torch.from_numpy(rows)
    near = maps.true_neighbors(x, torch.arange(len(x)), "sqeuclidean")
    centered = x.double() - x.double().mean(0)
    start = centered @ torch.linalg.svd(centered, full_matrices=False)[2][:2].T
    return neighbor_map(near, start).numpy()


def of_sklearn(rows: Rows) -> Rows:
    from sklearn.manifold import TSNE

    return TSNE(init="pca", random_state=0).fit_transform(rows)


def rival(module: str, make: str, **settings: object) -> Callable[[Rows], Rows] | None:
    """A map of another library, if it is installed."""
    try:
        kind = getattr(importlib.import_module(module), make)
    except ImportError:
        return None

    def run(rows: Rows) -> Rows:
        found = kind(**settings)
        return np.asarray(found.fit(rows) if make == "TSNE" else found.fit_transform(rows))

    return run


def rivals() -> dict[str, Callable[[Rows], Rows]]:
    found = {
        "vicinal": ours,
        "scikit-learn t-SNE": of_sklearn,
        "openTSNE": rival("openTSNE", "TSNE", random_state=0),
        "openTSNE, perplexity 10": rival("openTSNE", "TSNE", perplexity=10, random_state=0),
        "UMAP": rival("umap", "UMAP", random_state=0, n_jobs=1),
        "UMAP, 10 neighbors, no gap": rival(
            "umap", "UMAP", n_neighbors=10, min_dist=0.0, random_state=0, n_jobs=1
        ),
        "PaCMAP": rival("pacmap", "PaCMAP", random_state=0),
    }
    return {name: run for name, run in found.items() if run is not None}


def main(quick: bool = False, data: Path | None = None) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results: dict[str, dict[str, dict[str, float]]] = {}
    made = rivals()
    for run in made.values():  # compiled before it is timed
        run(np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))
    for name in SETS[:1] if quick else SETS:
        try:
            rows, judged = mapped(name, Source(data))
        except NoDataError as missing:
            print(f"{name}: left out, {missing}")
            continue
        asked = torch.arange(min(judged, maps.ASKED))
        true = maps.true_neighbors(rows, asked, "sqeuclidean")
        results[f"{name}, {len(rows)} rows"] = found = {}
        for rival_name, run in made.items():
            start = time.process_time()
            places = torch.from_numpy(run(rows.numpy().astype(np.float32)))
            spent = time.process_time() - start
            share = maps.kept(places, asked, true)
            found[rival_name] = {"kept": round(share, 3), "cpu_s": round(spent, 1)}
            print(f"{name}: {rival_name}: {found[rival_name]}", flush=True)
    if not quick:
        save("how_many_neighbors_does_the_map_keep", results)
