"""Networks with every habit an exact gradient must survive, and per-sample gradients by plain
autograd.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn


def per_sample_gradients(model, x, f=lambda output, target: output, target=None, names=None):
    """(n, d, p): one forward and d backward passes for each sample alone. The witness of every
    test.
    """
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    params = [p for name, p in model.named_parameters() if names is None or name in names]
    rows = []
    for i in range(len(x)):
        y = f(model(x[i : i + 1]), None if target is None else target[i : i + 1]).reshape(-1)
        grads = [
            torch.autograd.grad(v, params, retain_graph=True, materialize_grads=True) for v in y
        ]
        rows.append(torch.stack([torch.cat([t.to_dense().flatten() for t in g]) for g in grads]))
    for m, training in flags:
        m.training = training
    return torch.stack(rows)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding="same", padding_mode="circular")
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.group = nn.GroupNorm(2, 8)
        self.act = nn.PReLU(8)
        self.strided = nn.Conv2d(8, 6, (3, 2), stride=(2, 1), padding=1, padding_mode="reflect")
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)), inplace=True)
        h = h + self.act(self.group(self.depthwise(h)))
        h = self.strided(h).relu_()
        return self.head(h.mean((2, 3)))


class CalledTwice(nn.Module):
    """One layer used twice, and one weight used by another layer too."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        return self.head(torch.tanh(self.tied(torch.tanh(self.inner(h)))))


class Transposed(nn.Module):
    """An autoencoder whose decoder is the encoder's weight transposed, used functionally."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor([1.0, -0.5, 2.0, 0.3, 1.1]))

    def forward(self, x):
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T) * self.scale


class LanguageModel(nn.Module):
    """Tied input and output embeddings, attention over words, a padding word, folded places at the
    end.
    """

    def __init__(self, batch_first=True):
        super().__init__()
        self.words = nn.Embedding(7, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 7, bias=False)
        self.out.weight = self.words.weight
        self.batch_first = batch_first

    def forward(self, tokens):
        h = self.words(tokens)
        h = h if self.batch_first else h.transpose(0, 1)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = h if self.batch_first else h.transpose(0, 1)
        h = self.norm(F.gelu(self.mix(h)))
        return self.out(h).mean(1)


class Folded(nn.Module):
    """Its Linear sees (n * t, features), so rows are not samples."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(3, 4)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.each(x.reshape(-1, 3))).reshape(len(x), -1))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(3, options.pop("hidden_size", 4), batch_first=True, **options)
        self.head = nn.Linear(4 * (2 if options.get("bidirectional") else 1), 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Started(nn.Module):
    """Time first, no biases, states given, and the last ones used."""

    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(3, 4, num_layers=2, bias=False, **options)
        self.start = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h = self.start(x[:, 0]).expand(2, -1, -1)
        lstm = isinstance(self.cell, nn.LSTM)
        last = self.cell(x.transpose(0, 1), (h, h.tanh()) if lstm else h)[1]
        return self.head(last[1][-1] + last[0][0] if lstm else last.sum(0))


class Packed(nn.Module):
    """Sequences of unequal length, packed; both directions, outputs and last states used."""

    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True, **options)
        self.head = nn.Linear(2 * (options.get("proj_size") or 4), 2)

    def forward(self, x):
        lengths = 2 + (x[:, 0, 0] > 0).long() + 2 * (x[:, 0, 1] > 0).long()
        rows = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = self.cell(rows)
        out = rnn.pad_packed_sequence(out, batch_first=True)[0].sum(1)
        return self.head(out) + (last[1] if isinstance(last, tuple) else last).sum((0, 2))[:, None]


class OwnScale(nn.Linear):
    """A subclass with its own forward: the rule of Linear would be wrong for it."""

    def forward(self, x):
        return super().forward(x) * self.weight.sum()


class Shifted(nn.Embedding):
    """A table of positions that begins later, as that of OPT; and what its base returns, scaled."""

    def forward(self, x):
        return super().forward((x > 0).long().cumsum(1) + 2) * 3


class OverChannels(nn.LayerNorm):
    """A layer norm over the axis after the samples."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ByHand(nn.LayerNorm):
    """A layer norm that never asks its base."""

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


class Inside(nn.Module):
    """Subclasses with a forward of their own, around that of their base or without it."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(7, 4), Shifted(8, 4)
        self.norm, self.other = OverChannels(4), ByHand(4)
        self.head = OwnScale(4, 2)

    def forward(self, tokens):
        h = self.words(tokens) + self.places(tokens)
        if float(h.detach().abs().max()) > 1e9:  # no `vmap` can trace it
            raise RuntimeError
        return self.head(torch.tanh(self.other(self.norm(h.mT).mT)).mean(1))


