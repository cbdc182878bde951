"""One process at a time in a folder, and nothing left behind that was not asked for."""

import subprocess
import sys

import pytest

from vicinal.checks import InputError
from vicinal.cli.folders import locked
from vicinal.cli.run_folder import next_folder

HOLDER = """
import sys, time
from pathlib import Path
from vicinal.cli.folders import locked
with locked(Path(sys.argv[1])):
    print("inside", flush=True)
    time.sleep(600)
"""


def test_a_folder_in_use_is_left_alone_until_its_process_ends_however_it_ends(
    vicinal, files, tmp_path
):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "busy")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "inside\n"
            code, _, err = vicinal("audit", files / "train.npz", "-o", "busy", "--k", "5")
            assert code == 2
            assert "busy is in use by another process. Wait for it, or give another --out." in err
        finally:
            holder.kill()
    assert (tmp_path / "busy" / ".lock").exists()
    with locked(tmp_path / "busy"):
        pass
    assert list((tmp_path / "busy").iterdir()) == []


def stopped_by(error, place):
    with locked(place) as folder:
        (folder / ".work").mkdir()
        raise error


def test_bad_input_leaves_no_folder_that_was_not_there_before(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("new/inner", "old"):
        with pytest.raises(InputError, match="wrong"):
            stopped_by(InputError("wrong"), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_what_an_interrupted_run_left_is_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stopped_by(KeyboardInterrupt(), next_folder(tmp_path, "run"))
    assert [path.name for path in (tmp_path / "run-0001").iterdir()] == [".work"]
    with locked(next_folder(tmp_path, "run")) as folder:
        assert folder == tmp_path / "run-0001"


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file. Give a folder"), locked(tmp_path / "file"):
        pass
    with pytest.raises(InputError, match="cannot write to --out"), locked(tmp_path / "file" / "x"):
        pass
