"""Every head's answer row by row, packed: what pairs the heads of two runs on the same rows.

Four bytes and a bit for each row and head: whether it is right, its confidence in steps of 1/65535,
and −log p of its label in half precision. They give intervals; values are those of the head's line.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError
from vicinal.records import Record

if TYPE_CHECKING:
    from vicinal.audits.facts import Facts

STEPS = 65535  # of a confidence
LARGEST = 65504.0  # what half precision holds


@dataclass(frozen=True)
class HeadRows(Record):
    """One head on every query row, in base64; a row that has no log loss holds NaN there.

    >>> kept = HeadRows.of("ned", [True, False], [0.9, 0.5], [0.105, np.nan])
    >>> kept.right(2), kept.confidence(2).round(4), kept.loss(2).round(3)
    (array([ True, False]), array([0.9, 0.5]), array([0.105,   nan]))
    """

    name: str
    bits: str
    steps: str
    halves: str

    @classmethod
    def of(
        cls,
        name: str,
        right: NDArray[np.bool_] | list[bool],
        confidence: NDArray[np.float64] | list[float],
        loss: NDArray[np.float64] | list[float],
    ) -> HeadRows:
        steps = np.rint(STEPS * np.clip(confidence, 0, 1)).astype("<u2")
        halves = np.where(np.isinf(loss), np.inf, np.minimum(loss, LARGEST)).astype("<f2")
        columns = (np.packbits(np.asarray(right, bool)), steps, halves)
        return cls(name, *(base64.b64encode(c.tobytes()).decode() for c in columns))

    def check(self, rows: int) -> None:
        """An :class:`InputError` unless every column holds so many rows."""
        self.right(rows), self.confidence(rows), self.loss(rows)

    def right(self, rows: int) -> NDArray[np.bool_]:
        bits = np.frombuffer(_bytes(self.bits, (rows + 7) // 8), np.uint8)
        return np.unpackbits(bits, count=rows).astype(bool)

    def confidence(self, rows: int) -> NDArray[np.float64]:
        return np.frombuffer(_bytes(self.steps, 2 * rows), "<u2").astype(np.float64) / STEPS

    def loss(self, rows: int) -> NDArray[np.float64]:
        return np.frombuffer(_bytes(self.halves, 2 * rows), "<f2").astype(np.float64)


def _bytes(text: str, size: int) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != size:
        raise InputError(
            f"`HeadRows` must hold every query row: {size} bytes, got {len(found)}. "
            "Run the audit again."
        )
    return found


def head_rows(facts: Facts) -> tuple[HeadRows, ...]:
    """Of every head that was scored."""
    found = []
    for name, scored in facts.scored.items():
        loss = np.full(len(scored.codes), np.nan)
        loss[scored.codes >= 0] = scored.row_losses
        right = scored.answer.predicted.numpy() == scored.codes
        found.append(HeadRows.of(name, right, scored.answer.confidence, loss))
    return tuple(found)
