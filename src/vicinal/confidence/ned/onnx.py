"""NED as an ONNX graph: embeddings in, class number and probabilities out (the ``onnx`` extra).

One matrix product and ``TopK`` find the neighbors, their distances are then computed again from the
differences, and a scatter adds up the class masses; fp32 throughout. The support lies in the file.
Class names are in the model's metadata under ``classes``, as JSON.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError
from vicinal.confidence.bundle import pack_classes
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.files import write_atomically
from vicinal.neighbors.distances import unit_rows

if TYPE_CHECKING:
    from vicinal.confidence.head import TrustHead

OPSET = 18


def export_onnx(head: NEDClassifier | TrustHead, path: str | Path) -> Path:
    """Write the NED of ``head``: input ``x``, outputs ``label`` and ``probabilities``."""
    try:
        import onnx
    except ImportError as error:
        raise InputError(
            "export_onnx needs the onnx extra. Install it with pip install 'vicinal[onnx]'."
        ) from error
    ned = head if isinstance(head, NEDClassifier) else head.ned
    graph = _Graph()
    probabilities = _probabilities(graph, ned, _distances(graph, ned))
    graph.rename(probabilities, "probabilities")
    graph.op("ArgMax", "probabilities", name="label", axis=1, keepdims=0)
    float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    info = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "ned",
            [info("x", float32, ["n", ned.n_features_in_])],
            [
                info("label", int64, ["n"]),
                info("probabilities", float32, ["n", len(ned.classes_)]),
            ],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=9,
        producer_name="vicinal",
    )
    onnx.helper.set_model_props(model, {"classes": json.dumps(pack_classes(ned.classes_)["names"])})
    onnx.checker.check_model(model)
    return write_atomically(path, model.SerializeToString())


class _Graph:
    """Nodes and constants as they are named; ``op`` returns the name of what it computes."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **options: Any) -> Any:
        import onnx

        base = name or f"{kind.lower()}_{len(self.nodes)}"
        names = [base] if outputs == 1 else [f"{base}_{i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), names, **options))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def axes(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def rename(self, old: str, new: str) -> None:
        for node in self.nodes:
            node.output[:] = [new if name == old else name for name in node.output]


def _distances(g: _Graph, ned: NEDClassifier) -> tuple[str, str]:
    """Distances (n, k) in the metric's unit, and the labels or soft labels of the neighbors."""
    rows = ned.support_.rows.float()
    query = "x"
    if ned.metric == "cosine":
        rows = unit_rows(rows)
        length = g.op("ReduceL2", "x", g.axes(1), keepdims=1)
        query = g.op("Div", "x", g.op("Max", length, g.number(1e-30)))
    center = rows.mean(0)
    rows = rows - center  # the product loses no digits to a common offset
    query = g.op("Sub", query, g.constant(center.numpy()))
    support = g.constant(rows.numpy())
    lost = g.constant(_lost(ned).astype(np.float32))
    product = g.op("MatMul", query, g.constant(np.ascontiguousarray(rows.T.numpy())))
    squares = g.constant(rows.square().sum(1).numpy() + _lost(ned).astype(np.float32))
    scores = g.op("Sub", squares, g.op("Mul", product, g.number(2.0)))
    k = g.axes(ned.k_)
    _, index = g.op("TopK", scores, k, outputs=2, axis=1, largest=0, sorted=1)
    gaps = g.op("Sub", g.op("Unsqueeze", query, g.axes(1)), g.op("Gather", support, index))
    squared = g.op("ReduceSum", g.op("Mul", gaps, gaps), g.axes(2), keepdims=0)
    if ned.metric == "cosine":
        squared = g.op("Add", squared, g.op("Gather", lost, index))
        distances = g.op("Mul", squared, g.number(0.5))
    elif ned.metric == "euclidean":
        distances = g.op("Sqrt", squared)
    else:
        distances = squared
    values = ned.support_.labels.codes.numpy()
    values = values.astype(np.float32) if values.ndim == 2 else values
    return distances, g.op("Gather", g.constant(values), index)


def _probabilities(g: _Graph, ned: NEDClassifier, found: tuple[str, str]) -> str:
    """Eq. 3 or eq. 18, then background, sharpness and prior, as in ``ned_log_probs``."""
    distances, labels = found
    parameters, soft = ned.parameters_, ned.support_.labels.soft
    masses = _masses(g, ned, distances, labels, soft)
    shares = g.op("Div", masses, g.op("ReduceSum", masses, g.axes(1), keepdims=1))
    if parameters.background > 0:
        assert parameters.prior is not None
        floor = parameters.background * parameters.prior.numpy()
        kept = g.op("Mul", shares, g.number(1 - parameters.background))
        shares = g.op("Add", kept, g.constant(floor.astype(np.float32)))
    if parameters.sharpness != 1:
        shares = g.op("Pow", shares, g.number(parameters.sharpness))
    if parameters.log_prior_shift is not None:
        shift = parameters.log_prior_shift.exp().numpy().astype(np.float32)
        shares = g.op("Mul", shares, g.constant(shift))
    # The largest share is at least 1/c before the power, so the sum does not vanish.
    return g.op("Div", shares, g.op("ReduceSum", shares, g.axes(1), keepdims=1))


def _masses(g: _Graph, ned: NEDClassifier, distances: str, labels: str, soft: bool) -> str:
    """Class masses (n, c), each row scaled by its largest weight."""
    parameters, count = ned.parameters_, len(ned.classes_)
    t, own = parameters.temperature, parameters.log_bandwidths
    if own is not None:
        rate = (-1 / (t * own.exp())).numpy().astype(np.float32)
        offset = (-0.5 * parameters.effective_dimension * own).numpy().astype(np.float32)
        if soft:
            cube = g.op("Mul", g.op("Unsqueeze", distances, g.axes(2)), g.constant(rate))
            logs = g.op("Add", cube, g.constant(offset))
            top = g.op("ReduceMax", logs, g.axes(1, 2), keepdims=1)
            weights = g.op("Mul", g.op("Exp", g.op("Sub", logs, top)), labels)
            return g.op("ReduceSum", weights, g.axes(1), keepdims=0)
        logs = g.op("Mul", distances, g.op("Gather", g.constant(rate), labels))
        logs = g.op("Add", logs, g.op("Gather", g.constant(offset), labels))
    elif t == 0 or math.isinf(t):
        logs = _limit(g, distances, t)
    else:
        logs = g.op("Mul", distances, g.number(-1 / t))
    weights = g.op("Exp", g.op("Sub", logs, g.op("ReduceMax", logs, g.axes(1), keepdims=1)))
    if soft:
        column = g.op("Mul", g.op("Unsqueeze", weights, g.axes(2)), labels)
        return g.op("ReduceSum", column, g.axes(1), keepdims=0)
    rows = g.op("Slice", g.op("Shape", weights), g.axes(0), g.axes(1), g.axes(0))
    shape = g.op("Concat", rows, g.axes(count), axis=0)
    empty = g.op("Expand", g.number(0.0), shape)
    return g.op("ScatterElements", empty, labels, weights, axis=1, reduction="add")


def _limit(g: _Graph, distances: str, temperature: float) -> str:
    """Log-weights at T = 0 (the nearest, ties shared) or T = inf (all alike)."""
    if math.isinf(temperature):
        return str(g.op("Mul", distances, g.number(0.0)))
    nearest = g.op("ReduceMin", distances, g.axes(1), keepdims=1)
    return str(g.op("Mul", g.op("Sub", distances, nearest), g.number(-1e30)))


def _lost(ned: NEDClassifier) -> NDArray[np.bool_]:
    """Zero rows under the cosine: at distance 1 from everything, as if their length were lost."""
    if ned.metric != "cosine":
        return np.zeros(len(ned.support_), dtype=bool)
    return (ned.support_.rows == 0).all(1).numpy()
