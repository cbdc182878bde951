"""The k nearest rows of a support: one protocol, three engines.

``FaissSearch`` and ``PgSearch`` stand on extras, and are loaded when they are asked for.
"""

from typing import Any

from vicinal.neighbors.search.exact import ExactSearch, Search, make_search
from vicinal.neighbors.search.resumable import resumable_query

__all__ = ["ExactSearch", "Search", "make_search", "resumable_query"]


def __getattr__(name: str) -> Any:
    if name == "FaissSearch":
        from vicinal.neighbors.search.faiss import FaissSearch

        return FaissSearch
    if name == "PgSearch":
        from vicinal.neighbors.search.postgres import PgSearch

        return PgSearch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
