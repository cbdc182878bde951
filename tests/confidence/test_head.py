"""TrustHead: verdicts, credibility, files; each number against a loop or a planted case."""

import dataclasses
import json
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import reference
import vicinal
from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier, NEDLinear, TrustHead, bundle, load
from vicinal.confidence.blend import fit_blend
from vicinal.confidence.verdicts import VERDICTS, conformal_p, judge, reasons, verdict_codes
from vicinal.evaluation import threshold_for_accuracy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def rows(rng, n):
    """Two classes that overlap a little, in three dimensions."""
    y = torch.arange(n) % 2
    return torch.randn(n, 3, generator=rng).double() + 1.2 * y[:, None], y


@pytest.fixture
def head(rng):
    ned = NEDClassifier(k=20)
    return TrustHead.fit(rows(rng, 300), rows(rng, 200), ned=ned, target_accuracy=0.8)


def test_credibility_is_the_conformal_rank_of_disagreeing_neighbors(rng):
    support, calib, new = rows(rng, 120), rows(rng, 60), rows(rng, 10)[0]
    head = TrustHead.fit(support, calib, ned=NEDClassifier(k=9))
    out = head.predict(new)

    def disagreeing(row, label):
        near = reference.nearest_rows(row, support[0], 9)
        return sum(int(support[1][i]) != int(label) for _, i in near)

    held = [disagreeing(r, c) for r, c in zip(*calib, strict=True)]
    for row, label, p in zip(new, out.label, out.credibility, strict=True):
        mine = disagreeing(row, label)
        assert_close(float(p), (1 + sum(h >= mine for h in held)) / 61)


def test_percentiles_are_shares_of_held_out_rows(rng):
    support, calib, new = rows(rng, 120), rows(rng, 60), rows(rng, 10)[0]
    head = TrustHead.fit(support, calib, ned=NEDClassifier(k=9))
    out = head.predict(new)
    held = [reference.nearest_rows(r, support[0], 9)[4][0] for r in calib[0]]
    for row, share in zip(new, out.near_percentile, strict=True):
        fifth = reference.nearest_rows(row, support[0], 9)[4][0]
        assert_close(float(share), 100 * sum(h < fifth for h in held) / 60)


def test_each_verdict_is_told_on_the_row_it_was_planted_for(head, rng):
    x, y = head.ned.support_.rows, head.ned.support_.labels.codes
    between = torch.full((1, 3), 0.6).double()
    deep = torch.full((1, 3), -0.3).double()
    out = head.predict(torch.cat([deep, between, torch.full((1, 3), 40.0).double()]))
    assert out.verdict.tolist() == ["supported", "contested", "unfamiliar"]
    assert float(out.confidence[2]) > 0.9  # shares of next to nothing: why the verdict is needed
    assert "confidence not meaningful" in out.reason[2]
    votes = out.neighbor_labels[0]
    share = float(out.weights[0][votes == 0].sum())
    assert out.reason[0].startswith(f"neighbors class 0 {100 * share:.0f} %")
    assert sum(out.counts().values()) == 3
    crowded = head.predict(deep, crowding=[0.4])
    assert crowded.verdict.tolist() == ["isolated"]
    assert "0.4 %" in crowded.reason[0]
    assert "by itself no sign of an error" in crowded.reason[0]
    assert len(x) == len(y) == 300


