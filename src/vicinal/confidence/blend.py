r"""Neighbors and a linear view together: three weights and a background, fitted out of fold.

With NED's log-probabilities :math:`\log p_N`, a linear head's :math:`\log p_L` and the class
shares :math:`\pi`,

.. math::
   q = (1-\epsilon)\, p_N + \epsilon \pi, \quad s_c = \log \frac{q_c^a}{(1 - q_c)^g}
   + b \log p_L(c), \quad p(c \mid z) = (1-\epsilon) \operatorname{softmax}(s)_c + \epsilon \pi_c

with :math:`a, b, g \ge 0`. At :math:`a=1` it is NED if the others are 0, at :math:`b=1` the linear
head. What the neighbors do not know of far classes the linear view does, and the other way round
where borders bend: a product of the two is as sure as both together have earned. Where split votes
come true less often than they say and one-sided ones do not, g > 0: at g = a they count as odds.

The weights look at rows of the support that neither part has seen: NED's leave-one-out answers
(searched across folds where its space has looked at labels) and the linear part's out-of-fold ones.
The loss has normal priors, :math:`a, b \sim N(\tfrac12, 1)`, :math:`g \sim N(0, \tfrac1{16})` and
:math:`\operatorname{logit}\epsilon \sim N(-6, 1)`, and :math:`\epsilon \ge 1/(n+1)`: n rows that
were all right do not show that the next one will be.

The linear part carries of the answer's lead over its runner-up, :math:`\Delta`, the share

.. math:: \frac{|b\, \Delta \log p_L|}{|\Delta (s - b \log p_L)| + |b\, \Delta \log p_L|}.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.confidence.minimum import Vector, minimum
from vicinal.labels import log_class_shares

# Of a, b, g and the background's logit (ε = 0.0025): what they are a priori, and how surely.
USUAL, PRECISION = torch.tensor([[0.5, 0.5, 0.0, -6.0], [1.0, 1.0, 16.0, 1.0]]).double()


class Blend(NamedTuple):
    """The weights a, b, the background ε and the exponent g of the neighbors' odds."""

    neighbors: float
    linear: float
    background: float
    odds: float = 0.0


def blended_log_probs(
    log_ned: Float[Tensor, "n c"],
    log_linear: Float[Tensor, "n c"],
    log_prior: Float[Tensor, " c"] | Float[Tensor, "n c"],
    blend: Blend,
) -> Float[Tensor, "n c"]:
    """Log-probabilities of the blend; differentiable in its numbers and in both parts.

    >>> one, other = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> blended_log_probs(one, other, other, Blend(1.0, 1.0, 0.0)).exp()
    tensor([[0.8000, 0.2000]])
    """
    product = product_log_probs(log_ned, log_linear, log_prior, blend)
    return _above(product, log_prior, blend.background)


def product_log_probs(
    log_ned: Float[Tensor, "n c"],
    log_linear: Float[Tensor, "n c"],
    log_prior: Float[Tensor, " c"] | Float[Tensor, "n c"],
    blend: Blend,
) -> Float[Tensor, "n c"]:
    """softmax(s) alone: the class as both parts see it, without a chance that the label is wrong.

    The background that follows in the blend is what a label may surprise with, and far below it
    all rows of a class look alike. Who asks *whether* a label is wrong needs to tell them apart.
    """
    return (_voted(log_ned, log_prior, blend) + blend.linear * log_linear).log_softmax(1)


def _voted(log_ned: Tensor, log_prior: Tensor, blend: Blend) -> Tensor:
    """The neighbors' part of the score; a vote of 1 without a background has the odds 1/eps."""
    log_q = _above(log_ned, log_prior, blend.background)
    against = (-log_q.expm1()).clamp_min(torch.finfo(log_q.dtype).eps).log()
    parts = (blend.neighbors, log_q), (-blend.odds, against)  # exact zeros have no weight at a = 0
    some = (w * part for w, part in parts if isinstance(w, Tensor) or w != 0)
    return sum(some, torch.zeros_like(log_q))


def _above(log_p: Tensor, log_prior: Tensor, background: Any) -> Tensor:
    """log((1 - ε) p + ε π)."""
    if not isinstance(background, Tensor) and background == 0:
        return log_p
    eps = torch.as_tensor(background, dtype=log_p.dtype)
    floor = (eps.log() + log_prior.to(log_p)).expand_as(log_p)
    return torch.logaddexp(torch.log1p(-eps) + log_p, floor)


def fit_blend(
    log_ned: Float[Tensor, "n c"],
    log_linear: Float[Tensor, "n c"],
    codes: Int[Tensor, " n"],
    *,
    weights: tuple[float, ...] | None = None,
    background: float | None = None,
) -> Blend:
    """The blend with the lowest penalized log-loss of rows that neither part has seen.

    Parameters
    ----------
    log_ned, log_linear : what each part says of the rows.
    codes : their classes.
    weights : (a, b), or (a, b, g), where they are given.
    background : ε where it is given.
    """
    n, own = len(codes), codes[:, None]
    log_prior = log_class_shares(codes, log_ned.shape[1], leave_one_out=True)
    least = math.log(1 / n)  # logit of 1/(n+1)
    first = (*(weights or (0.5, 0.5)), 0.0)[:3]
    given = max(background or 0.0, 1 / (n + 1))  # a row with no chance would outweigh all others
    bounds = [(v, v) for v in first] if weights else [(0.0, 20.0), (0.0, 20.0), (0.0, 3.0)]

    def objective(v: Vector) -> tuple[float, Vector]:
        at = torch.tensor(v, requires_grad=True)
        eps = torch.sigmoid(at[3]) if background is None else at.new_tensor(given)
        log_p = product_log_probs(log_ned, log_linear, log_prior, Blend(at[0], at[1], eps, at[2]))  # type: ignore[arg-type]
        off = (at - USUAL).square() @ PRECISION
        loss = off / (2 * n) - _above(log_p.gather(1, own), log_prior.gather(1, own), eps).mean()
        loss.backward()
        return float(loss.detach()), at.grad.numpy()  # type: ignore[union-attr]

    stops = {"maxiter": 60, "ftol": 1e-9}
    start = [*first, max(float(USUAL[3]), least)]
    a, b, g, logit = map(float, minimum(objective, start, stops, [*bounds, (least, 0.0)]).x)
    return Blend(a, b, 1 / (1 + math.exp(-logit)) if background is None else background, g)


def linear_share(
    log_ned: Float[Tensor, "n c"],
    log_linear: Float[Tensor, "n c"],
    log_prior: Float[Tensor, " c"],
    blend: Blend,
    best: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """How much of the lead of ``best`` over its runner-up the linear part carries, from 0 to 1.

    No lead at all, and a single class, are shared by weight.

    >>> one, other = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> linear_share(one, other, one[0], Blend(3.0, 1.0, 0.0), torch.tensor([0]))
    tensor([0.2500])
    """
    a, b, _, odds = blend
    alone = b / (a + b) if a + b > 0 else 0.0
    if log_ned.shape[1] < 2 or a + odds == 0 or b == 0:
        return log_ned.new_full((len(log_ned),), alone)
    log_p, own = blended_log_probs(log_ned, log_linear, log_prior, blend), best[:, None]
    second = log_p.scatter(1, own, -torch.inf).argmax(1, keepdim=True)
    near, line = (
        (part.gather(1, own) - part.gather(1, second)).abs()[:, 0]
        for part in (_voted(log_ned, log_prior, blend), b * log_linear)
    )
    return torch.where(near.isinf(), 0.0, line / (near + line)).nan_to_num(alone)
