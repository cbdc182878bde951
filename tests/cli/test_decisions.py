"""Decisions about labels, exported from the page, carried out by the next audit."""

import csv
import json
import os

import numpy as np
import pytest

from vicinal.studies import Audit


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path, lines):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)
    return path


def exported(run_folder):
    """What the page exports when every suspect is relabeled but the first, which is kept."""
    lines = []
    for at, suspect in enumerate(rows(run_folder / "suspects.csv")):
        kind = "relabel" if at else "keep"
        label = suspect["suggested" if at else "given"]
        kept = {key: suspect[key] for key in ("id", "row", "given", "suggested")}
        lines.append({**kept, "decision": kind, "label": label})
    return lines


def test_decided_labels_are_applied_written_down_and_audited(vicinal, files, run_folder, tmp_path):
    lines = exported(run_folder)
    write(tmp_path / "decisions.csv", lines)
    sets = (files / "train.npz", files / "test.npz")
    code, out, _ = vicinal("audit", *sets, "--apply", "decisions.csv", "-o", "mended")
    assert code == 0
    assert "labels_cleaned.csv" in out
    assert f"{len(lines) - 1} of 400 labels change" in out
    cleaned = rows(tmp_path / "mended" / "labels_cleaned.csv")
    assert list(cleaned[0]) == ["id", "label", "was", "why"]
    before = np.load(files / "train.npz")["y"]
    assert [row["was"] for row in cleaned] == [str(y) for y in before]
    new = {line["id"]: line["label"] for line in lines[1:]}
    assert [row["label"] for row in cleaned] == [new.get(r["id"], r["was"]) for r in cleaned]
    assert {row["why"] for row in cleaned} == {
        "", "keep in decisions.csv", "relabel in decisions.csv"
    }  # fmt: skip
    audit = Audit.from_json((tmp_path / "mended" / "audit.json").read_text())
    assert [audit.classes[c] for c in audit.labels.rows.given] == [r["label"] for r in cleaned]
    assert json.loads((tmp_path / "mended" / "config.json").read_text())["apply"]
    # The next run in the folder has no decisions: no file says it had.
    assert vicinal("audit", *sets, "-o", "mended", "-q")[0] == 0
    assert not (tmp_path / "mended" / "labels_cleaned.csv").exists()


def test_the_json_of_the_page_does_as_well_and_names_of_classes_are_read(vicinal, files, tmp_path):
    (tmp_path / "names.txt").write_text("".join(f"=digit {c}\n" for c in range(10)))
    y = np.load(files / "train.npz")["y"]
    found = {
        "id": "3", "row": 3, "given": f"=digit {y[3]}", "affected": None,
        "decision": "relabel", "label": f"=digit {(y[3] + 9) % 10}",
    }  # fmt: skip
    decisions = {"audit": "x", "suspects": [found, {**found, "id": "4", "row": 4, "decision": "",
                                                    "given": f"=digit {y[4]}"}]}  # fmt: skip
    (tmp_path / "d.json").write_text(json.dumps(decisions))
    code, _, err = vicinal(
        "audit", files / "train.npz", "--labels", "names.txt", "--apply", "d.json", "-o", "r", "-q"
    )
    assert code == 0, err
    cleaned = rows(tmp_path / "r" / "labels_cleaned.csv")
    changed = [row["id"] for row in cleaned if row["label"] != row["was"]]
    assert changed == ["3"]
    assert cleaned[3]["label"] == str((y[3] + 9) % 10)


def test_a_models_inputs_are_relabeled_too(vicinal, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), "
        "torch.nn.Linear(8, 2))\n"
    )
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.normal(size=(80, 4)).astype(np.float32) + 3 * y[:, None]
    names = np.array(["cat", "dog"])
    np.savez(tmp_path / "train.npz", X=x[:50], y=names[y[:50]])
    np.savez(tmp_path / "test.npz", X=x[50:], y=names[y[50:]])
    write(tmp_path / "d.csv", [{"id": "0", "decision": "relabel", "label": "dog"}])
    code, _, err = vicinal(
        "audit", "train.npz", "test.npz", "--model", "net.py:make", "--apply", "d.csv",
        "-o", "r", "-q", "--k", "10",
    )  # fmt: skip
    assert code == 0, err
    audit = Audit.from_json((tmp_path / "r" / "audit.json").read_text())
    assert audit.classes[audit.labels.rows.given[0]] == "dog"
    assert rows(tmp_path / "r" / "labels_cleaned.csv")[0]["was"] == "cat"


GOOD = {"id": "b", "given": "1", "decision": "relabel", "label": "2"}
WRONG = [
    ([{**GOOD, "id": "zz"}], "no row of the support has the id 'zz'"),
    ([{**GOOD, "row": "99"}], "there is no row 99; the support has 60 rows"),
    ([{**GOOD, "row": "²"}], "there is no row ²; the support has 60 rows"),
    ([{**GOOD, "row": "9" * 5000}], "there is no row 99999"),
    ([{**GOOD, "row": "3"}], "row 3 of the support has the id d, not b"),
    ([GOOD, {**GOOD, "decision": "keep"}], "row 1 (id b) is decided twice"),
    ([{**GOOD, "label": "cat"}], "label 'cat' is no class of the support"),
    ([{**GOOD, "given": "2"}], "b was '2' when it was decided and is '1' in the support"),
    ([{**GOOD, "decision": "relable"}], "Did you mean 'relabel'?"),
    ([{"id": "b", "label": "2"}], "needs the columns decision and id (or row)"),
    ([{**GOOD, "id": "twin"}], "2 rows have the id 'twin'. Add a column row"),
    (None, "no such file: d.csv"),
]


@pytest.mark.parametrize(("lines", "sentence"), WRONG, ids=[s[:24] for _, s in WRONG])
def test_a_wrong_decision_earns_a_sentence_and_nothing_is_written(
    vicinal, tmp_path, lines, sentence
):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    ids = np.array([*"abcdefgh", "twin", "twin", *(f"r{i}" for i in range(10, 60))])
    np.savez(tmp_path / "t.npz", Z=rng.normal(size=(60, 4)) + y[:, None], y=y, ids=ids)
    if lines is not None:
        write(tmp_path / "d.csv", lines)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = vicinal("audit", "t.npz", "--apply", "d.csv", "-o", "run")
    assert code == 2
    assert sentence in " ".join(err.split())
    assert out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_what_is_no_table_of_decisions_is_not_read_as_one(vicinal, files, tmp_path):
    deep, twice = "[" * 100_000, "id,id,decision\na,b,keep\n"
    wrong = [("d.json", text) for text in ("{", "[1]", "7", deep)]
    wrong += [("d.csv", "id,decision\na,keep,1\n"), ("d.csv", twice), ("pipe.csv", None)]
    for name, text in wrong:
        if text is None:
            os.mkfifo(tmp_path / name)  # whoever reads it waits for ever
        else:
            (tmp_path / name).write_text(text)
        code, _, err = vicinal("audit", files / "train.npz", "--apply", name, "-o", "r")
        assert code == 2
        assert name in err
