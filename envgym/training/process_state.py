"""What belongs to the whole process, and is left as it was found."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

_SET_BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR",)
"""Environment variables that torch sets for itself when its compiler is first imported."""


@contextmanager
def process_state_kept(num_threads: int | None = None) -> Iterator[None]:
    """Puts back the process's random states, warning filters, torch threads, exception hook and what torch adds to the
    environment variables.

    Libraries change these when they are first imported (rich draws a random number, torch's compiler names its cache),
    and torch's process groups replace `sys.excepthook` for good. Of several ranks each keeps that hook: it says which
    rank an error is of.

    Args:
        num_threads: Threads of torch meanwhile; None leaves them.
    """
    threads, hook, ours = torch.get_num_threads(), sys.excepthook, not dist.is_initialized()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    absent = [name for name in _SET_BY_TORCH if name not in os.environ]
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    torch.set_num_threads(num_threads or threads)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for name in absent:
            os.environ.pop(name, None)
        if ours and alone:
            sys.excepthook = hook
