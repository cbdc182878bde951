r"""What a search will cost on this machine, before it is begun.

The exact leave-one-out graph of n rows of d columns is one product of :math:`2 n^2 d` operations;
selecting from it costs half as much again, or as much. So one number, the rate of products here
(measured once in a process, in a few milliseconds), says how long it takes. Lists cost their
centers' k-means and the rows' way into them, and 2,000 exact rows that their effort and their
recall are measured on; what reading them costs is known only when they are there, and is measured
then.
"""

from __future__ import annotations

import torch

from vicinal.neighbors.product import product_rate

SELECTION = 1.6  # of the product's time: the whole of an exact search (measured: 1.3 to 2.1)
PATIENCE = 60.0  # seconds an exact graph may take before an approximate one is thought of
ITERATIONS = 10  # of the k-means of faiss's inverted lists
TRAINING = 64  # rows to a center that it is trained on
SAMPLE = 1_000  # exact rows to measure on: some to choose the effort by, as many to state recall by


def exact_seconds(rows: int, width: int, queries: int | None = None) -> float:
    """Of an exact search of so many queries; by default of every row among the others."""
    asked = rows if queries is None else queries
    return SELECTION * _seconds(2.0 * asked * rows * width)


def _seconds(operations: float) -> float:
    return operations / (product_rate() * torch.get_num_threads())


def list_count(rows: int) -> int:
    """About 2·√n lists: finding the nearest ones costs as much as reading some of them."""
    return max(1, min(int(2 * rows**0.5), rows // 39))  # k-means wants 39 rows to a list


def lists_seconds(rows: int, width: int) -> float:
    """Of making inverted lists, and of the exact rows that say what they miss."""
    lists = list_count(rows)
    trained = min(rows, TRAINING * lists)
    operations = 2.0 * lists * width * (ITERATIONS * trained + rows)
    return _seconds(operations) + exact_seconds(rows, width, min(rows, 2 * SAMPLE))


def lists_bytes(rows: int, width: int) -> int:
    """Of lists in memory: half a byte for each two columns, at most 64, and two numbers a row."""
    return rows * (min(-(-width // 4), 64) + 16)


def lists_may_pay(rows: int, width: int) -> bool:
    """Whether exact takes longer than patience, and making lists at most half as long as that."""
    exact = exact_seconds(rows, width)
    return exact > PATIENCE and lists_seconds(rows, width) < exact / 2
