"""The k nearest rows of a support: one protocol (``protocol.py``), several engines.

``FaissSearch``, ``PgSearch`` and ``RaySearch`` stand on extras, and are loaded when they are asked
for; so is ``ShardedSearch``, which reads its rows in blocks.
"""

from typing import Any

from vicinal.neighbors.search.choice import make_search
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.resumable import leave_one_out, resumable_query

__all__ = ["ExactSearch", "Search", "leave_one_out", "make_search", "resumable_query"]


def __getattr__(name: str) -> Any:
    if name == "FaissSearch":
        from vicinal.neighbors.search.faiss import FaissSearch

        return FaissSearch
    if name == "PgSearch":
        from vicinal.neighbors.search.postgres import PgSearch

        return PgSearch
    if name == "ShardedSearch":
        from vicinal.neighbors.search.sharded import ShardedSearch

        return ShardedSearch
    if name == "RaySearch":
        from vicinal.neighbors.search.on_ray import RaySearch

        return RaySearch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
