"""The page as a text: one file, a strict policy, nothing of a user's that is markup."""

import base64
import dataclasses
import gzip
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from report.synthetic import (
    HOSTILE,
    comparison,
    hostile_audit,
    image_audit,
    table_audit,
    text_audit,
)
from vicinal.audits.paired import Gate
from vicinal.audits.record import Audit
from vicinal.report import (
    live_files,
    notebook_frame,
    render,
    render_compare,
    save_compare,
    save_report,
)
from vicinal.report.facts import effect_sentences, headline
from vicinal.report.opening import actions, tiles
from vicinal.report.two_runs import forest, gate_words, share_chart
from vicinal.report.words import name, percent

VOID = {"meta", "link", "input", "br", "img", "wbr"}
SECTIONS = ["map", "cases", "labels", "trust", "credibility-section", "classes", "layers-section"]
SECTIONS += ["network", "stress", "limits"]


class Page(HTMLParser):
    """Tags, attributes and texts, with the nesting checked on the way."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.raw = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside in ("script", "style"):
            self.raw.setdefault(inside, []).append(data)
        else:
            self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def policy(self):
        return next(
            a["content"]
            for a in self.all("meta")
            if a.get("http-equiv", "").startswith("Content-S")
        )


@pytest.fixture(scope="module")
def digits():
    audit, media = image_audit()
    text = render(audit, media)
    return audit, media, text, Page(text)


@pytest.mark.parametrize("builder", [image_audit, text_audit, table_audit, hostile_audit])
def test_every_page_is_well_formed_and_has_every_section(builder):
    page = Page(render(*builder()))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert [key for key in ids if key in SECTIONS] == SECTIONS
    for label in (a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a):
        assert label in ids


def test_the_policy_allows_this_script_and_this_style_and_no_connection(digits):
    *_, page = digits
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in page.policy
    assert "http" not in page.policy
    assert "connect-src" not in rules
    script = page.raw["script"][-1]
    style = page.raw["style"][0]
    for rule, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_nothing_is_loaded_and_no_handler_or_style_attribute_is_written(digits):
    *_, page = digits
    for tag, attrs in page.tags:
        for key, value in attrs.items():
            assert not key.startswith("on"), (tag, key)
            assert key != "style"
            if key in ("src", "href", "action"):
                assert value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"url\((?!data:|#)", page.raw["style"][0])


def test_the_script_parses_no_markup_and_evaluates_no_text(digits):
    script = digits[3].raw["script"][-1]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert word not in script


def test_main_facts_are_in_the_text_without_a_script(digits):
    audit, _, _, page = digits
    said = " ".join(" ".join(page.texts).split())
    for verdict, count in audit.verdict_counts().items():
        assert f"{verdict} {count}" in said
    for head in audit.heads:
        assert head.title in said
    for line in (*audit.warnings, *audit.not_checked.values()):
        assert line.rstrip(".") in said
    assert "What this report cannot tell you" in said
    assert "320 of 320 cases have a card; all rows are in samples.csv." in said
    assert audit.data.support.fingerprint in said
    assert percent(audit.map.preservation, 0) in said


def test_every_chart_has_a_table_behind_it(digits):
    *_, page = digits
    figures = len(page.all("figure"))
    assert figures >= 12
    assert sum("behind" in a.get("class", "") for a in page.all("details")) >= figures


def test_the_data_in_the_page_is_the_record(digits):
    audit, _, text, _ = digits
    packed = re.search(r'id="data">([^<]*)<', text).group(1)
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert data["cases"]["row"] == list(range(len(audit.cases.id)))
    assert data["points"]["id"] == list(audit.cases.id)
    assert data["points"]["predicted"] == list(audit.cases.predicted)
    back = [[data["support"]["row"][s] for s in line] for line in data["cases"]["neighbors"]]
    assert back == [list(line) for line in audit.cases.neighbors]
    assert [s["row"] for s in data["suspects"]] == [s.row for s in audit.labels.suspects]


def test_a_page_keeps_to_its_size_and_says_what_it_left_out(digits):
    audit, media, text, _ = digits
    small = render(audit, media, max_mb=0.3)
    assert len(small.encode()) <= 300_000 < len(text.encode())
    shown = int(re.search(r"(\d+) of 320 cases have a card", small).group(1))
    assert 0 < shown < 320


def test_the_same_record_gives_the_same_page(digits):
    audit, media, text, _ = digits
    assert render(audit, media) == text
    assert render(Audit.from_json(audit.to_json()), media) == text


def test_hostile_names_stay_text():
    plain, media = text_audit()
    audit, bad_media = hostile_audit()
    calm, page = Page(render(plain, media)), Page(render(audit, bad_media))
    names = lambda p: {tag for tag, _ in p.tags}
    assert names(page) <= names(calm)
    assert len(page.all("script")) == len(calm.all("script")) == 2
    for _, attrs in page.tags:
        assert not any(key.startswith("on") for key in attrs)
        assert not any((attrs.get(key) or "").startswith("javascript") for key in ("href", "src"))
    said = "".join(page.texts)
    assert HOSTILE[0] in said
    assert "49" not in said.split("{{ 7*7 }}")[1][:5]
    assert "\x00" not in said


def test_sections_without_content_are_not_shown_and_limits_says_so():
    audit, _ = table_audit()
    bare = dataclasses.replace(
        audit,
        layers=None,
        network=None,
        map=None,
        stress=None,
        credibility=None,
        borders=None,
        labels=None,
        risk_coverage=None,
        sweep=None,
        duplicates=None,
        hubs=None,
        prior_shift=None,
        class_facts=(),
        planted=(),
        warnings=(),
        not_checked={"layers": "Layers need the model: pass --model."},
    )
    page = Page(render(bare))
    said = " ".join(" ".join(page.texts).split())
    assert [attrs["id"] for attrs in page.all("section") if "id" in attrs] == [
        *("cases", "trust", "limits")
    ]
    assert said.count("Layers need the model: pass --model .") == 1
    assert "Nothing to show: map, labels, credibility, classes, network, stress." in said


def test_every_query_row_is_a_point_of_the_page_also_without_a_card(digits):
    audit, media, *_ = digits
    small = render(audit, media, max_mb=0.3)
    packed = re.search(r'id="data">([^<]*)<', small).group(1)
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert len(data["cases"]["row"]) < 320
    assert all(len(data["points"][key]) == 320 for key in ("verdict", "label", "confidence"))
    assert len(data["points"]["maps"][0]["x"]) == 320


def test_the_opening_counts_what_the_record_has(digits):
    audit, *_, page = digits
    accept, labels, scope = tiles(audit)
    rows = [i for i, verdict in enumerate(audit.cases.verdict) if verdict == "supported"]
    wrong = sum(audit.cases.label[i] != audit.cases.predicted[i] for i in rows)
    assert accept.rows == len(rows)
    assert f"{wrong} of the {len(rows)} with a label are wrong" in accept.detail
    assert labels.rows == len(audit.labels.suspects)
    assert scope.rows == audit.verdict_counts()["unfamiliar"]
    review, people, ship = actions(audit)
    effect = audit.labels.effects[-1]
    assert f"{100 * effect.accuracy_after:.1f} %" in review.effect
    assert review.command == f"{audit.provenance.command} --apply decisions.csv"
    assert f"Send {320 - len(rows)} rows to people" in people.title
    every = sum(a != b for a, b in zip(audit.cases.label, audit.cases.predicted, strict=True))
    assert f"{every - wrong} of the {every} errors" in people.effect
    assert f"{audit.risk_coverage.chosen.value:.2f}" in ship.title
    said = " ".join(" ".join(page.texts).split())
    assert all(tile.detail in said for tile in (accept, labels, scope))
    assert all(action.effect in said for action in (review, people, ship))


def test_an_unreachable_target_is_no_advice_to_ship(digits):
    audit, *_ = digits
    never = dataclasses.replace(audit.risk_coverage.chosen, value=None, target=0.999)
    curve = dataclasses.replace(audit.risk_coverage, chosen=never)
    *_, ship = actions(dataclasses.replace(audit, risk_coverage=curve))
    assert ship.effect.startswith("No threshold reaches an accuracy of 99.9 %")
    assert ship.command == ""


@pytest.mark.parametrize(("target", "value"), [(0.58, 0.3), (0.999, None)])
def test_nothing_is_called_safe_below_ninety_percent_or_without_a_promise(digits, target, value):
    audit, *_ = digits
    assert tiles(audit)[0].title == "Safe to accept"
    pick = dataclasses.replace(audit.risk_coverage.chosen, value=value, target=target)
    curve = dataclasses.replace(audit.risk_coverage, chosen=pick)
    found = dataclasses.replace(audit, risk_coverage=curve)
    said = "58 % at least" if value else "99.9 % not promised"
    assert tiles(found)[0].title == f"Supported, {said}"
    *_, ship = actions(found)
    assert ship.title == ("Ship with confidence ≥ 0.300, if 58 % will do" if value else
                          "Choose another target")  # fmt: skip


def test_only_two_warnings_are_open_at_the_top_and_the_command_is_printed_once(digits):
    audit, *_ = digits
    many = dataclasses.replace(
        audit,
        warnings=tuple(f"warning number {i}" for i in range(5)),
        provenance=dataclasses.replace(audit.provenance, reproduce=audit.provenance.command),
        labels=None,
    )
    text = render(many)
    top = text[: text.index('<div class="columns">')]
    assert top.index("Warning number 1") < top.index("3 more warnings") < top.index("number 2")
    assert text.count(many.provenance.command) == 1


def test_a_query_without_labels_has_a_page_too():
    audit, media = table_audit()
    n = len(audit.cases.id)
    unlabeled = dataclasses.replace(
        audit,
        heads=(),
        recommended="",
        cases=dataclasses.replace(audit.cases, label=(None,) * n),
        risk_coverage=None,
        not_checked={"heads": "The query has no labels.", "threshold": "below 0.9 it is contested"},
    )
    said = " ".join(Page(render(unlabeled, media)).texts)
    assert "The query has no labels" in said
    assert said.index("No threshold was chosen: below 0.9 it is contested.") < said.index("Limits")


def test_saving_writes_what_rendering_gives(tmp_path, digits):
    audit, media, text, _ = digits
    save_report(audit, tmp_path / "a.html", media)
    assert (tmp_path / "a.html").read_text() == text
    dataclasses.replace(audit, media=media).save(tmp_path / "b.html")
    assert (tmp_path / "b.html").read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(digits):
    audit, media, *_ = digits
    frame = Page(dataclasses.replace(audit, media=media)._repr_html_())
    (attrs,) = frame.all("iframe")
    assert attrs["sandbox"] == "allow-scripts allow-downloads"
    assert attrs["srcdoc"] == render(audit, media, max_mb=6.0)
    assert len(Page(notebook_frame(audit)).tags) == 1


def test_the_live_form_asks_its_own_server_and_holds_no_data():
    audit, media = image_audit()
    files = live_files(audit, media, token="a&b")
    page = Page(files["index.html"].decode())
    assert "connect-src 'self'" in page.policy
    assert ("html", {"lang": "en", "data-live": None, "data-token": "a&b"}) in page.tags
    assert "sprites.css?token=a%26b" in [a["href"] for a in page.all("link")]
    assert json.loads(files["data.json"])["total"] == len(audit.cases.id)
    assert files["sprites.css"].startswith(b".s0{background-image:url(data:image/")


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_can_be_read_on_its_ground_in_light_and_dark(digits):
    style = digits[3].raw["style"][0]
    blocks = re.findall(r"\{([^{}]*--paper:[^{}]*)\}", style)
    assert len(blocks) >= 3
    for block in blocks[:3]:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for ground in ("paper", "sheet"):
            for ink in ("ink", "quiet", "accent", "other", "unfamiliar", "better"):
                pair = sorted((luminance(colors[ground]), luminance(colors[ink])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (ground, ink)


def test_a_comparison_is_a_page_without_a_script(tmp_path):
    record = comparison()
    text = render_compare(record)
    page = Page(text)
    assert not page.all("script")
    assert page.policy.startswith("default-src 'none'")
    said = " ".join(" ".join(page.texts).split())
    assert "Better: coverage at 99 %; worse: ECE (NED)." in said
    assert "−0.60 to +0.20" in said
    assert "no evidence" in said
    assert HOSTILE[0] in said
    save_compare(record, tmp_path / "compare.html")
    assert (tmp_path / "compare.html").read_text() == text


def test_heads_of_a_comparison_are_told_apart_by_their_names():
    some = next(d for d in comparison().deltas if d.low is not None)
    names = ("logistic regression, raw", "logistic regression, scaled")
    lines = [dataclasses.replace(some, name=f"nll_{n}", title=f"NLL of {n}") for n in names]
    assert all(f">{name}<" in forest(lines) for name in names)


def test_a_number_and_its_sign_of_percent_stay_on_one_line():
    audit, media = table_audit()
    said = "".join(Page(render(audit, media)).texts)
    lines = [line for line in (*headline(audit), *effect_sentences(audit)) if " %" in line]
    assert lines
    assert all(line.replace(" %", "\u00a0%") in said for line in lines)


def test_a_gate_says_in_words_which_way_its_measure_moved():
    page = " ".join(" ".join(Page(render_compare(comparison())).texts).split())
    assert "may not rise by more than 1 point; it rose by 2 points" in page
    assert "may not fall by more than 2 points; it fell by 0.2 points" in page
    gates = [Gate("accuracy<80%", 0.858, True), Gate("nll > +5%", -0.17, True)]
    said = [gate_words(gate, comparison()) for gate in gates]
    assert said[0] == "accuracy may not be less than 80 %; it is 85.8 %"
    assert said[1].endswith("may not rise by more than 0.05; it fell by 0.17")


def test_one_wide_interval_does_not_hide_the_others():
    found = comparison()
    accuracy, ece, coverage, _ = found.deltas
    wide = dataclasses.replace(coverage, low=-0.9, high=0.04)
    chart = str(share_chart([accuracy, ece, wide]))
    whiskers = re.findall(r'class="whisker" x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"', chart)
    lengths = [float(b) - float(a) for a, b in whiskers]
    assert len(lengths) == 3
    assert min(lengths) > 6  # of 440, where 0.008 of 2.07 would be 1.4
    assert max(float(b) for _, b in whiskers) <= 440
    assert "goes on beyond it" in render_compare(found)
    odd = dataclasses.replace(found, changed=50)
    assert "25 fixed, 16 broken, 9 neither." in render_compare(odd)
    assert "25 fixed, 16 broken." in render_compare(found)


def test_every_difference_is_inside_its_chart_however_far_the_others_are():
    accuracy, ece, coverage, _ = comparison().deltas
    far = dataclasses.replace(coverage, delta=0.3, low=0.01, high=0.4)
    chart = str(share_chart([accuracy, ece, far]))
    dots = [float(x) for x in re.findall(r'class="dot \w[^"]*" cx="([\d.]+)"', chart)]
    ticks = [float(x) for x in re.findall(r'class="tick middle" x="([\d.]+)"', chart)]
    assert len(dots) == 3
    assert max(dots) < 440 - 16  # the plotting area ends there: at its edge a dot says "or more"
    assert min(b - a for a, b in itertools.pairwise(ticks)) > 40  # no tick stands on another


@pytest.mark.parametrize("length", [14, 18, 24, 30, 32, 40])
def test_names_that_begin_and_end_alike_are_told_apart_wherever_they_are_cut(length):
    """Every pair of names differs in a few letters only, at places that a cut would leave out."""
    start, end = "very_long_prefix_shared_by_all_", "_and_a_long_common_suffix"
    names = [f"{start}{middle}{end}" for middle in ("a", "b", "left", "lift", "1", "2")]
    names += [f"{i:03d}.birds_of_kind_{i}" for i in range(5)] + ["cat", "a name for itself alone"]
    shown = [name(text, length, names) for text in names]
    assert len(set(shown)) == len(names)
    assert all(len(text) <= length for text in shown)
    assert shown[-2] == "cat"
    assert name(names[0], length) == name(names[1], length)  # what it was
