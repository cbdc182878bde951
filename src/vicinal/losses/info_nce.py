r"""InfoNCE on class scores, with hard, soft and mixed targets (Hugger & Uhlmann 2024).

With scores :math:`s_{ik} = z_{ik}/\tau - \log \eta_k` and targets :math:`\alpha_j` on the simplex,
the loss asks which of several targets is the sample's own (eq. 9, Figure 2):

.. math:: \ell_i = -\langle\alpha_i, s_i\rangle
          + \log \sum_{j} e^{\langle\alpha_j, s_i\rangle}

The sum runs over the batch's targets, or over the own target and separately drawn
``noise_targets``. Each kind of target has its cheapest exact form (Figure 2's is ``(n, n, c)``):

* hard: :math:`\sum_j` groups by class, :math:`\log \sum_k n_k e^{s_{ik}}`, ``O(n c)``;
* soft: one matrix product, :math:`z\alpha^\top/\tau - c_j` with
  :math:`c_j = \sum_k \alpha_{jk} \log \eta_k` (0 log 0 = 0), see :mod:`.log_partition`;
* mixed: two columns of the scores per target, see there too.

The paper's temperature is applied once and the noise stays outside of it, as in its Figure 2 (its
eq. 5 divides twice). With hard labels and ``noise="batch"`` the loss is exactly the cross-entropy
over the classes present plus :math:`\log n_{y_i}`: its floor is not 0, and absent classes are not
repelled; ``noise_targets`` are the remedy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, as_tensor, check_positive, check_same_rows, is_traced

from .conventions import LossModule, as_class_targets, as_rows, full_precision, reduce_rows
from .log_partition import log_partition, mixed_log_sum, mixed_own, mixed_weights
from .targets import MixedTargets, Targets, draw_labels

Noise = Tensor | str | None


@full_precision
def info_nce(
    logits: Float[Tensor, "n c"],
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"] | MixedTargets,
    *,
    noise: Noise = None,
    temperature: float | Tensor = 1.0,
    noise_targets: Int[Tensor, " m"] | Float[Tensor, "m c"] | MixedTargets | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Noise contrastive loss of class scores (Hugger & Uhlmann 2024, eq. 9).

    Parameters
    ----------
    logits:
        Scores ``(n, c)``.
    targets:
        Class indices ``(n,)``, distributions ``(n, c)``, or :class:`MixedTargets`.
    noise:
        The law η of the noise targets: None or ``"uniform"`` (the same: a constant cancels),
        ``"batch"`` (mean of the targets) or ``(c,)`` weights of any scale. It may be 0 for a class
        that no target touches.
    temperature:
        What logits are divided by.
    noise_targets:
        Contrast with these instead of the batch's other targets.
    reduction:
        ``"mean"``, ``"sum"`` or ``"none"``.

    >>> z = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> info_nce(z, torch.tensor([0, 1])), info_nce(z, torch.eye(2))
    (tensor(0.1269), tensor(0.1269))
    """
    logits = as_rows(logits, "logits")
    check_positive(temperature, "temperature")
    targets = _as_targets(targets, logits, "targets", len(logits))
    eta = _as_eta(noise, targets, logits)
    _check_noise_covers(targets, eta, "targets")
    z = logits if isinstance(temperature, float) and temperature == 1 else logits / temperature
    if noise_targets is None:
        losses = _in_batch(z, targets, eta)
    else:
        others = _as_targets(noise_targets, logits, "noise_targets", None)
        _check_noise_covers(others, eta, "noise_targets")
        own = _own_scores(z, targets, eta)
        losses = torch.logaddexp(own, _log_sum(z, others, eta)) - own
    return reduce_rows(losses, None, reduction)


@full_precision
def soft_distribution_info_nce(
    logits: Float[Tensor, "n c"],
    targets: Int[Tensor, " n"] | Float[Tensor, "n c"] | MixedTargets,
    *,
    noise: Noise = None,
    temperature: float | Tensor = 1.0,
    generator: torch.Generator | None = None,
    reduction: str = "mean",
) -> Tensor:
    """InfoNCE on labels drawn from the soft targets (Hugger & Uhlmann 2024, eq. 13).

    Each sample's label is drawn from its own target row, then the hard loss is taken.

    Parameters
    ----------
    logits, targets, noise, temperature, reduction:
        As in :func:`info_nce`.
    generator:
        Draws the labels.

    >>> z, soft = torch.zeros(4, 3), torch.full((4, 3), 1 / 3)
    >>> soft_distribution_info_nce(z, soft, generator=torch.Generator().manual_seed(0))
    tensor(1.3863)
    """
    logits = as_rows(logits, "logits")
    targets = _as_targets(targets, logits, "targets", len(logits))
    labels = draw_labels(targets, generator)
    return info_nce(logits, labels, noise=noise, temperature=temperature, reduction=reduction)


# ------------------------------------------------------------------ inputs


def _as_targets(targets: Any, logits: Tensor, name: str, rows: int | None) -> Targets:
    classes = logits.shape[1]
    if not isinstance(targets, MixedTargets):
        targets = as_tensor(targets, name)
        rows = len(targets) if rows is None else rows
        if rows == 0:
            raise InputError(f"`{name}` is empty. Pass at least one target.")
        targets = as_class_targets(targets, rows, classes, name)
        return targets.to(logits.dtype) if targets.ndim == 2 else targets
    if rows is not None:
        check_same_rows(logits, targets, "logits", name)
    width = targets.num_classes
    if width > classes or (targets.epsilon > 0 and width != classes):
        raise InputError(
            f"`{name}` are mixed over num_classes={width}, but `logits` has {classes} columns. "
            "Pass num_classes to mixup or cutmix."
        )
    return targets


