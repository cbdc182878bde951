"""What would be read as another number, or compared with the wrong one, is said or set right."""

import numpy as np
import pytest

from doors.attempts import said
from vicinal.cli.explore import judge_of
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import ExploreOptions
from vicinal.confidence import load

LINES = [f"{i % 3},{i * 7 % 5}.5,{100 + i * 3 % 11},c{i % 3}" for i in range(12)]


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,label", *LINES, ""]))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b,c,label\n1_0,2,3,x\n1,2,3,y\n1,2,3,y\n", "'1_0' is no number"),
        ("1.5,0.2,3,x\n1,2,3,y\n", "is data, not the names of the columns"),
        ("0.1,-0.2,0.3\n1,2,3\n", "is data, not the names of the columns"),
    ],
)
def test_a_table_of_slips_is_refused(table, text, why):
    (table / "bad.csv").write_text(text)
    answer = said(table, "check", "bad.csv")
    assert answer.code == 2
    assert why in answer.sentence
    assert "bad.csv" in answer.sentence or "row 0" in answer.sentence


@pytest.mark.parametrize("heading", ["0,1,2,label", "400.5,401.0,402.5,label", "e.1,e.2,e.3,label"])
def test_columns_that_are_called_by_numbers_are_read(table, heading):
    (table / "t.csv").write_text("\n".join([heading, *LINES, ""]))
    assert said(table, "check", "t.csv").code == 0


def test_truth_values_are_no_numbers_of_an_embedding(table):
    (table / "t.jsonl").write_text('{"embedding": [1, 2]}\n{"embedding": [true, 2]}\n')
    assert "is no list of numbers" in said(table, "check", "t.jsonl").sentence


def turned(line):
    a, b, c, label = line.split(",")
    return f"{c},{label},{a},{b}"


def test_columns_are_compared_by_their_names(table):
    """A query whose columns stand in another order gets the answers of one in the same order."""
    (table / "turned.csv").write_text("\n".join(["c,label,a,b", *map(turned, LINES), ""]))
    assert said(table, "fit", "t.csv", "--k", "3", "-o", "h.vic", "-q").code == 0
    assert load(table / "h.vic").made_from.features == ("a", "b", "c")
    for name in ("t", "turned"):
        assert said(table, "predict", "h.vic", f"{name}.csv", "-o", f"{name}.out").code == 0
    assert (table / "t.out").read_text() == (table / "turned.out").read_text()
    assert said(table, "check", "t.csv", "turned.csv").code == 0


def test_columns_of_other_names_are_refused(table):
    (table / "other.csv").write_text("\n".join(["a,b,d,label", *LINES, ""]))
    assert said(table, "fit", "t.csv", "--k", "3", "-o", "h.vic", "-q").code == 0
    calls = ["audit t.csv other.csv -o new", "check t.csv other.csv",
             "predict h.vic other.csv", "fit t.csv --calib other.csv -o h.vic"]  # fmt: skip
    for call in calls:
        assert "the numeric column 'd'" in said(table, *call.split()).sentence


def test_rows_of_a_normalized_run_are_judged_alike_by_explore_and_by_predict(table):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    z = rng.normal(size=(40, 3)) + 4 * np.eye(3)[y]
    np.savez(table / "z.npz", Z=z, y=y)
    audit = ["audit", "z.npz", "-o", "run", "-q", "--normalize", "--space", "raw", "--map", "none"]
    assert said(table, *audit).code == 0
    judge = judge_of(read_run(table / "run"), ExploreOptions(folder=table / "run"))
    near, far = (judge("rows.txt", f"{5 * s},{s},{s}".encode())[0] for s in (1, 100))
    assert near["neighbors"] == far["neighbors"]
    assert near["confidence"] == pytest.approx(far["confidence"])
    np.savez(table / "z0.npz", Z=np.zeros((1, 3)))
    zero = said(table, "predict", "run/trust.vic", "z0.npz")
    assert zero.code == 2
    with pytest.raises(ValueError, match="no direction"):
        judge("rows.txt", b"0,0,0")
