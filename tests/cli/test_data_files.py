"""Data as people have them: read without guessing wrong, refused with the way out."""

import json

import numpy as np
import pytest
from PIL import Image

from vicinal.capture import capture
from vicinal.checks import InputError
from vicinal.cli.data_files import read_rows
from vicinal.cli.row_set import aligned, checked_labels, usable, vectors
from vicinal.cli.verbs import DataOptions


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"Z": rng.normal(size=(6, 3)).astype(np.float32), "y": np.array([0, 1, 2, 0, 1, 2])}


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_the_usual_keys_of_an_npz_are_found(tmp_path, arrays):
    spec = saved(
        tmp_path / "a.npz", **arrays, ids=np.array(list("abcdef")), logits=np.eye(6)[:, :3]
    )
    rows = read_rows(spec)
    assert np.array_equal(rows.embeddings, arrays["Z"])
    assert np.array_equal(rows.labels, arrays["y"])
    assert rows.ids == tuple("abcdef")
    assert rows.logits.shape == (6, 3)
    assert rows.source == "a.npz:Z"


def test_every_format_holds_the_same_rows(tmp_path, arrays):
    z, y = arrays["Z"], arrays["y"]
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    listed = [{"embedding": row.tolist(), "label": int(c)} for row, c in zip(z, y, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, listed)))
    head = "f1,f2,f3,label\n"
    body = "\n".join(
        ",".join([*map(repr, row), str(c)]) for row, c in zip(z.tolist(), y, strict=True)
    )
    (tmp_path / "a.csv").write_text(head + body)
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"embedding": z.tolist(), "label": y})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    specs = [
        f"{tmp_path}/z.npy+{tmp_path}/y.npy",
        *(str(tmp_path / f"a.{e}") for e in ("jsonl", "csv", "parquet")),
    ]
    for spec in specs:
        rows = vectors(checked_labels(read_rows(spec)))
        np.testing.assert_allclose(rows.embeddings, z, rtol=1e-6)
        assert rows.labels.tolist() == y.tolist()


@pytest.mark.parametrize("key", ["embedding", "hidden"])
def test_logits_are_found_in_a_table_as_in_an_npz(tmp_path, arrays, key):
    named = zip(arrays["Z"].tolist(), arrays["y"].tolist(), strict=True)
    lines = [{key: z, "scores": [0.5, float(y)], "label": y} for z, y in named]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = vectors(read_rows(str(tmp_path / "a.jsonl")))
    np.testing.assert_allclose(rows.embeddings, arrays["Z"], rtol=1e-6)
    assert rows.logits[:, 1].tolist() == arrays["y"].tolist()
    assert rows.table is None or "scores" not in rows.columns
    assert read_rows(str(tmp_path / "a.jsonl"), DataOptions(embedding_key="scores")).logits is None


def test_a_table_keeps_what_its_rows_look_like(tmp_path):
    (tmp_path / "t.csv").write_text("id,age,fare,class,text\na,1,2.5,yes,hello\nb,3,4.5,no,bye\n")
    rows = read_rows(str(tmp_path / "t.csv"))
    assert rows.ids == ("a", "b")
    assert rows.texts == ["hello", "bye"]
    assert rows.labels.tolist() == ["yes", "no"]
    assert rows.embeddings.tolist() == [[1, 2.5], [3, 4.5]]
    (tmp_path / "n.csv").write_text("age,fare,class\n1,2.5,yes\n3,4.5,no\n")
    table = read_rows(str(tmp_path / "n.csv"))
    assert table.columns == ("age", "fare")
    assert table.table == [["1", "2.5"], ["3", "4.5"]]


def test_class_folders_of_images_are_read_as_paths_and_labels(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/x.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / name)
    rows = read_rows(str(tmp_path))
    assert rows.embeddings is None
    assert rows.labels.tolist() == ["cat", "cat", "dog"]
    assert rows.ids == ("cat/1.png", "cat/2.png", "dog/x.png")
    with pytest.raises(InputError, match="Add --model"):
        vectors(rows)


