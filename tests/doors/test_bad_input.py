"""Wrong words, wrong places and the user's own mistakes: one sentence, exit code 2, no trace."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from doors.attempts import Tally, said, snapshot
from doors.mutations import npy_bytes

OPTIONS = [
    "audit t.npz --seed -1", "audit t.npz --seed 99999999999", "audit t.npz --k ²",
    "audit t.npz --k 0", "audit t.npz --k -1", "audit t.npz --k 1e3", "audit t.npz --k 99999999999",
    "audit t.npz --seed 1_0", "audit t.npz --seed ٣", "audit t.npz --max-mb 1_0",
    "audit t.npz --recall 0.9_8", "audit t.npz --recall", "compare run run --out=",
    "audit t.npz --max-mb 0", "audit t.npz --max-mb nan", "audit t.npz --max-mb -3",
    "audit t.npz --max-mb inf", "audit t.npz --target-accuracy nan",
    "audit t.npz --target-accuracy 1", "audit t.npz --prior x", "audit t.npz --metric x",
    "audit photos photos --model net.py:make --size -3",
    "audit photos photos --model net.py:make --size 999999",
    "audit t.npz --embedding-key nothing", "audit t.csv --embedding-key label",
    "audit t.csv --embedding-key nothing", "audit t.csv --label-key nothing",
    "audit t.npz --labels nothing.txt", "audit t.npz --labels photos",
    "audit t.npz --config x.json", "audit t.npz --config photos", "audit t.npz --calib nothing.npz",
    "audit t.npz q.npz extra",
    "audit", "audit t.npz --pool x", "audit t.npz --image-col Z -o new", "audit net.py",
    "fit t.npz --k 0", "fit t.npz --k -5", "fit t.npz --target-accuracy 2", "fit t.npz --metric x",
    "fit t.npz --target-accuracy nan", "fit z.npy", "fit q.npz --calib photos",
    "predict trust.vic q.npz --head -1", "predict t.npz q.npz", "predict photos q.npz",
    "predict trust.vic photos", "predict trust.vic trust.vic", "predict net.py q.npz",
    "explore run --port 70000", "explore run --port -1", "explore photos", "explore nothing",
    "compare run nothing", "compare run photos", "compare run run --seed -1",
    "compare run run --fail-if x", "compare run run --fail-if ³", "compare t.npz run",
    "layers net.py:make --input x", "layers net.py:make --input 0", "layers net.py:make --input -4",
    "layers net.py:make --input 99999,99999,99999", "layers net.py:make --input ²",
    "layers net.py:none", "layers none.py:make", "layers photos", "layers t.npz", "layers :",
    "layers net.py:", "layers net.py:make --weights t.npz", "layers net.py:make --weights photos",
    "layers net.py:make --model-arg width", "layers net.py:make --model-arg height=2",
    "layers net.py:make --model-arg width=x", "layers torch:zeros", "layers os:system",
    "embed net.py:make t.npz --batch-size 0", "embed net.py:make t.npz --device nothing",
    "embed net.py:make t.npz --layer fc -o new", "embed net.py:make photos -o new",
    "embed net.py:make nothing -o new", "embed net.py:make net.py:nothing -o new",
    "embed net.py:make t.npz --pool x", "check", "check nothing", "check net.py", "check z.npy+",
    "check z.npy+z.npy+z.npy", "check t.npz z.npy --metric x", "demo --seed -1", "nothing",
    "--nothing", "check ", "layers net.py:make --input ", "audit t.npz --weights w.pt",
    "audit t.npz --media-root nothing", "predict trust.vic q.npz --embedding x",
    "compare run run --fail-if ece>1e999",
]  # fmt: skip


def test_words_out_of_range_or_out_of_place_earn_a_sentence(world):
    tally = Tally("options")
    for line in OPTIONS:
        tally.attempt(world, line, *line.split(" "))  # with what is empty
    assert tally.counts["accepted"] == 0
    tally.check()


MODELS = {
    "syntax": "def make(:\n", "import": "import nothing_of_that_name\n\ndef make(): pass\n",
    "raises": "def make():\n    return 1 / 0\n", "exits": "import sys\nsys.exit(3)\n",
    "leaves": "import sys\n\ndef make():\n    sys.exit('bye')\n", "none": "def make(): pass\n",
    "memory": "def make():\n    raise MemoryError\n",
    "os": "def make():\n    raise OSError(5, 'no')\n",
    "deep": "def make():\n    return make()\n", "nul": "x = '\0'\n",
    "stop": "raise StopIteration\n",
    "forward": "from torch import nn\n\nclass make(nn.Module):\n    def forward(self, x):\n"
               "        raise KeyError('mine')\n",
    "quits": "from torch import nn\n\nclass make(nn.Module):\n    def forward(self, x):\n"
             "        raise SystemExit(0)\n",
    "shape": "from torch import nn\n\nclass make(nn.Module):\n    def forward(self, x):\n"
             "        return {'a': x}\n",
    "assert": "from torch import nn\n\nclass make(nn.Module):\n    def forward(self, x):\n"
              "        assert x.ndim == 9, 'nine'\n",
}  # fmt: skip


@pytest.mark.parametrize("verb", ["layers", "embed", "audit"])
def test_errors_of_the_users_own_code_are_shown_as_theirs(world, tmp_path, verb):
    tally = Tally(f"models, {verb}")
    extra = {"layers": ["--input", "4"], "embed": [world / "t.npz", "-o", "new"],
             "audit": ["-o", "new", "--k", "3"]}[verb]  # fmt: skip
    for name, text in MODELS.items():
        (tmp_path / f"{name}_net.py").write_text(text)
        spec = f"{name}_net.py:make"
        words = [verb, world / "t.npz", world / "q.npz", "--model", spec] if verb == "audit" else [
            verb, spec]  # fmt: skip
        answer = tally.attempt(tmp_path, name, *words, *extra)
        if name in ("syntax", "import", "raises", "forward", "quits"):
            assert f"{name}_net.py, line " in answer.err, answer.err
    tally.check()


def test_a_data_set_of_the_users_that_fails_late_is_theirs_too(world, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass rows(torch.utils.data.Dataset):\n    def __len__(self): return 20\n"
        "    def __getitem__(self, i):\n        if i > 11: raise KeyError(i)\n"
        "        return torch.ones(4) * i, i % 3\n"
    )
    tally = Tally("data sets")
    words = ["embed", f"{world}/net.py:make", "mine.py:rows", "-o", "new", "--batch-size", "2"]
    answer = tally.attempt(tmp_path, "late", *words)
    assert "KeyError: 12" in answer.err
    assert "mine.py, line 5" in answer.err
    tally.check()


@pytest.mark.parametrize("how", ["raise KeyError(0)", "raise SystemExit(0)"])
def test_a_model_that_fails_late_leaves_no_work_in_the_folder_of_the_old_run(world, tmp_path, how):
    shutil.copytree(world / "run", tmp_path / "run")
    (tmp_path / "late.py").write_text(
        "from torch import nn\nclass make(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.a, self.seen = nn.Linear(4, 3), 0\n"
        "    def forward(self, x):\n        self.seen += len(x)\n"
        f"        if self.seen > 30: {how}\n        return self.a(x)\n"
    )
    tally = Tally("late")
    words = ["audit", world / "t.npz", world / "q.npz", "--model", "late.py:make", "-o", "run"]
    answer = tally.attempt(tmp_path, how, *words)
    assert answer.code == 2
    assert "late.py, line 8" in answer.err
    tally.check()


def test_layers_of_unknown_size_are_listed_after_a_first_input(world, tmp_path):
    (tmp_path / "lazy.py").write_text("from torch import nn\ndef make(): return nn.LazyLinear(3)\n")
    assert "--input" in said(tmp_path, "layers", "lazy.py:make").sentence
    assert said(tmp_path, "layers", "lazy.py:make", "--input", "4").code == 0


FILES = {
    "empty.csv": "", "word.csv": "a,label\n" + "1,x\n" * 300 + "one,x\n", "head.csv": "a,b\n",
    "twice.csv": "a,a,label\n1,2,x\n", "marks.csv": "a,label\n1,³\nx,4\n",
    "nul.csv": "a,label\n\0,1\n",
    "quote.csv": 'a,label\n"1,2\n', "list.jsonl": "[1, 2]\n[3, 4]\n", "number.jsonl": "3\n",
    "deep.jsonl": "[" * 100000, "ragged.jsonl": '{"Z": [1, 2]}\n{"Z": [1]}\n',
    "words.jsonl": '{"embedding": ["a"], "label": 1}\n', "mixed.jsonl":
    '{"embedding": [1], "label": 1}\n{"embedding": [2], "label": "1"}\n',
    "huge.jsonl": '{"embedding": [1' + "0" * 400 + '], "label": 1}\n', "blank.jsonl": "\n\n",
    "label.jsonl": '{"embedding": [1], "label": [1]}\n', "none.jsonl": '{"embedding": null}\n',
    "x.tsv": "a\tb\n1\n", "empty.parquet": "", "empty.npz": "", "empty.npy": "", "empty.vic": "",
    "zero.jsonl": '{"embedding": [1], "label": 1}\nnull\n', "latin.csv": b"a,label\n1,\xff\n",
    "claim.npy": npy_bytes(shape="(10000000000000, 8)"), "words.npy": npy_bytes(descr="'<U1'"),
    "void.npy": npy_bytes(descr="'|V4'"),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["check", "audit", "fit", "predict"])
def test_files_with_one_thing_wrong_earn_a_sentence(world, tmp_path, verb):
    tally = Tally(f"files, {verb}")
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        words = [verb, *([world / "trust.vic"] if verb == "predict" else []), name]
        answer = tally.attempt(tmp_path, name, *words)
        assert answer.code == 2, name
    tally.check()


def test_places_where_nothing_can_be_written_earn_a_sentence(world, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("x")
    long = "n" * 300
    tally = Tally("outputs")
    deep = "n/" * 2000  # as many folders as no recursion climbs
    for out in ("file", "file/below", "file/a/b", long, deep, f"folder/{long}", "folder"):
        tally.attempt(tmp_path, out, "audit", world / "t.npz", "--k", "3", "-o", out)
        tally.attempt(tmp_path, out, "embed", f"{world}/net.py:make", world / "t.npz", "-o", out)
        if out != "folder":
            tally.attempt(tmp_path, out, "compare", world / "run", world / "run", "-o", out)
    for out in ("folder", "file/x", "no/x", long):
        tally.attempt(tmp_path, out, "fit", world / "t.npz", "--k", "3", "-o", f"{out}.vic"[:-4])
        for flag in ("-o", "--jsonl"):
            words = ["predict", world / "trust.vic", world / "q.npz", flag, out]
            tally.attempt(tmp_path, out, *words)
    os.mkfifo(tmp_path / "pipe.vic")  # a rename would take its place, as that of /dev/null
    (tmp_path / "folder.vic").mkdir()
    for out in ("folder.vic", "pipe.vic", "file/x.vic", f"{long}.vic"):
        tally.attempt(tmp_path, out, "fit", world / "t.npz", "--k", "3", "-o", out)
    assert tally.counts["accepted"] == 0
    tally.check()


def test_lines_on_stdin_that_are_no_rows_earn_a_sentence(world, tmp_path, monkeypatch):
    import io

    tally = Tally("stdin")
    for line in ("x", "{}", "[1, 2]", '["a"]', "3", "null", "[[1]]", "[]", '{"embedding": {}}',
                 "[" * 99999, "[1e999, 1, 1, 1]", '{"embedding": "[1]"}',
                 "[true, 1, 1, 1]", "", "\n\n"):  # fmt: skip
        monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
        tally.attempt(tmp_path, line[:20], "predict", world / "trust.vic", "-")
    assert tally.counts["accepted"] == 0
    tally.check()


def test_a_folder_name_that_is_no_text_is_a_folder_name(world, tmp_path):
    name = os.fsdecode(b"bad\xff")
    (tmp_path / name).mkdir()
    np.savez(tmp_path / name / "t.npz", **np.load(world / "t.npz"))
    for words in (
        ["check", f"{name}/t.npz", "--json"],
        ["audit", f"{name}/t.npz", "--k", "3", "-o", f"{name}/run"],
        ["fit", f"{name}/t.npz", "--k", "3", "-o", f"{name}/t.vic"],
        ["predict", f"{name}/t.vic", f"{name}/t.npz", "-o", f"{name}/p.csv"],
    ):
        assert said(tmp_path, *words).code == 0
    assert said(tmp_path, "check", f"{name}/none.npz").sentence is not None


def test_a_run_whose_pictures_are_missing_leaves_the_old_run_as_it_was(world, tmp_path):
    rows = [f"{i * i},{i % 2},{i % 2}.png,{'ab'[i % 2]}" for i in range(30)]
    (tmp_path / "t.csv").write_text("x,y2,path,label\n" + "\n".join(rows) + "\n")
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_bytes((world / "photos" / "cat" / name).read_bytes())
    assert said(tmp_path, "audit", "t.csv", "--k", "3", "-o", "run").code == 0
    tally = Tally("missing pictures")
    (tmp_path / "1.png").write_bytes(b"none")
    tally.attempt(tmp_path, "broken", "audit", "t.csv", "--k", "4", "-o", "run")
    (tmp_path / "1.png").unlink()
    tally.attempt(tmp_path, "missing", "audit", "t.csv", "--k", "4", "-o", "run")
    os.mkfifo(tmp_path / "1.png")
    tally.attempt(tmp_path, "pipe", "audit", "t.csv", "--k", "4", "-o", "run")
    assert tally.counts["sentences"] == 3
    tally.check()


def test_a_check_opens_the_pictures_too(world, tmp_path):
    shutil.copytree(world / "photos", tmp_path / "photos")
    assert said(tmp_path, "check", "photos").code == 0
    whole = (tmp_path / "photos" / "dog" / "1.png").read_bytes()
    tally = Tally("pictures, check")
    for wrong in (b"", b"none", whole[:50], whole[:40]):
        (tmp_path / "photos" / "dog" / "1.png").write_bytes(wrong)
        tally.attempt(tmp_path, wrong[:8], "check", "photos")
    assert tally.counts["sentences"] == 4
    tally.check()


def test_a_page_that_cannot_be_small_enough_is_a_sentence(world, tmp_path):
    before = snapshot(tmp_path)
    words = ["audit", world / "t.npz", "--k", "3", "-o", "run", "--max-mb", "0.1"]
    answer = said(tmp_path, *words)
    assert answer.code == 2
    assert "has no room for this audit even without cards" in answer.err
    assert snapshot(tmp_path) == before


def test_an_error_of_ours_in_a_folder_without_room_for_its_log_is_told_once(world, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("vicinal.cli.check.read_rows", broken)
    monkeypatch.setattr(
        "pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, ""))
    )
    answer = said(world, "check", "t.npz")
    assert answer.code == 3
    assert "No log of it could be written here." in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("device", ["/dev/full"])
def test_a_full_standard_output_is_a_sentence(world, device):
    if not os.path.exists(device):
        pytest.skip(f"no {device} here")
    command = [sys.executable, "-m", "vicinal.cli", "check", "t.npz", "--json"]
    with open(device, "w") as full:
        done = subprocess.run(
            command, cwd=world, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_config_may_not_be_out_of_range_either(world, tmp_path):
    for setting in ({"seed": -1}, {"max_mb": -2.0}, {"size": 0}, {"normalize": "no"}, {"k": "²"},
                    {"seed": 2**40}, {"model": "a\0b"}, {"target_accuracy": 7.0}):  # fmt: skip
        (tmp_path / "c.json").write_text(json.dumps({"support": f"{world}/t.npz", **setting}))
        before = snapshot(tmp_path)
        answer = said(tmp_path, "audit", "-", "--config", "c.json", "-o", "new")
        assert (answer.code, snapshot(tmp_path)) == (2, before), (setting, answer.err)
        assert answer.sentence is not None
