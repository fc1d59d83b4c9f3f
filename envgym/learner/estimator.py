"""The estimator: from the rewards (and values) of a batch to advantages and value targets; a seam of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from envgym.config import GAEEstimatorConfig
from envgym.learner.gae import decoupled_gae, length_adaptive_lambda


@dataclass(frozen=True, slots=True)
class EstimatorBatch:
    """What an estimator may read of the trajectories of one rank, a row each; a rank may have none (B = 0).

    Attributes:
        rewards: [B, T], of a step on the last action token of its turn, less the KL penalty of each action token.
        values: [B, T], V of the state before each action token; None where the estimator needs no critic.
        bootstrap_value: [B], V of the state after the last action and the observation it caused, 0 if and only if the
            episode terminated; None where the estimator needs no critic.
        action_mask: bool [B, T], the sampled tokens.
        loss_mask: bool [B, T], those that are trained on.
        turn_ids: int64 [B, T], the turn of each token.
        turn_steps: int64 [B, T], environment steps completed between an action token and the next one
            (`envgym.learner.gae.turn_steps`).
        groups: int64 [B]; rows of all ranks that share a number played the same task from the same seed.
        terminated: bool [B]; the others were truncated.
    """

    rewards: Tensor
    values: Tensor | None
    bootstrap_value: Tensor | None
    action_mask: Tensor
    loss_mask: Tensor
    turn_ids: Tensor
    turn_steps: Tensor
    groups: Tensor
    terminated: Tensor

    @property
    def num_action_tokens(self) -> Tensor:
        """int64 [B]."""
        return self.action_mask.sum(dim=1)


class Estimator(Protocol):
    """Estimates how much better each action was than what was to be expected.

    Attributes:
        needs_critic: Whether it reads `values` and `bootstrap_value`; a learner whose estimator does not has no critic.
    """

    needs_critic: bool

    def __call__(self, batch: EstimatorBatch, /) -> tuple[Tensor, Tensor | None]:
        """(advantages, value targets), both like `batch.rewards` and read on action tokens only.

        A collective of all ranks, once an iteration (with `recompute_each_epoch` once an epoch). The learner whitens
        the advantages afterwards, in the scope that the config names. Targets are None where there is no critic.
        """


class GAEEstimator:
    """Generalised advantage estimation, decoupled and length-adaptive where the config says so; see `gae`.

    Args:
        config: Discount and lambdas.
    """

    needs_critic = True

    def __init__(self, config: GAEEstimatorConfig) -> None:
        self.config = config

    def __call__(self, batch: EstimatorBatch) -> tuple[Tensor, Tensor]:
        config = self.config
        assert batch.values is not None and batch.bootstrap_value is not None
        lam_policy: float | Tensor = config.gae_lambda_policy
        if config.gae_length_alpha is not None:
            lam_policy = length_adaptive_lambda(
                batch.num_action_tokens, alpha=config.gae_length_alpha, lambda_min=config.gae_lambda_min
            )
        discount: float | Tensor = config.gamma
        if config.discount_per == "turn":
            discount = config.gamma ** batch.turn_steps.double()
        return decoupled_gae(
            batch.rewards,
            batch.values,
            batch.action_mask,
            batch.bootstrap_value,
            discount=discount,
            lam_policy=lam_policy,
            lam_value=config.gae_lambda_value,
        )
