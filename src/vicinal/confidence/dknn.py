r"""Deep k-nearest neighbors: does every layer agree with the prediction?

In each layer, find the k training rows nearest to x and count those of another class:

.. math:: a(x, c) = \sum_{\text{layers } \ell} \#\{j \in kNN_\ell(x) : y_j \ne c\}

(Papernot and McDaniel 2018). A conformal rank against held-out rows turns the counts into p-values
:math:`p_c = (1 + \#\{a_i \ge a(x,c)\})/(n+1)`; **credibility** is the largest and **confidence** is
one minus the second largest. The counts are small integers, so ties are the rule: zeros are scores
like any other (47 % of them in our digits runs), several classes may share the top, and both are
reported rather than hidden. With ``random_state`` the p-values are smoothed and uniform.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vicinal.checks import (
    InputError,
    as_matrix,
    check_choice,
    check_k,
    check_share,
    closest,
    same_kind,
)
from vicinal.confidence.conformal import Calibration, conformal_p_values, warn_of_missing_classes
from vicinal.confidence.estimator import Estimator
from vicinal.labels import hard_labels_of, known_codes, named
from vicinal.neighbors.distances import METRICS
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import Search, make_search


class DeepKNNPrediction(NamedTuple):
    """All that one search per layer says, row by row."""

    labels: Any  # (n,) class names
    credibility: Any  # (n,) the largest p-value
    confidence: Any  # (n,) 1 − the second largest
    ambiguous: Any  # (n,) bool: several classes share the largest p-value
    p_values: Any  # (n, c)
    nonconformity: Any  # (n, c) neighbors of another class, all layers
    agreement: dict[str, Any]  # per layer (n,): share of neighbors with the predicted label
    neighbors: dict[str, Neighborhood]  # per layer, indices into the support


def class_counts(labels: Int[Tensor, "n k"], num_classes: int) -> Int[Tensor, "n c"]:
    """How many of each row's neighbors have each class.

    >>> class_counts(torch.tensor([[0, 2, 2]]), 3)
    tensor([[1, 0, 2]])
    """
    counts = torch.zeros(len(labels), num_classes, dtype=torch.long)
    return counts.scatter_add_(1, labels, torch.ones_like(labels))


class DeepKNN(Estimator):
    """Credibility of predictions from the neighbors in several layers at once.

    ``fit(layers, y)`` with training rows ``{name: (n, d)}`` (or captured activations), then
    ``calibrate(layers, y)`` with rows that neither the support nor the network has seen.

    Parameters
    ----------
    k : neighbors counted in each layer.
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    mondrian : rank among calibration rows of the same class only.
    random_state : smooth the p-values, with this seed; None leaves them plain and cautious.
    search : ``"exact"``, ``"faiss"`` or ``"auto"``, for each layer.

    >>> x = torch.cat([torch.randn(40, 2, generator=torch.Generator().manual_seed(0)) + 4,
    ...                torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) - 4])
    >>> y = torch.tensor([0] * 40 + [1] * 40)
    >>> head = DeepKNN(k=5).fit({"last": x[::2]}, y[::2]).calibrate({"last": x[1::2]}, y[1::2])
    >>> head.predict({"last": torch.tensor([[3.0, 3.0]])}), head.credibility({"last": x[:1]})
    (tensor([0]), tensor([1.], dtype=torch.float64))
    """

    def __init__(
        self,
        k: int = 75,
        metric: str = "cosine",
        *,
        mondrian: bool = False,
        random_state: int | None = None,
        search: str = "exact",
    ) -> None:
        self.k = k
        self.metric = metric
        self.mondrian = mondrian
        self.random_state = random_state
        self.search = search

    def fit(self, layers: Any, y: Any) -> Self:
        """Remember the support: its rows in each layer and their labels."""
        check_choice(self.metric, "metric", METRICS)
        rows = _matrices(layers)
        n = len(next(iter(rows.values())))
        check_k(self.k, n, "k", "the support")
        labels = hard_labels_of(y, n, "DeepKNN counts neighbors")
        self.classes_, self.layers_ = labels.classes, tuple(rows)
        self.support_labels_ = labels.codes
        self.searches_: dict[str, Search] = {
            name: make_search(self.search, self.metric).build(x) for name, x in rows.items()
        }
        for former in ("calibration_", "layer_calibration_"):  # they knew another support
            self.__dict__.pop(former, None)
        return self

    def calibrate(self, layers: Any, y: Any) -> Self:
        """Rank held-out rows by how strange their true label looks."""
        check_is_fitted(self)
        rows = self._rows(layers)
        n = len(next(iter(rows.values())))
        unknown = "holds {}, which the support does not. Leave such rows out."
        codes, mondrian = known_codes(y, n, self.classes_, unknown), bool(self.mondrian)
        neighborhoods, against = self._counts(rows)
        self._warn_of_support_rows(rows, neighborhoods)
        if mondrian:
            warn_of_missing_classes(codes, self.classes_)
        own = {name: count.gather(1, codes[:, None]).squeeze(1) for name, count in against.items()}
        self.layer_calibration_ = {n: Calibration(a, codes, mondrian) for n, a in own.items()}
        self.calibration_ = Calibration(_total(own), codes, mondrian)
        counts = torch.bincount(codes, minlength=len(self.classes_))
        self.smallest_p_ = 1 / (counts.numpy() + 1) if self.mondrian else 1 / (n + 1)
        return self

    def evaluate(self, layers: Any) -> DeepKNNPrediction:
        """Everything from one search per layer."""
        neighborhoods, against = self._counts(self._rows(layers))
        strange, like = _total(against), _sample(layers)
        p = self._ranks(strange)
        top = p.amax(1)
        second = p.topk(2, 1).values[:, 1] if p.shape[1] > 1 else torch.zeros_like(top)
        shared = (p == top[:, None]).sum(1) > 1
        # among equal p-values the label with more neighbors; then the first in order
        best = strange.masked_fill(p < top[:, None], torch.iinfo(torch.long).max).argmin(1)
        agreement = {
            name: same_kind(1 - count.gather(1, best[:, None]).squeeze(1) / self.k, like)
            for name, count in against.items()
        }
        return DeepKNNPrediction(
            named(self.classes_, best, like), same_kind(top, like), same_kind(1 - second, like),
            same_kind(shared, like), same_kind(p, like), same_kind(strange, like), agreement,
            neighborhoods,
        )  # fmt: skip

    def predict(self, layers: Any) -> Any:
        """The label with the fewest neighbors against it: the most credible one if calibrated."""
        if hasattr(self, "calibration_"):
            return self.evaluate(layers).labels
        strange = _total(self._counts(self._rows(layers))[1])
        return named(self.classes_, strange.argmin(1), _sample(layers))

    def credibility(self, layers: Any) -> Float[Tensor, " n"]:
        """The largest p-value: how much of the calibration set looks at least as strange."""
        return self.evaluate(layers).credibility

    def confidence(self, layers: Any) -> Float[Tensor, " n"]:
        """One minus the second largest p-value: how implausible the runner-up is."""
        return self.evaluate(layers).confidence

    def ambiguous(self, layers: Any) -> Bool[Tensor, " n"]:
        """Whether several classes share the largest p-value."""
        return self.evaluate(layers).ambiguous

    def p_values(self, layers: Any) -> Float[Tensor, "n c"]:
        return self.evaluate(layers).p_values

    def layer_p_values(self, layers: Any) -> dict[str, Float[Tensor, "n c"]]:
        """The p-values each layer would give alone: where along the network support is lost."""
        _, against = self._counts(self._rows(layers))
        p = {name: self._ranks(count, name) for name, count in against.items()}
        return {name: same_kind(of_layer, _sample(layers)) for name, of_layer in p.items()}

    def nonconformity(self, layers: Any) -> Int[Tensor, "n c"]:
        """Neighbors of another class over all layers, for each candidate class."""
        return same_kind(_total(self._counts(self._rows(layers))[1]), _sample(layers))

    def prediction_sets(self, layers: Any, alpha: float = 0.1) -> Bool[Tensor, "n c"]:
        """Labels with p > alpha: they hold the true one with chance at least 1 − alpha."""
        check_share(alpha, "alpha")
        return self.p_values(layers) > alpha

    def _ranks(self, strange: Tensor, layer: str | None = None) -> Float[Tensor, "n c"]:
        if not hasattr(self, "calibration_"):
            raise InputError(
                "DeepKNN has no calibration rows yet, so nothing to rank against. "
                "Call calibrate(layers, y) with held-out rows first."
            )
        calibration = self.calibration_ if layer is None else self.layer_calibration_[layer]
        uniform = None
        if self.random_state is not None:
            rng = np.random.default_rng(self.random_state)
            uniform = torch.from_numpy(rng.random(len(strange)))
        return conformal_p_values(strange, calibration, uniform)

    def _counts(
        self, rows: dict[str, Tensor]
    ) -> tuple[dict[str, Neighborhood], dict[str, Int[Tensor, "n c"]]]:
        """Per layer the neighbors, and how many have another class than each candidate."""
        found, against, count = {}, {}, len(self.classes_)
        for name, x in rows.items():
            found[name] = self.searches_[name].query(x, self.k).labeled(self.support_labels_)
            against[name] = self.k - class_counts(found[name].labels, count)
        return found, against

    def _rows(self, layers: Any) -> dict[str, Tensor]:
        """The layers of the support, by name; further ones are left alone."""
        check_is_fitted(self)
        given = _matrices(layers)
        for name in [name for name in self.searches_ if name not in given]:
            alike = closest(name, given)
            hint = f" Is it {alike[0]!r}?" if alike else ""
            raise InputError(
                f"layer {name!r} is missing from `layers` (it has {', '.join(given)}).{hint}"
            )
        return {name: given[name] for name in self.searches_}

    def _warn_of_support_rows(
        self, rows: dict[str, Tensor], neighborhoods: dict[str, Neighborhood]
    ) -> None:
        same = torch.ones(len(next(iter(rows.values()))), dtype=torch.bool)
        for name, x in rows.items():
            nearest = self.searches_[name].rows(neighborhoods[name].indices[:, 0])
            same &= (nearest == x).all(1).cpu()
        if bool(same.any()):
            warnings.warn(
                f"{int(same.sum())} of {len(same)} calibration rows are support rows (the first: "
                f"row {int(same.nonzero()[0])}); they find themselves and make every new row look "
                "strange. Calibrate on rows held out of the support.",
                stacklevel=3,
            )


def _matrices(layers: Any) -> dict[str, Tensor]:
    """``{name: (n, d)}`` of finite rows, equally many in every layer."""
    layers = getattr(layers, "layers", layers)
    if not isinstance(layers, Mapping) or not layers:
        raise InputError(
            "`layers` must map layer names to matrices, {'name': (n, d)}, "
            f"got {type(layers).__name__}. For one layer pass {{'embedding': x}}."
        )
    rows = {str(name): as_matrix(x, str(name)).detach() for name, x in layers.items()}
    sizes = {name: len(x) for name, x in rows.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"every layer must have the same rows, got {sizes}.")
    return rows


def _total(per_layer: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(per_layer.values())).sum(0)


def _sample(layers: Any) -> Any:
    return next(iter(getattr(layers, "layers", layers).values()))
