"""Images without a model, and images whose labels stand in a table."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from vicinal.audits import encoder
from vicinal.checks import InputError
from vicinal.cli.explore import judge_of
from vicinal.cli.model_inputs import ImageReading
from vicinal.cli.named_models import OWN_ENCODER
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import ExploreOptions


class Bright(torch.nn.Module):
    """Stands for the encoder: mean and brightest of each channel."""

    def forward(self, x):
        return torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)


def draw(folder, names, rng):
    folder.mkdir(parents=True)
    for name in names:
        level = 200 if name.startswith("day") else 60
        pixels = np.clip(rng.normal(level, 25, (10, 10, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 25), ("test", 20)):
        for kind in ("day", "night"):
            draw(tmp_path / part / kind, [f"{kind}{i}.png" for i in range(n)], rng)
    names = [f"{kind}{i}.png" for kind in ("day", "night") for i in range(20)]
    draw(tmp_path / "flat", [*names, "day-other.png"], rng)
    lines = ["file,label", *(f"{n},{n.rstrip('0123456789.png')}" for n in names)]
    (tmp_path / "flat" / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_images_alone_are_audited_by_the_small_encoder_which_is_said(vicinal, photos, monkeypatch):
    monkeypatch.setattr(encoder, "image_encoder", Bright)
    code, out, err = vicinal("audit", "train", "test", "-o", "run", "--k", "10")
    assert code == 0, err
    assert "images are compared as EfficientNet-Lite0 (ImageNet weights, 112 px) sees them" in out
    summary = json.loads((photos / "run" / "summary.json").read_text())
    assert summary["data"]["model"] == "efficientnet-lite0"
    assert summary["heads"][summary["recommended"]]["accuracy"] > 0.9
    code, _, err = vicinal("predict", "run/trust.vic", "flat/day3.png", "-o", "p.csv")
    assert code == 0, err
    with (photos / "p.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["label"] == "day"
    own = ExploreOptions(folder=photos / "run")  # our own code: nothing is typed
    judge = judge_of(read_run(photos / "run"), own)
    (answer,) = judge("day3.png", (photos / "flat" / "day3.png").read_bytes())
    assert answer["label"] == "day"


def test_a_folder_of_images_takes_its_labels_from_a_table(vicinal, photos, monkeypatch):
    monkeypatch.setattr(encoder, "image_encoder", Bright)
    code, _, err = vicinal("audit", "flat", "-o", "run", "--k", "10")
    assert code == 0, err
    assert "1 row was dropped" in err
    assert "day-other.png,not in labels.csv" in (photos / "run" / "dropped.csv").read_text()
    with (photos / "run" / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {"day", "night"}
    assert rows[0]["id"] == "day0.png"


def test_without_the_encoder_images_earn_a_sentence(vicinal, photos, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    code, _, err = vicinal("audit", "train", "test")
    assert code == 2
    assert "Add --model to embed its rows; or pip install 'vicinal[images]'" in err


def test_the_encoder_has_one_name():
    assert encoder.ENCODER == OWN_ENCODER


def test_the_real_encoder_tells_pictures_apart():
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra [images] is not installed")
    dark, bright = np.zeros((20, 20, 3), np.uint8), np.full((20, 20, 3), 255, np.uint8)
    rows = encoder.encoded([dark, bright, dark], size=64)
    assert rows.shape == (3, 1280)
    assert np.allclose(rows[0], rows[2])
    assert not np.allclose(rows[0], rows[1])


def test_one_column_of_lists_in_a_parquet_file_is_the_embeddings(vicinal, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra [parquet] is not installed")
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    z = rng.normal(size=(80, 4)) + 3 * y[:, None]
    table = pyarrow.table({"clip_vit": z.tolist(), "label": y, "n": np.arange(80)})
    parquet.write_table(table, tmp_path / "a.parquet")
    code, out, err = vicinal("audit", "a.parquet", "-o", "run", "--k", "10")
    assert code == 0, err
    assert "80 x 4" in out


def test_three_means_are_none_of_one_channel():
    with pytest.raises(InputError, match="one channel"):
        ImageReading(gray=True).filled(ImageReading(mean=(0.5, 0.5, 0.5)))


def test_pictures_in_an_npz_need_no_embeddings(vicinal, tmp_path, monkeypatch):
    """By the small encoder, or by a model that gets bytes as pixels and floats as they are."""
    monkeypatch.setattr(encoder, "image_encoder", lambda: Bright().eval())
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    pixels = np.clip(rng.normal(60 + 140 * y[:, None, None, None], 25, (60, 8, 8, 3)), 0, 255)
    np.savez(tmp_path / "bytes.npz", images=pixels.astype(np.uint8), labels=y)
    np.savez(tmp_path / "floats.npz", images=(pixels / 255 - 9).transpose(0, 3, 1, 2), labels=y)
    code, out, err = vicinal("audit", "bytes.npz", "-o", "plain")
    assert code == 0, err
    assert "EfficientNet-Lite0" in out
    assert read_run(tmp_path / "plain").media is None
    assert (tmp_path / "plain" / "media.npz").exists()
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.flat, self.out = nn.Flatten(), nn.Linear(192, 2)\n"
        "    def forward(self, x):\n"
        "        assert x.shape[1:] == (3, 8, 8)\n"
        "        assert x.max() < -7 or x.min() >= 0, 'neither floats as they are nor pixels'\n"
        "        return self.out(self.flat(x))\n"
    )
    for name in ("bytes", "floats"):
        words = ("audit", f"{name}.npz", f"{name}.npz", "--model", "net.py:Net", "--no-stress")
        code, _, err = vicinal(*words, "-o", name, "-q")
        assert code == 0, err