def test_a_capture_is_data(tmp_path, arrays):
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(3, 2))
    data = (torch.from_numpy(arrays["Z"]), torch.from_numpy(arrays["y"]))
    acts = capture(net, data, ["0", "output"], to=tmp_path / "c")
    rows = read_rows(str(tmp_path / "c"))
    np.testing.assert_allclose(rows.embeddings, acts["0"].numpy())
    assert rows.labels.tolist() == arrays["y"].tolist()
    named = read_rows(str(tmp_path / "c"), DataOptions(embedding_key="output"))
    np.testing.assert_allclose(named.embeddings, acts["output"].numpy())
    with pytest.raises(InputError, match="no layer 'outptu'.*Close names: output"):
        read_rows(str(tmp_path / "c"), DataOptions(embedding_key="outptu"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p, a: saved(p / "a.npz", target_=a["y"], Q=a["Z"]),
            r"has no key 'embeddings' \(keys: target_, Q\)",
        ),
        (lambda p, a: str(p / "missing.npz"), "no such file"),
        (
            lambda p, a: saved(p / "a.npz", Z=a["Z"], y=np.array([1, "a", None], object)),
            r"a.npz:y holds Python objects \(pickle\). Refused for safety",
        ),
        (
            lambda p, a: str(_cut(saved(p / "a.npz", **a))),
            r"cannot read a.npz: .*truncated.*Nothing was written",
        ),
        (
            lambda p, a: str(_text(p / "a.csv", "a,b\n1,2\n3\n")),
            "line 3 has 1 cells, the heading has 2",
        ),
        (
            lambda p, a: str(_text(p / "a.csv", "a,b\nx,y\n")),
            "no 'embedding' column and no numeric",
        ),
        (lambda p, a: str(_text(p / "a.jsonl", "{not json}\n")), "cannot read a.jsonl"),
        (
            lambda p, a: str(_text(p / "a.npz", "no zip")),
            "cannot read a.npz: it is no file of numpy",
        ),
        (lambda p, a: str(_text(p / "a.npy", "none")), "cannot read a.npy: it is no file of numpy"),
        (lambda p, a: str(_text(p / "a.txt", "")), "its ending is none of"),
        (lambda p, a: str(_text(p / "a.csv", "x,label\n1,a\n2,\n")), "row 1 has no label"),
        (
            lambda p, a: str(_text(p / "a.jsonl", '{"embedding": [1, 2]}\n{"embedding": [1]}\n')),
            "different lengths",
        ),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path, arrays, make, message):
    spec = make(tmp_path, arrays)
    with pytest.raises(InputError, match=message):
        read_rows(spec)


def test_a_near_miss_of_a_key_or_a_file_is_suggested(tmp_path, arrays):
    spec = saved(tmp_path / "train.npz", **arrays)
    with pytest.raises(InputError, match="Did you mean --label-key y"):
        read_rows(spec, DataOptions(label_key="yy"))
    with pytest.raises(InputError, match=r"Did you mean train\.npz"):
        read_rows(str(tmp_path / "tran.npz"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"Z": np.zeros((5, 512, 2, 2)), "y": np.zeros(5, int)},
            r"\(5, 512, 2, 2\)\. Neighbors need one vector per row: add --pool mean",
        ),
        (
            {"Z": np.zeros((3, 6)), "y": np.zeros(6, int)},
            r"embeddings look transposed: shape \(3, 6\) with 6 labels. Pass --transpose",
        ),
        (
            {"Z": np.zeros((6, 3)), "y": np.zeros(4, int)},
            "6 embeddings but 4 labels. Rows must match one to one",
        ),
        ({"Z": np.zeros((0, 3)), "y": np.zeros(0, int)}, "has no rows"),
    ],
)
def test_shapes_that_do_not_fit_say_what_to_pass(tmp_path, change, message):
    rows = read_rows(saved(tmp_path / "a.npz", **change))
    with pytest.raises(InputError, match=message):
        vectors(rows)


def test_maps_are_pooled_and_columns_turned_when_asked(tmp_path):
    maps = np.arange(48.0).reshape(2, 3, 2, 4)
    rows = read_rows(saved(tmp_path / "a.npz", Z=maps))
    np.testing.assert_allclose(vectors(rows, pool="mean").embeddings, maps.mean((2, 3)))
    np.testing.assert_allclose(vectors(rows, pool="max").embeddings, maps.max((2, 3)))
    assert vectors(rows, pool="flatten").embeddings.shape == (2, 24)
    flat = read_rows(saved(tmp_path / "b.npz", Z=np.arange(6.0).reshape(2, 3), y=np.zeros(3, int)))
    assert vectors(flat, transpose=True).embeddings.shape == (3, 2)


def test_bad_rows_are_named_or_dropped_but_never_filled(tmp_path):
    z = np.ones((5, 2))
    z[1, 0] = np.nan
    z[3] = 0
    rows = vectors(read_rows(saved(tmp_path / "t.npz", Z=z, ids=np.array(list("abcde")))))
    with pytest.raises(InputError, match=r"in 1 of 5 rows \(first: row 1, id b\).*--drop-bad"):
        usable(rows, drop_bad=False, zero_rows=True)
    kept = usable(rows, drop_bad=True, zero_rows=True)
    assert kept.ids == ("a", "c", "e")
    assert kept.dropped == (("b", "NaN/Inf"), ("d", "zero norm"))
    fine = usable(rows.take(np.array([0, 3])), drop_bad=False, zero_rows=False)
    assert len(fine) == 2
    with pytest.raises(InputError, match="zero norm; cosine/normalized distance"):
        usable(rows.take(np.array([0, 3])), drop_bad=False, zero_rows=True)


