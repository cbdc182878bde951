"""What the network puts out is what is kept, and the network does not notice."""

import hashlib
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from vicinal.capture import (
    ShardStore,
    batches,
    capture,
    device_of,
    evaluating,
    hooked,
    layer_names,
    listening,
    restored,
    row_count,
    tracing,
)
from vicinal.capture.shards import read_shard, write_shard
from vicinal.checks import InputError
from vicinal.losses import ClassBalancedBatchSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.norm(self.act(self.conv(x)))
        return self.head(h.mean((2, 3)))


@pytest.fixture
def net(rng):
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def data(rng):
    return torch.randn(21, 1, 5, 5, generator=rng), torch.arange(21) % 3


def by_hand(net, x):
    """The same layers, asked one by one."""
    net = net.eval()
    with torch.no_grad():
        conv = net.conv(x)
        norm = net.norm(conv.relu())
        return {"conv": conv, "norm": norm, "output": net.head(norm.mean((2, 3)))}


@pytest.mark.parametrize("kind", ["tuple", "dataset", "loader", "dicts", "shuffled"])
def test_capture_keeps_what_each_layer_says_whatever_holds_the_data(net, data, kind):
    x, y = data
    sources = {
        "tuple": (x, y),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "dicts": [{"x": x[:8], "labels": y[:8]}, {"x": x[8:], "labels": y[8:]}],
        "shuffled": DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
    }
    acts = capture(net, sources[kind], ["conv", "output"], batch_size=8)
    want = by_hand(net, x)
    torch.testing.assert_close(acts["conv"], want["conv"].flatten(1))
    torch.testing.assert_close(acts["output"], want["output"])
    assert torch.equal(acts.labels, y)


def test_a_loader_that_draws_at_random_is_read_in_the_order_of_its_data_set():
    rows = TensorDataset(torch.arange(12), torch.arange(12) % 3)
    weighted = WeightedRandomSampler(torch.ones(12), 40)
    balanced = ClassBalancedBatchSampler(rows.tensors[1], 2, 2)
    for loader in (
        DataLoader(rows, batch_size=5, shuffle=True, drop_last=True),
        DataLoader(rows, batch_size=5, sampler=weighted),
        DataLoader(rows, batch_sampler=balanced),
    ):
        assert row_count(loader) == 12
        for _ in range(2):
            read = torch.cat([batch.inputs[0] for batch in batches(loader, 4)])
            assert torch.equal(read, torch.arange(12))
    subset = DataLoader(rows, batch_size=2, sampler=SubsetRandomSampler([7, 3, 5]))
    assert torch.cat([b.inputs[0] for b in batches(subset, 4)]).tolist() == [7, 3, 5]
    assert row_count(subset) == 3


def test_a_sampler_nobody_knows_is_refused_by_name():
    rows = TensorDataset(torch.arange(12))
    with pytest.raises(InputError, match="`train` is a DataLoader whose DistributedSampler"):
        next(
            batches(
                DataLoader(rows, sampler=DistributedSampler(rows, num_replicas=2, rank=0)),
                4,
                name="train",
            )
        )


def test_an_in_place_activation_does_not_change_what_the_layer_before_it_said(net, data):
    acts = capture(net, data[0], ["conv", "act"])
    assert (acts["conv"] < 0).any()
    assert torch.equal(acts["conv"].relu(), acts["act"])
    assert acts.labels is None


def test_numpy_rows_are_taken_too(net, data):
    acts = capture(net, (data[0].numpy(), data[1].numpy()), ["output"])
    torch.testing.assert_close(acts["output"], by_hand(net, data[0])["output"])


@pytest.mark.parametrize(
    ("pool", "want"),
    [
        ("mean", lambda h: h.mean((2, 3))),
        ("max", lambda h: h.amax((2, 3))),
        ("flatten", lambda h: h.flatten(1)),
        (lambda h: h[:, :, 0, 0], lambda h: h[:, :, 0, 0]),
    ],
)
def test_maps_are_pooled_to_one_vector_a_row(net, data, pool, want):
    got = capture(net, data[0], ["norm"], pool=pool)["norm"]
    torch.testing.assert_close(got, want(by_hand(net, data[0])["norm"]))


def test_tokens_are_pooled_over_their_places_and_a_tuple_gives_its_first_tensor(rng):
    lstm, x = nn.LSTM(3, 5, batch_first=True), torch.randn(4, 7, 3, generator=rng)
    model = nn.Sequential(lstm)
    sequence = lstm(x)[0].detach()
    for pool, want in [("mean", sequence.mean(1)), ("first", sequence[:, 0])]:
        torch.testing.assert_close(capture(model, x, ["0"], pool=pool)["0"], want)


