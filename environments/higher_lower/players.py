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


class RoughBisector(Bisector):
    """Guesses near the middle, sometimes anywhere in the remaining range, sometimes outside it or not a number.

    Args:
        rng: Source of its mistakes.
    """

    ANYWHERE, OUTSIDE, MALFORMED = 0.15, 0.4, 0.08
    """Probability of each kind of slip in a turn."""
    SPREAD = 0.25
    """Standard deviation of the other guesses around the middle, in lengths of the remaining range."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        draw = self.rng.random()
        if draw < self.MALFORMED:
            self.guess = None
            return ("?", "lower", "higher", "")[int(self.rng.integers(4))]
        if draw < self.MALFORMED + self.OUTSIDE:
            outside = [*range(LOW, self.low), *range(self.high + 1, HIGH + 1)] or [LOW, HIGH]
            self.guess = outside[int(self.rng.integers(len(outside)))]
        elif draw < self.MALFORMED + self.OUTSIDE + self.ANYWHERE:
            self.guess = int(self.rng.integers(self.low, self.high + 1))
        else:
            width = self.high - self.low + 1
            guess = self.rng.normal((self.low + self.high) / 2, self.SPREAD * width)
            self.guess = int(np.clip(round(guess), self.low, self.high))
        return str(self.guess)
