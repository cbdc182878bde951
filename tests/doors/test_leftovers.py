"""What a fault left behind: put back, gone on with, noticed, or named."""

import errno
import os

import numpy as np
import pytest

from doors.test_faults import new_run
from vicinal import files
from vicinal.audits.parts import Parts
from vicinal.cli import folders


def test_the_mark_of_an_unfinished_run_goes_with_the_swap(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in (folders.UNFINISHED, "audit.json"):  # as version 0.1 left it
        (out / name).write_text("old")
    new_run(out, ["audit.json"])
    assert sorted(os.listdir(out)) == ["audit.json", folders.MARK]
    assert (out / "audit.json").read_text() == "audit.json audit.json"


def test_folders_that_were_made_for_a_name_too_long_are_gone_again(tmp_path):
    with (
        pytest.raises(files.InputError, match="File name too long"),
        folders.locked(tmp_path / "a" / ("n" * 300)),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_put_back_is_named(tmp_path, monkeypatch):
    """The second rename fails, and so does every later one: the disk is gone."""
    (tmp_path / "a").write_text("old")
    count, real = 0, os.replace

    def replace(*words):
        nonlocal count
        count += 1
        if count > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*words)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(files.DiskError, match="a could not be put back as it was"):
        files.write_together({tmp_path / "a": "new", tmp_path / "b": "new"})


def test_what_a_killed_streamed_run_left_is_gone_on_with(tmp_path):
    made = Parts(tmp_path / "out" / folders.WORK / f"labels-{'0' * 16}-256", 3, 2)
    made.fill(lambda start, stop: {"row": np.arange(start, stop)})
    (made.folder / ".part-00002.parquet.abcd_123.partial").write_text("half")
    with folders.locked(tmp_path / "out", "run"):
        assert all(path.exists() for path in made.paths)
    (made.folder / "notes.txt").write_text("mine")
    with pytest.raises(files.InputError, match="not a run"), folders.locked(tmp_path / "out"):
        pass


@pytest.mark.parametrize("damage", ["a byte", "another part"])
def test_a_part_that_was_damaged_is_noticed_when_it_is_read(tmp_path, damage):
    made = Parts(tmp_path / "parts", 300, 200)
    made.fill(lambda start, stop: {"row": np.arange(start, stop) * 1.7})
    assert sum(len(part["row"]) for part in made.read("row")) == 300
    whole = bytearray(made.paths[0].read_bytes())
    if damage == "a byte":
        whole[len(whole) // 3] ^= 1
        made.paths[0].write_bytes(whole)
    else:
        made.paths[1].write_bytes(whole)
    with pytest.raises(files.InputError, match="--fresh"):
        list(made.read("row"))
