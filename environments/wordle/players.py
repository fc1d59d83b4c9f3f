"""Scripted players of Wordle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.wordle.words import LENGTH, answers, mark

_MARKED = re.compile(r"(\w[GYX](?: \w[GYX]){4})(?:, .*)?")
NUM_PATTERNS = 3**LENGTH


@cache
def pattern_table() -> np.ndarray:
    """Marks of every answer (column) for every guess (row), as numbers in base 3; uint8 `[A, A]`, read-only."""
    words = np.array([[ord(letter) for letter in word] for word in answers()], dtype=np.uint8)
    guess, secret = words[:, None, :], words[None, :, :]
    marks = np.where(guess == secret, 2, 0).astype(np.uint8)
    free = guess != secret  # copies of a letter in the secret that no green has used up
    for place in range(LENGTH):
        letter = guess[:, :, place, None]
        match = (secret == letter) & free
        first = match.argmax(axis=2)
        found = match.any(axis=2) & (marks[:, :, place] == 0)
        marks[:, :, place] += found
        rows, columns = np.nonzero(found)
        free[rows, columns, first[rows, columns]] = False
    table = (marks * 3 ** np.arange(LENGTH)).sum(axis=2).astype(np.uint8)
    table.setflags(write=False)
    return table


@cache
def first_guess() -> int:
    """Number of the answer that splits all answers best."""
    return best_guess(np.arange(len(answers())))


def best_guess(candidates: np.ndarray) -> int:
    """Number of the answer that leaves fewest candidates on average; a candidate where several do.

    Args:
        candidates: Numbers of the answers that are still possible, int `[C]`, not empty.
    """
    table = pattern_table()[:, candidates]
    numbers = table.astype(np.int64) + NUM_PATTERNS * np.arange(len(table))[:, None]
    counts = np.bincount(numbers.ravel(), minlength=NUM_PATTERNS * len(table)).reshape(len(table), NUM_PATTERNS)
    expected = (counts.astype(float) ** 2).sum(axis=1)
    expected[candidates] -= 0.5
    return int(expected.argmin())


class Guesser(Player):
    """Guesses the word that leaves fewest words on average."""

    def __init__(self) -> None:
        self.candidates = np.arange(len(answers()))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        untouched = len(self.candidates) == len(answers())
        return answers()[first_guess() if untouched else best_guess(self.candidates)]

    def read(self, observation: str) -> None:
        """Leaves the words that would have been marked like this."""
        if (match := _MARKED.fullmatch(observation)) is None:
            return
        guess, marks = match[1][::3], match[1][1::3]
        kept = [i for i in self.candidates if mark(answers()[i], guess) == marks]
        self.candidates = np.array(kept, dtype=np.int64)


class ClumsyGuesser(Guesser):
    """Guesses any word that fits the marks it remembers, sometimes any word at all or a misspelled one.

    Args:
        rng: Source of its mistakes.
    """

    FORGETS, ANY_WORD, MISSPELLED = 0.35, 0.2, 0.08
    """Probability that it does not take in a reply, and of each kind of bad guess in a turn."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self.rng.random() >= self.FORGETS:
            self.read(observation)
        draw = self.rng.random()
        pool = np.arange(len(answers())) if draw < self.ANY_WORD else self.candidates
        word = answers()[int(pool[self.rng.integers(len(pool))])]
        if self.ANY_WORD <= draw < self.ANY_WORD + self.MISSPELLED:
            place = int(self.rng.integers(LENGTH))
            return word[:place] + word[place + 1 :]
        return word
