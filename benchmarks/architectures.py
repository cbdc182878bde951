"""The networks that ``which_architectures_are_exact`` asks: name -> (network of d outputs, inputs).

Nine of a size that people start with, whose cost has a goal, and as many small ones as there are
habits that an exact gradient must survive. Hugging Face's have random weights and need
`transformers`; without it they are left out, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

Data: TypeAlias = Tensor | dict[str, Tensor]
Zoo: TypeAlias = dict[str, tuple[Callable[[int], nn.Module], Callable[[int, torch.dtype], Data]]]


def rows(*shape: int, name: str = "") -> Callable[[int, torch.dtype], Data]:
    def make(n: int, dtype: torch.dtype) -> Data:
        x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        return {name: x} if name else x

    return make


def tokens(n: int, dtype: torch.dtype) -> Data:
    """Sequences of 32, some of them padded."""
    ids = torch.randint(2, 1000, (n, 32), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::4, 28:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def words(n: int, dtype: torch.dtype) -> Data:
    return torch.randint(0, 1000, (n, 16), generator=torch.Generator().manual_seed(0))


class Pooled(nn.Module):
    """Any layers, the mean over all axes but the samples and the features, and a linear head."""

    def __init__(self, body: nn.Module, width: int, d: int, features: int = -1) -> None:
        super().__init__()
        self.body, self.head, self.features = body, nn.Linear(width, d), features

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h = h[0] if isinstance(h, tuple) else h
        return self.head(h.movedim(self.features, -1).flatten(1, -2).mean(1))


class LastStep(nn.Module):
    """A recurrent layer, and a head on its last step."""

    def __init__(self, cell: nn.RNNBase, width: int, d: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(width, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Residual(nn.Module):
    def __init__(self, body: nn.Module, scale: int = 0) -> None:
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.full((scale,), 0.1)) if scale else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return x + (h if self.scale is None else h * self.scale)


class Swapped(nn.Module):
    """Layers on the axis before the last: places mixed, as in an MLP-Mixer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.mT).mT


class Decoder(nn.Module):
    """Causal, with attention to another sequence."""

    def __init__(self, d: int) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerDecoder(layer, 2), nn.Linear(64, d)

    def forward(self, x: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.layers(x, x[:, :8] * 2, tgt_mask=causal).mean(1))


class Experts(nn.Module):
    """Every token goes to one of four experts."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(32, 4), nn.Linear(32, d)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, best = self.gate(flat).softmax(1).max(1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            at = (best == i).nonzero().flatten()
            if len(at):
                out = out.index_add(0, at, expert(flat[at]) * weight[at, None])
        return self.head(out.view_as(x).mean(1))


class EarlyExit(nn.Module):
    """Samples that are sure leave after the first layer."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 128)
        self.exit, self.last = nn.Linear(128, d), nn.Linear(128, d)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        sure = x[:, 0] > 0.5
        out = self.last(F.relu(self.second(h)))
        return out.index_put((sure,), self.exit(h[sure])) if sure.any() else out


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank update."""

    def __init__(self, width: int, out: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(width, out).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Tied(nn.Module):
    """A language model whose output layer is its embedding, read at d words."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 32)
        self.mix = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.out = nn.Linear(32, 1000, bias=False)
        self.out.weight, self.d = self.words.weight, d

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(self.words(x))).mean(1)[:, : self.d]


class Siamese(nn.Module):
    """One tower called twice."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.head = nn.Linear(32, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.tower(x[:, 0]) - self.tower(x[:, 1])).square())


class Tokens(nn.Module):
    """Patches, a class token and positions as bare parameters, scaled branches: as timm's ViT."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, stride=8)
        self.token, self.places = (nn.Parameter(torch.randn(1, k, 64) / 8) for k in (1, 17))
        self.block = Residual(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), scale=64)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, d)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        return self.head(self.norm(self.block(h))[:, 0])


def perceptron(d: int, wrap: Callable[[nn.Linear], nn.Module] = lambda m: m) -> nn.Module:
    widths = (784, 512, 512, d) if wrap.__name__ == "<lambda>" else (64, 128, 128, d)
    a, b, c = (wrap(nn.Linear(i, o)) for i, o in pairwise(widths))
    return nn.Sequential(a, nn.ReLU(), b, nn.ReLU(), c)


def convolutional(d: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, d),
    )  # fmt: skip


def encoder(d: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return Pooled(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), 128, d)


def resnet(d: int) -> nn.Module:
    def block() -> nn.Module:
        return Residual(nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
        ))  # fmt: skip

    body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), block(), nn.ReLU(), block(), nn.ReLU())
    return Pooled(body, 16, d, 1)


def separable(d: int) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.PReLU(16),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 32, 1),
        nn.InstanceNorm2d(32, affine=True), nn.Hardswish(),
        nn.Conv2d(32, 32, 3, 2, 2, dilation=2, groups=4),
    )  # fmt: skip
    return Pooled(body, 32, d, 1)


def autoencoding(d: int) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1),
    )  # fmt: skip
    return Pooled(body, 4, d, 1)


