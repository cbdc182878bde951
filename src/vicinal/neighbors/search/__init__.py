"""The k nearest rows of a support: one protocol (``protocol.py``), several engines.

``FaissSearch``, ``ShardedLists``, ``PgSearch`` and ``RaySearch`` stand on extras and are loaded
when they are asked for.
"""

from typing import Any

from vicinal.neighbors.search.choice import EXTRAS, engine, make_search
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.resumable import leave_one_out, resumable_query
from vicinal.neighbors.search.sharded import ShardedSearch

__all__ = ["ExactSearch", "Search", "ShardedSearch"]
__all__ += ["leave_one_out", "make_search", "resumable_query"]


def __getattr__(name: str) -> Any:
    if name in EXTRAS:
        return engine(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
