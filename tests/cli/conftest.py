"""A small job in files, and a way to run the command line in this process."""

import os
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vicinal.cli.__main__ import main


@contextmanager
def inside(folder):
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


@pytest.fixture
def vicinal(tmp_path, capsys):
    """``vicinal("audit", …)`` in an empty folder: exit code, what it said, what it warned of."""

    def call(*words):
        with inside(tmp_path):
            code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def digits(start, stop, wrong=0):
    data = load_digits()
    x, y = data.data[start:stop].astype(np.float32), data.target[start:stop].copy()
    y[:wrong] = (y[:wrong] + 1) % 10
    return {"Z": x, "y": y, "images": data.images[start:stop]}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """train.npz (ten wrong labels), test.npz, val.npz of bundled digits."""
    folder = tmp_path_factory.mktemp("files")
    np.savez(folder / "train.npz", **digits(0, 400, wrong=10))
    np.savez(folder / "test.npz", **digits(400, 640))
    np.savez(folder / "val.npz", **digits(640, 840))
    return folder


@pytest.fixture(scope="session")
def run_folder(files, tmp_path_factory):
    """One finished audit, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "audit-0001"
    code = main(
        ["audit", str(files / "train.npz"), str(files / "test.npz"), "-o", str(folder), "-q"]
    )
    assert code == 0
    return folder
