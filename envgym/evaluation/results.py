"""Reports: what an evaluation found out, computed from trajectories, and the table that shows it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgym.evaluation.metrics import clustered_standard_error, pass_at_k, pass_hat_k, reporting, verdict
from envgym.types import Trajectory

OVERALL = "overall"
"""In place of the environment's id in a report over several."""

PLAIN_WIDTH = 100
"""Characters of a line of plain text; more columns than fit go into a table of their own below."""

Row = tuple[str, list[str]]

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
        success: Share of successes, where the environment has a notion of success; see `evaluation.metrics`.
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


def report_rows(reports: Sequence[EnvironmentReport]) -> list[Row]:
    """What is shown of reports side by side: the name of each row and its cells, one for each report.

    What nobody knows, for example a score where no episode has finished, is "-".
    """
    rows: list[Row] = [("success", [_with_error(r.success, r.success_error) for r in reports])]
    for k in _shown_ks(reports):
        rows.append((f"  pass@{k}", [_with_error(r.pass_at_k.get(k), r.pass_at_k_error.get(k)) for r in reports]))
        rows.append((f"  pass^{k}", [_with_error(r.pass_hat_k.get(k), r.pass_hat_k_error.get(k)) for r in reports]))
    rows.append(("return", [_with_error(r.mean_return, r.return_error) for r in reports]))
    for name in sorted({name for r in reports for name in r.components}):
        means = [_unless_idle(r, r.components.get(name, 0.0)) for r in reports]
        errors = [r.component_errors.get(name) for r in reports]
        rows.append((f"  {name}", [_with_error(mean, error) for mean, error in zip(means, errors, strict=True)]))
    rows.append(("reward per turn", [_number(r.reward_per_turn, ".3f") for r in reports]))
    for ending in sorted({name for r in reports for name in r.endings}):
        name = ending if ending == "terminated" else f"truncated: {ending}"
        rows.append((name, [_number(_unless_idle(r, r.endings.get(ending, 0.0)), ".0%") for r in reports]))
    rows.append(("turns", [_number(r.turns, ".1f") for r in reports]))
    rows.append(("sampled tokens", [_number(r.action_tokens or None, ".1f") for r in reports]))
    if any(r.prompt_tokens for r in reports):
        rows.append(("prompt tokens", [_number(r.prompt_tokens or None, ".1f") for r in reports]))
    rows.append(("seconds", [_number(r.seconds, ".2f") for r in reports]))
    rows.append(("actions in error", [_number(r.action_errors, ".2f") for r in reports]))
    rows.append(("episodes", [str(r.episodes) for r in reports]))
    if any(r.tasks != r.episodes for r in reports):
        rows.append(("tasks", [str(r.tasks) for r in reports]))
    if any(r.judged not in (0, r.episodes) for r in reports):
        rows.append(("episodes with a verdict", [str(r.judged) for r in reports]))
    rows.append(("failed episodes", [f"{r.failed} ({r.failed_share:.0%})" if r.failed else "0" for r in reports]))
    return rows


def side_by_side(
    columns: Mapping[str, EnvironmentReport], width: int, *, margin: int = 2
) -> list[dict[str, EnvironmentReport]]:
    """Columns in groups, each as many as fit beside the names of the rows; at least one.

    Args:
        columns: Reports by the name of their column.
        width: Characters of a line.
        margin: Characters between columns.
    """
    names = report_rows(list(columns.values()))
    first = max(len(name) for name, _ in names)
    groups: list[dict[str, EnvironmentReport]] = []
    used = width
    for number, (name, report) in enumerate(columns.items()):
        needed = margin + max(len(name), *(len(cells[number]) for _, cells in names))
        if used + needed > width:
            groups.append({})
            used = margin + first
        groups[-1][name] = report
        used += needed
    return groups


def failure_lines(columns: Mapping[str, EnvironmentReport]) -> list[str]:
    """The commonest failures of each report, one line each."""
    return [
        f"{name}: failed {'once' if number == 1 else f'{number} times'}: {failure}"
        for name, report in columns.items()
        if report.env_id != OVERALL or len(columns) == 1
        for failure, number in report.failures.items()
    ]


def plain_table(title: str, columns: Mapping[str, EnvironmentReport]) -> str:
    """Reports side by side as plain text, with what made episodes fail below."""
    parts = [title]
    for group in side_by_side(columns, PLAIN_WIDTH):
        rows: list[Row] = [("", list(group)), *report_rows(list(group.values()))]
        first = max(len(name) for name, _ in rows)
        widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(group))]
        parts += [
            f"{name:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for name, cells in rows
        ]
    return "\n".join([*parts, *failure_lines(columns)])


def _shown_ks(reports: Sequence[EnvironmentReport]) -> list[int]:
    """2, 4, 8, ... and the number of attempts; every k up to 4."""
    most = max((k for r in reports for k in r.pass_at_k), default=1)
    return [k for k in range(2, most + 1) if k <= 4 or k == most or k & (k - 1) == 0]


def _unless_idle(report: EnvironmentReport, value: float) -> float | None:
    """The value, or None where no episode has finished."""
    return value if report.episodes else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _with_error(value: float | None, error: float | None) -> str:
    return "-" if value is None else f"{value:.3f} ± {error or 0.0:.3f}"
