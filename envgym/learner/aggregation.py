"""From a loss per token to one scalar, so that splitting the batch never changes the gradient."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

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
