"""Which inputs are treated alike? Gradient kernels, counts, denoising (Charpiat et al. 2019)."""

from vicinal.similarity.denoising import Denoising, denoising
from vicinal.similarity.density import SimilarityHistogram, TopK
from vicinal.similarity.diagnosis import (
    FitDiagnosis,
    SuspiciousLabels,
    fit_diagnosis,
    suspicious_labels,
    uncertainty,
)
from vicinal.similarity.distributed import distributed_gram, distributed_neighbors
from vicinal.similarity.enforce import DensityLoss, PairSimilarityLoss, SetSimilarityLoss
from vicinal.similarity.enforce_gradients import similarity_gradients
from vicinal.similarity.enforce_invariance import OrbitSimilarityLoss, TangentInvarianceLoss
from vicinal.similarity.enforce_two_batches import TwoBatchSimilarityLoss
from vicinal.similarity.kernel import GradientKernel
from vicinal.similarity.outputs import Contrast
from vicinal.similarity.perceptual import perceptual_gram
from vicinal.similarity.sketch import SketchedIndex, SketchError

__all__ = [
    "Contrast",
    "Denoising",
    "DensityLoss",
    "FitDiagnosis",
    "GradientKernel",
    "OrbitSimilarityLoss",
    "PairSimilarityLoss",
    "SetSimilarityLoss",
    "SimilarityHistogram",
    "SketchError",
    "SketchedIndex",
    "SuspiciousLabels",
    "TangentInvarianceLoss",
    "TopK",
    "TwoBatchSimilarityLoss",
    "denoising",
    "distributed_gram",
    "distributed_neighbors",
    "fit_diagnosis",
    "perceptual_gram",
    "similarity_gradients",
    "suspicious_labels",
    "uncertainty",
]
