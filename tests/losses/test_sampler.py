"""Every batch has its classes, every class its samples."""

import pytest
import torch

from vicinal.checks import InputError
from vicinal.losses import ClassBalancedBatchSampler

LABELS = torch.tensor([0] * 5 + [3] * 9 + [7] * 4 + [8] * 6)


def test_every_batch_has_so_many_classes_with_so_many_different_samples(rng):
    sampler = ClassBalancedBatchSampler(LABELS, 3, 4, batches=50, generator=rng)
    assert len(sampler) == 50
    for batch in sampler:
        assert len(set(batch)) == 12
        _, counts = LABELS[batch].unique(return_counts=True)
        assert counts.tolist() == [4, 4, 4]


def test_no_sample_of_a_class_comes_again_before_all_have_come(rng):
    sampler = ClassBalancedBatchSampler(LABELS, 4, 2, batches=30, generator=rng)
    drawn = [i for batch in sampler for i in batch]
    for value in LABELS.unique():
        own = [i for i in drawn if LABELS[i] == value]
        counts = [own.count(i) for i in (value == LABELS).nonzero().flatten().tolist()]
        assert max(counts) - min(counts) <= 1


def test_the_generator_decides_and_moves_on():
    seeds = [torch.Generator().manual_seed(4) for _ in range(2)]
    first, second = (ClassBalancedBatchSampler(LABELS, 2, 2, generator=g) for g in seeds)
    epoch = list(first)
    assert epoch == list(second)
    assert epoch != list(first)


def test_it_is_a_batch_sampler_of_a_data_loader(rng):
    data = torch.utils.data.TensorDataset(torch.arange(24), LABELS)
    sampler = ClassBalancedBatchSampler(LABELS.numpy(), 2, 3, generator=rng)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert len(loader) == 24 // 6
    assert all(len(rows) == 6 for rows, _ in loader)


def test_wrong_input_is_named():
    for call, sentence in (
        (lambda: ClassBalancedBatchSampler(LABELS, 5, 2), "`classes_per_batch`"),
        (lambda: ClassBalancedBatchSampler(LABELS, 2, 0), "`samples_per_class`"),
        (lambda: ClassBalancedBatchSampler(LABELS, 2, 5), "class 7 has fewer"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
