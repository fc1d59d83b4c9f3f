"""Find a number with six guesses and the replies "higher" and "lower"."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv, TruncationReason
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

LOW, HIGH, GUESSES = 1, 64, 6
_GUESS = re.compile(r"\s*(\d{1,9})\s*", re.ASCII)


class HigherLower(TextEnv):
    """A secret number from 1 to 64 and six guesses.

    The number of guesses is part of the task: after the sixth wrong one the environment itself ends the episode,
    without success. So does a message that runs into the token limit of a turn: were it a truncation, its bootstrapped
    value could be worth more than a guess, which costs a turn's discount, and a policy could learn to ramble. An
    episode::

        1-64         32
        higher       48
        lower        40
        correct

    Reward components: "information", log2 of how far the guess narrowed the remaining range, divided by 6 (the sum is 1
    once the number is found); "win" +1; "malformed" -0.05 for anything but a whole number, which costs a guess too.
    """

    system_prompt = "Guess the number in 6 tries."
    terminal_limits = frozenset({TruncationReason.RESPONSE_LENGTH})

    def __init__(self) -> None:
        self.action_space = TextSpace([str(number) for number in range(LOW, HIGH + 1)])
        self._secret = 0
        self._low, self._high = LOW, HIGH
        self._guesses = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws the secret.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The range, and info.
        """
        super().reset(seed=seed)
        self._secret = int(self.np_random.integers(LOW, HIGH + 1))
        self._low, self._high = LOW, HIGH
        self._guesses = 0
        return f"{LOW}-{HIGH}", {"success": False}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Answers a guess, written as a plain whole number."""
        self._guesses += 1
        match = _GUESS.fullmatch(action)
        error = None
        if match is None:
            error = f"expected a whole number from {LOW} to {HIGH}"
            reply, components = f"{LOW}-{HIGH}?", {"malformed": -0.05}
        elif (guess := int(match[1])) == self._secret:
            components = {"information": self._information(guess, guess), "win": 1.0}
            return Step.terminal("correct", components, success=True)
        elif guess < self._secret:
            reply, components = "higher", {"information": self._information(guess + 1, self._high)}
        else:
            reply, components = "lower", {"information": self._information(self._low, guess - 1)}
        if self._guesses == GUESSES:
            return Step.terminal(f"was {self._secret}", components, success=False, action_error=error)
        return Step.running(reply, components, action_error=error, success=False)

    def _information(self, low: int, high: int) -> float:
        """Narrows the remaining range to what `low..high` leaves of it, and returns the share of 6 bits it brought."""
        before = self._high - self._low + 1
        if low > self._low:
            self._low = low
        if high < self._high:
            self._high = high
        return math.log2(before / (self._high - self._low + 1)) / 6

    def solver(self) -> Player:
        """A player that halves the remaining range; finds 63 of the 64 numbers."""
        from envgym.environments.higher_lower.players import Bisector

        return Bisector()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that halves the range in some episodes and guesses carelessly in the others; 33 % success."""
        from envgym.environments.higher_lower.players import MoodyBisector

        return MoodyBisector(rng)
