r"""Search with faiss: the flat kernels where exact is cheap enough, inverted lists beyond.

``flat`` is exact: faiss proposes candidates, and their distances, ties and rounding are then dealt
with as in :class:`ExactSearch`. It is asked for the largest products of [q, 1] and [x, -|x|²/2],
which spares it the rows' squares at every call. Which of its two flat kernels is the faster (a
matrix product, or a direct loop) depends on the machine, by a factor of ten either way; it is
measured at build. ``ivf`` reads some lists only (``lists.py``): neighbors are missed. How much
effort that takes is found on 1,000 exact rows, and what is still missed is measured on 1,000
others; where the lists must be read so widely that exact search is no slower, it is exact.
"""

from __future__ import annotations

import math
import threading
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from vicinal.checks import InputError, check_choice, check_k, check_share
from vicinal.neighbors.distances import compared_rows, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.cost import SAMPLE, lists_may_pay
from vicinal.neighbors.search.exact import SPARE, ExactSearch, kept_mask, squared_distances
from vicinal.neighbors.search.lists import InvertedLists, clock, decided, training_rows
from vicinal.neighbors.search.recall import Recall, drawn_rows
from vicinal.neighbors.search.smallest import smallest_scores

LISTS_FROM = 5_000  # rows below which lists are never worth their making
_K = 100  # neighbors that the effort is found for, until more are asked for
_SIMPLE, _BLAS = 1 << 62, 1  # thresholds under which faiss uses its loop always, and never
_FEW = 4  # queries below which there is no matrix to multiply by; neighbors, no reservoir to fill
_global_threshold = threading.Lock()


class FaissSearch(ExactSearch):
    """The protocol of :class:`Search` over faiss (``pip install 'vicinal[faiss]'``), on the CPU.

    ``exact`` says whether the answers are; ``recall_``, where they are not, which share of the
    nearest is found, with its standard error; ``title`` names the engine in a few words.

    Parameters
    ----------
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    kind : ``"flat"``, exact; ``"ivf"``, inverted lists from 5,000 rows on; ``"auto"``, lists where
        exact search would take more than a minute and lists at most half of that.
    recall : raise the effort until so large a share of the true neighbors is found.
    nprobe : read so many lists, whatever is found.

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
        nprobe: int | None = None,
    ) -> None:
        super().__init__(metric)
        check_choice(kind, "kind", ("auto", "flat", "ivf"))
        if recall != 1:  # all of them: exact
            check_share(recall, "recall")
        if nprobe is not None:
            check_k(nprobe, nprobe, "nprobe", "the index")
        self.kind, self.recall, self.nprobe = kind, recall, nprobe
        self.recall_: Recall | None = None
        self._edited = 0
        self._lists: InvertedLists | None = None
        self._faiss = import_faiss()

    @property
    def exact(self) -> bool:  # type: ignore[override]  # of this engine it depends on the rows
        return self._lists is None

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
        self._lists, self.recall_, self._edited = None, None, 0
        if self._wants_lists():
            some = self._rows[training_rows(len(self)).numpy()]
            self._lists = InvertedLists(self._faiss, len(self), some)
            self._reach(min(_K, len(self) - 1))
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
        if self._lists is not None and self.recall_ is not None:
            room = len(self) - 1
            if min(k, room) > self.recall_.k or 10 * self._edited > len(self):
                self._reach(min(max(k, _K), room))
        if self._lists is None:
            return super().query(x, k, exclude=exclude)
        return self._answered(x, k, exclude, self._listed)

    @torch.no_grad()
    def exactly(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The same, exact whatever it costs."""
        return super().query(x, k, exclude=exclude)

    @torch.no_grad()
    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort until recall is met for rows like these; None where that is exact."""
        start = clock()
        true = self.exactly(x, k)
        return self._raise_effort(x, None, true, clock() - start)

    def _wants_lists(self) -> bool:
        if self.kind == "flat" or self.recall == 1 or self._has_zero:
            return False  # a zero row is at distance 1 from everything, which no point of space is
        if self.kind == "auto" and self.nprobe is None:
            return lists_may_pay(len(self), self.width)
        return len(self) >= LISTS_FROM or (self.kind == "ivf" and self.nprobe is not None)

    def _reach(self, k: int) -> None:
        """Fill lists until the recall of the k nearest is met, and measure it."""
        lists, rows, start = self._lists, drawn_rows(len(self), 2 * SAMPLE), clock()
        assert lists is not None
        true = self.exactly(self.rows(rows), k, exclude=rows)
        exact, self._edited, lists.probes = (clock() - start) / 2, 0, self.nprobe or 0
        if not lists.probes:
            homes = lists.homes(self._rows[true.indices[::2].flatten().numpy()])
            asked, wanted = self._rows[rows[::2].numpy()], (3 * self.recall + 1) / 4
            lists.read_for(asked, homes.reshape(len(asked), -1), wanted)
        for _ in lists.codings(self._rows[training_rows(len(self)).numpy()]):
            lists.add(self._rows)
            self._lists = lists
            for some in (slice(0, None, 2), slice(1, None, 2)):  # to choose by, and to state
                x, out = self.rows(rows[some]), rows[some]
                self.recall_ = self._raise_effort(x, out, true.rows(some), exact)

    def _raise_effort(
        self, x: Tensor, out: Tensor | None, true: Neighborhood, exact: float
    ) -> Recall | None:
        """Until recall is met; where that is hardly faster than ``exact``, lists are given up."""
        if self._lists is None:
            return None
        wanted, slowest = (self.recall, exact / 2) if self.nprobe is None else (0.0, math.inf)
        found = self._lists.reach(
            lambda: self._answered(x, true.k, out, self._listed),
            true, wanted, slowest if self.kind == "auto" else math.inf,
        )  # fmt: skip
        self._lists = None if found is None else self._lists
        return found

    def _listed(self, x: Tensor, k: int, exclude: Tensor) -> Neighborhood:
        """The nearest of the candidates that lists give; where these are too few, exactly."""
        assert self._lists is not None
        q = compared_rows(x, self.metric)
        work, _ = self._prepare(q, "x")
        found = self._lists.candidates(work, min(k + SPARE, len(self)))
        squared = squared_distances(q, self._base, found.clamp_min(0), self.metric)
        best, few = decided(Neighborhood(squared, found), q, k, exclude, self.metric)
        if len(few):
            best.distances[few], best.indices[few] = self._exact(x[few], k, exclude[few])
        return best

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


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "search='faiss' needs the package faiss, which is not installed. "
            "Run pip install 'vicinal[faiss]', or pass search='exact'."
        ) from error
    return faiss
