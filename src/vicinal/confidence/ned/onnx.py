"""NED as one graph: embeddings, or a network's inputs, in; class number and probabilities out.

For ``torch.export``, and for ONNX (the ``onnx`` extra), with any number of rows.

One matrix product and ``TopK`` find the neighbors, their distances are then computed again from the
differences, and :func:`ned_log_probs` does the rest; fp32 throughout. The support lies in the file.
Class names are in the model's metadata under ``classes``, as JSON.
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
from vicinal.confidence.ned.posterior import ned_log_probs
from vicinal.files import write_atomically
from vicinal.neighbors.distances import unit_rows
from vicinal.neighbors.neighborhood import Neighborhood

if TYPE_CHECKING:
    from vicinal.confidence.head import TrustHead

OPSET = 18


def export_program(
    head: NEDClassifier | TrustHead, net: nn.Module | None = None, example: Tensor | None = None
) -> torch.export.ExportedProgram:
    """``x -> (label, probabilities)`` by ``torch.export``, the first dimension dynamic.

    ``net`` gives the embeddings that ``head`` was fitted on; ``example`` is a batch of its inputs.
    """
    ned = head if isinstance(head, NEDClassifier) else head.ned
    any_rows = ({0: torch.export.Dim("n")},)
    return torch.export.export(*_graph(ned, net, example), dynamic_shapes=any_rows)


def export_onnx(
    head: NEDClassifier | TrustHead,
    path: str | Path,
    *,
    net: nn.Module | None = None,
    example: Tensor | None = None,
) -> Path:
    """Write the NED of ``head``: input ``x``, outputs ``label`` and ``probabilities``.

    Parameters
    ----------
    head : a fitted NED, or a head that holds one.
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
    ned = head if isinstance(head, NEDClassifier) else head.ned
    program = torch.onnx.export(
        *_graph(ned, net, example),
        dynamo=True,
        input_names=["x"],
        output_names=["label", "probabilities"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        opset_version=OPSET,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {"classes": json.dumps(pack_classes(ned.classes_)["names"])})
    onnx.checker.check_model(model)
    return write_atomically(path, model.SerializeToString())


def _graph(
    ned: NEDClassifier, net: nn.Module | None, example: Tensor | None
) -> tuple[nn.Module, tuple[Tensor]]:
    """The module to export, and what to trace it with."""
    if net is None:
        return Exported(ned).eval(), (torch.zeros(2, ned.n_features_in_),)
    if example is None or len(example) < 1:
        raise InputError(
            "`net` needs an `example`: a batch of its inputs, to trace the graph with."
        )
    rows = torch.cat([example, example])[:2]  # one row alone would be taken for a constant
    with torch.no_grad():
        width = tuple(net(rows).shape[1:])
    if width != (ned.n_features_in_,):
        raise InputError(
            f"`net` gives rows of shape {width}, but the support has {ned.n_features_in_} "
            "dimensions. Pass the network up to the layer that was embedded, flattened."
        )
    return _Behind(net, Exported(ned)).eval(), (rows,)


class _Behind(nn.Module):
    """The head behind its network."""

    def __init__(self, net: nn.Module, head: Exported) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.head(self.net(x))
        return found


class Exported(nn.Module):
    """NED in operations that ONNX has. (:class:`NEDHead` searches by a kernel of our own.)"""

    rows: Tensor
    center: Tensor
    lost: Tensor
    squares: Tensor
    labels: Tensor
    shift: Tensor | None
    matrix: Tensor | None

    def __init__(self, ned: NEDClassifier) -> None:
        super().__init__()
        rows = ned.support_.rows.float()
        # Zero rows under the cosine: at distance 1 from everything, as if their length were lost.
        lost = (rows == 0).all(1).float() * (ned.metric == "cosine")
        rows = unit_rows(rows) if ned.metric == "cosine" else rows
        center = rows.mean(0)
        rows = rows - center  # the product loses no digits to a common offset
        codes = ned.support_.labels.codes
        self.register_buffer("rows", rows)
        self.register_buffer("center", center)
        self.register_buffer("lost", lost)
        self.register_buffer("squares", rows.square().sum(1) + lost)
        self.register_buffer("labels", codes.float() if codes.ndim == 2 else codes)
        space = ned.space_
        self.register_buffer("shift", None if space.shift is None else space.shift.float())
        self.register_buffer("matrix", None if space.matrix is None else space.matrix.float())
        self.unit = space.unit or ned.metric == "cosine"
        self.metric, self.k = ned.metric, ned.k_
        self.num_classes, self.parameters_ = len(ned.classes_), ned.parameters_

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Int[Tensor, " n"], Float[Tensor, "n c"]]:
        if self.shift is not None:
            x = x - self.shift
        if self.matrix is not None:
            x = x * self.matrix if self.matrix.ndim == 1 else x @ self.matrix
        if self.unit:
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-30)
        x = x - self.center
        indices = (self.squares - 2 * x @ self.rows.T).topk(self.k, 1, largest=False).indices
        distances = (x[:, None] - self.rows[indices]).square().sum(2)
        if self.metric == "cosine":
            distances = (distances + self.lost[indices]) / 2
        elif self.metric == "euclidean":
            distances = distances.sqrt()
        neighborhood = Neighborhood(distances, indices).labeled(self.labels)
        p = ned_log_probs(neighborhood, self.num_classes, self.parameters_).exp()
        return p.argmax(1), p
