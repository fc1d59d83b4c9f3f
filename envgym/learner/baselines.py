"""Advantages of whole trajectories without a critic: the reward against others of the same prompt or batch."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from envgym.learner.losses import check_integers

BaselineKind = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp"]


@torch.no_grad()
def group_advantages(rewards: Tensor, group_ids: Tensor, kind: BaselineKind) -> Tensor:
    """One advantage per trajectory; broadcast it over the trajectory's action tokens.

    With g the group of trajectory i, n its size, mean and std over the group (std over n, not n-1):

        grpo           (r_i - mean_g) / (std_g + 1e-8)                        DeepSeekMath, 2402.03300 section 4.1
        dr_grpo         r_i - mean_g                                          Liu et al., 2503.20783 section 3.2
        rloo            r_i - mean of the others = n / (n-1) * (r_i - mean_g) Ahmadian et al., 2402.14740 section 3.3
        reinforce_pp   (r_i - mean) / (std + 1e-8), over the whole batch      Hu et al., 2501.03262 (the plain form; its
                       "baseline" variant, which subtracts the group mean first, is not this one)

    A group of one has advantage 0 (no baseline can be had from it); for `reinforce_pp` the batch is the group. Rewards
    that are all equal give exactly 0, not rounding noise divided by eps. Every sum is local: give all trajectories of a
    group at once, and for `reinforce_pp` those of all ranks.

    Args:
        rewards: float32 or float64 [N], return of each trajectory.
        group_ids: integer [N], any labels; trajectories with one label share a prompt (environment id and seed).
        kind: "grpo", "dr_grpo", "rloo" or "reinforce_pp".

    Returns:
        [N], dtype of `rewards`; accumulated in float64.

    Raises:
        ValueError: wrong rank, dtype or shape; a reward that is not finite; unknown kind.
    """
    if rewards.ndim != 1 or rewards.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"rewards must be float32 or float64 [N], got {rewards.dtype} {list(rewards.shape)}.")
    check_integers("group_ids", group_ids, rewards.shape)
    if kind not in get_args(BaselineKind):
        raise ValueError(f"Unknown baseline {kind!r}. Use one of {', '.join(get_args(BaselineKind))}.")
    if not bool(rewards.isfinite().all()):
        raise ValueError("rewards must be finite. Leave failed episodes out instead of giving them a NaN reward.")

    groups = torch.zeros_like(group_ids) if kind == "reinforce_pp" else group_ids
    _, index, sizes = groups.unique(return_inverse=True, return_counts=True)
    exact = rewards.double()
    num_groups = sizes.numel()

    def group_sum(x: Tensor) -> Tensor:
        return exact.new_zeros(num_groups).index_add_(0, index, x)

    size = sizes.double()[index]
    mean = (group_sum(exact) / sizes)[index]
    centred = exact - mean
    std = (group_sum(centred.square()) / sizes).sqrt()[index]
    # Equal rewards leave a rounding residue in `centred`; a spread below 1e-12 of the mean is that residue.
    centred = torch.where(std > 1e-12 * mean.abs(), centred, 0.0)
    if kind == "rloo":
        centred = centred * size / (size - 1).clamp(min=1)
    elif kind != "dr_grpo":
        centred = centred / (std + 1e-8)
    return centred.to(rewards.dtype)
