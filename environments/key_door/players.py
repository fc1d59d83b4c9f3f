"""Scripted players of the key and the gate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.key_door.house import COLOURS

_START = re.compile(r"far behind these rooms is a (\w+) gate\. keys: .*")
_OFFER = re.compile(r"room .* a trader gives a (\w+) key and a coin for your key\.")


class KeyBearer(Player):
    """Remembers the colour of the gate, takes that key, and lets go of it only for another of the same colour."""

    def __init__(self) -> None:
        self.gate = ""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if match := _START.fullmatch(observation):
            self.gate = match[1]
            return f"take {self.gate}"
        if observation == "the gate.":
            return "open"
        if observation.endswith("a coin."):
            return "coin"
        if match := _OFFER.fullmatch(observation):
            return "trade" if match[1] == self.gate else "walk"
        return "walk"


class ClumsyBearer(KeyBearer):
    """Takes any key at times, trades without looking, forgets coins, and mistypes.

    Args:
        rng: Source of its mistakes.
    """

    ANY_KEY, GREEDY, CARELESS, MISTYPED = 0.75, 0.4, 0.5, 0.05
    """Probability of any key, of a trade without looking, of leaving a coin or a good trade, and of a mistyped word."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        word = super().act(observation, info)
        draw = self.rng.random()
        if self.rng.random() < self.MISTYPED and not word.startswith("take"):
            return word[:-1]
        if word.startswith("take") and draw < self.ANY_KEY:
            return f"take {COLOURS[int(self.rng.integers(len(COLOURS)))]}"
        if _OFFER.fullmatch(observation) and draw < self.GREEDY:
            return "trade"
        if word in ("coin", "trade") and draw >= 1 - self.CARELESS:
            return "walk"
        return word
