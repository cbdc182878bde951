"""Is a head hard to fool, or does it only hide its gradients?

A neighbor head at a small temperature is a saturated softmax: the gradient vanishes, an attack
through it stands still, and the head looks better than it is. So each example is attacked in many
ways, and counts as right only if the head itself reads it rightly at every point they pass:

* through the head as fitted (white box),
* through smoothed surrogates in which every support row votes and no floor flattens the masses: at
  the head's own temperature, and at the scale of the data, which no fitted T can make flat,
* by transfer from a softmax head on the same network,
* without gradients (Square), on what those leave.

Each of the first three climbs both the margin and the cross-entropy, with APGD's step sizes. An
attack that knows less should do less: transfer that beats the white box is the sign of masked
gradients (Athalye et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.capture import evaluating
from vicinal.checks import InputError, as_tensor, check_choice, check_positive
from vicinal.confidence import NEDClassifier
from vicinal.labels import Labels, codes_of
from vicinal.perturbations import ATTACKS, square
from vicinal.perturbations.climb import LOSSES, Misread
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
    square_only: int | None  # examples only Square moved; None: no queries were allowed
    clean: tuple[bool, ...]
    fitted: tuple[bool, ...]
    smoothed: tuple[bool, ...]
    transfer: tuple[bool, ...] | None
    worst_case: tuple[bool, ...]
    note: str

    def __str__(self) -> str:
        share = self.transfer_accuracy
        transfer = "not tested" if share is None else f"{100 * share:.1f} %"
        return (
            f"{self.attack}, {self.norm} ε = {self.epsilon:g}, {self.samples} examples: accuracy "
            f"{100 * self.clean_accuracy:.1f} % clean, {100 * self.fitted_accuracy:.1f} % through "
            f"the head, {100 * self.smoothed_accuracy:.1f} % through smoothed surrogates, "
            f"{transfer} by transfer; {100 * self.worst_case_accuracy:.1f} % in the worst case. "
            f"{self.note}"
        )


def attack_audit(
    head: Any,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    net: Any = None,
    proxy: Any = None,
    attack: str = "apgd",
    steps: int = 50,
    restarts: int = 2,
    norm: str = "linf",
    loss: str = "both",
    bounds: tuple[float, float] | None = (0.0, 1.0),
    smoothing: float = 1.0,
    queries: int = 1000,
    generator: torch.Generator | None = None,
) -> AttackAudit:
    """The worst case over attacks through the head, through surrogates, by transfer, by queries.

    Parameters
    ----------
    head : a fitted NED or kNN classifier on ``net(x)``. A kNN vote has no gradient, so NED with the
        same support and k stands in for it.
    x, y : inputs and their labels, which the head must know.
    epsilon, norm : how far an input may be moved, and in which norm.
    net : the network below the head; without it the head stands on ``x`` itself.
    proxy : a softmax classifier of the inputs, usually the same network with its own last layer,
        for the transfer attack; without it transfer is not tested.
    attack, steps, restarts : ``"apgd"``, which keeps the worst point on its way, or ``"fgsm"``,
        ``"bim"``, ``"pgd"``; its steps and restarts.
    loss : what is climbed: ``"cross_entropy"``, ``"margin"``, or ``"both"``, one after the other.
    bounds : the range of the inputs; None for embeddings, which have none.
    smoothing : the warm surrogate's temperature over the mean distance from a support row to its k
        nearest.
    queries : of Square, the attack without gradients, on each example the others leave; 0: none.
    generator : of random starts and windows.
    """
    check_choice(attack, "attack", tuple(ATTACKS))
    check_choice(loss, "loss", (*LOSSES, "both"))
    check_positive(smoothing, "smoothing")
    rows, codes = as_tensor(x, "x"), _codes(head, y)
    shared: dict[str, Any] = {"norm": norm, "bounds": bounds}
    ned = _differentiable(head)
    surrogates = [_joined(net, module) for module in _surrogates(ned, smoothing)]
    routes = {"fitted": [_joined(net, ned.module())], "smoothed": surrogates}
    routes |= {} if proxy is None else {"transfer": [proxy]}
    judge = _Judge(head, net, rows, codes, epsilon)
    options = shared | _options(attack, steps, restarts, judge.misread, generator)
    clean = ~judge.misread(rows, codes)
    right = {"clean": clean}
    for name, models in routes.items():
        right[name] = clean.clone()
        for model in models:
            for climbed in LOSSES[::-1] if loss == "both" else (loss,):
                judge.run(ATTACKS[attack], model, right[name], options | {"loss": climbed})
    worst = torch.stack(list(right.values())).all(0)
    left = int(worst.sum())
    if queries:
        asked = shared | {"queries": queries, "misread": judge.misread, "generator": generator}
        judge.run(square, surrogates[0], worst, asked)
    only = left - int(worst.sum()) if queries else None
    return _audit(attack, norm, epsilon, right, worst, only)


@dataclass(frozen=True)
class _Judge:
    """The head as judge: an example is right while the head reads it rightly."""

    head: Any
    net: Any
    x: Tensor
    y: Tensor
    epsilon: float

    def misread(self, x: Tensor, y: Tensor) -> Tensor:
        with evaluating(self.net), torch.no_grad():
            z = x if self.net is None else torch.cat([self.net(part) for part in x.split(512)])
        return torch.as_tensor(self.head.predict_proba(z)).argmax(1) != y

    def run(self, attack: Callable[..., Any], model: Any, right: Tensor, options: Any) -> None:
        """Attack the examples still right, and strike from ``right`` those then misread."""
        left = right.nonzero()[:, 0]
        if len(left):
            moved = attack(model, self.x[left], self.y[left], self.epsilon, **options)
            right[left] = ~self.misread(moved, self.y[left])


def _options(
    attack: str, steps: int, restarts: int, misread: Misread, generator: torch.Generator | None
) -> dict[str, Any]:
    options: dict[str, Any] = {} if attack == "fgsm" else {"steps": steps}
    if attack in ("pgd", "apgd"):
        options |= {"restarts": restarts, "generator": generator}
    return options | ({"misread": misread} if attack == "apgd" else {})


def _surrogates(ned: Any, smoothing: float) -> list[nn.Module]:
    """Every support row votes: at the head's temperature, and at the scale of the data.

    In log space a small temperature flattens nothing, but k neighbors of one class and a floor of
    prior do; neither is here. The scale is the mean distance, in the metric, from a support row to
    its k nearest others.
    """
    scale = float(ned.loo_neighborhood().distances.double().mean())
    warm = smoothing * scale if scale > 0 else None
    modules = [ned.module(None, full_support=True), ned.module(warm, full_support=True)]
    for module in modules:
        module.parameters_ = replace(module.parameters_, background=0.0, sharpness=1.0)
    return modules


def _audit(
    attack: str,
    norm: str,
    epsilon: float,
    right: dict[str, Tensor],
    worst: Tensor,
    square_only: int | None,
) -> AttackAudit:
    share: dict[str, Any] = {
        f"{name}_accuracy": float(rows.double().mean()) for name, rows in right.items()
    }
    transfer = right.get("transfer")
    masked = None if transfer is None else share["transfer_accuracy"] < share["fitted_accuracy"]
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
    found = {"transfer_accuracy": None, "transfer": None, **share, **right, "worst_case": worst}
    return AttackAudit(
        attack=attack, norm=norm, epsilon=float(epsilon), samples=len(worst), note=note,
        worst_case_accuracy=float(worst.double().mean()), masked_gradients=masked,
        transfer_only=only, square_only=square_only, **found,
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
