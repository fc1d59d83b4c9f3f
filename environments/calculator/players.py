"""Scripted players of the calculator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.calculator.environment import OPERATIONS
from envgym.environments.calculator.problems import TEMPLATES
from envgym.tools import format_call

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Reckoner(Player):
    """Recognises the kind of problem and works its steps out, each with the numbers and the results it has read.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self.known: dict[str, float] = {}
        self.steps: list[str] = []
        self.pending: str | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        if not self.steps:
            return self.answer(next(reversed(self.known.values()), 0))
        name, _, left, operator, right = self.steps[0].split()
        self.pending = name
        return self.calculate(operator, self.known[left], self.known[right])

    def read(self, observation: str) -> None:
        """Takes in the problem, or the result of the step under way."""
        for template in TEMPLATES:
            if (numbers := template.read(observation)) is not None:
                self.known, self.steps = dict(numbers), list(template.steps)
                return
        if self.pending is not None and _NUMBER.fullmatch(observation):
            value = float(observation)
            self.known[self.pending] = int(value) if value.is_integer() else value
            self.steps.pop(0)
        self.pending = None

    def calculate(self, operator: str, left: float, right: float) -> str:
        return format_call(OPERATIONS[operator], {"left": left, "right": right}, self.call_format)

    def answer(self, value: float) -> str:
        return format_call("answer", {"value": value}, self.call_format)


class ClumsyReckoner(Reckoner):
    """A reckoner that makes a mistake in some turns, each turn independently of the others, and does not notice.

    Args:
        call_format: Format of its calls.
        rng: Source of its mistakes.
    """

    MALFORMED, OPERATION, NUMBER, EARLY = 0.06, 0.08, 0.08, 0.05
    """Probability in a turn of a call cut short, another operation, a wrong number, and an answer before its time."""

    def __init__(self, call_format: str, rng: np.random.Generator) -> None:
        super().__init__(call_format)
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        action = super().act(observation, info)
        draw = self.rng.random()
        if draw < self.MALFORMED:
            self.pending = None
            return action[: int(self.rng.integers(1, len(action)))]
        if draw < self.MALFORMED + self.EARLY and self.steps:
            return self.answer(next(reversed(self.known.values())))
        return action

    def calculate(self, operator: str, left: float, right: float) -> str:
        draw = self.rng.random()
        if draw < self.OPERATION:
            operator = "+-*/"[int(self.rng.integers(4))]
        elif draw < self.OPERATION + self.NUMBER:
            left += int(self.rng.integers(1, 10))
        return super().calculate(operator, left, right)
