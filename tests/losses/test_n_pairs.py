"""N-pairs: the softmax over all pairs in a loop, Sohn's own pairs, PML where it is right."""

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as pml
from torch.testing import assert_close

from reference import supervised_contrastive_rows
from vicinal.checks import InputError
from vicinal.losses import NPairsLoss, n_pairs_loss

LABELS = torch.tensor([0, 1, 0, 1, 1, 4])


@pytest.fixture
def x(rng):
    return torch.randn(6, 3, generator=rng, dtype=torch.float64)


def test_it_is_a_softmax_over_inner_products_with_uniform_targets(x):
    rows = supervised_contrastive_rows(x, LABELS, temperature=0.5, metric="dot")
    expected = torch.tensor([v or 0.0 for v in rows], dtype=torch.float64)
    assert_close(n_pairs_loss(x, LABELS, temperature=0.5, reduction="none"), expected)
    assert_close(n_pairs_loss(x, LABELS, temperature=0.5), expected.sum() / 5)


def test_with_anchors_and_positives_it_is_sohns_equation(x):
    positives = x.flip(1) + 0.1
    labels = torch.arange(6)
    total = 0.0
    for i in range(6):
        gaps = [float(x[i] @ positives[j] - x[i] @ positives[i]) for j in range(6) if j != i]
        total += math.log(1 + sum(map(math.exp, gaps)))
    found = n_pairs_loss(x, labels, positives=positives)
    assert_close(found, torch.tensor(total / 6, dtype=torch.float64))


def test_pytorch_metric_learning_agrees_on_one_pair_per_class(x):
    anchors, positives = x, x.flip(1) + 0.1
    distance = distances.DotProductSimilarity(normalize_embeddings=False)
    both = torch.stack([anchors, positives], 1).flatten(0, 1)
    labels = torch.arange(6).repeat_interleave(2)
    expected = pml.NPairsLoss(distance=distance)(both, labels)
    assert_close(n_pairs_loss(anchors, torch.arange(6), positives=positives), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_are_exact(reduction, x):
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, p, t: n_pairs_loss(
            x, LABELS, positives=p, temperature=t, l2_reg=0.1, reduction=reduction
        ),
        (x.requires_grad_(), (x.detach() + 0.2).requires_grad_(), t),
    )
    assert torch.autograd.gradcheck(
        lambda x: n_pairs_loss(x, LABELS, l2_reg=0.1, reduction=reduction), x
    )


def test_the_penalty_is_the_mean_squared_length_of_the_anchors_that_count(x):
    added = n_pairs_loss(x, LABELS, l2_reg=0.3) - n_pairs_loss(x, LABELS)
    assert_close(added, 0.3 * x[:5].square().sum(1).mean())


def test_one_hot_soft_labels_are_hard_labels(x):
    assert_close(n_pairs_loss(x, F.one_hot(LABELS, 5).double()), n_pairs_loss(x, LABELS))
    assert_close(NPairsLoss(temperature=2.0)(x, LABELS), n_pairs_loss(x, LABELS, temperature=2.0))


def test_wrong_input_is_named(x):
    for change, sentence in (
        ({"temperature": 0.0}, "`temperature`"),
        ({"l2_reg": -1.0}, "`l2_reg`"),
        ({"positives": x[:4]}, "4 rows"),
    ):
        with pytest.raises(InputError, match=sentence):
            n_pairs_loss(x, LABELS, **change)
