"""Answer word problems with the tools of a calculator."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from envgym import TextEnv
from envgym.environments.calculator.expression import MAX_VALUE, ExpressionError, apply, evaluate, show
from envgym.environments.calculator.problems import draw_problem
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, ToolError, ToolResult, format_call, tool

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
PROGRESS = 0.5
"""Sum of the process reward over the steps of a problem."""


class Calculator(ToolEnv):
    """A word problem of several operations, a calculator to work them out, and `answer(value)`, which ends the episode.

    An episode::

        A shop has 431 boxes of 7 nails each and 268 loose nails. How many nails is that?
                                                                    multiply(left=431, right=7)
        3017                                                        add(left=3017, right=268)
        3285                                                        answer(3285)
        right

    Numbers are exact fractions, shown rounded to six decimals. Reward components: "progress", 0.5 divided by the number
    of steps, for each value on the way to the answer that is computed for the first time (whoever computes the answer
    in another way gets what is missing with it, so that the sum is 0.5 then); "useless" -0.01 for a calculation that
    brings none; "answer" +1 for the right value; "malformed" -0.05. A wrong answer ends the episode without success.

    Args:
        digits: Digits of the large numbers of a problem; 1 to 4. The small ones are 2 to 9.
        steps: Number of operations: one number, or the lowest and the highest; between 2 and 5.
        call_format: "function" or "hermes"; see `envgym.tools.parsing`.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = "Work the problem out with add, subtract, multiply, divide or evaluate, then answer(value)."
    max_turns = 12

    def __init__(self, *, digits: int = 3, steps: int | Sequence[int] = (2, 5), call_format: str = "function") -> None:
        super().__init__(call_format=call_format)
        if not 1 <= digits <= 4:
            raise ValueError(f"digits must be between 1 and 4, got {digits}")
        low, high = (steps, steps) if isinstance(steps, int) else steps
        if not 2 <= low <= high <= 5:
            raise ValueError(f"steps must be a number or a range (low, high) within 2 to 5, got {steps!r}")
        self.digits = digits
        self.steps = (low, high)
        self.action_space = TextSpace(self._examples())
        self._values: list[Fraction] = []
        self._missing: list[Fraction] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a problem.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The problem, and info.
        """
        TextEnv.reset(self, seed=seed)
        text, self._values = draw_problem(self.digits, self.steps, self.np_random)
        self._missing = list(self._values)
        return text, {"success": False}

    def step_info(self) -> dict[str, Any]:
        return {"success": False}

    @tool
    def add(self, left: float, right: float) -> ToolResult:
        """Adds two numbers.

        Args:
            left: The first number.
            right: The number added to it.
        """
        return self._calculate("+", left, right)

    @tool
    def subtract(self, left: float, right: float) -> ToolResult:
        """Subtracts the second number from the first.

        Args:
            left: The first number.
            right: The number taken from it.
        """
        return self._calculate("-", left, right)

    @tool
    def multiply(self, left: float, right: float) -> ToolResult:
        """Multiplies two numbers.

        Args:
            left: The first number.
            right: The number it is multiplied by.
        """
        return self._calculate("*", left, right)

    @tool
    def divide(self, left: float, right: float) -> ToolResult:
        """Divides the first number by the second.

        Args:
            left: The number divided.
            right: The number it is divided by; not 0.
        """
        return self._calculate("/", left, right)

    @tool
    def evaluate(self, expression: str) -> ToolResult:
        """Works out an expression of numbers, + - * / and parentheses.

        Args:
            expression: For example "(3 + 4) * 12"; at most 200 characters.
        """
        try:
            values = evaluate(expression)
        except ExpressionError as error:
            raise ToolError(f"evaluate: {error}") from error
        return self._show(values)

    @tool
    def answer(self, value: float) -> ToolResult:
        """Gives the answer and ends the task.

        Args:
            value: The answer, a number.
        """
        right = abs(value) <= MAX_VALUE and _exact(value) == self._values[-1]
        return ToolResult("right" if right else "wrong", {"answer": float(right)}, terminal=True, success=right)

    def solver(self) -> Player:
        """A player that knows the kinds of problems and takes one operation after the other."""
        from envgym.environments.calculator.players import Reckoner

        return Reckoner(self.call_format)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that confuses operations and numbers, mistypes and answers too early; about 50 % success."""
        from envgym.environments.calculator.players import ClumsyReckoner

        return ClumsyReckoner(self.call_format, rng)

    def _calculate(self, operator: str, left: float, right: float) -> ToolResult:
        name = OPERATIONS[operator]
        if max(abs(left), abs(right)) > MAX_VALUE:
            raise ToolError(f"{name}: the number is too large")
        try:
            return self._show([apply(operator, _exact(left), _exact(right))])
        except ExpressionError as error:
            raise ToolError(f"{name}: {error}") from error

    def _show(self, values: list[Fraction]) -> ToolResult:
        """The last value, and the reward of all of them."""
        before = len(self._missing)
        if self._missing and self._values[-1] in values:
            self._missing = []
        self._missing = [value for value in self._missing if value not in values]
        found = before - len(self._missing)
        reward = {"progress": PROGRESS * found / len(self._values)} if found else {"useless": -0.01}
        return ToolResult(show(values[-1]), reward)

    def _examples(self) -> list[str]:
        """Well-formed calls for the random agent."""
        number = 10 ** (self.digits - 1)
        pairs = [(number * i, 10 - i) for i in range(1, 9)]
        calls = [(name, {"left": a, "right": b}) for name in OPERATIONS.values() for a, b in pairs]
        calls += [("evaluate", {"expression": f"{a} * {b} + {number}"}) for a, b in pairs]
        calls += [("answer", {"value": a * b}) for a, b in pairs]
        return [format_call(name, arguments, self.call_format) for name, arguments in calls]


def _exact(value: float) -> Fraction:
    return Fraction(repr(float(value)))
