"""The bank keeps the last rows, starts empty and survives a restart."""

import pytest
import torch
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.losses import MemoryBank, supervised_contrastive_loss


def test_the_bank_holds_the_last_rows_it_was_given(rng):
    bank, history = MemoryBank(2, 5), []
    for size in (3, 1, 4, 7, 2):
        x, y = torch.randn(size, 2, generator=rng), torch.randint(0, 9, (size,), generator=rng)
        bank.add(x, y)
        history += list(zip(x.tolist(), y.tolist(), strict=True))
        kept = zip(bank.reference.tolist(), bank.reference_labels.tolist(), strict=True)
        assert sorted(kept) == sorted(history[-5:])


def test_a_new_bank_is_empty_and_says_so():
    with pytest.raises(InputError, match="bank is empty"):
        MemoryBank(2, 5).as_reference()


def test_a_restored_bank_goes_on_as_if_nothing_had_happened(rng):
    batches = [(torch.randn(3, 2, generator=rng), torch.tensor([0, 1, 2])) for _ in range(4)]
    bank, restored = MemoryBank(2, 5), MemoryBank(2, 5)
    for x, y in batches[:2]:
        bank.add(x, y)
    restored.load_state_dict(bank.state_dict())
    for x, y in batches[2:]:
        bank.add(x, y)
        restored.add(x, y)
    for name, value in bank.state_dict().items():
        assert torch.equal(restored.state_dict()[name], value), name


def test_the_bank_is_a_reference_without_gradient(rng):
    x = torch.randn(4, 2, generator=rng, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1])
    bank = MemoryBank(2, 8)
    bank.add(2 * x, y)
    loss = supervised_contrastive_loss(x, y, **bank.as_reference())
    bank.add(x, y)  # writing on must not disturb the graph of this step
    loss.backward()
    expected = supervised_contrastive_loss(x, y, reference=2 * x.detach(), reference_labels=y)
    assert_close(loss, expected)
    bank.clear()
    assert len(bank) == 0


def test_soft_labels_have_a_bank_of_their_width():
    bank = MemoryBank(2, 3, num_classes=2)
    bank.add(torch.eye(2), torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    assert_close(bank.reference_labels, torch.tensor([[0.5, 0.5], [1.0, 0.0]]))


def test_wrong_input_is_named():
    bank = MemoryBank(2, 3)
    for x, y, sentence in (
        (torch.ones(1, 3), torch.tensor([0]), "rows of 2"),
        (torch.ones(1, 2), torch.tensor([0, 1]), "each of the 1 rows"),
        (torch.ones(1, 2), torch.ones(1, 1), "integers"),
    ):
        with pytest.raises(InputError, match=sentence):
            bank.add(x, y)
    with pytest.raises(InputError, match="`dim` and `size`"):
        MemoryBank(0, 3)
