"""What the rows of a head were made from: kept in a ``.vic`` file, so that new inputs can follow.

It names a model and never runs one: code comes from whoever calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vicinal.records import Record


@dataclass(frozen=True)
class MadeFrom(Record):
    """The model and layer behind the embeddings, how its images were read, what classes are called.

    ``names`` has an entry for each class that is called otherwise than its label.
    """

    model: str | None = None
    weights: str | None = None
    embedding: str | None = None  # the layer
    size: int | None = None
    gray: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    normalize: bool = False  # rows were scaled to length 1
    names: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()  # the columns of the table they were read from, in this order
    arguments: tuple[str, ...] = ()  # name=value, what the model was made with
    sample_of: int | None = None  # the support is a sample of so many rows

    def name_of(self, label: Any) -> str:
        """What a class is called.

        >>> MadeFrom(names={"0": "cat"}).name_of(0)
        'cat'
        """
        return self.names.get(str(label), str(label))
