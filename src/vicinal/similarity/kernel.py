r"""Which inputs does the network treat alike? The gradient kernels of Charpiat et al. 2019.

Two inputs are alike to a network if a step that changes f(x) changes f(x') as well:

==================== ============================================= ============================
inner ``k^I``        ``∇f(x) · ∇f(x')``  (eq. 1)                   ``K(x, x')``
influence ``k^N``    ``∇f(x) · ∇f(x') / ‖∇f(x)‖²``  (section 2.2)  ``K(x', x) K(x, x)⁻¹`` eq. 3
correlation ``k^C``  the cosine of the two gradients (eq. 2)       ``K^C`` eq. 4
==================== ============================================= ============================

For vector outputs the kernels are d×d matrices; ``summary`` says what becomes of them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vicinal.capture.batches import Batch
from vicinal.capture.hooks import device_of
from vicinal.checks import InputError, check_choice, check_k
from vicinal.similarity import density
from vicinal.similarity.block import Block
from vicinal.similarity.blocks import Blocks, Held, Progress, all_pairs
from vicinal.similarity.density import SimilarityHistogram, TopK
from vicinal.similarity.engine import Engine, Replanned
from vicinal.similarity.explain import Explanation, explain
from vicinal.similarity.factors import matrix_gram, merged, self_gram, trace_gram
from vicinal.similarity.outputs import Contrast, OutputFunction, deficiency, make_outputs
from vicinal.similarity.rescale import check_gradients, is_safe, rescaled
from vicinal.similarity.store import FactorStore
from vicinal.similarity.watch import training_batch_norm
from vicinal.similarity.whitening import SUMMARIES, pair_rank, summarize, whiten

Result = TypeVar("Result")
Asked = ParamSpec("Asked")
FORMS = {  # of the left and right gradients whose products are the kernel
    "inner": ("raw", "raw"),
    "influence": ("dual", "raw"),
    "correlation": ("white", "white"),
}


def settled(
    ask: Callable[Concatenate[GradientKernel, Asked], Result],
) -> Callable[Concatenate[GradientKernel, Asked], Result]:
    """Begins again whenever a batch goes ways that none before it went: a few times at most, as
    each time a layer or a parameter is treated more cautiously for good.
    """

    @functools.wraps(ask)
    def answer(kernel: GradientKernel, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Result:
        while True:
            try:
                return ask(kernel, *args, **kwargs)
            except Replanned:
                kernel.forget()

    return answer


class GradientKernel:
    """Similarities of inputs from the point of view of ``model``, and what follows from them.

    The model is read in eval mode and comes back as it was.

    Parameters
    ----------
    model
        The network. Data may be a tensor, or tensors that it takes by name.
    outputs
        What f is: ``"logits"`` (what the model returns, or its ``.logits``), ``"log_prob"``,
        ``"contrast"``, a :class:`~vicinal.similarity.outputs.Contrast` or a callable
        ``(output, target) -> (n, d)``.
    params
        Names of parameters or layers, or regular expressions; None: all trainable ones.
    engine
        ``"auto"``: exact rules where there are, else ``vmap(vjp)``; ``"vjp"``: only that.
    strict
        Compare two samples with plain autograd at first use; a difference is an error.
    memory_budget
        Bytes of gradients to keep in memory, and of a result. What exceeds it is kept in temporary
        files, or made again where it is only summed.
    cache
        A folder for the gradients of what exceeds the budget, resumable.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> x = torch.tensor([[0.0, 1.0], [0.0, 1.1], [-3.0, 0.0]])
    >>> k = GradientKernel(model).gram(x)
    >>> bool(k[0, 1] > k[0, 2]), torch.allclose(k.diagonal(), torch.ones(3), atol=1e-5)
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        outputs: str | OutputFunction = "logits",
        params: str | Sequence[str] | None = None,
        engine: str = "auto",
        strict: bool = True,
        memory_budget: int = 2 << 30,
        cache: str | Path | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
        check_choice(engine, "engine", ("auto", "vjp"))
        if memory_budget <= 0:
            raise InputError(
                f"`memory_budget` must be a number of bytes above 0, got {memory_budget}."
            )
        self.outputs = make_outputs(outputs)
        self.engine = Engine(
            model, self.outputs, params=params, strict=strict, rules=engine == "auto"
        )
        self.memory_budget = memory_budget
        self.within_class = isinstance(self.outputs, Contrast) and self.outputs.within_class
        self._bytes: dict[tuple[torch.Size, ...], int] = {}  # of a sample's gradients, by shape
        _warn(self.engine.model, self.outputs)
        self._store = None if cache is None else FactorStore(Path(cache), self.engine)

    # -------------------------------------------------------------- kernels

    @settled
    def gram(
        self, a: Any, b: Any = None, *, kind: str = "correlation", summary: str = "trace"
    ) -> Tensor:
        """The kernel of every pair: ``(n, m)``, or ``(n, m, d, d)`` with ``summary="matrix"``.

        Parameters
        ----------
        a, b
            Inputs, alone or with targets, or a data set; ``b=None``: a with itself.
        kind
            ``"inner"``, ``"influence"`` (row i is what moving the output of ``a[i]`` does to each
            of b) or ``"correlation"``.
        summary
            Of each d×d matrix: ``"trace"`` is ``Tr / d`` (``/ rank`` where normalized),
            ``"matrix"`` keeps it; ``"distance"``, ``"distance2"``, ``"rotation"`` and
            ``"subspace"`` are of K^C.
        """
        check_choice(kind, "kind", tuple(FORMS))
        check_choice(summary, "summary", SUMMARIES)
        if kind != "correlation" and summary not in ("trace", "matrix"):
            raise InputError(
                f'summary="{summary}" compares a normalized kernel with the identity, so it is for '
                f'kind="correlation", not "{kind}". Use summary="trace" or "matrix".'
            )
        forms = ("unit", "unit") if (kind, summary) == ("correlation", "trace") else FORMS[kind]
        both = b is None and forms[0] == forms[1]
        left = self.blocks(a, forms[0], 0.5 if b is None else 0.25, "a", once=not both)
        right = left if both else self.blocks(a if b is None else b, forms[1], 0.25, "b")
        return all_pairs(left, right, lambda one, two: self._tile(one, two, kind, summary))

    @settled
    def topk(self, queries: Any, data: Any, k: int) -> TopK:
        """The k rows of ``data`` most similar (k^C) to each query; no matrix of all pairs."""
        found = self.blocks(data, "unit", share=0.4)
        check_k(k, found.count, "k", "`data`")
        asked = self.blocks(queries, "unit", 0.4, "queries", once=True)
        tiles = (((block.start, self.tile(one, block)) for block in found) for one in asked)
        return density.joined_topk([density.best_of(each, k) for each in tiles])

    @settled
    def histogram(self, query: Any, data: Any, bins: int = 64) -> SimilarityHistogram:
        """How many rows of ``data`` lie at each similarity in [-1, 1] to a query (section 4.1)."""
        if bins < 1:
            raise InputError(f"`bins` must be at least 1, got {bins}.")
        queries = self.blocks(query, "unit", 0.4, "query", once=True)
        return density.streaming_histogram(self, queries, self.blocks(data, "unit", 0.4), bins)

    @settled
    def neighbors(
        self,
        data: Any,
        *,
        estimator: str | tuple[str, float] = "soft",
        include_self: bool = True,
        queries: Any = None,
    ) -> Float[Tensor, " n"]:
        """How many samples of ``data`` each one is alike to (section 4.1).

        Parameters
        ----------
        data
            The samples that are counted.
        estimator
            ``"soft"``: N_S = Σ k^C, in linear time for any number of outputs; ``("hard", tau)``:
            N_τ, the count of k^C ≥ τ; ``("positive", alpha)``: N⁺_α = Σ max(k^C, 0)^α.
        include_self
            Whether a sample counts itself, as the paper's sums do.
        queries
            The samples asked about, none of them "self"; None: those of ``data``.
        """
        return density.neighbors(self, data, estimator, include_self, queries)

    def explain(self) -> Explanation:
        """Per layer: which exact rule, FLOPs per pair of samples, bytes per sample; and what a
        Gram matrix will take: ``explain().gram(samples)``.
        """
        return explain(self.engine, self.memory_budget)

    def held(self, data: Any, *, share: float = 0.3, progress: Progress | None = None) -> Held:
        """The data with its gradients, for several questions of this kernel: made once and kept.

        They are those of the model as it is at the first question.

        Parameters
        ----------
        data : anything :func:`vicinal.capture.capture` takes.
        share : of the memory budget, up to which they are kept in memory; the rest is on disk.
        progress : is called with the rows that are done, and how many there are.

        Examples
        --------
        >>> kernel, x = GradientKernel(nn.Linear(2, 1)), torch.tensor([[0.0, 1.0], [0.0, 2.0]])
        >>> rows = kernel.held(x)
        >>> kernel.neighbors(rows).shape, kernel.topk(rows, rows, 1).indices.shape
        (torch.Size([2]), torch.Size([2, 1]))
        """
        return Held(self, data, int(share * self.memory_budget), progress)

    # ------------------------------------------------------ pieces to build on

    def blocks(
        self, data: Any, form: str, share: float = 0.5, name: str = "data", *, once: bool = False
    ) -> Blocks:
        """The data's gradients in blocks.

        Parameters
        ----------
        data : anything :func:`vicinal.capture.capture` takes, or rows that are held.
        form : which form of the gradients a block holds.
        share : of the memory budget, up to which blocks are kept.
        name : what an error calls the data.
        once : whether the blocks are looked at only once.
        """
        if isinstance(data, Held):
            if data.kernel is not self:
                raise InputError(
                    f"`{name}` holds the gradients of another kernel. Ask that one, or pass the "
                    "data themselves."
                )
            return data.formed(form)
        budget = int(share * self.memory_budget)
        return Blocks(self, data, form, budget=budget, name=name, once=once)

    def block(self, batch: Batch) -> Block:
        """The raw gradients of one batch, from the cache if it has them."""
        batch = batch.to(device_of(self.engine.model))
        if self._store is not None:
            outputs, factors = self._store.get(batch)
        else:
            captured = self.engine.capture(batch.x, batch.labels, start=batch.start)
            outputs, factors = captured.outputs, captured.factors
        factors = merged(factors, self.engine.alike)
        gram, scale = self_gram(factors), None
        if not is_safe(gram, outputs.dtype):
            factors, scale = rescaled(factors)
            gram = self_gram(factors)
            check_gradients(gram, batch.start)
        found = whiten(gram, precision=self.engine.precision, deficiency=deficiency(self.outputs))
        if scale is not None:
            gram = gram * scale.double().square()[:, None, None]
        return Block(batch.start, factors, gram, found, outputs, batch.labels, scale)

    def forget(self) -> None:
        """What was learned of gradients whose plan is no more."""
        self._bytes.clear()

    @property
    def cached(self) -> bool:
        """Whether gradients come from a folder."""
        return self._store is not None

    def tile(self, one: Block, other: Block) -> Float[Tensor, "n m"]:
        """``Σ_i ⟨G(x, i), G(x', i)⟩`` of two blocks as they are: k^C of unit blocks."""
        found = trace_gram(one.factors, other.factors)
        if one.scale is not None:
            found.mul_(one.scale[:, None])
        if other.scale is not None:
            found.mul_(other.scale[None])
        if self.within_class:
            found.mul_(_same_class(one, other))
        return found

    def bytes_each(self, sample: Batch) -> int:
        """Of the gradients of one sample of this shape, which must fit the budget."""
        x = sample.x
        shape = tuple(v.shape[1:] for v in (x.values() if isinstance(x, dict) else (x,)))
        if shape not in self._bytes:
            sample = sample.to(device_of(self.engine.model))
            captured = self.engine.capture(sample.x, sample.labels)
            held = [t for f in captured.factors for t in f.tensors().values()]
            once = {t.data_ptr(): t.nbytes for t in held}  # two maps may have the same gradients
            self._bytes[shape] = sum(once.values()) // sample.rows
        if self._bytes[shape] > self.memory_budget:
            raise InputError(
                f"the gradients of one sample take {self._bytes[shape] / 2**20:.0f} MiB, more than "
                f"memory_budget={self.memory_budget / 2**20:.0f} MiB. Raise it, choose fewer "
                'parameters with `params`, or fewer outputs (outputs="contrast").'
            )
        return self._bytes[shape]

    def _tile(self, one: Block, other: Block, kind: str, summary: str) -> Tensor:
        if summary == "trace":
            found = self.tile(one, other)
            if kind == "correlation":
                return found
            rank = one.whitening.rank if kind == "influence" else torch.tensor([one.gram.shape[-1]])
            return found / rank.clamp_min(1).to(found)[:, None]
        if one.gram.shape[-1] == 1:
            found = self.tile(one, other)[:, :, None, None]
        else:
            found = matrix_gram(one.factors, other.factors)
            for scale, shape in ((one.scale, (-1, 1, 1, 1)), (other.scale, (1, -1, 1, 1))):
                found = found if scale is None else found * scale.view(shape)
            if self.within_class:
                found = found * _same_class(one, other)[:, :, None, None]
        if summary == "matrix":
            return found.mT if kind == "influence" else found
        return summarize(found, summary, pair_rank(one.whitening.rank, other.whitening.rank))


def _warn(model: nn.Module, outputs: OutputFunction) -> None:
    """Warn once, when the kernel is made, of what changes the meaning of the numbers."""
    if isinstance(outputs, Contrast) and not outputs.within_class:
        warnings.warn(
            "contrasts across classes are mostly negative: neighbor counts and denoising factors "
            "lose their meaning. Contrast(within_class=True) compares samples of one class.",
            stacklevel=3,
        )
    trained = training_batch_norm(model)
    if trained is not None:
        warnings.warn(
            f"batch norm `{trained}` is in train mode, where a sample has no gradient of its own; "
            "the kernel uses its running statistics. Call model.eval() to say so yourself.",
            stacklevel=3,
        )


def _same_class(one: Block, other: Block) -> Bool[Tensor, "n m"]:
    assert one.target is not None  # Contrast has refused data without labels by now
    assert other.target is not None
    return one.target[:, None] == other.target[None]
