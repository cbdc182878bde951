"""Are the columns of a model's logits in the order of the labels?

A model trained elsewhere numbers its classes its own way; a folder of images is read in
alphabetical order. With C[p, y] the count of labeled rows that column p wins and class y is the
truth of, the model is right on trace(C) rows, and under the best renaming of its columns on
max over permutations s of sum over p of C[p, s(p)] rows (a linear assignment).

>>> wins = torch.tensor([1, 2, 0, 1, 2, 0])
>>> best_order(wins, torch.tensor([0, 1, 2, 0, 1, 2]), 3)
(0.0, 1.0, [2, 0, 1])
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

FAR_BETTER = 0.1  # a renaming gains a few rows by chance; a tenth of all rows it does not
MIN_ROWS = 30


def best_order(
    predicted: Int[Tensor, " n"], codes: Int[Tensor, " n"], num_classes: int
) -> tuple[float, float, list[int]]:
    """Accuracy as it is, accuracy under the best renaming, and the class each column then means."""
    pairs = predicted * num_classes + codes
    counts = torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, -1)
    columns, classes = linear_sum_assignment(counts.numpy(), maximize=True)
    renamed = counts[columns, classes].sum()
    return float(counts.trace() / len(codes)), float(renamed / len(codes)), classes.tolist()


def order_warning(
    predicted: Int[Tensor, " n"], codes: Int[Tensor, " n"], names: tuple[str, ...]
) -> str | None:
    """The sentence for a model whose columns would be far better in another order; else None."""
    known = codes >= 0
    if int(known.sum()) < MIN_ROWS:
        return None
    now, then, order = best_order(predicted[known], codes[known], len(names))
    if then - now < FAR_BETTER:
        return None
    listed = ", ".join(names[at] for at in order[:12]) + (", …" if len(names) > 12 else "")
    return (
        f"the model's outputs seem to be in another order than the labels: as they are it is right "
        f"on {now:.1%} of the rows, with its columns read as {listed} on {then:.1%}. Every number "
        "of the softmax head is wrong until the order is given: --classes, or logits with one "
        "column per class in sorted order of the labels."
    )
