"""Scripted players of Mastermind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.mastermind.codes import all_codes, pegs

_START = re.compile(r"code (\d) of 1-(\d), \d+ guesses")
_ANSWER = re.compile(r"black (\d) white (\d)(?:, .*)?")


class CodeBreaker(Player):
    """Guesses the code, of those that agree with every answer, that leaves fewest of them on average."""

    MAX_COMPARED = 400
    """Most candidates that are compared as guesses, and most secrets they are compared by; evenly spaced."""

    def __init__(self) -> None:
        self.colours = 0
        self.candidates = np.zeros((0, 0), dtype=np.uint8)
        self.guess: np.ndarray | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        self.guess = self.opening() if self.guess is None else self.best()
        return "".join(map(str, self.guess))

    def read(self, observation: str) -> None:
        """Takes in the size of the game, or leaves the codes that agree with the answer to the last guess."""
        if match := _START.fullmatch(observation):
            self.colours = int(match[2])
            self.candidates = all_codes(int(match[1]), self.colours)
        elif (match := _ANSWER.fullmatch(observation)) and self.guess is not None:
            blacks, whites = pegs(self.candidates, self.guess, self.colours)
            self.candidates = self.candidates[(blacks == int(match[1])) & (whites == int(match[2]))]

    def opening(self) -> np.ndarray:
        """Half of one colour, half of the next: 1122."""
        length = self.candidates.shape[1]
        return np.array([1 + (place >= (length + 1) // 2) for place in range(length)], dtype=np.uint8)

    def best(self) -> np.ndarray:
        """The candidate with the smallest expected number of candidates after its answer."""
        sample = self.candidates[:: -(-len(self.candidates) // self.MAX_COMPARED)]
        length = sample.shape[1]
        left = []
        for guess in sample:
            blacks, whites = pegs(sample, guess, self.colours)
            left.append(int((np.bincount(blacks * (length + 1) + whites) ** 2).sum()))
        return sample[int(np.argmin(left))]


class ClumsyBreaker(CodeBreaker):
    """Guesses any code that fits what it took in, sometimes any code at all or one with a digit too few.

    Args:
        rng: Source of its mistakes.
    """

    FORGETS, ANY_CODE, MISTYPED = 0.35, 0.15, 0.08
    """Probability that it does not take in an answer, and of each kind of bad guess in a turn."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self.guess is None or self.rng.random() >= self.FORGETS:
            self.read(observation)
        draw = self.rng.random()
        pool = self.candidates
        if draw < self.ANY_CODE:
            pool = all_codes(pool.shape[1], self.colours)
        self.guess = pool[int(self.rng.integers(len(pool)))]
        text = "".join(map(str, self.guess))
        return text[1:] if self.ANY_CODE <= draw < self.ANY_CODE + self.MISTYPED else text
