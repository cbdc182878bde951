"""The page opened from disk in a real browser: every section, every way from chart to card."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser.waiting import until
from report.synthetic import hostile_audit, image_audit, table_audit, text_audit
from vicinal.audits.sections import FitPoint
from vicinal.report import notebook_frame, save_report
from vicinal.report.figures.points import on_steps

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    audit, media = image_audit()
    path = tmp_path_factory.mktemp("page") / "report.html"
    save_report(audit, path, media)
    return audit, media, path


def shown_rows(page):
    return [int(v) for v in page.eval_on_selector_all(".card", "c => c.map(n => n.dataset.case)")]


def matching(page):
    return int(page.inner_text("#gallery-count").split()[0].replace(",", ""))


def test_every_section_opens_from_disk_without_error_or_request(visit, digits):
    seen = visit(digits[2])
    links = seen.page.locator(".side a")
    assert links.count() == 10
    for i in range(10):
        links.nth(i).click()
        target = links.nth(i).get_attribute("href")
        until(
            seen.page,
            "id => { const box = document.querySelector(id).getBoundingClientRect();"
            " return box.top < innerHeight && box.bottom > 0; }",
            target,
        )
    assert seen.complaints == []
    assert seen.outside() == []


def test_the_policy_stops_connections_and_evaluated_text(visit, digits):
    page = visit(digits[2]).page
    tried = (
        "async () => { try { await fetch('https://example.org'); return 1 } catch { return 0 } }"
    )
    assert page.evaluate(tried) == 0
    # An inline handler is what an injected name would bring; the policy must not run it.
    page.evaluate(
        "() => { const b = document.createElement('button');"
        " b.setAttribute('onclick', 'window.pwned = 1'); document.body.append(b); b.click(); }"
    )
    assert page.evaluate("window.pwned") is None


def test_filters_leave_exactly_the_rows_of_the_record(visit, digits):
    audit, _, path = digits
    cases, page = audit.cases, visit(path).page
    page.select_option("#f-verdict", "contested")
    assert matching(page) == cases.verdict.count("contested")
    page.select_option("#f-verdict", "")
    page.check("#f-errors")
    wrong = [i for i, label in enumerate(cases.label) if label != cases.predicted[i]]
    assert matching(page) == len(wrong)
    page.select_option("#f-class", "3")
    with_three = [i for i in wrong if 3 in (cases.label[i], cases.predicted[i])]
    assert sorted(shown_rows(page)) == with_three
    page.fill("#search", cases.id[with_three[0]])
    assert shown_rows(page) == [with_three[0]]


def test_clicking_a_bar_a_cell_and_a_class_filters_the_cards(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    bin_ = next(b for b in reversed(audit.heads[-1].bins) if b.count)
    page.locator("#reliability-ned .hot").last.click()
    inside = [c for c in audit.cases.confidence if bin_.low < round(c, 4) <= bin_.high]
    assert matching(page) == len(inside) == bin_.count
    page.click("#chips button")
    assert matching(page) == len(audit.cases.id)
    page.locator("#borders .hot").first.click()
    assert 0 < matching(page) < len(audit.cases.id)
    page.click("#chips button")
    page.locator("#classes tr[data-pick]").nth(4).press("Enter")
    assert "class=4" in page.url
    page.locator(".verdict.v-unfamiliar").click()
    assert "verdict=unfamiliar" in page.url


def test_the_address_keeps_filter_and_case(visit, digits):
    _, _, path = digits
    page = visit(path).page
    page.select_option("#f-verdict", "unfamiliar")
    page.locator(".card").nth(3).click()
    opened, address = page.inner_text("#panel h2"), page.url
    again = visit(address).page
    assert again.inner_text("#panel h2") == opened
    assert again.input_value("#f-verdict") == "unfamiliar"


def test_a_case_shows_its_true_neighbors_in_both_views(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    page.locator(".card").nth(1).click()
    row = shown_rows(page)[1]
    ids = dict(zip(audit.support.row, audit.support.id, strict=True))
    listed = lambda: page.locator("#panel .neighbors .id").all_inner_texts()
    assert listed() == [ids[r] for r in audit.cases.neighbors[row]]
    page.click("[data-view=network]")
    assert listed() == [ids[r] for r in audit.cases.network_neighbors[row]]
    page.keyboard.press("v")
    assert listed() == [ids[r] for r in audit.cases.neighbors[row]]
    assert audit.cases.reason[row] in page.inner_text("#panel")


def test_an_unfamiliar_rows_confidence_is_struck_through(visit, digits):
    page = visit(digits[2]).page
    page.select_option("#f-verdict", "unfamiliar")
    page.locator(".card").first.click()
    assert page.locator("#panel .void").count() == 1
    assert "confidence not meaningful" in page.inner_text("#panel .facts")


def test_thumbnails_are_the_pictures_of_their_ids_also_after_filtering(visit, digits):
    _, media, path = digits
    page = visit(path).page
    page.select_option("#f-class", "7")
    page.select_option("#f-sort", "far")
    for n in (0, 5):
        card = page.locator(".card").nth(n)
        shot = card.locator(":scope > .thumb").screenshot()
        seen = np.asarray(Image.open(io.BytesIO(shot)).convert("L"), float)
        centers = seen[4:64:8, 4:64:8]
        want = np.asarray(media.query[int(card.get_attribute("data-case"))], float)
        assert np.abs(centers - want).max() < 4


def test_keys_move_through_cases_and_suspects_and_decide(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    rows = shown_rows(page)
    opened = lambda: page.locator("#panel h2").first.inner_text()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert opened() == audit.cases.id[rows[1]]
    page.keyboard.press("k")
    assert opened() == audit.cases.id[rows[0]]
    page.locator("#suspects tr").first.click()
    page.keyboard.press("2")
    page.keyboard.press("1")
    page.keyboard.press("3")
    assert opened() == audit.labels.suspects[3].id
    assert page.inner_text("#review-count").startswith("3 of")
    page.keyboard.press("Escape")
    assert "Worst suspects" in opened()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_decisions_leave_as_csv_and_json(visit, digits):
    audit, _, path = digits
    seen = visit(path)
    page, suspects = seen.page, audit.labels.suspects
    page.locator("#suspects tr").first.click()
    page.click("[data-decide=relabel]")
    page.click("[data-decide=keep]")
    with page.expect_download() as waiting:
        page.click("#export-csv")
    with open(waiting.value.path(), newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [s.id for s in suspects]
    assert [row["decision"] for row in rows[:3]] == ["relabel", "keep", ""]
    assert rows[0]["label"] == audit.classes[suspects[0].suggested]
    assert rows[1]["label"] == audit.classes[suspects[1].given]
    with page.expect_download() as waiting:
        page.select_option("#export-as", "json")
    with open(waiting.value.path()) as file:
        assert json.load(file)["suspects"][0]["decision"] == "relabel"
    assert seen.complaints == []


def test_tiles_open_their_queues_and_actions_do_what_they_say(visit, digits):
    audit, _, path = digits
    seen = visit(path)
    page, counts = seen.page, audit.verdict_counts()
    page.click(".t-accept")
    assert matching(page) == counts["supported"]
    page.click(".t-accept")
    page.click(".t-scope")
    assert matching(page) == counts["unfamiliar"]
    assert page.locator("#selection strong").inner_text() == f"{counts['unfamiliar']} of 320 rows"
    page.click("#selection button:has-text('Clear')")
    with page.expect_download() as waiting:
        page.click("[data-do=people]")
    with open(waiting.value.path(), newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == [v for v in audit.cases.verdict if v != "supported"]
    assert [audit.cases.id[int(row["row"])] for row in rows] == [row["id"] for row in rows]
    page.click("[data-do=review]")
    assert page.inner_text("#panel h2") == audit.labels.suspects[0].id
    assert seen.complaints == []


def test_the_worst_suspects_and_cases_are_beside_the_page_from_the_start(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    said = page.inner_text("#worst")
    assert all(suspect.id in said for suspect in audit.labels.suspects[:6])
    contested = [i for i, v in enumerate(audit.cases.verdict) if v == "contested"]
    least = min(contested, key=lambda i: audit.cases.confidence[i])
    page.click(f"[data-worst-case='{least}']")
    assert page.inner_text("#panel h2") == audit.cases.id[least]


def test_verdicts_follow_a_target_that_is_moved(visit, digits):
    audit, _, path = digits
    cases, page = audit.cases, visit(path).page
    *_, lower = [t for t in audit.risk_coverage.targets if t.target == 0.97]
    page.click("[data-target='0.97']")
    rows = zip(cases.verdict, cases.confidence, cases.credibility, strict=True)
    want = sum(
        v in ("supported", "contested") and sure >= lower.level and credible > 0.05
        for v, sure, credible in rows
    )
    assert page.inner_text(".counts .v-supported b") == str(want)
    assert page.inner_text("[data-tile=accept]") == str(want)
    assert "follow a target of 97 %" in page.inner_text("#target-note")
    page.click(".t-accept")
    assert matching(page) == want
    page.click("[data-target='0.9999']")
    said = page.inner_text("#target-note")
    assert "No threshold keeps 99.99 %" in said
    assert page.inner_text(".t-accept .title") == "Supported, 99.99 % not promised"
    assert "97 % is reachable: it accepts" in said
    assert "supported have a confidence of at least 0.9999" in said
    page.click("[data-target='0.95']")
    assert page.inner_text(".counts .v-supported b") == str(audit.verdict_counts()["supported"])


def test_search_finds_classes_suspects_cases_and_texts(visit, digits, tmp_path):
    audit, _, path = digits
    page = visit(path).page
    suspect = audit.labels.suspects[2]
    page.fill("#search", suspect.id)
    page.locator("#found button", has_text=suspect.id).first.click()
    assert page.inner_text("#panel h2") == suspect.id
    texts, media = text_audit()
    save_report(texts, tmp_path / "texts.html", media)
    page = visit(tmp_path / "texts.html").page
    first = texts.labels.suspects[0]
    assert media.support[first.row][:60] in page.inner_text("#worst")
    page.fill("#search", "shipping")
    assert page.locator("#found h3").all_inner_texts()[0] == "Classes"
    page.locator("#found button").first.click()
    assert "class=1" in page.url
    page.click("#selection button:has-text('Clear')")
    word = media.query[5].split("case ")[1][:4]
    page.fill("#search", word)
    page.keyboard.press("Enter")
    assert 5 in shown_rows(page)
    assert all(word in media.query[row] or word in texts.cases.id[row] for row in shown_rows(page))


def test_any_class_can_be_chosen_and_every_step_taken_back(visit, digits):
    audit, _, path = digits
    seen = visit(path)
    page, first = seen.page, audit.labels.suspects[0]
    other = next(c for c in range(10) if c not in (first.given, first.suggested))
    page.locator("#suspects tr").first.click()
    page.keyboard.press("c")
    assert page.evaluate("document.activeElement.id") == "other-class"
    page.select_option("#other-class", str(other))
    row = page.locator("#suspects tr").first
    assert f"→ {audit.classes[other]}" in row.inner_text()
    page.keyboard.press("1")
    assert page.inner_text("#review-count").startswith("2 of")
    page.keyboard.press("u")
    assert page.inner_text("#review-count").startswith("1 of")
    with page.expect_download() as waiting:
        page.click("#export-csv")
    assert waiting.value.suggested_filename == "decisions.csv"
    with open(waiting.value.path(), newline="") as file:
        line = next(csv.DictReader(file))
    assert (line["decision"], line["label"]) == ("relabel", audit.classes[other])
    again = page.context.new_page()
    again.goto(path.as_uri())
    again.wait_for_selector("html[data-ready]")
    assert again.inner_text("#review-count").startswith("1 of")  # kept in the browser
    page.keyboard.press("u")
    assert page.inner_text("#review-count").startswith("0 of")
    assert seen.complaints == []


def test_many_labels_are_decided_at_once_and_leave_for_other_tools(visit, digits):
    audit, _, path = digits
    seen = visit(path)
    page, suspects = seen.page, audit.labels.suspects
    page.select_option("#review-form", "pairs")
    group = page.locator(".pair-group").first
    given, suggested = (int(c) for c in group.get_attribute("data-pair").split("~"))
    inside = [s for s in suspects if (s.given, s.suggested) == (given, suggested)]
    assert group.locator(".suspect-tile").count() == len(inside)
    assert group.locator(".class-examples .thumb").count() >= 4
    group.locator("button", has_text="Relabel the open ones").click()
    assert page.inner_text("#review-count").startswith(f"{len(inside)} of")
    tiles = page.locator(".pair-group").nth(1).locator(".suspect-tile")
    row = int(tiles.first.get_attribute("data-tile-of"))
    tiles.first.click()
    page.locator("#bulk select").select_option("7")
    page.click("#bulk-relabel")

    def exported(kind):
        with page.expect_download() as waiting:
            page.select_option("#export-as", kind)
        with open(waiting.value.path(), newline="") as file:
            return file.read()

    ids = {s.row: s.id for s in suspects}
    want = {s.id: audit.classes[suggested] for s in inside} | {ids[row]: "7"}
    assert json.loads(exported("fiftyone"))["labels"] == want
    tasks = json.loads(exported("labelstudio"))
    assert len(tasks) == len(suspects)
    decided = {t["data"]["id"]: t["annotations"][0]["result"][0]["value"]["choices"][0]
               for t in tasks if "annotations" in t}  # fmt: skip
    assert decided == want
    lines = list(csv.DictReader(io.StringIO(exported("cleanlab"))))
    assert {"is_label_issue", "label_quality", "given_label", "predicted_label"} <= set(lines[0])
    assert {ids[int(n["index"])]: n["decided_label"] for n in lines if n["decided_label"]} == want
    page.click("#undo")
    assert page.inner_text("#review-count").startswith(f"{len(inside)} of")
    assert seen.complaints == []


def test_the_threshold_table_follows_the_slider_and_the_curve(visit, digits):
    audit, _, path = digits
    curve, page = audit.risk_coverage, visit(path).page
    assert f"{curve.chosen.value:.3f}" in page.inner_text("#threshold-value")
    page.locator("#threshold").fill("20")
    facts = page.inner_text("#threshold-facts")
    assert f"{100 * curve.coverage[20]:.1f} %" in facts
    assert f"{100 * curve.lower_bound[20]:.1f} %" in facts
    below = sum(c < curve.threshold[20] for c in audit.cases.confidence)
    away = " ".join(page.inner_text("#threshold-away").split())
    assert f"turned away {below}" in away
    sure = zip(audit.cases.confidence, audit.cases.verdict, strict=True)
    odd = sum(c >= curve.threshold[20] and verdict == "unfamiliar" for c, verdict in sure)
    assert odd
    assert f"of the accepted, {odd} unfamiliar" in away
    chart = page.locator("#risk-coverage svg.chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.up()
    changed = "was => document.querySelector('#threshold-facts').innerText !== was"
    until(page, changed, facts)  # a busy machine draws late


def test_what_the_threshold_accepts_adds_up_to_what_is_supported(visit, digits):
    """Accepted rows are supported, or left to people, and the box says why."""
    audit = digits[0]
    page = visit(digits[2]).page
    box = {
        row.split("\n")[0]: row.split("\n")[1]
        for row in page.locator("#threshold-facts div").all_inner_texts()
    }
    still = page.inner_text("#threshold-away .still")
    left = sum(int(word) for word in still.replace(",", "").split() if word.isdigit())
    assert " contested" in still
    least = audit.risk_coverage.chosen.value
    cases = zip(audit.cases.verdict, audit.cases.confidence, strict=True)
    supported = sum(verdict == "supported" and sure >= least for verdict, sure in cases)
    assert int(box["accepted"].replace(",", "")) - left == supported


def test_rows_without_a_clear_majority_are_counted_once_above_and_in_the_box(visit, tmp_path):
    """Below two thirds a row is contested at any target, also where a threshold is lower."""
    audit = image_audit()[0]
    cases, curve = audit.cases, audit.risk_coverage
    split = [row for row, verdict in enumerate(cases.verdict) if verdict == "supported"][:5]
    sure = [0.5 if row in split else max(c, 0.45) for row, c in enumerate(cases.confidence)]
    verdict = ["contested" if r in split else v for r, v in enumerate(cases.verdict)]
    cases = dataclasses.replace(cases, confidence=tuple(sure), verdict=tuple(verdict))
    chosen = dataclasses.replace(curve.chosen, value=0.4, level=2 / 3)
    curve = dataclasses.replace(curve, chosen=chosen, threshold=(*curve.threshold[:-1], 0.4))
    save_report(dataclasses.replace(audit, cases=cases, risk_coverage=curve), tmp_path / "r.html")
    page = visit(tmp_path / "r.html").page
    found = verdict.count("contested")
    assert f" {found} contested" in page.inner_text("#do-ship .effect")
    assert f" {found} contested" in page.inner_text("#threshold-away .still")


def test_the_actions_follow_a_target_that_is_moved_and_come_back(visit, digits):
    """What would be sent to people is what the button sends; the run's own words come back."""
    page = visit(digits[2]).page
    first = page.inner_text(".actions"), page.locator(".stack rect").first.get_attribute("width")
    page.click("[data-target='0.97']")
    supported = int(page.inner_text("[data-tile=accept]"))
    total = len(digits[0].cases.id)
    assert page.inner_text("#do-people h3").startswith(f"Send {total - supported} rows")
    assert page.inner_text("#do-ship h3") != first[0].split("\n")[-4]
    assert "--target-accuracy 0.97" in page.inner_text("#do-ship .effect")
    assert page.locator(".stack rect").first.get_attribute("width") != first[1]
    with page.expect_download() as sent:
        page.click("#do-people .do")
    lines = Path(sent.value.path()).read_text().splitlines()
    assert len(lines) - 1 == total - supported
    page.click("[data-target='0.9999']")
    assert "No threshold keeps 99.99 %" in page.inner_text("#do-ship .effect")
    page.click("#moved button")
    again = page.inner_text(".actions"), page.locator(".stack rect").first.get_attribute("width")
    assert again == first
    assert not page.is_visible("#moved")


