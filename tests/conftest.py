"""Tests run on one thread each: the runner uses the cores."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def rng():
    """A seeded source of randomness; no test touches the global one."""
    return torch.Generator().manual_seed(0)
