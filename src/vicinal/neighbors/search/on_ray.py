"""The k nearest rows of a support that lies in many processes or on many machines, by Ray.

One actor holds one piece of the rows, with its search. A block of queries goes to all actors, and
their lists are merged as :mod:`vicinal.neighbors.search.sharded` merges those of blocks: the answer
does not depend on how many actors there are. Ray schedules, sends, restarts an actor that died and
asks it again; an actor reads its piece, from its files or from Ray's store, when it is first asked,
so that a restarted one reads it again. There is no scheduler, RPC or retry of our own.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.cluster import RESTARTS, asking, connect, places
from vicinal.neighbors.neighborhood import Neighborhood, joined
from vicinal.neighbors.search.choice import RECALL, make_search
from vicinal.neighbors.search.exact import checked_query, checked_rows
from vicinal.neighbors.search.protocol import ApproximateSearch, EffortSearch, Search
from vicinal.neighbors.search.recall import Recall, recall_of
from vicinal.neighbors.search.sharded import (
    ShardedSearch,
    Source,
    merged_lists,
    nearest_in_block,
    nothing,
    rows_at,
)

BLOCK = 2048  # queries that are sent at a time
AHEAD = 3  # blocks of queries on their way, so that no actor waits for the merging
_READ = 1 << 16  # rows read at a time


class Piece:
    """What an actor is: rows ``start`` to ``stop`` of a source, or the rows themselves."""

    def __init__(
        self, source: Any, start: int, stop: int, metric: str, engine: str, recall: float
    ) -> None:
        self.source, self.start, self.stop = source, start, stop
        self.metric, self.engine, self.recall = metric, engine, recall
        self._search: Search | None = None

    @property
    def search(self) -> Search:
        """Read and built when it is first asked: what goes wrong is then said to who asks."""
        if self._search is None:
            rows = self.source
            if hasattr(rows, "blocks"):
                blocks = rows.blocks(_READ, self.start, self.stop)
                rows = torch.cat([block for _, block in blocks])
            else:
                rows = torch.tensor(rows)  # copied: Ray's are read-only
            shape = (len(rows), rows.shape[1])
            made = make_search(self.engine, self.metric, recall=self.recall, shape=shape)
            self._search = made.build(rows)
        return self._search

    def ready(self) -> int:
        """Its process, once the rows are there."""
        assert len(self.search)
        return os.getpid()

    def exact(self) -> bool:
        """Whether its search is."""
        return self.search.exact

    def reach(self, x: Any, k: int) -> None:
        """More effort, where it is approximate and rows like these need it."""
        if isinstance(self.search, EffortSearch):
            self.search.reach(torch.tensor(x), min(k, len(self.search)))

    def node(self) -> str:
        """The machine it is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def query(self, x: Any, k: int, exclude: Any, exactly: bool = False) -> tuple[Any, Any]:
        """``exactly``: whatever it costs, where the search is approximate."""
        ask = self.search.query
        if exactly and not self.search.exact:
            ask = cast(ApproximateSearch, self.search).exactly
        rows, out = torch.tensor(x), torch.tensor(exclude)
        near = nearest_in_block(ask, range(self.start, self.stop), rows, k, out)
        return near.distances.numpy(), near.indices.numpy()


def _done(work: Any, start: int, stop: int) -> Any:
    return work(start, stop)


