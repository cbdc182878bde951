from __future__ import annotations

import pytest
from experiments.charpiat2019similarity import fig04_09_10_sinusoid
from experiments.charpiat2019similarity.sinusoid import slope
from experiments.data import Source


def test_a_harder_sinusoid_leaves_fewer_neighbors_by_every_estimator():
    found = fig04_09_10_sinusoid.run(fig04_09_10_sinusoid.PRESETS["quick"], 0, Source())
    assert max(found["error"]) < 0.05
    assert all(hard < easy for easy, hard in found["counts"].values())
    assert all(value < -0.3 for value in found["slopes"].values())


def test_the_slope_of_one_over_f_is_minus_one():
    assert slope((1, 2, 3), [12.0, 6.0, 4.0]) == pytest.approx(-1)
