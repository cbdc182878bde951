"""Rows in shards are the rows in memory, whatever the kind of file, the block and the row asked."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.numpy import save_file

from vicinal.capture import capture
from vicinal.capture.row_files import Names
from vicinal.capture.sources import ArrayRows, open_rows
from vicinal.checks import InputError
from vicinal.neighbors.search.sharded import rows_at

Z = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
Y = np.arange(23) % 4
CUTS = ((0, 5), (5, 6), (6, 23))


def write(folder, kind, z=Z, y=Y, cuts=CUTS):
    for at, (a, b) in enumerate(cuts):
        path = folder / f"part-{at}.{kind}"
        if kind == "npy":
            np.save(path, z[a:b])
            np.save(folder / f"y-{at}.npy", y[a:b])
        elif kind == "npz":
            np.savez(path, Z=z[a:b], y=y[a:b])
        elif kind == "parquet":
            columns = {
                "embedding": list(z[a:b]),
                "label": y[a:b],
                "id": [f"r{i}" for i in range(a, b)],
            }
            parquet.write_table(pa.table(columns), path, row_group_size=4)
        else:
            save_file({"embeddings": z[a:b], "labels": y[a:b]}, path)


def spec(folder, kind):
    return f"{folder}/part-*.npy+{folder}/y-*.npy" if kind == "npy" else f"{folder}/part-*.{kind}"


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "safetensors"])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_blocks_of_shards_are_the_rows_in_order_from_any_row_on(tmp_path, kind, size):
    write(tmp_path, kind)
    rows = open_rows(spec(tmp_path, kind))
    assert (len(rows), rows.width, rows.dtype) == (23, 3, torch.float32)
    for start, stop in ((0, None), (3, 7), (5, 6), (7, 22)):
        parts = list(rows.blocks(size, start, stop))
        assert [at for at, _ in parts] == list(range(start, stop or 23, size))
        assert torch.equal(torch.cat([part for _, part in parts]), torch.tensor(Z[start:stop]))
    assert np.array_equal(rows.labels(), Y)
    wanted = torch.tensor([0, 4, 5, 22])
    assert torch.equal(rows_at(rows, wanted, size), torch.tensor(Z)[wanted])


def test_ids_are_those_of_the_files_or_row_numbers(tmp_path):
    write(tmp_path, "parquet")
    assert open_rows(tmp_path).ids(4, 8) == ["r4", "r5", "r6", "r7"]
    assert ArrayRows(Z).ids(4, 6) == ["4", "5"]


def test_a_memory_map_is_read_block_by_block(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    rows = ArrayRows(np.load(tmp_path / "z.npy", mmap_mode="r"), Y)
    assert torch.equal(torch.cat([part for _, part in rows.blocks(7)]), torch.tensor(Z))


def test_a_capture_is_a_source_with_its_labels(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    data = torch.utils.data.TensorDataset(torch.tensor(Z), torch.tensor(Y))
    kept = capture(model, data, ["output"], batch_size=4, to=tmp_path / "c")
    rows = open_rows(tmp_path / "c")
    assert torch.equal(rows_at(rows, slice(None), 5), kept["output"])
    assert np.array_equal(rows.labels(), Y)


def test_a_shard_of_a_capture_that_was_damaged_is_noticed_before_it_is_streamed(tmp_path):
    capture(torch.nn.Linear(3, 2), torch.from_numpy(Z), ["output"], to=tmp_path)
    path = tmp_path / "shard-00000.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1  # a bit of a number
    path.write_bytes(raw)
    with pytest.raises(InputError, match="damaged or changed after it was written"):
        open_rows(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "7", '{"classes": 5}', '{"ids": [1, 2]}', "["])
def test_what_is_written_beside_a_capture_is_checked_before_it_is_believed(tmp_path, text):
    capture(torch.nn.Linear(3, 2), torch.from_numpy(Z), ["output"], to=tmp_path)
    (tmp_path / "embed.json").write_text(text)
    with pytest.raises(InputError, match=r"cannot read .*embed.json"):
        open_rows(tmp_path)


def test_compressed_archives_and_half_floats_are_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", Z=Z.astype(np.float16), y=Y)
    rows = open_rows(tmp_path / "a.npz")
    assert torch.equal(rows_at(rows, slice(None), 4), torch.tensor(Z).half().float())


def wrong_width(folder):
    write(folder, "npz", cuts=((0, 5),))
    np.savez(folder / "q.npz", Z=Z[:, :2], y=Y)


def empty_shard(folder):
    write(folder, "npz", cuts=((0, 5),))
    np.savez(folder / "q.npz", Z=Z[:0], y=Y[:0])


def empty_table(folder):
    write(folder, "parquet")
    parquet.write_table(parquet.read_table(folder / "part-0.parquet")[:0], folder / "q.parquet")


def unlabeled(folder):
    write(folder, "npz", cuts=((0, 5),))
    np.savez(folder / "q.npz", Z=Z)


def other_kind_of_label(folder):
    write(folder, "npz", cuts=((0, 5),))
    np.savez(folder / "q.npz", Z=Z, y=Y.astype(str))


def pickled(folder):
    write(folder, "npz", cuts=((0, 5),))
    np.savez(folder / "q.npz", Z=np.array([{}, {}], dtype=object))


def cut_short(folder):
    write(folder, "npy", cuts=((0, 23),))
    path = folder / "part-0.npy"
    path.write_bytes(path.read_bytes()[:-8])


def by_columns(folder):
    np.save(folder / "part-0.npy", np.asfortranarray(Z))


def of_words(folder):
    np.save(folder / "part-0.npy", Z.astype(str))


def of_negative_rows(folder):
    head = str({"descr": "<f4", "fortran_order": False, "shape": (-3, 4)}).ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
    (folder / "part-0.npy").write_bytes(start + head.encode() + bytes(64))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (of_words, "part-0.npy holds <U.*, not numbers"),
        (of_negative_rows, r"part-0.npy: it claims the shape \(-3, 4\)"),
        (wrong_width, "differ in width: .*part-0.npz has 3 columns, .*q.npz has 2"),
        (empty_shard, "q.npz is an empty shard"),
        (empty_table, "q.parquet is an empty shard"),
        (unlabeled, "part-0.npz has labels but .*q.npz has none"),
        (other_kind_of_label, "part-0.npz are numbers, those of .*q.npz are text"),
        (pickled, "q.npz: it holds Python objects"),
        (cut_short, "part-0.npy: it claims .* cut short"),
        (by_columns, "part-0.npy: it is stored by columns"),
        (lambda folder: None, "no shard at"),
    ],
)
def test_what_is_wrong_with_shards_is_one_sentence(tmp_path, make, sentence):
    make(tmp_path)
    with pytest.raises(InputError, match=sentence):
        open_rows(str(tmp_path)).labels()


def test_a_shard_that_vanishes_or_changes_is_one_sentence(tmp_path):
    write(tmp_path, "npz")
    rows = open_rows(tmp_path)
    np.savez(tmp_path / "part-1.npz", Z=Z[:1], y=Y[:1], more=Z)
    with pytest.raises(InputError, match="part-1.npz changed after it was opened"):
        list(rows.blocks(4))
    (tmp_path / "part-1.npz").unlink()
    with pytest.raises(InputError, match="no such shard: .*part-1.npz"):
        list(rows.blocks(4))


def test_a_row_that_is_not_finite_is_named_with_its_file(tmp_path):
    z = Z.copy()
    z[9] = np.nan
    write(tmp_path, "npz", z)
    with pytest.raises(InputError, match=r"row 3 of .*part-2.npz holds NaN"):
        list(open_rows(tmp_path).blocks(4))


def test_an_unknown_key_names_the_closest(tmp_path):
    write(tmp_path, "npz")
    with pytest.raises(InputError, match=re.escape("has no key 'z2' (keys: Z, y)")):
        open_rows(tmp_path, Names(embedding="z2"))