def _as_eta(noise: Noise, targets: Targets, logits: Tensor) -> Tensor | None:
    """Weights of the noise law, or None where they cancel."""
    if noise is None or (isinstance(noise, str) and noise == "uniform"):
        return None
    if isinstance(noise, str):
        if noise != "batch":
            raise InputError(
                f"`noise` must be None, 'uniform', 'batch' or a tensor of one weight per class, "
                f"got {noise!r}."
            )
        return _class_weights(targets, logits).detach()
    eta = as_tensor(noise, "noise").to(logits)
    if eta.shape != (logits.shape[1],):
        raise InputError(
            f"`noise` must hold one weight for each of the {logits.shape[1]} classes, got shape "
            f"{tuple(eta.shape)}."
        )
    if not is_traced() and not bool((eta >= 0).all()):
        raise InputError("`noise` must not be negative or NaN: it holds probabilities of classes.")
    return eta


def _class_weights(targets: Targets, logits: Tensor) -> Float[Tensor, " c"]:
    """Sum of the targets over the batch: the class counts if they are hard."""
    counts = logits.new_zeros(logits.shape[1])
    if isinstance(targets, MixedTargets):
        return mixed_weights(targets, counts)
    if targets.ndim == 2:
        return targets.sum(0)
    return counts.scatter_add(0, targets, torch.ones_like(targets, dtype=counts.dtype))


def _check_noise_covers(targets: Targets, eta: Tensor | None, name: str) -> None:
    if eta is None or is_traced() or bool((eta != 0).all()):
        return
    bad = ((eta == 0) & (_class_weights(targets, eta[None]) > 0)).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"`noise` is 0 for class {bad[0]}, but `{name}` has weight there "
            f"({len(bad)} such classes). Noise must be able to draw every class that occurs."
        )


# ------------------------------------------------------------------ the three kinds of target


def _in_batch(z: Tensor, targets: Targets, eta: Tensor | None) -> Float[Tensor, " n"]:
    if isinstance(targets, MixedTargets):
        return mixed_log_sum(z, targets, eta, subtract=True)
    if targets.ndim == 2:
        return log_partition(z, targets, _minus_noise(targets, eta), diagonal="subtract")
    # -s_y + log Σ_k n_k e^{s_k} = cross-entropy of s + log n, plus log n_y: one fused pass over z
    counts = _class_weights(targets, z)
    cross_entropy = F.cross_entropy(z + _log_weights(counts, eta), targets, reduction="none")
    return cross_entropy + counts[targets].log()


def _own_scores(z: Tensor, targets: Targets, eta: Tensor | None) -> Float[Tensor, " n"]:
    """Each sample's score of its own target."""
    if isinstance(targets, MixedTargets):
        return mixed_own(z, targets, eta)
    if targets.ndim == 1:
        own = z.gather(1, targets[:, None])[:, 0]
        return own if eta is None else own - eta.log()[targets]
    own = torch.linalg.vecdot(z, targets)
    bias = _minus_noise(targets, eta)
    return own if bias is None else own + bias


def _log_sum(z: Tensor, keys: Targets, eta: Tensor | None) -> Float[Tensor, " n"]:
    """Log of the summed exponentials of each sample's scores of all ``keys``."""
    if isinstance(keys, MixedTargets):
        return mixed_log_sum(z, keys, eta)
    if keys.ndim == 2:
        return log_partition(z, keys, _minus_noise(keys, eta))
    return (z + _log_weights(_class_weights(keys, z), eta)).logsumexp(1)


def _log_weights(counts: Tensor, eta: Tensor | None) -> Float[Tensor, " c"]:
    """``log n_k - log η_k``, and -inf for a class that does not occur (whatever its noise)."""
    log_weights = counts.log() if eta is None else counts.log() - eta.log()
    return torch.where(counts > 0, log_weights, float("-inf"))


def _minus_noise(targets: Tensor, eta: Tensor | None) -> Float[Tensor, " m"] | None:
    """``-Σ_k α_jk log η_k`` with 0 log 0 = 0."""
    return None if eta is None else -torch.mv(targets, torch.where(eta > 0, eta, 1).log())


class InfoNCELoss(LossModule):
    """Module form, parameters as in :func:`info_nce`; a noise tensor is a buffer."""

    eta: Tensor | None

    def __init__(
        self, *, noise: Noise = None, temperature: float | Tensor = 1.0, reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "reduction": reduction})
        self.noise = noise if isinstance(noise, str) else None
        self.register_buffer("eta", noise if isinstance(noise, Tensor) else None)

    def forward(
        self, logits: Tensor, targets: Targets, noise_targets: Targets | None = None
    ) -> Tensor:
        noise = self.noise if self.eta is None else self.eta
        settings = self.settings()
        return info_nce(logits, targets, noise=noise, noise_targets=noise_targets, **settings)


class SoftDistributionInfoNCELoss(LossModule):
    """Module form, parameters as in :func:`soft_distribution_info_nce`; its noise is a buffer."""

    eta: Tensor | None

    def __init__(
        self,
        *,
        noise: Noise = None,
        temperature: float | Tensor = 1.0,
        generator: torch.Generator | None = None,
        reduction: str = "mean",
    ) -> None:
        drawn = {"temperature": temperature, "generator": generator, "reduction": reduction}
        super().__init__(drawn)
        self.noise = noise if isinstance(noise, str) else None
        self.register_buffer("eta", noise if isinstance(noise, Tensor) else None)

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        noise = self.noise if self.eta is None else self.eta
        return soft_distribution_info_nce(logits, targets, noise=noise, **self.settings())
