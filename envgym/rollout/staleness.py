"""How old the weights were that sampled a batch, and what was left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envgym.types import Trajectory


def lag_metrics(trajectories: Iterable[Trajectory], *, version: int) -> dict[str, float]:
    """The lag of sampled tokens: the version that is trained now minus the version that sampled them.

    Args:
        trajectories: A batch. Tokens without a version span count as sampled by `version`.
        version: Of the weights about to be updated.

    Returns:
        Over all sampled tokens `lag_mean`, `lag_max` and `stale_share` (tokens with a lag above 0); and `mixed_turns`,
        the share of turns that more than one version sampled. All 0 when nothing was sampled.
    """
    tokens = stale = weighted = largest = turns = mixed = 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if not turn.action_ids:
                continue
            turns += 1
            mixed += len(turn.version_spans) > 1
            tokens += len(turn.action_ids)
            for span in turn.version_spans:
                lag, count = version - span.version, span.end - span.start
                weighted += lag * count
                stale += count if lag > 0 else 0
                largest = max(largest, lag)
    return {
        "lag_mean": weighted / tokens if tokens else 0.0,
        "lag_max": float(largest),
        "stale_share": stale / tokens if tokens else 0.0,
        "mixed_turns": mixed / turns if turns else 0.0,
    }


def dropped_metrics(dropped: Sequence[Trajectory]) -> dict[str, float]:
    """What was played and cannot be trained on, by length: leaving out long episodes would bias a batch to short ones.

    Args:
        dropped: Episodes that failed.

    Returns:
        `dropped` episodes, and their `dropped_turns_mean`, `dropped_turns_max` and sampled `dropped_tokens`.
    """
    turns = [len(trajectory.turns) for trajectory in dropped]
    return {
        "dropped": float(len(turns)),
        "dropped_turns_mean": sum(turns) / len(turns) if turns else 0.0,
        "dropped_turns_max": float(max(turns, default=0)),
        "dropped_tokens": float(sum(trajectory.num_action_tokens for trajectory in dropped)),
    }
