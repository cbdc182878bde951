"""The five papers tell one story. Each test is one sentence of it."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from torch.testing import assert_close

import reference
from vicinal.confidence import DeepKNN, NEDClassifier
from vicinal.losses import (
    graph_smoothness_loss,
    info_nce,
    soft_nearest_neighbor_loss,
    soft_target_cross_entropy,
)
from vicinal.neighbors import (
    chance_level,
    class_log_mass,
    exponential,
    log_mass,
    optimal_temperature,
    own_log_mass,
    pairwise_distances,
    uniform,
)
from vicinal.neighbors.tiles.masses import log_masses

N, C = 24, 3


@pytest.fixture
def batch(rng):
    return torch.randn(N, 5, generator=rng, dtype=torch.float64), torch.arange(N) % C


@pytest.fixture
def soft(batch):
    return F.softmax(2 * batch[0][:, :C], 1)


def others(matrix):
    """The off-diagonal entries of a square matrix, row by row: (n, n - 1)."""
    n = len(matrix)
    return matrix[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)


def leave_one_out(x, y, temperature):
    """NED's probability of each row's own label, predicted from all the other rows."""
    found = []
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        ned = NEDClassifier(k=len(x) - 1, temperature=temperature).fit(x[rest], y[rest])
        column = ned.classes_.tolist().index(int(y[i]))
        found.append(ned.predict_log_proba(x[i : i + 1])[0, column])
    return torch.stack(found)


def test_snnl_is_the_log_loss_of_ned_predicting_each_point_from_the_others(batch):
    x, y = batch
    loss = soft_nearest_neighbor_loss(x, y, temperature=2.0)
    assert_close(loss, -leave_one_out(x, y, 2.0).mean())


def test_the_temperature_of_ned_is_the_one_that_minimizes_snnl(batch):
    x, y = batch
    ned = NEDClassifier(k=N - 1).fit(x, y)
    best = optimal_temperature(x, y)
    assert ned.temperature_ == pytest.approx(best, rel=1e-3)
    at_best = soft_nearest_neighbor_loss(x, y, temperature=best)
    for factor in (0.9, 1.1):
        assert at_best <= soft_nearest_neighbor_loss(x, y, temperature=factor * best)


def test_snnl_is_read_off_two_masses(batch):
    x, y = batch
    logs = exponential(others(pairwise_distances(x)), 0.7)
    same = others(y[:, None] == y)
    masses = log_masses(x, y, temperature=0.7)
    assert_close(masses.all, log_mass(logs))
    assert_close(masses.own, own_log_mass(logs, same))
    loss = soft_nearest_neighbor_loss(x, y, temperature=0.7)
    assert_close(loss, (masses.all - masses.own).mean())


def test_snnl_at_a_great_temperature_is_the_chance_level(batch):
    x, y = batch
    loss = soft_nearest_neighbor_loss(x, y, temperature=1e12)
    assert float(loss) == pytest.approx(chance_level(y), rel=1e-9)
    at_best = soft_nearest_neighbor_loss(x, y, temperature=optimal_temperature(x, y))
    assert float(at_best) <= chance_level(y) + 1e-9


def test_nca_of_scikit_learn_is_the_sum_of_what_snnl_takes_the_logarithm_of(batch):
    x, y = batch
    terms = soft_nearest_neighbor_loss(x, y, temperature=1.0, reduction="none")
    nca = NeighborhoodComponentsAnalysis()
    nca.n_iter_ = 0
    import numpy as np

    same = (y[:, None] == y).numpy()
    loss, _ = nca._loss_grad_lbfgs(np.eye(5).ravel(), x.numpy(), same, -1.0)
    assert float((-terms).exp().sum()) == pytest.approx(-loss)


@pytest.mark.parametrize("k", [None, 5])
def test_graph_smoothness_is_the_laplacian_quadratic_form_of_the_labels(batch, k):
    x, y = batch
    z = F.normalize(x)
    d = pairwise_distances(z, metric="euclidean")
    w = (-2.0 * d).exp().fill_diagonal_(0)
    if k is not None:
        keep = torch.zeros_like(w, dtype=torch.bool)
        nearest = (d + 1e9 * torch.eye(N)).topk(k, largest=False).indices
        keep.scatter_(1, nearest, True)
        w = w * (keep | keep.T)
    laplacian, signal = torch.diag(w.sum(1)) - w, F.one_hot(y).double()
    loss = graph_smoothness_loss(x, y, alpha=2.0, k=k)
    assert_close(loss, torch.trace(signal.T @ laplacian @ signal))


def test_graph_smoothness_is_the_mass_that_is_not_of_the_own_class(batch):
    x, y = batch
    masses = log_masses(F.normalize(x), y, temperature=0.5, metric="euclidean")
    loss = graph_smoothness_loss(x, y, alpha=2.0)
    assert_close(loss, (masses.all.exp() - masses.own.exp()).sum())


def test_dknn_counts_what_the_row_would_add_to_the_graph_smoothness_under_each_label(batch):
    x, y = batch
    layers = {"a": x, "b": 2 * x[:, :3] + 1}
    queries = {name: value[:4] + 0.01 for name, value in layers.items()}
    dknn = DeepKNN(k=5, metric="euclidean").fit(layers, y)
    want = torch.zeros(4, C, dtype=torch.float64)
    for name in layers:
        near = pairwise_distances(queries[name], layers[name], "euclidean").topk(5, largest=False)
        weights = uniform(near.values)
        mine = class_log_mass(weights, y[near.indices], C).exp()
        want += log_mass(weights).exp()[:, None] - mine
    got = torch.as_tensor(dknn.nonconformity(queries)).double()
    assert_close(got, want)


def test_soft_target_info_nce_is_one_cross_entropy_over_the_batch(batch, soft):
    logits, eta = batch[0][:, :C], torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    scores = (logits / 0.7 - eta.log()) @ soft.T
    loss = info_nce(logits, soft, noise=eta, temperature=0.7)
    assert_close(loss, F.cross_entropy(scores, torch.arange(N)))


def test_info_nce_with_one_hot_targets_and_batch_noise_is_cross_entropy_plus_log_of_the_count(
    batch,
):
    x, y = batch
    logits, count = x[:, :C], torch.bincount(y).double()
    want = F.cross_entropy(logits, y) + count[y].log().mean()
    assert_close(info_nce(logits, y, noise="batch"), want)
    assert_close(info_nce(logits, F.one_hot(y).double(), noise="batch"), want)


def test_uniform_noise_makes_no_difference(batch, soft):
    logits = batch[0][:, :C]
    assert_close(info_nce(logits, soft, noise="uniform"), info_nce(logits, soft))


def test_soft_cross_entropy_is_soft_info_nce_against_the_corners_of_the_simplex(batch, soft):
    logits = batch[0][:, :C]
    contrast = torch.logsumexp(logits @ torch.eye(C).double(), 1) - (logits * soft).sum(1)
    assert_close(soft_target_cross_entropy(logits, soft), contrast.mean())
    assert_close(soft_target_cross_entropy(logits, soft), F.cross_entropy(logits, soft))


def test_as_the_temperature_falls_the_class_mass_becomes_the_nearest_distance_of_the_class(batch):
    x, y = batch
    query, t = x[:5] + 0.1, 1e-4
    d = pairwise_distances(query, x)
    masses = class_log_mass(exponential(d, t), y.expand(5, N), C)
    nearest = torch.stack([d[:, y == c].amin(1) for c in range(C)], 1)
    assert_close(-t * masses, nearest, atol=1e-3, rtol=0)


def test_neds_limits_are_the_nearest_neighbor_and_the_plain_vote(batch):
    x, y = batch
    query = x[:6] + 0.05
    near = pairwise_distances(query, x).topk(7, largest=False).indices
    cold = NEDClassifier(k=7, temperature=0.0).fit(x, y).predict_proba(query)
    assert_close(cold, F.one_hot(y[near[:, 0]], C).double())
    hot = NEDClassifier(k=7, temperature=math.inf).fit(x, y).predict_proba(query)
    assert_close(hot, F.one_hot(y[near], C).double().mean(1))


def test_on_the_unit_sphere_ned_is_a_softmax_of_cosines_at_half_the_temperature(batch):
    x, y = batch
    z = F.normalize(x)
    query, t = F.normalize(x[:6] + 0.3), 0.2
    got = NEDClassifier(k=N, temperature=t).fit(z, y).predict_proba(query)
    want = (query @ z.T / (t / 2)).softmax(1) @ F.one_hot(y, C).double()
    assert_close(got, want)


def test_the_fast_masses_equal_the_sums_written_as_loops(batch):
    x, y = batch
    masses = log_masses(x, y, temperature=1.3)
    for i in range(N):
        logs = [-reference.distance(x[i], x[j]) / 1.3 for j in range(N)]
        want_all = reference.log_sum_exp(logs[j] for j in range(N) if j != i)
        want_own = reference.log_sum_exp(logs[j] for j in range(N) if j != i and y[j] == y[i])
        assert float(masses.all[i]) == pytest.approx(want_all, rel=1e-10)
        assert float(masses.own[i]) == pytest.approx(want_own, rel=1e-10)
