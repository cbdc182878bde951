"""NEDLinear: what it reduces to, what it shows, what it keeps, and where it must not go wrong."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch.testing import assert_close

import vicinal
from reference import blend as plain_blend
from vicinal.checks import InputError
from vicinal.confidence import LinearClassifier, NEDClassifier, NEDLinear, bundle
from vicinal.confidence.blend import Blend, blended_log_probs, fit_blend, linear_share

NED = NEDClassifier(k=15, sharpness="fit", background="fit")


@pytest.fixture
def cloud(rng):
    y = torch.randint(0, 3, (150,), generator=rng)
    x = torch.randn(150, 4, generator=rng).double() + 1.2 * y[:, None]
    return x, y, torch.randn(25, 4, generator=rng).double() + 1.2


def log_loss(log_probs, y):
    return float(-np.asarray(log_probs)[np.arange(len(y)), np.asarray(y)].mean())


def shares(rng, n=40, c=3):
    return [torch.rand(n, c, generator=rng).double().log_softmax(1) for _ in range(2)]


def test_the_blend_is_the_loop(rng):
    near, line = shares(rng)
    near[0, 1] = -math.inf
    prior = torch.tensor([0.5, 0.3, 0.2]).double()
    for blend in (Blend(0.7, 0.4, 0.05), Blend(1.3, 0.0, 0.0), Blend(0.0, 2.0, 0.1),
                  Blend(0.6, 0.3, 0.02, 0.8), Blend(0.0, 0.3, 0.0, 1.0)):  # fmt: skip
        ours = blended_log_probs(near, line, prior.log(), blend).exp()
        for i, row in enumerate(ours):
            plain = plain_blend(near[i].exp(), line[i].exp(), prior, *blend)
            assert_close(row.tolist(), plain)


def test_without_weight_on_the_linear_part_it_is_ned(cloud):
    x, y, new = cloud
    head = NEDLinear(NEDClassifier(k=9), weights=(1, 0), background=0.0).fit(x, y)
    theirs = NEDClassifier(k=9).fit(x, y)
    assert_close(head.predict_log_proba(new), theirs.predict_log_proba(new), atol=1e-12, rtol=0)
    assert head.predict(new).tolist() == theirs.predict(new).tolist()
    assert head.judge(new).linear_share.tolist() == [0.0] * 25


def test_without_weight_on_the_neighbors_it_is_the_linear_head(cloud):
    x, y, new = cloud
    head = NEDLinear(NEDClassifier(k=2), weights=(0, 1), background=0.0).fit(x, y)  # zeros and all
    theirs = LinearClassifier().fit(x, y).predict_log_proba(new)
    assert_close(head.predict_log_proba(new), theirs, atol=1e-12, rtol=0)
    assert head.judge(new).linear_share.tolist() == [1.0] * 25


def test_the_fit_is_a_minimum_of_the_penalized_loss(cloud):
    x, y, _ = cloud
    head = NEDLinear(NED).fit(x, y)
    near = head.ned_.log_probs_of(head.ned_.loo_neighborhood())
    line = torch.from_numpy(head.linear_.oof_log_proba_)
    counts = torch.bincount(y) + 1 / 3 - torch.eye(3)[y]
    prior = (counts / counts.sum(1, keepdim=True)).double().log()

    def loss(a, b, eps, odds):
        off = (a - 0.5) ** 2 + (b - 0.5) ** 2 + (math.log(eps / (1 - eps)) + 6) ** 2
        log_p = blended_log_probs(near, line, prior, Blend(a, b, eps, odds))
        return (off + 16 * odds**2) / (2 * len(y)) + log_loss(log_p, y)

    best = head.blend_
    for change in ((1.05, 1, 1), (1, 1.05, 1), (0.95, 1, 1), (1, 0.95, 1), (1, 1, 1.3)):
        other = [v * factor for v, factor in zip(best[:3], change, strict=True)]
        assert loss(*best) <= loss(*other, best.odds)
    for odds in (best.odds + 0.05, max(best.odds - 0.05, 0)):
        assert loss(*best) <= loss(*best[:3], odds)


def test_votes_that_are_less_true_split_than_one_sided_count_as_odds(rng):
    true = torch.rand(4000, 1, generator=rng).double() * 6 - 3  # log odds of the first class
    codes = (torch.rand(4000, generator=rng) > true[:, 0].sigmoid()).long()
    log_true = torch.cat([true / 2, -true / 2], 1).log_softmax(1)
    even = torch.full_like(log_true, math.log(0.5))
    right = fit_blend(log_true, even, codes)
    assert right.odds < 0.1
    # Shares whose odds, not they themselves, say how often a class comes true; three classes.
    p = torch.rand(4000, 3, generator=rng).double().clamp_min(1e-3).log().neg() ** 1.5
    p = p / p.sum(1, keepdim=True)
    truth = (p / (1 - p)) / (p / (1 - p)).sum(1, keepdim=True)
    codes = torch.multinomial(truth, 1, generator=rng)[:, 0]
    odd = fit_blend(p.log(), torch.full_like(p, math.log(1 / 3)), codes)
    assert odd.odds > 0.3


@pytest.mark.parametrize("data", [load_digits, load_breast_cancer])
def test_together_they_do_as_well_as_the_better_one(data):
    x, y = data(return_X_y=True)
    x, y, new, truth = x[:300], y[:300], x[300:], y[300:]
    ned = NEDClassifier(k=50, sharpness="fit", background="fit", metric="cosine")
    head = NEDLinear(ned).fit(x, y)
    together, near, line = (
        log_loss(part.predict_log_proba(new), truth) for part in (head, head.ned_, head.linear_)
    )
    assert together < min(near, line) + 0.02
    assert together < max(near, line) - 0.02


def test_a_part_that_knows_nothing_is_left_out(rng):
    y = torch.arange(400) % 2
    knows = torch.stack([0.2 + 0.6 * (1 - y), 0.2 + 0.6 * y], 1).double()
    wrong = torch.rand(400, generator=rng) < 0.2  # as sure as it is right
    knows[wrong] = knows[wrong].flip(1)
    idle = (3 * torch.randn(400, 2, generator=rng).double()).log_softmax(1)
    assert fit_blend(knows.log(), idle, y).linear < 0.05
    assert fit_blend(idle, knows.log(), y).neighbors < 0.05
    assert fit_blend(knows.log(), idle, y).neighbors == pytest.approx(1, abs=0.25)


def test_rows_that_were_all_right_leave_a_floor_for_the_next():
    near = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double().repeat(10, 1).log()
    y = torch.tensor([0, 1]).repeat(10)
    blend = fit_blend(near, near.exp().clamp(0.01, 0.99).log(), y)
    assert blend.background >= 1 / 21
    even = torch.tensor([0.5, 0.5]).double().log()
    surprised = blended_log_probs(near[:1], near[:1].exp().clamp(0.01, 0.99).log(), even, blend)
    assert float(surprised[0, 1]) > -5


def test_out_of_fold_it_is_no_surer_than_on_new_rows():
    x, y = (
        part[np.random.default_rng(0).permutation(1797)] for part in load_digits(return_X_y=True)
    )
    head = NEDLinear(NED).fit(x[:600], y[:600])
    new = log_loss(head.predict_log_proba(x[600:]), y[600:])
    assert log_loss(head.oof_log_proba_, y[:600]) == pytest.approx(new, abs=0.04)
    assert head.oof_log_proba_.shape == (600, 10)


def test_the_judgement_shows_neds_neighbors_and_the_blends_answer(cloud):
    x, y, new = cloud
    head = NEDLinear(NED).fit(x, y)
    ours, theirs = head.judge(new), head.ned_.judge(new)
    assert_close(ours.neighbors, theirs.neighbors)
    assert_close(ours.weights, theirs.weights)
    assert_close(ours.probabilities, head.predict_proba(new))
    assert_close(ours.confidence, ours.probabilities.amax(1))
    assert ours.label.tolist() == head.predict(new).tolist()
    assert bool(((ours.linear_share >= 0) & (ours.linear_share <= 1)).all())


def test_the_linear_share_is_its_part_of_the_lead():
    near = torch.tensor([[0.7, 0.2, 0.1]]).double().log()
    line = torch.tensor([[0.5, 0.4, 0.1]]).double().log()
    even = torch.full((3,), 1 / 3).double().log()
    share = linear_share(near, line, even, Blend(2.0, 1.0, 0.0), torch.tensor([0]))
    by_near, by_line = 2 * math.log(0.7 / 0.2), math.log(0.5 / 0.4)
    assert float(share) == pytest.approx(by_line / (by_near + by_line))
    share = linear_share(near, line, even, Blend(2.0, 1.0, 0.0, 0.5), torch.tensor([0]))
    by_near += 0.5 * math.log((1 - 0.2) / (1 - 0.7))
    assert float(share) == pytest.approx(by_line / (by_near + by_line))


def test_equal_classes_share_the_lead_by_weight():
    even = torch.full((1, 2), 0.5).double().log()
    share = linear_share(even, even, even[0], Blend(1.0, 3.0, 0.0), torch.tensor([0]))
    assert float(share) == 0.75


def test_effects_are_those_of_relabeling_the_neighbors(cloud):
    x, y, new = cloud
    head = NEDLinear(NED).fit(x, y)
    effects = head.label_effects(new, ids=[3], new_labels=[2])
    assert "neighbors" in effects.exact_for
    before = head.predict_proba(new)
    head.ned_.relabel([3], [2], refit=False)
    after = head.predict_proba(new)[effects.query]
    assert_close(torch.from_numpy(effects.probabilities), after)
    was = before.argmax(1)[effects.query]
    assert effects.before.tolist() == was.tolist()
    assert effects.after.tolist() == after.argmax(1).tolist()
    assert_close(torch.from_numpy(effects.p_after), after.gather(1, was[:, None])[:, 0])
    assert effects.changed.tolist() == [int((after.argmax(1) != was).sum())]


def test_effects_on_queries_that_no_edit_touches_are_none(cloud):
    x, y, new = cloud
    head = NEDLinear(NEDClassifier(k=3)).fit(x, y)
    far = int(torch.cdist(new[:1], x).argmax())
    effects = head.label_effects(new[:1], ids=[far], new_labels=[0])
    assert effects.touched.tolist() == [0]
    assert len(effects.query) == 0


def test_it_comes_back_from_its_file_as_it_was(cloud, tmp_path):
    x, y, new = cloud
    head = NEDLinear(NED).fit(x, y)
    again = vicinal.load(head.save(tmp_path / "both.vic"))
    assert isinstance(again, NEDLinear)
    assert_close(again.predict_log_proba(new), head.predict_log_proba(new), rtol=0, atol=0)
    assert again.blend_ == head.blend_
    odds = NEDLinear(weights=(0.6, 0.5, 0.4), background=0.01).fit_parts(head.ned_, head.linear_)
    kept = vicinal.load(odds.save(tmp_path / "odds.vic"))
    assert kept.blend_ == Blend(0.6, 0.5, 0.01, 0.4)
    assert_close(kept.predict_proba(new), odds.predict_proba(new), rtol=0, atol=0)
    kind, tensors, facts = bundle.read(tmp_path / "odds.vic")
    tensors["blend"] = tensors["blend"][:3].clone()  # as files of before had it
    bundle.write(tmp_path / "before.vic", kind, tensors, facts)
    assert vicinal.load(tmp_path / "before.vic").blend_ == Blend(0.6, 0.5, 0.01)
    assert again.judge(new).neighbors.tolist() == head.judge(new).neighbors.tolist()
    alone = vicinal.load(head.linear_.save(tmp_path / "linear.vic"))
    theirs = head.linear_.predict_log_proba(new)
    assert_close(alone.predict_log_proba(new), theirs, rtol=0, atol=0)


def test_the_module_says_the_same_and_has_exact_gradients(cloud):
    x, y, new = cloud
    head = NEDLinear(NED).fit(x, y)
    odds = NEDLinear(weights=(0.6, 0.5, 0.4), background=0.01).fit_parts(head.ned_, head.linear_)
    for module, said in ((h.module(), h.predict_log_proba(new)) for h in (head, odds)):
        assert_close(module(new), said)
        assert torch.autograd.gradcheck(module, new[:3].clone().requires_grad_(), atol=1e-6)


def test_parts_fitted_before_give_the_same_head(cloud):
    x, y, new = cloud
    whole = NEDLinear(NED).fit(x, y)
    parts = NEDLinear().fit_parts(whole.ned_, whole.linear_)
    assert_close(parts.predict_proba(new), whole.predict_proba(new))


def test_what_it_cannot_blend_earns_a_sentence(cloud):
    x, y, _ = cloud
    with pytest.raises(InputError, match="prior='support'"):
        NEDLinear(NEDClassifier(k=5, prior="uniform")).fit(x, y)
    with pytest.raises(InputError, match="different rows"):
        NEDLinear().fit_parts(NED.fit(x, y), LinearClassifier().fit(x[:90], y[:90]))
    with pytest.raises(InputError, match="`weights` must be"):
        NEDLinear(weights=(1, -1)).fit(x, y)
    with pytest.raises(InputError, match="`background` must"):
        NEDLinear(background=1.5).fit(x, y)
    with pytest.raises(InputError, match="argmax"):
        NEDLinear().fit(x, torch.eye(3)[y])
