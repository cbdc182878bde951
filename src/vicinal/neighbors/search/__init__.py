"""The k nearest rows of a support: one protocol (``protocol.py``), several engines.

``FaissSearch``, ``ShardedLists``, ``PgSearch`` and ``RaySearch`` stand on extras and are loaded
when they are asked for; so is ``ShardedSearch``, which reads its rows in blocks.
"""

from importlib import import_module
from typing import Any

from vicinal.neighbors.search.choice import make_search
from vicinal.neighbors.search.exact import ExactSearch
from vicinal.neighbors.search.protocol import Search
from vicinal.neighbors.search.resumable import leave_one_out, resumable_query

__all__ = ["ExactSearch", "Search", "leave_one_out", "make_search", "resumable_query"]
LATER = {"FaissSearch": "faiss", "PgSearch": "postgres", "ShardedSearch": "sharded"}
LATER |= {"ShardedLists": "sharded_lists", "RaySearch": "on_ray"}  # name -> its file


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
