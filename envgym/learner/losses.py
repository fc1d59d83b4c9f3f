"""The clipped policy loss and the clipped value loss, how they are aggregated, and metrics that add up.

From a loss per token to one scalar so that splitting the batch never changes the gradient: see `aggregate`. Metrics are
float64 scalar tensors, detached. Keys ending in `_sum` are sums over valid tokens, `num_tokens` is how many there were,
keys ending in `_max` are maxima (0 when there was no token). All-reduce sums and `num_tokens` with SUM, maxima with
MAX, and only then divide: a mean of means is wrong when counts differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from envgym.config import PPOClipLossConfig
from envgym.learner.kl import kl_estimate

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def check_token_tensors(mask: Tensor, mask_name: str, /, **tensors: Tensor) -> None:
    """Raises ValueError unless `mask` is bool [B, T] and every tensor is float32 or float64 [B, T] like it."""
    if mask.dtype != torch.bool or mask.ndim != 2:
        raise ValueError(
            f"{mask_name} must be a bool tensor of shape [B, T], got {mask.dtype} {list(mask.shape)}. "
            f"Convert it with {mask_name}.bool()."
        )
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}. Cast it with {name}.float().")
        if tensor.shape != mask.shape:
            raise ValueError(
                f"{name} must have the shape of {mask_name}, {list(mask.shape)}, got {list(tensor.shape)}. "
                f"Pad both to the same [B, T]."
            )


def check_integers(name: str, tensor: Tensor, shape: torch.Size) -> None:
    """Raises ValueError unless the tensor holds integers and has this shape."""
    if tensor.shape != shape or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be integers {list(shape)}, got {tensor.dtype} {list(tensor.shape)}.")


def aggregate(
    per_token: Tensor,
    loss_mask: Tensor,
    *,
    aggregation: Aggregation,
    num_tokens: Tensor | float | None = None,
    num_sequences: Tensor | float | None = None,
    norm_length: float | None = None,
) -> Tensor:
    """The scalar loss of this (micro-)batch; the sum over all micro-batches and ranks is the loss of the whole batch.

    With x the loss per token, m the mask, n_b = sum_t m_bt and N = num_sequences:

        token-mean                sum_b sum_t m x / num_tokens                    DAPO, 2503.14476 section 3.3
        seq-mean-token-sum        sum_b sum_t m x / N                             the policy gradient as written
        seq-mean-token-mean       sum_b (sum_t m x / n_b) / N                     GRPO, 2402.03300 section 4.1
        seq-mean-token-sum-norm   sum_b sum_t m x / (N * norm_length)             Dr.GRPO, 2503.20783 section 3.2

    `num_tokens` and `num_sequences` are the counts of the **whole optimizer batch on all ranks**: pass them whenever
    the batch is split, and add the losses of the micro-batches (no division by their number). They default to the
    counts of the given tensors, which is right only when these are the whole batch. A data-parallel wrapper that
    averages gradients over D ranks (FSDP's default) divides once more: multiply the loss by D, or set its divide factor
    to 1. A row is one sequence; a row may go to any micro-batch but must not be cut.

    Args:
        per_token: float32 or float64 [B, T]. What it holds where the mask is false (NaN and inf too) changes nothing,
            provided that it was computed from inputs that are finite there (`policy_loss` sees to that).
        loss_mask: bool [B, T].
        num_tokens: valid tokens of the whole batch. Default: of this one. Below 1 counts as 1.
        num_sequences: sequences with at least one valid token in the whole batch. Default: of this one.
        norm_length: tokens, > 0, the constant length of `seq-mean-token-sum-norm` (usually the longest a trajectory may
            be); it must be the same for every micro-batch. Default: the largest n_b of this batch, never the padded
            width. Ignored by the other modes.

    Returns:
        Scalar, dtype of `per_token`. With no valid token it is 0 and still has a graph (all gradients are 0).

    Raises:
        ValueError: unknown `aggregation`, wrong rank or dtype, `norm_length` <= 0.
    """
    check_token_tensors(loss_mask, "loss_mask", per_token=per_token)
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"Unknown aggregation {aggregation!r}. Use one of {', '.join(get_args(Aggregation))}.")
    if norm_length is not None and not norm_length > 0:
        raise ValueError(f"norm_length must be > 0 tokens, got {norm_length}.")
    row_counts = loss_mask.sum(dim=1)
    row_sums = torch.where(loss_mask, per_token, 0.0).sum(dim=1)

    if aggregation == "token-mean":
        return row_sums.sum() / _denominator(num_tokens, row_counts.sum())
    sequences = _denominator(num_sequences, (row_counts > 0).sum())
    if aggregation == "seq-mean-token-sum":
        return row_sums.sum() / sequences
    if aggregation == "seq-mean-token-mean":
        return (row_sums / row_counts.clamp(min=1)).sum() / sequences
    longest = row_counts.amax() if row_counts.numel() else row_counts.sum()
    return row_sums.sum() / (sequences * _denominator(norm_length, longest))


def _denominator(given: Tensor | float | None, counted: Tensor) -> Tensor:
    """The given denominator, or the counted one when none was given; at least 1 for counts, so that 0/0 is 0."""
    if given is None:
        return counted.clamp(min=1)
    given = torch.as_tensor(given, device=counted.device)
    return torch.where(given > 0, given, torch.ones_like(given))


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
        aggregation, num_tokens, num_sequences, norm_length: see `aggregate`.
        weights: [B, T] importance weights, treated as constants; they do not enter the denominators.

    Returns:
        (loss, metrics): scalar loss with a graph (0 when nothing is valid), and those of `ratio_metrics`,
        `clip_low_sum` and `clip_high_sum` (tokens whose gradient the clip removed), `dual_clip_sum`. See the module for
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
    logprobs, proximal, advantages, weights = (
        torch.where(loss_mask, tensor, 0.0)
        for tensor in (logprobs, proximal_logprobs.detach(), advantages.detach(), weights.detach())
    )
    proximal = proximal.to(logprobs.dtype)

    ratio = (logprobs - proximal).clamp(-20.0, 20.0).exp()
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    negative = advantages < 0
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

    dual_clipped = negative & (ratio > dual_clip) if dual_clip is not None else torch.zeros_like(negative)
    return loss, ratio_metrics(logprobs, proximal, loss_mask) | {
        "clip_low_sum": (negative & (ratio < 1.0 - clip_low)).sum().double(),
        "clip_high_sum": ((advantages > 0) & (ratio > 1.0 + clip_high)).sum().double(),
        "dual_clip_sum": dual_clipped.sum().double(),
    }


@torch.no_grad()
def ratio_metrics(logprobs: Tensor, proximal_logprobs: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
    """How far the current policy is from the proximal one; arguments as in `policy_loss`.

    Returns:
        `ratio_sum`, `ratio_max`, `kl_proximal_k3_sum` (KL(proximal || current), nats), `num_tokens`.
    """
    logprobs = torch.where(loss_mask, logprobs, 0.0)
    proximal = torch.where(loss_mask, proximal_logprobs, 0.0).to(logprobs.dtype)
    ratio = (logprobs - proximal).clamp(-20.0, 20.0).exp()
    return {
        "ratio_sum": torch.where(loss_mask, ratio, 0.0).sum(dtype=torch.float64),
        "ratio_max": torch.where(loss_mask, ratio, 0.0).amax().double() if ratio.numel() else ratio.sum().double(),
        "kl_proximal_k3_sum": kl_estimate(proximal, logprobs, "k3").sum(dtype=torch.float64),
        "num_tokens": loss_mask.sum().double(),
    }


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
        values: float32 or float64 [B, T], critic output with gradient; V of the state before each action token.
        old_values: [B, T], the critic before the update.
        value_targets: [B, T].
        loss_mask: bool [B, T]; masked entries reach neither loss nor gradient.
        clip: > 0, in the unit of the values, or None for the plain squared error.
        aggregation, weights, num_tokens, num_sequences, norm_length: as in `policy_loss`.

    Returns:
        (loss, metrics): scalar loss, and `squared_error_sum` (V - G)^2, `value_clip_sum` (tokens where the clipped term
        was the larger), `num_tokens`.

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

    values, old_values, targets, weights = (
        torch.where(loss_mask, tensor, 0.0)
        for tensor in (values, old_values.detach(), value_targets.detach(), weights.detach())
    )
    squared_error = (values - targets).square()
    larger = squared_error
    clipped = torch.zeros_like(loss_mask)
    if clip is not None:
        clipped_error = (old_values + (values - old_values).clamp(-clip, clip) - targets).square()
        larger = torch.maximum(squared_error, clipped_error)
        # Inside the clip range both are equal up to rounding, so ask for a real move as well.
        clipped = ((values - old_values).abs() > clip) & (clipped_error > squared_error)
    loss = aggregate(
        0.5 * weights * larger,
        loss_mask,
        aggregation=aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        norm_length=norm_length,
    )

    return loss, {
        "squared_error_sum": squared_error.detach().sum(dtype=torch.float64),
        "value_clip_sum": clipped.sum().double(),
        "num_tokens": loss_mask.sum().double(),
    }


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss may read of a micro-batch, [B, T] each, and the counts that make its loss a part of the whole one.

    Attributes:
        logprobs: Of the current policy, nats, with a gradient; 0 off the action tokens, as all log-probabilities.
        proximal_logprobs: Of the trainer's policy before the update.
        behavior_logprobs: Of what sampled, when it sampled.
        advantages: Whitened in the scope that the config names.
        loss_mask: bool, the tokens that are trained on.
        entropy: Of the current policy at each action token, nats, with a gradient.
        turn_ids: int64, the turn of each token.
        weights: Importance weights (constants) where the config asks for them, else None; `aggregate` applies them.
        aggregation: How token losses become one number.
        num_tokens, num_sequences, norm_length: As in `envgym.learner.losses.aggregate`, of the whole minibatch on all
            ranks.
    """

    logprobs: Tensor
    proximal_logprobs: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    entropy: Tensor
    turn_ids: Tensor
    weights: Tensor | None
    aggregation: Aggregation
    num_tokens: Tensor
    num_sequences: Tensor
    norm_length: float

    def aggregate(self, per_token: Tensor) -> Tensor:
        """The scalar for a loss per token [B, T]: weighted, and exact under any split into micro-batches and ranks."""
        weighted = per_token if self.weights is None else self.weights * per_token
        return aggregate(weighted, self.loss_mask, **self.counts)

    @property
    def counts(self) -> dict[str, Any]:
        """The keyword arguments that `aggregate` and the losses of this module share."""
        names = ("aggregation", "num_tokens", "num_sequences", "norm_length")
        return {name: getattr(self, name) for name in names}


class Loss(Protocol):
    """What the policy minimises."""

    def __call__(self, inputs: LossInputs, /) -> tuple[Tensor, dict[str, Tensor]]:
        """(loss, metrics): a scalar with a graph, best made by `inputs.aggregate`, and numbers to log.

        Metrics whose names end in `_sum` are sums over valid tokens and logged as `policy/NAME`, a mean per token;
        those in `_max` are maxima and logged as they are. A micro-batch may hold no valid token; the names must be the
        same then. The learner adds the entropy bonus.
        """


class PPOClipLoss:
    """`policy_loss` as the config says.

    Args:
        config: The clips.
    """

    def __init__(self, config: PPOClipLossConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        return policy_loss(
            inputs.logprobs,
            inputs.proximal_logprobs,
            inputs.advantages,
            inputs.loss_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
            weights=inputs.weights,
            **inputs.counts,
        )