def temporal(d: int) -> nn.Module:
    body = nn.Sequential(
        nn.Conv1d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=2, dilation=2),
        nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=4, dilation=4),
    )  # fmt: skip
    return Pooled(body, 32, d, 1)


def volumes(d: int) -> nn.Module:
    body = nn.Sequential(nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU())
    return Pooled(body, 16, d, 1)


def mixer(d: int) -> nn.Module:
    def mlp(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    blocks = [
        nn.Sequential(
            Residual(nn.Sequential(nn.LayerNorm(48), Swapped(mlp(16)))),
            Residual(nn.Sequential(nn.LayerNorm(48), mlp(48))),
        )
        for _ in range(2)
    ]
    return Pooled(nn.Sequential(nn.Linear(24, 48), *blocks, nn.RMSNorm(48)), 48, d)


def adapted(d: int) -> nn.Module:
    return nn.Sequential(Adapted(64, 128), nn.Tanh(), Adapted(128, 128), nn.Tanh(), Adapted(128, d))


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[int], nn.Module]:
    width = options.pop("width", 128)
    size = (options.get("proj_size") or width) * (1 + options.get("bidirectional", False))
    inputs = 64 if width == 128 else 16
    return lambda d: LastStep(kind(inputs, width, batch_first=True, **options), size, d)


def plain() -> Zoo:
    """Those of torch alone."""
    picture, sequence = rows(3, 32, 32), rows(16, 16)
    return {
        "MLP 784-512-512": (perceptron, rows(784)),
        "CNN 32-64": (convolutional, rows(1, 28, 28)),
        "TransformerEncoder 4x128": (encoder, rows(32, 128)),
        "LSTM 2x128, 32 steps": (recurrent(nn.LSTM, num_layers=2), rows(32, 64)),
        "GRU 2x128, 32 steps": (recurrent(nn.GRU, num_layers=2), rows(32, 64)),
        "RNN, both ways": (recurrent(nn.RNN, width=32, bidirectional=True), sequence),
        "LSTM, both ways": (recurrent(nn.LSTM, width=32, bidirectional=True), sequence),
        "LSTM, projected states": (recurrent(nn.LSTM, width=32, proj_size=16), sequence),
        "ResNet, batch norm": (resnet, rows(3, 16, 16)),
        "CNN, depthwise, group and instance norm, PReLU": (separable, picture),
        "autoencoder, transposed convolutions": (autoencoding, rows(1, 28, 28)),
        "dilated 1-d CNN": (temporal, rows(8, 32)),
        "3-d CNN": (volumes, rows(1, 12, 12, 12)),
        "MLP-Mixer, RMS norm": (mixer, rows(16, 24)),
        "TransformerDecoder, causal and cross": (Decoder, rows(16, 64)),
        "ViT with class token and layer scale": (Tokens, picture),
        "mixture of experts": (Experts, rows(16, 32)),
        "early exit": (EarlyExit, rows(64)),
        "MLP with LoRA": (adapted, rows(64)),
        "MLP, weight norm": (lambda d: perceptron(d, parametrizations.weight_norm), rows(64)),
        "MLP, spectral norm": (lambda d: perceptron(d, parametrizations.spectral_norm), rows(64)),
        "language model, tied embeddings": (Tied, words),
        "Siamese towers": (Siamese, rows(2, 32)),
    }


def hugging_face() -> Zoo:
    try:
        import transformers as hf
    except ImportError:
        print("transformers is not installed: its networks are left out (BERT, ViT, GPT-2, ...)")
        return {}
    size = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    size |= {"intermediate_size": 256}
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"intermediate_size": 128}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    gpt = {"n_embd": 128, "n_layer": 4, "n_head": 4, **ends}
    distil = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    opt = {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64}

    def text(kind: str, **sizes: Any) -> Any:
        model, config = (getattr(hf, kind + end) for end in ("ForSequenceClassification", "Config"))
        return lambda d: model(config(vocab_size=1000, num_labels=d, **sizes)), tokens

    def image(kind: str, **sizes: Any) -> Any:
        model, config = (getattr(hf, kind + end) for end in ("ForImageClassification", "Config"))
        pixels = rows(3, 32, 32, name="pixel_values")
        return lambda d: model(config(image_size=32, num_labels=d, **sizes)), pixels

    return {
        "BERT 4x128": text("Bert", **size),
        "GPT-2 4x128": text("GPT2", **gpt),
        "Llama 4x128": text("Llama", **size, **ends),
        "ViT 4x128": image("ViT", patch_size=8, **size),
        "DistilBERT 2x64": text("DistilBert", **distil),
        "ELECTRA 2x64": text("Electra", embedding_size=32, **small),
        "OPT 2x64": text("OPT", **opt, **ends, hidden_size=64, num_hidden_layers=2,
                         num_attention_heads=4),
        "Qwen2 2x64, grouped queries": text("Qwen2", num_key_value_heads=2, **small, **ends),
        "ConvNeXt 2 stages": image("ConvNext", num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]),
    }  # fmt: skip


def architectures() -> Zoo:
    return {**plain(), **hugging_face()}
