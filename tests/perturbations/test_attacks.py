"""Attacks: foolbox agrees, the ball and the range hold, and what cannot be attacked is said."""

import math

import foolbox
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import reference
from vicinal.checks import InputError
from vicinal.perturbations import (
    ATTACKS,
    apgd,
    bim,
    fgsm,
    foolbox_attack,
    pgd,
    square,
    to_foolbox,
)
from vicinal.perturbations.climb import Ball, attack_loss, project, random_point

BALL = Ball(0.1, "linf", (0.0, 1.0))
each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
each_norm = pytest.mark.parametrize("norm", ["linf", "l2"])


def length(change, norm):
    flat = change.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.norm(dim=1)


@pytest.fixture
def problem(rng):
    """A small curved network, images in [0, 1], and the labels it gives them."""
    torch_net = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))
    for p in torch_net.parameters():
        p.data = torch.randn(p.shape, generator=rng) * 0.6
    x = torch.rand(40, 1, 4, 4, generator=rng)
    return torch_net, x, torch_net(x).argmax(1).detach()


class Neighbors(nn.Module):
    """A soft vote of all support rows: log-probabilities, as a NED head gives."""

    def __init__(self, support, labels, temperature):
        super().__init__()
        self.support, self.labels, self.temperature = support, labels, temperature

    def forward(self, z):
        weights = torch.log_softmax(-torch.cdist(z, self.support).square() / self.temperature, 1)
        votes = [weights[:, self.labels == c].logsumexp(1) for c in range(3)]
        return torch.stack(votes, 1)


# ------------------------------------------------------------------ against foolbox


def test_fgsm_is_foolboxs(problem):
    net, x, y = problem
    theirs = foolbox_attack(foolbox.attacks.FGSM(), net, x, y, 0.07)
    assert torch.allclose(fgsm(net, x, y, 0.07), theirs, atol=1e-6)


def test_fgsm_under_l2_is_foolboxs_fgm(problem):
    net, x, y = problem
    theirs = foolbox_attack(foolbox.attacks.FGM(), net, x, y, 0.3)
    assert torch.allclose(fgsm(net, x, y, 0.3, norm="l2"), theirs, atol=1e-6)


@pytest.mark.parametrize("rate", [0.2, 0.05])
def test_bim_is_foolboxs(problem, rate):
    net, x, y = problem
    attack = foolbox.attacks.LinfBasicIterativeAttack(
        rel_stepsize=rate, steps=8, random_start=False
    )
    theirs = foolbox_attack(attack, net, x, y, 0.1)
    assert torch.allclose(bim(net, x, y, 0.1, step=rate * 0.1, steps=8), theirs, atol=1e-6)


def test_bim_under_l2_is_foolboxs(problem):
    net, x, y = problem
    attack = foolbox.attacks.L2BasicIterativeAttack(rel_stepsize=0.2, steps=8, random_start=False)
    theirs = foolbox_attack(attack, net, x, y, 0.4)
    ours = bim(net, x, y, 0.4, step=0.08, steps=8, norm="l2")
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 0.1), ("l2", 0.4)])
def test_pgd_fools_about_as_many_as_foolboxs(problem, rng, norm, epsilon):
    net, x, y = problem
    attack = (
        foolbox.attacks.LinfPGD(steps=20) if norm == "linf" else foolbox.attacks.L2PGD(steps=20)
    )
    theirs = (net(foolbox_attack(attack, net, x, y, epsilon)).argmax(1) != y).sum()
    ours = (net(pgd(net, x, y, epsilon, steps=20, norm=norm, generator=rng)).argmax(1) != y).sum()
    assert ours >= theirs - 2
    assert ours > 5


def test_the_adapter_puts_the_models_mode_back(problem):
    net, x, y = problem
    net.train()
    foolbox_attack(foolbox.attacks.FGSM(), net, x, y, 0.1)
    assert net.training
    assert to_foolbox(lambda z: net(z)).bounds == (0, 1)


