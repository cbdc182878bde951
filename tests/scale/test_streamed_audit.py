"""An audit of shards is the audit in memory; sampled, it is close to it, and it can be resumed."""

import dataclasses
import itertools

import numpy as np
import pyarrow.parquet as parquet
import pytest

import vicinal
from vicinal.audits import sampled, scale
from vicinal.audits.settings import AuditSettings
from vicinal.checks import InputError

RAW = AuditSettings(space="raw", k=20)
OWN = ("provenance", "not_checked", "scale", "search", "warnings")  # what says how it was computed


def rows(n, seed=0, wrong=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    z = (rng.normal(size=(n, 4)) + 1.5 * y[:, None]).astype(np.float32)
    z[1::50] = z[::50]
    y[rng.permutation(n)[:wrong]] += 1
    return z, y % 3


SUPPORT, QUERY = rows(600, 0, wrong=20), rows(240, 1)


@pytest.fixture
def shards(tmp_path):
    for name, (z, y), cuts in (("s", SUPPORT, (0, 100, 101, 600)), ("q", QUERY, (0, 50, 240))):
        for a, b in itertools.pairwise(cuts):
            np.savez(tmp_path / f"{name}-{a:03d}.npz", Z=z[a:b], y=y[a:b])
    return {"support": f"{tmp_path}/s-*.npz", "query": f"{tmp_path}/q-*.npz"}


@pytest.fixture
def too_many(monkeypatch):
    """No audit fits into memory."""
    monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)


@pytest.fixture
def few_anchors(monkeypatch, too_many):
    """Of 600 support rows 200 are anchors, of 240 query rows 200 are sampled; parts are small."""
    monkeypatch.setattr(sampled, "ANCHORS", 200)
    monkeypatch.setattr(sampled, "PASS", 130)


@pytest.fixture(scope="module")
def in_memory():
    return vicinal.audit(support=SUPPORT, query=QUERY, settings=RAW)


def found(audit):
    return {name: part for name, part in audit.to_dict().items() if name not in OWN}


def test_shards_that_fit_are_audited_as_if_they_were_arrays(shards, in_memory):
    assert found(vicinal.audit(**shards, settings=RAW)) == found(in_memory)


def test_where_every_row_is_an_anchor_the_streamed_record_is_that_of_memory(
    shards, in_memory, too_many
):
    assert found(vicinal.audit(**shards, settings=RAW)) == found(in_memory)


def test_memory_maps_are_streamed_like_shards(tmp_path, in_memory, too_many):
    sets = {}
    for name, (z, y) in (("support", SUPPORT), ("query", QUERY)):
        np.save(tmp_path / f"{name}.npy", z)
        sets[name] = (np.load(tmp_path / f"{name}.npy", mmap_mode="r"), y)
    assert found(vicinal.audit(**sets, settings=RAW)) == found(in_memory)


def test_with_anchors_every_row_is_judged_and_counts_are_of_all_rows(
    shards, in_memory, few_anchors, tmp_path
):
    audit = vicinal.audit(**shards, settings=RAW, work=tmp_path / "work")
    facts = audit.scale
    assert (facts.support_rows, facts.anchors) == (600, 200)
    assert (facts.query_rows, facts.query_sample) == (240, 200)
    assert sum(audit.verdict_counts().values()) == 240
    assert audit.summary["suspects"] == facts.suspects > 0
    assert audit.data.support.rows == 600
    assert len(audit.labels.scores) == 600
    assert sum(part.support for part in audit.class_facts) == 600
    rank = np.corrcoef(audit.labels.scores, in_memory.labels.scores)[0, 1]
    assert rank > 0.9
    both = {s.row for s in audit.labels.suspects} & {s.row for s in in_memory.labels.suspects}
    assert len(both) >= 0.6 * facts.suspects
    samples = [parquet.read_table(p) for name, p in audit.parts.items() if "samples" in name]
    assert sum(map(len, samples)) == 240
    verdicts = [v.as_py() for table in samples for v in table["verdict"]]
    assert {v: verdicts.count(v) for v in audit.verdict_counts()} == audit.verdict_counts()
    assert f"fitted on {200:,} of {600:,} support rows" in facts.how


def test_neighbors_of_a_sampled_audit_are_those_of_all_rows(shards, in_memory, few_anchors):
    audit = vicinal.audit(**shards, settings=RAW)
    place = {name: at for at, name in enumerate(in_memory.cases.id)}
    for at, name in enumerate(audit.cases.id):
        assert audit.cases.neighbors[at] == in_memory.cases.neighbors[place[name]]
        assert audit.cases.distances[at] == in_memory.cases.distances[place[name]]


def test_more_neighbors_than_anchors_are_found_among_all_rows(shards, few_anchors):
    audit = vicinal.audit(**shards, settings=AuditSettings(space="raw", k=250))
    assert audit.data.k == 250
    with pytest.raises(InputError, match="k"):
        vicinal.audit(**shards, settings=AuditSettings(space="raw", k=600))


