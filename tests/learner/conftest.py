"""One process group for all learner tests that need a learner in this process."""

import pytest
import torch
from tiny_learner import CPU

from envgym.learner.distributed import process_group


@pytest.fixture(scope="module")
def one_rank():
    torch.set_num_threads(1)
    with process_group(CPU) as mesh:
        yield mesh
