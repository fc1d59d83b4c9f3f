"""Collects many episodes at once: coroutines that await the policy, environment steps in worker threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from envgym.agent import Agent
from envgym.env import TextEnv
from envgym.errors import CollectionError
from envgym.rollout.episode import play_episode
from envgym.rollout.loop import run_to_end
from envgym.types import Trajectory

MAX_ATTEMPTS = 3
"""How often an episode is tried before it is given up, each time with another seed."""

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for environment steps that are under way."""


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


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection brought.

    Attributes:
        trajectories: One finished episode for each request, in the order of the requests.
        failed: Episodes that failed and were replaced, or that failed for good.
        missing: Indices of the requests whose episodes failed for good.
    """

    trajectories: tuple[Trajectory, ...]
    failed: tuple[Trajectory, ...] = ()
    missing: tuple[int, ...] = ()


class Collector:
    """Plays requested episodes concurrently, in environments it makes once and keeps.

    Args:
        make_env: Makes one environment; called at most `concurrency` times.
        concurrency: Most episodes that run at the same time.
        num_threads: Worker threads for environment steps.
        overlong_penalty: Taken off the reward of a turn that is cut at its token limit.

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
    ) -> None:
        if concurrency < 1 or num_threads < 1:
            raise ValueError(f"concurrency and num_threads must be at least 1, got {concurrency} and {num_threads}")
        self._make_env = make_env
        self._concurrency = concurrency
        self.overlong_penalty = overlong_penalty
        self._running: set[Future[tuple[Any, Exception | None]]] = set()
        self._envs: list[TextEnv] = []
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="envgym-env")

    def collect(
        self,
        agent: Agent,
        requests: Sequence[EpisodeRequest],
        *,
        on_episode: Callable[[int, Trajectory], None] | None = None,
        allow_missing: bool = False,
    ) -> Collection:
        """Plays all requested episodes.

        A failed episode is recorded, never scored, and replaced by one with the next spare seed.

        Args:
            agent: What plays.
            requests: The episodes.
            on_episode: Called with the request's index and each episode as it finishes, failed ones included.
            allow_missing: Return without the episodes whose spare seeds ran out, instead of raising.

        Raises:
            CollectionError: An episode failed and so did all its replacements.
            ValueError: The agent cannot play this environment.
        """
        return run_to_end(_Run(self, agent, requests, on_episode, allow_missing).collect())

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Awaits a blocking function in a worker thread.

        Raises:
            Exception: What the function raised. What an event loop would take for its own (StopIteration, a
                cancellation, an exit) comes as a RuntimeError.
        """
        future = self._threads.submit(_outcome, function, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        result, error = await asyncio.wrap_future(future)
        if error is not None:
            raise error
        return result

    def borrow_envs(self, count: int) -> list[TextEnv]:
        """At least `count` environments, made where there are too few."""
        while len(self._envs) < count:
            self._envs.append(self._make_env())
        return self._envs[:count]

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def replace_env(self, env: TextEnv) -> TextEnv:
        """A new environment in the place of one that raised: what state it is in, nobody knows."""
        fresh = self._make_env()
        self._envs[self._envs.index(env)] = fresh
        with contextlib.suppress(Exception):  # it has failed already, and is recorded as failed
            env.close()
        return fresh

    def close(self) -> None:
        """Closes the environments and ends the threads."""
        for env in self._envs:
            with contextlib.suppress(Exception):  # its episodes are over; what they gave must not be lost
                env.close()
        self._envs.clear()
        # A step that hangs must not keep what follows from being done.
        hanging = wait(set(self._running), timeout=CLOSE_TIMEOUT_S).not_done
        self._threads.shutdown(wait=not hanging, cancel_futures=True)


def _outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    """What a function returned or raised, in a form that crosses from a thread to an event loop unchanged."""
    try:
        return function(*args), None
    except (StopIteration, CancelledError, asyncio.CancelledError, SystemExit, GeneratorExit) as error:
        stand_in = RuntimeError(f"{type(error).__name__}: {error}")
        stand_in.__cause__ = error
        return None, stand_in.with_traceback(error.__traceback__)
    except Exception as error:
        return None, error


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

    async def collect(self) -> Collection:
        envs = self.collector.borrow_envs(min(self.collector.concurrency, len(self.requests)))
        # Every worker announces its first episode before any starts, and its next one before its last has closed.
        slots = [_Slot(env, self.agent) for env in envs]
        try:
            async with asyncio.TaskGroup() as workers:
                for slot in slots:
                    workers.create_task(self._work(slot))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for slot in slots:
                slot.release()
        assert len(self.finished) + len(self.missing) == len(self.requests), "an episode was lost"
        order = sorted(self.failed, key=lambda entry: entry[:2])
        return Collection(
            tuple(self.finished[index] for index in sorted(self.finished)),
            tuple(trajectory for _, _, trajectory in order),
            tuple(sorted(self.missing)),
        )

    async def _work(self, slot: _Slot) -> None:
        while self.next_index < len(self.requests):
            index = self.next_index
            self.next_index += 1
            request = self.requests[index]
            for attempt, seed in enumerate((request.seed, *request.spare_seeds)):
                trajectory = await play_episode(
                    slot.env,
                    self.agent,
                    seed=seed,
                    agent_seed=request.agent_seed + (attempt << 40),
                    call=self.collector.call,
                    overlong_penalty=self.collector.overlong_penalty,
                    after_start=slot.release,
                    before_close=slot.announce,
                )
                if self.on_episode is not None:
                    self.on_episode(index, trajectory)
                if trajectory.failure is None:
                    self.finished[index] = trajectory
                    break
                self.failed.append((index, attempt, trajectory))
                slot.env = self.collector.replace_env(slot.env)
            else:
                self._give_up(index)
        slot.release()

    def _give_up(self, index: int) -> None:
        if not self.allow_missing:
            commonest, count = Counter(str(trajectory.failure) for _, _, trajectory in self.failed).most_common(1)[0]
            raise CollectionError(
                f"episode {index} failed {1 + len(self.requests[index].spare_seeds)} times in a row; "
                f"commonest failure so far ({count} times): {commonest}"
            )
        self.missing.append(index)


class _Slot:
    """A worker's environment, and its announcement to the agent that another episode is about to start."""

    def __init__(self, env: TextEnv, agent: Agent) -> None:
        self.env = env
        self._agent = agent
        self._release: Callable[[], None] | None = None
        self.announce()

    def announce(self) -> None:
        if self._release is None:
            self._release = self._agent.hold()

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None
