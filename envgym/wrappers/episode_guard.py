"""The guard of the contract."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import gymnasium

from envgym.env import Step
from envgym.errors import EpisodeOrderError, RewardError
from envgym.wrappers.wrapper import TextWrapper, as_step

REWARD_TOLERANCE = 1e-6
"""Largest difference between a reward and the sum of its components."""


class EpisodeGuard(TextWrapper):
    """Raises where an environment or its caller breaks the contract, and changes nothing else.

    Args:
        env: The environment.
        tags: Labels of the registration; kept here so that the `EnvSpec` carries them.
    """

    def __init__(self, env: gymnasium.Env[str, str], tags: Iterable[str] = ()) -> None:
        self.tags = tuple(tags)
        super().__init__(env, tags=list(self.tags))
        self._running = False
        self._ended = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        self._running, self._ended = True, False
        return result

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Steps the environment.

        Raises:
            EpisodeOrderError: There is no running episode.
            RewardError: The reward is not finite, or its components do not sum to it.
        """
        if not self._running:
            when = "after the episode had ended" if self._ended else "before reset"
            raise EpisodeOrderError(f"{self._name}: step was called {when}; call reset first")
        step = as_step(self.env.step(action))
        if step.terminated or step.truncated:
            self._running, self._ended = False, True
        if problem := reward_problem(step):
            raise RewardError(f"{self._name}: {problem}")
        return step

    @property
    def _name(self) -> str:
        spec = self.env.unwrapped.spec
        return type(self.env.unwrapped).__name__ if spec is None else spec.id


def reward_problem(step: Step) -> str | None:
    """What is wrong with the reward of a step, if anything."""
    reward = step.reward
    components = step.info.get("reward_components")
    total = reward if components is None else _sum(components.values())
    if abs(total - reward) <= REWARD_TOLERANCE:  # false wherever something is not finite
        return None
    if not math.isfinite(reward):
        return f"a reward must be a finite number, got {reward}"
    return f"the reward components {dict(components or {})} sum to {total}, but the reward is {reward}"


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest float, or both infinities
        return math.nan