def test_labels_are_classes(tmp_path, arrays):
    def labels(y):
        return checked_labels(read_rows(saved(tmp_path / "l.npz", Z=arrays["Z"], y=y))).labels

    assert labels(np.array([0.0, 1, 2, 0, 1, 2])).dtype == np.int64
    assert labels(np.array([True, False] * 3)).tolist() == [1, 0] * 3
    with pytest.raises(InputError, match="labels are float with 6 distinct values — regression"):
        labels(np.linspace(0, 1, 6))
    with pytest.raises(InputError, match=r"one class per row.*argmax"):
        labels(np.eye(6))


def test_labels_are_aligned_by_id(tmp_path, arrays):
    ids = np.array(list("abcdef"))
    rows = read_rows(
        saved(tmp_path / "a.npz", **arrays, ids=ids, label_ids=ids[::-1]), DataOptions(align="ids")
    )
    assert rows.labels.tolist() == arrays["y"][::-1].tolist()
    with pytest.raises(InputError, match=r"1 ids have no label \(first: f\)"):
        aligned(rows, np.array(list("abcde")), np.arange(5))
    with pytest.raises(InputError, match="5 label_ids but 6 labels"):
        aligned(rows, np.array(list("abcde")), np.arange(6))


def test_align_is_never_left_aside_in_silence(tmp_path, arrays):
    align = DataOptions(align="ids")
    with pytest.raises(InputError, match="no key 'label_ids' to align by. Save 'ids' in the order"):
        read_rows(saved(tmp_path / "a.npz", **arrays, ids=np.arange(6)), align)
    with pytest.raises(InputError, match="no key 'ids' to align by"):
        read_rows(saved(tmp_path / "b.npz", **arrays, label_ids=np.arange(6)), align)
    (tmp_path / "c.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    with pytest.raises(InputError, match="each of its rows has its own label. Leave --align out"):
        read_rows(str(tmp_path / "c.csv"), align)
    unlabeled = {name: value for name, value in arrays.items() if name != "y"}
    assert read_rows(saved(tmp_path / "d.npz", **unlabeled), align).labels is None


def _cut(path):
    from pathlib import Path

    whole = Path(path)
    whole.write_bytes(whole.read_bytes()[:-40])
    return whole


def _text(path, text):
    path.write_text(text)
    return path


def test_a_table_is_read_as_other_programs_write_it(tmp_path):
    """Row numbers of pandas are ids and no feature; semicolons, tabs, decimal commas are read."""
    plain = "a,b,label\n0.5,1.25,x\n2.0,-3.5,y\n7.5,0.125,x\n"
    (tmp_path / "plain.csv").write_text(plain)
    lines = plain.splitlines()
    for name in ("", "Unnamed: 0", "index"):
        numbers = [name, "17", "4", "9"]  # of rows that were shuffled and split
        text = "\n".join(f"{n},{line}" for n, line in zip(numbers, lines, strict=True))
        (tmp_path / f"numbered{name[:1]}.csv").write_text(text)
    (tmp_path / "excel.csv").write_text(plain.replace(",", ";").replace(".", ","))
    (tmp_path / "tabs.csv").write_text(plain.replace(",", "\t"))
    expected = read_rows(str(tmp_path / "plain.csv"))
    for path in sorted(tmp_path.glob("*.csv")):
        rows = read_rows(str(path))
        assert np.array_equal(rows.embeddings, expected.embeddings), path.name
        assert rows.labels.tolist() == ["x", "y", "x"]
        assert rows.features == ("a", "b")
        assert rows.ids == (("17", "4", "9") if "numbered" in path.name else None)


def test_an_index_that_repeats_is_a_feature(tmp_path):
    (tmp_path / "t.csv").write_text("index,a,label\n1,2,x\n1,3,y\n5,4,x\n")
    assert read_rows(str(tmp_path / "t.csv")).features == ("index", "a")


def test_an_empty_cell_is_a_row_to_drop_and_its_column_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,label\n1,2,x\n3,,y\n5,4,x\n")
    rows = vectors(read_rows(str(tmp_path / "t.csv")))
    with pytest.raises(InputError, match=r"in 1 of 3 rows \(first: row 1, id 1, 'b'\)"):
        usable(rows, drop_bad=False, zero_rows=False)
    assert len(usable(rows, drop_bad=True, zero_rows=False)) == 2
