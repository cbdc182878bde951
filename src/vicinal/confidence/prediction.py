"""Everything one search says about a row, in one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import plural, same_kind
from vicinal.confidence.ned.posterior import (
    best_class,
    ignored_mass_bound,
    log_density,
    neighbor_log_weights,
)
from vicinal.labels import at_codes, named
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.confidence.ned.classifier import NEDClassifier


SHOWN_ROWS = 3  # where answers are printed: with heading and counts five lines


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """One search's answers for n rows with k neighbors; arrays of the kind that was passed in.

    ``confidence`` is the probability of ``label``. ``kth_distance`` and ``log_density`` tell how
    far and how crowded the surroundings are, which the probabilities, being shares, cannot.
    ``effective_neighbors`` is (Σw)²/Σw², ``ignored_mass`` bounds the mass beyond the k-th neighbor
    relative to the kept. ``neighbors`` are support ids, nearest first; ``weights`` are their
    shares.
    """

    label: Any  # (n,)
    confidence: Any  # (n,)
    probabilities: Any  # (n, c)
    classes: NDArray[Any]
    neighbors: Any  # (n, k)
    distances: Any  # (n, k)
    weights: Any  # (n, k)
    neighbor_labels: Any  # (n, k)
    kth_distance: Any  # (n,)
    log_density: Any  # (n,)
    effective_neighbors: Any  # (n,)
    ignored_mass: Any  # (n,)

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        """The first rows as a table; all of them are in the arrays."""
        lines = [f"{'label':<16}{'confidence':>11}  nearest neighbors (share)"]
        for row, label in enumerate(self.label[:SHOWN_ROWS].tolist()):
            pairs = zip(self.neighbor_labels[row][:3], self.weights[row][:3], strict=True)
            near = " · ".join(f"{other} {float(share):.2f}" for other, share in pairs)
            lines.append(f"{str(label)[:15]:<16}{float(self.confidence[row]):>11.3f}  {near}")
        return "\n".join(
            [*lines, f"{plural(len(self), 'row')}, {plural(len(self.classes), 'class', 'classes')}"]
        )


def prediction_of(
    ned: NEDClassifier, neighborhood: Neighborhood, like: Any
) -> tuple[Int[Tensor, " n"], Prediction]:
    """Codes of the predicted classes, and every score read off one search."""
    parameters, support = ned.parameters_, ned.support_
    exact, labels = neighborhood.double(), neighborhood.labels
    log_probs = ned.log_probs_of(neighborhood)
    best = best_class(log_probs, exact)
    confidence = at_codes(log_probs, best).exp()
    shares = neighbor_log_weights(exact, parameters).softmax(1)
    votes = labels if labels.ndim == 2 else labels.argmax(2)

    def out(value: Tensor) -> Any:
        return same_kind(value.to(neighborhood.distances.dtype), like)

    prediction = Prediction(
        label=named(ned.classes_, best, like),
        confidence=out(confidence),
        probabilities=out(log_probs.exp()),
        classes=ned.classes_,
        neighbors=same_kind(support.ids[neighborhood.indices], like),
        distances=same_kind(neighborhood.distances, like),
        weights=out(shares),
        neighbor_labels=named(ned.classes_, votes, like),
        kth_distance=same_kind(neighborhood.distances[:, -1], like),
        log_density=out(log_density(exact, parameters)),
        effective_neighbors=out(1 / shares.square().sum(1)),
        ignored_mass=out(ignored_mass_bound(exact, len(support), parameters)),
    )
    return best, prediction
