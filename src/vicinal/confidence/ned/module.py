"""NED as a differentiable head: embeddings to class log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_positive
from vicinal.confidence.ned.posterior import NEDParameters, ned_log_probs
from vicinal.neighbors.distances import (
    in_unit,
    neighbor_distances,
    pairwise_distances,
    unit_rows,
    zero_rows,
)
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier

_SCORES = 1 << 24


class NEDHead(nn.Module):
    r"""Eq. 3 (and its extensions, as fitted) as a module that gradients pass through.

    The k nearest rows are chosen without gradient, their distances are computed with it: the
    derivative is that of eq. 3 wherever the set of neighbors is locally constant, which is almost
    everywhere. A class outside the neighborhood has log-probability -inf; ``full_support=True``
    lets all rows vote, so every class has one that is finite. A small temperature saturates: an
    attack through it sees flat gradients and reports robustness that is not there, hence
    ``temperature``, which replaces the fitted one.

    Support, labels and the map of the space are buffers: ``.to(device)`` moves them,
    ``state_dict`` holds them. ``nn.Sequential(net, head)`` is one graph for ``torch.export`` and
    ONNX, with any number of rows.
    """

    support: Tensor
    labels: Tensor
    shift: Tensor | None
    matrix: Tensor | None

    def __init__(
        self, ned: NEDClassifier, temperature: float | None = None, full_support: bool = False
    ) -> None:
        super().__init__()
        self.register_buffer("support", ned.support_.rows.clone())
        self.register_buffer("labels", ned.support_.labels.codes.clone())
        self.register_buffer("shift", ned.space_.shift)
        self.register_buffer("matrix", ned.space_.matrix)
        self.space = ned.space_
        self.width = ned.n_features_in_
        self.num_classes = len(ned.classes_)
        self.k = len(self.support) if full_support else ned.k_
        self.metric = ned.metric
        self.unit = False  # whether the support's rows have unit length already, for the cosine
        parameters = ned.parameters_
        if temperature is not None:
            check_positive(temperature, "temperature")
            parameters = replace(parameters, temperature=float(temperature))
        self.parameters_: NEDParameters = parameters

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        if x.shape[1] != self.width:
            raise InputError(
                f"`x` has {x.shape[1]} dimensions but the support has {self.width}. "
                "They must come from the same model and layer."
            )
        x = replace(self.space, shift=self.shift, matrix=self.matrix)(x)
        if self.k == len(self.support) and not torch.compiler.is_exporting():
            distances = pairwise_distances(x, self.support, self.metric)
            indices = torch.arange(self.k, device=x.device).expand(len(x), -1)
        else:
            with torch.no_grad():
                indices = self._nearest(x.detach())
            distances = self._distances(x, indices)
        neighborhood = Neighborhood(distances, indices).labeled(self.labels)
        return ned_log_probs(neighborhood, self.num_classes, self.parameters_)

    def _distances(self, x: Tensor, indices: Tensor) -> Float[Tensor, "n k"]:
        if not self.unit:
            return neighbor_distances(x, self.support[indices], self.metric)
        squared = neighbor_distances(unit_rows(x), self.support[indices])
        lost = zero_rows(x)[:, None].to(squared) + zero_rows(self.support)[indices]
        return in_unit(squared + lost, "cosine")

    def extra_repr(self) -> str:
        return f"k={self.k}, classes={self.num_classes}, {self.parameters_}"

    def _nearest(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # ordinary operations and any number of rows
            return self._ranked(x).topk(self.k, 1, largest=False).indices
        rows = max(_SCORES // len(self.support), 1)
        parts = [pairwise_distances(part, self.support, self.metric) for part in x.split(rows)]
        return torch.cat([part.topk(self.k, 1, largest=False).indices for part in parts])

    def _ranked(self, x: Tensor) -> Float[Tensor, "n m"]:
        """Squared distances but for ‖x‖²: enough to tell who is nearer."""
        support = self.support.to(x.dtype)
        if self.metric == "cosine":
            x, support = unit_rows(x), support if self.unit else unit_rows(support)
            return support.square().sum(1) + zero_rows(support) - 2 * x @ support.T
        center = support.mean(0)  # the product loses no digits to a common offset
        x, support = x - center, support - center
        return support.square().sum(1) - 2 * x @ support.T
