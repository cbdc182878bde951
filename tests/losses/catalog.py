"""Every loss of the room as ``(name, call, kind)``: what holds for all is tested over this.

``call(x, labels)`` with integer labels in 0..2. ``kind``: "embedding" (rows are compared with one
another), "class" (rows are compared with fixed vectors of three classes), "logits" (three columns).
"""

import torch
import torch.nn.functional as F

from vicinal import losses


def fixed(rows, x):
    """Class vectors, the same for every batch of a width, dtype as the batch (at least float32)."""
    width = x.shape[-1] if getattr(x, "ndim", 0) else 4  # what is no tensor gets plain vectors
    grid = torch.arange(rows * width, dtype=torch.float64).view(rows, -1)
    wide = isinstance(x, torch.Tensor) and x.dtype == torch.float64
    return (grid * 1.7).sin().to(torch.float64 if wide else torch.float32)


def soft(labels):
    return losses.smooth_labels(labels, 3, 0.1).double()


def mixed(labels):
    lam = torch.linspace(0, 1, len(labels), dtype=torch.float64)
    return losses.MixedTargets(labels, labels.flip(0), lam, 0.1, 3)


def drawn(z, y):
    generator = torch.Generator().manual_seed(0)
    return losses.soft_distribution_info_nce(z, soft(y), generator=generator)


def _embedding():
    yield "triplet_all", lambda x, y: losses.triplet_loss(x, y)
    yield "triplet_valid", lambda x, y: losses.triplet_loss(x, y, average="valid")
    yield "triplet_hard", lambda x, y: losses.triplet_loss(x, y, mining="hard")
    yield "triplet_semihard", lambda x, y: losses.triplet_loss(x, y, mining="semihard")
    yield "contrastive", lambda x, y: losses.contrastive_loss(x, y, neg_margin=2.0)
    yield "contrastive_valid", lambda x, y: losses.contrastive_loss(x, y, average="valid")
    yield "multi_similarity", lambda x, y: losses.multi_similarity_loss(x, y)
    yield "circle", lambda x, y: losses.circle_loss(x, y, gamma=8.0, attached=True)
    for metric in ("cosine", "sqeuclidean", "euclidean"):
        yield (
            f"supervised_contrastive_{metric}",
            lambda x, y, m=metric: losses.supervised_contrastive_loss(x, y, metric=m),
        )
        yield f"nt_xent_{metric}", lambda x, y, m=metric: losses.nt_xent_loss(x, y, metric=m)
    yield (
        "supervised_contrastive_soft",
        lambda x, y: losses.supervised_contrastive_loss(x, F.one_hot(y, 3).to(torch.float64)),
    )
    yield "nt_xent_soft", lambda x, y: losses.nt_xent_loss(x, F.one_hot(y, 3).to(torch.float64))
    yield "n_pairs", lambda x, y: losses.n_pairs_loss(x, y)
    if hasattr(losses, "soft_nearest_neighbor_loss"):
        yield "snnl", lambda x, y: losses.soft_nearest_neighbor_loss(x, y)
        yield "snnl_cosine", lambda x, y: losses.soft_nearest_neighbor_loss(x, y, metric="cosine")
    if hasattr(losses, "graph_smoothness_loss"):
        yield "graph_smoothness", lambda x, y: losses.graph_smoothness_loss(x, y)


def _class():
    yield "proxy_nca", lambda x, y: losses.proxy_nca_loss(x, y, fixed(3, x))
    yield (
        "proxy_nca_original",
        lambda x, y: losses.proxy_nca_loss(x, y, fixed(3, x), include_positive=False),
    )
    yield "normalized_softmax", lambda x, y: losses.normalized_softmax_loss(x, y, fixed(3, x))
    yield "arcface", lambda x, y: losses.arcface_loss(x, y, fixed(3, x), scale=8.0)
    yield "cosface", lambda x, y: losses.cosface_loss(x, y, fixed(3, x), scale=8.0)
    for name in ("arcface", "cosface", "proxy_nca", "normalized_softmax"):
        loss = getattr(losses, f"{name}_loss")
        yield (
            f"{name}_sub_centers",
            lambda x, y, f=loss: f(x, y, fixed(6, x).view(3, 2, -1)),
        )


def _logits():
    yield "info_nce_hard", lambda z, y: losses.info_nce(z, y)
    yield "info_nce_batch_noise", lambda z, y: losses.info_nce(z, y, noise="batch")
    yield "info_nce_soft", lambda z, y: losses.info_nce(z, soft(y), noise="batch")
    yield "info_nce_mixed", lambda z, y: losses.info_nce(z, mixed(y), temperature=0.5)
    yield (
        "info_nce_noise_targets",
        lambda z, y: losses.info_nce(z, y, noise_targets=torch.tensor([0, 1, 1, 2])),
    )
    yield "soft_distribution_info_nce", drawn
    yield "soft_target_cross_entropy", lambda z, y: losses.soft_target_cross_entropy(z, soft(y))
    yield "mixed_cross_entropy", lambda z, y: losses.soft_target_cross_entropy(z, mixed(y))


CATALOG = [
    (name, call, kind)
    for kind, entries in (("embedding", _embedding), ("class", _class), ("logits", _logits))
    for name, call in entries()
]
