r"""Supervised contrastive, NT-Xent and N-pairs loss: pull an anchor's class, push the rest.

With log-weights :math:`s_{ij} = -d(x_i, x_j)/T` and :math:`P_i` the others of the anchor's class,

.. math:: \ell_i^{\text{SupCon}} = \log \sum_{j \neq i} e^{s_{ij}} - \tfrac1{|P_i|} \sum_{p} s_{ip}

(Khosla et al. 2020, eq. 2) and, each positive against the negatives alone,

.. math:: \ell_i^{\text{NT-Xent}} = \tfrac1{|P_i|} \sum_{p}
          \log \Bigl(1 + \sum_{y_j \neq y_i} e^{s_{ij} - s_{ip}}\Bigr)

(Chen et al. 2020; with two views of each instance the two losses are one). For ``metric="cosine"``,
:math:`-d` is the cosine similarity less 1, and the constant cancels. Soft labels :math:`\alpha`
weigh a pair by :math:`w_{ij} = \langle\alpha_i, \alpha_j\rangle`: positives count :math:`w`,
negatives :math:`1 - w`. Anchors without a positive are left out.

N-pairs (Sohn 2016; Karpusha et al. 2020, appendix) is the first of inner products,
:math:`s_{ij} = x_i \cdot x_j / T`, plus :math:`\lambda \|x_i\|^2`: a softmax cross-entropy whose
target is uniform over the others of the class (soft labels: proportional to :math:`w`). With one
positive each this is Sohn's :math:`\log(1 + \sum_n e^{x_i \cdot x_n - x_i \cdot x_p})`. Inner
products are not bounded: normalize the rows (and lower the temperature), or set ``l2_reg``.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from vicinal.checks import InputError, check_same_rows

from .conventions import LossModule, any_scale, keep_valid, reduce_rows
from .log_partition import in_blocks
from .met import meeting
from .pairs import Pairs, Product, pulled


@any_scale
def supervised_contrastive_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    metric: str = "cosine",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Tensor | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, eq. 2).

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperature:
        What distances are divided by: a number, or a tensor that may learn.
    metric:
        ``"sqeuclidean"``, ``"euclidean"`` or ``"cosine"``.
    reference, reference_labels:
        Rows that the anchors are compared with, all of them, instead of one another.
    exclude_self:
        The reference begins with the anchors themselves: nobody meets himself.
    reduction:
        ``"mean"`` over the anchors that have a positive, ``"sum"`` or ``"none"``.

    >>> import torch
    >>> x, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    >>> round(float(supervised_contrastive_loss(x, y, temperature=1.0)), 4)  # log(1 + 2/e)
    0.5514
    """
    pairs = Pairs.weighed(x, labels, temperature, metric, reference, reference_labels, exclude_self)
    losses, valid = pulled(*pairs.spread_and_pull())
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


@any_scale
def nt_xent_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    metric: str = "cosine",
    reference: Float[Tensor, "m d"] | None = None,
    reference_labels: Tensor | None = None,
    exclude_self: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Normalized temperature-scaled cross-entropy over all positive pairs (Chen et al. 2020).

    The mean is over anchors, each the mean over its positives.

    Parameters
    ----------
    labels:
        Integers ``(n,)``, equal for views of one instance, or soft labels ``(n, c)``.
    x, temperature, metric, reference, reference_labels, exclude_self, reduction:
        As in :func:`supervised_contrastive_loss`.

    >>> import torch
    >>> x, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    >>> round(float(nt_xent_loss(x, y, temperature=1.0)), 4)  # log(1 + 2/e)
    0.5514
    """
    pairs = Pairs.weighed(x, labels, temperature, metric, reference, reference_labels, exclude_self)
    total, count = in_blocks(pairs.push, len(pairs.x), len(pairs.y))
    valid = count > 0
    losses = total / count.masked_fill(~valid, 1)
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


@any_scale
def n_pairs_loss(
    x: Float[Tensor, "n d"],
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    l2_reg: float = 0.0,
    reduction: str = "mean",
    positives: Float[Tensor, "n d"] | None = None,
) -> Tensor:
    """N-pairs loss (Sohn 2016, eq. 6) over all pairs of equal label.

    Parameters
    ----------
    x:
        Rows ``(n, d)``.
    labels:
        Integers ``(n,)``, or soft labels ``(n, c)``.
    temperature:
        What inner products are divided by.
    l2_reg:
        Weight of the anchors' squared length.
    reduction:
        ``"mean"`` over the anchors that have a positive, ``"sum"`` or ``"none"``.
    positives:
        The rows of ``x`` are anchors that meet these rows only, row i of both bearing label i:
        Sohn's own pairs when the labels differ.

    >>> import torch
    >>> x, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    >>> round(float(n_pairs_loss(x, y)), 4)  # log(1 + 2/e)
    0.5514
    """
    if not l2_reg >= 0:
        raise InputError(f"`l2_reg` must be 0 or above, got {l2_reg!r}.")
    pairs = Pairs.weighed(
        x, labels, temperature, "cosine", positives, None if positives is None else labels
    )
    if positives is not None:
        check_same_rows(pairs.x, pairs.y, "x", "positives")
    zero = pairs.y.new_zeros(len(pairs.y))
    inner = Product(pairs.x / temperature, pairs.y, zero, pairs.x.new_zeros(len(pairs.x)))
    losses, valid = pulled(*replace(pairs, product=inner).spread_and_pull())
    if l2_reg > 0:
        size = pairs.x.square().sum(1)
        size = size if positives is None else (size + pairs.y.square().sum(1)) / 2
        losses = losses + l2_reg * size
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


class SupervisedContrastiveLoss(LossModule):
    """Module form, parameters as in :func:`supervised_contrastive_loss`."""

    loss = staticmethod(supervised_contrastive_loss)
    forward = meeting

    def __init__(
        self, *, temperature: float | Tensor = 0.1, metric: str = "cosine", reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "metric": metric, "reduction": reduction})


class NTXentLoss(LossModule):
    """Module form, parameters as in :func:`nt_xent_loss`."""

    loss = staticmethod(nt_xent_loss)
    forward = meeting

    def __init__(
        self, *, temperature: float | Tensor = 0.1, metric: str = "cosine", reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "metric": metric, "reduction": reduction})


class NPairsLoss(LossModule):
    """Module form, parameters as in :func:`n_pairs_loss`."""

    def __init__(
        self, *, temperature: float | Tensor = 1.0, l2_reg: float = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "l2_reg": l2_reg, "reduction": reduction})

    def forward(self, x: Tensor, labels: Tensor, positives: Tensor | None = None) -> Tensor:
        return n_pairs_loss(x, labels, positives=positives, **self.settings())
