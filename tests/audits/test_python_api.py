"""``vicinal.audit`` as people call it: plain keywords, data frames in and out, short words."""

import dataclasses

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import vicinal
from vicinal.audits import encoder
from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier
from vicinal.records import Record


def blobs(n, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (3 * np.eye(3, 5)[y] + rng.normal(size=(n, 5))).astype(np.float32), y


@pytest.fixture(scope="module")
def sets():
    return blobs(150), blobs(90, 1)


@pytest.fixture(scope="module")
def report(sets):
    support, query = sets
    return vicinal.audit(
        support=support,
        query=query,
        target_accuracy=0.8,
        class_names=["cat", "dog", "owl"],
        images=(np.zeros((150, 4, 4), np.uint8), np.zeros((90, 4, 4), np.uint8)),
        metric="auto",
        foreign=40 + support[0][:30],
        k=15,
        seed=3,
    )


def test_a_report_is_saved_as_a_page_and_as_nothing_else(report, tmp_path):
    with pytest.raises(InputError, match=r"not a \.pdf file\. Name it \.html"):
        report.save(tmp_path / "r.pdf")
    assert not any(tmp_path.iterdir())
    report.save(tmp_path / "r.HTML")
    assert (tmp_path / "r.HTML").read_text("utf-8").startswith("<!doctype html>")


def test_keywords_do_what_the_records_do(report):
    assert report.classes == ("cat", "dog", "owl")
    assert report.risk_coverage.chosen.target == 0.8
    assert report.media.kind == "images"
    assert report.media.get("query", 3).shape == (4, 4)
    assert report.unknowns.rows == 15
    assert report.provenance.seed == 3
    assert report.data.k == 15
    assert report.head.made_from.names == {"0": "cat", "1": "dog", "2": "owl"}
    with pytest.raises(InputError, match="metric"):
        vicinal.audit(support=blobs(60), metric="manhattan")


def test_samples_and_suspects_are_data_frames(report):
    samples, suspects = report.samples, report.suspects
    assert isinstance(samples, pandas.DataFrame)
    assert len(samples) == 90
    assert samples.verdict.value_counts().sum() == sum(report.verdict_counts().values())
    assert set(samples.predicted) <= {"cat", "dog", "owl"}
    assert len(suspects) == len(report.labels.suspects)
    assert {"row", "id", "given", "suggested", "p_given", "score"} <= set(suspects.columns)


def test_what_is_printed_says_what_is_inside_in_a_few_lines(report, sets):
    out = report.head.predict(sets[1][0])
    assert len(str(out).splitlines()) == 5
    assert "90 rows: supported" in str(out)
    assert "confidence" in str(out).splitlines()[0]
    assert "150 rows x 5, 3 classes; accepts confidence >=" in repr(report.head)
    for field in dataclasses.fields(report):
        part = getattr(report, field.name)
        assert len(repr(part)) < 2000 or not isinstance(part, Record), field.name
    assert "<90 values>" in repr(report.cases)
    bare = NEDClassifier(k=5).fit(*sets[0]).judge(sets[1][0])
    assert len(str(bare).splitlines()) == 5


def test_a_data_frame_is_audited_by_the_names_of_its_columns(sets):
    (z, y), (zq, yq) = sets
    names = np.array(["cat", "dog", "owl"])
    frame = lambda x, t: pandas.DataFrame(x, columns=list("abcde")).assign(species=names[t])
    alone = vicinal.audit(frame(z, y), label="species", k=15)
    assert alone.classes == ("cat", "dog", "owl")
    both = vicinal.audit(frame(z, y), frame(zq, yq), label="species", k=15)
    assert len(both.cases.id) == 90
    assert any("rows are compared by 5 columns: a, b, c, d, …" in text for text in both.warnings)
    lists = pandas.DataFrame(
        {"embedding": list(z), "label": y, "id": [f"r{i}" for i in range(150)]}
    )
    named = vicinal.audit(lists, k=15)
    assert named.cases.id[:2] == ("r0", "r1")
    with pytest.raises(InputError, match="no column 'specie' .*Did you mean label='species'"):
        vicinal.audit(frame(z, y), label="specie")
    with pytest.raises(InputError, match="name columns of a data frame"):
        vicinal.audit(support=(z, y), label="species")


def test_a_data_frame_of_image_paths_is_embedded_and_said_to_be(sets, tmp_path, monkeypatch):
    class Bright(torch.nn.Module):
        def forward(self, x):
            return torch.stack([x.mean((1, 2, 3)), x[:, 0].amax((1, 2))], 1)

    monkeypatch.setattr(encoder, "image_encoder", lambda: Bright())
    rng, paths, kinds = np.random.default_rng(0), [], []
    for row in range(60):
        kinds.append(("day", "night")[row % 2])
        pixels = np.clip(rng.normal(200 - 150 * (row % 2), 20, (8, 8, 3)), 0, 255)
        paths.append(str(tmp_path / f"{row}.png"))
        Image.fromarray(pixels.astype(np.uint8)).save(paths[-1])
    frame = pandas.DataFrame({"path": paths, "species": kinds, "width": [8] * 60})
    report = vicinal.audit(frame, label="species", image="path", k=10)
    assert report.cases.id[0] == "0.png"
    assert report.media.get("query", 0).shape == (48, 48, 3)
    assert any("EfficientNet-Lite0" in text for text in report.warnings)
    heads = {head.name: head for head in report.heads}
    assert heads[report.recommended].accuracy > 0.9


def test_the_page_is_shown_in_the_browser_outside_of_a_notebook(report, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = report.show()
    assert path.exists()
    assert opened == [path.as_uri()]
