"""From a scored batch to advantages and value targets."""

from __future__ import annotations

import torch
from torch import Tensor

from envgym.config import AdvantageConfig
from envgym.learner.batch import Batch
from envgym.learner.gae import decoupled_gae, length_adaptive_lambda, turn_discounts
from envgym.learner.whitening import whiten


def estimate_advantages(batch: Batch, config: AdvantageConfig, *, rewards: Tensor) -> None:
    """Fills `batch.advantages` and `batch.value_targets`.

    Reads rewards, `values` and `bootstrap_value`. Advantages are whitened over the whole batch on all ranks where the
    scope is "batch"; the other scopes leave them raw.

    Args:
        batch: Scored by the critic.
        config: Discount, lambdas and whitening.
        rewards: [B, T] on action tokens, shaped (KL penalty) or raw.
    """
    lam_policy: float | Tensor = config.gae_lambda_policy
    if config.gae_length_alpha is not None:
        lam_policy = length_adaptive_lambda(
            batch.action_mask.sum(dim=1), alpha=config.gae_length_alpha, lambda_min=config.gae_lambda_min
        )
    discount: float | Tensor = config.gamma
    if config.discount_per == "turn":
        discount = turn_discounts(
            batch.turn_ids,
            batch.action_mask,
            gamma=config.gamma,
            mid_turn_cut=batch.mid_turn_cut,
            num_turns=batch.num_turns,
        )
    advantages, batch.value_targets = decoupled_gae(
        rewards,
        batch.values,
        batch.action_mask,
        batch.bootstrap_value,
        discount=discount,
        lam_policy=lam_policy,
        lam_value=config.gae_lambda_value,
    )
    batch.advantages = whiten(advantages, batch.loss_mask) if config.whiten == "batch" else advantages
    assert bool(torch.isfinite(batch.advantages).all()), "an advantage is not finite"
