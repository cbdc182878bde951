"""What the page says, before it is a page: sentences, limits, which cards are kept."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch

from report.synthetic import image_audit, table_audit, text_audit, unlabeled
from vicinal.audits.label_records import WrongCount
from vicinal.audits.record import Media
from vicinal.audits.sections import Histogram, LinearMap, Recommendation, ReliabilityBin
from vicinal.report import appearance, facts, opening, payload, words
from vicinal.report.figures import structure, trust
from vicinal.report.figures.points import on_steps
from vicinal.report.figures.reliability import FEW, close_reliability, reliability
from vicinal.report.page import render
from vicinal.report.svg import Plot, ticks


@pytest.fixture(scope="module")
def digits():
    return image_audit()


def with_head(audit, **changes):
    heads = [dataclasses.replace(h, **changes) if h.name == "ned" else h for h in audit.heads]
    return dataclasses.replace(audit, heads=heads)


def test_an_ece_at_its_noise_floor_is_said_to_be_noise(digits):
    audit = with_head(digits[0], ece=0.011, noise_floor=0.01)
    assert "within sampling noise (ECE 1.1 %, noise floor 1.0 %)" in facts.headline(audit)[0]


def test_the_page_does_not_call_few_neighbors_a_sign_of_errors(digits):
    page = re.sub(r"\s+", " ", render(*digits))
    assert "isolated" in page
    assert "By itself this is no sign of an error." in page


@pytest.mark.parametrize(
    ("gap", "word"), [(0.1, "overconfident"), (-0.1, "underconfident"), (0.01, "miscalibrated")]
)
def test_beyond_the_floor_the_side_of_the_error_is_named(digits, gap, word):
    audit = with_head(digits[0], ece=0.2, noise_floor=0.01, overconfidence=gap)
    assert f"is {word} beyond sampling noise" in facts.headline(audit)[0]


def test_when_another_head_is_better_the_first_sentence_says_so(digits):
    audit = dataclasses.replace(digits[0], recommended="softmax")
    assert "ahead of the neighbor heads: keep it" in facts.headline(audit)[0]


def test_an_ece_of_too_few_rows_is_not_printed(digits):
    audit = with_head(digits[0], ece=None, noise_floor=None)
    assert "too few labeled rows" in facts.headline(audit)[0]


def test_without_labels_nothing_is_called_safe_and_no_empty_table_is_shown(digits):
    audit = unlabeled(digits[0])
    said = facts.headline(audit)
    assert said[0].startswith("The query has no labels")
    assert "counted on rows with labels" in said[1]
    assert opening.tiles(audit)[0].title == "Supported, accuracy not measured"
    page = render(audit)
    assert 'class="heads"' not in page
    assert "Accuracy by credibility" not in page
    assert "precision" not in page.split('id="classes"')[1].split("</thead>")[0]
    assert "The query has no labels." in page.split('id="trust"')[1].split("<section")[0]


def test_where_the_head_is_offered_it_is_said_that_it_may_judge_the_same_rows_otherwise(digits):
    audit = digits[0]
    assert opening.actions(audit)[-1].effect.endswith(opening.SAVED_HEAD)
    data = dataclasses.replace(audit.data, calib=audit.data.query)  # then the two are one
    held = dataclasses.replace(audit, data=data)
    assert opening.SAVED_HEAD not in opening.actions(held)[-1].effect


def test_a_target_out_of_reach_is_said_to_be_out_of_reach(digits):
    curve = digits[0].risk_coverage
    missed = dataclasses.replace(curve.chosen, value=None)
    audit = dataclasses.replace(digits[0], risk_coverage=dataclasses.replace(curve, chosen=missed))
    said = facts.headline(audit)[1]
    assert said.startswith("No threshold reaches")
    best = max((t for t in curve.targets if t.value is not None), key=lambda t: t.target)
    kept = f"{100 * best.target:g} % is reachable: it accepts {100 * best.coverage:.1f} %."
    sure = f"supported have a confidence of at least {words.threshold(missed.level)}, taken"
    for text in (said, opening.ship_action(audit, "").effect):
        assert kept in text
        assert sure in text


def test_where_no_target_can_be_reached_it_is_said_what_all_inputs_keep(digits):
    curve = digits[0].risk_coverage
    missed = [dataclasses.replace(t, value=None) for t in (curve.chosen, *curve.targets)]
    curve = dataclasses.replace(curve, chosen=missed[0], targets=tuple(missed[1:]))
    audit = dataclasses.replace(digits[0], risk_coverage=curve)
    right, least = (f"{100 * of[-1]:.1f} %" for of in (curve.accuracy, curve.lower_bound))
    kept = f"Of all inputs {right} are right, at least {least} with that bound."
    assert kept in facts.headline(audit)[1]
    assert kept in opening.ship_action(audit, "").effect


def test_no_flag_is_worded_as_no_contradiction_and_never_as_clean(digits):
    labels = dataclasses.replace(digits[0].labels, suspects=(), effects=())
    audit = dataclasses.replace(digits[0], labels=labels)
    said = " ".join(facts.headline(audit))
    assert "No contradiction found among 900 support labels" in said
    assert "clean" not in said


def test_one_error_and_no_wrong_label_are_said_in_words(digits):
    audit = digits[0]
    right = [code if code is not None else 0 for code in audit.cases.label]
    right[0] = (right[0] + 1) % 10
    for verdict, said in (
        ("contested", ", with the one error."),
        ("supported", ", without the one"),
    ):
        verdicts = (verdict, *("contested",) * 2, *("supported",) * (len(right) - 3))
        cases = dataclasses.replace(audit.cases, predicted=tuple(right), verdict=verdicts)
        seen = dataclasses.replace(audit, cases=cases)
        assert said in opening.people_action(seen).effect
    none = WrongCount(0, 0, 0, "the estimated noise matrix")
    labels = dataclasses.replace(audit.labels, wrong=none, suspects=())
    lines = facts.label_sentences(dataclasses.replace(audit, labels=labels))
    assert lines[0] == f"None of {audit.labels.checked:,} is estimated to be wrong."


def test_a_promise_that_is_counted_on_labels_does_not_speak_of_all_inputs(digits):
    audit = digits[0]
    some = dataclasses.replace(audit.risk_coverage.chosen, rows=len(audit.cases.id) - 40)
    curve = dataclasses.replace(audit.risk_coverage, chosen=some)
    said = opening.ship_action(dataclasses.replace(audit, risk_coverage=curve), "").effect
    assert said.startswith(f"Accepts {words.percent(some.coverage)} of inputs with a label, at ")


def test_unknowns_are_listed_as_untested_when_no_foreign_set_was_given(digits):
    told = digits[0].credibility.detections  # of corrupted and attacked rows, not of foreign ones
    assert told
    assert digits[0].unknowns is None
    assert "unknown inputs would be caught was not tested" in render(digits[0])


def test_bins_of_few_rows_have_no_bar_but_keep_their_place_in_the_table(digits):
    head = next(h for h in digits[0].heads if h.name == "ned")
    chart = reliability(head)
    full = sum(cell.count >= FEW for cell in head.bins)
    assert str(chart.svg).count('class="bar soft"') == full
    assert len(chart.rows) == len(head.bins)


def test_confidences_that_crowd_into_one_bar_are_shown_in_groups_of_equally_many(digits):
    head = next(h for h in digits[0].heads if h.name == "ned")
    one = dataclasses.replace(head.bins[0], low=0.9, high=1.0, count=320)
    groups = [
        ReliabilityBin(0.99 + i / 1100, 0.99 + (i + 1) / 1100, 32, 0.9905 + i / 1100, 1.0, 0.9, 1.0)
        for i in range(10)
    ]
    crowd = dataclasses.replace(head, bins=[one], even_bins=groups)
    chart = reliability(crowd)
    assert str(chart.svg).count('class="dot main"') == 10
    assert ">0.997<" in str(chart.svg)  # the axis tells nines apart
    assert len(chart.rows) == 10
    places = [float(x) for x in re.findall(r'class="dot main" cx="([\d.]+)"', str(chart.svg))]
    assert places == sorted(places)
    assert places[-1] - places[0] > 200


def test_the_heat_map_prints_its_values(digits):
    record = digits[0].borders
    drawn = str(structure.borders(record, digits[0].classes).svg)
    top = record.pairs[0]
    assert drawn.count(f">{structure.heat_value(top.share)}<") >= 2


def test_borders_below_a_tenth_of_a_percent_have_their_values_too(digits):
    audit = digits[0]
    few = [dataclasses.replace(pair, share=pair.share / 500) for pair in audit.borders.pairs]
    figure = structure.borders(dataclasses.replace(audit.borders, pairs=few), audit.classes)
    top = structure.heat_value(few[0].share)
    assert few[0].share < 0.001
    assert str(figure.svg).count(f">{top}<") >= 2
    share = f"{100 * few[0].share:.3g} %"
    assert figure.rows[0][2] == share


def test_the_heat_map_is_symmetric_and_its_darkest_cell_is_the_largest_border(digits):
    record = digits[0].borders
    drawn = str(structure.borders(record, digits[0].classes).svg)
    assert drawn.count("data-pick=") == 2 * len(record.pairs)
    top = record.pairs[0]
    assert f'data-pick="pair={top.a}~{top.b}"' in drawn
    assert drawn.count('"bar heat9"') >= 2


def test_the_heat_map_has_a_scale_whose_shades_are_those_of_the_values_beside_them(digits):
    record = digits[0].borders
    drawn = str(structure.borders(record, digits[0].classes).svg)
    most = max(pair.share for pair in record.pairs)
    scale = re.findall(r'<rect class="heat(\d)" x="([\d.]+)" y="16" width="([\d.]+)"', drawn)
    numbers = re.findall(r'<text class="tick[^"]*" x="([\d.]+)" y="11">([\d.]+)(?: %)?<', drawn)
    left, middle, right = (float(x) for x, _ in numbers)
    assert middle - left == pytest.approx((right - left) / 2, abs=0.1)
    assert [float(v) for _, v in numbers] == pytest.approx([0, 25 * most, 100 * most], rel=5e-3)
    for share in np.linspace(0.001, 0.999, 50):
        at = left + (right - left) * share**0.5
        found = next(int(s) for s, x, wide in scale if float(x) <= at <= float(x) + float(wide))
        assert found == structure.heat_step(share)


def test_errors_strangers_and_suspects_come_before_all_other_cards(digits):
    audit = digits[0]
    cases = audit.cases
    urgent = {
        i
        for i, verdict in enumerate(cases.verdict)
        if cases.label[i] != cases.predicted[i] or verdict in ("unfamiliar", "isolated")
    }
    order = payload.card_order(audit)
    first = order[: len(urgent) + len(audit.labels.suspects)]
    assert {i for kind, i in first if kind == "case"} == urgent
    assert sum(kind == "suspect" for kind, _ in first) == len(audit.labels.suspects)
    assert len(order) == len(set(order)) == len(cases.id) + len(audit.labels.suspects)


def test_the_payload_stays_below_its_budget_and_says_what_it_left_out(digits):
    audit, media = digits
    everything = payload.fill(audit, media, 10**9)
    assert everything.cases == len(audit.cases.id)
    half = payload.fill(audit, media, everything.size // 2)
    assert half.size <= everything.size // 2
    assert 0 < half.cases < everything.cases
    assert half.suspects == everything.suspects


def test_a_budget_for_no_card_leaves_a_page_without_cards(digits):
    audit, media = digits
    photos = Media("images", [np.zeros((40, 40, 3), np.uint8)] * 320, media.support)
    built = payload.fill(audit, photos, 1)
    assert (built.cases, built.suspects, built.sheets) == (0, 0, ())


def test_photographs_are_packed_smaller_than_as_png(rng):
    fine = torch.rand(64, 48, 48, 3, generator=rng).numpy()
    tiles = [appearance.as_tile(appearance.as_image(picture), 48) for picture in fine]
    form = appearance.best_form(tiles, 48)
    assert form in ("WEBP", "JPEG")
    assert len(appearance.sheet(tiles, 48, form)) < len(appearance.sheet(tiles, 48, "PNG"))


def test_equal_records_give_equal_payloads(digits):
    again = image_audit.__wrapped__()
    assert payload.fill(*digits, 10**9).packed == payload.fill(*again, 10**9).packed


def test_rejections_at_each_threshold_are_the_rows_below_it(digits):
    audit = digits[0]
    curve = trust.threshold_data(audit)
    for threshold, rejected in zip(audit.risk_coverage.threshold, curve["rejected"], strict=True):
        below = sum(c < threshold for c in audit.cases.confidence)
        assert sum(rejected) == below


def test_a_picture_is_never_cropped_and_a_broken_one_is_a_gap():
    audit, _ = table_audit()
    n, m = len(audit.cases.id), audit.data.support.rows
    wide = np.zeros((10, 40, 3), np.uint8)
    broken = [b"no image", None, wide.astype(float), np.zeros((3, 16, 12)), *[wide] * (n - 4)]
    built = payload.fill(audit, Media("images", broken, [wide] * m), 10**9)
    assert '"query":[-1,-1,0,1,' in built.json.replace(" ", "")
    assert json.loads(built.json)["tiles"]["size"] == 40


def test_long_texts_are_cut_and_marked():
    audit, media = text_audit()
    long = Media("texts", ["y" * 5000] * len(audit.cases.id), media.support)
    assert "y" * appearance.TEXT_SHOWN + "…" in payload.fill(audit, long, 10**9).json


def test_ticks_lie_inside_the_axis():
    for low, high in [(0, 1), (0, 0.003), (-2, 7), (5, 5.1)]:
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks(low, high))
        assert len(ticks(low, high)) >= 3


def test_a_plot_puts_small_values_lower_and_left():
    plot = Plot()
    assert plot.sx(0) < plot.sx(1)
    assert plot.sy(0) > plot.sy(1)


def test_labels_for_charts_hold_no_direction_marks_or_line_breaks():
    assert words.short("\u202eabc\ndef") == "\ufffdabc def"


def test_numbers_for_the_script_are_rounded_as_one_by_one(rng):
    values = torch.randn(2000, generator=rng).double().numpy()
    values = np.concatenate([[0.0, 1.0, -98765.0], values * 10.0 ** (np.arange(2000) % 32 - 12)])
    assert words.four_digits(values).tolist() == [float(f"{v:.4g}") for v in values]
    lines = [tuple(values[:3]), (), tuple(values[3:20])]
    expected = [[round(v, 3) for v in line] for line in lines]
    assert words.lists(lines, words.decimals(3)) == expected
    assert words.lists([tuple(values[:4])] * 2, words.four_digits)[1] == [
        float(f"{v:.4g}") for v in values[:4]
    ]


def test_a_page_without_pictures_is_filled_up_to_its_budget(digits):
    audit = digits[0]
    everything = payload.fill(audit, None, 10**9)
    budget = everything.size // 2
    half = payload.fill(audit, None, budget)
    assert 0.8 * budget < half.size <= budget
    assert payload.guess(payload.Builder(audit, None), payload.card_order(audit), 0) == 0


def test_where_the_recommended_head_cannot_be_kept_the_headline_says_whose_the_verdicts_are(digits):
    audit = digits[0]
    other = next(h for h in audit.heads if h.name != audit.recommended)
    choice = Recommendation(audit.recommended, audit.recommended, other.name, "why")
    assert facts.kept_sentence(audit) is None
    found = facts.headline(dataclasses.replace(audit, recommendation=choice))[1]
    assert found.startswith(f"Verdicts, threshold and saved head are those of {other.title}.")


def test_suggestions_that_lower_accuracy_are_not_to_be_accepted_unseen(digits):
    audit = digits[0]

    def effect(fixed, broken):
        last = dataclasses.replace(audit.labels.effects[-1], fixed=fixed, broken=broken)
        labels = dataclasses.replace(audit.labels, effects=(last,))
        return opening.review_action(dataclasses.replace(audit, labels=labels)).effect

    assert "look at each" in effect(8, 23)
    assert "(0 fixed, 1 broken)" in effect(0, 1)
    assert "look at each" in effect(0, 1)
    assert "look at each" not in effect(23, 8)


def test_the_headline_begins_with_how_often_the_recommended_head_is_right(digits):
    head = facts.recommended(digits[0])
    first = facts.headline(digits[0])[0]
    assert f"is right on {words.percent(head.accuracy)} of the inputs with a label" in first
    assert "What the words mean" in render(digits[0])


def test_the_name_of_the_target_stands_where_no_curve_passes(digits):
    """Below its line and left of the chosen coverage, where even the bound is above the target."""
    curve = digits[0].risk_coverage
    drawn = str(trust.risk_coverage(curve).svg)
    x, y = map(float, re.findall(r'halo" x="([\d.]+)" y="([\d.]+)">target', drawn)[0])
    plot = Plot(y=(trust.lowest(curve), 1.0), height=250)
    assert curve.chosen.coverage > 0.4
    assert x < plot.sx(curve.chosen.coverage)
    assert y > plot.sy(curve.chosen.target)
    missed = dataclasses.replace(curve.chosen, value=None, coverage=None, accuracy=None)
    drawn = str(trust.risk_coverage(dataclasses.replace(curve, chosen=missed)).svg)
    assert 'class="dot mover"' in drawn


def test_long_marks_of_a_histogram_do_not_touch(digits):
    edges = tuple(0.0502 + 0.0001 * i for i in range(18))
    record = Histogram("denoising factor", edges, (1,) * 17)
    drawn = str(structure.histogram(record, "denoising", "Denoising", "").svg)
    found = re.findall(r'class="tick middle" x="([\d.]+)" y="[\d.]+">([^<]+)<', drawn)
    at, longest = [float(x) for x, _ in found], max(len(text) for _, text in found)
    assert len(at) > 1
    assert min(np.diff(at)) > 6 * longest


def test_the_data_of_a_run_name_the_foreign_set_and_stress_the_rows_ids(digits):
    audit = digits[0]
    page = render(audit)
    first = audit.stress.examples[0]
    name = audit.cases.id[first.row]
    assert f"<bdi>{'row ' + name if name.isdigit() else name}</bdi></span></li>" in page
    assert '<th scope="row">foreign</th>' not in page


def test_names_that_begin_alike_are_told_apart_in_charts(digits):
    audit = digits[0]
    long = tuple(f"pictures of handwritten digits, number {i}" for i in range(len(audit.classes)))
    drawn = str(structure.borders(audit.borders, long).svg)
    assert all(f">{words.name(text, 14)}<" in drawn for text in long)
    assert len({words.name(text, 14) for text in long}) == len(long)


def test_two_classes_have_no_heat_map_of_who_touches_whom(digits):
    assert structure.borders(digits[0].borders, ("no", "yes")) is None


def test_a_heat_map_of_many_classes_shows_those_that_touch_most_with_their_values(digits):
    pair = digits[0].borders.pairs[0]
    pairs = tuple(dataclasses.replace(pair, a=i, b=i + 1, share=(40 - i) / 800) for i in range(39))
    record = dataclasses.replace(digits[0].borders, pairs=pairs)
    chart = structure.borders(record, tuple(f"a kind of bird, {i:02d}" for i in range(40)))
    drawn = str(chart.svg)
    assert "28 classes that touch less are in the table only" in chart.note
    assert float(re.search(r'viewBox="0 0 (\d+)', drawn)[1]) <= 390  # else its words are too small
    assert drawn.count(">4.9<") == 2  # of classes 1 and 2, both ways
    assert len(chart.rows) == 39


def test_a_map_is_turned_to_lie_and_keeps_its_distances():
    """A tall map becomes a wide one; by a turn alone, so that who is near whom stays."""
    x, y = np.random.default_rng(0).normal(size=(2, 200)) * [[1], [4]]
    tall = LinearMap("linear", tuple(x), tuple(y), 0.1)
    drawn = on_steps(tall)
    a, b = np.array(drawn["x"]), np.array(drawn["y"])
    assert np.ptp(a) > 2 * np.ptp(b)
    before = np.hypot(x[:, None] - x, y[:, None] - y)
    after = np.hypot(a[:, None] - a, b[:, None] - b)
    np.testing.assert_allclose(after / after.max(), before / before.max(), atol=1e-3)


def test_marks_of_the_axis_of_nines_do_not_touch(digits):
    bins = [ReliabilityBin(c, c, 50, c, c, c, c) for c in (0.3, 0.9, 0.97, 0.99, 0.999)]
    head = dataclasses.replace(digits[0].heads[0], even_bins=bins)
    drawn = close_reliability(head, False).svg
    at = [float(x) for x in re.findall(r'class="tick middle" x="([\d.]+)"', drawn)]
    assert len(at) > 3
    assert min(np.diff(at)) >= 26
