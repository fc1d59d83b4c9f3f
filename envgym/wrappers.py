"""The two wrappers every registered environment gets: the turn limit, and the guard of the contract."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from envgym.env import Step
from envgym.errors import EpisodeOrderError, RewardError
from envgym.types import TruncationReason

REWARD_TOLERANCE = 1e-6
"""Largest difference between a reward and the sum of its components."""


class MaxTurns(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Ends an episode after a number of turns. Every step is a turn, tool calls and malformed actions too.

    The action of the last turn is executed and rewarded. The episode is then truncated with the reason `max_turns`, or
    terminated when the limit belongs to the task (`terminal_limits`). An ending of the environment's own on the same
    step is passed on as it is.

    Args:
        env: The environment.
        max_turns: The limit, >= 1; None takes the environment's class attribute, where None is no limit.
        terminal_limits: Limits that belong to the task; None takes the environment's class attribute.

    Raises:
        ValueError: `max_turns` is below 1, or a limit is not a `TruncationReason`.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        max_turns: int | None = None,
        terminal_limits: Iterable[TruncationReason | str] | None = None,
    ) -> None:
        limits = None if terminal_limits is None else [TruncationReason(limit).value for limit in terminal_limits]
        RecordConstructorArgs.__init__(self, max_turns=max_turns, terminal_limits=limits)
        gymnasium.Wrapper.__init__(self, env)
        if max_turns is None:
            max_turns = getattr(env.unwrapped, "max_turns", None)
        if limits is None:
            limits = list(getattr(env.unwrapped, "terminal_limits", ()))
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, got {max_turns}")
        self.max_turns = max_turns
        self.terminal_limits = frozenset(TruncationReason(limit) for limit in limits)
        self.turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        self.turn += 1
        if self.turn != self.max_turns or step.terminated or step.truncated:
            return step
        if TruncationReason.MAX_TURNS in self.terminal_limits:
            return step._replace(terminated=True)
        return step._replace(truncated=True, info={**step.info, "truncation_reason": TruncationReason.MAX_TURNS.value})


class EpisodeGuard(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Raises where an environment or its caller breaks the contract, and changes nothing else.

    Args:
        env: The environment.
        tags: Labels of the registration; kept here so that the `EnvSpec` carries them.
    """

    def __init__(self, env: gymnasium.Env[str, str], tags: Iterable[str] = ()) -> None:
        self.tags = tuple(tags)
        RecordConstructorArgs.__init__(self, tags=list(self.tags))
        gymnasium.Wrapper.__init__(self, env)
        self._stage = "new"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        self._stage = "running"
        return result

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Steps the environment.

        Raises:
            EpisodeOrderError: There is no running episode.
            RewardError: The reward is not finite, or its components do not sum to it.
        """
        if self._stage == "new":
            raise EpisodeOrderError(f"{self._name}: step was called before reset; call reset first")
        if self._stage == "ended":
            raise EpisodeOrderError(f"{self._name}: step was called after the episode had ended; call reset first")
        step = as_step(self.env.step(action))
        if step.terminated or step.truncated:
            self._stage = "ended"
        if problem := reward_problem(step):
            raise RewardError(f"{self._name}: {problem}")
        return step

    @property
    def _name(self) -> str:
        spec = self.env.unwrapped.spec
        return type(self.env.unwrapped).__name__ if spec is None else spec.id


def as_step(result: Any) -> Step:
    """The result of any Gymnasium `step` as a `Step`."""
    return result if isinstance(result, Step) else Step(*cast(tuple[Any, ...], result))


def reward_problem(step: Step) -> str | None:
    """What is wrong with the reward of a step, if anything."""
    if not math.isfinite(step.reward):
        return f"a reward must be a finite number, got {step.reward}"
    components = step.info.get("reward_components")
    if components is None:
        return None
    total = math.fsum(components.values())
    if not abs(total - step.reward) <= REWARD_TOLERANCE:
        return f"the reward components {dict(components)} sum to {total}, but the reward is {step.reward}"
    return None