def test_the_curve_and_its_box_follow_a_target_that_is_moved(visit, digits):
    """The line is at the new target, and no row below its threshold is called supported."""
    page = visit(digits[2]).page
    before = page.locator("#risk-coverage .line.target").get_attribute("points")
    targets = digits[0].risk_coverage.targets
    other = next(t for t in targets if t.value and t.target < digits[0].risk_coverage.chosen.target)
    page.click(f'[data-target="{other.target:g}"]')
    until(page, f"location.hash.includes('target={other.target:g}')")
    assert page.locator("#risk-coverage .line.target").get_attribute("points") != before
    assert page.text_content("#risk-coverage text.halo") == f"target {100 * other.target:g} %"
    away = page.locator("#threshold-away > span").all_inner_texts()
    assert not any("supported" in part for part in away if "accepted" not in part)


CONTRAST = """() => {
  const lum = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], ground) => [r, g, b].map((v, i) => v * a + ground[i] * (1 - a));
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  const cells = [...document.querySelectorAll('#borders rect[class*="bar heat"]')];
  return cells.filter(cell => cell.nextElementSibling?.tagName === 'text').map(cell => {
    const ground = over(parse(getComputedStyle(cell).fill), paper);
    const [a, b] = [lum(parse(getComputedStyle(cell.nextElementSibling).fill)), lum(ground)];
    return [cell.getAttribute('class'), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_of_the_heat_map_can_be_read_on_every_shade(visit, tmp_path, scheme):
    audit, media = image_audit()
    shades = [(a, b) for a in range(5) for b in range(a + 1, 6)]  # each of nine at least once
    pairs = [
        dataclasses.replace(audit.borders.pairs[0], a=a, b=b, share=(at % 9 + 1) ** 2 / 810)
        for at, (a, b) in enumerate(shades)
    ]
    borders = dataclasses.replace(audit.borders, pairs=tuple(pairs))
    save_report(dataclasses.replace(audit, borders=borders), tmp_path / "heat.html", media)
    found = visit(tmp_path / "heat.html", color_scheme=scheme).page.evaluate(CONTRAST)
    assert len({shade for shade, _ in found}) == 9
    assert [pair for pair in found if pair[1] < 4.5] == []


def test_the_map_names_its_classes_and_is_no_taller_than_its_points(visit, digits):
    page = visit(digits[2]).page
    canvas = page.locator("canvas.map")
    assert int(canvas.get_attribute("data-names")) == len(digits[0].classes)
    page.uncheck("#map-names")
    until(page, "document.querySelector('canvas.map').dataset.names === '0'")
    assert "names=0" in page.evaluate("location.hash")
    for width in (1920, 1280):  # what a map at its own scale needs, and not the height before
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(200)
        box = canvas.bounding_box()
        x, y = ([*getattr(digits[0].map, v), *getattr(digits[0].map, f"support_{v}")] for v in "xy")
        flat = (max(y) - min(y)) / (max(x) - min(x))
        assert box["height"] <= max(322, (box["width"] - 28) * flat + 34)


def on_map(page, audit, row, of="query"):
    """Where a row is drawn on the canvas, in its own pixels."""
    box = page.locator("#map-figure canvas").bounding_box()
    chart, drawn = audit.map, on_steps(audit.map)
    xs, ys = (np.array([*drawn[k], *drawn[f"support_{k}"]]) for k in "xy")
    unit = min((box["width"] - 28) / np.ptp(xs), (box["height"] - 28) / np.ptp(ys))
    at = row if of == "query" else len(chart.x) + chart.support_row.index(row)
    x = box["width"] / 2 + (xs[at] - (xs.min() + xs.max()) / 2) * unit
    y = box["height"] / 2 - (ys[at] - (ys.min() + ys.max()) / 2) * unit
    return {"x": float(x), "y": float(y)}


@pytest.fixture
def map_of_digits(visit, digits):
    audit, _, path = digits
    seen = visit(path)
    seen.page.locator("#map").scroll_into_view_if_needed()
    until(seen.page, "document.querySelector('canvas.map').dataset.drawn > 0")
    return audit, seen


def test_a_click_on_the_map_opens_the_point_under_it(map_of_digits):
    audit, seen = map_of_digits
    row = int(np.argmax(np.abs(audit.map.x)))
    seen.page.locator("canvas.map").click(position=on_map(seen.page, audit, row))
    assert seen.page.inner_text("#panel h2") == audit.cases.id[row]


def test_a_lasso_makes_its_rows_the_filter_of_the_whole_page(map_of_digits):
    audit, seen = map_of_digits
    page = seen.page
    page.click("#map-lasso")
    box = page.locator("canvas.map").bounding_box()
    middle = box["x"] + box["width"] / 2
    corners = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]
    for n, (x, y) in enumerate(corners):
        left = box["x"] + 2 if x < 0.5 else middle
        page.mouse.move(left, box["y"] + y * box["height"])
        if n == 0:
            page.mouse.down()
    page.mouse.up()
    half = [r for r in range(320) if on_map(page, audit, r)["x"] < box["width"] / 2]
    assert abs(matching(page) - len(half)) <= 2
    assert page.locator("#selection strong").inner_text() == f"{matching(page)} of 320 rows"
    near = [s for s in audit.labels.suspects
            if on_map(page, audit, s.row, "support")["x"] < box["width"] / 2]  # fmt: skip
    assert abs(page.locator("#suspects tr").count() - min(12, len(near))) <= 1
    address = page.url
    page.click("#selection button:has-text('Clear')")
    assert matching(page) == 320
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    assert abs(matching(page) - len(half)) <= 2
    assert seen.complaints == []


def test_the_map_zooms_moves_and_opens_by_keyboard(map_of_digits):
    page = map_of_digits[1].page
    canvas = page.locator("canvas.map")
    picture = lambda: canvas.evaluate("c => c.toDataURL()")
    drawn = [picture()]
    canvas.focus()
    for key in ("+", "+", "ArrowLeft", "0"):
        page.keyboard.press(key)
        page.wait_for_timeout(350)
        drawn.append(picture())
    assert len(set(drawn[:4])) == 4
    assert drawn[-1] == drawn[0]
    canvas.focus()
    page.keyboard.press("Enter")
    assert "Case, query row" in page.inner_text("#panel")


def test_every_coloring_is_drawn_with_its_legend_and_points_tell_who_they_are(map_of_digits):
    audit, seen = map_of_digits
    page = seen.page
    options = page.eval_on_selector_all("#map-color option", "o => o.map(n => n.value)")
    assert {"verdict", "predicted", "label", "confidence", "suspect", "layer-2"} <= set(options)
    pictures = []
    for option in options:
        page.select_option("#map-color", option)
        page.wait_for_timeout(120)
        pictures.append(page.locator("canvas.map").evaluate("c => c.toDataURL()"))
        assert page.locator("#map-legend > *").count() >= 2
    assert len(set(pictures)) >= 6
    page.select_option("#map-color", "verdict")
    page.locator("canvas.map").hover(position=on_map(page, audit, 7))
    assert page.is_visible("#map-tip")
    assert page.locator("#map-tip .thumb").count() == 1
    assert seen.complaints == []


def test_the_fit_map_opens_the_row_it_was_drawn_from(visit, digits, tmp_path):
    audit, media, _ = digits
    known = audit.support.row[:30]
    points = [FitPoint(row, 3.0 * i, 0.1, "well fitted") for i, row in enumerate(known)]
    view = dataclasses.replace(audit.network, fit_map=points, fit_rows_of="support")
    path = tmp_path / "report.html"
    save_report(dataclasses.replace(audit, network=view, labels=None), path, media)
    seen = visit(path)
    canvas = seen.page.locator("#fit-map canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] - 16, "y": box["height"] - 40})
    said = seen.page.inner_text("#panel")
    assert f"Support row {known[-1]}" in said
    assert audit.support.id[29] in said
    assert seen.complaints == []


def test_the_networks_view_shows_similarities_and_an_example_of_each_bin(visit, digits):
    audit, _, path = digits
    page = visit(path.as_uri() + "#case=0&view=network").page
    assert page.locator("#panel .mini rect").count() == 10
    example = audit.network.density.examples[0][0]
    page.locator("#density .examples button").first.click()
    assert page.inner_text("#panel h2") == audit.cases.id[example]


def test_a_duplicate_opens_its_case(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    page.locator("#classes summary", has_text="Table").nth(2).click()
    page.locator("#classes tr[data-pick^='case=']").first.click()
    assert page.inner_text("#panel h2") == audit.cases.id[audit.duplicates.pairs[0][0]]


def test_every_table_behind_a_chart_opens(visit, digits):
    page = visit(digits[2]).page
    for head in page.locator("#head-shown option").all():
        page.select_option("#head-shown", head.get_attribute("value"))
        for summary in page.locator("main details.behind > summary").all():
            if summary.is_visible() and not summary.evaluate("n => n.parentNode.open"):
                summary.click()
    assert page.locator("main details.behind:not([open])").count() == 0
    assert page.locator("main details[open] table tr").count() > 60


@pytest.mark.parametrize("builder", [text_audit, table_audit])
def test_texts_and_tables_have_cards_and_neighbors_of_their_own(visit, tmp_path, builder):
    audit, media = builder()
    save_report(audit, tmp_path / "report.html", media)
    seen = visit(tmp_path / "report.html")
    seen.page.locator(".card").first.click()
    row = shown_rows(seen.page)[0]
    if media.kind == "texts":
        assert media.query[row] in seen.page.inner_text("#panel")
        assert media.support[audit.cases.neighbors[row][0]] in seen.page.inner_text("#panel")
    else:
        assert seen.page.locator("#panel .features tbody tr").count() == len(media.columns)
        assert "vibration" in seen.page.inner_text("#panel .features")
    seen.page.locator("#suspects tr").first.click()
    assert "Suspect 1 of" in seen.page.inner_text("#panel")
    assert seen.complaints == []


def test_hostile_names_run_nothing_and_break_nothing(visit, tmp_path):
    audit, media = hostile_audit()
    save_report(audit, tmp_path / "report.html", media)
    seen = visit(tmp_path / "report.html")
    page = seen.page
    for n in range(page.locator(".card").count()):
        page.locator(".card").nth(n).click()
    page.click("[data-view=network]")
    page.locator("#suspects tr").first.click()
    page.keyboard.press("2")
    page.locator("#classes tr[data-pick]").first.click()
    page.fill("#search", "<script>")
    assert matching(page) >= 1
    with page.expect_download() as waiting:
        page.click("#export-csv")
    with open(waiting.value.path(), newline="") as file:
        assert next(csv.DictReader(file))["given"] in audit.classes
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert seen.complaints == []
    assert seen.outside() == []


def test_a_phone_has_one_column_and_a_sheet_for_the_case(visit, digits):
    seen = visit(digits[2], size=(390, 844), has_touch=True)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.is_visible("#panel")
    page.locator(".card").first.tap()
    assert page.is_visible("#panel")
    page.click("#panel .close")
    assert not page.is_visible("#panel")
    assert seen.complaints == []


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_follow_the_reader_and_can_be_switched(visit, digits, scheme, dark):
    page = visit(digits[2], color_scheme=scheme).page
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert (page.evaluate(ground) < 100) is dark
    page.click("#theme")
    assert (page.evaluate(ground) < 100) is not dark


def test_without_a_script_the_main_facts_are_still_there(visit, digits):
    audit, _, path = digits
    page = visit(path, wait=False, java_script_enabled=False).page
    said = page.inner_text("body").replace("\u00a0", " ")
    assert all(head.title in said for head in audit.heads)
    assert "What this report cannot tell you" in said
    assert audit.warnings[0] in said
    assert page.locator("#reliability .tab .chart").count() == 3
    assert not page.is_visible("#filters")


def test_on_paper_there_is_no_panel_and_every_head_is_printed(visit, digits):
    page = visit(digits[2]).page
    page.emulate_media(media="print")
    assert not page.is_visible("#panel")
    assert not page.is_visible(".side")
    assert all(figure.is_visible() for figure in page.locator("#reliability figure.tab").all())


def test_everything_that_can_be_used_has_a_name_and_shows_its_focus(visit, digits):
    page = visit(digits[2]).page
    page.locator(".card").first.click()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, a[href], input, select, [role=button]')]
        .filter(n => n.offsetParent !== null || n.ownerSVGElement)
        .filter(n => !(n.innerText || n.textContent || '').trim() && !n.getAttribute('aria-label')
          && !(n.labels && n.labels.length) && !n.title).map(n => n.outerHTML.slice(0, 90))"""
    )
    assert nameless == []
    for landmark in ("header", "nav[aria-label]", "main", "aside[aria-label]", "footer"):
        assert page.locator(landmark).count() >= 1
    page.locator("#search").focus()
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def test_a_notebooks_frame_works_without_reaching_its_parent(visit, digits, tmp_path):
    audit, media, _ = digits
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>notebook</title>{notebook_frame(audit, media)}")
    seen = visit(path, wait=False)
    frame = seen.page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(timeout=20_000)
    frame.locator(".card").first.click()
    assert frame.locator("#panel .neighbors li").count() == 12
    assert seen.complaints == []


