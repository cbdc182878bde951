"""Makes the ``features`` that quality is judged on: pictures as EfficientNet-Lite0 sees them.

``python -m benchmarks.quality.features --data DIR --out DIR/features``: photographs, clothes and
letters resized to 112 px (bicubic) become rows of 1280 numbers, one ``.npz`` a set (``f``, ``y``).
Of CIFAR-10's training images all that the folder holds, in its order, so that CIFAR-10N's labels
belong to them; of the other sets some rows, drawn by seed 0. No file is made twice.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.data import Source, images
from PIL import Image

from vicinal.audits.encoder import SIZE, image_encoder
from vicinal.files import write_atomically

MOST = 6000
SETS = {  # file: folder, split, how many
    "cifar_train": ("cifar10", "train", None),
    "cifar_test": ("cifar10", "test", MOST),
    "fashion": ("fashion_mnist", "train", MOST),
    "notmnist": ("notmnist", "t10k", MOST),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.quality.features", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--out", type=Path, help="default: features in --data")
    args = parser.parse_args()
    out = args.out or args.data / "features"
    out.mkdir(parents=True, exist_ok=True)
    encoder = image_encoder()
    for name, (folder, split, most) in SETS.items():
        path = out / f"{name}.npz"
        if path.exists():
            continue
        pictures, labels = images(Source(args.data), folder, split)
        if most is not None:
            some = np.random.default_rng(0).permutation(len(labels))[:most]
            pictures, labels = pictures[some], labels[some]
        rows = [encoder(resized(batch)) for batch in pictures.split(64)]
        whole = io.BytesIO()
        np.savez(whole, f=torch.cat(rows).half().numpy(), y=labels.numpy())
        write_atomically(path, whole.getvalue())
        print(f"{path}: {sum(map(len, rows)):,} rows", flush=True)


def resized(batch: Any) -> torch.Tensor:
    """Pictures of 112 px with three channels, in [0, 1]."""
    pixels = (batch * 255).round().byte().permute(0, 2, 3, 1).numpy()
    pictures = (
        Image.fromarray(p if p.shape[2] == 3 else p[:, :, 0]).convert("RGB") for p in pixels
    )
    large = [np.asarray(p.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for p in pictures]
    return torch.from_numpy(np.stack(large)).permute(0, 3, 1, 2).float() / 255


if __name__ == "__main__":
    with torch.no_grad():
        main()
