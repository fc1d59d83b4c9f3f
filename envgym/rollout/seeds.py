"""Which seeds a run uses: one random stream for each episode, disjoint from the seeds of evaluations."""

from __future__ import annotations

import numpy as np

from envgym.rollout.collector import EpisodeRequest

_PURPOSES = {"train": 0, "warm_start": 1}
_AGENT_DRAW = 3
"""Which draw is the agent's seed, whatever the number of attempts: a run plays the same episodes with more of them."""
FIRST_TRAINING_SEED = 2**32
"""Training episodes have seeds from here up; evaluations use the ones below."""


def training_requests(
    run_seed: int, purpose: str, iteration: int, indices: range, *, max_attempts: int = 3
) -> list[EpisodeRequest]:
    """The episodes of one iteration.

    A seed is a function of the run's seed, the purpose, the iteration and the episode's index alone: it depends neither
    on the number of ranks nor on what has run before.

    Args:
        run_seed: Seed of the run.
        purpose: "train" or "warm_start".
        iteration: Number of the iteration.
        indices: Which episodes, by index in the whole batch.
        max_attempts: How often an episode is tried, each time with another seed; >= 1. More of them change nothing
            about those before.
    """
    requests = []
    for index in indices:
        entropy = (run_seed, _PURPOSES[purpose], iteration, index)
        drawn = np.random.SeedSequence(entropy).generate_state(max(max_attempts, 3) + 1).tolist()
        seeds = [FIRST_TRAINING_SEED + value for value in drawn]
        agent_seed = seeds.pop(_AGENT_DRAW)
        requests.append(EpisodeRequest(seeds[0], agent_seed, tuple(seeds[1:max_attempts])))
    return requests
