"""What a person types in the first five minutes: an answer, or one sentence that says what to do.

Each line of the table is a command and the words its sentence must hold; nothing may be written.
"""

import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

from doors.attempts import Tally, said

pandas = pytest.importorskip("pandas")

NET = """
import torch
from torch import nn

number = 3
model = nn.Linear(1, 1)

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 2))

def needs(width):
    return nn.Linear(width, 2)
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder as people have them: every file with one thing that is odd, named after it."""
    folder = tmp_path_factory.mktemp("desk")
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    z = (rng.normal(size=(120, 5)) + 2 * y[:, None]).astype(np.float32)
    x, t = z[:80], y[:80]
    species = np.array(["big cat", "dog, small", "öwl"])[t]
    odd = {
        "train": {"embeddings": x, "labels": t},
        "test": {"embeddings": z[80:], "labels": y[80:]},
        "unlabeled": {"embeddings": x},
        "oddkeys": {"feats": x, "kinds": t},
        "capitals": {"X": x, "Y": t},
        "onehot": {"embeddings": x, "labels": np.eye(3)[t]},
        "column": {"embeddings": x, "labels": t[:, None]},
        "floats": {"embeddings": x, "labels": t.astype(float)},
        "regression": {"embeddings": x, "labels": x[:, 0]},
        "nanlabel": {"embeddings": x, "labels": np.where(t == 1, np.nan, t)},
        "swapped": {"embeddings": t, "labels": x},
        "short": {"embeddings": x, "labels": t[:79]},
        "texts": {"embeddings": x.astype(str), "labels": t},
        "complex": {"embeddings": x + 1j, "labels": t},
        "empty": {"embeddings": x[:0], "labels": t[:0]},
        "onerow": {"embeddings": x[:1], "labels": t[:1]},
        "shortid": {"embeddings": x, "labels": t, "ids": np.arange(79)},
        "nanrow": {"embeddings": np.where(np.arange(80)[:, None] == 7, np.nan, x), "labels": t},
        "narrow": {"embeddings": z[80:, :4], "labels": y[80:]},
        "othernames": {"embeddings": z[80:], "labels": y[80:] + 10},
        "words": {"embeddings": x[::-1], "labels": species[::-1]},
        "tokens": {"embeddings": rng.normal(size=(80, 7, 4)), "labels": t},
        "fewlogits": {"embeddings": z[80:], "labels": y[80:], "logits": np.zeros((40, 2))},
        "shortlogits": {"embeddings": z[80:], "labels": y[80:], "logits": np.zeros((39, 3))},
    }
    for name, arrays in odd.items():
        np.savez(folder / f"{name}.npz", **arrays)
    np.save(folder / "Z.npy", x)
    np.save(folder / "y.npy", t)
    np.save(folder / "dict.npy", {"a": 1}, allow_pickle=True)
    frame = pandas.DataFrame(x, columns=list("abcde")).assign(species=species)
    labeled = frame.rename(columns={"species": "label"})
    frame.to_csv(folder / "species.csv", index=False)
    frame[::-1].drop(columns="species").to_csv(folder / "new.csv", index=False)
    for name, how in {
        "latin": {"encoding": "latin-1"}, "utf16": {"encoding": "utf-16"},
        "bom": {"encoding": "utf-8-sig"}, "semicolons": {"sep": ";", "decimal": ","},
        "pipes": {"sep": "|"}, "headless": {"header": False},
    }.items():  # fmt: skip
        labeled.to_csv(folder / f"{name}.csv", index=False, **how)
    labeled.rename(columns={"label": "Label"}).to_csv(folder / "capital.csv", index=False)
    labeled.assign(when="2020-01-01", note="hm").to_csv(folder / "notes.csv", index=False)
    labeled.assign(a=["n/a", *x[1:, 0]]).to_csv(folder / "nocell.csv", index=False)
    labeled.assign(label=[None, *species[1:]]).to_csv(folder / "nolabel.csv", index=False)
    listed = [str(row) for row in x]
    pandas.DataFrame({"embedding": listed, "label": t}).to_csv(folder / "printed.csv", index=False)
    for name in ("t.txt", "t.json", "t.pkl", "t.pt", "t.h5", "t.xlsx", "t.csv.gz", "mine.txt"):
        (folder / name).write_text("x")
    (folder / "blank.csv").write_text("")
    (folder / "heading.csv").write_text("a,b,label\n")
    (folder / "mine.csv").write_text("mine,too\n1,2\n")
    for root, kinds in {"photos": ("cat", "dog"), "one": ("cat",), "loose": ("",)}.items():
        for kind in kinds:
            (folder / root / kind).mkdir(parents=True)
            for at in range(4):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / root / kind / f"{at}.png")
    (folder / "photos" / ".DS_Store").write_bytes(b"x")
    shutil.copytree(folder / "photos", folder / "broken")
    (folder / "broken" / "cat" / "9.png").write_bytes(b"no picture")
    (folder / "nothing").mkdir()
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("x")
    (folder / "net.py").write_text(NET)
    (folder / "twice.txt").write_text("cat\ncat\n")
    for words in ("audit train.npz test.npz -o run -q --map none", "fit train.npz -o trust.vic -q"):
        answer = said(folder, *words.split())
        assert answer.code == 0, answer.err
    return folder


