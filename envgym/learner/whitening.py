"""Advantages with mean 0 and standard deviation 1 over the whole optimizer batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def whiten(x: Tensor, mask: Tensor, *, group: dist.ProcessGroup | None = None, eps: float = 1e-8) -> Tensor:
    """`x` centred and scaled over the valid tokens of every rank; zeros elsewhere.

        mean = sum(x) / n          std = sqrt(sum((x - mean)^2) / n)          out = (x - mean) / (std + eps)

    Two passes in float64: all-reduce (n, sum x), then all-reduce sum (x - mean)^2. The one-pass form E[x^2] - E[x]^2
    loses every digit when the mean is large against the spread.

    Collectives: when torch.distributed is initialised both all-reduces run over `group`, or over the default group when
    it is None. Every rank of the group must call this, also one that has no valid token (it adds zeros); a rank that
    skipped the call would leave the others hanging (miles#3229). Without torch.distributed nothing is communicated. For
    the statistics of this rank alone pass a group of this rank only.

    Args:
        x: float32 or float64, any shape, usually advantages [B, T]. NaN and inf are allowed where the mask is false.
        mask: bool, shape of `x`.
        group: the ranks that share the batch.
        eps: >= 0, added to the standard deviation.

    Returns:
        Shape and dtype of `x`, no gradient. All zeros when there is no valid token, only one, or no spread (a spread
        below 1e-12 of the mean is rounding, and counts as none).

    Raises:
        ValueError: wrong dtype or shape, negative `eps`.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}. Cast it with x.float().")
    if mask.dtype != torch.bool or mask.shape != x.shape:
        raise ValueError(
            f"mask must be bool with the shape of x, {list(x.shape)}, got {mask.dtype} {list(mask.shape)}. "
            "Convert it with mask.bool()."
        )
    if not eps >= 0:
        raise ValueError(f"eps must be >= 0, got {eps}.")

    valid = x[mask].double()
    totals = torch.stack([mask.sum().double(), valid.sum()])
    _all_reduce(totals, group)
    count = totals[0].clamp(min=1.0)
    mean = totals[1] / count

    centred = valid - mean
    squares = centred.square().sum()
    _all_reduce(squares, group)
    std = (squares / count).sqrt()

    out = torch.zeros_like(x)
    has_spread = std > 1e-12 * mean.abs()
    out[mask] = torch.where(has_spread | std.isnan(), centred / (std + eps), 0.0).to(x.dtype)
    return out


def _all_reduce(tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Sums `tensor` in place over the ranks of `group`; does nothing when torch.distributed is not initialised."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
