r"""Matrix products by the quicker of torch's two libraries.

``torch.mm`` calls MKL, which leaves the wide registers of some processors idle (AMD's with AVX-512:
115 GFLOP/s a core); oneDNN, which torch uses for convolutions, takes them (255). Which is quicker
is measured once in a process, and large products that no one will differentiate go there.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from time import process_time
from timeit import repeat

import torch
from jaxtyping import Float
from torch import Tensor

WORTH = 1 << 21  # multiplications from which the choice is worth making
CLEARLY = 1.25  # times as fast: where both are alike, the answers are MKL's, to the last bit


def product(
    x: Float[Tensor, "n k"], w: Float[Tensor, "m k"], added: Tensor | None = None
) -> Float[Tensor, "n m"]:
    """``x wᵀ``, and what is added to it: ``(m,)`` or ``(n, m)``.

    >>> product(torch.ones(1, 2), torch.ones(3, 2))
    tensor([[2., 2., 2.]])
    """
    if not takes_other(x, w):
        return x @ w.T if added is None else torch.addmm(added, x, w.T)
    w = w if w.is_contiguous() or w.T.is_contiguous() else w.contiguous()  # else oneDNN crawls
    linear, found = torch.ops.mkldnn._linear_pointwise, x
    if added is None or added.ndim == 1:
        found = linear(x, w, added, "none", [], "")
    else:
        found = linear.binary(x, added, w, None, "add")
    return found


def products(x: Float[Tensor, "b n k"], w: Float[Tensor, "b m k"]) -> Float[Tensor, "b n m"]:
    """``x wᵀ`` of each pair of matrices."""
    if len(x) and takes_other(x[0], w[0]):
        return torch.stack([product(one, other) for one, other in zip(x, w, strict=True)])
    return x @ w.mT


def takes_other(x: Tensor, w: Tensor) -> bool:
    """Whether oneDNN multiplies these, and clearly quicker."""
    return (
        x.numel() * len(w) >= WORTH
        and x.dtype == w.dtype == torch.float32
        and x.device.type == "cpu"
        and not (torch.is_grad_enabled() and (x.requires_grad or w.requires_grad))
        and _seconds(torch.get_num_threads())[0] > CLEARLY * _seconds(torch.get_num_threads())[1]
    )


def product_rate() -> float:
    """Operations of the quicker library in a second of CPU time."""
    return 2.0 * 256 * 512 * 128 / min(_seconds(torch.get_num_threads()))


@lru_cache
def _seconds(threads: int) -> tuple[float, float]:
    """Of CPU, by MKL and by oneDNN: the least of several, for what else runs is not their rate."""
    x, w = torch.ones(256, 128), torch.ones(512, 128)
    calls = lambda: x @ w.T, lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
    try:
        mkl, other = (min(repeat(call, timer=process_time, number=1, repeat=15)) for call in calls)
    except (AttributeError, RuntimeError):  # a torch without oneDNN
        mkl, other = min(repeat(calls[0], timer=process_time, number=1, repeat=15)), inf
    return max(mkl, 1e-6), max(other, 1e-6)
