"""The clipped policy loss and the clipped value loss, with metrics that add up across micro-batches and ranks.

Metrics are float64 scalar tensors, detached. Keys ending in `_sum` are sums over valid tokens, `num_tokens` is how many
there were, keys ending in `_max` are maxima (0 when there was no token). All-reduce sums and `num_tokens` with SUM,
maxima with MAX, and only then divide: a mean of means is wrong when counts differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envgym.learner.aggregation import Aggregation, aggregate, check_token_tensors
from envgym.learner.kl import kl_estimate


def policy_loss(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    aggregation: Aggregation,
    weights: Tensor | None = None,
    num_tokens: Tensor | float | None = None,
    num_sequences: Tensor | float | None = None,
    norm_length: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The PPO-clip loss of a (micro-)batch and its metrics.

        ratio = exp(clamp(logprob - proximal_logprob, -20, 20))
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
        loss  = min(loss, -dual_clip * A)                     where A < 0, if dual_clip is set
        loss  = weight * loss                                 if weights are given, then `aggregate`

    Sources: PPO, 1707.06347 eq. 7; clip-higher (clip_high > clip_low), DAPO, 2503.14476 section 3.1; dual clip,
    1912.09729 section 3.3; weights, truncated importance sampling (`importance.tis_weights`).

    Args:
        logprobs: float32 or float64 [B, T], nats, of the current policy. The only argument that receives a gradient.
        proximal_logprobs: [B, T], of the trainer's policy before the update.
        advantages: [B, T].
        loss_mask: bool [B, T]. Whatever the tensors hold where it is false (NaN, inf) reaches neither loss nor
            gradient.
        clip_low, clip_high: >= 0.
        dual_clip: > 1, or None for off.
        aggregation, num_tokens, num_sequences, norm_length: see `aggregate`; give the global counts when the batch is
            split into micro-batches or ranks.
        weights: [B, T] importance weights, treated as constants; they do not enter the denominators.

    Returns:
        (loss, metrics): scalar loss with a graph (0 when nothing is valid), and `ratio_sum`, `ratio_max`,
        `clip_low_sum` and `clip_high_sum` (tokens whose gradient the clip removed), `dual_clip_sum`,
        `kl_proximal_k1_sum` and `kl_proximal_k3_sum` (KL(proximal || current), nats), `num_tokens`. See the module for
        how to combine them.

    Raises:
        ValueError: wrong rank, dtype or shape; a clip below 0; dual_clip <= 1; unknown aggregation.
    """
    if weights is None:
        weights = torch.ones_like(advantages)
    check_token_tensors(
        loss_mask,
        "loss_mask",
        logprobs=logprobs,
        proximal_logprobs=proximal_logprobs,
        advantages=advantages,
        weights=weights,
    )
    if not (clip_low >= 0 and clip_high >= 0):
        raise ValueError(f"clip_low and clip_high must be >= 0, got {clip_low} and {clip_high}.")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be > 1 (3 is usual) or None for off, got {dual_clip}.")

    # Masked entries become 0 before any arithmetic: a NaN that meets a zero gradient later would be NaN again.
    logprobs = torch.where(loss_mask, logprobs, 0.0)
    proximal = torch.where(loss_mask, proximal_logprobs, 0.0).detach().to(logprobs.dtype)
    advantages = torch.where(loss_mask, advantages, 0.0).detach()
    weights = torch.where(loss_mask, weights, 0.0).detach()

    ratio = (logprobs - proximal).clamp(-20.0, 20.0).exp()
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    negative = loss_mask & (advantages < 0)
    if dual_clip is not None:
        per_token = torch.where(negative, torch.minimum(per_token, -dual_clip * advantages), per_token)
    loss = aggregate(
        weights * per_token,
        loss_mask,
        aggregation=aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        norm_length=norm_length,
    )

    with torch.no_grad():
        positive = loss_mask & (advantages > 0)
        dual_clipped = negative & (ratio > dual_clip) if dual_clip is not None else torch.zeros_like(negative)
        metrics = {
            "ratio_sum": _masked_sum(ratio, loss_mask),
            "ratio_max": _masked_max(ratio, loss_mask),
            "clip_low_sum": (negative & (ratio < 1.0 - clip_low)).sum().double(),
            "clip_high_sum": (positive & (ratio > 1.0 + clip_high)).sum().double(),
            "dual_clip_sum": dual_clipped.sum().double(),
            "kl_proximal_k1_sum": _masked_sum(kl_estimate(proximal, logprobs, "k1"), loss_mask),
            "kl_proximal_k3_sum": _masked_sum(kl_estimate(proximal, logprobs, "k3"), loss_mask),
            "num_tokens": loss_mask.sum().double(),
        }
    return loss, metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    value_targets: Tensor,
    loss_mask: Tensor,
    *,
    clip: float | None = None,
    aggregation: Aggregation,
    weights: Tensor | None = None,
    num_tokens: Tensor | float | None = None,
    num_sequences: Tensor | float | None = None,
    norm_length: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The squared-error loss of the critic, optionally clipped around its old prediction, and its metrics.

        loss = .5 * max((V - G)^2, (V_clip - G)^2)       V_clip = V_old + clip(V - V_old, -clip, clip)

    Source: PPO's value clipping, "Implementation Matters in Deep RL", 2005.12729, section 3.

    Args:
        values: float32 or float64 [B, T], critic output with gradient; V of the state *before* each action token.
        old_values: [B, T], the critic before the update.
        value_targets: [B, T].
        loss_mask: bool [B, T]; masked entries reach neither loss nor gradient.
        clip: > 0, in the unit of the values, or None for the plain squared error.
        aggregation, weights, num_tokens, num_sequences, norm_length: as in `policy_loss`.

    Returns:
        (loss, metrics): scalar loss, and `value_sum`, `value_target_sum`, `squared_error_sum` (V - G)^2,
        `abs_error_max`, `value_clip_sum` (tokens where the clipped term was the larger), `num_tokens`.

    Raises:
        ValueError: wrong rank, dtype or shape; clip <= 0; unknown aggregation.
    """
    if weights is None:
        weights = torch.ones_like(value_targets)
    check_token_tensors(
        loss_mask, "loss_mask", values=values, old_values=old_values, value_targets=value_targets, weights=weights
    )
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be > 0 or None for off, got {clip}.")

    values = torch.where(loss_mask, values, 0.0)
    old_values = torch.where(loss_mask, old_values, 0.0).detach()
    targets = torch.where(loss_mask, value_targets, 0.0).detach()
    weights = torch.where(loss_mask, weights, 0.0).detach()

    squared_error = (values - targets).square()
    larger = squared_error
    clipped = torch.zeros_like(loss_mask)
    if clip is not None:
        clipped_error = (old_values + (values - old_values).clamp(-clip, clip) - targets).square()
        larger = torch.maximum(squared_error, clipped_error)
        # Inside the clip range both are equal up to rounding, so ask for a real move as well.
        clipped = loss_mask & ((values - old_values).abs() > clip) & (clipped_error > squared_error)
    loss = aggregate(
        0.5 * weights * larger,
        loss_mask,
        aggregation=aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        norm_length=norm_length,
    )

    with torch.no_grad():
        metrics = {
            "value_sum": _masked_sum(values, loss_mask),
            "value_target_sum": _masked_sum(targets, loss_mask),
            "squared_error_sum": _masked_sum(squared_error, loss_mask),
            "abs_error_max": _masked_max((values - targets).abs(), loss_mask),
            "value_clip_sum": clipped.sum().double(),
            "num_tokens": loss_mask.sum().double(),
        }
    return loss, metrics


def _masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over valid tokens, float64 scalar."""
    return torch.where(mask, x, 0.0).sum(dtype=torch.float64)


def _masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Maximum over valid tokens of a tensor that is never negative, float64 scalar; 0 when there is none."""
    return torch.where(mask, x, 0.0).amax().double() if x.numel() else x.sum().double()
