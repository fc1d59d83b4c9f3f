"""Players of the text adventures; they ask the game for the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.text_world.environment import TextWorld


class Walker(Player):
    """Gives the next command of a way to win.

    Args:
        env: The environment it plays in.
    """

    def __init__(self, env: TextWorld) -> None:
        self.env = env

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return next(iter(self.env.next_commands), "look")


class Stroller(Walker):
    """Gives any command of the present room in some turns, mistypes in a few, and follows the way in the others.

    Args:
        env: The environment it plays in.
        rng: Source of its mistakes.
    """

    MALFORMED, ANY = 0.04, 0.8
    """Probability of each kind of turn."""

    def __init__(self, env: TextWorld, rng: np.random.Generator) -> None:
        super().__init__(env)
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        draw = self.rng.random()
        if draw < self.MALFORMED:
            return super().act(observation, info)[1:]
        if draw < self.MALFORMED + self.ANY and self.env.commands:
            return self.env.commands[int(self.rng.integers(len(self.env.commands)))]
        return super().act(observation, info)
