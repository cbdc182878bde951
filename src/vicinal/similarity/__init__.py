"""Which inputs are treated alike? Gradient kernels, neighbor counts, denoising (Charpiat et al.
2019).
"""

from vicinal.similarity.kernel import GradientKernel, Histogram, TopK
from vicinal.similarity.outputs import Contrast

__all__ = ["Contrast", "GradientKernel", "Histogram", "TopK"]