class RaySearch(ShardedSearch):
    """The k nearest rows of a source or of rows in memory, piece by piece in Ray's actors.

    Parameters
    ----------
    metric : as of :class:`ExactSearch`.
    on : ``"ray"`` (the cluster of RAY_ADDRESS, or a local one) or ``"ray://host:port"``.
    engine : what searches a piece, as :func:`make_search` takes it; recall : that of each piece.
    workers : how many actors; None is one for each core of the cluster that is free.
    """

    def __init__(
        self,
        metric: str = "sqeuclidean",
        *,
        on: str = "ray",
        engine: str = "exact",
        recall: float = RECALL,
        workers: int | None = None,
    ) -> None:
        super().__init__(metric)
        self.engine, self.recall = engine, recall
        self.exact = True  # until a piece says otherwise
        self.recall_: Recall | None = None  # of all pieces together, which nobody has measured here
        self.workers = workers
        self.ray = connect(on)
        self.actors: list[Any] = []
        self._stored: list[Any] = []

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{'exact' if self.exact else 'IVF'}, in {len(self.actors)} workers of Ray"

    @property
    def width(self) -> int:
        rows: Any = self.source
        return rows.shape[1] if isinstance(rows, Tensor) else rows.width

    def build(self, support: Source | Tensor) -> Self:
        """Start the actors, one for each piece; returns when every piece is read."""
        ray, rows = self.ray, len(support)
        count, share = places(ray, self.workers)
        count = max(1, min(count, rows))
        edges = [rows * at // count for at in range(count + 1)]
        remote = ray.remote(num_cpus=share, max_restarts=RESTARTS, max_task_retries=RESTARTS)(Piece)
        self.actors, self._stored = [], []
        self._source = support  # type: ignore[assignment]  # or the rows themselves
        how = self.metric, self.engine, self.recall
        for start, stop in itertools.pairwise(edges):
            piece: Any = support
            if isinstance(support, Tensor):
                piece = ray.put(support[start:stop].detach().cpu().numpy())
                self._stored.append(piece)  # a restarted actor reads it again
            self.actors.append(remote.remote(piece, start, stop, *how))
        with asking("the support"):
            self.exact = all(ray.get([actor.exact.remote() for actor in self.actors]))
        return self

    def rows(self, indices: Tensor | slice) -> Float[Tensor, "m d"]:
        """These rows, read here: the files of the shards must be readable here too."""
        if isinstance(self.source, Tensor):
            return self.source[indices]
        return rows_at(self.source, indices, _READ)

    def query(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """The k nearest rows to each row of x, asked of all actors at once."""
        return self._asked(x, k, exclude, exactly=False)

    def exactly(self, x: Any, k: int, *, exclude: Any = None) -> Neighborhood:
        """:meth:`query`, exact whatever it costs."""
        return self._asked(x, k, exclude, exactly=True)

    def reach(self, x: Any, k: int) -> Recall | None:
        """Raise the effort in every piece until its recall is met for rows like these."""
        with asking("a piece of the support"):
            sent = self.ray.put(checked_rows(x, "x", self.width).cpu().numpy())
            self.ray.get([actor.reach.remote(sent, k) for actor in self.actors])
        return recall_of(self.query(x, k), self.exactly(x, k))

    @torch.no_grad()
    def _asked(self, x: Any, k: int, exclude: Any, *, exactly: bool) -> Neighborhood:
        x, out = (part.cpu() for part in checked_query(self, x, k, exclude))
        waiting: deque[tuple[Tensor, list[Any]]] = deque()
        done: list[Neighborhood] = []
        with asking("a piece of the support"):
            for rows, left_out in zip(x.split(BLOCK), out.split(BLOCK), strict=True):
                sent = self.ray.put(rows.numpy()), k, self.ray.put(left_out.numpy()), exactly
                waiting.append((rows, [actor.query.remote(*sent) for actor in self.actors]))
                if len(waiting) > AHEAD:
                    done.append(self._merged(*waiting.popleft(), k))
            done += [self._merged(*pair, k) for pair in waiting]
        return joined(done)

    def _merged(self, rows: Tensor, lists: list[Any], k: int) -> Neighborhood:
        best = nothing(rows, k, self.dtype)
        for distances, indices in self.ray.get(lists):
            found = Neighborhood(torch.tensor(distances), torch.tensor(indices))
            best = merged_lists(best, found, k)
        return best

    def map(self, work: Any, spans: Any) -> Iterator[Any]:
        """``work(start, stop)`` of every span, in order, as tasks where the span's rows lie.

        A task waits for the actors' answers, so it takes no core of its own.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, spans, waiting = self.ray, list(spans), deque[Any]()
        with asking("the support"):
            nodes = ray.get([actor.node.remote() for actor in self.actors])
            sent = ray.put(work)
            for at, (start, stop) in enumerate(spans):
                piece = min(start * len(nodes) // max(len(self), 1), len(nodes) - 1)
                near = NodeAffinitySchedulingStrategy(nodes[piece], soft=True)
                task = ray.remote(num_cpus=0, max_retries=RESTARTS, scheduling_strategy=near)(_done)
                waiting.append(task.remote(sent, start, stop))
                if at >= AHEAD:
                    yield ray.get(waiting.popleft())
            while waiting:
                yield ray.get(waiting.popleft())
