r"""Similarity as a training goal (Charpiat et al. 2019, section 5 and appendices D.2 and E).

=============================== =====================================================
:class:`PairSimilarityLoss`     ``-k^C(x, x')``
:class:`SetSimilarityLoss`      ``-mean_{i≠j} k^C(x_i, x_j)`` in each group, exact
:class:`OrbitSimilarityLoss`    the same for the orbit of each sample under transformations
:class:`TwoBatchSimilarityLoss` ``n_B ‖μ_1 - μ_2‖² / (‖μ_1‖ ‖μ_2‖)``, or ``-cos(μ_1, μ_2)``
:class:`DensityLoss`            ``Σ_i (N_S(x_i) / n - q)²``
=============================== =====================================================

All are to be *minimized*: similar samples are pulled together; a negative weight pushes them apart.
f is what ``outputs`` says; for
several outputs k^C is the trace of the whitened kernel over its rank (eq. 5), as GradientKernel
gives it, at the price of one backward pass per output. One number per sample
(``outputs="contrast"`` with targets, or a callable) is the cheap choice in training.

The functions below take the similarities; each Module takes the model, reads it in eval mode
(dropout off, batch norms by their running statistics) and leaves it as it was. ``loss.of(g, ...)``
takes the gradients of :func:`~vicinal.similarity.enforce_gradients.similarity_gradients` instead,
whose forward pass may serve the task's loss too. Orbits are in
:mod:`~vicinal.similarity.enforce_invariance`, two batches in
:mod:`~vicinal.similarity.enforce_two_batches`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.checks import InputError, check_choice
from vicinal.similarity.enforce_gradients import Gradients, paired, similarity_gradients
from vicinal.similarity.factors import select
from vicinal.similarity.outputs import OutputFunction

REDUCTIONS = ("mean", "sum", "none")


def set_similarity(
    k: Float[Tensor, "n n"], groups: Int[Tensor, " n"] | None
) -> tuple[Float[Tensor, " g"], Int[Tensor, " g"]]:
    r"""Mean similarity between the members of each group, and how many there are.

    ``1/(n(n-1)) Σ_{i≠j} k^C(x_i, x_j) = n/(n-1) ‖μ‖² - 1/(n-1)``, μ the mean of unit gradients.
    Groups come in ascending order; a group of one has similarity 0.

    >>> k = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> set_similarity(k, torch.tensor([7, 7, 9]))
    (tensor([0.5000, 0.0000]), tensor([2, 1]))
    """
    n = len(k)
    if groups is None:
        groups = torch.zeros(n, dtype=torch.long, device=k.device)
    names, member = groups.to(k.device).unique(return_inverse=True)
    others = (member[:, None] == member[None]) & ~torch.eye(n, dtype=torch.bool, device=k.device)
    rows = torch.where(others, k, torch.zeros_like(k)).sum(1)
    sizes = torch.bincount(member, minlength=len(names))
    sums = torch.zeros_like(rows[: len(names)]).index_add(0, member, rows)
    return sums / (sizes * (sizes - 1)).clamp_min(1), sizes


def density_gap(k: Float[Tensor, "n n"], q: float) -> Float[Tensor, " n"]:
    """``(N_S(x_i) / n - q)²`` with the soft count over the batch, x itself included (D.2).

    >>> density_gap(torch.eye(2), 0.5)
    tensor([0., 0.])
    """
    return (k.mean(1) - q).square()


class SimilarityLoss(nn.Module):
    """What the losses below have in common: which gradients they read, and how they are reduced."""

    def __init__(
        self,
        *,
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        strict: bool = True,
        reduction: str = "mean",
    ) -> None:
        """Which gradients are compared.

        Parameters
        ----------
        outputs : what f is, as for :class:`~vicinal.similarity.GradientKernel`.
        params : names of parameters or layers, or regular expressions; None: all trainable ones.
        strict : compare two samples with plain autograd at first use; a difference is an error.
        reduction : ``"mean"``, ``"sum"`` or ``"none"``.
        """
        super().__init__()
        check_choice(reduction, "reduction", REDUCTIONS)
        self.outputs, self.params, self.strict = outputs, params, strict
        self.reduction = reduction

    def gradients(self, model: nn.Module, x: Tensor, target: Tensor | None) -> Gradients:
        """The differentiable gradients of f at each row of ``x``."""
        return similarity_gradients(
            model, x, target, outputs=self.outputs, params=self.params, strict=self.strict
        )

    def _of_both(
        self,
        model: nn.Module,
        x: Tensor,
        x2: Tensor,
        target: Tensor | None,
        target2: Tensor | None,
    ) -> Gradients:
        """Both batches in one pass; the second has the first's targets unless it brings its own."""
        targets = None
        if target is not None:
            targets = torch.cat([target, target if target2 is None else target2])
        return self.gradients(model, torch.cat([x, x2]), targets)

    def reduced(self, values: Tensor) -> Tensor:
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()