def test_the_model_comes_back_as_it_was(net, data):
    net.train()
    net.norm.eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    capture(net, data, ["conv"])
    assert net.training
    assert net.conv.training
    assert not net.norm.training
    assert not any(m._forward_hooks for m in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    with pytest.raises(RuntimeError):
        capture(net, torch.zeros(3, 2, 5, 5), ["conv"])  # two channels: the model itself raises
    assert net.training
    assert not any(m._forward_hooks for m in net.modules())


def test_a_wrong_layer_name_is_answered_with_the_closest_ones(net, data):
    assert layer_names(net) == ["conv", "act", "norm", "head", "unused"]
    with pytest.raises(InputError, match=r"no layer 'cnov' in Net\. Close names: conv"):
        capture(net, data, ["cnov"])
    with pytest.raises(InputError, match="'unused' exists but was not executed"):
        capture(net, data, ["unused"])
    with pytest.raises(InputError, match="list of layer names"):
        capture(net, data, "conv")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.zeros(3, 1, 5, 5), torch.zeros(2).long()), "same number of rows"),
        (torch.zeros(0, 1, 5, 5), "is empty"),
        (7, "must be a tensor"),
        ([object()], "a batch of `data`"),
    ],
)
def test_data_that_cannot_be_read_earns_a_sentence(net, bad, message):
    with pytest.raises(InputError, match=message):
        capture(net, bad, ["conv"])


def test_a_layer_with_a_dict_output_says_what_to_do(data):
    class Dict(nn.Module):
        def forward(self, x):
            return {"logits": x.flatten(1), "hidden": x}

    with pytest.raises(InputError, match=r"dict\(logits, hidden\)"):
        capture(Dict(), data, ["output"])


def test_a_layer_that_runs_twice_leaves_its_last_output_with_a_warning(rng):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x):
            return self.act(self.act(x))

    x = torch.randn(3, 2, generator=rng)
    with pytest.warns(UserWarning, match="ran twice"):
        got = capture(Twice(), x, ["act"])["act"]
    torch.testing.assert_close(got, x.tanh().tanh())


# ------------------------------------------------------------------ to disk


def test_shards_hold_what_memory_would(net, data, tmp_path, monkeypatch):
    monkeypatch.setattr("vicinal.capture.activations.SHARD_ROWS", 8)
    whole = capture(net, data, ["conv", "output"], batch_size=4)
    seen = []
    disk = capture(
        net,
        data,
        ["conv", "output"],
        batch_size=4,
        to=tmp_path / "a",
        progress=lambda *p: seen.append(p),
    )
    assert len(list((tmp_path / "a").glob("shard-*.safetensors"))) == 3
    assert seen[-1] == (21, 21)
    assert set(disk) == {"conv", "output"}
    for name in disk:
        assert torch.equal(disk[name], whole[name])
    assert torch.equal(disk.labels, whole.labels)
    assert torch.equal(ShardStore(tmp_path / "a")["output"], whole["output"])


@pytest.mark.parametrize("source", ["tuple", "dataset", "loader"])
def test_a_capture_that_was_stopped_goes_on_with_the_same_result(
    net, data, tmp_path, monkeypatch, source
):
    monkeypatch.setattr("vicinal.capture.activations.SHARD_ROWS", 8)
    x, y = data
    rows = {
        "tuple": (x, y),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
    }[source]
    calls = []

    def stop_in_the_middle(done, total):
        calls.append(done)
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(net, rows, ["conv"], batch_size=4, to=tmp_path / "s", progress=stop_in_the_middle)
    assert ShardStore(tmp_path / "s").rows == 8
    assert not any(m._forward_hooks for m in net.modules())
    done = []
    acts = capture(
        net, rows, ["conv"], batch_size=4, to=tmp_path / "s", progress=lambda d, t: done.append(d)
    )
    assert done[0] == 12  # rows 0-7 were not run again
    fresh = capture(net, rows, ["conv"], batch_size=4, to=tmp_path / "f")
    assert torch.equal(acts["conv"], fresh["conv"])
    for shard in sorted((tmp_path / "f").glob("shard-*")):
        assert shard.read_bytes() == (tmp_path / "s" / shard.name).read_bytes()


def test_a_damaged_shard_is_made_again(net, data, tmp_path, monkeypatch):
    monkeypatch.setattr("vicinal.capture.activations.SHARD_ROWS", 8)
    folder = tmp_path / "s"
    whole = capture(net, data, ["conv"], batch_size=4, to=folder)["conv"].clone()
    shard = folder / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    again = capture(net, data, ["conv"], batch_size=4, to=folder)["conv"]
    assert torch.equal(again, whole)


def test_a_run_that_died_before_its_first_manifest_starts_anew(net, data, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".manifest.json.partial").write_text('{"vers')
    assert len(capture(net, data, ["conv"], to=tmp_path / "s")["conv"]) == 21


def test_another_model_or_other_data_do_not_go_on_in_the_same_folder(net, data, tmp_path):
    capture(net, data, ["conv"], to=tmp_path / "s")
    with pytest.raises(InputError, match="holds another capture: its layers"):
        capture(net, data, ["head"], to=tmp_path / "s")
    with pytest.raises(InputError, match="its first_batch is"):
        capture(net, (data[0] + 1, data[1]), ["conv"], to=tmp_path / "s")
    with torch.no_grad():
        net.head.bias.add_(1)
    with pytest.raises(InputError, match="its model is"):
        capture(net, data, ["conv"], to=tmp_path / "s")


