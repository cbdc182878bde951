"""A search by name: ``"exact"``, ``"faiss"``, or ``"auto"``, the one that costs less."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from vicinal.checks import InputError, check_choice, check_share
from vicinal.neighbors.search.cost import exact_seconds, lists_may_pay
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.sharded import ShardedSearch

SEARCHES = ("exact", "auto", "faiss")
RECALL = 0.98
EXTRAS = {  # engine -> its file
    "FaissSearch": "faiss",
    "ShardedLists": "sharded_lists",
    "PgSearch": "postgres",
    "RaySearch": "on_ray",
}


def make_search(
    search: str | Search,
    metric: str,
    *,
    recall: float = RECALL,
    shape: tuple[int, int] | None = None,
) -> Search:
    """A search by name, or the one given.

    Parameters
    ----------
    search : ``"exact"``; ``"faiss"``, inverted lists for all but small supports; ``"auto"``, exact
        until lists cost less on this machine (exact always where faiss is not installed).
    metric : ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    recall : the share of the true neighbors that an approximate search finds, at least.
    shape : of the support to come: rows and columns, where they are known already.

    >>> make_search("exact", "cosine").metric
    'cosine'
    """
    if recall != 1:  # all of them: exact
        check_share(recall, "recall")
    if not isinstance(search, str):
        if search.metric != metric:
            raise InputError(
                f"`search` compares by {search.metric!r} but `metric` is {metric!r}. "
                f"Pass metric={search.metric!r}, or a search of that metric."
            )
        return search
    check_choice(search, "search", SEARCHES)
    if search == "exact" or (search == "auto" and shape and not lists_may_pay(*shape)):
        return ExactSearch(metric)
    if search == "auto" and find_spec("faiss") is None:
        return _WithoutFaiss(metric)
    kind = "auto" if search == "auto" else "ivf"
    found: Search = engine("FaissSearch")(metric, kind, recall=recall)
    return found


def engine(name: str) -> Any:
    """The class of an engine that stands on an extra: loaded when it is asked for."""
    return getattr(import_module(f"vicinal.neighbors.search.{EXTRAS[name]}"), name)


def make_sharded(
    search: str,
    metric: str,
    *,
    recall: float,
    memory: int,
    shape: tuple[int, int],
    kept: Path | None = None,
) -> ShardedSearch:
    """The same for rows read in blocks; what it decides and makes is ``kept`` in a folder."""
    without = search == "auto" and find_spec("faiss") is None
    if without and lists_may_pay(*shape):
        warn_of_minutes(*shape)
    if search == "exact" or without:
        return ShardedSearch(metric, memory=memory)
    lists, kind = engine("ShardedLists"), "auto" if search == "auto" else "ivf"
    found: ShardedSearch = lists(metric, kind, recall=recall, memory=memory, kept=kept)
    return found


class _WithoutFaiss(ExactSearch):
    """What ``"auto"`` is where there is no choice: exact, and it says what that costs."""

    def build(self, support: Any) -> Self:
        super().build(support)
        if lists_may_pay(len(self), self.width):
            warn_of_minutes(len(self), self.width)
        return self


def warn_of_minutes(rows: int, width: int) -> None:
    warnings.warn(
        f"an exact search of {rows:,} rows among themselves takes about "
        f"{exact_seconds(rows, width) / 60:.0f} minutes here. With pip install 'vicinal[faiss]' "
        "search='auto' would use inverted lists, and say what they miss.",
        UserWarning,
        stacklevel=3,
    )
