"""Scripted players of the pointer chase."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from envgym.agent import Player
from envgym.environments.pointer_chase.environment import KEYS, replace_character
from envgym.tools import format_call

_START = re.compile(r"start (\w\d)")
_LEAD = re.compile(r"(\w\d) -> (\w\d)")
_VALUE = re.compile(r"(\w\d) = (\w\d)")


class Chaser(Player):
    """Follows every lead, and answers the value once a record shows it.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self.key = ""
        self.value: str | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        return self.get(self.key) if self.value is None else self.answer(self.value)

    def read(self, observation: str) -> None:
        """Takes in a lead from the key in hand, or the value at its end. Other records are ignored."""
        if match := _START.fullmatch(observation):
            self.key = match[1]
        elif (match := _LEAD.fullmatch(observation)) and match[1] == self.key:
            self.key = match[2]
        elif (match := _VALUE.fullmatch(observation)) and match[1] == self.key:
            self.value = match[2]

    def get(self, key: str) -> str:
        return format_call("get", {"key": key}, self.call_format)

    def answer(self, value: str) -> str:
        return format_call("answer", {"value": value}, self.call_format)


class ClumsyChaser(Chaser):
    """A chaser that makes a mistake in some turns, each turn independently of the others.

    Args:
        call_format: Format of its calls.
        rng: Source of its mistakes.
    """

    MISTAKES: ClassVar = {"malformed": 0.08, "wrong key": 0.13, "repeat": 0.07, "wrong answer": 0.12}
    """Probability of each kind of mistake in a turn."""
    WRONG_AT_THE_END = 0.3
    """Probability of a wrong answer in a turn in which the value is known."""

    def __init__(self, call_format: str, rng: np.random.Generator) -> None:
        super().__init__(call_format)
        self.rng = rng
        self.asked: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        action = super().act(observation, info)
        draw = self.rng.random()
        for mistake, probability in self.MISTAKES.items():
            if mistake == "wrong answer" and self.value is not None:
                probability = self.WRONG_AT_THE_END
            if draw < probability:
                return self._blunder(mistake, action)
            draw -= probability
        return self._note(action)

    def _blunder(self, mistake: str, action: str) -> str:
        if mistake == "malformed":
            cut = int(self.rng.integers(1, len(action)))
            return action[:cut]
        if mistake == "wrong key":
            return self.get(replace_character(self.key, self.rng))
        if mistake == "repeat" and self.asked:
            return self.get(self.asked[int(self.rng.integers(len(self.asked)))])
        if mistake == "wrong answer":
            return self.answer(KEYS[int(self.rng.integers(len(KEYS)))])
        return self._note(action)

    def _note(self, action: str) -> str:
        if self.value is None:
            self.asked.append(self.key)
        return action
