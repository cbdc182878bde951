"""The rows that quality is judged on: scikit-learn's bundled sets, and what a data folder holds.

``features`` in the folder may hold 1280-d features of pictures by one pretrained network
(``cifar_train.npz``, ``fashion.npz``, ``notmnist.npz``, keys ``f`` and ``y``). A folder that is not
there is left out and named.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

Rows = Any


class Split(NamedTuple):
    """Rows that vote, rows that tune, rows that nothing has seen."""

    support: tuple[Rows, Rows]
    tune: tuple[Rows, Rows]
    fresh: tuple[Rows, Rows]


def sets(data: Path | None) -> Iterator[tuple[str, Rows, Rows]]:
    """Name, rows and labels of every set at hand."""
    bundled: dict[str, Callable[[], Any]] = {
        "iris": load_iris,
        "wine": load_wine,
        "breast cancer": load_breast_cancer,
        "digits": load_digits,
    }
    for name, load in bundled.items():
        found = load()
        yield name, found.data.astype(np.float32), found.target
    if data is None:
        return
    readers: dict[str, Callable[[], tuple[Rows, Rows]]] = {
        "MNIST pixels": lambda: idx(data / "mnist", "train"),
        "FashionMNIST pixels": lambda: idx(data / "fashion_mnist", "train"),
        "notMNIST pixels": lambda: idx(data / "notmnist", "t10k"),
        "Cora words": lambda: words(data / "planetoid" / "cora.npz"),
        "CiteSeer words": lambda: words(data / "planetoid" / "citeseer.npz"),
        "birds 1-100 features": lambda: birds(data / "cub200_lite0" / "train_classes_1280.npz"),
        "birds 101-200 features": lambda: birds(data / "cub200_lite0" / "test_classes_1280.npz"),
        "CIFAR-10 features": lambda: pair(data / "features" / "cifar_train.npz"),
        "FashionMNIST features": lambda: pair(data / "features" / "fashion.npz"),
        "notMNIST features": lambda: pair(data / "features" / "notmnist.npz"),
    }
    for name, read in readers.items():
        try:
            yield name, *read()
        except FileNotFoundError as error:
            print(f"{name}: left out, no {error.filename}")


def split_of(x: Rows, y: Rows, seed: int, quick: bool = False) -> Split:
    """Half of the rows vote, a fifth tunes, the rest is fresh: at most 1,000, 400 and 1,000 rows.

    Of many classes 20 rows each vote: 2,000 birds.
    """
    order = np.random.default_rng(seed).permutation(len(x))
    most = (300, 100, 200) if quick else (max(1000, 20 * len(np.unique(y))), 400, 1000)
    vote = min(len(x) // 2, most[0])
    tune = vote + min(len(x) // 5, most[1])
    parts = order[:vote], order[vote:tune], order[tune : tune + most[2]]
    known = np.isin(y, y[parts[0]])
    support, held, fresh = ((x[rows[known[rows]]], y[rows[known[rows]]]) for rows in parts)
    return Split(support, held, fresh)


def idx(folder: Path, split: str, most: int | None = 6000) -> tuple[Rows, Rows]:
    """Images and labels of the MNIST family, one row of pixels in [0, 1] each; so many at most."""

    def read(kind: str) -> Rows:
        raw = gzip.decompress((folder / f"{split}-{kind}-ubyte.gz").read_bytes())
        shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)

    images, labels = read("images-idx3"), read("labels-idx1")
    some = np.random.default_rng(0).permutation(len(images))[:most]
    return images[some].reshape(len(some), -1).astype(np.float32) / 255, labels[some]


def words(path: Path) -> tuple[Rows, Rows]:
    """Papers as counts of words, with their fields."""
    found = np.load(path)
    parts = found["feat_data"], found["feat_indices"], found["feat_indptr"]
    counts = scipy.sparse.csr_matrix(parts, shape=tuple(found["feat_shape"]))
    return counts.toarray().astype(np.float32), found["label"]


def birds(path: Path) -> tuple[Rows, Rows]:
    found = np.load(path)
    return found["features"].astype(np.float32), found["label"]


def pair(path: Path) -> tuple[Rows, Rows]:
    found = np.load(path)
    return found["f"].astype(np.float32), found["y"]
