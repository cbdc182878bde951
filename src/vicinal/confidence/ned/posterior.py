r"""From neighbors to class probabilities: the NED score and what may be fitted around it.

.. math::
   S_c = \frac{\sum_{i \le k} e^{-d_i/T} \, [y_i = c]}{\sum_{i \le k} e^{-d_i/T}}
   \qquad \text{(Karpusha 2020, eq. 3, } d_i = \|z - z_i\|^2 \text{)}

In full, with a bandwidth per class (eq. 18, :math:`T_c = 2\alpha_c`, effective dimension m), a
floor of prior (background :math:`\epsilon`), an exponent (sharpness :math:`\gamma`) and a change
of class prior from the support's :math:`\pi` to :math:`\pi'`:

.. math::
   S_c \propto T_c^{-m/2} \sum_{i \le k} e^{-d_i/T_c} [y_i = c] \qquad
   p(c \mid z) \propto \frac{\pi'_c}{\pi_c} \bigl(\epsilon \pi_c + (1-\epsilon) S_c\bigr)^{\gamma}

T does two jobs in eq. 3: it chooses who votes, and how sharp the answer is. Where distances are
concentrated, no T does both; the exponent takes over the second one. On the unit sphere
:math:`\|a-b\|^2 = 2 - 2\cos`, so eq. 3 is the softmax kNN of self-supervised evaluation with
:math:`\tau = T/2`.

The change of prior comes last: what is fitted on the support is a posterior under the support's own
prior, and reweighting a calibrated posterior is Bayes' rule (label shift). With
:math:`\epsilon=0, \gamma=1` it equals reweighting the class sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice, number_or_fit
from vicinal.neighbors.mass import class_log_mass, exponential, log_mass, log_shares
from vicinal.neighbors.neighborhood import Neighborhood

BLOCK = 2048  # rows weighed at a time: they stay in the cache
FITTED = ("temperature_", "sharpness_", "background_", "class_temperatures_")


@dataclass(frozen=True)
class NEDParameters:
    """What eq. 3 and its extensions need besides the neighbors; the defaults are eq. 3.

    ``log_bandwidths`` are log(T_c / T), one per class (eq. 18), ``prior`` the support's class
    shares, ``log_prior_shift`` log(π'_c / π_c); each None where it is not used.
    """

    temperature: float
    sharpness: float = 1.0
    background: float = 0.0
    effective_dimension: float = 0.0
    log_bandwidths: Tensor | None = field(default=None, repr=False)
    prior: Tensor | None = field(default=None, repr=False)
    log_prior_shift: Tensor | None = field(default=None, repr=False)


class Recipe(NamedTuple):
    """Which of the parameters are given, and None for what is to be fitted."""

    temperature: float | None
    sharpness: float | None
    background: float | None
    per_class: bool

    @classmethod
    def of(cls, temperature: Any, sharpness: Any, background: Any, bandwidth: Any) -> Recipe:
        check_choice(bandwidth, "bandwidth", ("shared", "class"))
        t = None if temperature is None else _number(temperature, "temperature")
        gamma = number_or_fit(sharpness, "sharpness", math.inf)
        eps = number_or_fit(background, "background", 1)  # at 1 the neighbors would have no say
        if gamma == 0:
            raise InputError(f"`sharpness` must be a finite number above 0, got {sharpness!r}.")
        recipe = cls(t, gamma, eps, bandwidth == "class")
        if t in (0, math.inf) and recipe.names:
            raise InputError(
                f"`temperature`={t} is an exact limit, around which nothing else can be fitted. "
                "Pass a number between 0 and infinity, or None."
            )
        return recipe

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes that are fitted; none where all are given."""
        return tuple(compress(FITTED, (*(given is None for given in self[:3]), self.per_class)))


def with_prior(parameters: NEDParameters, counts: Tensor, prior: Any) -> NEDParameters:
    """The support's class shares, and the shift from them to the ``prior`` that is expected."""
    shares = counts / counts.sum()
    if isinstance(prior, str) and prior == "support":
        return replace(parameters, prior=shares, log_prior_shift=None)
    count = len(shares)
    even = isinstance(prior, str)
    target = torch.as_tensor(np.full(count, 1 / count) if even else np.asarray(prior, dtype=float))
    if target.shape != (count,) or bool((target <= 0).any()) or abs(target.sum() - 1) > 1e-3:
        raise InputError(
            f"`prior` must be {count} probabilities above 0 that sum to 1, one per class of "
            f"classes_, got {np.asarray(prior)!r}."
        )
    shift = torch.where(shares > 0, (target / target.sum()).log() - shares.log(), 0.0)
    return replace(parameters, prior=shares, log_prior_shift=shift)


def ned_log_probs(
    neighborhood: Neighborhood, num_classes: int, parameters: NEDParameters
) -> Float[Tensor, "n c"]:
    """Log-probabilities of every class from labeled neighbors (eq. 3, eq. 18).

    A class without mass gets -inf, an exact zero. Differentiable in the distances.

    >>> three = Neighborhood(torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([[0, 1, 2]]))
    >>> three = three.labeled(torch.tensor([0, 1, 1]))
    >>> ned_log_probs(three, 2, NEDParameters(temperature=1.0)).exp()
    tensor([[0.5761, 0.4239]])
    """
    log_s = plain = log_shares(_class_masses(neighborhood, num_classes, parameters))
    if parameters.background > 0:
        assert parameters.prior is not None
        floor = parameters.prior.to(log_s).log() + math.log(parameters.background)
        kept = log_s + math.log1p(-parameters.background)
        log_s = torch.logaddexp(floor.expand_as(kept), kept)
    if parameters.sharpness != 1:
        log_s = parameters.sharpness * log_s
    if parameters.log_prior_shift is not None:
        log_s = log_s + parameters.log_prior_shift.to(log_s)
    return log_s if log_s is plain else log_shares(log_s)


def neighbor_log_weights(
    neighborhood: Neighborhood, parameters: NEDParameters
) -> Float[Tensor, "n k"]:
    """Log-weight of each neighbor. Soft labels with class bandwidths: the mean over its label."""
    distances = neighborhood.distances
    if parameters.log_bandwidths is None:
        return exponential(distances, parameters.temperature)
    if (labels := neighborhood.labels).ndim == 2:
        return _eq18(distances, parameters, labels.long())
    weights = _eq18(distances[:, :, None], parameters)
    return (weights + labels.to(distances).log()).logsumexp(2)


def log_density(neighborhood: Neighborhood, parameters: NEDParameters) -> Float[Tensor, " n"]:
    """log Σ_i w_i: how much weight the support puts near a row; larger is more crowded.

    At T = 0 every mass is 0 or a count, so minus the nearest distance takes its place.
    """
    if parameters.temperature == 0:
        return -neighborhood.distances[:, 0]
    parts = neighborhood.blocks(BLOCK)
    found = [log_mass(neighbor_log_weights(part, parameters)) for part in parts]
    return torch.cat(found) if found else neighborhood.distances.new_empty(0)


def ignored_mass_bound(
    neighborhood: Neighborhood, support_size: int, parameters: NEDParameters
) -> Float[Tensor, " n"]:
    r"""At most this mass lies beyond the k-th neighbor, relative to the mass that is kept.

    .. math:: (N - k) \, e^{-d_k/T} \big/ \sum_{i \le k} e^{-d_i/T}

    None of the N - k others is nearer than the k-th. With a bandwidth per class the heaviest
    class's weight at d_k stands for all.

    >>> two = Neighborhood(torch.tensor([[0.0, 3.0]]), torch.tensor([[0, 1]]))
    >>> ignored_mass_bound(two, 10, NEDParameters(temperature=1.0))
    tensor([0.3794])
    """
    distances, left = neighborhood.distances, support_size - neighborhood.k
    if left == 0:
        return torch.zeros_like(distances[:, 0])
    weights = neighbor_log_weights(neighborhood, parameters)
    if parameters.log_bandwidths is None:
        last = weights[:, -1]
    else:
        last = _eq18(distances[:, -1:], parameters).amax(1)
    return (last + math.log(left) - log_mass(weights)).exp()


def best_class(log_probs: Float[Tensor, "n c"], neighborhood: Neighborhood) -> Int[Tensor, " n"]:
    """The most probable class; ties go to the smaller mean distance, then to the label order.

    >>> four = Neighborhood(torch.tensor([[1.0, 1.0, 2.0, 5.0]]), torch.tensor([[0, 1, 2, 3]]))
    >>> best_class(torch.tensor([[0.5, 0.5]]).log(), four.labeled(torch.tensor([1, 0, 1, 0])))
    tensor([1])
    """
    top = log_probs.amax(1, keepdim=True)
    tied = log_probs >= top - 16 * torch.finfo(log_probs.dtype).eps
    best = log_probs.argmax(1)
    rows = (tied.sum(1) > 1).nonzero().flatten()
    if len(rows):
        torn, count = neighborhood.rows(rows), log_probs.shape[1]
        d, labels = torn.distances.double(), torn.labels
        share = labels if labels.ndim == 3 else torch.nn.functional.one_hot(labels, count)
        mean = torch.einsum("nk,nkc->nc", d, share.to(d)) / share.sum(1).to(d)
        # A class nobody near holds has mean 0/0; it loses to every class with neighbors.
        mean = mean.nan_to_num(torch.inf).masked_fill(~tied[rows], torch.inf)
        nobody = mean.isinf().all(1)
        best[rows] = torch.where(nobody, tied[rows].int().argmax(1), mean.argmin(1))
    return best


def _class_masses(
    neighborhood: Neighborhood, num_classes: int, parameters: NEDParameters
) -> Float[Tensor, "n c"]:
    distances, labels = neighborhood.distances, neighborhood.labels
    if labels.ndim == 3 and parameters.log_bandwidths is not None:
        weights = _eq18(distances[:, :, None], parameters)
        return (weights + labels.to(distances).log()).logsumexp(1)
    weights = neighbor_log_weights(neighborhood, parameters)
    return class_log_mass(weights, labels, num_classes)


def _eq18(distances: Tensor, parameters: NEDParameters, labels: Tensor | None = None) -> Tensor:
    """-d/T_c - (m/2) log(T_c/T): the log of a Gaussian's height at distance d, up to a constant.

    Of every class, or of each neighbor's by ``labels``.
    """
    assert parameters.log_bandwidths is not None
    own = parameters.log_bandwidths.to(distances)
    scale, height = parameters.temperature * own.exp(), 0.5 * parameters.effective_dimension * own
    if labels is not None:
        scale, height = (v.expand(labels.shape[0], -1).gather(1, labels) for v in (scale, height))
    return -distances / scale - height


def _number(value: Any, name: str) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or not float(value) >= 0:
        raise InputError(f"`{name}` must be a number from 0 to inf, got {value!r}.")
    return float(value)
