"""A seeded slice of what ``python -m fuzz`` draws at length: an answer or a sentence, no else."""

import pytest

from fuzz.targets import run

COUNTS = {"audit": 90, "ned": 500, "loss": 1000}
COUNTS |= {"measure": 300, "interval": 100, "conformal": 100, "kernel": 120, "formula": 100}


@pytest.mark.parametrize("name", COUNTS)
def test_whatever_is_passed_is_answered_or_refused_with_a_sentence(name):
    outcomes = run(name, COUNTS[name], 14)
    assert outcomes.counts["else"] == 0, str(outcomes)
    assert outcomes.counts["answers"] > COUNTS[name] / 10, str(outcomes)
    assert outcomes.counts["sentences"] > COUNTS[name] / 20, str(outcomes)
