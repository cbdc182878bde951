"""Which inputs are treated alike? Gradient kernels, counts, denoising (Charpiat et al. 2019)."""

from vicinal.similarity.denoising import Denoising, denoising
from vicinal.similarity.diagnosis import (
    FitDiagnosis,
    SuspiciousLabels,
    fit_diagnosis,
    suspicious_labels,
    uncertainty,
)
from vicinal.similarity.kernel import GradientKernel, Histogram, TopK
from vicinal.similarity.outputs import Contrast
from vicinal.similarity.perceptual import perceptual_gram

__all__ = [
    "Contrast",
    "Denoising",
    "FitDiagnosis",
    "GradientKernel",
    "Histogram",
    "SuspiciousLabels",
    "TopK",
    "denoising",
    "fit_diagnosis",
    "perceptual_gram",
    "suspicious_labels",
    "uncertainty",
]
