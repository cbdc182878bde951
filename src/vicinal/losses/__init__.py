"""What should training push? Losses over neighborhoods, and what stands around a loss.

Each loss is a function of ``(x, labels)`` or ``(logits, targets)`` with an ``nn.Module`` twin of
the same defaults.
"""

from vicinal.losses.angular_margin import ArcFaceLoss, CosFaceLoss, arcface_loss, cosface_loss
from vicinal.losses.contrastive import (
    NPairsLoss,
    NTXentLoss,
    SupervisedContrastiveLoss,
    n_pairs_loss,
    nt_xent_loss,
    supervised_contrastive_loss,
)
from vicinal.losses.cosines import (
    CircleLoss,
    MultiSimilarityLoss,
    circle_loss,
    multi_similarity_loss,
)
from vicinal.losses.cross_entropy import SoftTargetCrossEntropyLoss, soft_target_cross_entropy
from vicinal.losses.distributed import DistributedLoss
from vicinal.losses.grad_cache import GradCache
from vicinal.losses.graph_smoothness import GraphSmoothnessLoss, graph_smoothness_loss
from vicinal.losses.info_nce import (
    InfoNCELoss,
    SoftDistributionInfoNCELoss,
    info_nce,
    soft_distribution_info_nce,
)
from vicinal.losses.layerwise import LayerwiseLoss, Maximize
from vicinal.losses.memory_bank import CrossBatchLoss, MemoryBank
from vicinal.losses.met import Triplets
from vicinal.losses.miners import distance_weighted_triplets, hard_triplets, semihard_triplets
from vicinal.losses.momentum_queue import MoCoLoss, moco_loss, momentum_update
from vicinal.losses.monitor import EntanglementCallback
from vicinal.losses.multi_label import multi_label_targets
from vicinal.losses.noise_targets import (
    continuous_categorical_noise,
    dirichlet_noise,
    mixup_noise,
    one_hot_noise,
)
from vicinal.losses.pair_margin import ContrastiveLoss, contrastive_loss
from vicinal.losses.proxies import (
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    normalized_softmax_loss,
    proxy_nca_loss,
)
from vicinal.losses.sampler import ClassBalancedBatchSampler
from vicinal.losses.schedules import Cosine, InversePower, Linear, Ramp, Relative
from vicinal.losses.snnl import (
    SoftNearestNeighborLoss,
    SoftNearestNeighborTerms,
    soft_nearest_neighbor_loss,
    soft_nearest_neighbor_terms,
)
from vicinal.losses.targets import MixedTargets, cutmix, mixup, smooth_labels
from vicinal.losses.triplet import TripletLoss, triplet_loss

__all__ = [
    "ClassBalancedBatchSampler",
    "DistributedLoss",
    "GradCache",
    "InfoNCELoss",
    "LayerwiseLoss",
    "Maximize",
    "MemoryBank",
    "MixedTargets",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "ProxyNCALoss",
    "SoftDistributionInfoNCELoss",
    "SoftTargetCrossEntropyLoss",
    "SupervisedContrastiveLoss",
    "TripletLoss",
    "continuous_categorical_noise",
    "cutmix",
    "dirichlet_noise",
    "info_nce",
    "mixup",
    "mixup_noise",
    "n_pairs_loss",
    "normalized_softmax_loss",
    "nt_xent_loss",
    "one_hot_noise",
    "proxy_nca_loss",
    "smooth_labels",
    "soft_distribution_info_nce",
    "soft_target_cross_entropy",
    "supervised_contrastive_loss",
    "triplet_loss",
]
__all__ += ["EntanglementCallback"]
__all__ += ["Cosine", "InversePower", "Linear", "Ramp", "Relative"]
__all__ += ["GraphSmoothnessLoss", "graph_smoothness_loss"]
__all__ += ["SoftNearestNeighborLoss", "SoftNearestNeighborTerms"]
__all__ += ["soft_nearest_neighbor_loss", "soft_nearest_neighbor_terms"]
__all__ += ["ArcFaceLoss", "CircleLoss", "ContrastiveLoss", "CosFaceLoss", "CrossBatchLoss"]
__all__ += ["MoCoLoss", "MultiSimilarityLoss", "Triplets", "arcface_loss", "circle_loss"]
__all__ += ["contrastive_loss", "cosface_loss", "distance_weighted_triplets", "hard_triplets"]
__all__ += ["moco_loss", "momentum_update", "multi_label_targets", "multi_similarity_loss"]
__all__ += ["semihard_triplets"]
