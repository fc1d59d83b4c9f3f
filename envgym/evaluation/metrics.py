"""Estimators over repeated attempts and clustered scores, and the one rule of what counts as a success. No torch.

Where the class of an environment says that there is such a thing (`TextEnv.reports_success`), every ended episode is
recorded with a verdict. Any other environment has a notion of success if one of its finished episodes says whether it
succeeded. There an episode that ended without saying so has not succeeded: many environments speak only when the task
is over, and an episode that was cut before has not done the task. Elsewhere nobody can tell. An episode that failed is
neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence

from envgym.types import Trajectory


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k attempts succeeds, estimated without bias from c successes in n attempts.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2107.03374, section 2.1.

    Args:
        n: Attempts made, >= 1.
        c: Attempts that succeeded, 0 <= c <= n.
        k: 1 <= k <= n.

    Raises:
        ValueError: A number is out of its range.
    """
    _check(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k attempts succeed, estimated without bias from c successes in n attempts.

        pass^k = C(c, k) / C(n, k)

    Source: Yao et al., "tau-bench", 2406.12045, section 4.

    Args:
        n: Attempts made, >= 1.
        c: Attempts that succeeded, 0 <= c <= n.
        k: 1 <= k <= n.

    Raises:
        ValueError: A number is out of its range.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def clustered_standard_error(scores: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Standard error of the mean score when scores of one cluster (attempts at one task) are not independent.

        SE = sqrt( sum over clusters of (sum over the cluster of (s_i - mean))^2 ) / N

    With clusters of one it is the usual standard error with N in place of N - 1. Source: Miller, "Adding Error Bars to
    Evals", 2411.00640, section 2.2.

    Args:
        scores: One number for each episode; at least one.
        clusters: The cluster of each, of the same length.

    Raises:
        ValueError: There are no scores, lengths differ, or a score is not finite.
    """
    if not scores or len(scores) != len(clusters):
        raise ValueError(f"scores and clusters need the same length, at least 1; got {len(scores)} and {len(clusters)}")
    if not all(math.isfinite(score) for score in scores):
        raise ValueError("scores must be finite; leave failed episodes out")
    mean = math.fsum(scores) / len(scores)
    sums: dict[Hashable, float] = {}
    for score, cluster in zip(scores, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + (score - mean)
    return math.sqrt(math.fsum(value * value for value in sums.values())) / len(scores)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of b_i - a_i, its standard error, and the half width of its 95 % interval.

        SE = sqrt( sum of (d_i - mean)^2 / (N - 1) / N ),   half width = t(0.975, N - 1) SE

    Pairing takes out how hard a task is, which both share. Source: Miller, "Adding Error Bars to Evals", 2411.00640,
    section 4.2, with Student's t in place of 1.96 for few pairs.

    Args:
        a, b: Scores of the same tasks in the same order; at least one.

    Returns:
        Mean, standard error, half width; the last two are None for a single pair, which says nothing about them.

    Raises:
        ValueError: There are no scores, lengths differ, or a score is not finite.
    """
    if not a or len(a) != len(b):
        raise ValueError(f"a and b need the same length, at least 1; got {len(a)} and {len(b)}")
    differences = [y - x for x, y in zip(a, b, strict=True)]
    if not all(math.isfinite(difference) for difference in differences):
        raise ValueError("scores must be finite; leave failed episodes out")
    count = len(differences)
    mean = math.fsum(differences) / count
    if count == 1:
        return mean, None, None
    error = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (count - 1) / count)
    return mean, error, student_t_975(count - 1) * error


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution: 12.706 for one degree of freedom, 1.960 for many.

    Args:
        degrees: Degrees of freedom, >= 1.

    Raises:
        ValueError: `degrees` is below 1.
    """
    if degrees < 1:
        raise ValueError(f"degrees must be at least 1, got {degrees}")
    if degrees > 5000:  # the difference is below 0.0005
        return 1.959964
    low, high = 1.9, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _two_sided(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _two_sided(t: float, degrees: int) -> float:
    """P(|T| < t), by the finite sums for whole degrees (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for i in range(3 if odd else 2, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (i - 1) / i
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _check(n: int, c: int, k: int) -> None:
    if n < 1 or not 0 <= c <= n:
        raise ValueError(f"need n >= 1 attempts and 0 <= c <= n successes, got n={n}, c={c}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} attempts made, got {k}")


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
