"""AdamW with gradient clipping and a learning-rate schedule that is a function of the number of updates."""

from __future__ import annotations

import math

import torch
from torch import nn

from envgym.config import OptimizerConfig
from envgym.learner.distributed import full_tensor


def learning_rate(config: OptimizerConfig, update: int, total_updates: int) -> float:
    """The learning rate of an update.

    Linear warm-up to the peak over `warmup_updates`, then constant, or falling to zero at `total_updates` linearly or
    along a half cosine.

    Args:
        config: Peak, warm-up and kind.
        update: Number of updates before this one.
        total_updates: Updates of the whole run.
    """
    if update < config.warmup_updates:
        return config.learning_rate * (update + 1) / config.warmup_updates
    share = min((update - config.warmup_updates) / max(total_updates - config.warmup_updates, 1), 1.0)
    factors = {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 * (1.0 + math.cos(math.pi * share))}
    return config.learning_rate * factors[config.schedule]


class ScheduledAdamW:
    """Updates the parameters of one module.

    Attributes:
        num_updates: Updates so far, skipped ones included; the schedule goes by it.
        num_skipped: Updates whose gradient was not finite, since this object was made.

    Args:
        module: Sharded or not; its parameters must be final (an optimizer holds on to them).
        config: Learning rate, schedule, clipping.
        total_updates: Updates of the whole run, for the schedule.
    """

    def __init__(self, module: nn.Module, config: OptimizerConfig, *, total_updates: int) -> None:
        self.module = module
        self.config = config
        self.total_updates = total_updates
        self.num_updates = 0
        self.num_skipped = 0
        self.adam = torch.optim.AdamW(
            module.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )

    def step(self) -> float:
        """Clips the accumulated gradients, updates the parameters and clears the gradients.

        An update whose gradient is not finite is skipped, on every rank alike, since the norm is global.

        Returns:
            The global gradient norm before clipping.
        """
        norm = full_tensor(nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)).item()
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(self.config, self.num_updates, self.total_updates)
        if math.isfinite(norm):
            self.adam.step()
        else:
            self.num_skipped += 1
        self.adam.zero_grad(set_to_none=True)
        self.num_updates += 1
        return norm
