"""Moves training state off its device and back, so that a policy server on the same device can have the memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def move_state(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves parameters, buffers and optimizer state, sharded or not; nothing may be computed until they are back.

    The parameters stay the same objects, so optimizers go on holding them. Step counters stay where the optimizer
    wants them.

    Args:
        modules: Actor, critic, reference.
        optimizers: Theirs.
        device: The CPU, or the device the modules compute on.
    """
    for module in modules:
        module.to(device)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