# ------------------------------------------------------------------ the ball and the range


@each_attack
@each_norm
@pytest.mark.parametrize("loss", ["cross_entropy", "margin"])
def test_no_input_leaves_its_ball_or_its_range(problem, attack, norm, loss):
    net, x, y = problem
    x = x.clone()
    x[0], x[1] = 0, 1
    for epsilon in (0.0, 0.05, 3.0):
        moved = attack(net, x, y, epsilon, norm=norm, loss=loss)
        assert moved.shape == x.shape
        assert (length(moved - x, norm) <= epsilon + 1e-5).all()
        assert 0 <= float(moved.min()) <= float(moved.max()) <= 1


@each_norm
def test_random_points_fill_the_ball(rng, norm):
    x = torch.full((4000, 3), 0.5)
    lengths = length(random_point(x, Ball(0.2, norm, None), rng) - x, norm)
    assert float(lengths.max()) <= 0.2 + 1e-6
    # A share r³ of a ball's volume lies within r of its center, in both norms.
    for r in (0.4, 0.7, 0.9):
        assert float((lengths < 0.2 * r).float().mean()) == pytest.approx(r**3, abs=0.03)


def test_projection_keeps_what_is_inside(rng):
    x = torch.rand(9, 5, generator=rng)
    near = (x + 0.01).clamp(0, 1)
    for norm in ("linf", "l2"):
        assert torch.allclose(project(near, x, Ball(0.1, norm, (0.0, 1.0))), near)


@each_attack
@each_norm
def test_attacks_raise_the_loss_and_a_wider_ball_raises_it_more(problem, attack, norm):
    net, x, y = problem
    losses = [float(F.cross_entropy(net(x), y))]
    for epsilon in (0.02, 0.08):
        moved = attack(net, x, y, epsilon, norm=norm)
        losses.append(float(F.cross_entropy(net(moved), y)))
    assert losses == sorted(losses)
    assert losses[0] < losses[1] < losses[2]


def test_more_restarts_never_fool_fewer(problem):
    net, x, y = problem
    wrong = []
    for restarts in (1, 3, 6):
        generator = torch.Generator().manual_seed(3)
        moved = pgd(net, x, y, 0.05, steps=3, restarts=restarts, generator=generator)
        wrong.append(int((net(moved).argmax(1) != y).sum()))
    assert wrong == sorted(wrong)


def test_on_a_linear_model_one_step_of_fgsm_is_the_worst_case(rng):
    net = nn.Linear(5, 2)
    x, y = torch.rand(30, 5, generator=rng), torch.randint(2, (30,), generator=rng)
    worst = F.cross_entropy(net(fgsm(net, x, y, 0.1, bounds=None)), y)
    found = F.cross_entropy(net(pgd(net, x, y, 0.1, bounds=None, restarts=3, generator=rng)), y)
    assert float(found) <= float(worst) + 1e-6
    assert float(found) == pytest.approx(float(worst), rel=1e-3)


@each_norm
def test_apgd_is_not_outdone_by_pgd_of_as_many_steps(problem, norm):
    net, x, y = problem
    epsilon = 0.06 if norm == "linf" else 0.2
    for loss in ("cross_entropy", "margin"):
        options = {"steps": 40, "norm": norm, "loss": loss}
        theirs = pgd(net, x, y, epsilon, generator=torch.Generator().manual_seed(1), **options)
        ours = apgd(net, x, y, epsilon, generator=torch.Generator().manual_seed(1), **options)
        wrong = [int((net(moved).argmax(1) != y).sum()) for moved in (theirs, ours)]
        assert wrong[0] <= wrong[1] < len(y)


