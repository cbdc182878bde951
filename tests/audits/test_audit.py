"""The audit on data whose answers are known, and its parts against plain code."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vicinal import audit as top_level_audit
from vicinal.audits.data import borders, duplicates, equal_rows, hubs, prior_shift
from vicinal.audits.map import two_dimensional
from vicinal.audits.model import images_of
from vicinal.audits.recommend import KEEPABLE
from vicinal.checks import InputError
from vicinal.neighbors.search import ExactSearch
from vicinal.studies import About, Audit, AuditSettings, audit, compare_audits


def blobs(n, rng, classes=3, spread=0.7, d=5):
    y = np.arange(n) % classes
    centers = np.eye(classes, d) * 3
    return (centers[y] + spread * rng.normal(size=(n, d))).astype(np.float32), y


@pytest.fixture(scope="module")
def sets():
    rng = np.random.default_rng(0)
    return blobs(240, rng), blobs(160, rng)


@pytest.fixture(scope="module")
def report(sets):
    support, query = sets
    return audit(support=support, query=query, settings=AuditSettings(k=15))


def test_it_is_the_top_level_call():
    assert top_level_audit is audit


def test_a_record_goes_through_json_unchanged(report):
    again = Audit.from_json(report.to_json())
    assert again == report
    assert again.summary == report.summary


def test_predictions_are_right_as_often_as_their_confidence_says(report):
    best = {head.name: head for head in report.heads}[report.recommended]
    assert best.accuracy > 0.95
    assert best.ece < 3 * best.noise_floor + 0.02
    right = [p == y for p, y in zip(report.cases.predicted, report.cases.label, strict=True)]
    trusted = {head.name: head for head in report.heads}[report.cases.head]
    assert np.mean(right) == pytest.approx(trusted.accuracy)


def test_what_is_fitted_is_never_scored_on_the_rows_it_was_fitted_on(sets):
    """With labels of the query shuffled no head can do better than chance, however it is fitted."""
    (z, y), (zq, yq) = sets
    shuffled = np.random.default_rng(1).permutation(yq)
    report = audit(support=(z, y), query=(zq, shuffled), settings=AuditSettings(k=15))
    for head in report.heads:
        assert head.accuracy < 0.5


def test_the_neighbors_shown_are_the_nearest_rows_and_their_weights_are_shares(report, sets):
    (z, _), (zq, _) = sets
    for row in (0, 7, 99):
        d = ((zq[row] - z) ** 2).sum(1)
        assert list(report.cases.neighbors[row][:5]) == np.argsort(d, kind="stable")[:5].tolist()
        assert sum(report.cases.weights[row]) <= 1 + 1e-6


def test_planted_wrong_labels_are_suspects_with_the_right_suggestion(sets):
    (z, y), query = sets
    wrong = y.copy()
    wrong[:8] = (wrong[:8] + 1) % 3
    report = audit(support=(z, wrong), query=query, settings=AuditSettings(k=15))
    first = np.argsort(-report.labels.scores, kind="stable")[:8]
    assert set(first.tolist()) == set(range(8))
    found = {suspect.row: suspect for suspect in report.labels.suspects}
    assert len(found) >= 5  # as many as are estimated to be wrong; of eight a careful guess
    assert set(found) <= set(range(8))
    assert all(suspect.suggested == y[row] for row, suspect in found.items())
    whole = report.labels.effects[-1]
    assert whole.top == len(found)
    assert whole.accuracy_after >= whole.accuracy_before


def test_the_effect_of_a_suspect_is_what_predicting_anew_would_show(sets):
    (z, y), (zq, _) = sets
    wrong = y.copy()
    wrong[:8] = (wrong[:8] + 1) % 3
    report = audit(support=(z, wrong), query=sets[1], settings=AuditSettings(k=5))
    head = report.head.ned
    before = head.predict(zq)
    for suspect in report.labels.suspects[:8]:
        head.relabel([suspect.row], [suspect.suggested], refit=False)
        assert suspect.affected == int((before != head.predict(zq)).sum())
        head.relabel([suspect.row], [suspect.given], refit=False)


def test_without_a_query_no_row_votes_for_itself_in_the_effects(sets):
    (z, y), _ = sets
    wrong = y.copy()
    wrong[:8] = (wrong[:8] + 1) % 3
    report = audit(support=(z, wrong), settings=AuditSettings(k=15))
    head = next(head for head in report.heads if head.name == report.cases.head)
    whole = report.labels.effects[-1]
    assert whole.accuracy_before == head.accuracy <= 1 - whole.top / len(y)
    # A suspect is wrong before and after; what breaks or mends is some other row's prediction.
    suspects = {suspect.row for suspect in report.labels.suspects}
    predicted = np.array(report.cases.predicted)
    assert not suspects & set(np.flatnonzero(predicted == wrong))
    assert whole.fixed + whole.broken <= whole.changed


def test_rows_far_from_everything_are_unfamiliar_whatever_their_confidence(sets):
    (z, y), (zq, yq) = sets
    far = np.concatenate([zq, np.full((5, 5), 40, np.float32)])
    labels = [*yq.tolist(), *[None] * 5]
    report = audit(support=(z, y), query=(far, labels), settings=AuditSettings(k=15))
    assert report.cases.verdict[-5:] == ("unfamiliar",) * 5
    assert report.cases.label[-5:] == (None,) * 5
    assert "confidence not meaningful" in report.cases.reason[-1]
    # Rows without label are judged but not scored.
    assert {head.name: head for head in report.heads}["ned"].accuracy > 0.95


def test_a_given_softmax_that_is_better_is_recommended():
    rng = np.random.default_rng(0)
    (z, y), (zq, yq) = blobs(240, rng, spread=1.5), blobs(160, rng, spread=1.5)
    logits = 6 * np.eye(3)[yq]
    report = audit(support=(z, y), query=(zq, yq), logits=logits, settings=AuditSettings(k=15))
    assert report.recommended.startswith("softmax")
    assert report.cases.head == report.recommendation.kept  # one that can be saved
    assert report.cases.head in KEEPABLE
    assert "cannot be saved with a support alone" in report.recommendation.why
    assert report.agreement > 0.7


def test_leave_one_out_never_lets_a_row_see_itself(sets):
    (z, y), _ = sets
    report = audit(support=(z, y), settings=AuditSettings(k=15))
    assert all(row not in near for row, near in enumerate(report.cases.neighbors))
    assert report.data.split == "leave-one-out on the support"
    same = audit(support=(z, y), query=(z.copy(), y), settings=AuditSettings(k=15))
    assert same.cases.neighbors == report.cases.neighbors


def test_other_labels_for_the_supports_own_rows_are_not_used_and_that_is_said(sets):
    z, y = sets[0]
    others = [None, *((y[1:4] + 1) % 3), *y[4:]]
    report = audit(support=(z, y), query=(z, others), settings=AuditSettings(k=15))
    said = "query has another label than support in 3 rows: its labels are not used"
    assert any(text.startswith(said) for text in report.warnings)
    assert report.cases.label == tuple(np.unique(y, return_inverse=True)[1].tolist())
    same = audit(support=(z, y), query=(z, y), settings=AuditSettings(k=15))
    assert not any("another label than support" in text for text in same.warnings)


def test_a_sentence_about_one_row_says_row(sets):
    (z, y), (zq, yq) = sets
    labels = [yq[0], *[None] * (len(yq) - 1)]
    report = audit(
        support=(z, y), query=(np.concatenate([z[:1], zq[1:]]), labels), calib=(zq, yq),
        settings=AuditSettings(k=15),
    )  # fmt: skip
    assert any(text.startswith("query has 1 scored row:") for text in report.warnings)
    assert any(text.startswith("1 exact duplicate row appears in") for text in report.warnings)


def test_duplicates_and_shifted_class_shares_are_warned_of(sets):
    (z, y), (zq, yq) = sets
    report = audit(
        support=(z, y), query=(np.concatenate([zq, z[:3]]), [*yq, *y[:3]]),
        settings=AuditSettings(k=15),
    )  # fmt: skip
    assert any("3 exact duplicate rows appear in both" in text for text in report.warnings)
    few = np.concatenate([np.flatnonzero(yq == 0), np.flatnonzero(yq == 1)[:5]])
    skewed = audit(support=(z, y), query=(zq[few], yq[few]), settings=AuditSettings(k=15))
    assert any("class shares of support and query differ" in text for text in skewed.warnings)


def test_every_warning_and_what_was_not_checked_are_in_the_record(sets):
    (z, y), (zq, yq) = sets
    odd = yq.copy()
    odd[:4] = 9
    report = audit(support=(z, y), query=(zq, odd), settings=AuditSettings(k=15))
    assert any("class '9' occurs 4x in query" in text for text in report.warnings)
    assert set(report.not_checked) >= {"layers", "network", "softmax", "outliers"}


def test_rows_without_any_label_are_judged_and_nothing_is_scored(sets):
    (z, y), (zq, _) = sets
    logits = 6 * np.eye(3)[np.arange(160) % 3]
    settings = AuditSettings(k=15)
    for query in (zq, (zq, [None] * 160)):
        report = audit(support=(z, y), query=query, logits=logits, settings=settings)
        assert all(head.accuracy is None and head.nll is None for head in report.heads)
        assert sum(report.verdict_counts().values()) == 160
        assert report.risk_coverage is None
        assert report.sweep is None
        assert all(facts.query == 0 and facts.precision is None for facts in report.class_facts)
        assert report.head.standards.source == "leave-one-out"


def test_a_query_of_foreign_classes_only_is_all_wrong_and_has_no_log_loss(sets):
    (z, y), (zq, _) = sets
    report = audit(
        support=(z[:160], y[:160]), query=(zq, np.full(160, 7)), calib=(z[160:], y[160:]),
        settings=AuditSettings(k=15),
    )  # fmt: skip
    assert {head.accuracy for head in report.heads} == {0.0}
    assert {head.nll for head in report.heads} == {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"support": None}, "`support` is missing"),
        ({"support": np.zeros((4, 2))}, "has no labels"),
        ({"support": (np.zeros((4, 2)), [0, 0, 0, 0])}, "one class only"),
        ({"support": (np.zeros((4, 2)), [0.5, 1, 0, 1])}, "regression"),
        ({"support": (np.zeros((4, 2)), np.eye(4))}, "one class per row"),
        ({"query": (np.zeros((4, 3)), [0, 1, 0, 1])}, "5 dimensions but `query` has 3"),
        ({"query": (np.full((4, 5), np.nan), [0, 1, 0, 1])}, "NaN or infinite"),
        ({"query": (np.zeros((4, 5)), [0, 1])}, "4 embeddings but 2 labels"),
        ({"settings": AuditSettings(k=999)}, "k=999 but the smallest support fold has 239"),
        ({"calib": np.zeros((4, 5))}, "`calib` has no labels"),
        ({"logits": np.zeros((3, 3))}, "one row per query row"),
        ({"about": About(class_names=["a"])}, "1 class names were given for 3 classes"),
    ],
)
def test_bad_input_earns_a_sentence(sets, change, message):
    with pytest.raises(InputError, match=message):
        audit(**{"support": sets[0], "query": sets[1], **change})


# ------------------------------------------------------------------ from a model


@pytest.fixture(scope="module")
def pictures():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    x = 0.2 * torch.randn(150, 1, 6, 6, generator=rng)
    x[torch.arange(150), 0, 2 * y, :] += 1
    return (x[:100], y[:100]), (x[100:], y[100:])


@pytest.fixture(scope="module")
def seen(pictures):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    ).train()
    settings = AuditSettings(k=10, network_rows=40)
    return net, audit(net, *pictures, settings=settings)


def test_a_model_brings_layers_its_own_view_and_pictures(seen):
    net, report = seen
    assert net.training  # it comes back as it was
    names = [layer.name for layer in report.layers]
    assert names == ["0", "1", "3", "4", "output"]  # as they run; "2" repeats "1", "5" the output
    assert all(layer.entanglement <= layer.chance + 1e-6 for layer in report.layers)
    assert report.cases.layers == ("0", "1", "3", "output")  # all but the embedding, named alike
    assert len(report.cases.layer_class) == 50
    view = report.network
    assert view.n == 40
    assert 0 <= view.overlap <= 1
    assert sum(view.density.counts) == 40
    assert {point.group for point in view.fit_map} <= {
        "memorized", "well fitted", "ambiguous", "isolated"
    }  # fmt: skip
    asked = [p for p in report.cases.network_percentile if p is not None]
    assert len(asked) == 40
    assert report.media.get("query", 0).shape == (6, 6)
    assert "&lt;html" in report._repr_html_()


class Backwards(nn.Module):
    """Defines its layers in another order than it runs them."""

    def __init__(self):
        super().__init__()
        self.classes = nn.Linear(8, 3)
        self.embedding = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())

    def forward(self, x):
        return self.classes(self.embedding(x))


def test_layers_come_in_the_order_in_which_they_run(pictures):
    settings = AuditSettings(
        k=10, network_rows=0, embedding="embedding", layers=("classes", "embedding.1")
    )
    report = audit(Backwards(), *pictures, settings=settings)
    assert [layer.name for layer in report.layers] == ["embedding.1", "embedding", "output"]
    assert report.cases.layers == ("embedding.1", "output")


def test_a_loader_that_shuffles_is_audited_in_the_order_of_its_data_set(pictures, seen):
    (x, y), test = pictures
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    report = audit(seen[0], loader, test, settings=AuditSettings(k=10, network_rows=40))
    assert report.cases == seen[1].cases
    assert np.array_equal(report.media.get("support", 7), seen[1].media.get("support", 7))


def test_logits_in_another_order_than_the_labels_are_told_apart_from_a_bad_model(sets):
    support, (zq, yq) = sets
    own = np.eye(3)[np.asarray(yq)] * 4
    fine = audit(support=support, query=(zq, yq), logits=own, settings=AuditSettings(k=15))
    turned = own[:, [1, 2, 0]]
    wrong = audit(support=support, query=(zq, yq), logits=turned, settings=AuditSettings(k=15))
    bad = np.random.default_rng(0).normal(size=own.shape)
    noise = audit(support=support, query=(zq, yq), logits=bad, settings=AuditSettings(k=15))
    said = [any("another order" in w for w in r.warnings) for r in (fine, wrong, noise)]
    assert said == [False, True, False]
    assert any("columns read as 1, 2, 0 on 100.0 %" in w for w in wrong.warnings)


def test_a_model_that_has_no_gradients_to_compare_says_so(pictures):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    net.requires_grad_(False)
    report = audit(net, *pictures, settings=AuditSettings(k=10, network_rows=20))
    assert report.network is None
    assert "gradients could not be compared" in report.not_checked["network"]


def test_the_networks_view_takes_as_many_rows_as_its_operations_allow(pictures, seen, monkeypatch):
    def view(flops, **asked):
        monkeypatch.setattr("vicinal.audits.network.FLOPS", flops)
        return audit(seen[0], *pictures, settings=AuditSettings(k=10, **asked))

    whole = view(1e13)
    assert len(whole.network.fit_map) == 100
    assert "allow" not in whole.network.how
    some = view(3e6)
    assert 20 <= len(some.network.fit_map) < 100
    assert "as many as 3e+06 operations allow" in some.network.how
    none = view(1e4)
    assert none.network is None
    assert "more than 1e+04 operations (3 outputs" in none.not_checked["network"]
    assert len(view(1e4, network_rows=30).network.fit_map) == 30  # asked for all the same


def test_pictures_are_taken_only_from_inputs_that_are_pictures(pictures):
    train, test = pictures
    media = images_of(train, torch.utils.data.TensorDataset(*test))
    assert media.get("support", 3).dtype == np.uint8
    assert media.get("query", 999) is None
    assert images_of((torch.zeros(4, 7), torch.zeros(4)), test) is None
    assert images_of(iter([]), test) is None


# ------------------------------------------------------------------ the parts


def test_a_stopped_audit_goes_on_in_its_folder_and_says_the_same(sets, tmp_path, monkeypatch):
    monkeypatch.setattr("vicinal.neighbors.search.resumable.BLOCK", 64)
    support, query = sets
    settings = AuditSettings(k=15)

    class Stops(Exception):
        pass

    def stop(title, done, total):
        if title == "neighbors" and done >= 128:
            raise Stops

    with pytest.raises(Stops):
        audit(support=support, query=query, settings=settings, work=tmp_path, progress=stop)
    seen = []
    again = audit(
        support=support, query=query, settings=settings, work=tmp_path,
        progress=lambda title, done, total: seen.append((title, done)),
    )  # fmt: skip
    assert [step for step in seen if step[0] == "neighbors"] == [("neighbors", 160)]
    assert again.cases == audit(support=support, query=query, settings=settings).cases


def test_duplicates_across_sets_are_counted_and_taken_out_of_the_accuracy(rng):
    x = torch.randn(30, 4, generator=rng)
    q = torch.cat([x[:3], x[3:5] + 1e-5, torch.randn(20, 4, generator=rng)])
    near = ExactSearch().build(x).query(q, 5)
    correct = np.array([True] * 5 + [True, False] * 10)
    found = duplicates(near, equal_rows([x]), (np.ones(len(correct), bool), correct))
    assert (found.exact, found.near) == (3, 2)
    assert found.pairs[:3] == ((0, 0), (1, 1), (2, 2))
    assert found.accuracy_without == pytest.approx(0.5)
    assert found.within_support == 0


def test_hubs_carry_the_weight_they_are_given():
    indices = torch.tensor([[0, 1], [0, 2], [0, 3]])
    weights = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    found = hubs(indices, weights, 200)
    assert (found.top[0].row, found.top[0].appearances) == (0, 3)
    assert found.top[0].weight_share == pytest.approx(2.4 / 3)
    assert found.top_percent_share == pytest.approx(2.4 / 3 + 0.3 / 3)  # two of 200 rows


def test_a_shift_of_priors_is_seen_against_chance(rng):
    even, skewed = torch.arange(300) % 3, torch.tensor([0] * 200 + [1] * 80 + [2] * 20)
    same = prior_shift(even, even[:150], 3, 0)
    other = prior_shift(even, skewed, 3, 0)
    assert same.distance < same.by_chance < other.distance
    assert other.distance == pytest.approx(
        0.5 * (1 / 3 + abs(1 / 3 - 0.8 / 3) + 1 / 3 - 0.2 / 3), abs=1e-6
    )


def test_class_borders_are_the_between_class_weight_of_each_pair(rng):
    x, y = torch.randn(40, 2, generator=rng), torch.arange(40) % 3
    near = ExactSearch().build(x).query(x, 6, exclude=torch.arange(40)).labeled(y)
    found = borders(near, y, 3, 0.8)
    want = {}
    for i in range(40):
        logs = [-float(d) / 0.8 for d in near.distances[i]]
        total = sum(np.exp(v) for v in logs)
        for j, v in zip(near.indices[i].tolist(), logs, strict=True):
            if y[i] != y[j]:
                pair = tuple(sorted((int(y[i]), int(y[j]))))
                want[pair] = want.get(pair, 0) + float(np.exp(v)) / total
    whole = sum(want.values())
    for border in found.pairs:
        assert border.share == pytest.approx(want[(border.a, border.b)] / whole)
    assert sum(border.share for border in found.pairs) == pytest.approx(1)
    assert found.smoothness == pytest.approx(whole / 40)


def test_a_linear_map_of_two_dimensional_data_keeps_every_neighbor(rng):
    x = torch.randn(60, 2, generator=rng) + 4 * torch.eye(2)[torch.arange(60) % 2]
    q = torch.randn(30, 2, generator=rng)
    found = two_dimensional(x, q, torch.arange(60) % 2, neighbors=False)
    assert found.method == "PCA"
    assert found.preservation == 1.0
    assert found.linear is None
    assert len(found.x) == 30
    assert found.support_row == tuple(range(60))


def test_a_neighbor_map_keeps_more_neighbors_than_its_linear_shadow(rng):
    wide = torch.randn(200, 10, generator=rng) + 4 * torch.eye(10)[torch.arange(200) % 4]
    q = torch.randn(60, 10, generator=rng) + 4 * torch.eye(10)[torch.arange(60) % 4]
    found = two_dimensional(wide, q, torch.arange(200) % 4)
    assert found.linear.method == "class-Fisher"
    assert found.preservation > 1.3 * found.linear.preservation
    assert found == two_dimensional(wide, q, torch.arange(200) % 4)


def test_rows_beyond_the_cap_are_placed_among_their_nearest_and_it_is_said(rng, monkeypatch):
    monkeypatch.setattr("vicinal.audits.map.EMBEDDED", 120)
    monkeypatch.setattr("vicinal.audits.map.DRAWN_SUPPORT", 100)
    kinds = torch.arange(300) % 3
    x = torch.randn(300, 6, generator=rng) + 20 * torch.eye(6)[kinds]
    found = two_dimensional(x[:150], x[150:], kinds[:150])
    assert "100 of 150 support rows are drawn" in found.note
    assert "120 rows are embedded, the others placed among them" in found.note
    places = torch.tensor([found.x, found.y]).T
    near = torch.cdist(places, places).fill_diagonal_(torch.inf).argmin(1)
    assert (kinds[150:][near] == kinds[150:]).float().mean() > 0.97


def test_a_map_that_is_not_wanted_is_not_made(sets):
    (z, y), (zq, yq) = sets
    without = audit(support=(z, y), query=(zq, yq), settings=AuditSettings(map="none"))
    assert without.map is None
    assert "--map none" in without.not_checked["map"]


def test_two_audits_are_compared_row_by_row(report, sets):
    (z, y), (zq, yq) = sets
    noise = np.random.default_rng(3).normal(size=z.shape).astype(np.float32)
    worse = audit(
        support=(z + 20 * noise, y), query=(zq, yq),
        settings=AuditSettings(k=15), about=About(name="noisy"),
    )  # fmt: skip
    found = compare_audits(report, worse, report.provenance, gates=["accuracy < -0.05", "ece > 2"])
    accuracy = next(delta for delta in found.deltas if delta.name == "accuracy")
    assert accuracy.delta == pytest.approx(accuracy.b - accuracy.a)
    assert accuracy.low <= accuracy.delta <= accuracy.high
    assert accuracy.finding == "worse"
    right = lambda r: np.array(r.cases.predicted) == np.array(r.cases.label)
    assert found.broken - found.fixed == int(right(report).sum() - right(worse).sum())
    assert [gate.passed for gate in found.gates] == [False, True]
    renamed = Audit.from_dict(
        {
            **worse.to_dict(),
            "cases": {**worse.to_dict()["cases"], "id": [f"x{i}" for i in range(160)]},
        }
    )
    with pytest.raises(InputError, match="no query row in common"):
        compare_audits(report, renamed, report.provenance)


def test_the_target_comes_from_the_data_unless_it_is_set(sets):
    free = audit(support=sets[0], query=sets[1], settings=AuditSettings(k=15))
    picked = free.risk_coverage.chosen
    assert picked.target in (0.90, 0.95, 0.97, 0.99)
    assert picked.coverage >= 0.5
    assert "the highest of 90, 95, 97 and 99 %" in picked.why
    assert free.head.standards.target_accuracy == picked.target
    assert {t.target for t in free.risk_coverage.targets} >= {0.90, 0.95, 0.97, 0.99}
    assert picked.level == free.head.standards.level
    fixed = audit(support=sets[0], query=sets[1], settings=AuditSettings(k=15, target_accuracy=0.8))
    assert fixed.risk_coverage.chosen.target == 0.8
    assert fixed.risk_coverage.chosen.why == ""


def test_without_labels_in_the_query_the_confidences_choose_the_target(sets):
    report = audit(support=sets[0], query=sets[1][0], settings=AuditSettings(k=15))
    assert 0 < report.head.standards.target_accuracy < 1
    assert report.verdict_counts()["supported"] > 0


def test_the_sweep_says_on_how_many_rows_its_temperatures_were_fitted(sets, monkeypatch):
    settings = AuditSettings(k=15)
    every = audit(support=sets[0], query=sets[1], settings=settings).sweep
    assert every.how == "at each smaller k the temperature is fitted anew"
    monkeypatch.setattr("vicinal.audits.scoring.SWEPT", 50)
    some = audit(support=sets[0], query=sets[1], settings=settings).sweep
    assert re.fullmatch(re.escape(every.how) + r" on 50 of the \d+ rows of a fold", some.how)


@pytest.mark.parametrize("with_calib", [False, True])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_support_row_that_is_no_number_is_named_whatever_else_is_given(sets, value, with_calib):
    z, y = np.array(sets[0][0]), sets[0][1]
    z[7, 0] = value
    with pytest.raises(InputError, match="rows 7"):
        audit(support=(z, y), calib=sets[1] if with_calib else None)
