"""What does the network put out? Layers by name, over any data, to memory or to disk."""

from vicinal.capture.activations import Activations, capture
from vicinal.capture.batches import Batch, batches, in_order, row_count, samples
from vicinal.capture.hooks import (
    LayerCall,
    LayerOutput,
    device_of,
    evaluating,
    hooked,
    layer_names,
    listening,
    pooled,
    restored,
    tracing,
)
from vicinal.capture.rows import some_rows
from vicinal.capture.shards import ShardStore
from vicinal.capture.weights import load_weights, read_weights

__all__ = [
    "Activations",
    "Batch",
    "LayerCall",
    "LayerOutput",
    "ShardStore",
    "batches",
    "capture",
    "device_of",
    "evaluating",
    "hooked",
    "in_order",
    "layer_names",
    "listening",
    "load_weights",
    "pooled",
    "read_weights",
    "restored",
    "row_count",
    "samples",
    "some_rows",
    "tracing",
]
