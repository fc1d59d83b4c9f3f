"""The episodes of a run: who plays them, each rank's share, played in turn with training or ahead of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from envgym.agent import Agent
from envgym.agents.policy_agent import PolicyAgent
from envgym.config import TrainConfig
from envgym.engines.base import Policy
from envgym.env import TextEnv
from envgym.errors import CollectionError, PromptLengthError
from envgym.learner.distributed import is_main
from envgym.learner.metrics import all_reduce_sum
from envgym.registry import make
from envgym.rendering import Renderer, tools_for
from envgym.rollout.collector import FIRST_TRAINING_SEED, Collection, Collector, EpisodeRequest, training_requests
from envgym.rollout.stream import EpisodeStream
from envgym.training.callbacks import RunState
from envgym.training.trained import policy_agent
from envgym.types import Trajectory

PROMPTS_CHECKED = 16
"""First prompts that must all be too long before a run is refused: those of some seeds may be longer than others."""
MAX_RECOVERIES = 3
"""How often the episodes that are missing from an iteration are played again after servers were lost."""


def make_env(config: TrainConfig, max_turns: int | None) -> TextEnv:
    """An environment of the run; None is the registered turn limit."""
    return make(config.env.id, max_turns=max_turns, **config.env.kwargs)


class Players:
    """What plays on one rank, and which of the episodes.

    Args:
        config: The run's configuration.
        policy: What is trained, as it is sampled from.
        renderer: Its chat format.
        state: Says which of how many ranks this is.
        opened: Closes the collectors with the run.
    """

    def __init__(
        self, config: TrainConfig, policy: Policy, renderer: Renderer, state: RunState, opened: ExitStack
    ) -> None:
        self.config = config
        self.policy = policy
        self.renderer = renderer
        self._state = state
        self._opened = opened

    def share(self, count: int) -> range:
        """Which of so many episodes this rank plays."""
        return range(self._state.rank, count, self._state.num_ranks)

    def agent(self, *, greedy: bool = False) -> PolicyAgent:
        """The policy being trained, as an agent."""
        return policy_agent(self.policy, self.renderer, self.config.rollout, greedy=greedy)

    def collector(self, max_turns: int | None, *, overlong_penalty: float = 0.0) -> Collector:
        """A collector with environments of its own."""
        rollout = self.config.rollout
        collector = Collector(
            lambda: make_env(self.config, max_turns),
            concurrency=rollout.concurrency,
            num_threads=rollout.num_threads,
            overlong_penalty=overlong_penalty,
            step_timeout_s=rollout.step_timeout_s,
        )
        self._opened.callback(collector.close)
        return collector

    def training_collector(self) -> Collector:
        """A collector for the episodes that are trained on."""
        return self.collector(self.config.env.max_turns, overlong_penalty=self.config.rollout.overlong_penalty)

    def check_prompt(self) -> None:
        """Renders first prompts until one fits, so that a context too short for all is known before any work.

        Raises:
            PromptLengthError: None fits.
        """
        last = FIRST_TRAINING_SEED + PROMPTS_CHECKED - 1
        with closing(make_env(self.config, self.config.env.max_turns)) as env:
            base: Any = env.unwrapped
            for seed in range(FIRST_TRAINING_SEED, last + 1):
                try:
                    observation, info = env.reset(seed=seed)
                except Exception:  # an environment that fails now and then is the collector's business
                    return
                prompt = self.renderer.start(base.system_prompt, tools_for(env), observation, info.get("role", "user"))
                try:
                    return self.agent().check_fits(len(prompt))
                except PromptLengthError:
                    if seed == last:
                        raise


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
    trajectories, replayed = list(collected.trajectories), iter(again.trajectories)
    missing: list[int] = []
    for place, index in enumerate(collected.missing):
        if place in again.missing:
            missing.append(index)
        else:
            trajectories.insert(index - len(missing), next(replayed))
    return replace(
        collected,
        trajectories=tuple(trajectories),
        failed=(*collected.failed, *again.failed),
        missing=tuple(missing),
        unplayable=again.unplayable if not trajectories else None,
    )


def gather(
    indexed: Sequence[tuple[int, Trajectory]], failed: Sequence[Trajectory]
) -> tuple[list[Trajectory], list[Trajectory]]:
    """All ranks' finished episodes in the order of their indices, and the failed ones; a collective.

    Returns:
        On the main rank; empty elsewhere.
    """
    parts: list[Any] | None = [None] * dist.get_world_size() if is_main() else None
    dist.gather_object((list(indexed), list(failed)), parts, dst=0)
    if parts is None:
        return [], []
    ordered = sorted((entry for part in parts for entry in part[0]), key=lambda entry: entry[0])
    return [trajectory for _, trajectory in ordered], [trajectory for part in parts for trajectory in part[1]]
