r"""What f is: the d numbers per sample whose gradients are compared.

``"logits"``
    the model's output as it is, or its ``logits`` where it returns a record that has them.
``"log_prob"``
    ``-log p(c)`` (section 3). Its gradients always depend linearly on each other, ``Σ_c p_c ∇(-log
    p_c) = 0``, so K(x, x) has rank d − 1 and the kernels are normalized by that.
``"contrast"``
    one number: the right class against the rest (end of section 3); see :class:`Contrast`.
a callable
    ``(output, target) -> (n, d)``, for fields, several heads, dictionaries; the same f then gives
    the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vicinal.checks import InputError, check_choice

OutputFunction: TypeAlias = Callable[[Any, Any], Tensor]
NAMES = ("logits", "log_prob", "contrast")


def logits(output: Any, target: object = None) -> Any:
    """The output itself, or what a record calls its logits.

    >>> logits({"logits": torch.ones(1, 2), "loss": None}).shape
    torch.Size([1, 2])
    """
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", None) if found is None else found
    return found if isinstance(found, Tensor) else output


def log_prob(output: Any, target: object = None) -> Float[Tensor, "n c"]:
    """``-log p(c)`` of every class."""
    found: Tensor = logits(output)
    return -found.log_softmax(1)


class Contrast:
    r"""The task made binary: one real output per sample (Charpiat et al. 2019, end of section 3).

    ``kind="rest"``: the log-odds of the right class, ``z_R - log Σ_{c≠R} exp z_c``.
    ``kind="sampled"``: ``z_R - z_A`` with an adversary class A ≠ R drawn for each sample; the draw
    of the i-th sample of a data set is the same at every pass (a batch says which is its first).

    Such outputs compare samples *of one class*: across classes most similarities are negative and
    the counts lose their meaning. ``within_class=True`` sets them to zero there.

    >>> z = torch.tensor([[2.0, 0.0, 0.0]])
    >>> round(Contrast()(z, torch.tensor([0])).item(), 4)  # 2 - log 2
    1.3069
    """

    def __init__(
        self,
        kind: str = "rest",
        *,
        within_class: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        check_choice(kind, "kind", ("rest", "sampled"))
        self.kind = kind
        self.within_class = within_class
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self._draws = torch.empty(0)

    def draws(self, start: int, stop: int) -> Float[Tensor, " n"]:
        """Uniform numbers of the samples of a data set: the same whenever they are asked."""
        missing = stop - len(self._draws)
        if missing > 0:
            fresh = torch.rand(max(missing, 1024), generator=self.generator)
            self._draws = torch.cat([self._draws, fresh])
        return self._draws[start:stop]

    def __call__(
        self, output: Any, target: Int[Tensor, " n"] | None, start: int = 0
    ) -> Float[Tensor, "n 1"]:
        if target is None:
            raise InputError(
                'outputs="contrast" compares each right class with the others and needs labels: '
                "pass the data as (x, labels), a Dataset or a DataLoader that yields them."
            )
        output = logits(output)
        right = output.gather(1, target[:, None])
        if self.kind == "sampled":
            others = output.shape[1] - 1
            drawn = self.draws(start, start + len(output))
            step = 1 + (drawn * others).long().clamp_max(others - 1)
            adversary = (target + step.to(target.device)) % output.shape[1]
            return right - output.gather(1, adversary[:, None])
        rest = output.scatter(1, target[:, None], float("-inf"))
        return right - rest.logsumexp(1, keepdim=True)


def make_outputs(outputs: str | OutputFunction) -> OutputFunction:
    """The function behind a name, or the callable itself."""
    if callable(outputs):
        return outputs
    check_choice(outputs, "outputs", NAMES)
    if outputs == "contrast":
        return Contrast()
    return log_prob if outputs == "log_prob" else logits


def deficiency(outputs: OutputFunction) -> int:
    """How many directions of f are constant whatever the parameters: 1 for log-probabilities."""
    return 1 if outputs is log_prob else 0


def describe(outputs: OutputFunction) -> str:
    """A name for cache keys; two different callables must not share one."""
    if isinstance(outputs, Contrast):
        return f"contrast {outputs.kind} {outputs.generator.initial_seed()}"
    code = getattr(outputs, "__code__", None)
    body = [] if code is None else [code.co_code.hex(), repr(code.co_consts), repr(code.co_names)]
    return " ".join([getattr(outputs, "__qualname__", repr(outputs)), *body])


def as_rows(f: Any, samples: int) -> Float[Tensor, "n d"]:
    """f as ``(n, d)``, or the sentence that says what to do."""
    if not isinstance(f, Tensor):
        raise InputError(
            f"the model's output must be a tensor (n, d), got {type(f).__name__}. "
            'Pass outputs=lambda output, target: output["logits"], or whatever picks the tensor.'
        )
    if f.ndim == 1 and len(f) == samples:
        return f[:, None]
    if f.ndim != 2 or len(f) != samples or f.shape[1] == 0:
        raise InputError(
            f"the output must be (n, d) with one row for each of the {samples} samples, got shape "
            f"{tuple(f.shape)}. Pass outputs=lambda output, target: output.flatten(1) for fields, "
            "or a callable that reduces them to a few numbers per sample."
        )
    if not f.requires_grad:
        raise InputError(
            "the output does not depend on the chosen parameters. Check that the model is not run "
            "under torch.no_grad() inside, and that `params` names layers the output goes through."
        )
    return f
