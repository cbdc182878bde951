"""What a person writes in a notebook: an answer, or a sentence that says what to pass instead."""

import numpy as np
import pytest
import torch

import vicinal
from vicinal.checks import InputError

pandas = pytest.importorskip("pandas")

rng = np.random.default_rng(0)
Y = np.arange(120) % 3
X = (rng.normal(size=(120, 5)) + 2 * Y[:, None]).astype(np.float32)
TRAIN, TEST = (X[:80], Y[:80]), (X[80:], Y[80:])
FRAME = pandas.DataFrame(X, columns=list("abcde")).assign(
    species=np.array(["cat", "dog", "owl"])[Y]
)
HALF, REST = FRAME[:80], FRAME[80:]


def audit(**more):
    return vicinal.audit(**{"support": TRAIN, "query": TEST, **more})


CALLS = {
    "positional": (lambda: vicinal.audit(TRAIN, TEST), r"pass support=\(Z, y\)"),
    "a path": (lambda: vicinal.audit("a.npz", "b.npz"), r"pass support=\(Z, y\)"),
    "swapped": (lambda: audit(support=TRAIN[::-1]), "looks swapped"),
    "no labels": (lambda: audit(support=X), r"Pass support=\(Z, y\)"),
    "one-hot": (lambda: audit(support=(X[:80], np.eye(3)[Y[:80]])), r"pass y.argmax\(1\)"),
    "one-hot integers": (
        lambda: audit(support=(X[:80], np.eye(3, dtype=int)[Y[:80]])),
        r"Pass y.argmax\(1\)",
    ),
    "floats": (lambda: audit(support=(X[:80], torch.rand(80))), r"tensors: y.long\(\)"),
    "two kinds": (lambda: audit(query=(X[80:], ["cat"] * 40)), "text like 'cat'.*numbers like 0"),
    "numpy scalars": (
        lambda: audit(support=(X[:80], [np.int64(0), "a"] * 40)),
        "numbers like 0 and text like 'a'",
    ),
    "short": (lambda: audit(support=(X[:80], Y[:79])), "80 embeddings but 79 labels"),
    "wide": (lambda: audit(query=(X[80:, :4], Y[80:])), "come from the same model and layer"),
    "maps": (lambda: audit(support=(np.zeros((80, 3, 4, 4)), Y[:80])), r"x.flatten\(1\)"),
    "meta": (
        lambda: audit(support=(torch.empty(80, 5, device="meta"), Y[:80])),
        "Load it on a device",
    ),
    "objects": (lambda: audit(support=(X[:80].astype(str), Y[:80])), "Convert it with"),
    "empty": (lambda: audit(query=(X[:0], Y[:0])), "is empty"),
    "percent": (lambda: audit(target_accuracy=95), "0.99 for 99 %"),
    "names, few": (lambda: audit(class_names=["a", "b"]), "one name for each"),
    "names, twice": (lambda: audit(class_names=["a", "a", "b"]), "names 'a' twice"),
    "pictures, few": (
        lambda: audit(images=(np.zeros((80, 4, 4)), np.zeros((3, 4, 4)))),
        "3 pictures for 40 rows of the query",
    ),
    "pictures of one set": (
        lambda: audit(images=np.zeros((40, 4, 4))),
        r"images=\(of the support, of the query\)",
    ),
    "metric": (lambda: audit(metric="manhattan"), "one of 'auto'"),
    "k": (lambda: audit(k="auto"), "a whole number"),
    "calib": (lambda: audit(calib=X), "cannot calibrate"),
    "frame without label": (lambda: vicinal.audit(HALF, REST), "label='column'"),
    "frame, mistyped": (lambda: vicinal.audit(HALF, label="Species"), "label='species'"),
    "frame, values": (lambda: vicinal.audit(HALF, label=HALF.species), "the name of a column"),
    "frame, no such numbers": (
        lambda: vicinal.audit(HALF, REST.drop(columns="c"), label="species"),
        "lacks the column 'c'",
    ),
    "frame, a missing label": (
        lambda: vicinal.audit(HALF.assign(species=[None, *HALF.species[1:]]), label="species"),
        "row 0 has no label",
    ),
    "no head": (lambda: vicinal.load("none.vic"), "no such file"),
    "a model of names": (lambda: vicinal.audit("resnet18", TRAIN, TEST), "torch.nn.Module"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_told_what_to_pass(name):
    call, words = CALLS[name]
    with pytest.raises(InputError, match=words):
        call()


def test_columns_of_frames_are_compared_by_their_names_in_whatever_order_they_stand():
    straight = vicinal.audit(HALF, REST, label="species", k=15)
    turned = vicinal.audit(HALF, REST[[*"edcba", "species"]], label="species", k=15)
    assert straight.cases.confidence == turned.cases.confidence


def test_a_frame_without_the_labels_is_a_query_without_labels():
    report = vicinal.audit(HALF, REST.drop(columns="species"), label="species", k=15)
    assert set(report.cases.label) == {None}


@pytest.mark.parametrize("nothing", [float("nan"), None, pandas.NA])
def test_a_missing_label_of_a_frame_is_no_class(nothing):
    some = vicinal.audit(
        HALF, REST.assign(species=[nothing, *REST.species[1:]]), label="species", k=15
    )
    assert some.cases.label.count(None) == 1
    assert some.classes == ("cat", "dog", "owl")


def test_the_one_column_of_vectors_of_a_frame_is_what_rows_are_compared_by():
    frame = pandas.DataFrame({"z": list(X), "species": FRAME.species})
    report = vicinal.audit(frame[:80], frame[80:], label="species", k=15)
    plain = audit(support=(X[:80], FRAME.species[:80]), query=(X[80:], FRAME.species[80:]), k=15)
    assert report.cases.predicted == plain.cases.predicted
    with pytest.raises(InputError, match="columns z, w hold vectors"):
        vicinal.audit(frame.assign(w=list(X)), label="species")
