"""Find a code of colours from the black and white pegs that answer each guess."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from envgym import Step, TextEnv
from envgym.environments.mastermind.codes import MAX_CODES, all_codes, pegs
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    from envgym.agent import Player

NUM_EXAMPLES = 64


class Mastermind(TextEnv):
    """A secret code of digits, one for each colour; a guess is answered with black and white pegs.

    Black counts the digits in their place, white the further digits that are elsewhere in the code. The number of
    guesses is part of the task: after the last wrong one the environment itself ends the episode, without success.
    An episode with the secret 4254::

        code 4 of 1-6, 8 guesses      1122
        black 0 white 1, 7 left       2344
        black 1 white 2, 6 left       3245
        black 1 white 2, 5 left       4254
        black 4 white 0

    Reward components: "information", the log of how far the guess narrowed the codes that agree with every answer,
    divided by the log of their number at the start (the sum is 1 once the code is found); "win" +1; "malformed" -0.05
    for anything but a code, which costs a guess too.

    Args:
        length: Digits of the code; 1 to 8.
        colours: Number of colours; 2 to 9. There may be at most 100,000 codes.
        guesses: Number of guesses; 1 to 50.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = "Find the code. Answer with digits only. black: digit in its place; white: digit elsewhere."

    def __init__(self, *, length: int = 4, colours: int = 6, guesses: int = 8) -> None:
        if not 1 <= length <= 8:
            raise ValueError(f"length must be between 1 and 8, got {length}")
        if not 2 <= colours <= 9:
            raise ValueError(f"colours must be between 2 and 9, got {colours}")
        if colours**length > MAX_CODES:
            raise ValueError(f"colours ** length must be at most {MAX_CODES}, got {colours}**{length}")
        if not 1 <= guesses <= 50:
            raise ValueError(f"guesses must be between 1 and 50, got {guesses}")
        self.length = length
        self.colours = colours
        self.guesses = guesses
        self._pattern = re.compile(rf"\s*([1-{colours}]{{{length}}})\s*", re.ASCII)
        codes = all_codes(length, colours)
        examples = codes[:: max(1, len(codes) // NUM_EXAMPLES)]
        self.action_space = TextSpace(["".join(map(str, code)) for code in examples])
        self._secret = codes[0]
        self._consistent = codes
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws the secret.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The size of the game, and info.
        """
        super().reset(seed=seed)
        self._consistent = all_codes(self.length, self.colours)
        self._secret = self._consistent[int(self.np_random.integers(len(self._consistent)))]
        self._left = self.guesses
        return f"code {self.length} of 1-{self.colours}, {self.guesses} guesses", {"success": False}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Answers a guess, written as digits without anything between them."""
        self._left -= 1
        match = self._pattern.fullmatch(action)
        error = None
        if match is None:
            error = f"expected {self.length} digits from 1 to {self.colours}"
            reply, components = error, {"malformed": -0.05}
        else:
            guess = np.array([int(digit) for digit in match[1]], dtype=np.uint8)
            black, white = (int(count[0]) for count in pegs(self._secret[None], guess, self.colours))
            reply, components = f"black {black} white {white}", {"information": self._information(guess, black, white)}
            if black == self.length:
                return Step.terminal(reply, {**components, "win": 1.0}, success=True)
        if self._left <= 0:
            secret = "".join(map(str, self._secret))
            return Step.terminal(f"{reply}, was {secret}", components, success=False, action_error=error)
        return Step.running(f"{reply}, {self._left} left", components, action_error=error, success=False)

    def _information(self, guess: np.ndarray, black: int, white: int) -> float:
        """Leaves the codes that agree with an answer, and returns the share of the whole information it brought."""
        blacks, whites = pegs(self._consistent, guess, self.colours)
        before = len(self._consistent)
        self._consistent = self._consistent[(blacks == black) & (whites == white)]
        return math.log(before / len(self._consistent)) / (self.length * math.log(self.colours))

    def solver(self) -> Player:
        """A player that guesses the consistent code whose answers tell most; finds every code of the default game."""
        from envgym.environments.mastermind.players import CodeBreaker

        return CodeBreaker()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that guesses any code that fits the answers it took in, and mistypes; about 70 % success."""
        from envgym.environments.mastermind.players import ClumsyBreaker

        return ClumsyBreaker(rng)
