"""LinearClassifier against autograd, scikit-learn's logistic regression, and its own edges."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.testing import assert_close

import reference
from vicinal.checks import InputError
from vicinal.confidence.linear import (
    LinearClassifier,
    Problem,
    column_scales,
    dealt,
    log_probs,
    principal_coordinates,
)
from vicinal.labels import folds_of


@pytest.fixture
def cloud(rng):
    y = torch.randint(0, 3, (120,), generator=rng)
    return torch.randn(120, 5, generator=rng).double() + 0.8 * y[:, None], y


def problem_of(x, y, folds=3):
    fold = folds_of(y, folds)
    return Problem(x, y, int(y.max()) + 1, fold[:, None] == torch.arange(folds), ones(x)), fold


def ones(x):
    return torch.ones(len(x)).double()


def even(x):
    return torch.full((len(x),), 1 / len(x)).double()


def log_loss(log_probs, y):
    return float(-np.asarray(log_probs)[np.arange(len(y)), np.asarray(y)].mean())


def test_the_gradient_is_that_of_the_loss_written_down_plainly(cloud, rng):
    x, y = cloud
    problem, fold = problem_of(x, y)
    w = torch.randn(3, 3, 6, generator=rng).double().requires_grad_()
    total = 0.0
    for f in range(3):
        mine, kept = w[f].T, fold != f
        n = int(kept.sum())
        total = total + torch.nn.functional.cross_entropy(x[kept] @ mine[:-1] + mine[-1], y[kept])
        total = total + 0.05 * mine[:-1].square().sum()
        total = total - mine[-1].log_softmax(0).mean() / n  # the pseudo-row at the center
    loss, gradient = problem.loss_and_gradient(w.detach(), 0.1)
    assert loss == pytest.approx(total.item(), rel=1e-12)
    assert_close(gradient, torch.autograd.grad(total, w)[0])


def test_folds_that_descend_together_end_where_each_alone_would(cloud):
    x, y = cloud
    problem, fold = problem_of(x, y)
    together = problem.descend(torch.zeros(3, 3, 6).double(), 0.01, 200, 1e-12)
    for f in range(3):
        kept = fold != f
        none = torch.zeros(int(kept.sum()), 1, dtype=torch.bool)
        alone = Problem(x[kept], y[kept], 3, none, ones(x[kept]))
        one = alone.descend(torch.zeros(1, 3, 6).double(), 0.01, 200, 1e-12)
        mine = log_probs(together[f : f + 1], problem.rows)
        assert_close(mine, log_probs(one, problem.rows), atol=1e-3, rtol=0)


def test_at_a_given_l2_it_is_scikit_learns_logistic_regression(cloud):
    x, y = cloud
    head = LinearClassifier(l2=0.01).fit(x, y)
    z = x - x.mean(0)
    z = (z / z.square().sum(1).mean().sqrt()).numpy()
    rows, labels = np.vstack([z, np.zeros((3, 5))]), np.r_[y, [0, 1, 2]]
    weight = np.r_[np.ones(120), np.full(3, 1 / 3)]
    theirs = LogisticRegression(C=1 / (120 * 0.01), tol=1e-8, max_iter=500)
    theirs.fit(rows, labels, sample_weight=weight)
    ours = head.predict_log_proba(x.numpy(), scaled=False)
    np.testing.assert_allclose(ours, theirs.predict_log_proba(z), atol=0.01)


def test_the_l2_it_finds_is_about_the_best_of_a_grid(cloud):
    x, y = load_digits(return_X_y=True)
    x, y, new, truth = x[:600], y[:600], x[600:], y[600:]
    found = log_loss(LinearClassifier().fit(x, y).predict_log_proba(new), truth)
    grid = [LinearClassifier(l2=v).fit(x, y) for v in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)]
    losses = [log_loss(head.predict_log_proba(new), truth) for head in grid]
    assert found <= min(losses) + 0.02
    assert found <= max(losses) - 0.2


def test_turning_moving_and_scaling_the_rows_changes_nothing(cloud):
    x, y = cloud
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double())[
        0
    ]
    ours = LinearClassifier().fit(x, y).predict_proba(x)
    moved = 7.0 * x @ turn + 100.0
    assert_close(LinearClassifier().fit(moved, y).predict_proba(moved), ours, atol=1e-3, rtol=0)


def test_what_is_said_out_of_fold_was_said_without_the_row():
    noise = torch.randint(0, 3, (120,), generator=torch.Generator().manual_seed(1))
    wide = torch.randn(120, 200, generator=torch.Generator().manual_seed(2))
    head = LinearClassifier(l2=1e-6).fit(wide, noise)  # labels by chance, learned by heart
    assert head.score(wide.numpy(), noise.numpy()) > 0.95
    assert (head.oof_log_proba_.argmax(1) == noise.numpy()).mean() < 0.5
    assert log_loss(LinearClassifier().fit(wide, noise).oof_log_proba_, noise) < 1.2  # log 3 is 1.1


def test_the_temperature_calibrates_what_was_said_out_of_fold(cloud):
    x, y = cloud
    head = LinearClassifier(l2=1e-1).fit(x, y)  # too strong: too timid
    assert head.temperature_ < 0.7
    own = head.oof_log_proba_
    for t in (0.7, 1.4):
        other = torch.from_numpy(own / t).log_softmax(1)
        assert log_loss(own, y) < log_loss(other, y)
    raw, scaled = (head.predict_log_proba(x, scaled=s) for s in (False, True))
    assert_close(scaled, (raw / head.temperature_).log_softmax(1))


def test_rows_that_are_all_right_do_not_make_it_infinitely_sure():
    x = np.r_[np.linspace(0, 1, 20), np.linspace(5, 6, 20)][:, None]
    head = LinearClassifier().fit(x, np.repeat([0, 1], 20))
    assert head.temperature_ > 0.03
    assert np.isfinite(head.predict_log_proba(x)).all()
    assert 1e-12 < head.predict_proba([[0.0]])[0, 1] < 0.05


def test_a_class_of_one_row_keeps_a_small_probability_where_it_was_held_out(cloud):
    x, y = cloud
    y = y.clone()
    y[5] = 3
    head = LinearClassifier().fit(x, y)
    assert np.isfinite(head.oof_log_proba_).all()
    assert np.exp(head.oof_log_proba_[5, 3]) < 0.05
    assert head.predict_proba(x).shape == (120, 4)


def test_more_dimensions_than_rows_give_what_their_own_span_gives(rng):
    x, y = torch.randn(30, 80, generator=rng).double(), torch.arange(30) % 2
    basis = torch.linalg.qr(x.T)[0]
    wide, narrow = LinearClassifier().fit(x, y), LinearClassifier().fit(x @ basis, y)
    assert_close(wide.predict_proba(x), narrow.predict_proba(x @ basis), atol=1e-3, rtol=0)


def test_constant_columns_do_nothing(cloud):
    x, y = cloud
    more = torch.cat([x, torch.full((120, 2), 3.0).double()], 1)
    with_them, without = LinearClassifier().fit(more, y), LinearClassifier().fit(x, y)
    assert_close(with_them.predict_proba(more), without.predict_proba(x), atol=1e-4, rtol=0)


def test_rows_that_are_all_alike_get_the_class_shares():
    head = LinearClassifier(folds=2).fit(np.ones((8, 3)), [0, 0, 0, 0, 0, 0, 1, 1])
    np.testing.assert_allclose(head.predict_proba(np.ones((1, 3))), [[0.75, 0.25]], atol=0.06)


def test_two_rows_of_two_classes_are_enough():
    head = LinearClassifier().fit([[0.0], [1.0]], ["a", "b"])
    assert head.predict([[0.0], [1.0]]).tolist() == ["a", "b"]
    assert np.isfinite(head.oof_log_proba_).all()


def test_principal_coordinates_keep_every_distance_up_to_one_scale(cloud):
    x, _ = cloud
    coordinates, z = principal_coordinates(x, torch.ones_like(x[0]), even(x))
    assert float(z.square().sum(1).mean()) == pytest.approx(1.0)
    ratio = torch.cdist(x[:20], x[:20]) / torch.cdist(z[:20], z[:20])
    ratio = ratio[~torch.eye(20, dtype=torch.bool)]
    assert_close(ratio, ratio[:1].expand_as(ratio))
    assert_close((x - coordinates.center) @ coordinates.basis, z)


@pytest.mark.parametrize(
    ("options", "y", "says"),
    [
        ({}, torch.full((4, 2), 0.5), "argmax"),
        ({"folds": 1}, [0, 1, 0, 1], "`folds` must be"),
        ({"l2": -1.0}, [0, 1, 0, 1], "`l2` must be"),
    ],
)
def test_what_it_cannot_fit_earns_a_sentence(options, y, says):
    with pytest.raises(InputError, match=says):
        LinearClassifier(**options).fit(np.arange(8.0).reshape(4, 2), y)


def test_columns_in_units_of_their_own_are_as_good_as_standardized_ones():
    x, y = load_breast_cancer(return_X_y=True)
    support, fresh = slice(None, None, 2), slice(1, None, 2)
    unit = StandardScaler().fit(x[support])
    given = LinearClassifier().fit(x[support], y[support])
    scaled = LinearClassifier().fit(unit.transform(x[support]), y[support])
    own = log_loss(given.predict_log_proba(x[fresh]), y[fresh])
    best = log_loss(scaled.predict_log_proba(unit.transform(x[fresh])), y[fresh])
    assert own < best + 1e-3
    assert len(column_scales(torch.from_numpy(x), even(x))) == 2


def test_columns_of_one_kind_keep_their_proportions(cloud):
    assert len(column_scales(cloud[0], even(cloud[0]))) == 1
    constant = torch.tensor([[1.0, 5.0], [2.0, 5.0]]).double()
    assert len(column_scales(constant, even(constant))) == 1


def test_held_out_rows_choose_between_columns_in_proportion_and_of_unit_deviation():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = np.eye(3)[y] * 4 + rng.normal(size=(120, 3))
    loud = np.column_stack([x, 1000 * rng.normal(size=(120, 30))])  # not to be listened to
    found = LinearClassifier().fit(loud, y).predict(loud)
    assert (found == y).mean() > 0.95
    quiet = np.column_stack([x, 1e-3 * rng.normal(size=(120, 30))])  # should not be heard
    plain, other = (LinearClassifier().fit(rows, y).oof_log_proba_ for rows in (x, quiet))
    assert np.abs(plain - other).max() < 0.02


def test_of_many_rows_some_choose_the_l2_and_where_the_fit_to_all_begins(cloud, monkeypatch):
    x, y = (part.repeat(4, 1)[:480].squeeze(1) for part in (cloud[0], cloud[1][:, None]))
    x = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    every = LinearClassifier().fit(x, y)
    asked = []
    descend = Problem.descend
    monkeypatch.setattr("vicinal.confidence.linear.CHOOSING", 120)
    monkeypatch.setattr(
        Problem, "descend",
        lambda self, start, l2, *rest: asked.append(tuple(self.shares.shape))
        or descend(self, start, l2, *rest),
    )  # fmt: skip
    some = LinearClassifier().fit(x, y)
    assert asked[-2:] == [(5, 480), (1, 480)]
    assert set(asked[:-2]) == {(5, 120)}
    own = np.arange(len(y)), y.numpy()
    assert -some.oof_log_proba_[own].mean() < -every.oof_log_proba_[own].mean() + 0.02
    at_same = LinearClassifier(l2=some.l2_).fit(x, y)  # every fold has walked there
    assert np.abs(at_same.oof_log_proba_ - some.oof_log_proba_).mean() < 0.02


def test_no_row_is_judged_by_a_model_that_has_seen_it(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 60)), rng.integers(0, 2, 400)  # nothing to be learned
    monkeypatch.setattr("vicinal.confidence.linear.CHOOSING", 100)
    own = LinearClassifier(l2=1e-5).fit(x, y).oof_log_proba_[np.arange(400), y]
    assert -own.mean() > 0.68


@pytest.mark.parametrize("most", [2, 4])
def test_a_whole_weight_is_so_many_copies_of_a_row_in_the_fit_and_in_the_folds(cloud, most):
    x, y = (part.numpy() for part in cloud)
    weight = np.random.default_rng(0).integers(0, most, len(x))
    head = LinearClassifier().fit(x, y, sample_weight=weight)
    copies = LinearClassifier().fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    for name in ("l2_", "temperature_", "coef_", "intercept_"):
        np.testing.assert_array_equal(getattr(head, name), getattr(copies, name))
    own = np.repeat(head.oof_log_proba_, weight, 0)
    np.testing.assert_array_equal(own, copies.oof_log_proba_)
    gone = weight == 0
    np.testing.assert_array_equal(head.folds_ < 0, gone)
    np.testing.assert_allclose(head.oof_log_proba_[gone], head.predict_log_proba(x[gone]))


def test_any_weights_give_scikit_learns_weighted_logistic_regression(cloud):
    x, y = (part.numpy() for part in cloud)
    weight = np.random.default_rng(0).random(len(x)) * np.where(y == 2, 5.0, 1.0)
    head = LinearClassifier(l2=0.01).fit(x, y, sample_weight=weight)
    z = x - weight @ x / weight.sum()
    z /= np.sqrt(weight @ (z**2).sum(1) / weight.sum())
    rows, labels = np.vstack([z, np.zeros((3, 5))]), np.r_[y, [0, 1, 2]]
    theirs = LogisticRegression(C=1 / (weight.sum() * 0.01), tol=1e-8, max_iter=500)
    theirs.fit(rows, labels, sample_weight=np.r_[weight, np.full(3, 1 / 3)])
    ours = head.predict_log_proba(x, scaled=False)
    np.testing.assert_allclose(ours, theirs.predict_log_proba(z), atol=0.01)


def test_rows_that_are_equal_are_dealt_over_the_folds_and_never_merged_across_classes():
    x = np.repeat([[0.0], [0.0], [1.0]], 8, 0)
    y = np.repeat([0, 1, 1], 8)
    head = LinearClassifier().fit(x, y)
    np.testing.assert_allclose(head.predict_proba([[0.0]])[0], [0.5, 0.5], atol=0.1)
    assert head.oof_log_proba_.shape == (24, 2)


@pytest.mark.parametrize("count", [2, 5])
def test_copies_are_dealt_as_a_loop_over_them_deals(count):
    rng = np.random.default_rng(1)
    codes, weight = torch.from_numpy(rng.integers(0, 3, 40)), rng.integers(1, 6, 40)
    order = folds_of(codes, 40).argsort().tolist()
    found = dealt(codes, torch.from_numpy(weight).double(), count)
    np.testing.assert_array_equal(found, reference.dealt_copies(order, weight.tolist(), count))
    once = dealt(codes, torch.ones(40).double(), count)
    assert torch.equal(once.argmax(1), folds_of(codes, count))
    assert_close(
        dealt(codes, torch.full((40,), 0.01).double(), count).sum(), torch.tensor(0.4).double()
    )


@pytest.mark.parametrize("weight", [[1.0], [-1.0] * 120, [0.0] * 120, [np.nan] * 120])
def test_weights_that_are_none_are_refused(cloud, weight):
    with pytest.raises(InputError, match="sample_weight"):
        LinearClassifier().fit(*cloud, sample_weight=weight)
