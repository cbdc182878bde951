"""Samples with several labels, as soft targets for every loss that takes them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vicinal.checks import InputError, as_tensor

from .targets import check_share


def multi_label_targets(labels: Any, *, epsilon: float = 0.0) -> Float[Tensor, "n c"]:
    r"""Rows of 0 and 1 (or of weights) as distributions: each label has an equal share.

    .. math:: \alpha_{ic} = (1 - \epsilon)\,\frac{Y_{ic}}{\sum_k Y_{ik}} + \frac{\epsilon}{C}

    :math:`\langle\alpha_i, \alpha_j\rangle`, by which the losses weigh a pair, is then the chance
    that a label of i and a label of j, drawn at random, are one.

    >>> multi_label_targets([[1, 1, 0], [0, 0, 1]])
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    weights = as_tensor(labels, "labels")
    if weights.ndim != 2:
        raise InputError(
            "`labels` must be (n, c), 1 for every class that a sample has, got shape "
            f"{tuple(weights.shape)}. For one class each, integers (n,) need no conversion."
        )
    check_share(epsilon, "epsilon")
    weights = weights if weights.dtype == torch.float64 else weights.float()
    total = weights.sum(1, keepdim=True)
    bad = ((weights < 0).any(1) | ~(total[:, 0] > 0) | ~total[:, 0].isfinite()).nonzero()
    if len(bad):
        raise InputError(
            f"`labels` row {int(bad[0])} has no label, or a negative or infinite weight. Leave "
            "such rows out: a sample without labels has nobody to be near to."
        )
    return (1 - epsilon) * weights / total + epsilon / weights.shape[1]
