"""Two evaluations side by side: the paired difference over the tasks that both have played."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.evaluation.metrics import paired_difference, reporting, verdict
from envgym.evaluation.results import OVERALL
from envgym.evaluation.results_folder import Results, differences, read_results
from envgym.types import Trajectory

Task = tuple[str, int]
Measure = Callable[[Trajectory], float | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A in one measure, over the tasks that both have finished.

    Attributes:
        env_id: The environment; "overall" over all of them.
        measure: "success" or "return".
        pairs: Tasks in the comparison.
        mean_a: Mean of A over these tasks; the attempts at a task are averaged first.
        mean_b: Mean of B.
        difference: `mean_b - mean_a`.
        error: Standard error of the difference, from the differences of the single tasks; None for one pair.
        low: Lower end of its 95 % interval; None for one pair.
        high: Upper end.
    """

    env_id: str
    measure: str
    pairs: int
    mean_a: float
    mean_b: float
    difference: float
    error: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two evaluations differ, and what of them was compared.

    Attributes:
        agent_a: Name of the agent of A.
        agent_b: Name of the agent of B.
        rows: By environment and measure; the overall ones last.
        pairs: Tasks that both have finished, over all environments.
        only_a: Tasks with a finished attempt in A alone, by environment.
        only_b: The same for B.
        failed_a: Episodes of A that failed and are in no number.
        failed_b: The same for B.
        notes: What else a reader should know, for example that an environment was set up differently.
    """

    agent_a: str
    agent_b: str
    rows: tuple[Difference, ...]
    pairs: int
    only_a: dict[str, int]
    only_b: dict[str, int]
    failed_a: int
    failed_b: int
    notes: tuple[str, ...] = ()


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compares the results of two folders, task by task (same environment, same seed).

    Args:
        a, b: Folders that `evaluate(..., results=...)` has written.

    Raises:
        ValueError: A folder holds no results, or the two have no task in common.
    """
    first, second = read_results(a), read_results(b)
    tasks_a, tasks_b = _by_task(first), _by_task(second)
    paired = sorted(tasks_a.keys() & tasks_b.keys())
    if not paired:
        raise ValueError(
            f"'{first.path}' and '{second.path}' have no task (environment and seed) in common: "
            f"{_contents(tasks_a)}; and {_contents(tasks_b)}"
        )
    env_ids = sorted({env_id for env_id, _ in paired})
    groups = {env_id: [task for task in paired if task[0] == env_id] for env_id in env_ids}
    if len(env_ids) > 1:
        groups[OVERALL] = paired
    measures = _measures(first, second)
    rows = []
    for env_id, tasks in groups.items():
        for measure, read in measures.items():
            scores = [(_mean(tasks_a[task], read), _mean(tasks_b[task], read)) for task in tasks]
            known = [(x, y) for x, y in scores if x is not None and y is not None]
            if known:
                mean_a, mean_b = (math.fsum(values) / len(known) for values in zip(*known, strict=True))
                mean, error, half = paired_difference(*zip(*known, strict=True))
                low, high = (None, None) if half is None else (mean - half, mean + half)
                rows.append(Difference(env_id, measure, len(known), mean_a, mean_b, mean, error, low, high))
    return Comparison(
        agent_a=str(first.agent.get("name")),
        agent_b=str(second.agent.get("name")),
        rows=tuple(rows),
        pairs=len(paired),
        only_a=_count(tasks_a.keys() - tasks_b.keys()),
        only_b=_count(tasks_b.keys() - tasks_a.keys()),
        failed_a=sum(not record.finished for record in first.records.values()),
        failed_b=sum(not record.finished for record in second.records.values()),
        notes=tuple(_notes(first, second, env_ids, tasks_a, tasks_b)),
    )


def _by_task(results: Results) -> dict[Task, list[Trajectory]]:
    """The finished attempts of each task."""
    tasks: dict[Task, list[Trajectory]] = defaultdict(list)
    for key, record in results.records.items():
        if record.finished:
            tasks[key.env_id, key.seed].append(record.trajectory)
    return dict(tasks)


def _measures(a: Results, b: Results) -> dict[str, Measure]:
    """What is compared. One evaluation may be the only one in which an environment says what success is."""
    known = reporting(record.trajectory for results in (a, b) for record in results.records.values())

    def success(trajectory: Trajectory) -> float | None:
        succeeded = verdict(trajectory, known)
        return None if succeeded is None else float(succeeded)

    return {"success": success, "return": lambda trajectory: trajectory.total_reward}


def _mean(attempts: list[Trajectory], read: Measure) -> float | None:
    values = [value for value in map(read, attempts) if value is not None]
    return math.fsum(values) / len(values) if values else None


def _count(tasks: Iterable[Task]) -> dict[str, int]:
    """Number of tasks by environment."""
    return dict(sorted(Counter(env_id for env_id, _ in tasks).items()))


def _contents(tasks: Mapping[Task, Any]) -> str:
    seeds = {env_id: [seed for name, seed in tasks if name == env_id] for env_id in _count(tasks)}
    parts = [f"{env_id} with seeds {min(played)} to {max(played)}" for env_id, played in seeds.items()]
    return ", ".join(parts) or "no finished episode"


def _notes(
    a: Results, b: Results, env_ids: list[str], tasks_a: Mapping[Task, Any], tasks_b: Mapping[Task, Any]
) -> list[str]:
    notes = [
        f"set up differently in A and B: {changed}"
        for env_id in env_ids
        for changed in differences(a.environments.get(env_id), b.environments.get(env_id), env_id)
    ]
    for env_id in env_ids:
        both = [task for task in tasks_a.keys() & tasks_b.keys() if task[0] == env_id]
        counts = [sum(len(tasks[task]) for task in both) / len(both) for tasks in (tasks_a, tasks_b)]
        if counts[0] != counts[1]:
            notes.append(f"{env_id}: {counts[0]:.2g} attempts at a task in A, {counts[1]:.2g} in B, averaged")
    return notes
