r"""Inverted lists of faiss: candidates from the lists nearest to a query, none from the others.

Rows go to the nearest of about 2·√n centers and are kept there as codes of four bits to two columns
(faiss's fast scan), a sixteenth of their size; whoever asks computes the true
distances of the candidates from the rows. Two numbers make the effort: ``probes``, lists that are
read, and ``depth``, candidates for each neighbor wanted. The first need not be searched for: a true
neighbor is found only if its list is among those read, so the ranks of the lists that true
neighbors of a sample lie in say how many must be, before any row is in them.

A part of a code says most where the columns it stands for vary alike in every part. So rows are
turned to the principal axes of a sample before they are coded, and the axes are dealt to the parts
from the widest to the narrowest and back: distances stay, and fewer candidates are enough.

A code is that of the row, or of its difference from the list's center. Differences are finer where
rows lie in tight groups, but each list that is read then wants a table of its own, which takes ten
times as long as its codes. So rows are coded by their differences where few lists are read, and
themselves where many are, as long as that shows the neighbors (:meth:`InvertedLists.codings`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vicinal.checks import InputError
from vicinal.files import (
    DiskError,
    fingerprint,
    reading,
    reason,
    regular_file,
    write_atomically,
)
from vicinal.neighbors.distances import in_unit, zero_rows
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.cost import ITERATIONS, TRAINING, list_count
from vicinal.neighbors.search.recall import Recall, recall_of
from vicinal.neighbors.search.smallest import by_distance_then_index

_CODED_FROM = 10_000  # rows below which there is nothing to learn codes from: they are kept whole
_PARTS = 128  # of a code at most; the sums of more do not fit the registers of a fast scan
_FEW = 32  # lists whose tables cost little beside the candidates' distances
DEEPEST = 16  # candidates for each neighbor; beyond, codes are not what hides the others
_BLOCK = 1 << 14  # rows that are handed over at a time
_SORTED = 512  # queries whose candidates are sorted at a time
_FACTS = "lists.json"
AGAIN = "Run the same command with --fresh."
_ASKED = 1 << 10  # queries at a time: what is found for them stays in the cache


class InvertedLists:
    """Which rows may be near: ids are 0..n-1 in the order rows came, and are never used again."""

    def __init__(self, n: int, some: NDArray[np.float32]) -> None:
        """For n rows to come, trained on ``some`` of them (:func:`training_rows`)."""
        width, self._coded = some.shape[1], n >= _CODED_FROM
        self.count = min(list_count(n), max(1, len(some) // 39))
        self.probes, self.depth = 1, 2
        columns = 2 * -(-width // (2 * _PARTS))  # to a part of the code
        parts = -(-width // columns)
        coded, codes = parts * columns if self._coded else width, "Flat"
        if self._coded:
            codes, self._axes = f"PQ{parts}x4fs", _dealt_axes(some, parts, coded)
        self._index: Any = import_faiss().index_factory(coded, f"IVF{self.count},{codes}")
        self.least = 0  # neighbors that recall was met for: no fewer candidates for fewer of them
        self.ids = torch.empty(0, dtype=torch.long)
        self._index.cp.niter = ITERATIONS
        self._index.cp.min_points_per_centroid = 1  # list_count sees to it; faiss would print
        self._index.train(self._turned(some))

    def codings(self, some: NDArray[np.float32]) -> Iterator[None]:
        """Empty lists, to be filled: with rows coded themselves where many are read; with codes of
        differences, learned on ``some``, where few are or the others were too coarse."""
        probes = self.probes
        for differences in (False, True) if self._coded and probes > _FEW else (True,):
            self._index.reset()
            self.ids, self.probes, self.depth = torch.empty(0, dtype=torch.long), probes, 2
            self.code(differences, some)
            yield
            if self.depth < DEEPEST:
                return

    @property
    def differences(self) -> bool:
        """Whether rows are coded by their differences from the centers."""
        return bool(self._index.by_residual)

    def code(self, differences: bool, some: NDArray[np.float32]) -> None:
        """Learn codes of this kind on ``some`` rows; the centers stay."""
        if self._coded and self.differences != differences:
            self._index.by_residual = differences
            self._index.train(self._turned(some))

    def add(self, rows: NDArray[np.float32]) -> None:
        first = int(self.ids[-1]) + 1 if len(self.ids) else 0
        new = torch.arange(first, first + len(rows))
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            self._index.add_with_ids(self._turned(rows[block]), new[block].numpy())
        self.ids = torch.cat([self.ids, new])

    def keep(self, kept: Tensor) -> None:
        """Without the other rows; places move up."""
        self._index.remove_ids(self.ids[~kept].numpy())
        self.ids = self.ids[kept]

    def candidates(self, queries: Float[Tensor, "n d"], count: int) -> Int[Tensor, "n c"]:
        """Places of rows that may be among the ``count`` nearest, -1 where lists hold too few."""
        self._index.nprobe = min(self.probes, self.count)
        wanted = min(max(count, self.least) * self.depth, len(self.ids))
        # An array, or a tensor where others have loaded faiss.contrib.torch_utils.
        centers = torch.as_tensor(self._index.quantizer.reconstruct_n(0, self.count))
        rows, found = self._turned(queries.float().numpy()), np.empty((len(queries), wanted), int)
        for at in range(0, len(rows), _ASKED):
            part = slice(at, at + _ASKED)
            lists, near = _nearest(torch.from_numpy(rows[part]), centers, self._index.nprobe)
            found[part] = self._index.search_preassigned(rows[part], wanted, lists, near)[1]
        ids = torch.from_numpy(found)
        if int(self.ids[-1]) == len(self.ids) - 1:  # none has gone: an id is its place
            return ids
        return torch.where(ids < 0, -1, torch.searchsorted(self.ids, ids))  # ids ascend

    def homes(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The list that each row lies in."""
        parts = [rows[at : at + _BLOCK] for at in range(0, len(rows), _BLOCK)]
        find = self._index.quantizer.search
        return np.concatenate([find(self._turned(part), 1)[1][:, 0] for part in parts])

    def read_for(self, asked: NDArray[np.float32], homes: NDArray[np.int64], share: float) -> None:
        """Read as many lists as hold this share of the neighbors, that lie in ``homes``."""
        _, order = self._index.quantizer.search(self._turned(asked), self.count)
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self.count)[None].repeat(len(order), 0), 1)
        needed = np.sort(np.take_along_axis(rank, homes, 1), axis=None)
        self.probes = int(needed[min(int(share * len(needed)), len(needed) - 1)]) + 1

    def reach(
        self, ask: Callable[[], Neighborhood], true: Neighborhood, wanted: float
    ) -> Recall | None:
        """Raise the effort until ``ask`` has the recall that is wanted: what it is, or None."""
        self.least = max(self.least, true.k)
        while (recall := recall_of(ask(), true)).share < wanted:
            if self.depth < min(DEEPEST, len(self.ids)):  # the lists hold enough
                self.depth += max(1, self.depth // 4)
            elif self.probes < self.count:
                self.probes = min(self.probes + self.probes // 2 + 1, self.count)
            else:
                return None  # all of them: more effort than that is an exact search
        return recall

    def _turned(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """As they are coded; where they are not, as they are."""
        if not self._coded:
            return np.ascontiguousarray(rows)
        return (torch.from_numpy(rows) @ torch.from_numpy(self._axes)).numpy()


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "search='faiss' needs the package faiss, which is not installed. "
            "Run pip install 'vicinal[faiss]', or pass search='exact'."
        ) from error
    return faiss


def decided(
    candidates: Neighborhood, q: Float[Tensor, "n d"], k: int, out: Int[Tensor, " n"], metric: str
) -> tuple[Neighborhood, Int[Tensor, " few"]]:
    """The k nearest of the candidates, at squared distances, and the queries to be asked exactly:
    those whose lists gave too few, and zero rows, which are as far from all rows."""
    squared, found = candidates
    squared.masked_fill_((found < 0) | (found == out[:, None]), torch.inf)
    best = [
        by_distance_then_index(in_unit(near, metric), where.clamp_min(0))
        for near, where in zip(squared.split(_SORTED), found.split(_SORTED), strict=True)
    ]
    distances = torch.cat([near[:, :k] for near, _ in best])
    few = distances[:, -1].isinf() | (zero_rows(q) if metric == "cosine" else False)
    indices = torch.cat([where[:, :k] for _, where in best])
    return Neighborhood(distances, indices), few.nonzero()[:, 0]


def _nearest(
    rows: Float[Tensor, "n d"], centers: Float[Tensor, "c d"], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest centers in no order, with their squared distances: faiss sorts them, which takes
    longer than the product does."""
    lengths = rows.square().sum(1, keepdim=True) + centers.square().sum(1)
    squared = torch.addmm(lengths, rows, centers.T, alpha=-2).numpy()
    nearest = np.argpartition(squared, count - 1, axis=1)[:, :count]
    return nearest, np.take_along_axis(squared, nearest, 1)


def _dealt_axes(some: NDArray[np.float32], parts: int, width: int) -> NDArray[np.float32]:
    """Principal axes of centered rows, by falling variance dealt to and fro; zeros fill up."""
    rows = torch.from_numpy(some / (np.abs(some).max() or 1))  # whose squares can be summed
    axes = torch.linalg.eigh((rows.T @ rows).double()).eigenvectors.flip(1)
    axes = torch.nn.functional.pad(axes, (0, width - axes.shape[1])).view(len(axes), -1, parts)
    axes[:, 1::2] = axes[:, 1::2].flip(2)
    return axes.transpose(1, 2).reshape(len(axes), width).float().numpy()


def training_rows(n: int, most: int | None = None) -> Int[Tensor, " t"]:
    """Which of n rows the lists' centers are trained on, in order; at most so many."""
    order = np.random.default_rng(0).permutation(n)[: TRAINING * list_count(n)]
    return torch.from_numpy(np.sort(order[:most]))


def keep(folder: Path, facts: dict[str, Any]) -> None:
    """What was decided, for a run that goes on, with its checksum."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot write to folder {folder}: {reason(error)}.") from error
    write_atomically(
        folder / _FACTS, json.dumps(facts | {"sha256": fingerprint(json.dumps(facts))})
    )


def kept(folder: Path) -> dict[str, Any] | None:
    """What was kept; None where nothing was. It is whole, but anyone can have made it."""
    if not (folder / _FACTS).exists():
        return None
    with reading(folder, AGAIN):
        facts: dict[str, Any] = json.loads(
            regular_file(folder / _FACTS, within=folder).read_bytes()
        )
        if facts.pop("sha256") != fingerprint(json.dumps(facts)):
            raise ValueError(f"{_FACTS} has another checksum")
        return facts
