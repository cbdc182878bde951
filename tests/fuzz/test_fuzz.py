"""A seeded slice of what ``python -m fuzz`` draws at length: an answer or a sentence, no else.

Hypothesis draws with the constants of the modules that are loaded: each generator has a process of
its own, so that a seed means the same draws beside any other test.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COUNTS = {"audit": 90, "ned": 500, "loss": 1000}
COUNTS |= {"measure": 300, "interval": 100, "conformal": 100, "kernel": 120, "formula": 100}
LINE = re.compile(r"tried +(\d+) +answers +(\d+) +sentences +(\d+) +else +(\d+)")


@pytest.mark.parametrize("name", COUNTS)
def test_whatever_is_passed_is_answered_or_refused_with_a_sentence(name):
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz", name, str(COUNTS[name]), "14"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    counted = LINE.search(ran.stdout)
    assert counted, ran.stdout + ran.stderr
    tried, answers, sentences, others = map(int, counted.groups())
    assert others == 0, ran.stdout
    assert tried == COUNTS[name]
    assert answers > tried / 10, ran.stdout
    assert sentences > tried / 20, ran.stdout
