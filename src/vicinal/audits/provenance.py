"""What the numbers of an audit were made with, and how to make them again."""

from __future__ import annotations

import datetime
import platform
import time
from typing import Any

import numpy as np
import scipy
import sklearn
import torch

from vicinal import __version__
from vicinal.audits.sections import Provenance


def provenance_of(
    seed: int, command: str, reproduce: str, start: float, config: dict[str, Any]
) -> Provenance:
    """What the numbers were made with, and how to make them again.

    Parameters
    ----------
    seed : of all that is drawn.
    command, reproduce : what was called, and what to call for the same numbers.
    start : ``time.perf_counter()`` at the beginning.
    config : every setting by name.
    """
    return Provenance(
        version=__version__,
        seed=seed,
        command=command,
        reproduce=reproduce,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - start, 2),
        device="cpu",
        versions={
            "vicinal": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
        config=config,
    )
