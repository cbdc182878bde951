"""What a model's outputs stand for: stated, found in the model, or said to be assumed."""

import json
import textwrap

import numpy as np
import pytest
from PIL import Image

NET = """
import torch
from torch import nn

NAMES = ["owl", "cat", "dog"]  # the order the network was trained in, not the folders'

class Net(nn.Module):
    def __init__(self, extra=0):
        super().__init__()
        self.body = nn.Flatten()
        self.last = nn.Linear(64, 3 + extra)
        with torch.no_grad():
            self.last.weight.copy_(torch.zeros(3 + extra, 64))
            for column, level in ((0, 200), (1, 60), (2, 130)):  # owl, cat, dog
                self.last.weight[column] = 2 * level / 255 / 64
                self.last.bias[column] = -((level / 255) ** 2)
            self.last.weight.mul_(40); self.last.bias[:3].mul_(40)

    def forward(self, x):
        return self.last(self.body(x))

def make():
    return Net()

def wide():
    return Net(extra=5)

def carrying():
    net = Net()
    net.config = type("Config", (), {"id2label": {0: "Owl", 1: "Cat", 2: "Dog"}})()
    return net
"""


@pytest.fixture
def pets(tmp_path):
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    rng = np.random.default_rng(0)
    for name, count in (("train", 20), ("test", 15)):
        for code, kind in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / name / kind
            folder.mkdir(parents=True)
            for at in range(count):
                pixels = np.clip(rng.normal(60 + 70 * code, 20, (8, 8)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{at}.png")
    (tmp_path / "names.txt").write_text("owl\ncat\ndog\n")
    return tmp_path


def audited(vicinal, *words):
    model = () if "--model" in words else ("--model", "net.py:make")
    code, out, err = vicinal(
        "audit", "train", "test", *model, "--gray", "--k", "10", "-o", "run", "--json", *words
    )
    assert code == 0, err
    return json.loads(out), " ".join(err.split())


def given(folder):
    """Class by file, as samples.csv says: a folder's name, whatever the order of the outputs."""
    lines = (folder / "run" / "samples.csv").read_text().splitlines()[1:]
    return {line.split("/")[0]: line.split(",")[1] for line in lines}


@pytest.mark.parametrize(
    "words",
    [
        ("--classes", "names.txt"),
        ("--classes", "owl,cat,dog"),
        ("--labels", "names.txt"),
        ("--model", "net.py:carrying"),
    ],
)
def test_the_order_of_a_models_classes_is_stated_or_found(vicinal, pets, words):
    summary, err = audited(vicinal, *words)
    assert summary["heads"]["softmax"]["accuracy"] > 0.9
    assert given(pets) == {"cat": "cat", "dog": "dog", "owl": "owl"}
    assert "another order" not in err


def test_an_order_nobody_stated_is_said_to_be_the_alphabet_and_doubted_where_it_fails(
    vicinal, pets
):
    summary, err = audited(vicinal)
    assert "in this order: cat, dog, owl; --classes: another" in err
    assert summary["heads"]["softmax"]["accuracy"] < 0.2
    assert "in another order than the labels" in err
    assert "columns read as owl, cat, dog on" in err


def test_more_outputs_than_names_are_not_matched_by_their_place(vicinal, pets):
    summary, _ = audited(vicinal, "--model", "net.py:wide")
    assert "softmax" not in summary["heads"]
    why = "softmax: the model has 8 outputs for 3 classes; name them all: --classes"
    assert why in summary["not_checked"]
    names = "owl,cat,dog,cow,hen,fox,ant,bee"
    summary, _ = audited(vicinal, "--model", "net.py:wide", "--classes", names, "--fresh")
    assert summary["heads"]["softmax"]["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("owl,cat,dgo", "'dog' is none of them. Did you mean 'dgo'?"),
        ("owl,cat,cat", "names 'cat' twice"),
        ("nowhere.txt", "is no file and no list of names like cat,dog,owl"),
    ],
)
def test_an_order_that_does_not_fit_the_labels_earns_a_sentence(vicinal, pets, classes, message):
    code, _, err = vicinal(
        "audit", "train", "test", "--model", "net.py:make", "--gray", "--classes", classes
    )
    assert code == 2
    assert message in err
    assert not (pets / "runs").exists()


def test_folders_named_by_numbers_are_in_the_order_of_the_numbers(vicinal, pets):
    for part in ("train", "test"):
        for old, new in (("owl", "0"), ("cat", "1"), ("dog", "10")):
            (pets / part / old).rename(pets / part / new)
    names = ",".join(["owl", "cat", *(f"none{i}" for i in range(8)), "dog"])
    audited(vicinal, "--classes", names)
    assert given(pets) == {"0": "owl", "1": "cat", "10": "dog"}


def test_logits_beside_text_labels_are_read_in_the_stated_order(vicinal, tmp_path):
    rng = np.random.default_rng(0)
    y = np.array(["cat", "dog", "owl"])[np.arange(150) % 3]
    z = rng.normal(size=(150, 4)) + 3 * (np.arange(150) % 3)[:, None]
    logits = 5 * (y[100:, None] == np.array(["owl", "cat", "dog"])).astype(float)
    np.savez(tmp_path / "train.npz", Z=z[:100], y=y[:100])
    np.savez(tmp_path / "test.npz", Z=z[100:], y=y[100:], logits=logits)
    words = ("audit", "train.npz", "test.npz", "-o", "run", "--json", "--k", "20")
    code, out, _ = vicinal(*words, "--classes", "owl,cat,dog")
    assert code == 0
    summary = json.loads(out)
    assert summary["heads"]["softmax"]["accuracy"] == 1.0
    code, out, err = vicinal(*words)
    assert json.loads(out)["heads"]["softmax"]["accuracy"] == 0.0
    assert "in another order than the labels" in " ".join(err.split())


def test_an_order_of_outputs_is_said_to_change_nothing_where_there_are_none(vicinal, pets):
    table = "a,b,label\n" + "".join(
        f"{i % 7},{i % 5},{'cat' if i % 2 else 'owl'}\n" for i in range(60)
    )
    (pets / "rows.csv").write_text(table)
    code, out, err = vicinal("audit", "rows.csv", "--classes", "owl,cat", "--map", "none")
    assert code == 0, err
    assert "--classes is the order of outputs; without any it changes nothing" in out
    code, _, err = vicinal("audit", "missing.npz", "--classes", "owl,owl")
    assert (code, "names 'owl' twice" in err) == (2, True)  # before a file is read


def test_sets_that_a_model_does_not_take_are_named_and_memory_is_not_left_aside(vicinal, pets):
    np.savez(pets / "rows.npz", embeddings=np.zeros((4, 9), np.float32))
    words = ["audit", "train", "test", "--model", "net.py:make", "--gray", "--size", "8"]
    code, _, err = vicinal(*words, "--classes", "names.txt", "--foreign", "rows.npz")
    assert code == 2
    assert "the model on inputs of (2, 9) (foreign) failed" in err
    code, _, err = vicinal(*words, "--memory", "2GB")
    assert code == 2
    assert "`memory` (2GB) is for rows that are read in blocks" in err
