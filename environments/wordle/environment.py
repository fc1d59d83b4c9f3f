"""Find a five-letter word with six guesses, each answered letter by letter."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.environments.wordle.words import GREEN, GREY, LENGTH, allowed, answers, mark
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

_GUESS = re.compile(r"\s*([A-Za-z]{5})\s*", re.ASCII)
UNLISTED = ("cost", "free", "accept")


class Wordle(TextEnv):
    """A secret five-letter word and six guesses; a guess is answered with a mark for each letter.

    G is a letter in its place, Y one elsewhere in the word, X any other. The number of guesses is part of the task:
    after the last wrong one the environment itself ends the episode, without success. An episode::

        5 letters, 6 guesses          crane
        cX rY aY nX eX, 5 left        party
        pG aG rG tX yG, 4 left        parry
        pG aG rG rG yG

    Reward components: "green" +0.1 for each place found for the first time, "yellow" +0.04 for each copy of a letter
    found for the first time (a green counts as found too), so that they sum to 0.7 once the word is found; "win" +1;
    "malformed" -0.05 for anything but five letters; "unlisted" -0.05 for a word that is not in the list.

    Args:
        guesses: Number of guesses; 1 to 20.
        unlisted: What a guess outside the word list, or a malformed one, is: "cost" a guess, "free" (answered, but no
            guess is used; only the outer limit of turns then ends an episode of such guesses), or "accept": any five
            letters are marked, and malformed guesses cost.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = "Guess the 5-letter word. Answer with one word. G: right place, Y: elsewhere, X: not in the word."
    max_turns = 24

    def __init__(self, *, guesses: int = 6, unlisted: str = "cost") -> None:
        if not 1 <= guesses <= 20:
            raise ValueError(f"guesses must be between 1 and 20, got {guesses}")
        if unlisted not in UNLISTED:
            raise ValueError(f"unlisted must be one of {', '.join(UNLISTED)}, got {unlisted!r}")
        self.guesses = guesses
        self.unlisted = unlisted
        self.action_space = TextSpace(answers())
        self._secret = ""
        self._left = 0
        self._places: set[int] = set()
        self._letters: Counter[str] = Counter()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws the secret.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The rules in short, and info.
        """
        super().reset(seed=seed)
        self._secret = answers()[int(self.np_random.integers(len(answers())))]
        self._left = self.guesses
        self._places = set()
        self._letters = Counter()
        return f"{LENGTH} letters, {self.guesses} guesses", {"success": False}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Marks a guess, written as one word in any case."""
        match = _GUESS.fullmatch(action)
        if match is None:
            return self._refuse("malformed", f"expected one word of {LENGTH} letters")
        guess = match[1].lower()
        if self.unlisted != "accept" and guess not in allowed():
            return self._refuse("unlisted", f"{guess} is not in the word list")
        self._left -= 1
        marks = mark(self._secret, guess)
        components = self._found(guess, marks)
        text = " ".join(letter + state for letter, state in zip(guess, marks, strict=True))
        if guess == self._secret:
            return Step.terminal(text, {**components, "win": 1.0}, success=True)
        if self._left <= 0:
            return Step.terminal(f"{text}, was {self._secret}", components, success=False)
        return Step.running(f"{text}, {self._left} left", components, success=False)

    def _refuse(self, component: str, error: str) -> Step:
        components = {component: -0.05}
        if self.unlisted != "free":
            self._left -= 1
        if self._left <= 0:
            return Step.terminal(f"{error}, was {self._secret}", components, success=False, action_error=error)
        return Step.running(f"{error}, {self._left} left", components, action_error=error, success=False)

    def _found(self, guess: str, marks: str) -> dict[str, float]:
        """Takes in what the marks show, and returns the reward of what was not known before."""
        places = {place for place, state in enumerate(marks) if state == GREEN} - self._places
        letters = Counter(letter for letter, state in zip(guess, marks, strict=True) if state != GREY) - self._letters
        self._places |= places
        self._letters += letters
        return {"green": 0.1 * len(places), "yellow": 0.04 * letters.total()}

    def solver(self) -> Player:
        """A player that guesses the word whose marks tell most; solves every word of the list in six guesses."""
        from envgym.environments.wordle.players import Guesser

        return Guesser()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that guesses any word that fits, forgets marks and misspells; about 60 % success."""
        from envgym.environments.wordle.players import ClumsyGuesser

        return ClumsyGuesser(rng)
