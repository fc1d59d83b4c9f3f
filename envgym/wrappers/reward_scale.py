"""Rewards times a factor."""

from __future__ import annotations

import math

import gymnasium

from envgym.env import Step
from envgym.wrappers.wrapper import TextWrapper, as_step


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
