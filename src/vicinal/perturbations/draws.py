"""Seeded random numbers on the device of the images.

A generator lives on one device; numbers are drawn there and then moved, so that the same seed gives
the same corruption wherever the images are. ``None`` means torch's own default generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers from [0, 1) in the dtype and on the device of ``like``."""
    device = like.device if generator is None else generator.device
    drawn = torch.rand(tuple(shape), generator=generator, device=device, dtype=like.dtype)
    return drawn.to(like.device)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers in the dtype and on the device of ``like``."""
    device = like.device if generator is None else generator.device
    drawn = torch.randn(tuple(shape), generator=generator, device=device, dtype=like.dtype)
    return drawn.to(like.device)


def poisson(rate: Tensor, generator: torch.Generator | None) -> Tensor:
    """Poisson counts of the given rates."""
    device = rate.device if generator is None else generator.device
    return torch.poisson(rate.to(device), generator=generator).to(rate.device)
