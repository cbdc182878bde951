"""How far the published corruptions move an image: the mean |change| in [0, 1] at each severity.

Measured with the scripts of Hendrycks & Dietterich (github.com/hendrycks/robustness,
ImageNet-C/create_c: make_cifar_c.py at 32 pixels, make_imagenet_c.py at 224), their functions run
from imagecorruptions-imaug 1.1.5 (its motion blur stands for ImageMagick's, its photographs are
those of frost) with the constants, the zoom, the frost and the elastic transform of the scripts;
before rounding to bytes, on the crops below, 60 draws of each at 32 pixels and 12 at 224 (frost:
240 and 48). Standard errors are below 1 % at 32 pixels and 4 % at 224.
"""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

MEANS = {
    "cifar": {
        "gaussian_noise": (0.0297, 0.0438, 0.0575, 0.0641, 0.0706),
        "shot_noise": (0.0195, 0.0272, 0.0422, 0.0483, 0.0584),
        "impulse_noise": (0.0049, 0.0100, 0.0150, 0.0250, 0.0349),
        "defocus_blur": (0.0038, 0.0097, 0.0146, 0.0196, 0.0263),
        "glass_blur": (0.0288, 0.0291, 0.0286, 0.0448, 0.0429),
        "motion_blur": (0.0175, 0.0259, 0.0325, 0.0328, 0.0383),
        "zoom_blur": (0.0225, 0.0265, 0.0310, 0.0353, 0.0395),
        "snow": (0.0411, 0.0875, 0.0939, 0.1340, 0.1874),
        "frost": (0.1161, 0.1669, 0.1940, 0.1827, 0.1878),
        "fog": (0.0538, 0.1056, 0.1348, 0.1580, 0.1882),
        "brightness": (0.0344, 0.0659, 0.0947, 0.1216, 0.1714),
        "contrast": (0.0382, 0.0763, 0.0916, 0.1069, 0.1298),
        "elastic_transform": (0.0547, 0.0501, 0.0457, 0.0426, 0.0354),
        "pixelate": (0.0042, 0.0095, 0.0111, 0.0167, 0.0235),
        "jpeg_compression": (0.0208, 0.0252, 0.0267, 0.0282, 0.0301),
        "speckle_noise": (0.0181, 0.0293, 0.0347, 0.0453, 0.0555),
        "gaussian_blur": (0.0037, 0.0143, 0.0180, 0.0209, 0.0256),
        "spatter": (0.0039, 0.0104, 0.0257, 0.0108, 0.0182),
        "saturate": (0.0619, 0.0796, 0.0267, 0.0582, 0.0805),
    },
    "imagenet": {
        "gaussian_noise": (0.0579, 0.0840, 0.1198, 0.1626, 0.2175),
        "shot_noise": (0.0563, 0.0843, 0.1174, 0.1732, 0.2173),
        "impulse_noise": (0.0150, 0.0301, 0.0449, 0.0848, 0.1353),
        "defocus_blur": (0.0357, 0.0407, 0.0493, 0.0565, 0.0616),
        "glass_blur": (0.0391, 0.0394, 0.0551, 0.0533, 0.0578),
        "motion_blur": (0.0378, 0.0471, 0.0585, 0.0695, 0.0770),
        "zoom_blur": (0.0539, 0.0623, 0.0672, 0.0739, 0.0803),
        "snow": (0.1478, 0.2335, 0.2318, 0.2800, 0.3282),
        "frost": (0.2089, 0.2655, 0.2888, 0.2843, 0.3037),
        "fog": (0.1966, 0.2160, 0.2332, 0.2436, 0.2503),
        "brightness": (0.0649, 0.1171, 0.1613, 0.2014, 0.2387),
        "contrast": (0.1490, 0.1739, 0.1987, 0.2235, 0.2359),
        "elastic_transform": (0.1230, 0.1698, 0.0623, 0.0616, 0.0692),
        "pixelate": (0.0234, 0.0267, 0.0313, 0.0365, 0.0396),
        "jpeg_compression": (0.0299, 0.0334, 0.0355, 0.0414, 0.0475),
        "speckle_noise": (0.0463, 0.0601, 0.0989, 0.1229, 0.1544),
        "gaussian_blur": (0.0258, 0.0378, 0.0458, 0.0519, 0.0613),
        "spatter": (0.0030, 0.0162, 0.0283, 0.0357, 0.0587),
        "saturate": (0.0751, 0.0966, 0.0513, 0.1067, 0.1501),
    },
}


def crops(constants):
    """Crops of scikit-learn's two photographs: twelve of 32 pixels, or four of 224."""
    parts = []
    for photograph in load_sample_images().images:
        size = (96, 64) if constants == "cifar" else (384, 256)
        small = np.asarray(Image.fromarray(photograph).resize(size, Image.Resampling.BOX))
        if constants == "cifar":
            parts += [small[r : r + 32, c : c + 32] for r in (0, 32) for c in (0, 32, 64)]
        else:
            parts += [small[16:240, c : c + 224] for c in (16, 144)]
    return torch.tensor(np.stack(parts)).movedim(-1, 1).float() / 255
