r"""No overflow out of finite gradients: each sample's are divided by a power of two first.

``K(x, x)`` sums squares, which leave float32 where gradients are beyond 1e19 or below 1e-19. With
``G = 2^e Ĝ``, e chosen per sample so that the largest entry of Ĝ is near 1, all of ``K̂(x, x)``,
its inverse root and the correlations come from Ĝ alone; ``2^e`` comes back only where k^I or k^N
ask for it. Powers of two change no digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError
from vicinal.similarity.factors import Dense, Factor
from vicinal.similarity.normed import Normed
from vicinal.similarity.places import Places

LEAST = -10_000  # the exponent of zero
SAFE = {torch.float32: (1e-24, 1e30), torch.float64: (1e-280, 1e280)}  # of ‖G‖²


def is_safe(gram: Float[Tensor, "n d d"], precision: torch.dtype) -> bool:
    """Whether all the squared norms lie where nothing was lost."""
    low, high = SAFE[precision]
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    return bool(((trace > low) & (trace < high)).all())


def rescaled(factors: Sequence[Factor]) -> tuple[list[Factor], Float[Tensor, " n"]]:
    """Ĝ and ``2^e`` of every sample.

    >>> (small,), size = rescaled([Dense(torch.tensor([[[3e30, 4e30]], [[0.0, 0.0]]]))])
    >>> [round(float(v), 3) for v in small.g[0, 0] * size[0] / 1e30], size[1].item()
    ([3.0, 4.0], 1.0)
    """
    factors = [f.folded() if isinstance(f, Places) else f for f in factors]
    last = [f.g if isinstance(f, Dense) else f.b for f in factors]
    # b is multiplied with numbers, or (where there is a vocabulary) taken at the places of ones.
    inputs = [0 if isinstance(f, Dense) or f.vocabulary else _exponent(f.a) for f in factors]
    size = torch.stack([e + _exponent(t) for e, t in zip(inputs, last, strict=True)]).amax(0)
    reach = int(log2(torch.finfo(last[0].dtype).max)) - 2
    common = torch.where(size <= LEAST, 0, size.clamp(-reach, reach))
    found: list[Factor] = []
    for f, e in zip(factors, inputs, strict=True):
        if isinstance(f, Dense):
            found.append(replace(f, g=_shifted(f.g, -common)))
        else:
            a = _shifted(f.a, -e) if isinstance(e, Tensor) else f.a
            f = replace(f, s=_shifted(f.s, -common)) if isinstance(f, Normed) else f
            found.append(replace(f, a=a, b=_shifted(f.b, e - common)))
    return found, _shifted(last[0].new_ones(len(common)), common)


def check_gradients(gram: Float[Tensor, "n d d"], start: int) -> None:
    """Refuse samples whose gradient is not a number, after rescaling."""
    bad = (~gram.isfinite().flatten(1).all(1)).nonzero().flatten()
    if len(bad):
        rows = ", ".join(str(start + int(i)) for i in bad[:4]) + (", …" if len(bad) > 4 else "")
        raise InputError(
            f"the gradient of {len(bad)} samples is not finite (rows {rows}). Look for a division "
            "by zero, a square root at zero or an overflow in the model's forward pass, and leave "
            "those rows out or mend the model."
        )


def _exponent(x: Tensor) -> Int[Tensor, " n"]:
    """Of the power of two at each row's largest entry."""
    if x[0].numel() == 0:
        return torch.full((len(x),), LEAST, device=x.device)
    largest = x.flatten(1).abs().amax(1)
    return torch.where(largest > 0, torch.frexp(largest).exponent.long(), LEAST)


def _shifted(x: Tensor, exponent: Int[Tensor, " n"]) -> Tensor:
    """``2^exponent x`` row by row, in two steps: the power itself may be out of reach."""
    exponent = exponent.clamp(-2000, 2000).view(-1, *[1] * (x.ndim - 1))
    half = exponent // 2
    return x * torch.exp2(half.to(x.dtype)) * torch.exp2((exponent - half).to(x.dtype))
