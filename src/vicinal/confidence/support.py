"""The labeled rows that vote, as they change: added, removed, relabeled.

Rows are known by *ids*: 0, 1, … in the order they were given, going on for added rows, and never
reused, so an id always indexes what was passed in, whatever was removed since. The leave-one-out
graph is built once, when it is first asked for, and edited along with the rows.

scikit-learn's own checks run on all rows but tensors, so its conventions hold (feature names,
column counts, sparse and complex input refused); the sentence about NaN rows is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from vicinal import labels as coding
from vicinal.checks import InputError, as_matrix, as_tensor
from vicinal.labels import Labels, labels_of
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.learned import Form
from vicinal.neighbors.neighborhood import Neighborhood, NeighborLabels
from vicinal.neighbors.search import ExactSearch, Search
from vicinal.neighbors.spaces import RAW, Space, span_coordinates
from vicinal.neighbors.surprise import TemperatureFit, fit_temperature

Ask = Callable[[Tensor, Tensor, int, int], Neighborhood]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a fit may look at: a labeled neighborhood, each row's own label, the class counts.

    ``targets`` are the rows' codes or soft labels, ``counts`` those of the support's classes.
    ``leave_one_out``: the rows are the support itself, so each row's own label is taken out of the
    counts before they serve it as a prior. Distances are float64 and labels gathered, whatever
    came: a fit reads them many times.
    """

    neighborhood: Neighborhood
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"]
    counts: Float[Tensor, " c"]
    leave_one_out: bool
    points: Float[Tensor, "n d"] | None = None  # the rows themselves, where they are held out

    def __post_init__(self) -> None:
        distances, indices = self.neighborhood
        ready = Neighborhood(distances.double(), indices, self.neighborhood.labels)
        object.__setattr__(self, "neighborhood", ready)

    def __len__(self) -> int:
        return self.neighborhood.size

    @property
    def distances(self) -> Float[Tensor, "n k"]:
        return self.neighborhood.distances

    @property
    def labels(self) -> NeighborLabels:
        return self.neighborhood.labels

    @cached_property
    def plain_temperature(self) -> TemperatureFit | None:
        """T of eq. 3, for hard labels; None where every T gives the same answer."""
        same = self.labels == self.targets[:, None]
        if not bool((same.sum(1, dtype=torch.int32) % same.shape[1] > 0).any()):
            return None
        return fit_temperature(self.distances, same)

    @cached_property
    def priors(self) -> Float[Tensor, "n c"]:
        """Class shares each row may know: without its own label where it is in the support."""
        counts, rows = self.counts, self.counts.expand(len(self), -1)
        if not self.leave_one_out:
            return rows / counts.sum()
        return less_own(rows.clone(), self.targets).clamp_min_(0) / (counts.sum() - 1).clamp_min(1)

    @cached_property
    def blocks(self) -> list[Evidence]:
        """In order, so many rows at a time that what is computed of them stays in the cache."""
        rows = max(self.neighborhood.block_rows(len(self.counts)) // 4, 1)
        return [self.rows(slice(at, at + rows)) for at in range(0, len(self), rows)]

    def some(self, most: int, keep: Bool[Tensor, " n"] | None = None) -> Evidence:
        """At most so many rows, evenly spread, of those that a mask keeps."""
        places = torch.arange(len(self)) if keep is None else keep.nonzero()[:, 0]
        if len(places) > most:
            places = places[torch.linspace(0, len(places) - 1, most).long()]
        return self if len(places) == len(self) else self.rows(places)

    def rows(self, keep: Tensor | slice) -> Evidence:
        """Of some rows only; the same where a mask keeps all."""
        if isinstance(keep, Tensor) and keep.dtype == torch.bool and bool(keep.all()):
            return self
        points = None if self.points is None else self.points[keep]
        near = self.neighborhood.rows(keep)
        return replace(self, neighborhood=near, targets=self.targets[keep], points=points)

    def first(self, k: int) -> Evidence:
        """With the k nearest neighbors of each row only."""
        return replace(self, neighborhood=self.neighborhood.first(k))


def less_own(rows: Tensor, targets: Tensor) -> Tensor:
    """One less in each row's own class, or its soft label less; in place."""
    if targets.ndim == 2:
        return rows.sub_(targets)
    return rows.scatter_add_(1, targets[:, None], -torch.ones_like(rows[:, :1]))


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The honest stand-in for the leave-one-out graph where the space itself looked at the labels.

    A row of fold f is searched among the rows of the other folds, in a space of the same ``form``
    that is fitted to them alone. ``rows`` are as they came, before any map. Like the graph, the
    neighborhoods are found when they are asked for, and no map of a fold outlives that.
    """

    rows: Float[Tensor, "n d"]
    fold: Int[Tensor, " n"]
    form: Form
    span: Float[Tensor, "n r"] | None = None  # the rows in coordinates of their span, if at hand

    def neighborhood(
        self,
        k: int,
        metric: str,
        labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
        ask: Ask | None = None,
        asked: Int[Tensor, " m"] | None = None,
    ) -> Neighborhood:
        """Each row's k nearest of the other folds (fewer where these have fewer rows).

        Parameters
        ----------
        k, metric : how many, by which distance.
        labels : of all rows; each fold's map is fitted to those of the others.
        ask : ``ask(support, rows, k, fold)`` takes the place of an exact search.
        asked : places of some rows, whose neighbors alone are found.
        """
        rows, k = self.rows, min(k, len(self.fold) - int(self.fold.bincount().max()))
        asked = torch.arange(len(rows)) if asked is None else asked
        distances = rows.new_empty(len(asked), k)
        indices = torch.empty(len(asked), k, dtype=torch.long)
        span = span_coordinates(rows) if self.span is None else self.span
        form, given = self.form.in_span(rows, span)
        for f, number in enumerate(self.fold[asked].unique()):
            mine = (self.fold[asked] == number).nonzero()[:, 0]
            rest = (self.fold != number).nonzero()[:, 0]
            space = form(given[rest], labels[rest])
            x, queries = space(given[rest]), space(given[asked[mine]])
            if ask is None:
                found = ExactSearch(metric).build(x).query(queries, k).cpu()
            else:
                found = ask(x, queries, k, f).cpu()
            distances[mine], indices[mine] = found.distances, rest[found.indices]
        return Neighborhood(distances, indices)

    def with_rows(self, rows: Float[Tensor, "m d"], ids: Int[Tensor, " m"]) -> CrossFit:
        """New rows join the folds in turn."""
        fold = torch.cat([self.fold, ids % (self.fold.max() + 1)])
        return replace(self, rows=torch.cat([self.rows, rows.to(self.rows)]), fold=fold)

    def keep(self, kept: Tensor) -> CrossFit:
        """Without the other rows; where these were all folds but one, the cards are dealt anew."""
        fold = self.fold[kept]
        if len(fold.unique()) < 2:
            fold = torch.arange(len(fold)) % 2
        return replace(self, rows=self.rows[kept], fold=fold)


class LabeledSupport:
    """Rows in a search, their labels and ids, and the cached leave-one-out graph.

    The search holds the rows as ``space`` maps them; what comes in, queries and new rows, is mapped
    here and nowhere else. ``crossed`` takes the place of the graph where the space saw the labels.
    """

    def __init__(
        self,
        search: Search,
        labels: Labels,
        ids: Tensor | None = None,
        graph: NeighborGraph | None = None,
        space: Space = RAW,
        crossed: CrossFit | None = None,
        honest: Neighborhood | None = None,
    ) -> None:
        self.search = search
        self.space = space
        self.crossed = crossed
        self._honest = honest  # of ``crossed``
        self.labels = labels
        self.ids = torch.arange(len(labels.codes)) if ids is None else ids
        self._next_id = int(self.ids.max()) + 1
        self._graph = graph

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> Float[Tensor, "n d"]:
        """All of them, read into memory where they are not in it: not for a large support."""
        return self.search.rows(slice(None))

    def labeled_rows(self, places: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        """Some of the rows that ``labels`` are of."""
        return self.search.rows(places)

    @property
    def dtype(self) -> torch.dtype:
        return self.search.dtype

    @property
    def like(self) -> Float[Tensor, "0 d"]:
        """None of them, in their kind of number and on their device."""
        return self.search.rows(slice(0, 0))

    @property
    def voters(self) -> Int[Tensor, " n"] | Float[Tensor, "n c"]:
        """The labels of all rows that are searched."""
        return self.labels.codes

    @property
    def width(self) -> int:
        """Columns of what comes in, before the map."""
        shift = self.space.shift
        return self.search.width if shift is None else len(shift)

    def query(self, x: Float[Tensor, "m d"], k: int) -> Neighborhood:
        """The k nearest rows of each of ``x`` with their labels; indices are positions, not ids."""
        return self.search.query(self.space(x), k).cpu().labeled(self.labels.codes)

    def query_without(
        self, x: Float[Tensor, "m d"], k: int, gone: Int[Tensor, " g"]
    ) -> Neighborhood:
        """The k nearest rows that are not ``gone``; deeper lists only for rows that need them."""
        left = len(self) - len(gone)
        if left < 1:
            raise InputError("`ids` names the whole support. At least one row must stay.")
        out = torch.zeros(len(self), dtype=torch.bool)
        out[gone] = True
        k, depth = min(k, left), min(k + min(len(gone), k), len(self))
        distances = x.new_empty(len(x), k)
        indices = torch.empty(len(x), k, dtype=torch.long)
        waiting = torch.arange(len(x))
        while len(waiting):
            found = self.query(x[waiting], depth)
            stays = ~out[found.indices]
            enough = stays.sum(1) >= k
            order = (~stays[enough]).int().argsort(dim=1, stable=True)[:, :k]
            done = waiting[enough]
            distances[done] = found.distances[enough].gather(1, order).to(distances)
            indices[done] = found.indices[enough].gather(1, order)
            waiting, depth = waiting[~enough], min(2 * depth, len(self))
        return Neighborhood(distances, indices).cpu().labeled(self.labels.codes)

    def leave_one_out(self, k: int) -> Neighborhood:
        """Each row's (at most) k nearest others, itself removed by index; kept for any k below."""
        if len(self) < 2:
            raise InputError(
                "leave-one-out needs at least 2 support rows, got 1 sample. "
                "Pass temperature= a number, or more rows."
            )
        k = min(k, len(self) - 1)
        if self.crossed is not None:
            if self._honest is None or self._honest.k < k:
                self._honest = self.crossed.neighborhood(k, self.search.metric, self.labels.codes)
            return self._honest.first(k).labeled(self.labels.codes)
        if self._graph is None or self._graph.k < k:
            self._graph = NeighborGraph.build(self.search, k)
        found = Neighborhood(self._graph.distances, self._graph.indices).first(k)
        return found.cpu().labeled(self.labels.codes)

    def evidence(
        self, neighborhood: Neighborhood, targets: Tensor, *, leave_one_out: bool
    ) -> Evidence:
        """What a fit may look at; ``targets`` are class codes, or soft labels."""
        counts = self.labels.counts()
        if self.labels.soft and targets.ndim == 1:
            targets = torch.nn.functional.one_hot(targets, len(counts)).double()
        return Evidence(neighborhood, targets, counts, leave_one_out)

    def own_evidence(self, k: int) -> Evidence:
        """The support's own rows, each among its (at most) k nearest others."""
        return self.evidence(self.leave_one_out(k), self.labels.codes, leave_one_out=True)

    def add(self, rows: Float[Tensor, "m d"], y: Any) -> None:
        labels = coding.joined(self.labels, labels_of(y, len(rows)))
        (self._graph or self.search).add(self.space(rows))
        ids = torch.arange(len(rows)) + self._next_id
        if self.crossed is not None:
            self.crossed, self._honest = self.crossed.with_rows(rows, ids), None
        self.ids = torch.cat([self.ids, ids])
        self._next_id += len(rows)
        self.labels = labels

    def remove(self, positions: Int[Tensor, " m"]) -> None:
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[positions] = False
        if self._graph is not None and int(kept.sum()) <= self._graph.k:
            self._graph = None  # too few rows for its k; the next one is built with less
        (self._graph or self.search).remove((~kept).nonzero()[:, 0])
        if self.crossed is not None:
            self.crossed, self._honest = self.crossed.keep(kept), None
        self.ids = self.ids[kept]
        self.labels = Labels(self.labels.classes, self.labels.codes[kept])

    def relabel(self, positions: Int[Tensor, " m"], y: Any) -> None:
        both = coding.joined(self.labels, labels_of(y, len(positions)))
        values = both.codes[: len(self)].clone()
        values[positions] = both.codes[len(self) :]
        self.labels = Labels(both.classes, values)

    def positions(self, ids: Any) -> Int[Tensor, " m"]:
        """Where the rows with these ids are now."""
        wanted = as_tensor(ids, "ids").reshape(-1)
        if wanted.is_floating_point() or wanted.dtype == torch.bool:
            raise InputError(f"`ids` must be whole numbers, got dtype {wanted.dtype}.")
        order = self.ids.argsort()
        spot = torch.searchsorted(self.ids[order], wanted.long()).clamp_max(len(order) - 1)
        rows = order[spot]
        missing = wanted[self.ids[rows] != wanted]
        if len(missing):
            raise InputError(
                f"`ids` names rows that are not in the support: {missing[:5].tolist()}. "
                "Rows are numbered from 0 in the order they were given; removed ones are gone."
            )
        return rows

    def unreachable(self, k: int) -> NDArray[np.int64]:
        """Ids of rows whose own class none of their k neighbors has: they can only be wrong."""
        theirs, own = self.leave_one_out(k).labels, self.labels.codes
        if own.ndim == 1:
            return self.ids[~(theirs == own[:, None]).any(1)].numpy()
        return self.ids[((theirs.sum(1) <= 0) & (own > 0)).any(1)].numpy()

    def conflicting_duplicates(self, k: int) -> int:
        """Rows with an identical row (distance 0) of another label among their k neighbors."""
        others, own = self.leave_one_out(k), self.labels.codes
        differs = others.labels != own[:, None]
        other = differs if own.ndim == 1 else differs.any(2)
        return int(((others.distances == 0) & other).any(1).sum())


class _InputTypeError(InputError, TypeError):
    """What scikit-learn's contract wants to be a TypeError: sparse rows, say."""


def rows_of(estimator: Any, X: Any, *, reset: bool = False) -> Float[Tensor, "n d"]:
    """``X`` as finite rows of the estimator's width (``reset``: the width is learned here)."""
    if not isinstance(X, Tensor):
        try:
            X = validate_data(
                estimator, X, reset=reset, ensure_all_finite=False, dtype=[np.float64, np.float32]
            )
        except (ValueError, TypeError) as error:  # scikit-learn's own sentences
            kind = _InputTypeError if isinstance(error, TypeError) else InputError
            raise kind(str(error)) from None
        return as_matrix(X, "X")
    x = as_matrix(X.detach(), "X")
    if reset:
        estimator.n_features_in_ = x.shape[1]
    elif x.shape[1] != estimator.n_features_in_:
        raise InputError(
            f"X has {x.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input. "
            "They must come from the same model and layer."
        )
    return x


def check_announced(y: Any, classes: Any) -> None:
    """scikit-learn's ``partial_fit(..., classes)``: no label but those."""
    if classes is None:
        return
    unknown = set(np.asarray(y).tolist()) - set(np.asarray(classes).tolist())
    if unknown:
        raise InputError(
            f"`y` holds {sorted(map(str, unknown))[0]!r}, which `classes` does not announce. Name "
            "every class there, or leave `classes` out: new ones may come at any call."
        )
