"""What every test runs under: its own random numbers, and NaN in memory nobody has written."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _isolated_numerics() -> Iterator[None]:
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    torch.manual_seed(0)
    # Deterministic mode fills torch.empty and its kin with NaN, so that a read of unwritten memory shows.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