REFUSED = """
audit oddkeys.npz | Did you mean --embedding-key feats?
audit capitals.npz | Did you mean --label-key Y?
audit onehot.npz test.npz | For one-hot labels save y.argmax(1)
audit regression.npz | regression is not supported
audit nanlabel.npz | row 1 has no label (NaN)
audit swapped.npz | look swapped
audit y.npy+Z.npy | look swapped
audit short.npz | 80 embeddings but 79 labels
audit texts.npz | holds text, not real numbers
audit complex.npz | holds complex numbers, not real numbers
audit empty.npz test.npz | empty.npz:embeddings has no rows
audit train.npz empty.npz | empty.npz:embeddings has no rows
audit onerow.npz test.npz | one class only (0)
audit shortid.npz | 80 embeddings but 79 ids
audit nanrow.npz test.npz | first: row 7
audit train.npz narrow.npz | 5 dims but query has 4
audit train.npz words.npz | numbers like 0.
audit tokens.npz | add --pool mean
audit tokens.npz --pool first | one of 'mean', 'max', 'flatten'
audit train.npz fewlogits.npz | 2 columns for 3 classes
audit train.npz shortlogits.npz | 40 embeddings but 39 logits
audit unlabeled.npz test.npz | Name it with --label-key
audit Z.npy | Z.npy+labels.npy
audit Z.npy y.npy | Z.npy+labels.npy
audit Z.npy+none.npy | no such file: none.npy
audit dict.npy | holds Python objects (pickle)
audit species.csv | Did you mean --label-key species?
audit species.csv --label-key Species | Did you mean --label-key species?
audit species.csv --label_key species | --label-key
audit species.csv --label-col species | audit --help
audit latin.csv | Save it as UTF-8
audit utf16.csv | Save it as UTF-8
audit headless.csv | Put a heading above it
audit capital.csv | Did you mean --label-key Label?
audit nocell.csv | 'n/a' is no number
audit nolabel.csv | row 0 has no label
audit blank.csv | is empty
audit heading.csv | has no rows
audit t.txt | Save its rows as .npz with the keys embeddings and labels
audit t.json | Save its rows as .npz
audit t.pkl | Save its rows as .npz
audit t.pt | Save its rows as .npz
audit t.h5 | Save its rows as .npz
audit t.xlsx | Save its rows as .npz
audit t.csv.gz | Save its rows as .npz
audit trian.npz test.npz | Did you mean train.npz?
audit train.npz,test.npz | Did you mean train.npz?
audit loose | one folder for each class
audit broken | cannot read image
audit one | one class only (cat)
audit nothing | holds no images
audit photos photos --model net.py | net.py:make
audit photos photos --model net.py:none | has no 'none'
audit photos photos --model net.py:number | is a int, not a function
audit photos photos --model net.py:needs | --model-arg name=value
audit photos photos --model resnet18 | timm:NAME
audit photos photos --model photos | is a folder, no model
audit photos photos --model net.py:make --classes cat | no list of names
audit photos photos --model net.py:make --classes cat,cow | 'dog' is none of them
audit photos photos --model net.py:make --labels twice.txt | names 'cat' twice
audit photos photos --model net.py:make --size 32 | It takes these images with --size 8
audit photos photos --model net.py:make --mean 0.5,0.5 | 1 or 3 numbers
audit photos photos --model net.py:make --std 0 | must not be 0
audit photos photos --model net.py:make --layer fc | no layer 'fc'
audit photos --model net.py:make | give both sets
audit train.npz test.npz --target-accuracy 99 | between 0 and 1 (0.99 for 99 %)
audit train.npz test.npz --target-accuracy 99% | '99%' is not a number
audit train.npz test.npz --target 0.9 | --target-accuracy
audit train.npz test.npz --metric cos | Did you mean 'cosine'?
audit train.npz test.npz --k ten | whole number or auto
audit train.npz test.npz --k 1000 | pass --k 79
audit train.npz test.npz -k 5 | audit --help
audit train.npz test.npz --map umap | one of 'tsne', 'linear', 'none'
audit train.npz test.npz --space pca | one of 'raw'
audit train.npz test.npz --search hnsw | one of 'exact'
audit train.npz test.npz --memory lots | a size like 2GB
audit train.npz test.npz --on dask | Give ray
audit train.npz test.npz --apply species.csv | Export the decisions from the page
audit train.npz test.npz --foreign narrow.npz | 5 dims but foreign has 4
audit train.npz test.npz --calib unlabeled.npz | it cannot calibrate
audit train.npz test.npz --calib othernames.npz | Check the class names
audit train.npz test.npz --out mine | not a run of vicinal
audit train.npz test.npz --out mine.txt | Give a folder
audit train.npz test.npz --out report.html | leave the ending out
audit train.npz test.npz more.npz | For example: vicinal audit
audit --support train.npz --query test.npz | audit --help
audit run test.npz | not data
audit trust.vic test.npz | vicinal predict trust.vic
audit --config run/summary.json | has no setting
fit unlabeled.npz | --label-key
fit one | one class only
fit onerow.npz | one class only (0)
fit train.npz -o head.pt | must end in .vic
fit train.npz -o no/where.vic | does not exist
fit train.npz test.npz | For example: vicinal fit
fit train.npz --calib narrow.npz | 5 dims but calib has 4
fit train.npz --calib othernames.npz | Check the names
fit photos --model net.py:make | fit --help
predict trust.vic | For example: vicinal predict
predict test.npz trust.vic | the head comes first: vicinal predict trust.vic test.npz
predict trust.vic narrow.npz | fitted on 5 dims
predict trust.vic nanrow.npz | first: row 7
predict trust.vic empty.npz | has no rows
predict trust.vic photos | --model
predict trust.vic test.npz -o mine.csv | holds no predictions of vicinal
predict trust.vic test.npz -o mine | it is a folder
predict trust.vic test.npz -o p.parquet | .csv or .jsonl
predict trust.vic test.npz -o p.xlsx | .csv or .jsonl
compare run | For example: vicinal compare
compare run run --fail-if accuracy | 'measure > number'
compare run run --fail-if 'acc < 0.9' | Close names: accuracy
compare run/report.html run | Give its folder: run
compare train.npz test.npz | Audit it first
explore run/report.html | Give its folder: run
explore mine | audit.json is missing
embed net.py:make | For example: vicinal embed
embed photos net.py:make | is a folder, no model
embed net.py:make photos --layer fc | no layer 'fc'
embed net.py:make photos --layer 1 -o mine | holds no capture
embed net.py:make photos --layer 1 -o rows.npz | leave the ending out
embed net.py:make nothing | holds no images
embed net.py:make photos --device gpu | cannot be used here
layers resnet18 | timm:NAME
layers net.py:make --input 3,9,9 | the model failed
check train.npz none.npz | no such file: none.npz
check broken | cannot read image
train train.npz | --help
Audit train.npz | Did you mean 'audit'?
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_a_sentence_says_what_to_do_and_nothing_is_written(desk, line):
    words, _, wanted = line.partition(" | ")
    tally = Tally("wrong use")
    answer = tally.attempt(desk, words, *shlex.split(words))
    tally.check()
    assert answer.code == 2, answer.out
    assert wanted in answer.err


ACCEPTED = """
audit column.npz test.npz |
audit floats.npz test.npz |
audit bom.csv |
audit semicolons.csv |
audit pipes.csv |
audit printed.csv |
audit notes.csv | columns  compared as numbers: a, b, c, d, e; not used: when, note
audit species.csv new.csv --label-key species | query has no labels
audit --config run |
predict run test.npz | supported
predict trust.vic new.csv --label-key species | wrote
layers net.py:make --input 3x8x8 | Linear
""".strip().splitlines()


@pytest.mark.parametrize("line", ACCEPTED)
def test_what_is_odd_but_plain_is_done(desk, line, tmp_path):
    words, _, wanted = line.partition(" |")
    out = {
        "audit": ["-o", tmp_path / "run", "--map", "none"],
        "predict": ["-o", tmp_path / "p.csv"],
    }
    answer = said(desk, *shlex.split(words), *out.get(words.split()[0], []))
    assert answer.code == 0, answer.err
    assert wanted.strip() in answer.out + answer.err


def test_labels_in_a_column_of_their_own_shape_give_the_same_run(desk, tmp_path):
    found = []
    for name in ("train", "column", "floats"):
        words = ["audit", f"{name}.npz", "test.npz", "-o", tmp_path / name, "--map", "none", "-q"]
        assert said(desk, *words).code == 0
        found.append((tmp_path / name / "samples.csv").read_text())
    assert found[0] == found[1] == found[2]