class Experts(nn.Module):
    """Each token goes to one of four experts; the last expert is asked by large inputs only."""

    def __init__(self, layer=lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))):
        super().__init__()
        self.gate = nn.Linear(3, 3)
        self.experts = nn.ModuleList(layer() for _ in range(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        tokens = x.reshape(-1, 3)
        gate = self.gate(tokens).softmax(1)
        best = torch.where(tokens.norm(dim=1) > 5, 3, gate.argmax(1))
        out = tokens.new_zeros(len(tokens), 4)
        for i, expert in enumerate(self.experts):
            at = (best == i).nonzero().flatten()
            if len(at):
                out = out.index_add(0, at, expert(tokens[at]) * gate[at, i % 3, None])
        return self.head(torch.tanh(out).reshape(*x.shape[:-1], 4).mean(1))


class EarlyExit(nn.Module):
    """Samples that are sure leave after the first layer; the others go on, in another order."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.exit, self.last = nn.Linear(4, 2), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        sure = x[:, 0] > 1.5
        out = x.new_zeros(len(x), 2)
        if sure.any():
            out = out.index_put((sure,), self.exit(h[sure]) * self.scale)
        if not sure.all():
            rest = (~sure).nonzero().flatten().flip(0)
            out = out.index_put((rest,), self.last(torch.tanh(self.second(h[rest]))))
        return out


class Frames(nn.Module):
    """A convolution and its norms over (samples x frames)."""

    def __init__(self):
        super().__init__()
        self.each = nn.Conv2d(2, 4, 2)
        self.norm, self.act = nn.BatchNorm2d(4), nn.PReLU(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h = self.act(self.norm(self.each(x.flatten(0, 1))))
        return self.head(h.mean((2, 3)).view(*x.shape[:2], 4).mean(1))


class Encoder(nn.Module):
    """nn.TransformerEncoder over tokens, with the padding word masked."""

    def __init__(self, **options):
        super().__init__()
        self.words, self.places = nn.Embedding(7, 8), nn.Parameter(torch.randn(4, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, **options)
        self.layers = nn.TransformerEncoder(
            layer, 2, enable_nested_tensor="norm_first" not in options
        )
        self.head = nn.Linear(8, 3)
        self.first = options.get("batch_first", False)

    def forward(self, tokens):
        h = self.words(tokens) + self.places
        h = h if self.first else h.transpose(0, 1)
        padding = (tokens == 0) & (torch.arange(4) > 0)
        h = self.layers(h, src_key_padding_mask=padding)
        return self.head(h.mean(1 if self.first else 0))


class Decoder(nn.Module):
    """Causal self-attention, attention to another sequence, and to keys that are not the values."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(3, 8)
        layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)
        self.pool = nn.MultiheadAttention(8, 4, bias=False, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.read(x)
        causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype)
        h = self.layers(h, h[:, :3] * 2, tgt_mask=causal, tgt_is_causal=True)
        found, weights = self.pool(h[:, :1], h, h + 1)
        return self.head(found[:, 0]) + weights.square().sum((1, 2))[:, None]


class Vision(nn.Module):
    """Patches, a class token, positions by parameter and by table, scaled branches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, 6, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.places = nn.Parameter(torch.randn(1, 5, 6))
        self.table = nn.Embedding(9, 6)
        self.block = nn.TransformerEncoderLayer(6, 2, 7, batch_first=True)
        self.scale = nn.Parameter(torch.randn(6))
        self.temperature = nn.Parameter(torch.tensor(1.3))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        h = h + self.table(torch.arange(5)[None])
        h = h + self.block(h) * self.scale
        return self.head(h[:, 0]) * self.temperature


class Relative(nn.Module):
    """A table of a bias for each distance, indexed: no copy of it fits."""

    def __init__(self):
        super().__init__()
        self.read, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.table = nn.Parameter(torch.randn(5, 1))

    def forward(self, x):
        t = torch.arange(3)
        bias = self.table[t[:, None] - t[None] + 2][..., 0]
        h = self.read(x)
        return self.head(((h @ h.mT + bias).softmax(-1) @ h).mean(1))


class Named(nn.Module):
    """Inputs by name, a mask among them, and logits as an attribute."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, input_ids, attention_mask=None):
        mask = attention_mask[:, :, None]
        h = torch.tanh(self.mix(self.words(input_ids))) * mask
        out = self.head(h.sum(1) / mask.sum(1)) * self.gain.cumsum(0)
        return SimpleNamespace(logits=out)


class Conv1D(nn.Module):
    """The linear layer of Hugging Face's GPT-2, weight (in, out)."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, out, width):
        super().__init__()
        self.nf = out
        self.weight = nn.Parameter(torch.randn(width, out))
        self.bias = nn.Parameter(torch.randn(out))

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.size()[:-1], self.nf)


def gpt():
    return nn.Sequential(
        nn.Embedding(7, 4), Conv1D(6, 4), nn.Tanh(), Conv1D(9, 6), nn.GELU(), nn.Flatten(),
        Conv1D(3, 36),
    )  # fmt: skip


def volumes():
    return nn.Sequential(
        nn.Conv3d(2, 3, 2, padding=1, padding_mode="replicate"),
        nn.InstanceNorm3d(3, affine=True),
        nn.ConvTranspose3d(3, 2, 2, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


def signals():
    return nn.Sequential(
        nn.Conv1d(2, 16, 3, stride=2, padding=1),
        nn.InstanceNorm1d(16, affine=True, track_running_stats=True),
        nn.PReLU(),
        nn.ConvTranspose1d(16, 4, 3, stride=2, output_padding=1, dilation=2, groups=2),
        nn.Conv1d(4, 9, 2, groups=1),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def sequences():
    """Linear on (n, t, u, features), RMSNorm over two axes."""
    return nn.Sequential(
        nn.Linear(3, 5),
        nn.RMSNorm((2, 5)),
        nn.Tanh(),
        nn.Linear(5, 2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def wide_channels():
    """Small maps and many channels: the convolution's ghost costs less than its gradient."""
    return nn.Sequential(
        nn.Conv2d(10, 40, 2), nn.ReLU(inplace=True), nn.Conv2d(40, 40, 1, bias=False), nn.Flatten(),
        nn.Linear(80, 3),
    )  # fmt: skip


def perceptron():
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def weight_normed():
    """Computed weights, one of them called twice, and a layer that has no rule."""
    made = nn.utils.parametrizations
    twice = made.weight_norm(nn.Linear(5, 5), dim=1)
    return nn.Sequential(
        made.weight_norm(nn.Linear(4, 5)), nn.Tanh(), twice, nn.Tanh(), twice,
        made.spectral_norm(nn.Linear(5, 5)), nn.Tanh(),
        nn.Unflatten(1, (1, 5)),
        made.spectral_norm(nn.Conv1d(1, 2, 2)), made.weight_norm(nn.Conv1d(2, 1, 1), dim=None),
        nn.Flatten(), OwnScale(4, 2),
    )  # fmt: skip


ZOO = {
    "perceptron": (perceptron, (6,)),
    "residual": (Residual, (3, 7, 7)),
    "called_twice": (CalledTwice, (4,)),
    "transposed": (Transposed, (5,)),
    "language_model": (LanguageModel, "tokens"),
    "language_model_time_first": (lambda: LanguageModel(batch_first=False), "tokens"),
    "folded": (Folded, (2, 3)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (5, 3)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 3)),
    "rnn": (lambda: Recurrent(nn.RNN), (5, 3)),
    "lstm_started": (lambda: Started(nn.LSTM), (5, 3)),
    "gru_started": (lambda: Started(nn.GRU), (5, 3)),
    "rnn_started": (lambda: Started(nn.RNN, nonlinearity="relu"), (5, 3)),
    "lstm_projected": (lambda: Recurrent(nn.LSTM, proj_size=4, hidden_size=6), (5, 3)),
    "lstm_packed": (lambda: Packed(nn.LSTM), (5, 3)),
    "lstm_projected_packed": (lambda: Packed(nn.LSTM, proj_size=3), (5, 3)),
    "gru_packed": (lambda: Packed(nn.GRU), (5, 3)),
    "experts": (Experts, (4, 3)),
    "early_exit": (EarlyExit, (3,)),
    "frames": (Frames, (3, 2, 4, 3)),
    "encoder": (lambda: Encoder(batch_first=True), "tokens"),
    "encoder_time_first": (lambda: Encoder(norm_first=True), "tokens"),
    "decoder": (Decoder, (5, 3)),
    "gpt": (gpt, "tokens"),
    "inside": (Inside, "tokens"),
    "vision": (Vision, (2, 4, 4)),
    "relative": (Relative, (3, 3)),
    "volumes": (volumes, (2, 3, 3, 3)),
    "signals": (signals, (2, 9)),
    "sequences": (sequences, (4, 2, 3)),
    "wide_channels": (wide_channels, (10, 3, 2)),
    "weight_normed": (weight_normed, (4,)),
}


def make(name, n=5, dtype=torch.float64):
    """A network of the zoo, with moved running statistics, and n inputs for it."""
    build, shape = ZOO[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if shape == "tokens":
            x = torch.randint(0, 7, (n, 4))
        else:
            x = torch.randn(n, *shape, dtype=dtype)
        model = build().to(dtype)
        model(x)  # lazy layers, running statistics
    return model.eval(), x