class SetSimilarityLoss(SimilarityLoss):
    """``-`` :func:`set_similarity`: the samples of each group are to be treated alike, exactly.

    ``groups`` (n,) are integers, labels for instance; None: the batch is one group. The mean is
    over groups of two or more; without any the loss is 0.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> loss = SetSimilarityLoss()(model, torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> loss.backward()
    >>> bool(-1 <= loss <= 1), model[0].weight.grad.shape
    (True, torch.Size([4, 2]))
    """

    def forward(
        self, model: nn.Module, x: Tensor, groups: Tensor | None, target: Tensor | None = None
    ) -> Tensor:
        """The loss of one batch.

        Parameters
        ----------
        model : the network whose parameters are trained; it is not stored.
        x : the batch.
        groups : one integer per row, or None for one group.
        target : labels, where the outputs compared depend on them.
        """
        return self.of(self.gradients(model, x, target), groups)

    def of(self, gradients: Gradients, groups: Tensor | None) -> Tensor:
        if groups is not None:
            _check_groups(groups, len(gradients))
        similarity, sizes = set_similarity(gradients.correlation(), groups)
        similarity = gradients.attached(similarity)
        if self.reduction == "none":
            return -similarity
        total = -similarity.sum()
        return total if self.reduction == "sum" else total / (sizes > 1).sum().clamp_min(1)


class PairSimilarityLoss(SimilarityLoss):
    """``-k^C(x_i, x'_i)`` of two batches row by row: each pair is to be treated alike.

    Parameters
    ----------
    outputs, params, strict, reduction : as for :class:`SimilarityLoss`.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> x = torch.randn(3, 2)
    >>> round(PairSimilarityLoss()(model, x, x).item(), 4)  # nothing is more alike than itself
    -1.0
    """

    def forward(
        self,
        model: nn.Module,
        x: Tensor,
        x2: Tensor,
        target: Tensor | None = None,
        target2: Tensor | None = None,
    ) -> Tensor:
        """The loss of two batches.

        Parameters
        ----------
        model : the network whose parameters are trained; it is not stored.
        x, x2 : the two batches, pairs row by row.
        target, target2 : their labels, where the outputs compared depend on them; without
            ``target2`` the second batch has the first's.
        """
        if x.shape != x2.shape:
            raise InputError(
                f"`x` and `x2` must hold pairs row by row: x has shape {tuple(x.shape)}, x2 "
                f"{tuple(x2.shape)}. Pad or cut them to one shape."
            )
        g = self._of_both(model, x, x2, target, target2)
        unit, n = g.unit(), len(x)
        k = paired(select(unit, slice(0, n)), select(unit, slice(n, 2 * n)))
        if g.within_class and g.target is not None:
            k = k * (g.target[:n] == g.target[n:])
        return self.reduced(g.attached(-k))


class DensityLoss(SimilarityLoss):
    """:func:`density_gap` summed: each sample is to have the share ``q`` of the batch as neighbors.

    The other arguments are those of :class:`SimilarityLoss`.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> bool(DensityLoss(0.5)(model, torch.randn(6, 2)) >= 0)
    True
    """

    def __init__(
        self,
        q: float,
        *,
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        strict: bool = True,
        reduction: str = "sum",
    ) -> None:
        super().__init__(outputs=outputs, params=params, strict=strict, reduction=reduction)
        if not 0 <= q <= 1:
            raise InputError(f"`q` must be a share of the data in [0, 1], got {q!r}.")
        self.q = q

    def forward(self, model: nn.Module, x: Tensor, target: Tensor | None = None) -> Tensor:
        return self.of(self.gradients(model, x, target))

    def of(self, gradients: Gradients) -> Tensor:
        return self.reduced(gradients.attached(density_gap(gradients.correlation(), self.q)))


def _check_groups(groups: Tensor, rows: int) -> None:
    if groups.shape != (rows,) or groups.is_floating_point():
        raise InputError(
            f"`groups` must hold one whole number for each of the {rows} rows, got shape "
            f"{tuple(groups.shape)} of {groups.dtype}. Pass labels, or None for one group."
        )
