r"""Watch the layers while they are trained: entanglement over the steps, to any log.

    watch = EntanglementCallback((x_probe, y_probe), ["1", "3"], log=print)
    for epoch in range(epochs):
        ...                      # the loop as it was
        watch(model, epoch)      # {'entanglement/1': 0.62, 'entanglement/3': 0.18} 0

A value is a layer's soft nearest neighbor loss at its own temperature over its chance level: 0
where the classes are apart, 1 where they are fully mixed (Frosst 2019). ``log`` is any callable
of a dictionary and a step: ``mlflow.log_metrics``, ``wandb.log``, or for TensorBoard
``lambda values, step: [writer.add_scalar(name, v, step) for name, v in values.items()]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from vicinal.capture import capture
from vicinal.checks import InputError, check_whole
from vicinal.evaluation import Entanglement, entanglement

Log = Callable[[dict[str, float], int], Any]


class EntanglementCallback:
    """Measures the entanglement of some layers on the same probe rows, whenever it is called.

    Parameters
    ----------
    data : labeled probe rows, anything :func:`vicinal.capture.capture` takes; some hundreds do.
    layers : names of the layers to look at.
    log : called with ``{"entanglement/<layer>": ratio}`` and the step.
    every : measure at every so many steps; other calls cost nothing.
    pool, metric : how a layer's output becomes one vector a row, and how rows are compared.

    Attributes
    ----------
    history : the ratio of each layer at each measured step, ``{layer: {step: ratio}}``.

    Example:
        >>> import torch
        >>> x, y = torch.randn(40, 8), torch.arange(40) % 2
        >>> watch = EntanglementCallback((x, y), ["0"])
        >>> watch(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), 0)["0"].rows
        40
        >>> list(watch.history["0"])
        [0]
    """

    def __init__(
        self,
        data: Any,
        layers: Sequence[str],
        *,
        log: Log | None = None,
        every: int = 1,
        pool: str = "flatten",
        metric: str = "sqeuclidean",
    ) -> None:
        check_whole(every, "every", 1)
        if isinstance(layers, str) or not layers:
            raise InputError(f"`layers` must be a list of names of layers, got {layers!r}.")
        self.data, self.layers, self.log, self.every = data, list(layers), log, every
        self.pool, self.metric = pool, metric
        self.history: dict[str, dict[int, float]] = {name: {} for name in self.layers}

    def __call__(self, model: nn.Module, step: int) -> Entanglement | None:
        """Measure, remember and log; None at steps in between. The model stays as it was."""
        if step % self.every:
            return None
        seen = capture(model, self.data, self.layers, pool=self.pool)
        found = entanglement(seen, metric=self.metric)
        ratios = {entry.layer: float(entry.ratio) for entry in found.layers}
        for layer, ratio in ratios.items():
            self.history[layer][step] = ratio
        if self.log is not None:
            self.log({f"entanglement/{layer}": ratio for layer, ratio in ratios.items()}, step)
        return found

    def __repr__(self) -> str:
        steps = max((len(values) for values in self.history.values()), default=0)
        return f"EntanglementCallback({', '.join(self.layers)}; {steps} steps measured)"

    def as_table(self) -> Mapping[str, Sequence[float]]:
        """The steps and, layer by layer, the ratios: what a plot or a DataFrame takes."""
        steps = sorted({step for values in self.history.values() for step in values})
        columns = {name: [values[s] for s in steps] for name, values in self.history.items()}
        return {"step": steps, **columns}
