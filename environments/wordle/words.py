"""The words of the game and how a guess is marked."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

LENGTH = 5
GREEN, YELLOW, GREY = "G", "Y", "X"


@cache
def answers() -> tuple[str, ...]:
    """The words a secret is drawn from, in alphabetical order: common English words in their base form."""
    return _read("answers.txt")


@cache
def allowed() -> frozenset[str]:
    """Every word that may be guessed: the answers, and inflected or rarer words beside them."""
    return frozenset(answers() + _read("guesses.txt"))


def mark(secret: str, guess: str) -> str:
    """The five marks of a guess: G for a letter in its place, Y for one elsewhere in the word, X for any other.

    A letter gets as many marks as the secret has copies of it: places that are right first, then from the left.
    `mark("abbey", "babes")` is "YYGGX": both b of "babes" count, its s does not appear.

    Args:
        secret: The word sought, five letters.
        guess: The word guessed, five letters.
    """
    left = Counter(letter for letter, guessed in zip(secret, guess, strict=True) if letter != guessed)
    marks = []
    for letter, guessed in zip(secret, guess, strict=True):
        if letter == guessed:
            marks.append(GREEN)
        elif left[guessed] > 0:
            left[guessed] -= 1
            marks.append(YELLOW)
        else:
            marks.append(GREY)
    return "".join(marks)


def _read(name: str) -> tuple[str, ...]:
    return tuple((Path(__file__).parent / name).read_text(encoding="ascii").split())
