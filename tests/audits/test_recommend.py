"""The space an audit chooses, the heads it scores, the one it recommends and the one it keeps."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import vicinal
from vicinal.audits.facts import gather
from vicinal.audits.heads import Answer
from vicinal.audits.inputs import ready_sets
from vicinal.audits.linear_view import linear_view, sample
from vicinal.audits.recommend import KEEPABLE, choice_of
from vicinal.audits.scoring import Scored
from vicinal.audits.settings import About, Job
from vicinal.confidence import LinearClassifier, NEDClassifier, NEDLinear
from vicinal.confidence.blend import fit_blend
from vicinal.studies import AuditSettings, audit

EVERYTHING = {"sharpness": "fit", "background": "fit", "bandwidth": "class", "space": "fit"}


def blobs(n, rng, spread=1.2, d=6, classes=3):
    y = np.arange(n) % classes
    return 2 * np.eye(classes, d)[y] + spread * rng.normal(size=(n, d)), y


@pytest.fixture(scope="module")
def sets():
    rng = np.random.default_rng(1)
    return blobs(240, rng), blobs(200, rng), blobs(150, rng)


@pytest.fixture(scope="module")
def report(sets):
    return audit(support=sets[0], query=sets[1])


def columns_of_unlike_units(n, rng):
    x, y = blobs(n, rng, spread=0.5)
    return np.column_stack([x, 1000 * rng.normal(size=n)]), y


def test_columns_in_units_of_their_own_are_scaled_and_a_sentence_says_what_that_gained():
    rng = np.random.default_rng(0)
    support, query = columns_of_unlike_units(150, rng), columns_of_unlike_units(120, rng)
    fitted = audit(support=support, query=query)
    raw = audit(support=support, query=query, settings=AuditSettings(space="raw"))
    space = fitted.data.space
    assert space.name in ("standardized", "whitened", "learned")
    assert space.losses[space.name] < space.losses["raw"]
    assert f"{space.losses['raw']:.3f} (raw) to {space.losses[space.name]:.3f}" in space.how
    assert raw.data.space.name == "raw"
    nll = [{head.name: head.nll for head in run.heads}["ned_fitted"] for run in (fitted, raw)]
    assert nll[0] < nll[1] / 2
    assert fitted.summary["data"]["space"]["name"] == space.name


def test_a_space_that_saw_labels_does_not_make_support_rows_look_better_than_chance():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(150, 40)), rng.permutation(np.arange(150) % 3)
    found = audit(support=(x, y), settings=AuditSettings(space="whitened"))
    assert found.data.space.cross_fitted
    accuracy = {head.name: head.accuracy for head in found.heads}
    assert max(accuracy.values()) < 1 / 3 + 3 * math.sqrt(2 / 9 / 150)


def test_cosine_distances_are_not_mapped_a_second_time(sets):
    (z, y), (zq, yq), _ = sets
    found = audit(support=(z, y), query=(zq, yq), settings=AuditSettings(metric="cosine", k=9))
    assert found.data.space.name == "raw"
    assert "cosine" in found.data.space.how
    near = NEDClassifier(k=9, metric="cosine").fit(z, y).kneighbors(zq)
    assert np.array_equal(np.array(found.cases.neighbors), near.indices)


def test_every_head_has_its_row_and_none_of_them_warns_of_its_own_zeros(report):
    heads = {head.name: head for head in report.heads}
    assert {*KEEPABLE, "knn", "knn_smoothed"} <= heads.keys()
    assert heads["logistic_scaled"].nll < heads["logistic"].nll + 0.02
    assert heads["knn_smoothed"].nll is not None
    assert heads["1nn"].infinite_rows > 0
    assert not any("infinite" in line for line in report.warnings)


def answers(losses):
    """Scored heads of two classes, all rows of the first, with these losses."""
    found = {}
    for name, loss in losses.items():
        p = torch.tensor(loss, dtype=torch.float64).neg().exp()
        logs = torch.stack([p, 1 - p], 1).log()
        codes = np.zeros(len(loss), dtype=np.int64)
        found[name] = Scored(Answer(name, logs, logs.argmax(1)), codes)
    return found


def test_the_simplest_head_within_one_standard_error_of_the_best_is_recommended():
    rng = np.random.default_rng(0)
    best = rng.uniform(0.6, 1.5, 80)
    noise = rng.normal(size=80) * 0.1
    for shift in (0.002, 0.008, 0.02, 0.05):
        other = best + shift + noise - noise.mean()
        gaps = [a - b for a, b in zip(other, best, strict=True)]
        mean = sum(gaps) / 80
        se = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 80) / math.sqrt(80)
        choice = choice_of(answers({"ned_linear": best, "ned_fitted": other, "svc": best / 9}))
        assert choice.best == "ned_linear"
        assert choice.head == ("ned_fitted" if mean <= se else "ned_linear")
        assert choice.kept == choice.head


def test_a_head_that_cannot_be_kept_needs_a_real_lead_and_raw_votes_never_win():
    loss = np.full(50, 0.5) + 0.2 * np.sin(np.arange(50))
    clear = answers({"softmax": loss / 5, "ned": loss, "ned_linear": loss - 0.1, "1nn": loss * 0})
    choice = choice_of(clear)
    assert (choice.head, choice.kept) == ("softmax", "ned_linear")
    same = choice_of(answers({"softmax": loss, "ned_linear": loss}))
    assert same.head == "ned_linear"
    with_prior = choice_of(clear, "uniform")
    assert with_prior.kept == "ned"


@pytest.mark.parametrize("spread", [0.4, 1.2, 2.0])
def test_the_kept_head_says_of_the_query_what_the_audit_says(spread, tmp_path):
    rng = np.random.default_rng(2)
    support, query, calib = (blobs(n, rng, spread) for n in (240, 120, 160))
    found = audit(support=support, query=query, calib=calib)
    path = found.head.save(tmp_path / "trust.vic")
    for head in (found.head, vicinal.load(path)):
        out = head.predict(query[0])
        assert np.allclose(out.confidence, found.cases.confidence, atol=1e-6)
        assert out.label.tolist() == list(found.cases.predicted)
        assert out.verdict.tolist() == list(found.cases.verdict)
        assert np.mean([a == b for a, b in zip(out.reason, found.cases.reason, strict=True)]) > 0.95
        if found.cases.linear_share is not None:
            assert np.allclose(out.linear_share, found.cases.linear_share, atol=1e-6)
    kept = found.recommendation
    assert found.cases.head == kept.kept == found.risk_coverage.head
    assert (kept.linear_share is None) == (kept.kept in ("ned", "ned_fitted"))


def test_a_linear_head_that_wins_is_kept_with_its_neighbors_and_says_that_it_decides():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 30))
    y = (x @ rng.normal(size=(30, 4))).argmax(1)  # linear borders, neighbors know little
    found = audit(support=(x[:300], y[:300]), query=(x[300:], y[300:]))
    assert found.recommended in ("logistic", "logistic_scaled", "ned_linear")
    assert isinstance(found.head.model, NEDLinear)
    assert found.recommendation.linear_share > 0.5
    assert len(found.cases.linear_share) == 200
    turned = [line for line in found.cases.reason if "the linear part decides for" in line]
    assert turned
    assert all(sum(weights) <= 1 + 1e-6 for weights in found.cases.weights)


def test_a_query_without_labels_is_judged_by_the_head_that_the_support_chooses():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 30))
    y = (x @ rng.normal(size=(30, 4))).argmax(1)
    found = audit(support=(x[:300], y[:300]), query=x[300:])
    assert found.recommended in ("logistic", "logistic_scaled", "ned_linear")
    assert "No head could be scored" in found.recommendation.why


def test_a_support_that_the_embedding_was_trained_on_is_said_to_be_easier_than_held_out_rows():
    rng = np.random.default_rng(0)
    (z, y), (zq, yq) = blobs(300, rng, spread=0.2), blobs(300, rng, spread=1.3)
    trained = audit(support=(z, y), query=(zq, yq))
    assert any("easier than held-out rows beyond chance" in line for line in trained.warnings)
    (z, y), (zq, yq) = blobs(300, rng), blobs(300, rng)
    fair = audit(support=(z, y), query=(zq, yq))
    assert not any("easier than held-out rows" in line for line in fair.warnings)


def test_equal_rows_are_counted_as_they_came_whatever_the_space():
    rng = np.random.default_rng(0)
    (z, y), (zq, yq) = blobs(200, rng), blobs(150, rng)
    zq[:7] = z[:7]
    zq[7:12] = 2 * z[7:12]  # the same direction is not the same row
    settings = AuditSettings(space="unit")
    found = audit(support=(z, y), query=(zq, yq), settings=settings)
    assert (found.duplicates.exact, found.duplicates.near) == (7, 0)


def test_a_sample_has_a_row_of_every_class_and_rows_outside_it_are_asked_of_the_model(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = blobs(200, rng)
    y = np.where(np.arange(200) == 150, 3, y)
    x, codes = torch.tensor(x), torch.tensor(y)
    rows = sample(codes, 40, 0)
    assert len(rows) == 40
    assert set(codes[rows].tolist()) == {0, 1, 2, 3}
    monkeypatch.setattr("vicinal.audits.linear_view.LOGISTIC_ROWS", 40)
    view = linear_view((x, codes), x[:5], None, seed=0)
    alone = LinearClassifier().fit(x[rows], codes[rows].numpy())
    unseen = torch.tensor([row for row in range(200) if row not in rows])
    assert torch.allclose(view.support[unseen], alone.predict_log_proba(x[unseen]))
    assert np.allclose(view.support[rows], alone.oof_log_proba_)
    assert view.notes == ("fitted on 40 of 200 support rows",)


def test_support_rows_left_out_fit_the_heads_unless_the_query_objects(sets):
    fair = audit(support=sets[0], query=sets[1])
    assert "240 support rows" in fair.data.split
    rng = np.random.default_rng(0)
    (z, y), (zq, yq) = blobs(300, rng, spread=0.5), blobs(300, rng, spread=1.3)
    seen = audit(support=(z, y), query=(zq, yq))  # as if the embedding had been trained on them
    assert "2-fold cross-fit" in seen.data.split
    given = audit(support=sets[0], query=sets[1], calib=sets[2])
    assert "calibration rows" in given.data.split


def test_a_fair_query_hardly_ever_objects_and_one_that_the_embedding_was_not_trained_on_does():
    def split(seed, trained):
        rng = np.random.default_rng(seed)
        support = blobs(150, rng, spread=0.6 if trained else 1.2)
        return audit(support=support, query=blobs(120, rng)).data.split

    objecting = [split(seed, False).startswith("2-fold") for seed in range(8)]
    assert sum(objecting) <= 1
    assert all(split(seed, True).startswith("2-fold") for seed in range(3))


def test_a_query_of_a_few_labels_is_answered_as_well_as_by_the_support_alone(sets):
    (z, y), (zq, yq), fresh = sets
    few = audit(support=(z, y), query=(zq[:24], yq[:24]))
    alone = NEDLinear(NEDClassifier(**EVERYTHING)).fit(z, y)
    loss = [-np.log(head.predict_proba(fresh[0])[np.arange(150), fresh[1]]) for head in
            (few.head, alone)]  # fmt: skip
    gap = loss[0] - loss[1]
    assert gap.mean() < 2 * gap.std() / math.sqrt(len(gap)) + 0.01


def test_few_support_rows_weigh_the_parts_together_with_query_rows_that_are_not_scored(sets):
    job = Job(AuditSettings(), About())
    ready = ready_sets(sets[0], sets[1], None, job.settings, job.about, None)
    facts = gather(ready, None, None, job)
    codes, linear, ned = ready.codes, facts.linear, facts.task.fitted_ned
    left_out = facts.ned.log_probs_of(facts.graph)

    def weighed(rows):
        log_ned = torch.cat([left_out, ned.log_probs[rows]])
        log_linear = torch.cat([linear.support, linear.query[rows]])
        return fit_blend(log_ned, log_linear, torch.cat([codes, ready.query.codes[rows]]))

    fold, blend = facts.fitting.folds[0], facts.answers["ned_linear"].blends[0]
    other = np.setdiff1d(np.arange(200), fold.scored)
    assert blend == pytest.approx(weighed(other), abs=1e-3)
    assert blend != pytest.approx(fit_blend(left_out, linear.support, codes), abs=1e-3)
    assert kept_weights(facts) == pytest.approx(weighed(np.arange(200)), abs=1e-3)


def kept_weights(facts):
    facts.__dict__["choice"] = facts.choice._replace(head="ned_linear", kept="ned_linear")
    return facts.kept.blend_


def test_equals_on_the_query_are_told_apart_by_left_out_support_rows():
    rng = np.random.default_rng(0)
    loss = rng.uniform(0.6, 1.5, 60)
    scored = answers({"ned_fitted": loss + 0.01 * rng.normal(size=60), "ned_linear": loss})
    assert choice_of(scored).head == "ned_fitted"
    own = rng.uniform(0.6, 1.5, 900)
    told = choice_of(scored, left_out={"ned_fitted": own + 0.05, "ned_linear": own})
    assert (told.head, told.left_out) == ("ned_linear", 900)
    clear = answers({"ned_fitted": loss, "ned_linear": loss + 0.2})
    assert (
        choice_of(clear, left_out={"ned_fitted": own + 9, "ned_linear": own}).head == "ned_fitted"
    )


def test_eq_3_without_a_background_is_not_recommended_beside_the_head_that_has_one():
    loss = np.full(50, 0.5) + 0.2 * np.sin(np.arange(50))
    assert choice_of(answers({"ned": loss - 0.1, "ned_fitted": loss})).head == "ned_fitted"
    assert choice_of(answers({"ned": loss})).head == "ned"


def test_a_net_that_was_trained_on_the_support_is_noticed():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    y = torch.where(
        torch.arange(len(y)) % 4 == 0,
        torch.randint(0, 10, y.shape, generator=torch.Generator().manual_seed(0)),
        y,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32)
        )
        last = torch.nn.Linear(32, 10)
        optimizer = torch.optim.Adam([*net.parameters(), *last.parameters()], 3e-3)
        for _ in range(150):  # long enough to memorize a quarter of wrong labels
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(last(net(x[:600])), y[:600]).backward()
            optimizer.step()
    with torch.no_grad():
        z = net(x).numpy()
    labels = y.numpy()
    seen = audit(support=(z[:600], labels[:600]), query=(z[600:1000], labels[600:1000]))
    fresh = audit(support=(z[1000:1600], labels[1000:1600]), query=(z[600:1000], labels[600:1000]))
    said = [
        "either the embedding was trained on them" in " ".join(a.warnings) for a in (seen, fresh)
    ]
    assert said == [True, False]