def test_apgd_is_the_loop_of_its_algorithm(problem):
    net, x, y = problem
    x, y = x[:3].double(), y[:3]
    net = net.double()
    start = random_point(x, BALL, torch.Generator().manual_seed(4))
    moved = apgd(net, x, y, 0.1, steps=30, generator=torch.Generator().manual_seed(4))
    for i in range(3):

        def slope(z, i=i):
            z = torch.tensor(z, dtype=x.dtype).view_as(x[:1]).requires_grad_()
            value = F.cross_entropy(net(z), y[i : i + 1])
            return float(value), torch.autograd.grad(value, z)[0].flatten().tolist()

        given, first = x[i].flatten().tolist(), start[i].flatten().tolist()
        best = reference.apgd(slope, given, first, 0.1, 30)
        assert attack_loss(net(moved), y, "cross_entropy")[i] >= slope(best)[0] - 1e-9
        if bool(net(torch.tensor(best, dtype=x.dtype).view_as(x[:1])).argmax(1) != y[i]):
            assert torch.allclose(moved[i].flatten(), torch.tensor(best, dtype=x.dtype))


def test_apgd_stops_where_another_judge_is_fooled(problem):
    net, x, y = problem
    calls = []

    def everything(z, _):
        calls.append(len(z))
        return torch.ones(len(z), dtype=torch.bool)

    start = random_point(x, BALL, torch.Generator().manual_seed(4))
    moved = apgd(net, x, y, 0.1, misread=everything, generator=torch.Generator().manual_seed(4))
    assert torch.equal(moved, start)
    assert len(calls) == 1


# ------------------------------------------------------------------ without gradients


@each_norm
@pytest.mark.parametrize("shape", [(12, 1, 4, 4), (12, 16)], ids=["images", "rows"])
def test_square_stays_in_its_ball_and_more_queries_never_fool_fewer(problem, norm, shape):
    net, x, y = problem
    x, y = x[:12].view(shape), y[:12]
    epsilon, wrong = (0.1 if norm == "linf" else 0.4), []
    for queries in (1, 30, 300):
        draw = torch.Generator().manual_seed(0)
        moved = square(net, x, y, epsilon, queries=queries, norm=norm, generator=draw)
        assert (length(moved - x, norm) <= epsilon + 1e-5).all()
        assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
        wrong.append(int((net(moved).argmax(1) != y).sum()))
    assert wrong == sorted(wrong)
    assert wrong[-1] > 0


def test_square_attacks_a_head_without_gradients(problem, rng):
    net, x, y = problem
    with torch.no_grad():
        moved = square(lambda z: net(z).round(decimals=1), x, y, 0.15, generator=rng)
        assert float((net(moved).argmax(1) != y).float().mean()) > 0.2


def test_square_asks_no_further_about_a_row_that_is_misread(problem):
    net, x, y = problem
    asked = []

    def counting(z):
        asked.append(len(z))
        return net(z)

    square(counting, x, y, 0.1, queries=100, generator=torch.Generator().manual_seed(0))
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < asked[0] == len(x)


def test_the_margin_is_the_gap_to_the_best_other_class():
    output = torch.tensor([[2.0, 5.0, 1.0], [4.0, 0.0, 3.5]])
    assert attack_loss(output, torch.tensor([0, 0]), "margin").tolist() == [3.0, -0.5]


# ------------------------------------------------------------------ seeds, batches, modes


def test_the_same_seed_gives_the_same_attack_and_batches_do_not_matter(problem):
    net, x, y = problem
    first = pgd(net, x, y, 0.1, generator=torch.Generator().manual_seed(1))
    again = pgd(net, x, y, 0.1, generator=torch.Generator().manual_seed(1))
    other = pgd(net, x, y, 0.1, generator=torch.Generator().manual_seed(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.allclose(bim(net, x, y, 0.1, batch_size=7), bim(net, x, y, 0.1), atol=1e-6)


def test_the_model_comes_back_as_it_was(problem):
    _, x, y = problem
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))
    net[2].eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    pgd(net, x, y, 0.1, steps=2)
    assert [m.training for m in net] == [True, True, False, True]
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_numpy_in_gives_numpy_out(problem):
    net, x, y = problem
    moved = fgsm(net, x.numpy(), y.numpy(), 0.1)
    assert torch.equal(torch.from_numpy(moved), fgsm(net, x, y, 0.1))


