"""Many episodes at once: coroutines that await the policy, environment steps in worker threads; and their seeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envgym.agent import Agent
from envgym.env import TextEnv, env_id_of
from envgym.errors import CollectionError, PromptLengthError, StepTimeoutError, UnplayableError
from envgym.rollout.episode import failed_episode, play_episode
from envgym.rollout.threads import WorkerThreads, run_to_end
from envgym.types import Trajectory

STEP_TIMEOUT_S = 600.0
"""How long one reset or step may take: longer than any tool call should, and short of losing a night to a hang."""

CLOSE_TIMEOUT_S = 10.0
"""How long closing an environment may take."""
GRACE_S = 2.0
"""How long closing the collector waits for calls that were interrupted."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
"""Pause before the third replacement of an episode, doubled before each further one: a failure that goes by itself (a
service that restarts) must not use up all attempts in an instant."""

_PURPOSES = {"train": 0, "warm_start": 1}
_AGENT_DRAW = 3
"""Which draw is the agent's seed, whatever the number of attempts: a run plays the same episodes with more of them."""
FIRST_TRAINING_SEED = 2**32
"""Training episodes have seeds from here up; evaluations use the ones below."""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to play.

    Attributes:
        seed: Seed of the environment's reset.
        agent_seed: Seed of the agent's own randomness.
        spare_seeds: Seeds to replace the episode with, in order, when it fails.
    """

    seed: int
    agent_seed: int
    spare_seeds: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection brought.

    Attributes:
        trajectories: One finished episode for each request, in the order of the requests.
        failed: Episodes that failed and were replaced, or that failed for good.
        missing: Indices of the requests whose episodes failed for good.
        unplayable: Where every episode failed because its first prompt did not fit the agent's context: that error.
    """

    trajectories: tuple[Trajectory, ...]
    failed: tuple[Trajectory, ...] = ()
    missing: tuple[int, ...] = ()
    unplayable: UnplayableError | None = None


