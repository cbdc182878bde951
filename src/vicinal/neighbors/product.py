r"""Matrix products by the quicker of torch's two libraries.

``torch.mm`` calls MKL, which leaves the wide registers of AMD's processors with AVX-512 idle (115
GFLOP/s a core); oneDNN, which torch uses for convolutions, takes them (255; both 100 on the fourth
EPYCs). There large products that no one will differentiate go by oneDNN. The processor decides and
not a clock, so that a machine gives the same numbers in every run.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from time import process_time
from timeit import repeat

import torch
from jaxtyping import Float
from torch import Tensor

WORTH = 1 << 21  # multiplications from which the choice is worth making
LARGE = 1 << 23  # the same in place


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
    linear = torch.ops.mkldnn._linear_pointwise
    if added is None or added.ndim == 1:
        return linear(x, w, added, "none", [], "")
    return linear.binary(x, added, w, None, "add")


def add_product(into: Tensor, x: Float[Tensor, "n k"], w: Float[Tensor, "m k"]) -> Tensor:
    """``x wᵀ`` added to what is there, of small ones without the copies of the other library."""
    large = x.numel() * len(w) >= LARGE and takes_other(x, w)
    return into.add_(product(x, w)) if large else into.addmm_(x, w.T)


def products(x: Float[Tensor, "b n k"], w: Float[Tensor, "b m k"]) -> Float[Tensor, "b n m"]:
    """``x wᵀ`` of each pair of matrices."""
    if len(x) and takes_other(x[0], w[0]):
        return torch.stack([product(one, other) for one, other in zip(x, w, strict=True)])
    return x @ w.mT


def takes_other(x: Tensor, w: Tensor) -> bool:
    """Whether oneDNN multiplies these, and quicker."""
    return (
        x.numel() * len(w) >= WORTH
        and x.dtype == w.dtype == torch.float32
        and x.device.type == "cpu"
        and not (torch.is_grad_enabled() and (x.requires_grad or w.requires_grad))
        and _mkl_is_slow()
    )


@cache
def product_rate() -> float:
    """Operations of a product in a second of CPU time, at the best of several tries."""
    x, w = torch.ones(256, 128), torch.ones(512, 128)
    seconds = min(repeat(lambda: product(x, w), timer=process_time, number=1, repeat=15))
    return 2.0 * 256 * 512 * 128 / max(seconds, 1e-6)


@cache
def _mkl_is_slow() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        about = platform.processor()
    return "AuthenticAMD" in about and hasattr(torch.ops.mkldnn, "_linear_pointwise")
