"""Rewards on their way out: times a factor, or some of their components only."""

from __future__ import annotations

import math
from collections.abc import Iterable

import gymnasium

from envgym.env import Step
from envgym.wrappers.guard import components_of
from envgym.wrappers.wrapper import TextWrapper, as_step

OTHERS = "other_reward_components"
"""The key of `info` under which the components left out stay visible."""


class RewardScale(TextWrapper):
    """Multiplies each reward and each of its components by a factor.

    Components that a `ComponentFilter` has set aside stay as the environment gave them.

    Args:
        env: The environment.
        scale: The factor, finite.

    Raises:
        ValueError: `scale` is not finite.
    """

    def __init__(self, env: gymnasium.Env[str, str], scale: float) -> None:
        super().__init__(env, scale=scale)
        if not math.isfinite(scale):
            raise ValueError(f"scale must be a finite number, got {scale}")
        self.scale = scale

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        info = step.info
        if "reward_components" in info:
            scaled = {name: value * self.scale for name, value in info["reward_components"].items()}
            info = {**info, "reward_components": scaled}
        return step._replace(reward=step.reward * self.scale, info=info)


class ComponentFilter(TextWrapper):
    """Keeps some of the reward components: the reward is their sum.

    The others stay visible under `info["other_reward_components"]`. A reward without components counts as one component
    named "reward", as everywhere in this library.

    Args:
        env: The environment.
        keep: Names of the components to keep, at least one. A name that never occurs brings nothing.

    Raises:
        ValueError: `keep` is empty or a single string.
    """

    def __init__(self, env: gymnasium.Env[str, str], keep: Iterable[str]) -> None:
        names = [] if isinstance(keep, str) else list(keep)
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"keep must be a list with the name of at least one component, got {keep!r}")
        super().__init__(env, keep=names)
        self.keep = frozenset(names)

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        components = components_of(step)
        kept = {name: value for name, value in components.items() if name in self.keep}
        others = {name: value for name, value in components.items() if name not in self.keep}
        info = {**step.info, "reward_components": kept, OTHERS: {**step.info.get(OTHERS, {}), **others}}
        return step._replace(reward=math.fsum(kept.values()), info=info)
