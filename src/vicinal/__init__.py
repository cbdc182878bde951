"""Know a model by its neighborhoods.

The rooms, in the order of the data flow; each is imported when it is first asked for:

======================== ============================================================
``vicinal.capture``       what did the network say?
``vicinal.neighbors``     who is near whom, and how much?
``vicinal.losses``        what should training push?
``vicinal.similarity``    which inputs does the network treat alike?
``vicinal.confidence``    how far may a prediction be trusted?
``vicinal.perturbations`` what if the input differed?
``vicinal.evaluation``    are the numbers any good?
``vicinal.audits``        the main job: what may be shipped?
``vicinal.studies``       what does it all say?
======================== ============================================================
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = ("capture", "neighbors", "losses", "similarity", "confidence", "perturbations",
          "evaluation", "audits", "studies", "report")  # fmt: skip
# The main job, one import away: name -> the module that holds it.
_NAMES = {"audit": "vicinal.audits", "load": "vicinal.confidence", "InputError": "vicinal.checks"}

__all__ = [*_NAMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"vicinal.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'vicinal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
