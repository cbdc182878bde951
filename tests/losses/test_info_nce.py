"""InfoNCE: the paper's sum in plain loops, its identities, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from reference import info_nce_rows
from vicinal import losses
from vicinal.checks import InputError
from vicinal.losses import MixedTargets, info_nce, log_partition, one_hot_noise
from vicinal.losses.info_nce import InfoNCELoss, SoftDistributionInfoNCELoss
from vicinal.losses.targets import draw_labels

n, c = 7, 4


@pytest.fixture
def logits(rng):
    return 3 * torch.randn(n, c, generator=rng, dtype=torch.float64)


@pytest.fixture
def labels(rng):
    return torch.randint(0, c, (n,), generator=rng)


@pytest.fixture
def soft(rng):
    return torch.rand(n, c, generator=rng, dtype=torch.float64).softmax(1)


@pytest.fixture
def mixed(labels, rng):
    lam = torch.rand(n, generator=rng, dtype=torch.float64)
    return MixedTargets(labels, labels.roll(1), lam, 0.2, c)


def rows(targets):
    if isinstance(targets, MixedTargets):
        return targets.dense()
    return F.one_hot(targets, c).double() if targets.ndim == 1 else targets


@pytest.mark.parametrize("noise", [None, "uniform", "batch", "tensor"])
@pytest.mark.parametrize("kind", ["labels", "soft", "mixed"])
def test_info_nce_is_the_papers_sum(kind, noise, logits, rng, request):
    targets = request.getfixturevalue(kind)
    given = torch.rand(c, generator=rng, dtype=torch.float64) if noise == "tensor" else noise
    weights = {None: None, "uniform": None, "batch": rows(targets).sum(0), "tensor": given}[noise]
    found = info_nce(logits, targets, noise=given, temperature=0.7, reduction="none")
    expected = info_nce_rows(logits, rows(targets), noise=weights, temperature=0.7)
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("theirs", ["labels", "soft", "mixed"])
@pytest.mark.parametrize("own", ["labels", "soft", "mixed"])
def test_separate_noise_targets_join_the_own_target_in_the_sum(own, theirs, logits, rng, request):
    targets, others = request.getfixturevalue(own), request.getfixturevalue(theirs)
    eta = torch.rand(c, generator=rng, dtype=torch.float64)
    found = info_nce(logits, targets, noise=eta, noise_targets=others, reduction="none")
    expected = info_nce_rows(logits, rows(targets), noise=eta, noise_targets=list(rows(others)))
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_with_batch_noise_it_is_cross_entropy_plus_the_log_of_the_class_count(logits, labels):
    counts = torch.bincount(labels, minlength=c).double()
    present = logits.masked_fill(counts == 0, float("-inf"))
    expected = F.cross_entropy(present, labels, reduction="none") + counts[labels].log()
    assert_close(info_nce(logits, labels, noise="batch", reduction="none"), expected)


def test_hard_labels_are_one_hot_targets(logits, labels):
    logits.requires_grad_()
    hard = torch.autograd.grad(info_nce(logits, labels), logits)[0]
    soft = torch.autograd.grad(info_nce(logits, rows(labels)), logits)[0]
    assert_close(hard, soft)


@pytest.mark.parametrize("noise", [None, "batch"])
def test_mixed_targets_are_their_dense_rows(noise, logits, mixed):
    logits.requires_grad_()
    values = [info_nce(logits, t, noise=noise) for t in (mixed, mixed.dense())]
    grads = [torch.autograd.grad(v, logits)[0] for v in values]
    assert_close(values[0], values[1])
    assert_close(grads[0], grads[1])


def test_the_gradient_is_the_papers_equation_22(logits, soft):
    logits.requires_grad_()
    chosen = (logits @ soft.T).softmax(1)
    expected = (chosen @ soft - soft) / n
    (found,) = torch.autograd.grad(info_nce(logits, soft), logits)
    assert_close(found, expected.detach())


def test_soft_targets_may_be_learned(logits, soft):
    targets = soft.clone().requires_grad_()
    with torch.no_grad():
        free = soft.log()
    assert torch.autograd.gradcheck(
        lambda z, t: info_nce(z, t.softmax(1), noise="uniform"),
        (logits.requires_grad_(), free.requires_grad_()),
    )
    assert targets.requires_grad


def test_a_learned_temperature_gets_its_gradient(logits, soft):
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: info_nce(logits, soft, temperature=t), temperature)


@pytest.mark.parametrize("kind", ["labels", "soft", "mixed"])
def test_blocks_change_neither_value_nor_gradient(kind, logits, request, monkeypatch):
    targets = request.getfixturevalue(kind)
    logits.requires_grad_()
    whole = info_nce(logits, targets)
    monkeypatch.setattr(log_partition, "BLOCK", 2 * n)
    blocks = info_nce(logits, targets)
    assert_close(blocks, whole)
    grads = [torch.autograd.grad(v, logits)[0] for v in (blocks, whole)]
    assert_close(grads[0], grads[1])


def test_noise_may_be_zero_where_no_target_has_weight(logits):
    eta = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    expected = torch.tensor(info_nce_rows(logits, rows(labels), noise=eta)).double()
    lam = torch.full((n,), 1.0, dtype=torch.float64)
    unused = MixedTargets(labels, torch.full((n,), 3), lam, 0.0, c)
    for targets in (labels, rows(labels), unused):
        assert_close(info_nce(logits, targets, noise=eta, reduction="none"), expected)
        with pytest.raises(InputError, match="`noise` is 0 for class 2"):
            info_nce(logits, torch.full((n,), 2), noise=eta)


def test_a_batch_of_one_is_exactly_zero(logits, soft):
    for targets in (torch.tensor([2]), soft[:1]):
        z = logits[:1].clone().requires_grad_()
        loss = info_nce(z, targets)
        loss.backward()
        assert loss == 0
        assert_close(z.grad, torch.zeros_like(z), atol=1e-15, rtol=0)


def test_adding_a_constant_to_the_logits_changes_nothing(logits, soft):
    assert_close(info_nce(logits + 7, soft), info_nce(logits, soft))


def test_with_many_noise_labels_it_becomes_the_cross_entropy(logits, labels, rng):
    eta = torch.full((c,), 1 / c, dtype=torch.float64)
    m = 200_000
    noise = one_hot_noise(m, eta, rng)
    found = info_nce(logits, labels, noise_targets=noise) - torch.tensor(m / c).log()
    assert_close(found, F.cross_entropy(logits, labels), atol=0.05, rtol=0)


def test_soft_distribution_draws_each_label_from_its_row(rng):
    row = torch.tensor([0.1, 0.2, 0.0, 0.7])
    labels = draw_labels(row.expand(20_000, 4), rng)
    assert_close(torch.bincount(labels, minlength=4) / 20_000, row, atol=0.02, rtol=0)
    count = 20_000
    zeros = torch.zeros(count, dtype=torch.long)
    mixed = MixedTargets(zeros, zeros + 1, torch.full((count,), 0.25), 0.2, 4)
    drawn = torch.bincount(draw_labels(mixed, rng), minlength=4) / count
    assert_close(drawn, mixed.dense()[0], atol=0.02, rtol=0)


def test_soft_distribution_with_hard_targets_is_info_nce(logits, labels, soft):
    assert_close(losses.soft_distribution_info_nce(logits, labels), info_nce(logits, labels))
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    first, second = (losses.soft_distribution_info_nce(logits, soft, generator=g) for g in seeds)
    assert first == second


def test_soft_distribution_compiles_into_one_graph(logits, soft):
    torch._dynamo.reset()
    compiled = torch.compile(losses.soft_distribution_info_nce, fullgraph=True, backend="aot_eager")
    assert compiled(logits, soft).isfinite()


def test_the_modules_are_the_functions(logits, soft, labels):
    eta = torch.tensor([0.1, 0.2, 0.3, 0.4])
    module = InfoNCELoss(noise=eta, temperature=0.5)
    assert_close(module(logits, soft), info_nce(logits, soft, noise=eta, temperature=0.5))
    assert "eta" in module.state_dict()
    assert_close(SoftDistributionInfoNCELoss()(logits, labels), info_nce(logits, labels))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"targets": torch.tensor([[2.0, -1.0, 0.0, 0.0]] * n)}, "negative entry in row 0"),
        ({"targets": torch.full((n, c), 0.3)}, "must sum to 1"),
        ({"targets": torch.full((n,), c)}, "between 0 and 3"),
        ({"targets": torch.full((n,), -1)}, "between 0 and 3"),
        ({"targets": torch.zeros(n - 1, dtype=torch.long)}, "one label for each of the 7 rows"),
        ({"targets": torch.full((n, 5), 0.2)}, "one column for each of the 4 classes"),
        ({"temperature": 0.0}, "`temperature` must be"),
        ({"temperature": -1.0}, "`temperature` must be"),
        ({"noise": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "`noise` must not be negative"),
        ({"noise": torch.ones(3)}, "one weight for each of the 4"),
        ({"noise": "bach"}, "`noise` must be None"),
        ({"noise_targets": torch.tensor([4])}, "`noise_targets` must lie between"),
        ({"reduction": "avg"}, "`reduction` must be one of"),
        (
            {"targets": MixedTargets(torch.zeros(n).long(), torch.ones(n).long(), 0.5, 0.1, 3)},
            "mixed over num_classes=3",
        ),
    ],
)  # fmt: skip
def test_wrong_input_is_named(change, sentence, logits, labels):
    call = {"targets": labels, **change}
    with pytest.raises(InputError, match=sentence):
        info_nce(logits, call.pop("targets"), **call)


@pytest.mark.parametrize("size", [1.2e38, -3e38])
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_logits_at_the_end_of_float32_have_a_finite_loss_and_gradient(size, kind):
    y = torch.arange(6) % 3
    mixed = MixedTargets(y, y.flip(0), torch.linspace(0, 1, 6), 0.1, 3)
    keys = {"hard": y, "soft": losses.smooth_labels(y, 3, 0.1), "mixed": mixed}[kind]
    z = torch.full((6, 3), size, requires_grad=True)
    value = info_nce(z, mixed, noise_targets=keys)
    value.backward()
    wide = info_nce(z.detach().double(), mixed, noise_targets=keys)
    assert z.grad.isfinite().all()
    assert_close(value.double(), wide, rtol=0, atol=2 * abs(size) * 2**-23)
