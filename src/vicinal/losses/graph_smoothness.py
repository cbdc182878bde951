r"""Graph smoothness loss: how much weight runs between classes on a graph of the outputs?

.. math::
   \mathcal L = \sum_c s_c^\top L\, s_c = \operatorname{tr}(Y^\top L Y)
   = \sum_{(\mu,\nu):\, y_\mu \neq y_\nu} e^{-\alpha \|f_\mu - f_\nu\|_2}

(Bontonou et al. 2019, section III), :math:`L = D - W` the Laplacian of the graph of similarities
:math:`W_{\mu\nu} = e^{-\alpha\|f_\mu - f_\nu\|_2}` (the distance not squared), :math:`Y` the
one-hot labels, the sum over *ordered* pairs. The graph is complete, or has an edge to each of the
k nearest others. The choice of neighbors is a constant: no gradient goes through it. Soft labels:
:math:`\tfrac12 \sum_{(\mu,\nu)} W_{\mu\nu}\|y_\mu - y_\nu\|^2`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import check_choice, check_positive, check_whole, is_traced
from vicinal.neighbors.derivatives import one_by_one
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.search.exact import ExactSearch

from .conventions import REDUCTIONS, LossModule, any_scale, as_labels, as_rows
from .graph_flow import edge_lengths, graph_flow

SYMMETRIES = ("union", "mutual", "directed")


@any_scale
def graph_smoothness_loss(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    alpha: float = 2.0,
    k: int | None = None,
    symmetry: str = "union",
    normalize: bool = True,
    reduction: str = "sum",
) -> Tensor:
    """Graph smoothness loss (Bontonou et al. 2019).

    Parameters
    ----------
    x:
        Outputs ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    alpha:
        How fast an edge's weight falls with its length.
    k:
        Neighbors of each node, itself not counted; None or more than there are: all.
    symmetry:
        An edge is kept if either end chose it (``"union"``), if both did (``"mutual"``), or one way
        only, as chosen (``"directed"``).
    normalize:
        Scale rows to length one; without it scattering the outputs to infinity lowers the loss.
    reduction:
        ``"sum"`` as in the paper, which grows with n²; ``"mean"`` per ordered edge between classes;
        ``"none"`` per node.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> graph_smoothness_loss(x, torch.tensor([0, 1, 1]), alpha=1.0)  # 2 e^0 + 2 e^-2
    tensor(2.2707)
    """
    check_positive(alpha, "alpha")
    check_choice(symmetry, "symmetry", SYMMETRIES)
    check_choice(reduction, "reduction", REDUCTIONS)
    x = as_rows(x, "x")
    labels = as_labels(labels, len(x))
    if labels.ndim == 2:
        labels = labels.detach().to(x.dtype)
    if not (normalize or is_traced()):
        warnings.warn(
            "graph smoothness without normalize=True is lowest with all outputs scattered to "
            "infinity. Bound the outputs yourself, or leave normalize=True.",
            stacklevel=4,
        )
    if k is not None:
        check_whole(k, "k", 1)
    full, total = k is None or k >= len(x) - 1, reduction != "none"
    if full:
        found = graph_flow(x, labels, alpha, normalize, total)
    else:
        assert k is not None
        nodes, edges = _nearest(unit_rows(x) if normalize else x, labels, alpha, k, symmetry)
        found = nodes.sum() if total else nodes
    if reduction != "mean":
        return found
    edges = _all_edges(labels).to(x.dtype) if full else edges
    return found / edges.masked_fill(edges == 0, 1)


def _all_edges(labels: Tensor) -> Tensor:
    """Σ ½‖y_µ - y_ν‖² over ordered pairs: those of two classes, for hard labels."""
    if labels.ndim == 2:
        return len(labels) * labels.square().sum() - labels.sum(0).square().sum()
    ordered = labels.sort().values
    same = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    return (len(labels) - same).sum()


def _nearest(
    x: Tensor, labels: Tensor, alpha: float, k: int, symmetry: str
) -> tuple[Tensor, Tensor]:
    """The same over the graph of the k nearest others, edge by edge."""
    indices = _nearest_others(x.detach(), k)
    apart = _apart(labels, indices)
    both = _is_chosen_back(indices)
    flow = torch.exp(-alpha * edge_lengths(x, indices)) * apart
    if symmetry == "mutual":
        flow, apart = flow * both, apart * both
    nodes, edges = flow.sum(1), apart.sum()
    if symmetry == "union":  # an edge chosen by one end only runs back as well
        nodes = nodes.index_add(0, indices.flatten(), (flow * ~both).flatten())
        edges = edges + (apart * ~both).sum()
    return nodes, edges


def _apart(labels: Tensor, indices: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """½‖y_µ - y_ν‖² along each edge: 1 between classes for hard labels."""
    if labels.ndim == 1:
        return (labels[:, None] != labels[indices]).float()
    return 0.5 * (labels[:, None] - labels[indices]).square().sum(2)


def _is_chosen_back(indices: Int[Tensor, "n k"]) -> Tensor:
    """Does ν have µ among its neighbors? Edges are numbers µ·n + ν, looked up in sorted order."""
    n = len(indices)
    source = torch.arange(n, device=indices.device)[:, None]
    forward, back = (source * n + indices).flatten(), (indices * n + source).flatten()
    ordered = forward.sort().values
    place = torch.searchsorted(ordered, back).clamp_max(len(ordered) - 1)
    return (ordered[place] == back).view(indices.shape)


@torch.library.custom_op(
    "vicinal::nearest_others", mutates_args=(), schema="(Tensor x, int k) -> Tensor"
)
def _nearest_others(x: Tensor, k: int) -> Tensor:
    """The k nearest other rows of each row, ties by index; an operator, so that losses compile."""
    rows = torch.arange(len(x), device=x.device)
    known = torch.where(torch.isfinite(x), x, torch.zeros_like(x))  # NaN shows in the distances
    return ExactSearch("sqeuclidean").build(known).query(known, k, exclude=rows).indices.clone()


@_nearest_others.register_fake
def _(x: Tensor, k: int) -> Tensor:
    return x.new_empty(x.shape[0], k, dtype=torch.long)


_nearest_others.register_vmap(one_by_one(_nearest_others))


class GraphSmoothnessLoss(LossModule):
    """Module form, parameters as in :func:`graph_smoothness_loss`.

    To train with SGD take ``reduction="mean"`` and a rate of about 5 (the sum: 5 / edges). At the
    paper's 0.1 the sum over the 9,000 edges of a batch of 100 stayed at 44 % error on FashionMNIST,
    where the mean at 5 came to 16 % (300 steps, 10 nearest neighbors; 11 % after 900).

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> GraphSmoothnessLoss(alpha=1.0)(x, torch.tensor([0, 1, 1]))
    tensor(2.2707)
    """

    def __init__(
        self,
        alpha: float = 2.0,
        k: int | None = None,
        symmetry: str = "union",
        normalize: bool = True,
        reduction: str = "sum",
    ) -> None:
        check_positive(alpha, "alpha")
        check_choice(symmetry, "symmetry", SYMMETRIES)
        check_choice(reduction, "reduction", REDUCTIONS)
        graph = {"alpha": alpha, "k": k, "symmetry": symmetry, "normalize": normalize}
        super().__init__({**graph, "reduction": reduction})

    def forward(self, x: Float[Tensor, "n d"], labels: Any) -> Tensor:
        return graph_smoothness_loss(x, labels, **self.settings())
