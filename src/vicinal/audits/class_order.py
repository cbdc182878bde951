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

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from vicinal.checks import InputError, closest

FAR_BETTER = 0.1  # a renaming gains a few rows by chance; a tenth of all rows it does not
FAR_BELOW = 0.2  # of the rows: what a model's own neighbors may know and its outputs not say
BEYOND_CHANCE = 5.0  # standard errors
MIN_ROWS = 30


def positions_of(labels: Sequence[Any], order: Sequence[str]) -> list[int | None]:
    """Where each label stands in ``order``: as it is written, else by its letters and digits alone.

    >>> positions_of(["T-shirt-top", "bag", "hat"], ["Bag", "T-shirt/top"])
    [1, 0, None]
    """
    exact = {name: at for at, name in enumerate(order)}
    loose = {_loose(name): at for at, name in enumerate(order)}
    if len(loose) < len(order):  # letters and digits alone do not tell the names apart
        loose = {}
    return [exact.get(str(label), loose.get(_loose(str(label)))) for label in labels]


def _loose(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold()) or name


def stated_positions(labels: Sequence[Any], order: Sequence[str], what: str) -> list[int]:
    """Where each label stands in an order that somebody stated; one it lacks is an error."""
    found = positions_of(labels, order)
    for label, at in zip(labels, found, strict=True):
        if at is None:
            near = closest(str(label), list(order), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            listed = ", ".join(order[:8]) + (", …" if len(order) > 8 else "")
            raise InputError(
                f"{what} names {len(order)} classes ({listed}) and {str(label)!r} is none of "
                f"them.{hint} List all classes by the names of the labels, in the order of the "
                "model's outputs."
            )
    return [at for at in found if at is not None]


def columns_for(width: int, classes: NDArray[Any], order: Any = None) -> list[int]:
    """Which of so many columns are those of the classes; ``order``: their names, if known."""
    whole, own = classes.dtype.kind in "iu", classes.tolist()
    listed = order is not None and not isinstance(order, Mapping) and len(order) == width
    if listed and not whole:
        return stated_positions(own, list(map(str, order)), "the list of classes")
    if whole and 0 <= own[0] <= own[-1] < width:
        return [int(code) for code in own]
    if width == len(own):
        return list(range(width))
    raise InputError(
        f"`logits` have {width} columns for {len(own)} classes of the support. "
        "Give one column per class in sorted order of the labels, or name the columns: "
        "class_names=, --classes."
    )


def order_of_model(model: nn.Module) -> tuple[list[str], str] | None:
    """The names of its outputs that a model carries, in their order, and where they were found.

    ``config.id2label`` (Hugging Face), ``label_names`` of a timm configuration, or an attribute
    ``class_names`` or ``classes``.
    """
    config, timm = getattr(model, "config", None), getattr(model, "pretrained_cfg", None)
    known = {
        "config.id2label": getattr(config, "id2label", None),
        "pretrained_cfg": timm.get("label_names") if isinstance(timm, Mapping) else None,
        "class_names": getattr(model, "class_names", None),
        "classes": getattr(model, "classes", None),
    }
    for where, value in known.items():
        if isinstance(value, Mapping):
            value = [value.get(at, value.get(str(at))) for at in range(len(value))]
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
            continue
        if not all(re.fullmatch(r"(?i)(label|class)?_?\d+", name) for name in value):
            return list(value), where  # more than LABEL_0, LABEL_1, …
    return None


def below_warning(
    predicted: Int[Tensor, " n"], neighbors: Int[Tensor, " n"], codes: Int[Tensor, " n"]
) -> str | None:
    """The sentence for a model that is far worse than the neighbors of its own layer; else None."""
    known = codes >= 0
    n = int(known.sum())
    if n < MIN_ROWS:
        return None
    own, other = ((p[known] == codes[known]).double() for p in (predicted, neighbors))
    gap = other - own
    error = float(gap.std()) / math.sqrt(n)
    if float(gap.mean()) < max(FAR_BELOW, BEYOND_CHANCE * error):
        return None
    return (
        f"the model's own outputs are right on {100 * own.mean():.1f} % of the rows, the neighbors "
        f"in its embedding on {100 * other.mean():.1f} %: its outputs probably stand for other "
        "classes than the labels, or are those of another layer (--classes, --output)."
    )


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
        f"on {100 * now:.1f} % of the rows, with its columns read as {listed} on "
        f"{100 * then:.1f} %. Every number of the softmax head is wrong until the order is given: "
        "--classes, or logits with one column per class in sorted order of the labels."
    )
