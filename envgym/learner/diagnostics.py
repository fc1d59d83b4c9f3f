"""How much of the spread of the value targets the critic explains, overall and per group of tokens.

Stats are float64 [..., 5] = (n, sum G, sum G^2, sum E, sum E^2) with G the target and E = G - V; add them over
micro-batches, all-reduce them with SUM over ranks, and turn them into explained variances once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envgym.learner.losses import check_integers, check_token_tensors


@torch.no_grad()
def explained_variance(value_targets: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(G - V) / Var(G) over the valid tokens of these tensors.

    1: the critic is exact up to a constant; 0: no better than a constant; below 0: worse than one. Both variances are
    taken after subtracting one of the samples, so that a large common offset costs no digits.

    Args:
        value_targets: float32 or float64 [B, T], G.
        values: [B, T], V, from *before* the update that fits them to G.
        mask: bool [B, T]; what the others hold where it is false changes nothing.

    Returns:
        Scalar, dtype of `value_targets`. 0.0, never NaN, when Var(G) is 0 or no token is valid.

    Raises:
        ValueError: wrong rank, dtype or shape.
    """
    check_token_tensors(mask, "mask", value_targets=value_targets, values=values)
    targets = value_targets[mask].double()
    errors = targets - values[mask].double()
    shifted = torch.stack([targets - targets[:1], errors - errors[:1]])
    stats = _stats(shifted[0], shifted[1], torch.zeros_like(targets, dtype=torch.long), 1)
    return explained_variance_from_stats(stats)[0].to(value_targets.dtype)


@torch.no_grad()
def explained_variance_stats(
    value_targets: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    group_ids: Tensor | None = None,
    num_groups: int = 1,
) -> Tensor:
    """The sums from which explained variance is computed, one row per group.

    Args:
        value_targets, values, mask: as in `explained_variance`.
        group_ids: integer [B, T] with values in [0, num_groups) on valid tokens (turn index, kind of ending, ...);
            anything elsewhere. None puts every token into group 0.
        num_groups: rows of the result; the same on every rank.

    Returns:
        float64 [num_groups, 5]; additive over any split of the tokens. Column 0 is the number of tokens.

    Raises:
        ValueError: wrong rank, dtype or shape; a group id out of range.
    """
    check_token_tensors(mask, "mask", value_targets=value_targets, values=values)
    targets = value_targets[mask].double()
    errors = targets - values[mask].double()
    if group_ids is None:
        groups = torch.zeros_like(targets, dtype=torch.long)
    else:
        check_integers("group_ids", group_ids, mask.shape)
        groups = group_ids[mask].long()
        if bool(((groups < 0) | (groups >= num_groups)).any()):
            raise ValueError(
                f"group_ids must lie in [0, {num_groups}) on valid tokens, got {int(groups.min())} to "
                f"{int(groups.max())}. Raise num_groups or clamp the ids."
            )
    return _stats(targets, errors, groups, num_groups)


def explained_variance_from_stats(stats: Tensor) -> Tensor:
    """Explained variance of each row of (summed) stats.

    The variance is E[x^2] - E[x]^2, clamped at 0. In float64 that keeps about 16 - 2 log10(|mean| / std) digits; a
    Var(G) below 1e-12 of E[G^2] is rounding and counts as 0. Shift targets and values by one constant if yours are that
    far off.

    Args:
        stats: float64 [..., 5] from `explained_variance_stats`.

    Returns:
        float64 [...]; 0.0 where Var(G) is 0 or the group is empty (column 0 tells which), never NaN for finite stats.

    Raises:
        ValueError: the last dimension is not 5, or the dtype is not float64.
    """
    if stats.ndim < 1 or stats.shape[-1] != 5 or stats.dtype != torch.float64:
        raise ValueError(f"stats must be float64 [..., 5], got {stats.dtype} {list(stats.shape)}.")
    count = stats[..., 0].clamp(min=1.0)
    target_mean, target_square, error_mean, error_square = (stats[..., 1:] / count[..., None]).unbind(-1)
    target_variance = (target_square - target_mean.square()).clamp(min=0.0)
    error_variance = (error_square - error_mean.square()).clamp(min=0.0)
    spread = target_variance > 1e-12 * target_square
    return torch.where(spread, 1.0 - error_variance / torch.where(spread, target_variance, 1.0), 0.0)


def _stats(targets: Tensor, errors: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Sums of (1, G, G^2, E, E^2) per group from flat float64 [M] tensors."""
    columns = torch.stack([torch.ones_like(targets), targets, targets.square(), errors, errors.square()], dim=1)
    return columns.new_zeros(num_groups, 5).index_add_(0, groups, columns)
