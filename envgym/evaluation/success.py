"""Whether an episode counts as a success: one rule for reports, comparisons, training metrics and progress bars.

Where the class of an environment says that there is such a thing (`TextEnv.reports_success`), every ended episode is
recorded with a verdict. Any other environment has a notion of success if one of its finished episodes says whether it
succeeded. There an episode that ended without saying so has not succeeded: many environments speak only when the task
is over, and an episode that was cut before has not done the task. Elsewhere nobody can tell. An episode that failed is
neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from envgym.types import Trajectory


def reporting(trajectories: Iterable[Trajectory]) -> frozenset[str]:
    """Ids of the environments in which a finished episode says whether it succeeded.

    Args:
        trajectories: Finished and failed episodes of any environments.
    """
    return frozenset(t.env_id for t in trajectories if t.failure is None and t.success is not None)


def verdict(trajectory: Trajectory, env_ids: Collection[str]) -> bool | None:
    """Whether an episode succeeded.

    Args:
        trajectory: The episode.
        env_ids: Environments with a notion of success: `reporting` of everything it is compared with.

    Returns:
        None for a failed episode, and where the environment has no notion of success.
    """
    if trajectory.failure is not None or trajectory.env_id not in env_ids:
        return None
    return bool(trajectory.success)


class SuccessRate:
    """The share of successes so far, while episodes come in one by one."""

    def __init__(self) -> None:
        self._finished: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()
        self._reporting: set[str] = set()

    def add(self, trajectory: Trajectory) -> None:
        """Counts an episode."""
        if trajectory.failure is None:
            self._reporting |= reporting([trajectory])
            self._finished[trajectory.env_id] += 1
            self._succeeded[trajectory.env_id] += bool(trajectory.success)

    @property
    def value(self) -> float | None:
        """The share among the episodes with a verdict; None where no environment has spoken yet."""
        judged = sum(self._finished[env_id] for env_id in self._reporting)
        return sum(self._succeeded[env_id] for env_id in self._reporting) / judged if judged else None
