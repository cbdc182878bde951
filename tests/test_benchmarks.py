"""The page of benchmarks says what the results say, and every question can be asked quickly."""

import inspect
import json

import pytest
from benchmarks import page
from benchmarks.__main__ import QUESTIONS, importlib


def test_the_page_is_what_the_results_say():
    assert page.PAGE.read_text() == page.text()


def test_a_goal_is_met_missed_or_not_measured(tmp_path):
    (tmp_path / "before.json").write_text("{}")
    snnl = {
        "machine": {"date": "today"},
        "results": {"n=64": {"faster": 0.5}, "n=512": {"faster": 2}},
    }
    (tmp_path / "what_does_snnl_cost.json").write_text(json.dumps(snnl))
    found = {row[0]: row[1:] for row in page.rows(tmp_path)}
    assert found["SNNL, n=64, against dense autograd"] == ("0.5×", "≥ 1×", "**no**", "", "today")
    assert found["SNNL, n=512, against dense autograd"][2] == "yes"
    assert found["SNNL, n=4096, against dense autograd"][0] == "not measured"


def test_every_goal_belongs_to_a_question_and_every_earlier_number_to_a_goal():
    assert {goal.question for goal in page.GOALS} <= set(QUESTIONS)
    earlier = json.loads((page.RESULTS / "before.json").read_text())
    assert set(earlier) <= {goal.what for goal in page.GOALS}


@pytest.mark.parametrize("question", ["what_does_a_training_step_cost", page.ZOO])
def test_a_question_can_be_asked_quickly(question):
    main = importlib.import_module(f"benchmarks.{question}").main
    assert list(inspect.signature(main).parameters)[:2] == ["quick", "data"]
