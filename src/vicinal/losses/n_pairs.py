r"""N-pairs loss over all pairs of a batch (Sohn 2016; Karpusha et al. 2020, appendix).

.. math:: \ell_i = \log \sum_{j \neq i} e^{x_i \cdot x_j / T}
          - \tfrac1{|P_i|} \sum_{p} x_i \cdot x_p / T + \lambda \|x_i\|^2

A softmax cross-entropy of each anchor's inner products, its target uniform over the others of its
class (soft labels: proportional to :math:`\langle\alpha_i, \alpha_p\rangle`). With one positive
each this is Sohn's :math:`\log(1 + \sum_n e^{x_i \cdot x_n - x_i \cdot x_p})`. Inner products are
not bounded: normalize the rows (and lower the temperature), or set ``l2_reg``.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from vicinal.checks import InputError, check_same_rows

from .conventions import LossModule, any_scale, full_precision, keep_valid, reduce_rows
from .pairs import Pairs, Product


@full_precision
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
    spread, pull, count = replace(pairs, product=inner).spread_and_pull()
    valid = count > 0
    losses = spread.masked_fill(~valid, 0) - pull / count.masked_fill(~valid, 1)
    if l2_reg > 0:
        size = pairs.x.square().sum(1)
        size = size if positives is None else (size + pairs.y.square().sum(1)) / 2
        losses = losses + l2_reg * size
    return reduce_rows(keep_valid(losses, valid, pairs.x), valid, reduction)


class NPairsLoss(LossModule):
    """Module form, parameters as in :func:`n_pairs_loss`."""

    def __init__(
        self, *, temperature: float | Tensor = 1.0, l2_reg: float = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__({"temperature": temperature, "l2_reg": l2_reg, "reduction": reduction})

    def forward(self, x: Tensor, labels: Tensor, positives: Tensor | None = None) -> Tensor:
        return n_pairs_loss(x, labels, positives=positives, **self.settings())
