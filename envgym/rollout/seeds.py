"""Which seeds a run uses: one random stream for each episode, disjoint from the seeds of evaluations."""

from __future__ import annotations

import numpy as np

from envgym.rollout.collector import MAX_ATTEMPTS, EpisodeRequest

_PURPOSES = {"train": 0, "warm_start": 1}
FIRST_TRAINING_SEED = 2**32
"""Training episodes have seeds from here up; evaluations use the ones below."""


def training_requests(run_seed: int, purpose: str, iteration: int, indices: range) -> list[EpisodeRequest]:
    """The episodes of one iteration.

    A seed is a function of the run's seed, the purpose, the iteration and the episode's index alone: it depends neither
    on the number of ranks nor on what has run before.

    Args:
        run_seed: Seed of the run.
        purpose: "train" or "warm_start".
        iteration: Number of the iteration.
        indices: Which episodes, by index in the whole batch.
    """
    requests = []
    for index in indices:
        entropy = (run_seed, _PURPOSES[purpose], iteration, index)
        drawn = np.random.SeedSequence(entropy).generate_state(MAX_ATTEMPTS + 1).tolist()
        seeds = [FIRST_TRAINING_SEED + value for value in drawn]
        requests.append(EpisodeRequest(seed=seeds[0], agent_seed=seeds[-1], spare_seeds=tuple(seeds[1:-1])))
    return requests
