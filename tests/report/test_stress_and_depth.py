"""The charts of the stress and of the layers, and what they say in words."""

import dataclasses
import itertools
import re

import pytest

from report.synthetic import image_audit
from vicinal.audits.sections import Layer
from vicinal.report import facts
from vicinal.report.figures import depth, stress
from vicinal.report.page import render


@pytest.fixture(scope="module")
def audit():
    return image_audit()[0]


def test_every_perturbation_has_a_bar_of_verdicts_and_a_dot_at_its_accuracy(audit):
    chart = stress.verdicts_under_stress(audit.stress)
    drawn = str(chart.svg)
    shown = sum(share > 0 for row in audit.stress.results for share in row.verdicts.values())
    assert drawn.count('class="bar stack-') == shown
    places = [float(x) for x in re.findall(r'class="dot chosen" cx="([\d.]+)"', drawn)]
    left, right = stress.LEFT, 540 - stress.RIGHT
    assert places == pytest.approx(
        [left + (right - left) * row.accuracy for row in audit.stress.results], abs=0.01
    )
    assert len(chart.rows) == len(audit.stress.results)
    assert {len(line) for line in chart.rows} == {len(chart.columns)}


def test_the_sentences_name_the_worst_what_slips_through_and_the_worst_case(audit):
    worst, slips, attacked = facts.stress_sentences(audit)
    assert "fog, severity 5" in worst
    assert "from 96.0 % to 40.0 %" in worst
    assert "4.0 % of 120 rows are wrong and called supported" in slips
    assert "lower their accuracy from 95.0 % to 50.0 %" in attacked
    assert facts.stress_sentences(dataclasses.replace(audit, stress=None)) == []


def test_the_page_shows_the_worst_case_before_and_after(audit):
    page = render(audit)
    assert page.count('<img src="data:image/png;base64,') == 2
    assert "fog, severity 5: rows that were right" in page


def test_layers_are_drawn_by_depth_as_a_share_of_chance_with_their_intervals(audit):
    chart = depth.layers(audit.layers)
    assert [row[0] for row in chart.rows] == ["conv1", "layer2", "embedding"]
    assert [row[1] for row in chart.rows] == ["86.4 %", "54.5 %", "13.6 %"]
    drawn = str(chart.svg)
    assert drawn.count("whisker") == 3
    heights = [float(y) for y in re.findall(r'class="dot main" cx="[\d.]+" cy="([\d.]+)"', drawn)]
    assert heights == sorted(heights)  # the first layer on top


def test_a_layer_at_chance_has_no_finite_temperature_and_is_drawn(audit):
    layers = (Layer("noise", 2.2, 2.2, None, 50, 0.1), Layer("one class", 0.0, 0.0, 1.0, 50))
    chart = depth.layers(layers)
    assert chart.rows[0][6] == "∞"
    assert chart.rows[1][1] == "–"
    assert depth.layer_history(layers) is None


def test_the_history_has_a_line_a_layer_and_labels_that_do_not_overlap(audit):
    chart = depth.layer_history(audit.layers)
    assert str(chart.svg).count("<polyline") == 3
    assert len(chart.rows) == 9
    many = [dataclasses.replace(layer, name=f"l{i}") for i in range(4) for layer in audit.layers]
    drawn = str(depth.layer_history(tuple(many)).svg)
    heights = [float(y) for y in re.findall(r'x="430" y="([\d.]+)"', drawn)]
    assert len(heights) == 12
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 14
    assert max(heights) < 270 - 24
