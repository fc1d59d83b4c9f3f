"""What an evaluation found out, computed from trajectories."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envgym.evaluation.metrics import clustered_standard_error
from envgym.types import Trajectory


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """How an agent did in one environment. Failed episodes are counted and otherwise left out.

    Attributes:
        env_id: The environment.
        agent: Name of the agent.
        episodes: Episodes that finished.
        failed: Episodes that an error ended; in none of the other numbers.
        success: Share of successes among the episodes that say so; None where none does.
        success_error: Standard error of it, clustered by seed.
        mean_return: Mean undiscounted sum of rewards of an episode.
        return_error: Standard error of it, clustered by seed.
        reward_per_turn: Sum of rewards over sum of turns.
        components: Mean sum of each reward component of an episode.
        endings: Share of each way an episode ended.
        turns: Mean number of turns.
        action_tokens: Mean number of sampled tokens; 0 for agents without tokens.
        action_errors: Mean number of turns whose action was in error.
    """

    env_id: str
    agent: str
    episodes: int
    failed: int
    success: float | None
    success_error: float | None
    mean_return: float
    return_error: float
    reward_per_turn: float
    components: dict[str, float]
    endings: dict[str, float]
    turns: float
    action_tokens: float
    action_errors: float

    def metrics(self) -> dict[str, float]:
        """The numbers by name, for logs."""
        flat = {
            "return": self.mean_return,
            "reward_per_turn": self.reward_per_turn,
            "turns": self.turns,
            "action_tokens": self.action_tokens,
            "action_errors": self.action_errors,
            "failed": float(self.failed),
        }
        if self.success is not None:
            flat["success"] = self.success
        flat |= {f"component/{name}": value for name, value in self.components.items()}
        return flat | {f"ending/{name}": share for name, share in self.endings.items()}

    def as_dict(self) -> dict[str, Any]:
        """All fields; `EnvironmentReport(**report.as_dict())` is an equal report."""
        return dataclasses.asdict(self)


def summarise(env_id: str, agent: str, trajectories: Sequence[Trajectory]) -> EnvironmentReport:
    """The report over the given episodes.

    Args:
        env_id: The environment.
        agent: Name of the agent.
        trajectories: Finished and failed episodes in any order. The seed is the cluster.
    """
    finished = [t for t in trajectories if t.failure is None]
    count = len(finished)
    judged = [t for t in finished if t.success is not None]
    successes = [float(bool(t.success)) for t in judged]
    returns = [t.total_reward for t in finished]
    names = sorted({name for t in finished for turn in t.turns for name in turn.reward_components})
    components = [t.reward_components for t in finished]
    endings = Counter(t.ending for t in finished)
    num_turns = sum(len(t.turns) for t in finished)
    seeds = [t.seed for t in finished]

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / count if count else 0.0

    return EnvironmentReport(
        env_id=env_id,
        agent=agent,
        episodes=count,
        failed=len(trajectories) - count,
        success=math.fsum(successes) / len(judged) if judged else None,
        success_error=clustered_standard_error(successes, [t.seed for t in judged]) if judged else None,
        mean_return=mean(returns),
        return_error=clustered_standard_error(returns, seeds) if count else 0.0,
        reward_per_turn=math.fsum(returns) / num_turns if num_turns else 0.0,
        components={name: mean([c.get(name, 0.0) for c in components]) for name in names},
        endings={name: number / count for name, number in sorted(endings.items())},
        turns=mean([len(t.turns) for t in finished]),
        action_tokens=mean([t.num_action_tokens for t in finished]),
        action_errors=mean([sum(turn.action_error is not None for turn in t.turns) for t in finished]),
    )
