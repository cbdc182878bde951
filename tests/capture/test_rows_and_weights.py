"""Some rows of a data set, and weights however they were wrapped."""

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from vicinal.capture import batches, load_weights, read_weights, some_rows
from vicinal.checks import InputError

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
ROWS = torch.tensor([1, 4, 9])


@pytest.mark.parametrize(
    "data",
    [
        X,
        X.numpy(),
        (X, Y),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
        [(X[:6], Y[:6]), (X[6:], Y[6:])],
    ],
    ids=["tensor", "array", "pair", "data set", "loader", "batches"],
)
def test_some_rows_are_those_rows_whatever_holds_the_data(data):
    found = list(batches(some_rows(data, ROWS), 2))
    assert torch.equal(torch.cat([batch.x for batch in found]), X[ROWS])
    if found[0].labels is not None:
        assert torch.cat([batch.labels for batch in found]).tolist() == [1, 4, 9]


def test_only_the_rows_that_are_asked_for_are_read():
    class Counted(TensorDataset):
        read = 0

        def __getitem__(self, row):
            Counted.read += 1
            return super().__getitem__(row)

    list(batches(some_rows(Counted(X, Y), torch.tensor([2, 3, 400])), 8))
    assert Counted.read == 2


def test_named_inputs_are_cut_by_name():
    found = some_rows({"a": X, "labels": Y}, ROWS)
    assert torch.equal(found["a"], X[ROWS])
    assert found["labels"].tolist() == [1, 4, 9]


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_weights_go_into_a_wrapper_around_the_model_they_are_of():
    inner, other = nn.Linear(2, 1), nn.Linear(2, 1)
    state = {f"module.{name}": value for name, value in other.state_dict().items()}
    notes = load_weights(Wrapped(inner), {"state_dict": state}, "c.pt")
    assert torch.equal(inner.weight, other.weight)
    assert "inside 'inner.'" in notes[0]


def test_a_checkpoint_that_holds_code_is_refused_unless_pickles_are_trusted(tmp_path):
    torch.save(nn.Linear(2, 1), tmp_path / "whole.pt")
    with pytest.raises(InputError, match=r"weights from whole.pt.*state_dict"):
        read_weights(tmp_path / "whole.pt")
    assert set(read_weights(tmp_path / "whole.pt", trust_pickle=True)) == {"weight", "bias"}


def test_keys_that_are_no_names_are_a_sentence():
    with pytest.raises(InputError, match="weights"):
        load_weights(nn.Linear(2, 1), {3: torch.zeros(2), "x": np.zeros(3)}, "odd.pt")


@pytest.mark.parametrize("kind", [Tensor.to_sparse, lambda t: t.to("meta"), lambda t: t + 0j])
def test_tensors_of_another_kind_are_no_weights_of_the_model(kind):
    net = nn.Linear(2, 1)
    state = {name: kind(value.detach()) for name, value in net.state_dict().items()}
    with pytest.raises(InputError, match="weights match 0 of 2 parameters"):
        load_weights(net, state, "odd.pt")


def test_a_pickle_is_refused_without_the_words_of_its_parser(tmp_path, recwarn):
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(nn.Linear(2, 1), protocol=4))
    with pytest.raises(InputError, match=r"weights from bare.pt"):
        read_weights(tmp_path / "bare.pt")
    assert not recwarn.list
