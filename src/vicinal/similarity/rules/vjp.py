r"""Per-sample gradients by vector-Jacobian products of the whole model: the road for all that has
no rule.

The model is run again on each sample alone, ``vmap(vjp)`` with one vmap level and a loop over the d
outputs (nested vmaps fail on PReLU and others), for the parameters asked for and no others. What
vmap cannot trace (recurrent layers, data-dependent branches) is run sample by sample: slow, exact.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from vicinal.similarity.watch import Inputs, leaves_of, rows_of, run, take, wants_company


@dataclass(frozen=True)
class Rerun:
    """A forward pass to repeat per sample: the model, its inputs, which leaves of what it returned
    carry gradient, and the gradients of the d outputs there, ``[output of f][leaf]``.
    """

    model: nn.Module
    x: Inputs
    returned: list[int]
    grads: list[list[Tensor]]

    def answers(self, x: Inputs, params: dict[str, Tensor]) -> list[Tensor]:
        found = leaves_of(run(self.model, x, params))
        return [found[i] for i in self.returned]

    def gradients(
        self, params: dict[str, Tensor], *, create_graph: bool, loop: bool
    ) -> tuple[Float[Tensor, "n d p"], bool]:
        """``(n, d, p)`` in the order of ``params``, and whether it took the loop."""
        if not create_graph:
            params = {name: p.detach().requires_grad_() for name, p in params.items()}
        if not loop:
            try:
                with twice_differentiable(True), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    found = self._by_vmap(params)
                    return found if create_graph else found.detach(), False
            except (RuntimeError, ValueError, NotImplementedError, TypeError):
                pass  # vmap's refusals have no type of their own; the loop settles if it is ours
        return self._by_loop(params, create_graph), True

    def _by_vmap(self, params: dict[str, Tensor]) -> Float[Tensor, "n d p"]:
        """All samples at once."""

        def one(x: Inputs, cotangents: list[list[Tensor]]) -> Tensor:
            alone = pytree.tree_map(lambda t: t[None], x)
            pull = torch.func.vjp(lambda p: self.answers(alone, p), params)[1]
            pulled = [pull([c[None] for c in output])[0] for output in cotangents]
            return torch.stack([torch.cat([g.flatten() for g in p.values()]) for p in pulled])

        return torch.func.vmap(one)(self.x, self.grads)

    def _by_loop(self, params: dict[str, Tensor], create_graph: bool) -> Float[Tensor, "n d p"]:
        """One sample after another by plain autograd; beside itself where it must not run alone."""
        company = [1, 0] if wants_company(self.model) else [1]
        options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
        samples, held = [], list(params.values())
        for i in range(rows_of(self.x)):
            with torch.enable_grad():
                returned, rows = self.answers(take(self.x, [i for _ in company]), params), []
                for output in self.grads:
                    seeds = [torch.stack([c[i] * w for w in company]) for c in output]
                    found = torch.autograd.grad(returned, held, seeds, **options)
                    rows.append(torch.cat([g.to_dense().flatten() for g in found]))
            samples.append(torch.stack(rows))
        return torch.stack(samples)


def twice_differentiable(wanted: bool) -> AbstractContextManager[None]:
    """Attention by plain products where it must be mapped or differentiated again: the fused ones
    cannot.
    """
    return sdpa_kernel(SDPBackend.MATH) if wanted else nullcontext()