# ------------------------------------------------------------------ through a neighbor head


def test_an_attack_passes_through_a_neighbor_head(problem, rng):
    net, x, y = problem
    trunk = net[:3]
    model = nn.Sequential(trunk, Neighbors(trunk(x).detach(), y, 0.5))
    read = model(x).argmax(1).detach()
    moved = pgd(model, x, read, 0.3, generator=rng)
    assert float((model(moved).argmax(1) == read).float().mean()) < 0.8


def test_a_class_out_of_reach_stops_no_attack():
    """-inf log-probabilities have no slope: the rows that have one still move."""

    class HalfBlind(nn.Module):
        def forward(self, x):
            out = torch.log_softmax(torch.stack([x[:, 0], -x[:, 0]], 1), 1)
            return torch.where(torch.tensor([[True], [False]]), out, torch.tensor([-math.inf, 0.0]))

    x, y = torch.full((2, 1), 0.5), torch.tensor([0, 0])
    moved = bim(HalfBlind(), x, y, 0.1)
    assert moved[0] < x[0]
    assert torch.isfinite(moved).all()


def test_a_fitted_head_is_attacked_through_its_module():
    class Fitted:
        def module(self):
            return nn.Linear(3, 2)

    moved = fgsm(Fitted(), torch.full((2, 3), 0.5), torch.tensor([0, 1]), 0.1)
    assert not torch.equal(moved, torch.full((2, 3), 0.5))


# ------------------------------------------------------------------ wrong input


@each_attack
@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
def test_a_negative_epsilon_is_an_error(problem, attack, epsilon):
    net, x, y = problem
    with pytest.raises(InputError, match="`epsilon` must be a finite number ≥ 0"):
        attack(net, x, y, epsilon)


class Votes(nn.Module):
    def forward(self, x):
        return F.one_hot(x.flatten(1).argmax(1) % 3, 3).float()


def cut_off(x):
    return x.detach().flatten(1)[:, :3]


def constant(x):
    return torch.zeros(len(x), 3, requires_grad=True)


class Estimator:
    def predict_proba(self, x):
        return x


@each_attack
@pytest.mark.parametrize("head", [Votes(), cut_off, constant, Estimator()])
def test_a_head_without_gradients_is_told_what_to_attack_instead(problem, attack, head):
    _, x, y = problem
    with pytest.raises(InputError, match=r"gradient.*module\(\)"):
        attack(head, x, y, 0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.full((40, 1, 4, 4), 1.5)}, r"must lie in its range bounds=\(0, 1\), got"),
        ({"x": torch.zeros(40, 16, dtype=torch.uint8)}, "must be a batch of floats"),
        ({"x": torch.full((40, 1, 4, 4), math.nan)}, "NaN"),
        ({"y": torch.zeros(39, dtype=torch.long)}, "one integer label for each of the 40 rows"),
        ({"y": torch.full((40,), 3)}, "labels 0 to 2"),
        ({"norm": "l1"}, "`norm` must be one of 'linf', 'l2'"),
        ({"loss": "hinge"}, "`loss` must be one of 'cross_entropy', 'margin'"),
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
        ({"step": -1.0}, "`step` must be a finite number ≥ 0"),
        ({"restarts": 0}, "`restarts` must be a whole number"),
        ({"model": lambda x: x}, r"must return logits \(n, classes\)"),
    ],
)
def test_wrong_input_is_answered_in_words(problem, change, words):
    net, x, y = problem
    arguments = {"model": net, "x": x, "y": y, "epsilon": 0.1} | change
    with pytest.raises(InputError, match=words):
        pgd(**arguments)