@pytest.mark.parametrize("all_fits", [True, False])
def test_logits_in_the_shards_of_a_query_make_a_softmax_head(
    shards, tmp_path, monkeypatch, all_fits
):
    (z, y), rng = QUERY, np.random.default_rng(2)
    logits = rng.normal(size=(240, 3)).astype(np.float32) + 2 * np.eye(3, dtype=np.float32)[y]
    for a, b in ((0, 50), (50, 240)):
        np.savez(tmp_path / f"q-{a:03d}.npz", Z=z[a:b], y=y[a:b], logits=logits[a:b])
    if not all_fits:
        monkeypatch.setattr(scale, "needed", lambda rows, settings: 1 << 60)
    arrays = vicinal.audit(support=SUPPORT, query=QUERY, logits=logits, settings=RAW)
    assert "softmax" in {head.name for head in arrays.heads}
    assert found(vicinal.audit(**shards, settings=RAW)) == found(arrays)
    with pytest.raises(InputError, match="one row per query row: 239 for 240 rows"):
        vicinal.audit(**shards, logits=logits[1:], settings=RAW)
    np.savez(tmp_path / "q-050.npz", Z=z[50:], y=y[50:])
    with pytest.raises(InputError, match="q-050.npz has no logits, other shards have"):
        vicinal.audit(**shards, settings=RAW)


class Stopped(BaseException):
    """As Ctrl-C, or a power cut between two blocks."""


@pytest.mark.parametrize("after", [1, 4, 6])
def test_a_run_that_was_stopped_goes_on_and_ends_like_one_that_was_not(
    shards, few_anchors, tmp_path, after
):
    whole = vicinal.audit(**shards, settings=RAW, work=tmp_path / "whole")
    seen = []

    def stop(*done):
        seen.append(done)
        if len(seen) == after:
            raise Stopped

    with pytest.raises(Stopped):
        vicinal.audit(**shards, settings=RAW, work=tmp_path / "work", progress=stop)
    finished = {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("*.parquet")}
    again = vicinal.audit(**shards, settings=RAW, work=tmp_path / "work")
    assert found(again) == found(whole)
    assert again.scale == whole.scale
    assert list(again.parts) == list(whole.parts)
    for name, path in again.parts.items():
        assert path.read_bytes() == whole.parts[name].read_bytes()
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())


def test_parts_of_other_labels_are_not_gone_on_with(shards, few_anchors, tmp_path):
    first = vicinal.audit(**shards, settings=RAW, work=tmp_path / "work")
    z, y = SUPPORT
    np.savez(tmp_path / "s-101.npz", Z=z[101:600], y=(y[101:600] + 1) % 3)
    again = vicinal.audit(**shards, settings=RAW, work=tmp_path / "work")
    assert list(again.labels.rows.given) != list(first.labels.rows.given)


def test_a_support_alone_is_judged_leave_one_out(shards, too_many):
    arrays = vicinal.audit(support=SUPPORT, settings=RAW)
    streamed = vicinal.audit(support=shards["support"], settings=RAW)
    assert found(streamed) == found(arrays)
    assert streamed.verdict_counts() == arrays.verdict_counts()


def test_every_row_of_a_support_alone_has_its_verdict_leave_one_out(shards, few_anchors, tmp_path):
    arrays = vicinal.audit(support=SUPPORT, settings=RAW)
    audit = vicinal.audit(support=shards["support"], settings=RAW, work=tmp_path / "work")
    parts = [parquet.read_table(path).to_pandas() for path in audit.parts.values()]
    verdicts = [verdict for part in parts for verdict in part["verdict"]]
    assert {v: verdicts.count(v) for v in audit.verdict_counts()} == audit.verdict_counts()
    assert len(verdicts) == 600
    predicted = np.array([int(name) for part in parts for name in part["predicted"]])
    assert np.mean(predicted == arrays.cases.predicted) > 0.9
    anchor = np.isin(arrays.cases.id, audit.cases.id)  # fitted on 200 rows, another head is kept
    for name in ("confidence", "familiarity"):
        column = np.array([value for part in parts for value in part[name]])
        pairs = column, np.array(getattr(arrays.cases, name))
        sample, others = (
            np.corrcoef(pairs[0][some], pairs[1][some])[0, 1] for some in (anchor, ~anchor)
        )
        assert others > sample - 0.05
    assert "verdict leave-one-out" in audit.scale.how
    assert "verdicts" not in audit.not_checked


