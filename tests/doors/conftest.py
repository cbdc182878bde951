"""One small world of files, made once; and how many attempts a run makes."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from doors.attempts import said


@pytest.fixture
def times():
    """``DOORS_TIMES=20``: so many times the attempts that an ordinary run makes."""
    return int(os.environ.get("DOORS_TIMES", "1"))


NET = """
import torch
from torch import nn

def make(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 3))
"""


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Every file format with three classes in it, a head, a run, a capture, a model, pictures."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    y = np.arange(36) % 3
    z = (rng.normal(size=(36, 4)) + 2 * y[:, None]).astype(np.float32)
    np.savez(folder / "t.npz", Z=z, y=y)
    np.savez(folder / "q.npz", Z=z[:20] + 0.1, y=y[:20])
    np.save(folder / "z.npy", z)
    lines = [{"embedding": row.tolist(), "label": int(c)} for row, c in zip(z, y, strict=True)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    cells = [",".join([*map(str, row), f"c{c}"]) for row, c in zip(z.tolist(), y, strict=True)]
    (folder / "t.csv").write_text("a,b,c,d,label\n" + "\n".join(cells) + "\n")
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"embedding": z.tolist(), "label": y})
    pyarrow.parquet.write_table(table, folder / "t.parquet")
    (folder / "decisions.csv").write_text("row,decision,label\n0,relabel,1\n")
    (folder / "net.py").write_text(NET)
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(4, 3).state_dict(), folder / "w.pt")
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for at in range(3):
            pixels = rng.integers(0, 255, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{at}.png")
    for words in (
        ["audit", "t.npz", "q.npz", "--k", "5", "-o", "run", "-q"],
        ["fit", "t.npz", "--k", "5", "-o", "trust.vic", "-q"],
        ["embed", "net.py:make", "t.npz", "--layer", "1", "-o", "capture", "-q"],
    ):
        answer = said(folder, *words)
        assert answer.code == 0, answer.err
    assert sorted(os.listdir(folder / "capture")) == [
        "embed.json", "manifest.json", "shard-00000.safetensors",
    ]  # fmt: skip
    return folder
