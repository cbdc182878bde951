"""Is a head hard to fool, or does it only hide its gradients?

A neighbor head at a small temperature is a saturated softmax: the gradient vanishes, an attack
through it stands still, and the head looks better than it is. So each example is attacked three
ways, and counts as right only if it survives all of them:

* through the head as fitted (white box),
* through a smoothed surrogate, 10 T with every support row voting,
* by transfer from a softmax head on the same network.

An attack that knows less should do less: transfer that beats the white box is the sign of masked
gradients (Athalye et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.checks import InputError, as_tensor, check_choice, check_positive
from vicinal.confidence import NEDClassifier
from vicinal.labels import Labels, codes_of
from vicinal.perturbations import ATTACKS
from vicinal.perturbations.attacks import evaluating
from vicinal.records import Record


@dataclass(frozen=True)
class AttackAudit(Record):
    """Shares of examples still read rightly, and for each example which attacks it survived."""

    attack: str
    norm: str
    epsilon: float
    samples: int
    clean_accuracy: float
    fitted_accuracy: float
    smoothed_accuracy: float
    transfer_accuracy: float | None  # None: no proxy was given
    worst_case_accuracy: float
    masked_gradients: bool | None  # transfer beats the white box; None: not tested
    transfer_only: int | None  # examples misread under transfer that the white box left right
    clean: tuple[bool, ...]
    fitted: tuple[bool, ...]
    smoothed: tuple[bool, ...]
    transfer: tuple[bool, ...] | None
    worst_case: tuple[bool, ...]
    note: str

    def __str__(self) -> str:
        transfer = "not tested"
        if self.transfer_accuracy is not None:
            transfer = f"{self.transfer_accuracy:.1%}"
        return (
            f"{self.attack}, {self.norm} ε = {self.epsilon:g}, {self.samples} examples: accuracy "
            f"{self.clean_accuracy:.1%} clean, {self.fitted_accuracy:.1%} through the head, "
            f"{self.smoothed_accuracy:.1%} through its smoothed surrogate, {transfer} by transfer; "
            f"{self.worst_case_accuracy:.1%} in the worst case. {self.note}"
        )


def attack_audit(
    head: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    net: Any = None,
    proxy: Any = None,
    attack: str = "pgd",
    steps: int = 40,
    restarts: int = 1,
    norm: str = "linf",
    loss: str = "cross_entropy",
    bounds: tuple[float, float] | None = (0.0, 1.0),
    smoothing: float = 10.0,
    generator: torch.Generator | None = None,
) -> AttackAudit:
    """The worst case over attacks through the head, through a smoothed surrogate, and by transfer.

    Parameters
    ----------
    head
        A fitted NED or kNN classifier on ``net(x)``. A kNN vote has no gradient, so NED with the
        same support and k stands in for it.
    x, y
        Inputs and their labels, which the head must know.
    epsilon, norm
        How far an input may be moved, and in which norm.
    net
        The network below the head; without it the head stands on ``x`` itself.
    proxy
        A softmax classifier of the inputs, usually the same network with its own last layer, for
        the transfer attack; without it transfer is not tested.
    attack, steps, restarts, loss
        ``"fgsm"``, ``"bim"`` or ``"pgd"``, its steps and restarts, and the loss it climbs.
    bounds
        The range of the inputs; None for embeddings, which have none.
    smoothing
        How many times warmer than the head its smoothed surrogate is.
    generator
        Of PGD's random starts.
    """
    check_choice(attack, "attack", tuple(ATTACKS))
    check_positive(smoothing, "smoothing")
    rows = as_tensor(x, "x")
    codes = _codes(head, y)
    ned = _differentiable(head)
    options: dict[str, Any] = {"norm": norm, "loss": loss, "bounds": bounds}
    if attack != "fgsm":
        options["steps"] = steps
    if attack == "pgd":
        options |= {"restarts": restarts, "generator": generator}
    models = {
        "fitted": _joined(net, ned.module()),
        "smoothed": _joined(net, ned.module(smoothing * ned.temperature_, full_support=True)),
        **({} if proxy is None else {"transfer": proxy}),
    }
    right = {"clean": _right(head, net, rows, codes)}
    for name, model in models.items():
        moved = ATTACKS[attack](model, rows, codes, epsilon, **options)
        right[name] = _right(head, net, moved, codes)
    worst = torch.stack(list(right.values())).all(0)
    return _audit(attack, norm, epsilon, right, worst)


def _audit(
    attack: str, norm: str, epsilon: float, right: dict[str, Tensor], worst: Tensor
) -> AttackAudit:
    share = {name: float(rows.double().mean()) for name, rows in right.items()}
    transfer = right.get("transfer")
    masked = None if transfer is None else share["transfer"] < share["fitted"]
    only = None if transfer is None else int((right["fitted"] & ~transfer).sum())
    if masked is None:
        note = "Transfer was not tested: no proxy was given, so masked gradients would not show."
    elif masked:
        note = (
            "Transfer beats the white box: the head masks its gradients, and the figure through "
            "the head overstates how well it holds. Read the worst case."
        )
    else:
        note = "Transfer does not beat the white box: no sign of masked gradients."
    return AttackAudit(
        attack=attack, norm=norm, epsilon=float(epsilon), samples=len(worst),
        clean_accuracy=share["clean"], fitted_accuracy=share["fitted"],
        smoothed_accuracy=share["smoothed"], transfer_accuracy=share.get("transfer"),
        worst_case_accuracy=float(worst.double().mean()), masked_gradients=masked,
        transfer_only=only, clean=right["clean"], fitted=right["fitted"],  # type: ignore[arg-type]
        smoothed=right["smoothed"], transfer=transfer, worst_case=worst,  # type: ignore[arg-type]
        note=note,
    )  # fmt: skip


def _differentiable(head: Any) -> Any:
    """The head, or NED on the same support and k where the head is a vote without gradients."""
    if hasattr(head, "module") and hasattr(head, "temperature_"):
        return head
    support = getattr(head, "support_", None)
    if support is None:
        raise InputError(
            f"`head` must be a fitted NEDClassifier or KNNClassifier, got {type(head).__name__}, a "
            "head without gradients and without a support to build a surrogate from. Attack a "
            "network directly with vicinal.perturbations.pgd."
        )
    k = min(max(head.k, 2), len(support) - 1)
    return NEDClassifier(k=k, metric=head.metric).fit(support.rows, support.labels.codes)


def _codes(head: Any, y: Any) -> Tensor:
    classes = getattr(head, "classes_", None)
    if classes is None:
        raise InputError(f"`head` ({type(head).__name__}) is not fitted. Call fit(X, y) first.")
    codes = codes_of(y, len(y), Labels(classes))
    if bool((codes < 0).any()):
        raise InputError(
            f"`y` row {int((codes < 0).nonzero()[0])} holds a label that the head does not know. "
            "An attack needs the true class among the support's."
        )
    return codes


def _joined(net: Any, module: nn.Module) -> Callable[[Tensor], Tensor]:
    if net is None:
        return module
    if isinstance(net, nn.Module):
        return nn.Sequential(net, module)
    return lambda x: module(net(x))


def _right(head: Any, net: Any, x: Tensor, codes: Tensor) -> Tensor:
    with evaluating(net), torch.no_grad():
        z = x if net is None else torch.cat([net(part) for part in x.split(512)])
    return torch.as_tensor(head.predict_proba(z)).argmax(1) == codes