def test_one_calibration_row_fits_a_head_without_a_word_of_numpy(rng):
    x, y = rows(rng, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        head = TrustHead.fit((x, y), (x[:1] + 0.01, y[:1]))
    assert np.isfinite(np.asarray(head.predict(x).confidence)).all()


def test_a_row_without_close_neighbors_at_an_ordinary_kth_distance_is_isolated(rng):
    x, y = rows(rng, 400)
    ned = NEDClassifier(k=100, temperature=0.05)
    head = TrustHead.fit((x, y), rows(rng, 300), ned=ned)
    held = head.standards
    gap = head.predict(x)  # on the support every row has itself as a close neighbor
    assert not (gap.verdict == "isolated").any()
    low = held.log_densities[0] - 1
    codes = verdict_codes(held, *(torch.tensor([v]) for v in (50.0, 0.0, 0.9, 0.99)))
    assert VERDICTS[int(codes[0])] == "isolated"
    assert low < held.log_densities[3]


def test_the_order_of_the_verdicts_is_unfamiliar_isolated_contested(head):
    held = head.standards
    told = lambda *v: VERDICTS[int(verdict_codes(held, *(torch.tensor([x]) for x in v))[0])]
    assert told(99.5, 0.0, 0.01, 0.2) == "unfamiliar"
    assert told(50.0, 0.0, 0.01, 0.2) == "isolated"
    assert told(50.0, 60.0, 0.01, 1.0) == "contested"
    assert told(50.0, 60.0, 0.50, 1.0) == "supported"


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("held_out", [True, False])
def test_no_more_ordinary_rows_are_called_unfamiliar_than_promised(rng, rate, held_out):
    calib = rows(rng, 1000) if held_out else None
    ned = NEDClassifier(k=20)
    head = TrustHead.fit(rows(rng, 1000), calib, ned=ned, unfamiliar=rate)
    share = (head.predict(rows(rng, 3000)[0]).verdict == "unfamiliar").mean()
    noise = 3 * (rate * (1 - rate) * (1 / 1000 + 1 / 3000)) ** 0.5
    assert 0 < share < rate + noise


def test_the_p_value_is_kept_in_the_file_and_a_head_without_it_goes_by_distance(
    head, rng, tmp_path
):
    x = torch.cat([rows(rng, 30)[0], torch.full((1, 3), 9.0).double()])
    again = load(head.save(tmp_path / "head.vic")).predict(x)
    assert torch.equal(again.familiarity, head.predict(x).familiarity)
    assert again.verdict[-1] == "unfamiliar"
    assert "more foreign than" in again.reason[-1]
    old = TrustHead(head.ned, dataclasses.replace(head.standards, familiarity=None))
    told = load(old.save(tmp_path / "old.vic")).predict(x)
    assert told.familiarity is None
    assert "farther than" in told.reason[-1]
    assert ((told.verdict == "unfamiliar") == (told.near_percentile >= 99).numpy()).all()


def test_few_calibration_rows_leave_the_ranks_to_the_support(rng):
    head = TrustHead.fit(rows(rng, 300), rows(rng, 12), ned=NEDClassifier(k=20))
    assert len(head.standards.familiarity.ranks.combined) == 300
    assert head.predict(torch.full((1, 3), 40.0).double()).verdict.tolist() == ["unfamiliar"]


def test_an_edited_support_has_its_own_surroundings(head, rng):
    far = torch.full((40, 3), 30.0).double() + torch.randn(40, 3, generator=rng).double()
    assert (head.predict(far).verdict == "unfamiliar").all()
    head.add(far[:20], torch.zeros(20, dtype=torch.long))
    assert (head.predict(far[20:]).verdict != "unfamiliar").any()


def test_credibility_of_right_labels_is_a_valid_p_value(rng):
    head = TrustHead.fit(rows(rng, 300), rows(rng, 500), ned=NEDClassifier(k=20))
    x, y = rows(rng, 2000)
    labels = head.ned.neighborhood_of(x).labels
    p = conformal_p(head.standards.disagreements, (labels != y[:, None]).sum(1))
    for level in (0.05, 0.1, 0.3):
        assert float((p <= level).double().mean()) <= level + 0.04


def test_fit_and_evaluation_promise_the_same_threshold_on_the_same_rows(rng):
    (x, y), (x_cal, y_cal) = rows(rng, 300), rows(rng, 400)
    head = TrustHead.fit(
        (x, y), (x_cal, y_cal), ned=NEDClassifier(k=20, temperature=0.5), target_accuracy=0.9
    )
    p = head.predict_proba(x_cal)
    said = threshold_for_accuracy(p.amax(1), p.argmax(1) == y_cal, 0.9)
    assert said.reachable
    assert head.standards.threshold == said.threshold


def test_reasons_sum_the_weights_as_a_plain_counter_would_and_never_contradict_the_answer(
    head, rng
):
    x = torch.randn(60, 3, generator=rng).double() * 1.5
    out = head.predict(x, crowding=np.linspace(0, 100, 60))
    assert set(out.verdict) == set(VERDICTS)
    for row, verdict in enumerate(out.verdict):
        votes = Counter()
        for label, weight in zip(out.neighbor_labels[row], out.weights[row], strict=True):
            votes[int(label)] += float(weight)
        some = [(name, share) for name, share in votes.most_common(3) if share >= 5e-3]
        split = " · ".join(f"class {name} {100 * share:.0f} %" for name, share in some)
        if verdict in ("contested", "supported"):
            assert out.reason[row].startswith(f"neighbors {split}")
            assert out.reason[row].split()[2] == str(int(out.label[row]))
        assert out.reason[row]


def test_a_head_judges_exactly_as_the_one_judge(head, rng):
    x = torch.randn(40, 3, generator=rng).double()
    out, near = head.predict(x), head.ned.neighborhood_of(x)
    scores = head.surroundings.scores(x, near, head.ned.parameters_)
    said = judge(
        near, out.label, out.confidence, head.ned.parameters_, head.standards, None, scores
    )
    assert torch.equal(out.credibility, said.credibility)
    assert [VERDICTS[code] for code in said.codes] == out.verdict.tolist()
    names = [str(name) for name in head.classes_]
    asked = said, near, out.label, out.confidence, head.standards, names, out.weights
    assert out.reason == reasons(*asked)


def test_a_row_without_a_clear_majority_is_contested_however_low_the_threshold(head):
    from dataclasses import replace

    easy = replace(head.standards, threshold=0.3)
    ordinary = [torch.tensor([v]) for v in (50.0, 60.0, 0.5)]
    told = [VERDICTS[int(verdict_codes(easy, *ordinary, torch.tensor([c]))[0])] for c in (0.6, 0.7)]
    assert told == ["contested", "supported"]


def test_where_no_level_can_be_promised_a_row_needs_the_target_itself_as_confidence(rng):
    x, y = rows(rng, 100)
    noise = y[torch.randperm(100, generator=rng)]
    head = TrustHead.fit((x, noise), ned=NEDClassifier(k=10), target_accuracy=0.99)
    out = head.predict(x[:20])
    assert not head.standards.reachable
    assert head.standards.level == 0.99
    ordinary = np.isin(out.verdict, ["contested", "supported"])
    below = np.asarray(out.confidence) < 0.99
    assert (out.verdict[ordinary & below] == "contested").all()
    said = out.reason[int(np.flatnonzero(ordinary & below)[0])]
    assert said.endswith("confidence below 0.99, and no level is shown to keep 99 %")


def test_edits_keep_a_leave_one_out_head_fresh_and_mark_a_calibrated_one(rng):
    (x, y), more = rows(rng, 150), rows(rng, 20)
    head = TrustHead.fit((x, y), ned=NEDClassifier(k=10)).add(more[0], more[1] + 2)
    assert head.stale_ == ()
    assert head.classes_.tolist() == [0, 1, 2, 3]
    assert len(head.standards.near_distances) == 170
    held = TrustHead.fit((x, y), rows(rng, 50), ned=NEDClassifier(k=10))
    held.remove([0]).relabel([5], [1])
    assert "temperature_" in held.stale_
    assert held.recalibrate(*rows(rng, 50)).stale_ == ()


def test_numpy_rows_with_string_labels_come_back_as_strings(rng):
    x, y = rows(rng, 100)
    names = np.array(["cat", "dog"])[y.numpy()]
    ned = NEDClassifier(k=10)
    head = TrustHead.fit((x.numpy(), names), ned=ned, target_accuracy=0.7)
    out = head.predict(x.numpy()[:5])
    assert set(out.label) <= {"cat", "dog"}
    assert isinstance(out.credibility, np.ndarray)
    assert "neighbors cat" in head.predict(np.full((1, 3), -0.3)).reason[0]


def test_soft_labels_are_refused(rng):
    x, y = rows(rng, 40)
    with pytest.raises(InputError, match="must be hard"):
        TrustHead.fit((x, torch.eye(2)[y]), ned=NEDClassifier(k=5))


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("labels", ["int", "str", "object", "soft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_ned_predicts_bit_for_bit_the_same(rng, tmp_path, labels, dtype):
    x, y = rows(rng, 90)
    named = {
        "int": y.numpy() * 7,
        "str": np.array(["a", "bb"])[y.numpy()],
        "object": np.array(["a", "bb"], dtype=object)[y.numpy()],
        "soft": torch.eye(2)[y],
    }
    options = {"sharpness": "fit", "background": "fit", "bandwidth": "class"}
    ned = NEDClassifier(k=15, prior=[0.3, 0.7], **options)
    ned.fit(x.to(dtype), named[labels]).remove([4])
    again = load(ned.save(tmp_path / "ned.vic"))
    assert torch.equal(again.predict_log_proba(x.to(dtype)), ned.predict_log_proba(x.to(dtype)))
    assert again.classes_.dtype == ned.classes_.dtype
    assert again.ids_.tolist() == ned.ids_.tolist()
    assert torch.equal(again.loo_proba_, ned.loo_proba_)
    assert {k: str(v) for k, v in again.get_params().items()} == {
        k: str(np.asarray(v) if k == "prior" else v) for k, v in ned.get_params().items()
    }
    again.add(x[:3].to(dtype), named[labels][:3])
    assert again.ids_[-1] == 92


def test_a_saved_head_judges_bit_for_bit_the_same(head, rng, tmp_path):
    new = rows(rng, 40)[0]
    again = vicinal.load(head.save(tmp_path / "trust.vic"))
    one, two = head.predict(new), again.predict(new)
    for name in ("label", "confidence", "credibility", "near_percentile", "neighbors", "weights"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert one.reason == two.reason
    assert one.verdict.tolist() == two.verdict.tolist()


def test_limits_of_temperature_survive_the_file(rng, tmp_path):
    x, y = rows(rng, 30)
    for t in (0.0, float("inf")):
        ned = NEDClassifier(k=5, temperature=t).fit(x, y)
        again = load(ned.save(tmp_path / "limit.vic"))
        assert again.temperature_ == again.temperature == t


def test_the_file_is_plain_safetensors_with_a_page_of_json(head, tmp_path):
    from safetensors import safe_open

    with safe_open(head.save(tmp_path / "t.vic"), framework="pt") as file:
        page = json.loads(file.metadata()["vicinal"])
        assert file.get_tensor("support").shape == (300, 3)
    assert page["classes"]["names"] == [0, 1]


def test_saving_leaves_one_whole_file_and_nothing_else(head, tmp_path):
    path = tmp_path / "t.vic"
    path.write_text("an older file")
    head.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.vic"]
    load(path)


def test_files_that_are_no_whole_head_are_refused_with_a_sentence(head, tmp_path):
    path = head.save(tmp_path / "t.vic")
    data = path.read_bytes()
    (tmp_path / "cut.vic").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.vic").write_bytes(b"")
    (tmp_path / "text.vic").write_text("hello, this is no head at all")
    flipped = bytearray(data)
    flipped[-5] ^= 1
    (tmp_path / "flipped.vic").write_bytes(bytes(flipped))
    save_file({"w": torch.zeros(2)}, tmp_path / "foreign.vic")
    newer = data.replace(b'"version":"1"', b'"version":"9"')
    assert newer != data
    (tmp_path / "newer.vic").write_bytes(newer)
    for name, words in {
        "cut": "not a whole .vic file",
        "empty": "not a whole .vic file",
        "text": "not a whole .vic file",
        "flipped": "checksum does not match",
        "foreign": "not a vicinal head",
        "newer": "format version 9",
        "absent": "no such file",
    }.items():
        with pytest.raises(InputError, match=words):
            load(tmp_path / f"{name}.vic")
    with pytest.raises(InputError, match="does not exist"):
        head.save(tmp_path / "nowhere" / "t.vic")


def test_an_unknown_kind_of_bundle_is_refused(tmp_path):
    path = bundle.write(tmp_path / "x.vic", "other", {"w": torch.zeros(1)}, {})
    with pytest.raises(InputError, match="'other'"):
        load(path)


@pytest.fixture
def blended(rng):
    x, y = rows(rng, 120)
    return TrustHead.fit((x, y), rows(rng, 80), ned=NEDLinear(NEDClassifier(k=15)))


def test_a_head_with_a_linear_part_answers_as_the_blend_and_survives_its_file(
    blended, rng, tmp_path
):
    x = torch.randn(30, 3, generator=rng).double()
    out, alone = blended.predict(x), blended.model.judge(x)
    assert torch.equal(out.probabilities, alone.probabilities)
    assert torch.equal(out.linear_share, alone.linear_share)
    assert torch.equal(blended.predict_proba(x), out.probabilities)
    again = load(blended.save(tmp_path / "head.vic"))
    assert isinstance(again, TrustHead)
    back = again.predict(x)
    assert torch.equal(back.probabilities, out.probabilities)
    assert back.verdict.tolist() == out.verdict.tolist()
    assert back.reason == out.reason


def test_both_halves_of_held_out_rows_have_every_class_also_where_two_come_in_turn(
    rng, monkeypatch
):
    seen = []

    def spied(place, targets_of):
        fit = getattr(*place)
        watch = lambda *given, **options: seen.append(targets_of(*given)) or fit(*given, **options)
        monkeypatch.setattr(*place, watch)

    spied((vicinal.confidence.head, "fit_recipe"), lambda recipe, evidence, *_: evidence.targets)
    spied((vicinal.confidence.ned_linear, "fit_blend"), lambda ned, linear, targets: targets)
    ned = NEDClassifier(k=15, background="fit")
    TrustHead.fit(rows(rng, 120), rows(rng, 60), ned=NEDLinear(ned), target_accuracy=0.8)
    halves = [part for part in seen if len(part) == 30]
    assert len(halves) == 4
    assert all(torch.bincount(part).tolist() == [15, 15] for part in halves)


def test_the_blend_of_a_head_is_fitted_on_the_held_out_rows_and_its_threshold_out_of_fold(rng):
    x, y = rows(rng, 120)
    calib = rows(rng, 300)
    head = TrustHead.fit((x, y), calib, ned=NEDLinear(NEDClassifier(k=15)), target_accuracy=0.8)
    log_ned = head.ned.log_probs_of(head.ned.neighborhood_of(calib[0]))
    log_linear = head.model.linear_.predict_log_proba(calib[0])
    want = fit_blend(log_ned, log_linear, calib[1])
    assert tuple(head.model.blend_) == pytest.approx(tuple(want), abs=2e-3)
    assert head.standards.reachable
    assert head.standards.source == "held-out"


def test_edits_of_a_head_with_a_linear_part_follow_the_neighbors_and_say_what_is_stale(blended):
    x, y = blended.ned.support_.rows, blended.ned.support_.labels.codes
    before = blended.predict(x[:5])
    with pytest.raises(InputError, match="a class the linear part of this head does not know"):
        blended.add(x[:2], [0, 7])
    with pytest.warns(UserWarning, match="changed since calibration"):
        blended.add(x[:2] + 0.1, y[:2])
    assert "linear_" in blended.stale_
    assert len(blended.predict(x[:5])) == len(before)
    gone = blended.ned.ids_[(blended.ned.support_.labels.codes == 1).numpy()]
    with pytest.warns(UserWarning, match="changed since calibration"):
        blended.remove(gone)
    out = blended.predict(x[:5])
    assert out.probabilities.shape == (5, len(blended.classes_))


@pytest.mark.parametrize("given", [np.zeros((5, 2)), (np.zeros((5, 2)),), "train.npz", None])
def test_what_is_no_pair_of_rows_and_labels_is_a_sentence(given):
    with pytest.raises(InputError, match=r"`support` must be a pair \(Z, y\)"):
        TrustHead.fit(given)


def forged_blends():
    """Facts and tensors that no head with a linear part was saved with."""
    for name, odd in (("weights", "x"), ("weights", {"a": 1}), ("weights", [1, 2, 3, 4])):
        yield lambda t, f, n=name, v=odd: f["blend_options"].update({n: v})
    for odd in ("x", [0.5], 1.5):
        yield lambda t, f, v=odd: f["blend_options"].update(background=v)
    yield lambda t, f: t.update(blend=t["blend"][:2])
    yield lambda t, f: t.update(blend=torch.cat([t["blend"], t["blend"][:1]]))
    yield lambda t, f: t.update(blend=t["blend"] - torch.tensor([0, 0, 0, 9.0]))
    yield lambda t, f: t.update(blend_log_prior=-t["blend_log_prior"])
    yield lambda t, f: t.update(blend_log_prior=t["blend_log_prior"].bool())
    yield lambda t, f: f["options"].update(prior=None)


@pytest.fixture(scope="module")
def blended_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.arange(36) % 3
    path = tmp_path_factory.mktemp("blend") / "head.vic"
    NEDLinear().fit(rng.normal(size=(36, 4)) + 2 * y[:, None], y).save(path)
    return path


@pytest.mark.parametrize("forge", list(forged_blends()))
def test_a_forged_blend_is_refused_where_it_is_loaded(blended_file, tmp_path, forge):
    kind, tensors, facts = bundle.read(blended_file)
    forge(tensors, facts)
    bundle.write(tmp_path / "forged.vic", kind, tensors, facts)
    with pytest.raises(InputError):
        load(tmp_path / "forged.vic")
