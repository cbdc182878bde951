"""The minimum of a smooth loss of few parameters: L-BFGS-B, with one pool of threads at work.

The loss is computed by torch, whose threads wait for the next operation at full speed; the steps
are SciPy's, whose BLAS has threads of its own that wait in the same way. On two cores each waits
for the other's waiting: an audit of 5,000 + 50,000 rows took 20 to 40 s so and takes 12 to 15. The
vectors of a step are short, so its BLAS gets one thread and torch keeps all of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import ThreadpoolController

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]  # the loss and its gradient


def minimum(
    objective: Objective,
    start: Vector | Sequence[float],
    options: Any,
    bounds: Sequence[tuple[float, float]] | None = None,
) -> OptimizeResult:
    """The least loss near ``start``; when to stop, and the reach of each parameter, as in SciPy.

    >>> minimum(lambda v: (float((v - 3) @ (v - 3)), 2 * (v - 3)), [0.0], {"maxiter": 9}).x
    array([3.])
    """
    with _pools().limit(limits=1, user_api="blas"):
        return minimize(objective, start, (), "L-BFGS-B", True, bounds=bounds, options=options)


@cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()  # looking for the libraries takes milliseconds
