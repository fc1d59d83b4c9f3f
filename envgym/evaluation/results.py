"""What an evaluation found out, computed from trajectories."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgym.evaluation.metrics import clustered_standard_error, pass_at_k, pass_hat_k
from envgym.evaluation.rows import OVERALL, plain_table
from envgym.evaluation.success import reporting, verdict
from envgym.types import Trajectory

__all__ = ["OVERALL", "EnvironmentReport", "Evaluation", "TokenUsage", "summarise"]

_LISTED_FAILURES = 5


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of an episode as the agent counted them, for agents whose tokens are not in the trajectory.

    Attributes:
        prompt_tokens: Tokens of the prompts; each turn's whole prompt counts.
        action_tokens: Tokens the model has written.
    """

    prompt_tokens: int = 0
    action_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """How an agent did in one environment. Failed episodes are counted and otherwise left out.

    A task is an environment and a seed; the attempts at it are one cluster of the standard errors. Where no episode has
    finished, scores, means and shares are None. As a string it is a table.

    Attributes:
        env_id: The environment; "overall" in a report over several.
        agent: Name of the agent.
        episodes: Episodes that finished.
        failed: Episodes that an error ended; in none of the other numbers.
        success: Share of successes, where the environment has a notion of success; see `evaluation.success`.
        success_error: Standard error of it, clustered by task.
        mean_return: Mean undiscounted sum of rewards of an episode.
        return_error: Standard error of it, clustered by task.
        reward_per_turn: Sum of rewards over sum of turns.
        components: Mean sum of each reward component of an episode.
        endings: Share of each way an episode ended: "terminated", or the reason of the truncation.
        turns: Mean number of turns.
        action_tokens: Mean number of sampled tokens; 0 for agents without tokens.
        action_errors: Mean number of turns whose action was in error.
        tasks: Tasks with a finished episode.
        judged: Finished episodes of environments with a notion of success.
        component_errors: Standard error of each component, clustered by task.
        terminated: Share of the finished episodes that the task itself ended.
        truncated: Share of the finished episodes that were cut.
        failed_share: Share of all episodes that an error ended.
        failures: The commonest errors, and how many episodes each ended.
        pass_at_k: Probability that at least one of k attempts at a task succeeds, by k: `metrics.pass_at_k` over the
            judged attempts, averaged over the tasks that have k of them.
        pass_at_k_error: Standard error of each.
        pass_hat_k: Probability that all of k attempts at a task succeed, by k.
        pass_hat_k_error: Standard error of each.
        prompt_tokens: Mean number of prompt tokens, each turn's whole prompt counted; 0 for agents without tokens.
        seconds: Mean seconds of an episode, spent in the agent and in `env.step`. Equal reports may differ in it.
    """

    env_id: str
    agent: str
    episodes: int
    failed: int
    success: float | None
    success_error: float | None
    mean_return: float | None
    return_error: float | None
    reward_per_turn: float | None
    components: dict[str, float]
    endings: dict[str, float]
    turns: float | None
    action_tokens: float | None
    action_errors: float | None
    tasks: int = 0
    judged: int = 0
    component_errors: dict[str, float] = field(default_factory=dict)
    terminated: float | None = None
    truncated: float | None = None
    failed_share: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    pass_at_k: dict[int, float] = field(default_factory=dict)
    pass_at_k_error: dict[int, float] = field(default_factory=dict)
    pass_hat_k: dict[int, float] = field(default_factory=dict)
    pass_hat_k_error: dict[int, float] = field(default_factory=dict)
    prompt_tokens: float | None = None
    seconds: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("pass_at_k", "pass_at_k_error", "pass_hat_k", "pass_hat_k_error"):
            # JSON has turned the numbers into strings.
            object.__setattr__(self, name, {int(k): value for k, value in getattr(self, name).items()})

    def metrics(self) -> dict[str, float]:
        """The numbers by name, for logs; those that are None, and what is measured in seconds, are not among them."""
        scores = {
            "return": self.mean_return,
            "reward_per_turn": self.reward_per_turn,
            "turns": self.turns,
            "action_tokens": self.action_tokens,
            "action_errors": self.action_errors,
            "failed": float(self.failed),
            "success": self.success,
        }
        flat = {name: value for name, value in scores.items() if value is not None}
        for k in self.pass_at_k:
            if k > 1:  # for k = 1 both are the share of successes
                flat |= {f"pass@{k}": self.pass_at_k[k], f"pass^{k}": self.pass_hat_k[k]}
        flat |= {f"component/{name}": value for name, value in self.components.items()}
        return flat | {f"ending/{name}": share for name, share in self.endings.items()}

    def as_dict(self) -> dict[str, Any]:
        """All fields; `EnvironmentReport(**report.as_dict())` is an equal report, also after a way through JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return plain_table(self.agent, {self.env_id: self})


class Evaluation(dict[str, EnvironmentReport]):
    """Reports by environment id, in the order in which the environments were given. As a string it is a table.

    Attributes:
        overall: The report over all episodes of all environments.
    """

    def __init__(self, reports: dict[str, EnvironmentReport], overall: EnvironmentReport) -> None:
        super().__init__(reports)
        self.overall = overall

    def columns(self) -> dict[str, EnvironmentReport]:
        """What a table shows side by side: the reports, and the overall one where there are several."""
        return {**self, OVERALL: self.overall} if len(self) > 1 else dict(self)

    def __str__(self) -> str:
        return plain_table(self.overall.agent, self.columns())


def summarise(
    env_id: str, agent: str, trajectories: Sequence[Trajectory], usages: Sequence[TokenUsage | None] | None = None
) -> EnvironmentReport:
    """The report over the given episodes.

    Args:
        env_id: The environment, or `OVERALL`.
        agent: Name of the agent.
        trajectories: Finished and failed episodes in any order. Environment and seed are the cluster.
        usages: Tokens of each, in the same order, where the agent has counted them itself.

    Raises:
        ValueError: There is not one usage for each trajectory.
    """
    counted = [None] * len(trajectories) if usages is None else usages
    pairs = [(t, usage) for t, usage in zip(trajectories, counted, strict=True) if t.failure is None]
    finished = [t for t, _ in pairs]
    tokens = [_tokens(t) if usage is None else usage for t, usage in pairs]
    count = len(finished)
    judged = _judged(finished)
    successes = [float(succeeded) for _, succeeded in judged]
    returns = [t.total_reward for t in finished]
    names = sorted({name for t in finished for turn in t.turns for name in turn.reward_components})
    totals = [t.reward_components for t in finished]
    components = {name: [total.get(name, 0.0) for total in totals] for name in names}
    endings = Counter(t.ending for t in finished)
    failures = Counter(str(t.failure) for t in trajectories if t.failure is not None)
    num_turns = sum(len(t.turns) for t in finished)
    tasks = [_task(t) for t in finished]
    at_k, hat_k = _by_k(judged, pass_at_k), _by_k(judged, pass_hat_k)

    def mean(values: Sequence[float]) -> float | None:
        return math.fsum(values) / count if count else None

    return EnvironmentReport(
        env_id=env_id,
        agent=agent,
        episodes=count,
        failed=len(trajectories) - count,
        success=math.fsum(successes) / len(judged) if judged else None,
        success_error=clustered_standard_error(successes, [task for task, _ in judged]) if judged else None,
        mean_return=mean(returns),
        return_error=clustered_standard_error(returns, tasks) if count else None,
        reward_per_turn=math.fsum(returns) / num_turns if num_turns else None,
        components={name: math.fsum(values) / count for name, values in components.items()},
        endings={name: number / count for name, number in sorted(endings.items())},
        turns=mean([len(t.turns) for t in finished]),
        action_tokens=mean([used.action_tokens for used in tokens]),
        action_errors=mean([sum(turn.action_error is not None for turn in t.turns) for t in finished]),
        tasks=len(set(tasks)),
        judged=len(judged),
        component_errors={name: clustered_standard_error(values, tasks) for name, values in components.items()},
        terminated=mean([t.terminated for t in finished]),
        truncated=mean([t.truncated for t in finished]),
        failed_share=(len(trajectories) - count) / len(trajectories) if trajectories else 0.0,
        failures=dict(failures.most_common(_LISTED_FAILURES)),
        pass_at_k={k: math.fsum(values) / len(values) for k, values in at_k},
        pass_at_k_error={k: clustered_standard_error(values, range(len(values))) for k, values in at_k},
        pass_hat_k={k: math.fsum(values) / len(values) for k, values in hat_k},
        pass_hat_k_error={k: clustered_standard_error(values, range(len(values))) for k, values in hat_k},
        prompt_tokens=mean([used.prompt_tokens for used in tokens]),
        seconds=mean([math.fsum(turn.generate_s + turn.step_s for turn in t.turns) for t in finished]),
    )


def _task(trajectory: Trajectory) -> Hashable:
    return trajectory.env_id, trajectory.seed


def _tokens(trajectory: Trajectory) -> TokenUsage:
    """The same numbers from a trajectory with tokens."""
    prompt = stream = 0
    for turn in trajectory.turns:
        stream += len(turn.observation_ids)
        prompt += stream
        stream += len(turn.action_ids)
    return TokenUsage(prompt, trajectory.num_action_tokens)


def _judged(finished: Sequence[Trajectory]) -> list[tuple[Hashable, bool]]:
    """Task and verdict of every episode that has one."""
    known = reporting(finished)
    verdicts = ((_task(trajectory), verdict(trajectory, known)) for trajectory in finished)
    return [(task, succeeded) for task, succeeded in verdicts if succeeded is not None]


def _by_k(
    judged: Iterable[tuple[Hashable, bool]], estimator: Callable[[int, int, int], float]
) -> list[tuple[int, list[float]]]:
    """For k from 1 to the most attempts at a task: the estimates of all tasks with at least k attempts."""
    attempts: dict[Hashable, list[bool]] = defaultdict(list)
    for task, succeeded in judged:
        attempts[task].append(succeeded)
    most = max(map(len, attempts.values()), default=0)
    return [(k, [estimator(len(a), sum(a), k) for a in attempts.values() if len(a) >= k]) for k in range(1, most + 1)]
