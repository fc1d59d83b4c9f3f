"""Estimators over repeated attempts and clustered scores. Pure functions without torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence


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


def _check(n: int, c: int, k: int) -> None:
    if n < 1 or not 0 <= c <= n:
        raise ValueError(f"need n >= 1 attempts and 0 <= c <= n successes, got n={n}, c={c}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} attempts made, got {k}")
