"""Two dimensions to look at: support and query together, and how many neighbors the map keeps.

Two maps. ``"tsne"`` places each row near its neighbors in the fitted space; ``"linear"`` is a
shadow, the two directions that part the classes best. Neither is what votes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor

from vicinal.audits.record import significant
from vicinal.audits.sections import LinearMap, Map
from vicinal.neighbors.distances import compared_rows
from vicinal.neighbors.search import ExactSearch
from vicinal.neighbors.search.smallest import smallest_scores
from vicinal.neighbors.tsne import neighbor_map

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

DRAWN_SUPPORT = 4000  # support rows on the page, behind the query's
EMBEDDED = 5000  # rows that t-SNE places; the others go where their nearest ones are
NEAREST = 10
ASKED = 1000  # query rows by which a map is measured


def map_of(facts: Facts) -> Map | None:
    """The map that the settings ask for; a neighbor map brings the linear one along."""
    settings, sets = facts.settings, facts.sets
    if settings.map == "none":
        return None
    support, query = sets.support.rows, None if sets.leave_one_out else sets.query.rows
    drawn = two_dimensional(
        support,
        query,
        sets.codes,
        settings.metric,
        settings.seed,
        neighbors=settings.map == "tsne",
        first=facts.labels.suspects,
    )
    if sets.support.whole is None:
        return drawn
    rows = sets.support.numbers[list(drawn.support_row)].tolist()
    return replace(drawn, support_row=tuple(rows))


def two_dimensional(
    support: Float[Tensor, "n d"],
    query: Float[Tensor, "m d"] | None,
    codes: Int[Tensor, " n"],
    metric: str = "sqeuclidean",
    seed: int = 0,
    *,
    neighbors: bool = True,
    first: Int[Tensor, " f"] | None = None,
) -> Map:
    """The map of all query rows and a sample of the support, with the share of neighbors kept.

    ``codes`` give the linear directions, and the ``first`` support rows are drawn in any case.
    """
    rng = np.random.default_rng(seed)
    most = 0 if query is None else min(len(support), DRAWN_SUPPORT)
    order = torch.from_numpy(rng.permutation(len(support)))
    if first is not None:
        order = torch.cat([first, order[~torch.isin(order, first)]])
    drawn = order[:most].sort().values
    judged = support if query is None else query
    rows = torch.cat([judged, support[drawn]])
    asked = torch.from_numpy(np.sort(rng.permutation(len(judged))[:ASKED]))
    true = true_neighbors(rows, asked, metric)
    flat, method = linear_places(rows, support, codes)

    def placed(places: Float[Tensor, "n 2"]) -> dict[str, Any]:
        found = significant(places.numpy(), 5)
        (x, y), (support_x, support_y) = found[: len(judged)].T, found[len(judged) :].T
        return {"x": x, "y": y, "preservation": kept(places, asked, true), "support_x": support_x,
                "support_y": support_y}  # fmt: skip

    drawn_flat = placed(flat)
    some = query is not None and most < len(support)
    note = f"{most:,} of {len(support):,} support rows are drawn." if some else ""
    shown = tuple(drawn.tolist())
    if not neighbors or len(rows) <= NEAREST:
        return Map(method, support_row=shown, note=note, **drawn_flat)
    chosen = torch.from_numpy(np.sort(rng.permutation(len(rows))[:EMBEDDED]))
    places = embedded(rows, chosen, flat, metric)
    if len(chosen) < len(rows):
        note = f"{note} {len(chosen):,} rows are embedded, the others placed among them.".strip()
    linear, method = LinearMap(method, **drawn_flat), "t-SNE of the 10 nearest"
    return Map(method, support_row=shown, note=note, linear=linear, **placed(places))


def embedded(
    rows: Float[Tensor, "n d"], chosen: Int[Tensor, " c"], flat: Float[Tensor, "n 2"], metric: str
) -> Float[Tensor, "n 2"]:
    """Places of ``chosen`` by their neighbors; of the others the middle of their five nearest."""
    near = true_neighbors(rows[chosen], torch.arange(len(chosen)), metric)
    places = torch.empty(len(rows), 2)
    places[chosen] = neighbor_map(near, flat[chosen])
    left = torch.ones(len(rows), dtype=torch.bool)
    left[chosen] = False
    if left.any():  # a place in a picture needs no exact distance
        compared = compared_rows(rows, metric) - compared_rows(rows[chosen], metric).mean(0)
        x, few = compared[chosen], compared[left].split(2048)  # a product of all would be large
        squares = x.square().sum(1)
        nearest = torch.cat([smallest_scores(part, x, squares, 5)[1] for part in few])
        places[left] = places[chosen][nearest].median(1).values
    return places


def true_neighbors(
    rows: Float[Tensor, "n d"], asked: Int[Tensor, " a"], metric: str
) -> Int[Tensor, "a k"]:
    """The nearest other rows of some, among all that are drawn."""
    k = min(NEAREST, len(rows) - 1)
    return ExactSearch(metric).build(rows).query(rows[asked], k, exclude=asked).indices


def kept(places: Float[Tensor, "n 2"], asked: Int[Tensor, " a"], true: Int[Tensor, "a k"]) -> float:
    """The share of the true nearest rows that are among as many nearest on the map."""
    tree, k = cKDTree(places.numpy()), true.shape[1] + 1  # itself among them
    near = torch.from_numpy(tree.query(places[asked].numpy(), k)[1])
    return float((near[:, :, None] == true[:, None, :]).any(1).double().mean())


def linear_places(
    rows: Float[Tensor, "n d"], support: Float[Tensor, "s d"], codes: Int[Tensor, " s"]
) -> tuple[Float[Tensor, "n 2"], str]:
    """The two directions that part the classes best (Fisher), or the two of most variance."""
    center = support.double().mean(0)
    own = support.double() - center
    axes, method = fisher_axes(own, codes), "class-Fisher"
    if axes is None:
        axes, method = torch.linalg.svd(own[:20000], full_matrices=False)[2][:2].T, "PCA"
    if axes.shape[1] == 1:
        axes = torch.cat([axes, torch.zeros_like(axes)], 1)
    return (rows.double() - center) @ axes, method


def fisher_axes(centered: Tensor, codes: Tensor) -> Tensor | None:
    """Leading directions of between-class over within-class scatter; None with two classes or few.

    Within-class scatter is shrunk toward its mean eigenvalue, so that it can be inverted.
    """
    classes, codes = codes.unique(return_inverse=True)
    d = centered.shape[1]
    if len(classes) < 3 or d < 2:
        return None
    counts = torch.bincount(codes).double()
    means = torch.zeros(len(classes), d, dtype=torch.float64).index_add_(0, codes, centered)
    means /= counts[:, None]
    spread = centered - means[codes]
    within = spread.T @ spread / len(centered)
    size = float(within.diagonal().mean())
    if size == 0:
        return None
    within += 0.1 * size * torch.eye(d, dtype=torch.float64)
    root = torch.linalg.cholesky(within)
    scaled = torch.linalg.solve_triangular(root, (means * counts.sqrt()[:, None]).T, upper=False)
    left = torch.linalg.svd(scaled, full_matrices=False)[0][:, :2]
    return torch.linalg.solve_triangular(root.T, left, upper=True)
