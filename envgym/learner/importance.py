"""Weights that correct for tokens sampled by the server under slightly other probabilities than the trainer's.

Here ratio = exp(clamp(proximal - behavior, -20, 20)): what the trainer gave the token before the update, over what the
serving engine gave it when it was sampled. The two differ by dtype, kernels and stale weights. Weights are constants
(no gradient) of dtype and shape of `proximal_logprobs`, 0 where the mask is false; hand them to
`policy_loss(weights=...)`. The level says over what the ratio is taken, with d = proximal - behavior on the valid
tokens of a row:

    token       exp(d_t)               sequence    exp(sum_t d_t)               geometric   exp(mean_t d_t)

Sequence and geometric give every valid token of the row the same weight.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from envgym.learner.losses import check_token_tensors

Level = Literal["token", "sequence", "geometric"]


@torch.no_grad()
def tis_weights(
    proximal_logprobs: Tensor, behavior_logprobs: Tensor, mask: Tensor, *, cap: float = 2.0, level: Level = "token"
) -> Tensor:
    """Truncated importance weights min(ratio, cap).

    Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025 (cap = 2); the
    truncation itself is Ionides, 2008.

    Args:
        proximal_logprobs, behavior_logprobs: float32 or float64 [B, T], nats.
        mask: bool [B, T]; what the others hold where it is false changes nothing.
        cap: > 0, the largest weight.
        level: "token", "sequence" or "geometric".

    Returns:
        [B, T] weights in [0, cap].

    Raises:
        ValueError: wrong rank, dtype or shape; unknown level; cap <= 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be > 0 (2 is usual), got {cap}.")
    ratio = _ratio(proximal_logprobs, behavior_logprobs, mask, level)
    return torch.where(mask, ratio.clamp(max=cap), 0.0)


@torch.no_grad()
def icepop_weights(
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    mask: Tensor,
    *,
    low: float = 0.5,
    high: float = 5.0,
    level: Level = "token",
) -> Tensor:
    """IcePop weights: the ratio inside [low, high], 0 outside, so that tokens the two engines disagree on are left out.

    Source: Zhao et al. (Ant Group), "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop", 2025; the
    same method in Ring-1T, 2510.18855. The defaults are theirs; both bounds are inclusive.

    Args:
        proximal_logprobs, behavior_logprobs, mask, level: as in `tis_weights`.
        low, high: 0 <= low <= high.

    Returns:
        [B, T] weights, each 0 or in [low, high]. Tokens left out still count in the denominator of the loss.

    Raises:
        ValueError: wrong rank, dtype or shape; unknown level; bounds out of order.
    """
    if not 0 <= low <= high:
        raise ValueError(f"low and high must satisfy 0 <= low <= high, got {low} and {high}.")
    ratio = _ratio(proximal_logprobs, behavior_logprobs, mask, level)
    return torch.where(mask & (ratio >= low) & (ratio <= high), ratio, 0.0)


@torch.no_grad()
def mismatch_metrics(proximal_logprobs: Tensor, behavior_logprobs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far the serving engine is from the trainer, as numbers that add up across micro-batches and ranks.

    Returns:
        float64 scalars. `abs_diff_sum` (of |proximal - behavior|, nats), `ratio_sum`, `ratio_squared_sum` and
        `num_tokens` are to be all-reduced with SUM; `abs_diff_max` and `ratio_max` with MAX (0 when no token is valid).
        The mean difference is abs_diff_sum / num_tokens; the effective sample size comes from `effective_sample_size`.

    Raises:
        ValueError: wrong rank, dtype or shape.
    """
    check_token_tensors(mask, "mask", proximal_logprobs=proximal_logprobs, behavior_logprobs=behavior_logprobs)
    difference = proximal_logprobs[mask].double() - behavior_logprobs[mask].double()
    ratio = difference.clamp(-20.0, 20.0).exp()
    zero = difference.new_zeros(1)
    return {
        "abs_diff_sum": difference.abs().sum(),
        "abs_diff_max": torch.cat([difference.abs(), zero]).amax(),
        "ratio_sum": ratio.sum(),
        "ratio_squared_sum": ratio.square().sum(),
        "ratio_max": torch.cat([ratio, zero]).amax(),
        "num_tokens": mask.sum().double(),
    }


def effective_sample_size(metrics: dict[str, Tensor]) -> Tensor:
    """Kish's effective sample size (sum w)^2 / sum w^2 of the (all-reduced) `mismatch_metrics`, in tokens.

    It equals `num_tokens` when all ratios are equal and tends to 1 when one token outweighs the rest; 0 without tokens.
    """
    squares = metrics["ratio_squared_sum"]
    return torch.where(squares > 0, metrics["ratio_sum"].square() / torch.where(squares > 0, squares, 1.0), 0.0)


def _ratio(proximal_logprobs: Tensor, behavior_logprobs: Tensor, mask: Tensor, level: Level) -> Tensor:
    """exp of the log-ratio at the given level, [B, T] (rows are constant above token level); finite everywhere."""
    check_token_tensors(mask, "mask", proximal_logprobs=proximal_logprobs, behavior_logprobs=behavior_logprobs)
    if level not in get_args(Level):
        raise ValueError(f"Unknown level {level!r}. Use one of {', '.join(get_args(Level))}.")
    proximal = torch.where(mask, proximal_logprobs, 0.0)
    difference = proximal - torch.where(mask, behavior_logprobs, 0.0).to(proximal.dtype)
    if level != "token":
        total = difference.sum(dim=1, keepdim=True)
        if level == "geometric":
            total = total / mask.sum(dim=1, keepdim=True).clamp(min=1)
        difference = total.expand_as(difference)
    return difference.clamp(-20.0, 20.0).exp()
