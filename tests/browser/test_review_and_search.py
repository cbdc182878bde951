"""What is decided by keys alone, and what the search and the colorings say, in a real browser."""

import dataclasses
import re

import pytest

from report.synthetic import image_audit, table_audit, unlabeled
from vicinal.audits.sections import LinearMap
from vicinal.report import save_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    audit, media = image_audit()
    path = tmp_path_factory.mktemp("review") / "report.html"
    save_report(audit, path, media)
    return audit, path


def test_by_keyboard_any_class_can_be_reached_and_enter_decides(visit, digits):
    audit, path = digits
    page = visit(path).page
    first = audit.labels.suspects[0]
    page.locator("#do-review .do").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#other-class")
    far = next(c for c in range(9, -1, -1) if c not in (first.given, first.suggested))
    page.keyboard.press("c")
    for _ in range(far + 1):
        page.keyboard.press("ArrowDown")
    assert page.inner_text("#review-count").startswith("0 of")
    assert page.input_value("#other-class") == str(far)
    page.keyboard.press("Enter")
    assert page.inner_text("#review-count").startswith("1 of")
    decided = page.inner_text(f'#suspects tr[data-suspect="{first.row}"] td:last-child')
    assert decided == f"→ {audit.classes[far]}"
    page.keyboard.press("c")  # the next one, now from an open list
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert page.inner_text("#review-count").startswith("2 of")
    page.keyboard.press("u")
    assert page.inner_text("#review-count").startswith("1 of")


def test_the_search_says_how_many_rows_match_what_is_typed_now(visit, digits):
    audit, path = digits
    page = visit(path).page
    page.fill("#search", "no such thing")
    assert page.inner_text("#found") == "No query row matches."
    page.fill("#search", audit.cases.id[7])
    ids = [name for name in audit.cases.id if audit.cases.id[7] in name]
    assert len(ids) == 1
    assert page.locator("#found p").inner_text() == "1 row matches; Enter shows it."
    page.fill("#search", "")
    page.keyboard.press("Escape")
    assert not page.is_visible("#found")


def test_without_labels_no_coloring_and_no_legend_speaks_of_them(visit, tmp_path):
    audit, media = table_audit()
    save_report(unlabeled(audit), tmp_path / "report.html", media)
    page = visit(tmp_path / "report.html").page
    colors = page.locator("#map-color option").evaluate_all("all => all.map(n => n.value)")
    assert "verdict" in colors
    assert not {"label", "right"} & set(colors)


def test_what_may_be_read_off_a_map_is_said_of_the_map_that_is_shown(visit, tmp_path):
    audit, media = image_audit()
    linear = LinearMap(
        "PCA", audit.map.y, audit.map.x, 0.14, audit.map.support_y, audit.map.support_x
    )
    shown = dataclasses.replace(audit.map, preservation=0.66, linear=linear)
    save_report(dataclasses.replace(audit, map=shown), tmp_path / "report.html", media)
    page = visit(tmp_path / "report.html").page
    lead = page.locator("#map .lead")
    assert "That is little" not in lead.inner_text()
    page.select_option("#map-form", "linear")
    assert "That is little" in lead.inner_text()
    centers = page.locator("#map-table tbody").text_content()
    page.select_option("#map-form", "")
    assert "That is little" not in lead.inner_text()
    assert page.locator("#map-table tbody").text_content() != centers


def test_no_row_is_counted_in_the_plural_when_it_is_one(visit, digits):
    page = visit(f"{digits[1].as_uri()}#rows=5~").page
    page.wait_for_selector("#chips button")
    assert "lasso: 1 row" in page.inner_text("#chips")
    assert re.search(r"\b1 (selected )?rows", page.inner_text("body")) is None
    assert page.locator("#risk-coverage h3").get_attribute("data-rows") == "1 selected row"


def test_a_map_on_a_dark_screen_prints_in_the_colors_of_paper(visit, digits):
    drawn = "document.querySelector('canvas.map').toDataURL()"
    pages = [visit(digits[1], color_scheme=scheme).page for scheme in ("light", "dark")]
    for page in pages:
        page.wait_for_timeout(400)
    light, dark = (page.evaluate(drawn) for page in pages)
    assert light != dark
    event = "name => { dispatchEvent(new Event(name)); return " + drawn + "; }"
    assert pages[1].evaluate(event, "beforeprint") == light  # at once, no frame is waited for
    assert pages[1].evaluate(event, "afterprint") == dark
