"""Tests run on one thread each: the runner uses the cores."""

import os

import pytest
import torch

torch.set_num_threads(1)
# Ray kills workers where the machine is short of memory, whoever takes it: nothing to test here.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")


@pytest.fixture
def rng():
    """A seeded source of randomness; no test touches the global one."""
    return torch.Generator().manual_seed(0)
