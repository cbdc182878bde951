"""The joint fit: its gradient, its identity with SNNL, its restraint."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import reference
from vicinal.confidence.ned.classifier import NEDClassifier
from vicinal.confidence.ned.fit import descend, loss_and_gradient, reachable, row_losses
from vicinal.confidence.ned.posterior import NEDParameters, ned_log_probs
from vicinal.confidence.support import Evidence
from vicinal.losses import soft_nearest_neighbor_loss
from vicinal.neighbors.neighborhood import Neighborhood

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EVERYTHING = np.ones(7, dtype=bool)


def evidence_of(rng, *, soft=False, leave_one_out=True, n=40, k=9, c=3):
    d = torch.rand(n, k, generator=rng).double().sort(1).values * 3
    labels = torch.randint(0, c, (n, k), generator=rng)
    targets = torch.randint(0, c, (n,), generator=rng)
    counts = torch.bincount(targets, minlength=c).double() + 5
    if soft:
        labels = torch.rand(n, k, c, generator=rng).double().softmax(2)
        targets = torch.rand(n, c, generator=rng).double().softmax(1)
    return Evidence(neighbors(d, labels), targets, counts, leave_one_out)


def neighbors(distances, labels):
    return Neighborhood(distances, torch.arange(distances.shape[1]).expand_as(distances), labels)


def somewhere():
    """log T, three log(T_c / T), m, log γ, logit ε."""
    return np.array([-0.3, 0.2, -0.3, 0.1, 1.3, 0.4, math.log(0.07 / 0.93)])


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_the_gradient_is_that_of_finite_differences(rng, soft, leave_one_out):
    evidence = evidence_of(rng, soft=soft, leave_one_out=leave_one_out)
    v = somewhere()
    _, gradient = loss_and_gradient(v, evidence, EVERYTHING)
    for i in range(len(v)):
        step = np.zeros(len(v))
        step[i] = 1e-6
        up, _ = loss_and_gradient(v + step, evidence, EVERYTHING)
        down, _ = loss_and_gradient(v - step, evidence, EVERYTHING)
        assert_close(float(gradient[i]), (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


def test_the_fits_loss_is_the_log_loss_of_the_predictions(rng):
    evidence = evidence_of(rng, leave_one_out=False)
    v = somewhere()
    parameters = NEDParameters(
        math.exp(v[0]), math.exp(v[5]), 0.07, v[4], torch.from_numpy(v[1:4]),
        evidence.counts / evidence.counts.sum(),
    )  # fmt: skip
    log_p = ned_log_probs(evidence.neighborhood, 3, parameters)
    assert_close(row_losses(v, evidence), -log_p.gather(1, evidence.targets[:, None])[:, 0])


def test_leaving_a_row_out_takes_its_label_out_of_its_prior(rng):
    evidence = evidence_of(rng, n=6, k=2)
    evidence = replace(evidence, neighborhood=neighbors(torch.zeros(6, 2), evidence.labels))
    all_background = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12 * math.log(10)])
    losses = row_losses(all_background, evidence)
    for loss, label in zip(losses, evidence.targets, strict=True):
        counts = evidence.counts.clone()
        counts[label] -= 1
        assert_close(float(loss), -math.log(counts[label] / counts.sum()), rtol=1e-6, atol=1e-6)


def test_snnl_is_the_leave_one_out_log_loss_of_ned(rng):
    y = torch.randint(0, 3, (50,), generator=rng)
    x = torch.randn(50, 4, generator=rng).double() + 0.5 * y[:, None]
    ned = NEDClassifier(k=49, temperature=0.8).fit(x, y)
    told = ned.loo_proba_.gather(1, y[:, None])[:, 0]
    snnl = soft_nearest_neighbor_loss(x, y, temperature=0.8, reduction="none")
    assert_close(-told.log(), snnl)
    loops = reference.leave_one_out_ned(x, y, 49, 3, 0.8)
    assert_close(told.tolist(), [p[c] for p, c in zip(loops, y.tolist(), strict=True)])


def test_rows_that_nothing_can_reach_are_left_out_of_the_fit():
    d = torch.tensor([[0.1, 0.2], [0.1, 0.2]]).double()
    labels, targets = torch.tensor([[0, 0], [0, 1]]), torch.tensor([1, 1])
    counts = torch.tensor([3.0, 2.0]).double()
    near = neighbors(d, labels)
    assert reachable(Evidence(near, targets, counts, True), False).tolist() == [False, True]
    assert reachable(Evidence(near, targets, counts, True), True).all()
    alone = torch.tensor([3.0, 1.0]).double()  # its class has no other row: nor has its prior
    assert reachable(Evidence(near, targets, alone, True), True).tolist() == [False, True]


def test_descending_never_climbs(rng):
    evidence = evidence_of(rng, n=80)
    start = somewhere()
    before, _ = loss_and_gradient(start, evidence, EVERYTHING)
    _, after = descend(start, evidence, EVERYTHING, dimensions=4)
    assert after <= before


def noisy_classes(n, rng, spread=1.0, dimensions=20):
    """Concentrated distances: the T that averages enough rows is far too flat."""
    y = torch.arange(n) % 5
    centers = torch.randn(5, dimensions, generator=torch.Generator().manual_seed(7))
    return centers[y] * spread + torch.randn(n, dimensions, generator=rng), y


def test_fitted_ned_beats_equation_3_where_distances_are_concentrated(rng):
    (x, y), (queries, truth) = noisy_classes(400, rng, 0.6), noisy_classes(400, rng, 0.6)
    nll = lambda ned: -float(ned.predict_log_proba(queries).gather(1, truth[:, None]).mean())
    plain = NEDClassifier(k=60).fit(x, y)
    full = NEDClassifier(k=60, sharpness="fit", background="fit", bandwidth="class").fit(x, y)
    assert nll(full) < nll(plain) - 0.03
    assert full.sharpness_ > 1.5
    assert "sharpness_" in full.fitted_


def test_an_easy_set_with_few_errors_does_not_send_sharpness_away(rng):
    (x, y), (queries, truth) = noisy_classes(300, rng, 3.0, 5), noisy_classes(600, rng, 3.0, 5)
    nll = lambda ned: -float(ned.predict_log_proba(queries).gather(1, truth[:, None]).mean())
    plain = NEDClassifier(k=40, background=0.01).fit(x, y)
    sharp = NEDClassifier(k=40, background=0.01, sharpness="fit").fit(x, y)
    assert sharp.sharpness_ < 20
    assert nll(sharp) < nll(plain) + 0.01


def test_extras_that_do_not_help_leave_equation_3_untouched(rng):
    y = torch.randint(0, 2, (200,), generator=rng)
    x = torch.randn(200, 2, generator=rng)  # labels independent of the rows
    full = NEDClassifier(k=50, sharpness="fit", background="fit", bandwidth="class").fit(x, y)
    plain = NEDClassifier(k=50).fit(x, y)
    if full.fitted_ == ("temperature_",):
        assert full.temperature_ == plain.temperature_
    entropy = -float((full.loo_proba_ * full.loo_proba_.log()).sum(1).mean())
    assert entropy > 0.6  # close to log 2: nothing was learned from noise


def test_a_background_reaches_rows_whose_class_is_not_near(rng):
    y = torch.randint(0, 4, (200,), generator=rng)
    x = torch.randn(200, 2, generator=rng)
    ned = NEDClassifier(k=5, background="fit").fit(x, y)
    assert len(ned.unreachable_) > 0
    assert ned.background_ > 0
    own = ned.loo_proba_.gather(1, y[:, None])
    assert (own > 0).all()


def test_a_class_of_narrow_spread_gets_a_small_bandwidth(rng):
    y = torch.arange(400) % 2
    x = torch.randn(400, 3, generator=rng) * torch.where(y == 0, 0.3, 2.0)[:, None]
    ned = NEDClassifier(k=60, bandwidth="class", sharpness="fit").fit(x, y)
    if "class_temperatures_" in ned.fitted_:
        assert ned.class_temperatures_[0] < ned.class_temperatures_[1]
    plain = NEDClassifier(k=60).fit(x, y)
    nll = lambda n: -float(n.loo_proba_.gather(1, y[:, None]).log().mean())
    assert nll(ned) <= nll(plain) + 1e-6


@pytest.mark.parametrize("extras", [{}, {"sharpness": "fit", "background": "fit"}])
def test_a_perfect_leave_one_out_leaves_the_doubt_that_its_rows_cannot_rule_out(rng, extras):
    y = torch.arange(40) % 2
    x = torch.randn(40, 2, generator=rng).double() + 4.0 * y[:, None]
    ned = NEDClassifier(k=39, **extras).fit(x, y)
    plain = NEDClassifier(k=39, temperature=ned.temperature_).fit(x, y)
    told = -plain.loo_proba_.gather(1, y[:, None]).log().sum()
    assert 0.9 < float(told) < 1  # at T = 0 it is 0, and the first error costs every digit
    assert any("lower bound" in sentence for sentence in ned.warnings_)
    assert ned.sharpness_ == 1  # rows that are all certain buy no parameters
