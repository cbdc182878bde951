"""Triplets by rows: loops, PML's miners, and the law of the drawn ones."""

import pytest
import torch
from pytorch_metric_learning import distances, miners
from torch.testing import assert_close

import reference
from vicinal import losses
from vicinal.checks import InputError

plain = distances.LpDistance(normalize_embeddings=False)


@pytest.fixture
def rows(rng):
    return torch.randn(12, 3, generator=rng, dtype=torch.float64), torch.arange(12) % 4


def triples(found):
    return sorted(zip(*(t.tolist() for t in found), strict=True))


def test_hard_triplets_are_those_of_pytorch_metric_learning(rows):
    x, y = rows
    found = losses.hard_triplets(x, y)
    assert triples(found) == triples(miners.BatchHardMiner(distance=plain)(x, y))


def test_semihard_triplets_are_those_of_the_loops_and_of_pytorch_metric_learning(rows):
    x, y = rows
    found = triples(losses.semihard_triplets(x, y, margin=0.5))
    assert found == sorted(reference.semihard(x, y, 0.5))
    theirs = miners.TripletMarginMiner(margin=0.5, type_of_triplets="semihard", distance=plain)
    assert found == triples(theirs(x, y))


def test_blocks_of_anchors_change_nothing(rows, monkeypatch):
    x, y = rows
    one = [triples(f(x, y)) for f in (losses.hard_triplets, losses.semihard_triplets)]
    monkeypatch.setattr("vicinal.losses.miners.BLOCK", 30)
    assert [triples(f(x, y)) for f in (losses.hard_triplets, losses.semihard_triplets)] == one


def test_the_loss_of_mined_triplets_is_that_of_mining(rows):
    x, y = rows
    mined = losses.hard_triplets(x, y)
    for how in ({}, {"reduction": "none"}, {"average": "valid"}, {"reduction": "sum"}):
        found = losses.triplet_loss(x, y, triplets=mined, **how)
        assert_close(found, losses.triplet_loss(x, y, mining="hard", **how))
    own = x.clone().requires_grad_()
    call = lambda x: losses.triplet_loss(x, y, triplets=losses.semihard_triplets(x.detach(), y))
    assert torch.autograd.gradcheck(call, own)
    assert torch.autograd.gradgradcheck(call, own)


def test_triplets_are_looked_for_in_a_memory(rows, rng):
    x, y = rows
    bank = losses.MemoryBank(3, 30).double()
    bank.add(torch.randn(9, 3, generator=rng, dtype=torch.float64), torch.arange(9) % 4)
    among = bank.as_reference(x, y)
    mined = losses.hard_triplets(x, y, **among)
    assert (mined.positives != mined.anchors).all()
    found = losses.triplet_loss(x, y, triplets=mined, **among)
    assert_close(found, losses.triplet_loss(x, y, mining="hard", **among))


def test_drawn_negatives_follow_the_law_of_their_distances(rng):
    x = torch.nn.functional.normalize(torch.randn(9, 5, generator=rng, dtype=torch.float64))
    y = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 7])
    counts = torch.zeros(9, dtype=torch.float64)
    for _ in range(400):
        found = losses.distance_weighted_triplets(x, y, farthest=1.6, generator=rng)
        first = found.anchors == 0
        assert found.positives[first].tolist() == [1]
        counts[found.negatives[first]] += 1
    d = (x - x[0]).norm(dim=1).clamp_min(0.5)
    weights = d**-3 * (1 - d**2 / 4) ** -1.0
    weights[:2] = 0
    weights[d >= 1.6] = 0
    share = weights / weights.sum()
    error = (share * (1 - share) / 400).sqrt()
    assert ((counts / 400 - share).abs() <= 4 * error + 1e-12).all()


def test_a_batch_of_one_class_has_no_triplets(rows):
    x, _ = rows
    zeros = torch.zeros(12, dtype=torch.long)
    for mine in (losses.hard_triplets, losses.semihard_triplets, losses.distance_weighted_triplets):
        found = mine(x, zeros)
        assert [len(t) for t in found] == [0, 0, 0]
        assert losses.triplet_loss(x, zeros, triplets=found) == 0
    with pytest.raises(InputError, match="`margin` must be"):
        losses.semihard_triplets(x, zeros, margin=0.0)