class Collector:
    """Plays requested episodes concurrently, in environments it makes once and keeps.

    An environment is called by one thread at a time, though not always by the same one. One that raised is closed and
    replaced. So is one whose reset or step takes longer than `step_timeout_s`, but Python cannot interrupt a thread: it
    is left behind, and closes its environment itself once the step returns, if ever, since closing an environment
    while it is stepped could crash the process. Such threads hold no place of another and end with the interpreter.

    Args:
        make_env: Makes one environment; called once for each of at most `concurrency`, and for each replacement. Where
            one cannot be made, the episode it was for fails and the next one tries again.
        concurrency: Most episodes that run at the same time, and most threads in which agents act that block.
        num_threads: Worker threads for environment steps.
        overlong_penalty: Taken off the reward of a turn that is cut at its token limit.
        step_timeout_s: Seconds that one reset or step may take; None is no limit.
        env_id: What to record of episodes whose environment could not be made, the first of all included; empty takes
            it from the first one, which then must succeed.

    Raises:
        ValueError: A number is below 1.
    """

    def __init__(
        self,
        make_env: Callable[[], TextEnv],
        *,
        concurrency: int = 256,
        num_threads: int = 8,
        overlong_penalty: float = 0.0,
        step_timeout_s: float | None = STEP_TIMEOUT_S,
        env_id: str = "",
    ) -> None:
        if concurrency < 1 or num_threads < 1:
            raise ValueError(f"concurrency and num_threads must be at least 1, got {concurrency} and {num_threads}")
        if step_timeout_s is not None and not step_timeout_s > 0:
            raise ValueError(f"step_timeout_s must be positive, or None for no limit, got {step_timeout_s}")
        self._make_env = make_env
        self.concurrency = concurrency
        self.overlong_penalty = overlong_penalty
        self.step_timeout_s = step_timeout_s
        self.env_id = env_id
        self._envs: list[TextEnv] = []
        self._stepping = WorkerThreads(num_threads, "envgym-env")
        self._acting = WorkerThreads(concurrency, "envgym-agent")

    def collect(
        self,
        agent: Agent,
        requests: Sequence[EpisodeRequest],
        *,
        on_episode: Callable[[int, Trajectory], None] | None = None,
        allow_missing: bool = False,
    ) -> Collection:
        """Plays all requested episodes.

        A failed episode is recorded, never scored, and replaced by one with the next spare seed. So is one whose first
        prompt does not fit the agent's context; only where none fits is that an error of the whole collection.

        Args:
            agent: What plays.
            requests: The episodes.
            on_episode: Called with the request's index and each episode as it finishes, failed ones included.
            allow_missing: Return without the episodes whose spare seeds ran out, instead of raising.

        Raises:
            CollectionError: An episode failed and so did all its replacements.
            UnplayableError: The agent says that it cannot play this environment, or an episode failed like that and
                every one so far did because its first prompt is too long.
            Exception: What the constructor of the first environment raised, unless `env_id` is given.
        """
        return run_to_end(self.collecting(agent, requests, on_episode=on_episode, allow_missing=allow_missing))

    async def collecting(
        self,
        agent: Agent,
        requests: Sequence[EpisodeRequest],
        *,
        on_episode: Callable[[int, Trajectory], None] | None = None,
        allow_missing: bool = False,
    ) -> Collection:
        """`collect` as a coroutine; a cancelled one leaves its episodes unfinished and the collector as good as new."""
        return await _Run(self, agent, requests, on_episode, allow_missing).collect()

    async def call(
        self, function: Callable[..., Any], *args: Any, if_abandoned: Callable[[Any], Any] | None = None
    ) -> Any:
        """Awaits a blocking call into an environment; see `WorkerThreads.call`.

        Raises:
            StepTimeoutError: It takes longer than `step_timeout_s`.
        """
        return await self._stepping.call(function, *args, limit_s=self.step_timeout_s, if_abandoned=if_abandoned)

    async def call_agent(
        self, function: Callable[..., Any], *args: Any, if_abandoned: Callable[[Any], Any] | None = None
    ) -> Any:
        """Awaits an agent that blocks, in threads of its own: however slow it is, environments go on."""
        return await self._acting.call(function, *args, if_abandoned=if_abandoned)

    def borrow_envs(self, count: int) -> list[TextEnv | None]:
        """As many environments, made where there are too few; None for each that could not be made.

        Raises:
            Exception: What the constructor raised, where not one could be made yet and nobody said which it is.
        """
        while len(self._envs) < count:
            try:
                self._envs.append(self._make_env())
                self.env_id = self.env_id or env_id_of(self._envs[0])
            except Exception:
                if not self.env_id:
                    raise
                break
        return [*self._envs[:count], *[None] * (count - len(self._envs))]

    async def new_env(self) -> TextEnv:
        """One more environment, made in a worker thread."""
        env = await self.call(self._make_env, if_abandoned=_close)
        self._envs.append(env)
        return env

    def forget_env(self, env: TextEnv) -> None:
        """Uses an environment no more: what state it is in, nobody knows."""
        self._envs.remove(env)

    async def close_env(self, env: TextEnv) -> None:
        """Closes an environment that has failed already; an error or a hang there changes nothing."""
        with contextlib.suppress(Exception):
            await self._stepping.call(env.close, limit_s=CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Closes the environments and ends the threads. A close that hangs or raises keeps nothing from being done."""

        async def close_envs() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S), asyncio.TaskGroup() as closing:
                    for env in self._envs:
                        closing.create_task(self.close_env(env))

        if self._envs:
            run_to_end(close_envs())
        self._envs.clear()
        for threads in (self._stepping, self._acting):
            threads.close(grace_s=GRACE_S)


def _close(env: TextEnv | None) -> None:
    if env is not None:
        env.close()


@dataclass(slots=True)
class _Run:
    """One call of `Collector.collect`."""

    collector: Collector
    agent: Agent
    requests: Sequence[EpisodeRequest]
    on_episode: Callable[[int, Trajectory], None] | None
    allow_missing: bool
    next_index: int = 0
    finished: dict[int, Trajectory] = field(default_factory=dict)
    failed: list[tuple[int, int, Trajectory]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    too_long: list[PromptLengthError] = field(default_factory=list)

    async def collect(self) -> Collection:
        envs = self.collector.borrow_envs(min(self.collector.concurrency, len(self.requests)))
        # Every worker has its first episode expected before any starts, and its next one before its last has closed.
        slots = [_Slot(self.collector, env, self.agent) for env in envs]
        try:
            async with asyncio.TaskGroup() as workers:
                for slot in slots:
                    workers.create_task(self._work(slot))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for slot in slots:
                slot.stop_expecting()
                if slot.env is not None and slot.occupied:  # interrupted in mid-step: its thread closes it
                    self.collector.forget_env(slot.env)
        assert len(self.finished) + len(self.missing) == len(self.requests), "an episode was lost"
        order = sorted(self.failed, key=lambda entry: entry[:2])
        return Collection(
            tuple(self.finished[index] for index in sorted(self.finished)),
            tuple(trajectory for _, _, trajectory in order),
            tuple(sorted(self.missing)),
            self._unplayable(),
        )

    async def _work(self, slot: _Slot) -> None:
        while self.next_index < len(self.requests):
            index = self.next_index
            self.next_index += 1
            request = self.requests[index]
            breakdowns = 0
            for attempt, seed in enumerate((request.seed, *request.spare_seeds)):
                if breakdowns >= 3:
                    await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(breakdowns - 3, 16), LONGEST_PAUSE_S))
                trajectory = await self._play_once(slot, seed, request.agent_seed + (attempt << 40))
                if self.on_episode is not None:
                    self.on_episode(index, trajectory)
                if trajectory.failure is None:
                    self.finished[index] = trajectory
                    break
                self.failed.append((index, attempt, trajectory))
                if not slot.too_long:
                    breakdowns += 1
                    await slot.drop_env()
            else:
                self._give_up(index)
        slot.stop_expecting()

    async def _play_once(self, slot: _Slot, seed: int, agent_seed: int) -> Trajectory:
        """Plays one episode; whatever belongs to this episode alone is its failure."""
        slot.too_long = False
        try:
            if slot.env is None:
                slot.env = await self.collector.new_env()
        except Exception as error:
            return failed_episode(slot.env_id, seed, error)
        try:
            return await play_episode(
                slot.env,
                self.agent,
                seed=seed,
                agent_seed=agent_seed,
                call=slot.call,
                call_agent=self.collector.call_agent,
                overlong_penalty=self.collector.overlong_penalty,
                after_start=slot.stop_expecting,
                before_close=slot.expect_episode,
            )
        except PromptLengthError as error:
            slot.too_long = True
            self.too_long.append(error)
            return failed_episode(slot.env_id, seed, error)

    def _unplayable(self) -> UnplayableError | None:
        """The error of a first prompt, where every episode so far failed because of that."""
        every = len(self.too_long) == len(self.failed) and not self.finished
        return self.too_long[0] if self.too_long and every else None

    def _give_up(self, index: int) -> None:
        if not self.allow_missing:
            if (error := self._unplayable()) is not None:
                raise error
            commonest, count = Counter(str(trajectory.failure) for _, _, trajectory in self.failed).most_common(1)[0]
            raise CollectionError(
                f"episode {index} failed {1 + len(self.requests[index].spare_seeds)} times in a row; "
                f"commonest failure so far ({count} times): {commonest}"
            )
        self.missing.append(index)


class _Slot:
    """A worker's environment, and what tells the agent that another episode is about to start.

    Attributes:
        env: The environment; None until a replacement has been made.
        env_id: Its id.
        occupied: Whether a thread is still in it, perhaps for ever.
        too_long: Whether the last episode failed because its first prompt was too long; the environment is sound.
    """

    def __init__(self, collector: Collector, env: TextEnv | None, agent: Agent) -> None:
        self.collector = collector
        self.env = env
        self.env_id = collector.env_id
        self.occupied = False
        self.too_long = False
        self._agent = agent
        self._stop_expecting: Callable[[], None] | None = None
        self.expect_episode()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Awaits a call into the environment. Its thread closes the environment where it is left behind in it."""
        env = self.env
        try:
            return await self.collector.call(function, *args, if_abandoned=lambda _: _close(env))
        except (StepTimeoutError, asyncio.CancelledError):
            self.occupied = True
            raise

    async def drop_env(self) -> None:
        """Lets go of an environment that failed; the next episode makes another."""
        env, self.env = self.env, None
        occupied, self.occupied = self.occupied, False
        if env is None:
            return
        self.collector.forget_env(env)
        if not occupied:
            await self.collector.close_env(env)

    def expect_episode(self) -> None:
        if self._stop_expecting is None:
            self._stop_expecting = self._agent.expect_episode()

    def stop_expecting(self) -> None:
        if self._stop_expecting is not None:
            self._stop_expecting()
            self._stop_expecting = None
