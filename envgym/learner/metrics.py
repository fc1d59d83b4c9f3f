"""The metrics of an iteration: sums and maxima over micro-batches and ranks, divided only at the end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from envgym.learner.batch import ENDINGS, Batch
from envgym.learner.diagnostics import explained_variance_from_stats, explained_variance_stats
from envgym.learner.importance import effective_sample_size, mismatch_metrics

MAX_TURN_GROUPS = 8
"""Explained variance is told apart for the first turns; all later ones share the last group."""


class MetricSums:
    """Accumulates sums (and, for keys that end in `_max`, maxima) and reduces them over all ranks.

    Every rank must add the same keys.

    Args:
        device: Where the backend communicates from.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._totals: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Adds the metrics of one micro-batch."""
        for name, value in metrics.items():
            value = torch.as_tensor(value, dtype=torch.float64, device=self._device).detach()
            before = self._totals.get(name)
            if before is None:
                self._totals[name] = value.clone()
            else:
                self._totals[name] = torch.maximum(before, value) if name.endswith("_max") else before + value

    def totals(self) -> dict[str, float]:
        """What was added on this rank alone."""
        return {name: float(value) for name, value in self._totals.items()}

    def reduce(self) -> dict[str, float]:
        """The totals over all ranks; a collective."""
        reduced: dict[str, float] = {}
        for maxima, op in ((False, dist.ReduceOp.SUM), (True, dist.ReduceOp.MAX)):
            names = sorted(name for name in self._totals if name.endswith("_max") == maxima)
            if names:
                totals = torch.stack([self._totals[name] for name in names])
                dist.all_reduce(totals, op=op)
                reduced.update(zip(names, totals.tolist(), strict=True))
        return reduced


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over all ranks, as a new tensor."""
    total = values.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


def batch_metrics(batch: Batch, device: torch.device, *, critic: bool = True) -> dict[str, float]:
    """Diagnostics of a batch before it is used: critic fit, mismatch, values, advantages and lengths.

    Args:
        batch: Scored, with advantages and value targets.
        device: Where the backend communicates from.
        critic: Whether there is one to report on.

    Returns:
        Metrics by name, the same on every rank; groups without tokens are left out.
    """
    mask = batch.action_mask
    sums = MetricSums(device)
    mismatch = mismatch_metrics(batch.proximal_logprobs, batch.behavior_logprobs, mask)
    sums.add({f"mismatch_{name}": value for name, value in mismatch.items()})
    sums.add(
        {
            "value_sum": torch.where(mask, batch.values, 0.0).sum(),
            "target_sum": torch.where(mask, batch.value_targets, 0.0).sum(),
            "bootstrap_sum": batch.bootstrap_value.sum(),
            "advantage_abs_max": batch.advantages.abs().amax() if batch.advantages.numel() else 0.0,
            "tokens": mask.sum(),
            "all_tokens": batch.lengths.sum(),
            "truncated": (~batch.terminated).sum(),
        }
    )
    total = sums.reduce()
    tokens = max(total["tokens"], 1.0)
    names = ("ratio_sum", "ratio_squared_sum")
    effective = effective_sample_size(
        {name: torch.tensor(total[f"mismatch_{name}"], dtype=torch.float64) for name in names}
    )
    metrics = {
        "mismatch/mean_abs": total["mismatch_abs_diff_sum"] / tokens,
        "mismatch/max_abs": total["mismatch_abs_diff_max"],
        "mismatch/max_ratio": total["mismatch_ratio_max"],
        "mismatch/effective_sample_share": float(effective) / tokens,
        "policy/advantage_max": total["advantage_abs_max"],
        "batch/action_tokens": total["tokens"],
        "batch/tokens": total["all_tokens"],
    }
    if critic:
        metrics |= _explained_variance(batch) | {
            "critic/value_mean": total["value_sum"] / tokens,
            "critic/target_mean": total["target_sum"] / tokens,
            "critic/bootstrap_mean": total["bootstrap_sum"] / max(total["truncated"], 1.0),
        }
    return metrics


def _explained_variance(batch: Batch) -> dict[str, float]:
    turns = batch.turn_ids.clamp(max=MAX_TURN_GROUPS - 1)
    groupings: list[tuple[list[str], Tensor | None]] = [
        ([""], None),
        ([f"_turn_{n}" + ("+" if n == MAX_TURN_GROUPS - 1 else "") for n in range(MAX_TURN_GROUPS)], turns),
        ([f"_{ending}" for ending in ENDINGS], batch.endings[:, None].expand_as(batch.turn_ids)),
    ]
    metrics: dict[str, float] = {}
    for names, group_ids in groupings:
        stats = explained_variance_stats(
            batch.value_targets, batch.values, batch.action_mask, group_ids=group_ids, num_groups=len(names)
        )
        stats = all_reduce_sum(stats)
        for name, row, value in zip(names, stats, explained_variance_from_stats(stats), strict=True):
            if row[0] > 0:
                metrics[f"critic/explained_variance{name}"] = float(value)
    return metrics


_LOGGED_AS = {
    "policy/ratio": "policy/ratio_mean",
    "policy/clip_low": "policy/clip_fraction_low",
    "policy/clip_high": "policy/clip_fraction_high",
    "policy/dual_clip": "policy/dual_clip_fraction",
    "policy/kl_proximal_k3": "policy/kl_proximal",
    "critic/value_clip": "critic/clip_fraction",
}
"""What means are called, where it is not what the sum is called."""


def update_metrics(sums: MetricSums, num_updates: int) -> dict[str, float]:
    """What an iteration's updates have to say: of sums the means per token, of everything else over the updates.

    Args:
        sums: The (already reduced) metrics of each update, added up on this rank.
        num_updates: How many there were.
    """
    total = sums.totals()
    metrics = {"policy/updates": float(num_updates)}
    tokens = {part: max(total.pop(f"{part}/num_tokens", 0.0), 1.0) for part in ("policy", "critic")}
    for name, value in total.items():
        if name.endswith("_sum"):
            stem = name.removesuffix("_sum")
            metrics[_LOGGED_AS.get(stem, stem)] = value / tokens[name.partition("/")[0]]
        else:
            metrics[name] = value if name.endswith("_max") else value / num_updates
    if "policy/clip_low_sum" in total:
        metrics["policy/clip_fraction"] = metrics["policy/clip_fraction_low"] + metrics["policy/clip_fraction_high"]
    if "critic/squared_error" in metrics:
        metrics["critic/rmse"] = metrics.pop("critic/squared_error") ** 0.5
    return metrics
