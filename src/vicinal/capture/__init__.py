"""What did the network say? Layers by name, over any data, to memory or to disk."""

from vicinal.capture.activations import Activations, capture
from vicinal.capture.batches import Batch, batches, row_count
from vicinal.capture.hooks import evaluating, layer_names, listening, pooled
from vicinal.capture.shards import ShardStore

__all__ = [
    "Activations",
    "Batch",
    "ShardStore",
    "batches",
    "capture",
    "evaluating",
    "layer_names",
    "listening",
    "pooled",
    "row_count",
]