def test_rows_beyond_the_sample_are_as_familiar_as_they_are_in_memory(
    in_memory, few_anchors, tmp_path
):
    """The classes' Gaussians are of the anchors, and no others of the rows that come first."""
    z, y = (part[SUPPORT[1].argsort(kind="stable")] for part in SUPPORT)
    audit = vicinal.audit(
        support=(z, y), query=QUERY, settings=RAW, work=tmp_path / "work", memory="16GB"
    )
    samples = [parquet.read_table(p) for name, p in audit.parts.items() if "samples" in name]
    familiar = np.array([v.as_py() for table in samples for v in table["familiarity"]])
    new = ~np.isin(in_memory.cases.id, audit.cases.id)
    assert new.sum() == 40
    gap = familiar[new] - np.array(in_memory.cases.familiarity)[new]
    assert np.abs(gap).mean() < 0.13  # 0.10; 0.17 with rows of one class alone


def test_the_space_is_chosen_by_the_anchors_among_all_there_are(shards, few_anchors):
    audit = vicinal.audit(**shards, settings=AuditSettings(k=20, map="none"))
    assert set(audit.data.space.losses) >= {"raw", "unit", "standardized", "whitened"}


def test_a_space_that_looks_at_labels_is_that_of_memory_where_every_row_is_an_anchor(
    shards, too_many
):
    settings = AuditSettings(space="whitened", k=20, map="none")
    arrays = vicinal.audit(support=SUPPORT, query=QUERY, settings=settings)
    assert arrays.duplicates.within_support == len(SUPPORT[0][::50]) + len(SUPPORT[0][1::50])
    assert found(arrays) == found(vicinal.audit(**shards, settings=settings))


def test_no_anchor_is_judged_in_a_map_that_saw_its_label(tmp_path, few_anchors):
    """Of labels by chance a map of 200 rows of 60 columns learns what it is told."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(600, 60)).astype(np.float32), rng.integers(0, 3, 600)
    settings = AuditSettings(space="whitened", k=10, map="none")
    audit = vicinal.audit(support=(z, y), settings=settings, memory="100GB", work=tmp_path)
    assert audit.data.space.name == "whitened"
    ned = next(head for head in audit.heads if head.name == "ned")
    assert ned.accuracy < 0.45
    assert np.mean([row > 0.5 for row in audit.labels.rows.p_given]) < 0.2


def test_too_little_memory_is_a_sentence_that_says_how_much_it_takes(shards, few_anchors):
    with pytest.raises(InputError, match="--memory 10 MB is too little: .* take [0-9]+ MB"):
        vicinal.audit(**shards, settings=RAW, memory="10MB")
    with pytest.raises(InputError, match="must be a size like 2GB or 512MB, got 'much'"):
        vicinal.audit(**shards, settings=RAW, memory="much")


def test_many_classes_take_more_than_2_gb_where_nothing_is_said_and_are_refused_where_it_is(
    shards, few_anchors, monkeypatch
):
    monkeypatch.setattr(scale, "ANSWERS", 2 << 20)  # as if there were thousands of classes
    with pytest.raises(InputError, match="--memory 2048 MB is too little"):
        vicinal.audit(**shards, settings=RAW, memory="2GB")
    assert vicinal.audit(**shards, settings=RAW).scale.support_rows == len(SUPPORT[1])


def test_sets_that_differ_in_width_or_lack_labels_are_a_sentence(shards, few_anchors, tmp_path):
    np.savez(tmp_path / "narrow.npz", Z=QUERY[0][:, :2])
    with pytest.raises(InputError, match="`support` has 4 columns but `query` has 2"):
        vicinal.audit(support=shards["support"], query=tmp_path / "narrow.npz", settings=RAW)
    np.savez(tmp_path / "bare.npz", Z=SUPPORT[0])
    with pytest.raises(InputError, match="`support` has no labels"):
        vicinal.audit(support=tmp_path / "bare.npz", query=shards["query"], settings=RAW)


def test_the_head_of_a_sampled_audit_stands_on_the_anchors_and_names_rows_of_the_files(
    shards, few_anchors, tmp_path
):
    audit = vicinal.audit(**shards, settings=RAW)
    audit.head.save(tmp_path / "trust.vic")
    head = vicinal.load(tmp_path / "trust.vic")
    assert head.made_from.sample_of == 600
    assert len(head.ned.ids_) == 200
    out = head.predict(SUPPORT[0][head.ned.ids_[:50]])
    assert (out.distances[:, 0] == 0).all()
    twins = SUPPORT[0][out.neighbors[:, 0]] == SUPPORT[0][head.ned.ids_[:50]]
    assert twins.all()
    new = head.predict(QUERY[0])
    assert (new.label == QUERY[1]).mean() > 0.8
    assert set(new.verdict) > {"supported"}


def test_the_head_of_a_support_alone_is_fitted_leave_one_out(shards, few_anchors):
    audit = vicinal.audit(support=shards["support"], settings=RAW)
    assert audit.head.standards.source == "leave-one-out"
    assert "trust.vic stands on the 200 rows alone" in audit.scale.how


def test_a_record_with_its_scale_survives_json(shards, few_anchors):
    audit = vicinal.audit(**shards, settings=RAW)
    back = type(audit).from_json(audit.to_json())
    assert back == dataclasses.replace(audit, head=None, media=None, parts={})
