"""Contrastive, multi-similarity, circle, ArcFace and CosFace: loops, and PML's own values."""

import math

import pytest
import torch
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as pml
from torch.testing import assert_close

import reference
from vicinal import losses
from vicinal.checks import InputError

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 0])  # class 2 has a single row


@pytest.fixture
def x(rng):
    return torch.randn(7, 3, generator=rng, dtype=torch.float64)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def same_step(ours, theirs, x, y):
    """Value and gradient."""
    a, b = (x.clone().requires_grad_() for _ in range(2))
    found, expected = ours(a, y), theirs(b, y)
    found.backward()
    expected.backward()
    assert_close(found, expected)
    assert_close(a.grad, b.grad)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_contrastive_is_two_means_over_pairs(metric, x):
    pairs = list(reference.contrastive(x, LABELS, 0.1, 2.0, metric))
    call = lambda **how: losses.contrastive_loss(
        x, LABELS, pos_margin=0.1, neg_margin=2.0, metric=metric, **how
    )
    near, far = ([v for pair in pairs for v in pair[side]] for side in (0, 1))
    active = [[v for v in side if v > 0] for side in (near, far)]
    assert_close(call(), double(sum(sum(side) / max(len(side), 1) for side in active)))
    valid = sum(near) / len(near) + sum(far) / len(far)
    assert_close(call(average="valid"), double(valid))
    assert_close(call(reduction="sum"), double(sum(near) + sum(far)))
    rows = [sum(sum(side) / max(len(side), 1) for side in pair) for pair in pairs]
    assert_close(call(reduction="none", average="valid"), double(rows))


def test_contrastive_has_the_value_and_gradient_of_pytorch_metric_learning(x):
    plain = distances.LpDistance(normalize_embeddings=False)
    theirs = pml.ContrastiveLoss(pos_margin=0.2, neg_margin=1.5, distance=plain)
    same_step(losses.ContrastiveLoss(pos_margin=0.2, neg_margin=1.5), theirs, x, LABELS)


def test_multi_similarity_is_its_sum_and_that_of_pytorch_metric_learning(x):
    rows = losses.multi_similarity_loss(x, LABELS, reduction="none")
    assert_close(rows, double(reference.multi_similarity_rows(x, LABELS)))
    same_step(losses.MultiSimilarityLoss(), pml.MultiSimilarityLoss(), x, LABELS)


def test_circle_is_its_sum_and_that_of_pytorch_metric_learning(x):
    rows = losses.circle_loss(x, LABELS, gamma=8.0, reduction="none")
    expected = reference.circle_rows(x, LABELS, gamma=8.0)
    assert_close(rows, double([row or 0.0 for row in expected]))
    same_step(losses.CircleLoss(), pml.CircleLoss(), x, LABELS)


def test_the_weights_of_circle_are_constants_unless_attached(x):
    a, b = (x.clone().requires_grad_() for _ in range(2))
    constant = losses.circle_loss(a, LABELS, gamma=8.0)
    attached = losses.circle_loss(b, LABELS, gamma=8.0, attached=True)
    assert_close(constant, attached)
    constant.backward()
    attached.backward()
    assert not torch.allclose(a.grad, b.grad)


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize("centers", [1, 3])
def test_a_margin_softmax_is_its_sum_over_classes(kind, centers, x, rng):
    weights = torch.randn(3, centers, 3, generator=rng, dtype=torch.float64)
    weights[1] = -x[2]  # an angle beyond π - m
    loss = getattr(losses, f"{kind}_loss")
    given = weights[:, 0] if centers == 1 else weights
    rows = loss(x, LABELS, given, margin=0.4, scale=4.0, reduction="none")
    expected = reference.margin_softmax_rows(x, LABELS, weights, 0.4, 4.0, kind)
    assert_close(rows, double(expected))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.ArcFaceLoss, pml.ArcFaceLoss),
        (losses.CosFaceLoss, pml.CosFaceLoss),
        (losses.ArcFaceLoss, pml.SubCenterArcFaceLoss),
    ],
)
def test_a_margin_softmax_is_that_of_pytorch_metric_learning(ours, theirs, x):
    sub = {"sub_centers": 3} if "SubCenter" in theirs.__name__ else {}
    arc = ours is losses.ArcFaceLoss
    margin = 0.45 if arc else 0.3
    theirs = theirs(
        num_classes=3, embedding_size=3, margin=math.degrees(margin) if arc else margin, **sub
    ).double()
    ours = ours(3, 3, margin=margin, **sub).double()
    ours.weights.data.copy_(theirs.W.data.T.reshape(ours.weights.shape))
    same_step(ours, theirs, x, LABELS)
    assert_close(ours.weights.grad.flatten(0, -2), theirs.W.grad.T)


def test_arcface_has_a_gradient_where_a_row_lies_on_its_class(x):
    row = x[:1].clone().requires_grad_()
    weights = x[:2].clone().requires_grad_()
    losses.arcface_loss(row, torch.tensor([0]), weights).backward()
    assert row.grad.isfinite().all()
    assert weights.grad.isfinite().all()


@pytest.mark.parametrize("loss", [losses.proxy_nca_loss, losses.normalized_softmax_loss])
def test_the_nearest_sub_center_stands_for_its_class(loss, x, rng):
    vectors = torch.randn(3, 2, 3, generator=rng, dtype=torch.float64)
    far = vectors.clone()
    far[:, 1] = vectors[:, 0]  # two equal centers are one
    assert_close(loss(x, LABELS, far), loss(x, LABELS, vectors[:, 0]))
    rows = loss(x, LABELS, vectors, reduction="none")
    for i, row in enumerate(x):
        near = [v[torch.cdist(row[None], v)[0].argmin()] for v in vectors]
        if loss is losses.normalized_softmax_loss:
            near = [v[torch.cosine_similarity(row[None], v).argmax()] for v in vectors]
        assert_close(rows[i], loss(row[None], LABELS[i : i + 1], torch.stack(near)))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, y: losses.contrastive_loss(x, y, pos_margin=2.0), "`pos_margin` must lie"),
        (lambda x, y: losses.contrastive_loss(x, y, average="all"), "`average` must be one of"),
        (lambda x, y: losses.contrastive_loss(x, y, reference=x), "go together"),
        (lambda x, y: losses.multi_similarity_loss(x, y, alpha=0.0), "`alpha` must be"),
        (lambda x, y: losses.circle_loss(x, y, exclude_self=True), "begins with the 7 anchors"),
        (lambda x, y: losses.arcface_loss(x, y, x[:3], margin=28.6), "in radians, got 28.6"),
        (lambda x, y: losses.arcface_loss(x, y, x[:2]), "between 0 and 1"),
        (lambda x, y: losses.cosface_loss(x, y, x[:3, :2]), "`x` has 3 dimensions"),
        (lambda x, y: losses.circle_loss(x, torch.eye(3)[y]), "integer labels"),
    ],
)
def test_wrong_input_is_named(call, sentence, x):
    with pytest.raises(InputError, match=sentence):
        call(x, LABELS)
