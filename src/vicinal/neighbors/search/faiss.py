r"""Search with faiss: the flat kernels where exact is cheap enough, inverted lists beyond.

``flat`` is exact: faiss proposes candidates, and their distances, ties and rounding are then dealt
with as in :class:`ExactSearch`. It is asked for the largest products of [q, 1] and [x, -|x|²/2],
which spares it the rows' squares at every call. Which of its two flat kernels is the faster (a
matrix product, or a direct loop) depends on the machine, by a factor of ten either way; it is
measured at build. ``ivf`` reads some lists only (``lists.py``): neighbors are missed. How much
effort that takes is found on 1,000 exact rows, and what is still missed is measured on 1,000
others; where most of the lists must be read, which exact search is as fast as, it is exact.
"""

from __future__ import annotations

import threading
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from vicinal.checks import InputError, check_choice, check_share
from vicinal.neighbors.distances import compared_rows, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.cost import SAMPLE, lists_may_pay
from vicinal.neighbors.search.exact import SPARE, ExactSearch, kept_mask, squared_distances
from vicinal.neighbors.search.lists import InvertedLists, decided, import_faiss, training_rows
from vicinal.neighbors.search.recall import Recall, drawn_rows
from vicinal.neighbors.search.smallest import smallest_scores

LISTS_FROM = 5_000  # rows below which lists are never worth their making
MOST_NEIGHBORS = 100  # that the effort is found for, until more are asked for
_SIMPLE, _BLAS = 1 << 62, 1  # thresholds under which faiss uses its loop always, and never
_FEW = 4  # queries below which there is no matrix to multiply by; neighbors, no reservoir to fill
_global_threshold = threading.Lock()