def counted(audit, rows):
    """Rows, hits and accuracy by plain counting."""
    cases = audit.cases
    labeled = [r for r in rows if cases.label[r] is not None]
    return len(labeled), sum(cases.label[r] == cases.predicted[r] for r in labeled)


def test_charts_follow_the_selection_and_those_that_cannot_say_all_rows(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    assert page.locator("g.chosen").count() == 0
    page.select_option("#f-class", "3")
    cases = audit.cases
    rows = [r for r, p in enumerate(cases.predicted) if p == 3 or cases.label[r] == 3]
    curve = page.get_attribute("#risk-coverage g.chosen polyline", "points").split()
    y0, y1, bottom, top = (
        float(v)
        for i, v in enumerate(page.get_attribute("#risk-coverage svg", "data-frame").split())
        if i in (2, 3, 6, 7)
    )
    labeled, right = counted(audit, rows)
    last = float(curve[-1].split(",")[1])
    assert y0 + (y1 - y0) * (last - bottom) / (top - bottom) == pytest.approx(
        max(y0, right / labeled), abs=1e-3
    )
    accepted = page.inner_text("#threshold-away .of-selected")
    assert accepted.startswith(f"of {len(rows)} selected rows ")
    said = page.eval_on_selector_all(
        f"#reliability-{cases.head} g.chosen title", "t => t.map(n => n.textContent)"
    )
    assert sum(int(text.split()[0]) for text in said) == labeled
    line = page.locator('#classes tr[data-pick="class=3"]')
    assert line.locator("[data-of=query]").inner_text() == str(cases.label.count(3))
    tags = "id => getComputedStyle(document.querySelector(`#${id} h3`), '::after').content"
    assert page.evaluate(tags, "risk-coverage") == f'"{len(rows)} selected rows"'
    assert page.evaluate(tags, "sweep") == '"all rows"'
    assert page.evaluate(tags, "borders") == '"all rows"'
    page.click("#selection >> text=Clear")
    assert page.locator("g.chosen").count() == 0
    assert page.evaluate(tags, "sweep") == "none"


def test_confusions_count_the_errors_of_the_rows_shown_and_select_them(visit, digits):
    audit, _, path = digits
    page = visit(path).page
    pairs = [
        (label, p)
        for label, p in zip(audit.cases.label, audit.cases.predicted, strict=True)
        if label is not None and label != p
    ]
    most = max(set(pairs), key=lambda pair: (pairs.count(pair), (-pair[0], -pair[1])))
    first = page.locator("#confusions-list button").first
    assert int(first.locator("b").inner_text()) == pairs.count(most)
    label, predicted = (int(v) for v in first.get_attribute("data-confused").split("~"))
    first.click()
    assert matching(page) == pairs.count((label, predicted))


def test_the_bar_of_what_is_selected_covers_neither_sections_nor_case(visit, digits):
    page = visit(digits[2]).page
    page.locator(".tile").nth(2).click()
    page.locator(".card").first.click()
    page.wait_for_selector("#panel .neighbors li")
    page.evaluate("scrollTo({ top: 1800, behavior: 'instant' })")
    until(page, "scrollY > 1700")
    edges = page.evaluate(
        "['#selection', '.side', '#panel'].map((s) => document.querySelector(s)"
        ".getBoundingClientRect()).map((box, i) => (i ? box.top : box.bottom))"
    )
    assert edges[0] <= edges[1] + 1
    assert edges[0] <= edges[2] + 1
    assert page.evaluate(
        "document.querySelector('#panel').getBoundingClientRect().bottom <= innerHeight + 1"
    )


def test_long_names_break_after_a_slash_and_keep_both_ends(visit, tmp_path):
    audit, media = image_audit()
    ids = tuple(f"some/deep/folder/that/goes/on/digit_{i:04d}.png" for i in range(320))
    audit = dataclasses.replace(
        audit,
        cases=dataclasses.replace(audit.cases, id=ids),
        classes=tuple(f"pictures of handwritten digits, number {i}" for i in range(10)),
    )
    save_report(audit, tmp_path / "long.html", media)
    page = visit(tmp_path / "long.html").page
    card = page.locator(".card").first
    row = int(card.get_attribute("data-case"))
    assert card.locator(".id").inner_text().endswith(f"{row:04d}.png")
    assert card.locator(".id wbr").count() > 0
    assert card.locator(".says bdi").inner_text()[-1] == str(audit.cases.predicted[row])
    cut = "n => n.scrollHeight <= n.clientHeight + 1"
    assert card.locator(".says bdi, .truth, .id").evaluate_all(f"all => all.every({cut})")


def test_a_flag_is_never_broken_across_lines(visit, tmp_path):
    audit, media = image_audit()
    lines = [f"{'word ' * n}give --calib-with-labels and more words to wrap" for n in range(2, 9)]
    save_report(dataclasses.replace(audit, warnings=lines), tmp_path / "flags.html", media)
    page = visit(tmp_path / "flags.html", size=(390, 844)).page
    page.evaluate(
        "document.querySelectorAll('.warnings details').forEach((d) => { d.open = true; })"
    )
    flags = page.locator(".warnings .nowrap")
    assert flags.count() == len(lines)
    assert flags.evaluate_all("(all) => all.every((flag) => flag.getClientRects().length === 1)")


def test_every_neighbor_of_a_case_has_a_picture_or_a_frame_in_its_place(visit, digits):
    """Only some pictures are kept for rows that nobody must look at; the others leave no gap."""
    page = visit(digits[2]).page
    calm = next(r for r, v in enumerate(digits[0].cases.verdict) if v == "supported")
    page.evaluate(f"location.hash = 'case={calm}'")
    page.wait_for_selector("#panel .neighbors li")
    for part in (".thumb", ".id bdi"):
        assert (
            page.locator("#panel .neighbors li").count()
            == page.locator(f"#panel .neighbors li:has({part})").count()
        )


def test_a_dark_page_prints_on_white(visit, digits):
    """Chosen by the system or by the button: paper is white, and its ink is dark."""
    page = visit(digits[2], color_scheme="dark").page
    colors = (
        "() => ['backgroundColor', 'color'].map(key => getComputedStyle(document.body)[key]"
        ".match(/\\d+/g).map(Number).reduce((a, b) => a + b))"
    )
    ground, ink = page.evaluate(colors)
    assert ground < ink
    for theme in (None, "dark"):
        if theme:
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.emulate_media(media="print")
        assert page.evaluate(colors) == [765, 0]
        page.emulate_media(media="screen")
