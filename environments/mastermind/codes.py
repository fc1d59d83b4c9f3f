"""The codes of the game, and how a guess is answered."""

from __future__ import annotations

from functools import cache

import numpy as np

MAX_CODES = 100_000
"""Most codes a game may have, so that counting the consistent ones stays quick."""


@cache
def all_codes(length: int, colours: int) -> np.ndarray:
    """Every code in lexicographic order: uint8 `[colours ** length, length]`, colours numbered from 1; read-only."""
    codes = np.indices((colours,) * length, dtype=np.uint8).reshape(length, -1).T + np.uint8(1)
    codes = np.ascontiguousarray(codes)
    codes.setflags(write=False)
    return codes


def pegs(codes: np.ndarray, guess: np.ndarray, colours: int) -> tuple[np.ndarray, np.ndarray]:
    """Black and white pegs of a guess, for each code as the secret.

    Black is the number of places that agree; black + white is, summed over the colours, the smaller of how often the
    colour appears in the code and in the guess. For the secret 1122 the guess 1213 has one black and two whites.

    Args:
        codes: Codes, uint8 `[N, length]`.
        guess: The guess, uint8 `[length]`.
        colours: Number of colours.

    Returns:
        Blacks and whites, int `[N]` each.
    """
    black = (codes == guess).sum(axis=1)
    shared = np.zeros(len(codes), dtype=np.int64)
    for colour in range(1, colours + 1):
        if copies := int((guess == colour).sum()):
            shared += np.minimum((codes == colour).sum(axis=1), copies)
    return black, shared - black
