"""Choose a key at the start that only matters at a gate many rooms later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.environments.key_door.house import COLOURS, Room, draw_rooms
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

WORDS = ("walk", "coin", "trade", "open", *(f"take {colour}" for colour in COLOURS))


class KeyDoor(TextEnv):
    """One key of four may be carried; after the rooms between, only the key of the right colour opens the gate.

    An episode with two rooms::

        far behind these rooms is a green gate. keys: gold green red blue        take green
        you have a key.                                                          walk
        room 1 of 2, a cellar with a red lamp. a coin.                           coin
        room 1 of 2, a cellar with a red lamp.                                   walk
        room 2 of 2, a study with a gold vase. a trader gives a red key and
        a coin for your key.                                                     walk
        the gate.                                                                open
        the gate opens.

    The colour of the gate is said once, on the first turn, and the key in the hand is never shown again. Taking a key
    pays nothing, and traders pay at once for a swap that may cost the gate: what decides the episode lies
    over a thousand bytes before its reward; more rooms only make the way longer.

    Reward components: "coin" +0.05 for each coin, found or traded; "gate" +1 for opening the gate; "idle" -0.01 for a
    word that does nothing where it is said; "malformed" -0.05 for any other text. `open` at the gate ends the episode,
    whichever key is in the hand; the limit of turns is outside the task and truncates.

    Args:
        rooms: Rooms before the gate; 0 to 200. The default limit of turns fits up to 24; more rooms want
            `max_turns=2 * rooms + 8` in `make`.

    Raises:
        ValueError: `rooms` is out of its range.
    """

    system_prompt = "Carry one key to the gate and open it. Say take COLOUR, walk, coin, trade or open."
    max_turns = 56

    def __init__(self, *, rooms: int = 12) -> None:
        if not 0 <= rooms <= 200:
            raise ValueError(f"rooms must be between 0 and 200, got {rooms}")
        self.num_rooms = rooms
        self.action_space = TextSpace(WORDS + ("walk",) * 8)
        self._rooms: tuple[Room, ...] = ()
        self._start = ""
        self._gate = ""
        self._key: str | None = None
        self._place = 0
        self._used = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws the colour of the gate and the rooms on the way to it.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The colour of the gate and the keys, and info.
        """
        super().reset(seed=seed)
        self._gate = COLOURS[int(self.np_random.integers(len(COLOURS)))]
        keys = [COLOURS[i] for i in self.np_random.permutation(len(COLOURS))]
        self._start = f"far behind these rooms is a {self._gate} gate. keys: {' '.join(keys)}"
        self._rooms = draw_rooms(self.num_rooms, self._gate, self.np_random)
        self._key = None
        self._place = 0
        self._used = False
        return self._start, {"success": False}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Does what one of the words says."""
        word = action.strip().lower() if len(action) < 32 else ""
        if word not in WORDS:
            error = "expected take COLOUR, walk, coin, trade or open"
            return Step.running(error, {"malformed": -0.05}, action_error=error, success=False)
        room = self._rooms[self._place - 1] if 1 <= self._place <= self.num_rooms else None
        if word.startswith("take ") and self._place == 0:
            self._key = word.removeprefix("take ")
            return Step.running("you have a key.", {"coin": 0.0}, success=False)
        if word == "walk" and self._place <= self.num_rooms:
            self._place, self._used = self._place + 1, False
            return Step.running(self._look(), {"coin": 0.0}, success=False)
        if word == "open" and self._place > self.num_rooms:
            opens = self._key == self._gate
            text = "the gate opens." if opens else "your key does not fit."
            return Step.terminal(text, {"gate": float(opens)}, success=opens)
        if word == "coin" and room is not None and room.coin and not self._used:
            self._used = True
            return Step.running(self._look(), {"coin": 0.05}, success=False)
        if word == "trade" and room is not None and room.offer and self._key is not None and not self._used:
            self._key, self._used = room.offer, True
            return Step.running(self._look(), {"coin": 0.05}, success=False)
        return Step.running(self._look(), {"idle": -0.01}, success=False)

    def _look(self) -> str:
        if self._place == 0:
            return "the keys are here." if self._key is None else "you have a key."
        if self._place > self.num_rooms:
            return "the gate."
        return self._rooms[self._place - 1].describe(used=self._used)

    def solver(self) -> Player:
        """A player that takes the right key, picks up coins, and trades only for a key of the gate's colour."""
        from envgym.environments.key_door.players import KeyBearer

        return KeyBearer()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that takes any key half of the time, trades when it should not, and mistypes; about 50 % success."""
        from envgym.environments.key_door.players import ClumsyBearer

        return ClumsyBearer(rng)
