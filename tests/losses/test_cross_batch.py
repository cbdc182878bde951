"""A batch and its memory in one sum: PML's cross-batch memory, GradCache, several losses."""

import pytest
import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as pml
from torch import nn
from torch.testing import assert_close

from vicinal import losses
from vicinal.checks import InputError
from vicinal.losses import CrossBatchLoss, GradCache, MemoryBank

plain = distances.LpDistance(normalize_embeddings=False)
PAIRED = {
    "supervised contrastive": (losses.SupervisedContrastiveLoss(), pml.SupConLoss(temperature=0.1)),
    "nt-xent": (losses.NTXentLoss(), pml.NTXentLoss(temperature=0.1)),
    "triplet": (losses.TripletLoss(), pml.TripletMarginLoss(margin=0.2, distance=plain)),
    "contrastive": (losses.ContrastiveLoss(), pml.ContrastiveLoss(distance=plain)),
    "multi-similarity": (losses.MultiSimilarityLoss(), pml.MultiSimilarityLoss()),
    "circle": (losses.CircleLoss(), pml.CircleLoss()),
}
EVERY = [loss for loss, _ in PAIRED.values()] + [
    losses.SoftNearestNeighborLoss(metric=m) for m in ("sqeuclidean", "euclidean", "cosine")
]


def batch(rng, n=6):
    return torch.randn(n, 4, generator=rng, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("name", PAIRED)
def test_value_and_gradient_are_those_of_pml_while_the_memory_fills_and_turns_over(name, rng):
    # Classes stay balanced in the memory: PML averages NT-Xent over pairs, we over anchors.
    ours, theirs = PAIRED[name]
    ours = CrossBatchLoss(ours, MemoryBank(4, 15).double())
    theirs = pml.CrossBatchMemory(theirs, embedding_size=4, memory_size=15)
    for _ in range(6):
        x, y = batch(rng)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        found, expected = ours(a, y), theirs(b, y)
        found.backward()
        expected.backward()
        assert_close(found, expected)
        assert_close(a.grad, b.grad)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: f"{type(loss).__name__}")
def test_anchors_have_the_loss_they_have_in_the_whole_set(loss, rng):
    x, y = batch(rng)
    past, past_y = batch(rng, 9)
    bank = MemoryBank(4, 20).double()
    bank.add(past, past_y)
    kind = type(loss)
    each = kind(metric=loss.metric, reduction="none") if hasattr(loss, "metric") else kind(
        reduction="none"
    )  # fmt: skip
    step = CrossBatchLoss(each, bank, attached=True)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    found = step(a, y)
    expected = each(torch.cat([b, past]), torch.cat([y, past_y]))[:6]
    assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert_close(a.grad, b.grad)


def test_a_memory_composes_with_micro_batches(rng):
    torch.manual_seed(0)
    plain = nn.Linear(4, 3).double()
    cached = nn.Linear(4, 3).double()
    cached.load_state_dict(plain.state_dict())
    one, two = (CrossBatchLoss(losses.NTXentLoss(), MemoryBank(3, 12).double()) for _ in range(2))
    step = GradCache(cached, two, micro_batch=2)
    for _ in range(3):
        x, y = batch(rng)
        expected, found = one(plain(x), y), step(x, y)
        expected.backward()
        found.backward()
        assert_close(found, expected)
        assert_close(cached.weight.grad, plain.weight.grad)
    assert_close(two.bank.rows, one.bank.rows)


def test_soft_labels_have_a_memory_too(rng):
    x, y = batch(rng)
    soft = losses.smooth_labels(y, 3, 0.3).double()
    bank = MemoryBank(4, 20, num_classes=3).double()
    bank.add(x + 1, soft)
    for loss in (losses.SoftNearestNeighborLoss(), losses.NTXentLoss()):
        found = loss(x, soft, **bank.as_reference(x, soft))
        each = type(loss)(reduction="none")
        rows = each(torch.cat([x, x + 1]), torch.cat([soft, soft]))[:6]
        assert_close(found, rows.mean())


def test_an_evaluation_reads_the_memory_and_does_not_write(rng):
    step = CrossBatchLoss(losses.NTXentLoss(), MemoryBank(4, 20).double())
    step(*batch(rng))
    before = step.bank.rows.clone()
    step.eval()
    step(*batch(rng))
    assert len(step.bank) == 6
    assert torch.equal(step.bank.rows, before)


def test_second_derivatives_pass_through_a_memory(rng):
    x, y = batch(rng)
    bank = MemoryBank(4, 20).double()
    bank.add(*batch(rng, 9))
    for loss in (losses.SoftNearestNeighborLoss(), losses.NTXentLoss(), losses.TripletLoss()):
        step = CrossBatchLoss(loss, bank, attached=True).eval()
        call = lambda x, step=step: step(x, y)
        assert torch.autograd.gradcheck(call, x.clone().requires_grad_(), atol=1e-6)
        assert torch.autograd.gradgradcheck(call, x.clone().requires_grad_(), atol=1e-6)


def test_what_does_not_fit_is_named(rng):
    x, y = batch(rng)
    with pytest.raises(InputError, match="Proxies and class scores need no memory"):
        CrossBatchLoss(losses.ProxyNCALoss(3, 4), MemoryBank(4, 8))
    with pytest.raises(InputError, match="begins with the 6 anchors, got 2 rows"):
        losses.nt_xent_loss(x, y, reference=x[:2], reference_labels=y[:2], exclude_self=True)
    with pytest.raises(InputError, match="begins with the 6 anchors, got none"):
        losses.soft_nearest_neighbor_loss(x, y, exclude_self=True)
    with pytest.raises(InputError, match="the bank keeps rows of 3"):
        CrossBatchLoss(losses.NTXentLoss(), MemoryBank(3, 8))(x, y)
