"""One rank's share of each iteration's episodes: played in turn with training, or ahead of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from envgym.agent import Agent
from envgym.config import TrainConfig
from envgym.errors import CollectionError
from envgym.learner.metrics import all_reduce_sum
from envgym.rollout.collector import Collection, Collector, EpisodeRequest
from envgym.rollout.seeds import training_requests
from envgym.rollout.stream import EpisodeStream

MAX_RECOVERIES = 3
"""How often the episodes that are missing from an iteration are played again after servers were lost."""


class IterationEpisodes:
    """Collects the episodes of one iteration after the other.

    Args:
        config: The run's configuration.
        make_collector: Makes a collector for training episodes.
        agent: What plays.
        first: The first iteration.
        indices: Which of an iteration's episodes this rank plays.
        device: Where the backend communicates from.
        recover: Brings what plays back into service after failures, with the weights that the iteration trains; a
            collective. None where nothing can be lost but episodes.
    """

    def __init__(
        self,
        config: TrainConfig,
        make_collector: Callable[[], Collector],
        agent: Agent,
        *,
        first: int,
        indices: range,
        device: torch.device,
        recover: Callable[[int], None] | None = None,
    ) -> None:
        self._config = config
        self._agent = agent
        self.indices = indices
        self._device = device
        self._recover = recover
        max_lag = config.rollout.max_policy_lag
        self._collector = make_collector()
        self._stream: EpisodeStream | None = None
        if max_lag:
            self._stream = EpisodeStream(
                [self._collector, *(make_collector() for _ in range(max_lag))],
                agent,
                self.requests,
                iterations=range(first, config.num_iterations + 1),
                allow_missing=recover is not None,
            )

    def requests(self, iteration: int) -> list[EpisodeRequest]:
        """What this rank plays of an iteration, in the order of `indices`."""
        attempts = self._config.rollout.max_attempts
        return training_requests(self._config.seed, "train", iteration, self.indices, max_attempts=attempts)

    def advance(self, version: int) -> None:
        """Says that weights of this version sample from now on; starts what may then be played ahead."""
        if self._stream is not None:
            self._stream.advance(version)

    def collect(self, iteration: int) -> Collection:
        """All episodes of this rank's share, in the order of `requests`; a collective.

        Raises:
            CollectionError: Episodes failed and so did all their replacements.
            ValueError: The agent cannot play this environment.
        """
        if self._stream is None:
            collected = self._play(self.requests(iteration))
        else:
            collected = self._stream.take(iteration)
        if self._recover is None:
            return collected
        for attempt in range(MAX_RECOVERIES + 1):
            missing = all_reduce_sum(torch.tensor(float(len(collected.missing)), device=self._device)).item()
            if not missing:
                return collected
            if collected.unplayable is not None:
                raise collected.unplayable
            if attempt < MAX_RECOVERIES:
                self._recover(iteration)
                requests = self.requests(iteration)
                again = [requests[place] for place in collected.missing]
                collected = merged(collected, self._play(again, iteration) if again else Collection(()))
        failures = Counter(str(trajectory.failure) for trajectory in collected.failed)
        commonest = "; commonest failure here: " + failures.most_common(1)[0][0] if failures else " on other ranks"
        raise CollectionError(f"{missing:.0f} episodes of iteration {iteration} failed again and again{commonest}")

    def close(self) -> None:
        """Ends episodes that are played ahead. The collectors belong to who made them."""
        if self._stream is not None:
            self._stream.close()

    def _play(self, requests: Sequence[EpisodeRequest], iteration: int = 0) -> Collection:
        if self._stream is not None:
            return self._stream.replay(iteration, requests)
        return self._collector.collect(self._agent, requests, allow_missing=self._recover is not None)


def merged(collected: Collection, again: Collection) -> Collection:
    """A collection whose missing episodes were played again.

    Args:
        collected: With missing episodes.
        again: One request for each of them, in order.
    """
    finished, replaced = iter(collected.trajectories), iter(again.trajectories)
    trajectories, missing = [], []
    places = {index: place for place, index in enumerate(collected.missing)}
    for index in range(len(collected.trajectories) + len(collected.missing)):
        if index not in places:
            trajectories.append(next(finished))
        elif places[index] in again.missing:
            missing.append(index)
        else:
            trajectories.append(next(replaced))
    return replace(
        collected,
        trajectories=tuple(trajectories),
        failed=(*collected.failed, *again.failed),
        missing=tuple(missing),
        unplayable=again.unplayable if not trajectories else None,
    )
