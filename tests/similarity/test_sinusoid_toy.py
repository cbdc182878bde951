from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "experiments" / "charpiat2019similarity" / "figD_sinusoid_toy.py"


@pytest.fixture(scope="module")
def toy():
    import sys

    spec = importlib.util.spec_from_file_location("figD_sinusoid_toy", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_harder_sinusoid_leaves_fewer_neighbors_by_every_estimator(toy):
    found = toy.run(toy.QUICK)
    assert max(found["error"].values()) < 0.05
    easy, hard = found["counts"][1], found["counts"][4]
    assert all(hard[name] < easy[name] for name in toy.ESTIMATORS)
    assert all(slope < -0.3 for slope in found["slope"].values())


def test_the_slope_of_one_over_f_is_minus_one(toy):
    assert toy.slope([(1, 12.0), (2, 6.0), (3, 4.0)]) == pytest.approx(-1)
