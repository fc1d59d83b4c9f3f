"""The house of the key and the gate: its rooms, and how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COLOURS = ("red", "blue", "green", "gold")
PLACES = ("hall", "cellar", "kitchen", "library", "attic", "chapel", "gallery", "stable", "study", "larder")
THINGS = ("lamp", "carpet", "curtain", "mirror", "vase", "clock", "chest", "portrait", "candle", "bench")


@dataclass(frozen=True)
class Room:
    """One room on the way to the gate.

    Attributes:
        text: What there is to see, without what can be taken.
        coin: Whether a coin lies there.
        offer: Colour of the key that a trader gives, with a coin, for the key one carries; None where there is none.
    """

    text: str
    coin: bool = False
    offer: str | None = None

    def describe(self, *, used: bool) -> str:
        """What the policy sees.

        Args:
            used: Whether the coin has been taken, or the trade made.
        """
        if self.coin and not used:
            return f"{self.text}. a coin."
        if self.offer and not used:
            return f"{self.text}. a trader gives a {self.offer} key and a coin for your key."
        return f"{self.text}."


def draw_rooms(number: int, gate: str, rng: np.random.Generator) -> tuple[Room, ...]:
    """Rooms with things in colours that mean nothing, about half of them with a coin, a quarter with a trader.

    Half of the traders offer a key of the gate's colour, the others any colour but that.

    Args:
        number: Number of rooms.
        gate: Colour of the gate.
        rng: Source of the rooms.
    """
    others = [colour for colour in COLOURS if colour != gate]
    rooms = []
    for i in range(1, number + 1):
        place, thing, colour = (str(words[int(rng.integers(len(words)))]) for words in (PLACES, THINGS, COLOURS))
        text = f"room {i} of {number}, a {place} with a {colour} {thing}"
        draw = rng.random()
        offer = None
        if draw >= 0.75:
            offer = gate if rng.random() < 0.5 else others[int(rng.integers(len(others)))]
        rooms.append(Room(text, coin=draw < 0.5, offer=offer))
    return tuple(rooms)
