"""NEDClassifier: eq. 3 against plain loops, its limits, its edges, and the estimator contract."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.posterior import NEDParameters, best_class, ned_log_probs
from vicinal.neighbors.neighborhood import Neighborhood

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def cloud(rng):
    """Three overlapping classes in four dimensions: rows, labels and queries."""
    y = torch.randint(0, 3, (80,), generator=rng)
    x = torch.randn(80, 4, generator=rng).double()
    x[:, 0] += 1.5 * y
    return x, y, torch.randn(15, 4, generator=rng).double()


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_probabilities_are_the_loops_of_equation_3(cloud, metric):
    x, y, queries = cloud
    ned = NEDClassifier(k=12, temperature=0.7, metric=metric).fit(x, y)
    for q, p in zip(queries, ned.predict_proba(queries), strict=True):
        near = reference.nearest_rows(q, x, 12, metric)
        assert_close(p.tolist(), reference.ned_probabilities(near, y, 3, 0.7))


def test_every_extension_together_equals_its_loop(cloud, rng):
    x, y, queries = cloud
    prior = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    width, shift = torch.tensor([0.3, -0.2, 0.1]).double(), torch.tensor([0.4, 0.0, -0.3]).double()
    parameters = NEDParameters(0.8, 2.5, 0.07, 1.7, width, prior, shift)
    fitted = ((0.8 * width.exp()).tolist(), 1.7, 2.5, 0.07, shift.exp().tolist())
    for q in queries:
        near = reference.nearest_rows(q, x, 20)
        d = torch.tensor([[d for d, _ in near]], dtype=torch.float64)
        nearest = Neighborhood(d, torch.tensor([[i for _, i in near]])).labeled(y)
        p = ned_log_probs(nearest, 3, parameters).exp()[0]
        told = reference.ned_probabilities_in_full(near, y, prior.tolist(), fitted)
        assert_close(p.tolist(), told)


def test_soft_labels_that_are_one_hot_say_what_hard_labels_say(cloud):
    x, y, queries = cloud
    options = {"k": 15, "sharpness": 1.5, "background": 0.02}
    hard = NEDClassifier(temperature=0.9, **options).fit(x, y)
    soft = NEDClassifier(temperature=0.9, **options).fit(x, torch.eye(3)[y])
    assert_close(soft.predict_proba(queries), hard.predict_proba(queries))
    assert_close(soft.loo_proba_, hard.loo_proba_)


def test_soft_labels_spread_each_neighbors_weight():
    soft = np.array([[0.7, 0.3], [0.2, 0.8]])
    ned = NEDClassifier(k=2, temperature=1.0).fit([[0.0], [1.0]], soft)
    w = np.exp([-0.25, -0.25])
    assert_close(ned.predict_proba([[0.5]])[0], (w[:, None] * soft).sum(0) / w.sum())


def test_soft_labels_with_class_bandwidths_fit_and_sum_to_one(cloud):
    x, y, queries = cloud
    soft = 0.9 * torch.eye(3)[y] + 0.1 / 3
    ned = NEDClassifier(k=20, bandwidth="class", sharpness="fit").fit(x, soft)
    assert_close(ned.predict_proba(queries).sum(1), torch.ones(15).double())
    one_hot = NEDClassifier(k=20, bandwidth="class", sharpness="fit").fit(x, torch.eye(3)[y])
    hard = NEDClassifier(k=20, bandwidth="class", sharpness="fit").fit(x, y)
    assert_close(one_hot.predict_proba(queries), hard.predict_proba(queries), rtol=1e-2, atol=1e-3)


def test_hard_held_out_labels_calibrate_a_soft_support(cloud):
    x, y, queries = cloud
    soft = NEDClassifier(k=12).fit(x[:50], torch.eye(3)[y[:50]]).calibrate(x[50:], y[50:])
    hard = NEDClassifier(k=12).fit(x[:50], y[:50]).calibrate(x[50:], y[50:])
    assert_close(soft.predict_proba(queries), hard.predict_proba(queries), rtol=1e-2, atol=1e-3)


def test_every_fit_warns_anew(cloud):
    x, y, _ = cloud
    ned = NEDClassifier().fit(x, y)
    with pytest.warns(UserWarning, match="fewer than the default"):
        ned.fit(x, y)


# ------------------------------------------------------------------ temperature


def test_the_fitted_temperature_minimizes_the_leave_one_out_loss_of_the_loops(cloud):
    x, y, _ = cloud
    ned = NEDClassifier(k=30).fit(x, y)

    def loss(t):
        told = reference.leave_one_out_ned(x, y, 30, 3, t)
        return -sum(math.log(p[c]) for p, c in zip(told, y.tolist(), strict=True)) / len(y)

    t = ned.temperature_
    assert loss(t) <= min(loss(t * 1.02), loss(t / 1.02), loss(t * 2), loss(t / 2))


def test_leave_one_out_never_sees_the_row_itself_even_among_many_duplicates(cloud):
    x, y, _ = cloud
    x = torch.cat([x[:10]] * 6 + [x])  # six copies: self arrives at any position, or not at all
    y = torch.cat([y[:10]] * 6 + [y])
    ned = NEDClassifier(k=4, temperature=0.5).fit(x, y)
    assert_close(ned.loo_proba_.tolist(), reference.leave_one_out_ned(x, y, 4, 3, 0.5))
    for row, ids in enumerate(ned.kneighbors().indices):
        assert row not in ids.tolist()


def test_temperature_zero_is_the_nearest_neighbor_with_ties_shared():
    ned = NEDClassifier(k=3, temperature=0.0).fit([[1.0], [-1.0], [5.0]], [0, 1, 2])
    assert_close(ned.predict_proba([[0.0], [0.1]]), np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))


def test_infinite_temperature_is_the_plain_vote(cloud):
    x, y, queries = cloud
    vote = NEDClassifier(k=8, temperature=math.inf).fit(x, y)
    for q, p in zip(queries, vote.predict_proba(queries), strict=True):
        near = reference.nearest_rows(q, x, 8)
        assert_close(p.tolist(), [sum(int(y[i]) == c for _, i in near) / 8 for c in range(3)])


def test_a_tiny_temperature_and_huge_distances_underflow_to_the_limit_not_to_nan(cloud):
    x, y, queries = cloud
    cold = NEDClassifier(k=20, temperature=1e-12).fit(x, y)
    nearest = NEDClassifier(k=20, temperature=0.0).fit(x, y)
    assert_close(cold.predict_proba(1e3 * queries), nearest.predict_proba(1e3 * queries))


def test_log_probabilities_are_the_primitive_and_reach_below_what_exp_can_hold():
    ned = NEDClassifier(k=2, temperature=1e-3).fit([[0.0], [3.0]], [0, 1])
    log_p = ned.predict_log_proba([[0.0]])
    assert_close(log_p[0], np.array([0.0, -9000.0]))
    assert ned.predict_proba([[0.0]])[0, 1] == 0


def test_calibration_on_held_out_rows_is_the_minimum_of_their_loss(cloud, rng):
    x, y, _ = cloud
    ned = NEDClassifier(k=20).fit(x[:50], y[:50]).calibrate(x[50:], y[50:])
    assert ned.fitted_on_ == "held-out"

    def loss(t):
        p = NEDClassifier(k=20, temperature=t).fit(x[:50], y[:50]).predict_log_proba(x[50:])
        return -float(p.gather(1, y[50:, None]).mean())

    t = ned.temperature_
    assert loss(t) <= min(loss(t * 1.02), loss(t / 1.02))


def test_collapsed_classes_warn_that_confidence_will_be_too_high(rng):
    y = torch.arange(60) % 3
    x = 100.0 * torch.eye(3)[y] + 1e-3 * torch.randn(60, 3, generator=rng)
    with pytest.warns(UserWarning, match="leave-one-out accuracy is 1"):
        ned = NEDClassifier(k=40).fit(x, y)
    assert any("held-out" in sentence for sentence in ned.warnings_)


def test_calibrating_on_the_support_itself_is_noticed(cloud):
    x, y, _ = cloud
    with pytest.warns(UserWarning, match="see themselves"):
        NEDClassifier(k=5).fit(x, y).calibrate(x, y)


# ------------------------------------------------------------------ edges


def test_one_class_is_certain_of_it():
    ned = NEDClassifier(k=3).fit(np.arange(8.0)[:, None], ["only"] * 8)
    assert_close(ned.predict_proba([[2.5]]), np.array([[1.0]]))
    assert ned.predict([[100.0]])[0] == "only"


def test_one_row_per_class_cannot_fit_a_temperature_and_says_so():
    with pytest.warns(UserWarning, match="no row has a neighbor of its own class"):
        ned = NEDClassifier(k=2).fit([[0.0], [1.0], [5.0]], [0, 1, 2])
    assert ned.predict([[0.9]]).tolist() == [1]
    assert ned.unreachable_.tolist() == [0, 1, 2]


def test_duplicates_with_different_labels_share_their_mass_and_are_counted():
    x = np.array([[0.0], [0.0], [4.0], [4.0], [9.0]])
    ned = NEDClassifier(k=4, temperature=0.01).fit(x, [0, 1, 1, 1, 0])
    assert_close(ned.predict_proba([[0.0]]), np.array([[0.5, 0.5]]))
    assert ned.n_conflicting_duplicates_ == 2


def test_a_class_absent_from_the_neighbors_has_probability_zero_unless_there_is_background(cloud):
    x, y, _ = cloud
    x = torch.cat([x, torch.full((1, 4), 50.0).double()])
    y = torch.cat([y, torch.tensor([3])])
    plain = NEDClassifier(k=10).fit(x, y)
    assert 80 in plain.unreachable_
    assert (plain.predict_proba(x[:80])[:, 3] == 0).all()
    floor = NEDClassifier(k=10, background=0.05).fit(x, y)
    assert (floor.predict_proba(x[:80])[:, 3] > 0).all()


def test_k_equal_to_the_support_is_the_full_kernel_sum(cloud):
    x, y, queries = cloud
    full = NEDClassifier(k=80).fit(x, y)
    w = (-torch.cdist(queries, x).square() / full.temperature_).exp()
    assert_close(full.predict_proba(queries), w @ torch.eye(3).double()[y] / w.sum(1, keepdim=True))
    assert (full.judge(queries).ignored_mass == 0).all()


def test_k_is_never_lowered_in_silence(cloud):
    x, y, _ = cloud
    with pytest.raises(InputError, match="`k`=81"):
        NEDClassifier(k=81).fit(x, y)
    with pytest.warns(UserWarning, match="fewer than the default k=100"):
        ned = NEDClassifier().fit(x, y)
    assert ned.k_ == 80
    assert any("all of them vote" in sentence for sentence in ned.warnings_)


def test_the_bound_on_ignored_mass_holds_and_is_the_formula(cloud):
    x, y, queries = cloud
    ned = NEDClassifier(k=15).fit(x, y)
    w = (-torch.cdist(queries, x).square() / ned.temperature_).exp().sort(1, descending=True).values
    kept = w[:, :15].sum(1)
    bound = ned.judge(queries).ignored_mass
    assert (bound >= w[:, 15:].sum(1) / kept).all()
    assert_close(bound, (80 - 15) * w[:, 14] / kept)


def test_ties_go_to_the_smaller_mean_distance_then_to_the_label_order():
    ned = NEDClassifier(k=4, temperature=math.inf).fit([[1.0], [2.0], [-1.0], [-5.0]], [1, 1, 0, 0])
    assert ned.predict([[0.0]]).tolist() == [1]
    even = NEDClassifier(k=2, temperature=1.0).fit([[1.0], [-1.0]], ["b", "a"])
    assert even.predict([[0.0]]).tolist() == ["a"]
    one = Neighborhood(torch.ones(1, 1), torch.tensor([[0]])).labeled(torch.tensor([0]))
    nobody = best_class(torch.zeros(1, 3), one)
    assert nobody.tolist() == [0]


def test_another_search_gives_the_same_answers(cloud):
    x, y, queries = cloud
    exact = NEDClassifier(k=12).fit(x.float(), y)
    faiss = NEDClassifier(k=12, search="faiss").fit(x.float(), y)
    assert_close(faiss.temperature_, exact.temperature_, rtol=1e-4, atol=0)
    assert_close(faiss.predict_proba(queries), exact.predict_proba(queries), rtol=1e-4, atol=1e-5)
    assert_close(faiss.add(x[:2].float(), y[:2]).loo_proba_, exact.add(x[:2], y[:2]).loo_proba_)


def test_torch_in_is_torch_out_and_numpy_numpy(cloud):
    x, y, queries = cloud
    ned = NEDClassifier(k=10).fit(x, y)
    for method in (ned.predict, ned.predict_proba, ned.predict_log_proba):
        as_torch, as_numpy = method(queries), method(queries.numpy())
        assert isinstance(as_torch, torch.Tensor)
        assert isinstance(as_numpy, np.ndarray)
        assert_close(as_torch.numpy(), as_numpy)
    assert ned.predict_proba(queries.float()).dtype == torch.float64  # the support's


def test_the_order_of_the_support_does_not_matter(cloud, rng):
    x, y, queries = cloud
    order = torch.randperm(80, generator=rng)
    one = NEDClassifier(k=25, sharpness="fit", background="fit").fit(x, y)
    two = NEDClassifier(k=25).fit(x[order], y[order])
    three = NEDClassifier(k=25).fit(x, y)
    assert_close(two.predict_proba(queries), three.predict_proba(queries), rtol=1e-6, atol=1e-9)
    assert set(one.fitted_) >= {"temperature_"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "`temperature`"),
        ({"temperature": math.nan}, "`temperature`"),
        ({"sharpness": 0.0}, "`sharpness`"),
        ({"sharpness": "fitt"}, "Did you mean 'fit'"),
        ({"background": 1.0}, "`background`"),
        ({"bandwidth": "clas"}, "Did you mean 'class'"),
        ({"prior": [0.5, 0.5]}, "`prior` must be 3"),
        ({"temperature": 0.0, "sharpness": "fit"}, "exact limit"),
        ({"metric": "manhattan"}, "`metric`"),
        ({"k": 0}, "`k`"),
    ],
)
def test_a_wrong_option_is_named(cloud, options, words):
    x, y, _ = cloud
    with pytest.raises(InputError, match=words):
        NEDClassifier(**{"k": 10, **options}).fit(x, y)


def test_wrong_rows_and_labels_are_named(cloud):
    x, y, _ = cloud
    bad = x.clone()
    bad[7, 2] = math.nan
    with pytest.raises(InputError, match="rows 7"):
        NEDClassifier(k=5).fit(bad, y)
    with pytest.raises(InputError, match="class labels, got dtype float32"):
        NEDClassifier(k=5).fit(x, y.float())
    with pytest.raises(InputError, match="one label for each of the 80 rows"):
        NEDClassifier(k=5).fit(x, y[:-1])
    with pytest.raises(InputError, match="row 0 sums to 2"):
        NEDClassifier(k=5).fit(x, torch.ones(80, 2))
    with pytest.raises(InputError, match="5 features, but NEDClassifier is expecting 4"):
        NEDClassifier(k=5).fit(x, y).predict(torch.zeros(1, 5))
    with pytest.raises(InputError, match="nothing to calibrate"):
        NEDClassifier(k=5, temperature=1.0).fit(x, y).calibrate(x, y)
    with pytest.raises(InputError, match="no calibration row"):
        NEDClassifier(k=5).fit(x, y).calibrate(x, y + 7)


# ------------------------------------------------------------------ label shift


def test_a_uniform_prior_undoes_the_supports_class_sizes():
    x = np.concatenate([np.zeros(9), np.ones(1)])[:, None]
    y = [0] * 9 + [1]
    told = NEDClassifier(k=10, temperature=1.0, prior="uniform").fit(x, y).predict_proba([[0.5]])
    assert_close(told, np.array([[0.5, 0.5]]))
    array = NEDClassifier(k=10, temperature=1.0, prior=[0.2, 0.8]).fit(x, y).predict_proba([[0.5]])
    assert_close(array, np.array([[0.2, 0.8]]))


# ------------------------------------------------------------------ editing


def same_answers(edited, fresh, queries):
    assert edited.classes_.tolist() == fresh.classes_.tolist()
    assert_close(edited.temperature_, fresh.temperature_, rtol=1e-6, atol=0)
    assert_close(edited.predict_proba(queries), fresh.predict_proba(queries), rtol=1e-5, atol=1e-8)
    assert_close(edited.loo_proba_, fresh.loo_proba_, rtol=1e-5, atol=1e-8)
    assert edited.stale_ == ()


def test_adding_rows_and_a_new_class_equals_a_fresh_fit(cloud):
    x, y, queries = cloud
    edited = NEDClassifier(k=12).fit(x[:60], y[:60].clamp(max=1)).add(x[60:], y[60:])
    fresh = NEDClassifier(k=12).fit(x, torch.cat([y[:60].clamp(max=1), y[60:]]))
    same_answers(edited, fresh, queries)
    assert edited.ids_.tolist() == list(range(80))


def test_removing_rows_equals_a_fresh_fit_and_the_others_keep_their_ids(cloud):
    x, y, queries = cloud
    edited = NEDClassifier(k=12).fit(x, y).remove([3, 50, 7])
    kept = [i for i in range(80) if i not in (3, 50, 7)]
    same_answers(edited, NEDClassifier(k=12).fit(x[kept], y[kept]), queries)
    assert edited.ids_.tolist() == kept
    near = edited.kneighbors(queries, k=1).indices[:, 0]
    assert_close(torch.cdist(queries, x[near]).diagonal(), torch.cdist(queries, x[kept]).amin(1))
    with pytest.raises(InputError, match=r"not in the support: \[50\]"):
        edited.remove([50])
    for ids in (["x"], [None], [0.5], [True], [[1], [2, 3]]):
        with pytest.raises(InputError, match="`ids`"):
            edited.remove(ids)
    edited.add(x[:1], y[:1])
    assert edited.ids_[-1] == 80  # ids are never reused


def test_removing_a_whole_class_forgets_it(cloud):
    x, y, queries = cloud
    edited = NEDClassifier(k=12).fit(x, y).remove((y == 1).nonzero().flatten())
    fresh = NEDClassifier(k=12).fit(x[y != 1], y[y != 1])
    same_answers(edited, fresh, queries)


def test_relabeling_equals_a_fresh_fit(cloud):
    x, y, queries = cloud
    other = y.clone()
    other[[2, 9]] = torch.tensor([0, 2])
    edited = NEDClassifier(k=12).fit(x, y).relabel([2, 9], [0, 2])
    same_answers(edited, NEDClassifier(k=12).fit(x, other), queries)


def test_an_edit_without_refit_marks_what_is_stale(cloud):
    x, y, queries = cloud
    ned = NEDClassifier(k=12).fit(x, y)
    t = ned.temperature_
    ned.add(x[:5] + 0.1, y[:5], refit=False)
    assert ned.temperature_ == t
    assert "temperature_" in ned.stale_
    rows, labels = torch.cat([x, x[:5] + 0.1]), torch.cat([y, y[:5]])
    same_answers(ned.refit(), NEDClassifier(k=12).fit(rows, labels), queries)


def test_a_held_out_calibration_goes_stale_with_a_warning(cloud):
    x, y, _ = cloud
    ned = NEDClassifier(k=12).fit(x[:50], y[:50]).calibrate(x[50:], y[50:])
    t = ned.temperature_
    with pytest.warns(UserWarning, match="call calibrate"):
        ned.remove([0])
    assert ned.temperature_ == t
    assert "temperature_" in ned.stale_


def test_removing_below_k_is_refused_and_changes_nothing(cloud):
    x, y, _ = cloud
    ned = NEDClassifier(k=78).fit(x, y)
    with pytest.raises(InputError, match="would remain"):
        ned.remove([0, 1, 2])
    assert ned.support_size_ == 80


def test_a_support_that_votes_as_a_whole_shrinks_and_grows(cloud):
    x, y, queries = cloud
    edited = NEDClassifier().fit(x[:50], y[:50]).remove([1, 2, 3])
    kept = [i for i in range(50) if i not in (1, 2, 3)]
    same_answers(edited, NEDClassifier().fit(x[kept], y[kept]), queries)
    edited.add(x[1:4], y[1:4])
    order = [*kept, 1, 2, 3]
    same_answers(edited, NEDClassifier().fit(x[order], y[order]), queries)


def test_no_warning_is_given_where_nothing_is_wrong(cloud):
    x, y, queries = cloud
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ned = NEDClassifier(k=20).fit(x, y)
        ned.predict_proba(queries)
    assert ned.warnings_ == []


def test_one_neighbor_on_random_labels_is_not_called_a_collapse(rng, recwarn):
    x, y = torch.randn(300, 4, generator=rng), torch.randint(3, (300,), generator=rng)
    NEDClassifier(k=1, temperature=1.0).fit(x, y)
    assert not [w for w in recwarn if "leave-one-out accuracy" in str(w.message)]


def test_classes_of_one_row_do_not_hide_that_the_others_have_collapsed(rng):
    y = torch.cat([torch.arange(60) % 3, torch.arange(3, 23)])  # and twenty classes of one row
    x = 100.0 * torch.eye(23)[y] + 1e-3 * torch.randn(80, 23, generator=rng)
    with pytest.warns(UserWarning, match="leave-one-out accuracy is 1"):
        NEDClassifier(k=30).fit(x, y)


def test_rows_in_parts_are_the_rows_at_once(rng):
    x, y = torch.randn(40, 3, generator=rng).numpy(), np.arange(40) % 4
    parts = NEDClassifier(k=3)
    for rows in (slice(0, 15), slice(15, 16), slice(16, 40)):
        parts.partial_fit(x[rows], y[rows], classes=range(4))
    whole = NEDClassifier(k=3).fit(x, y)
    np.testing.assert_allclose(parts.predict_proba(x), whole.predict_proba(x), atol=1e-6)
    with pytest.raises(InputError, match="does not announce"):
        parts.partial_fit(x[:2], [0, 9], classes=range(4))
