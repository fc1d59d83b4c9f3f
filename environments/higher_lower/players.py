"""Scripted players of the higher-lower game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.higher_lower.environment import HIGH, LOW


class Bisector(Player):
    """Guesses the middle of what the replies have left."""

    def __init__(self) -> None:
        self.low, self.high = LOW, HIGH
        self.guess: int | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        self.guess = (self.low + self.high) // 2
        return str(self.guess)

    def read(self, observation: str) -> None:
        """Narrows the range by the reply to the last guess."""
        if self.guess is not None and observation == "higher":
            self.low = max(self.low, self.guess + 1)
        elif self.guess is not None and observation == "lower":
            self.high = min(self.high, self.guess - 1)


class MoodyBisector(Bisector):
    """Guesses the middle of what is left in careful episodes, and mostly anything in careless ones.

    Deep in the game, where a plan needs five right guesses in a row, only a player that is careful for a whole episode
    shows how to go on; with slips that are independent from turn to turn those states are hardly ever seen.

    Args:
        rng: Source of its mood and its mistakes.
    """

    CARELESS = 0.6
    """Probability that an episode is a careless one."""
    MALFORMED = 0.06
    """Probability that a turn is not a number."""
    ANYWHERE_CAREFUL, ANYWHERE_CARELESS = 0.12, 0.7
    """Probability that a turn is a guess from the whole range, whatever the replies said."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng
        self.anywhere = self.ANYWHERE_CARELESS if rng.random() < self.CARELESS else self.ANYWHERE_CAREFUL

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        middle = super().act(observation, info)
        draw = self.rng.random()
        if draw < self.MALFORMED:
            self.guess = None
            return ("?", "lower", "higher", "")[int(self.rng.integers(4))]
        if draw < self.MALFORMED + self.anywhere:
            self.guess = int(self.rng.integers(LOW, HIGH + 1))
            return str(self.guess)
        return middle
