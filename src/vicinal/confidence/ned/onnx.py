"""A head as one graph: embeddings, or a network's inputs, in; class number and probabilities out.

For ``torch.export``, and for ONNX (the ``onnx`` extra), with any number of rows.

It is the head's own ``module()``, a linear part included, which uses ordinary operations while it
is exported: one matrix product and ``TopK`` find the neighbors, their distances are then computed
again from the differences; fp32 throughout. The support lies in the file. Class names are in the
model's metadata under ``classes``, as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vicinal.checks import InputError
from vicinal.confidence.bundle import pack_classes
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned_linear import NEDLinear, NEDLinearHead
from vicinal.files import write_atomically
from vicinal.neighbors.distances import unit_rows

if TYPE_CHECKING:
    from vicinal.confidence.head import TrustHead

    Head = NEDClassifier | NEDLinear | TrustHead

OPSET = 18


def export_program(
    head: Head, net: nn.Module | None = None, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """``x -> (label, probabilities)`` by ``torch.export``, the first dimension dynamic.

    ``net`` gives the embeddings that ``head`` was fitted on; ``example`` is a batch of its inputs.
    """
    any_rows = ({0: torch.export.Dim("n")},)
    return torch.export.export(*_graph(head, net, example), dynamic_shapes=any_rows)


def export_onnx(
    head: Head,
    path: str | Path,
    *,
    net: nn.Module | None = None,
    example: Tensor | None = None,
) -> Path:
    """Write what ``head`` says: input ``x``, outputs ``label`` and ``probabilities``.

    Parameters
    ----------
    head : a fitted NED, alone or with a linear part, or a head that holds one.
    path : of the file.
    net : what gives the embeddings, to be part of the graph: ``x`` is then its input.
    example : a batch of the net's inputs; their shape, but for the number of rows, is kept.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch.onnx.export needs it
    except ImportError as error:
        raise InputError(
            "export_onnx needs the onnx extra. Install it with pip install 'vicinal[onnx]'."
        ) from error
    program = torch.onnx.export(
        *_graph(head, net, example),
        dynamo=True,
        input_names=["x"],
        output_names=["label", "probabilities"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        opset_version=OPSET,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    names = json.dumps(pack_classes(head.classes_)["names"])
    onnx.helper.set_model_props(model, {"classes": names})
    onnx.checker.check_model(model)
    return write_atomically(path, model.SerializeToString())


def _graph(
    head: Head, net: nn.Module | None, example: Tensor | None
) -> tuple[nn.Module, tuple[Tensor]]:
    """The module to export, and what to trace it with."""
    model = head if isinstance(head, (NEDClassifier, NEDLinear)) else head.model
    ned = model.ned_ if isinstance(model, NEDLinear) else model
    if net is None:
        return ExportedHead(model).eval(), (torch.zeros(2, ned.n_features_in_),)
    if example is None or len(example) < 1:
        raise InputError("`net` needs an `example`: a batch of its inputs to trace the graph with.")
    rows = torch.cat([example, example])[:2]  # one row alone would be taken for a constant
    with torch.no_grad():
        width = tuple(net(rows).shape[1:])
    if width != (ned.n_features_in_,):
        raise InputError(
            f"`net` gives rows of shape {width}, but the support has {ned.n_features_in_} "
            "dimensions. Pass the network up to the layer that was embedded, flattened."
        )
    return ExportedHead(model, net).eval(), (rows,)


class ExportedHead(nn.Module):
    """The class number and all probabilities, of embeddings or, behind ``net``, of its inputs."""

    def __init__(self, model: NEDClassifier | NEDLinear, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = nn.Identity() if net is None else net
        self.head = model.module().float()
        near = self.head.ned if isinstance(self.head, NEDLinearHead) else self.head
        if near.metric == "cosine":  # lengths are no business of the graph
            near.support, near.unit = unit_rows(near.support), True

    def forward(self, x: Tensor) -> tuple[Int[Tensor, " n"], Float[Tensor, "n c"]]:
        p = self.head(self.net(x)).exp()
        return p.argmax(1), p