def test_a_folder_that_is_not_ours_is_left_alone(net, data, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no capture"):
        capture(net, data, ["conv"], to=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        ShardStore(tmp_path / "broken")
    with pytest.raises(InputError, match="no capture in"):
        ShardStore(tmp_path / "nowhere")


def test_labels_of_lists_are_kept(net, data):
    batches = [(data[0][:5], [0, 1, 2, 0, 1]), (data[0][5:], list(range(16)))]
    assert capture(net, batches, ["conv"]).labels.tolist() == [0, 1, 2, 0, 1, *range(16)]
    assert np.asarray(capture(net, batches, ["conv"]).labels).shape == (21,)


def test_a_folder_of_version_one_is_read_but_not_gone_on_with(net, data, tmp_path):
    """Version 0.1 kept the checksum of each file in the manifest and none in the file."""
    want = capture(net, data, ["conv"])
    shard = save({"layer:conv": want["conv"].contiguous(), "labels": want.labels})
    (tmp_path / "shard-00000.safetensors").write_bytes(shard)
    entry = {"file": "shard-00000.safetensors", "rows": 21}
    manifest = {
        "version": 1,
        "settings": {"layers": ["conv"], "labels": True},
        "shards": [{**entry, "sha256": hashlib.sha256(shard).hexdigest()}],
        "complete": True,
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    store = ShardStore(tmp_path)
    assert store.complete
    assert torch.equal(store["conv"], want["conv"])
    assert torch.equal(store.labels, want.labels)
    with pytest.raises(InputError, match="older version of vicinal"):
        capture(net, data, ["conv"], to=tmp_path)


def test_a_shard_is_known_by_what_it_holds(tmp_path):
    same = torch.arange(6.0).view(2, 3)
    checksum = write_shard(tmp_path / "s", {"a": same, "b": same.T}, {"rows": 2})
    shard = read_shard(tmp_path / "s")
    assert shard.checksum == checksum
    assert torch.equal(shard.tensors["b"], same.T)
    assert shard.facts == {"rows": 2}
    raw = bytearray((tmp_path / "s").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "s").write_bytes(raw)
    assert read_shard(tmp_path / "s") is None
    assert read_shard(tmp_path / "nothing") is None


# ------------------------------------------------------------------ hooks and batches


def test_layers_are_traced_in_the_order_in_which_they_run(data):
    class Backward(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 3), nn.Linear(25, 4)
            self.memory = nn.LSTM(3, 2)

        def forward(self, x):
            return self.memory(self.last(self.first(x.flatten(1))))

    net = Backward()
    with tracing(net) as ran:
        net(data[0])
    assert list(ran) == ["first", "last", "memory"]
    assert ran["last"] == ((21, 3), True)
    assert ran["memory"] == ((21, 2), False)  # an LSTM puts out its states as well
    assert not any(m._forward_hooks for m in net.modules())


def test_a_hook_sees_inputs_by_place_and_by_name(data):
    calls = []
    layer = nn.MultiheadAttention(4, 1)
    x = torch.ones(2, 3, 4)
    with hooked({"attention": layer}, calls.append):
        layer(x, x, value=x, key_padding_mask=None)
    (call,) = calls
    assert call.name == "attention"
    assert len(call.args) == 2
    assert set(call.kwargs) == {"value", "key_padding_mask"}


def test_a_second_forward_starts_with_nothing_kept(net, data):
    with listening(net, ["conv"], lambda name, output: output) as kept, warnings.catch_warnings():
        warnings.simplefilter("error")  # a layer of two passes did not run twice in one
        net(data[0])
        net(data[0][:3])
    assert len(kept["conv"]) == 3
    assert not net._forward_pre_hooks


def test_a_model_is_restored_whatever_happens_to_it(net):
    net.norm.eval()
    net.head.weight.requires_grad_(False)
    with pytest.raises(RuntimeError), restored(net):
        net.eval().requires_grad_(True)(torch.zeros(2, 2))  # no image: the model itself raises
    assert net.training
    assert not net.norm.training
    assert [name for name, p in net.named_parameters() if not p.requires_grad] == ["head.weight"]


def test_a_plain_function_has_nothing_to_restore():
    with evaluating(abs), restored(abs):
        assert device_of(abs) is None


@pytest.mark.parametrize("kind", ["array", "pair", "lists", "dataset", "loader", "resumed"])
def test_every_batch_knows_its_place_in_the_data(data, kind):
    x, y = data
    sources = {
        "array": x.numpy(),
        "pair": (x, y.tolist()),
        "lists": x[:, 0, 0].tolist(),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=8),
    }
    if kind == "resumed":
        found = list(batches(TensorDataset(x, y), 8, start=8))
        assert [b.start for b in found] == [8, 16]
        assert torch.equal(found[0].x, x[8:16])
        return
    found = list(batches(sources[kind], 8))
    assert [b.start for b in found] == [0, 8, 16]
    assert row_count(sources[kind]) == 21
    assert found[-1].take(2, 4).start == 18
