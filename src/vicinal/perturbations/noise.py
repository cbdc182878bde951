"""Noise: Gaussian, shot, impulse and speckle (Hendrycks & Dietterich 2019, section 3).

Each function takes float images ``(n, c, h, w)`` in [0, 1], its constant for one severity, the
spatial scale (unused here: noise has no length) and a generator; ``corrupt`` clips the result. The
same seed draws the same numbers at every severity.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.perturbations.draws import normal, poisson, uniform

# Severities 1 to 5: the standard deviation, the photons at full white, the share of the values.
GAUSSIAN_NOISE = {
    "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38),
    "cifar": (0.04, 0.06, 0.08, 0.09, 0.10),
}
SHOT_NOISE = {"imagenet": (60.0, 25.0, 12.0, 5.0, 3.0), "cifar": (500.0, 250.0, 100.0, 75.0, 50.0)}
IMPULSE_NOISE = {
    "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27),
    "cifar": (0.01, 0.02, 0.03, 0.05, 0.07),
}
SPECKLE_NOISE = {"imagenet": (0.15, 0.2, 0.35, 0.45, 0.6), "cifar": (0.06, 0.1, 0.12, 0.16, 0.2)}

Images = Float[Tensor, "n c h w"]
Generator = torch.Generator | None


def gaussian_noise(x: Images, sigma: float, scale: float, generator: Generator) -> Images:
    """x + σ·N(0, 1), each value on its own."""
    return x + sigma * normal(x.shape, x, generator)


def shot_noise(x: Images, photons: float, scale: float, generator: Generator) -> Images:
    """Poisson(x·λ)/λ: the light counted in λ photons at full white."""
    return poisson(x * photons, generator) / photons


def impulse_noise(x: Images, share: float, scale: float, generator: Generator) -> Images:
    """Salt and pepper: a share of the values becomes 0 or 1, with even odds.

    A value flips where its uniform number falls below the share, so the flipped values of a
    severity are among those of the next.
    """
    flipped = uniform(x.shape, x, generator) < share
    return torch.where(flipped, (uniform(x.shape, x, generator) < 0.5).to(x.dtype), x)


def speckle_noise(x: Images, sigma: float, scale: float, generator: Generator) -> Images:
    """x·(1 + σ·N(0, 1)): noise in proportion to the light."""
    return x + x * sigma * normal(x.shape, x, generator)