class Listed:
    """What searches by inverted lists share: who gets them, with how much effort, what decides.

    The lists propose, the rows decide; ``recall_`` says which share of the nearest that finds. A
    search beside it says how its rows are read: ``_turned`` as the lists take them, ``_learned``
    those that centers are learned on, ``_filled`` all, ``_homes`` in which lists rows lie,
    ``_squared`` how far candidates are, ``_asked`` many queries at once.
    """

    recall_: Recall | None
    _lists: InvertedLists | None

    def _wish(self: Any, kind: str, kinds: tuple[str, ...], recall: float) -> None:
        check_choice(kind, "kind", kinds)
        if recall != 1:  # all of them: exact
            check_share(recall, "recall")
        self.kind, self.recall, self.recall_, self._lists = kind, recall, None, None

    @property
    def exact(self) -> bool:
        return self._lists is None

    @torch.no_grad()
    def exactly(self: Any, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The same, exact whatever it costs."""
        found: Neighborhood = super().query(x, k, exclude=exclude)  # type: ignore[misc]
        return found

    @torch.no_grad()
    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort until recall is met for rows like these; None where that is exact."""
        return self._raise_effort(x, None, self.exactly(x, k))

    def _wants_lists(self: Any) -> bool:
        if self.kind == "flat" or self.recall == 1:
            return False
        if self.kind == "auto":
            return lists_may_pay(len(self), self.width)
        return len(self) >= LISTS_FROM

    def _make_lists(self: Any) -> None:
        self._lists, self.recall_ = None, None
        if self._wants_lists():
            self._lists = InvertedLists(len(self), self._learned())
            self._reach(min(MOST_NEIGHBORS, len(self) - 1))

    def _reach(self: Any, k: int) -> None:
        """Fill lists until the recall of the k nearest is met, and measure it."""
        lists, rows = self._lists, drawn_rows(len(self), 2 * SAMPLE)
        x = self.rows(rows)
        true = self.exactly(x, k, exclude=rows)  # one reading for both samples
        choose, state = slice(0, None, 2), slice(1, None, 2)
        homes = self._homes(lists, true.indices[choose])
        asked = self._turned(compared_rows(x[choose], self.metric))
        lists.read_for(asked, homes, (3 * self.recall + 1) / 4)
        for _ in lists.codings(self._learned()):
            self._lists = lists if self._filled(lists) else None
            for some in (choose, state):
                self.recall_ = self._raise_effort(x[some], rows[some], true.rows(some))

    def _raise_effort(
        self: Any, x: Tensor, out: Tensor | None, true: Neighborhood
    ) -> Recall | None:
        """Until recall is met; ``auto`` gives lists up where more than half must be read: by their
        number and not by the clock, so that a run that goes on does as it did."""
        if (lists := self._lists) is None:
            return None
        found: Recall | None = lists.reach(lambda: self._asked(x, true.k, out), true, self.recall)
        if found is None or (self.kind == "auto" and 2 * lists.probes > lists.count):
            self._lists = found = None
        return found

    def _listed(self: Any, x: Tensor, k: int, out: Int[Tensor, " n"]) -> Neighborhood:
        """The nearest of the candidates that lists give; where these are too few, exactly."""
        q = compared_rows(x, self.metric)
        asked = torch.from_numpy(self._turned(q))
        found = self._lists.candidates(asked, min(k + SPARE, len(self)))
        best, few = decided(Neighborhood(self._squared(q, found), found), q, k, out, self.metric)
        if len(few):
            best.distances[few], best.indices[few] = self.exactly(x[few], k, exclude=out[few])
        return best


class FaissSearch(Listed, ExactSearch):  # type: ignore[override]
    """The protocol of :class:`Search` over faiss (``pip install 'vicinal[faiss]'``), on the CPU.

    ``exact`` says whether the answers are; ``recall_``, where they are not, which share of the
    nearest is found, with its standard error; ``title`` names the engine in a few words.

    Parameters
    ----------
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    kind : ``"flat"``, exact; ``"ivf"``, inverted lists from 5,000 rows on; ``"auto"``, lists where
        exact search would take more than a minute and lists at most half of that, and where at
        most half of them must be read.
    recall : raise the effort until so large a share of the true neighbors is found.

    >>> search = FaissSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> search.query(torch.tensor([[0.9]]), k=2).indices
    tensor([[1, 0]])
    """

    def __init__(
        self,
        metric: str = "sqeuclidean",
        kind: str = "auto",
        *,
        recall: float = 0.98,
    ) -> None:
        super().__init__(metric)
        self._wish(kind, ("auto", "flat", "ivf"), recall)
        self._edited = 0
        self._faiss = import_faiss()

    @property
    def title(self) -> str:  # type: ignore[override]
        if self._lists is None:
            return "exact (faiss)"
        return f"IVF ({self._lists.probes:,} of {self._lists.count:,} lists read)"

    def build(self, support: Any) -> Self:
        super().build(support)
        if self._work.device.type != "cpu":
            raise InputError(
                f"`support` is on {self._work.device}, faiss searches on the CPU. "
                "Pass support.cpu(), or search='exact'."
            )
        self._eps = torch.finfo(torch.float32).eps
        self._refresh()
        self._use_blas = self._blas_is_faster()
        self._edited = 0
        self._make_lists()
        return self

    def add(self, rows: Any) -> None:
        before = len(self)
        super().add(rows)
        self._refresh()
        if self._lists is not None:
            self._lists.add(self._rows[before:])
            self._edited += len(self) - before

    def remove(self, indices: Any) -> None:
        keep = kept_mask(indices, len(self), self.support.device)
        super().remove(indices)
        self._refresh()
        if self._lists is not None:
            self._lists.keep(keep)
            self._edited += int((~keep).sum())

    @torch.no_grad()
    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows of the support to each row of ``x``, or nearly so."""
        if self.recall_ is not None:
            room = len(self) - 1
            if min(k, room) > self.recall_.k or 10 * self._edited > len(self):
                self._edited = 0
                self._reach(min(max(k, MOST_NEIGHBORS), room))
        return self.exactly(x, k, exclude=exclude) if self.exact else self._asked(x, k, exclude)

    def _wants_lists(self) -> bool:  # a zero row is at distance 1 from all, which no point is
        return not self._has_zero and super()._wants_lists()

    def _learned(self) -> Any:
        return self._rows[training_rows(len(self)).numpy()]

    def _filled(self, lists: InvertedLists) -> bool:
        lists.add(self._rows)
        return True

    def _homes(self, lists: InvertedLists, neighbors: Tensor) -> Any:
        return lists.homes(self._rows[neighbors.flatten().numpy()]).reshape(neighbors.shape)

    def _turned(self, q: Tensor) -> Any:
        return self._prepare(q, "x")[0].float().numpy()

    def _squared(self, q: Tensor, found: Tensor) -> Tensor:
        return squared_distances(q, self._base, found.clamp_min(0), self.metric)

    def _asked(self, x: Any, k: int, exclude: Any) -> Neighborhood:
        return self._answered(x, k, exclude, self._listed)

    def _refresh(self) -> None:
        """The rows as faiss reads them: float32, their squares beside them; in memory once."""
        self._columns = torch.cat([self._work, self._bias[:, None] / -2], 1).float().numpy()
        self._rows = self._columns[:, :-1]
        if self._work.dtype == torch.float32:
            self._work = torch.from_numpy(self._rows)
        self._has_zero = self.metric == "cosine" and bool(zero_rows(self._base).any())

    def _candidates(self, work: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if not self._has_zero:  # at distance 1 from everything, which no point of the space is
            asked = pad(work.float(), (0, 1), value=1.0).numpy()
            blas = self._use_blas and len(asked) >= _FEW
            products, found = self._flat(asked, self._columns, count, _BLAS if blas else _SIMPLE)
            if (found >= 0).all():  # what overflows float32 is not found
                return torch.from_numpy(products).to(work.dtype).mul_(-2), torch.from_numpy(found)
        return smallest_scores(work, self._work, self._bias, count)

    def _flat(self, asked: Any, rows: Any, count: int, threshold: int) -> tuple[Any, Any]:
        with _chosen(self._faiss.cvar, threshold):
            return self._faiss.knn(asked, rows, count, metric=self._faiss.METRIC_INNER_PRODUCT)

    def _blas_is_faster(self) -> bool:
        """Two short probes, the better of two runs each, on the rows themselves."""
        rows = self._columns[: max(1, (1 << 21) // self._columns.shape[1])]

        def seconds(threshold: int) -> float:
            probe = timeit.Timer(lambda: self._flat(rows[:32], rows, min(10, len(rows)), threshold))
            return min(probe.repeat(2, number=1))

        return seconds(_BLAS) < seconds(_SIMPLE)


@contextmanager
def _chosen(c: Any, kernel: int) -> Iterator[None]:
    """Faiss's global thresholds for one call, of kernel and reservoir; then as others left them."""
    with _global_threshold:
        before = c.distance_compute_blas_threshold, c.distance_compute_min_k_reservoir
        c.distance_compute_blas_threshold = min(kernel, (1 << 31) - 1)
        c.distance_compute_min_k_reservoir = _FEW  # a heap is better for fewer alone, not for 100
        try:
            yield
        finally:
            c.distance_compute_blas_threshold, c.distance_compute_min_k_reservoir = before
