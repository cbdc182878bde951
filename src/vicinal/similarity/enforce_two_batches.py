r"""The similarity criterion on mean gradients of two batches (Charpiat et al. 2019, section 5).

With μ_1 and μ_2 the mean gradients of f over two batches that are to be treated alike, the text
minimizes ``n_B ‖μ_1 - μ_2‖² / (‖μ_1‖ ‖μ_2‖)``. The released code compares them by their cosine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vicinal.checks import InputError, check_choice
from vicinal.similarity.enforce import SimilarityLoss
from vicinal.similarity.enforce_gradients import Gradients
from vicinal.similarity.outputs import OutputFunction


def two_batch_distance(gram: Float[Tensor, "n n"], first: int) -> Float[Tensor, ""]:
    r"""``n_B ‖μ_1 - μ_2‖² / (‖μ_1‖ ‖μ_2‖)`` with μ the mean gradient of either batch.

    ``gram`` holds the inner products of both batches' gradients, the ``first`` rows being the
    first's: ``‖μ_1 - μ_2‖² = wᵀ K w`` with ``w = 1/n_1`` there and ``-1/n_2`` on the others.
    Unequal sizes count with their harmonic mean. 0 if a batch has no gradient at all.

    >>> two_batch_distance(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), 1).item()  # (1 + 4) / (1 * 2)
    2.5
    """
    n = len(gram)
    k = gram.double()
    w = torch.cat([k.new_full((first,), 1 / first), k.new_full((n - first,), -1 / (n - first))])
    norms, kept = _norms_of_means(k, first)
    size = 2 * first * (n - first) / n
    return (size * (w @ k @ w) / norms * kept).to(gram.dtype)


def two_batch_cosine(gram: Float[Tensor, "n n"], first: int) -> Float[Tensor, ""]:
    r"""``⟨μ_1, μ_2⟩ / (‖μ_1‖ ‖μ_2‖)``, what the paper's released code compares.

    ``gram`` and ``first`` as of :func:`two_batch_distance`; 0 if a batch has no gradient at all.

    >>> two_batch_cosine(torch.tensor([[1.0, 1.0], [1.0, 4.0]]), 1).item()  # 1 / (1 * 2)
    0.5
    """
    k = gram.double()
    norms, kept = _norms_of_means(k, first)
    return (k[:first, first:].mean() / norms * kept).to(gram.dtype)


def _norms_of_means(k: Float[Tensor, "n n"], first: int) -> tuple[Tensor, Tensor]:
    """``‖μ_1‖ ‖μ_2‖`` and whether it counts: 1 and False where a mean vanishes."""
    product = k[:first, :first].mean() * k[first:, first:].mean()
    kept = ~(product <= 0)  # NaN goes through
    return torch.where(kept, product, torch.ones_like(product)).sqrt(), kept


class TwoBatchSimilarityLoss(SimilarityLoss):
    """Two batches of samples that are to be treated alike, compared by their mean gradients.

    The paper's criterion for frameworks that give gradients summed over a batch: not normalized
    sample by sample. :class:`SetSimilarityLoss` is the exact goal and costs no more. For several
    outputs the norms are Frobenius norms, without whitening.

    Parameters
    ----------
    form
        ``"distance"``, the text's :func:`two_batch_distance`, or ``"cosine"``, the negative
        :func:`two_batch_cosine`: the released code's, which *adds* the cosine, as a weight of -1
        does here, and so pushes the batches apart (experiments, Figure 5).
    outputs, params, strict
        As for :class:`SimilarityLoss`; there is nothing to reduce.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> x = torch.randn(3, 2)
    >>> abs(TwoBatchSimilarityLoss()(model, x, x.flip(0)).item()) < 1e-4
    True
    """

    def __init__(
        self,
        *,
        form: str = "distance",
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        strict: bool = True,
    ) -> None:
        super().__init__(outputs=outputs, params=params, strict=strict)
        check_choice(form, "form", ("distance", "cosine"))
        self.form = form

    def forward(
        self,
        model: nn.Module,
        x1: Tensor,
        x2: Tensor,
        target: Tensor | None = None,
        target2: Tensor | None = None,
    ) -> Tensor:
        """The loss of two batches.

        Parameters
        ----------
        model : the network whose parameters are trained; it is not stored.
        x1, x2 : the two batches.
        target, target2 : their labels, where the outputs compared depend on them; without
            ``target2`` the second batch has the first's.
        """
        if x1.shape[1:] != x2.shape[1:]:
            raise InputError(
                f"the samples of `x1` and `x2` must have one shape, got {tuple(x1.shape[1:])} and "
                f"{tuple(x2.shape[1:])}."
            )
        return self.of(self._of_both(model, x1, x2, target, target2), len(x1))

    def of(self, gradients: Gradients, first: int) -> Tensor:
        """The same from gradients of both batches, the ``first`` rows being the first's."""
        gram = gradients.inner()
        if self.form == "cosine":
            return gradients.attached(-two_batch_cosine(gram, first))
        return gradients.attached(two_batch_distance(gram, first))
