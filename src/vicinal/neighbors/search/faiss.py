r"""Search with faiss: the flat kernels for supports up to a million rows, inverted lists beyond.

``flat`` is exact: faiss proposes candidates, and their distances, ties and rounding are then dealt
with as in :class:`ExactSearch`, so the answers are the same. Which of faiss's two flat kernels is
the faster (a matrix product, or a direct loop) depends on the machine, by a factor of ten either
way; it is measured at build. ``ivf`` looks into the ``nprobe`` nearest of about 4·√n lists only:
neighbors are missed, and ``recall_`` says how many, measured at build against the exact answer.
"""

from __future__ import annotations

import threading
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vicinal.checks import InputError, check_choice, check_k
from vicinal.neighbors.distances import zero_rows
from vicinal.neighbors.search.exact import ExactSearch, kept_mask
from vicinal.neighbors.search.smallest import smallest_scores

IVF_FROM = 1_000_000  # rows above which kind="auto" takes inverted lists
_SIMPLE, _BLAS = 1 << 62, 1  # thresholds under which faiss uses its loop always, and never
_FEW = 4  # queries below which there is no matrix to multiply by
_global_threshold = threading.Lock()


class FaissSearch(ExactSearch):
    """The protocol of :class:`Search` over faiss (``pip install 'vicinal[faiss]'``), on the CPU.

    ``nprobe`` is the number of lists an ``ivf`` search reads: more is slower and misses less.
    ``exact`` says whether the answers are exact (``flat``); ``recall_`` which share of the 50
    nearest a sample of rows was given (1.0 for ``flat``).

    >>> search = FaissSearch().build(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> search.query(torch.tensor([[0.9]]), k=2).indices
    tensor([[1, 0]])
    """

    def __init__(
        self, metric: str = "sqeuclidean", kind: str = "auto", *, nprobe: int = 32
    ) -> None:
        super().__init__(metric)
        check_choice(kind, "kind", ("auto", "flat", "ivf"))
        check_k(nprobe, nprobe, "nprobe", "the index")
        self.kind = kind
        self.nprobe = nprobe
        self._ids: Tensor = torch.empty(0, dtype=torch.long)
        self._faiss = _import_faiss()

    def build(self, support: Any) -> Self:
        super().build(support)
        if self._work.device.type != "cpu":
            raise InputError(
                f"`support` is on {self._work.device}, faiss searches on the CPU. "
                "Pass support.cpu(), or search='exact'."
            )
        self._eps = torch.finfo(torch.float32).eps
        self.exact = self.kind == "flat" or (self.kind == "auto" and len(self) <= IVF_FROM)
        self._refresh()
        self._use_blas = self._blas_is_faster()
        self.recall_ = 1.0
        if not self.exact:
            self._build_lists()
            self.recall_ = self._measure_recall()
        return self

    def add(self, rows: Any) -> None:
        before = len(self)
        super().add(rows)
        self._refresh()
        if not self.exact:
            first = int(self._ids[-1]) + 1
            new = torch.arange(first, first + len(self) - before)
            self._lists.add_with_ids(self._rows[before:], new.numpy())
            self._ids = torch.cat([self._ids, new])

    def remove(self, indices: Any) -> None:
        keep = kept_mask(indices, len(self), self.support.device)
        super().remove(indices)
        self._refresh()
        if not self.exact:
            self._lists.remove_ids(self._ids[~keep].numpy())
            self._ids = self._ids[keep]

    def _refresh(self) -> None:
        """The rows as faiss reads them: float32, sharing memory where they are that already."""
        self._rows = self._work.float().contiguous().numpy()
        self._has_zero = self.metric == "cosine" and bool(zero_rows(self._base).any())

    def _candidates(self, work: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if self._has_zero:  # at distance 1 from everything, which no point of the space is
            return smallest_scores(work, self._work, self._bias, count)
        queries = work.float().contiguous().numpy()
        squared, found = self._flat(queries, count) if self.exact else self._probe(queries, count)
        scores = torch.from_numpy(squared).to(work.dtype) - work.square().sum(1)[:, None]
        indices = torch.from_numpy(found)
        short = (indices < 0).any(1).nonzero()[:, 0]  # lists that held too few are padded by -1
        if len(short):
            again = smallest_scores(work[short], self._work, self._bias, count)
            scores[short], indices[short] = again
        return scores, indices

    def _flat(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        use_blas = self._use_blas and len(queries) >= _FEW
        with _threshold(self._faiss, _BLAS if use_blas else _SIMPLE):
            return self._faiss.knn(queries, self._rows, count)

    def _probe(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        self._lists.nprobe = self.nprobe
        squared, found = self._lists.search(queries, count)
        places = torch.searchsorted(self._ids, torch.from_numpy(found)).numpy()  # ids ascend
        return squared, np.where(found < 0, -1, places)

    def _blas_is_faster(self) -> bool:
        """Two short probes, the better of two runs each, on the rows themselves."""
        rows = self._rows[: max(1, (1 << 21) // self._rows.shape[1])]
        queries = rows[:32]

        def seconds(threshold: int) -> float:
            with _threshold(self._faiss, threshold):
                probe = timeit.Timer(lambda: self._faiss.knn(queries, rows, min(10, len(rows))))
                return min(probe.repeat(2, number=1))

        return seconds(_BLAS) < seconds(_SIMPLE)

    def _build_lists(self) -> None:
        n, d = self._rows.shape
        lists = max(1, min(int(4 * n**0.5), n // 39))  # k-means wants 39 rows to a list
        self._lists = self._faiss.index_factory(d, f"IVF{lists},Flat")
        step = max(1, n // (64 * lists))
        self._lists.train(np.ascontiguousarray(self._rows[::step]))
        self._ids = torch.arange(n)
        self._lists.add_with_ids(self._rows, self._ids.numpy())

    def _measure_recall(self) -> float:
        """Share of the (up to) 50 nearest of 200 rows, spread over the support, that are found."""
        step, count = max(1, len(self) // 200), min(50, len(self))
        _, true = self._flat(np.ascontiguousarray(self._rows[::step]), count)
        found = self.query(self.support[::step], count).indices.numpy()
        hits = [np.isin(t, f).sum() for t, f in zip(true, found, strict=True)]
        return float(sum(hits) / true.size)


@contextmanager
def _threshold(faiss: Any, value: int) -> Iterator[None]:
    """Set faiss's global choice of kernel for one call, and put it back for everyone else."""
    with _global_threshold:
        before = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = min(value, (1 << 31) - 1)
        try:
            yield
        finally:
            faiss.cvar.distance_compute_blas_threshold = before


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "search='faiss' needs the package faiss, which is not installed. "
            "Run pip install 'vicinal[faiss]', or pass search='exact'."
        ) from error
    return faiss
