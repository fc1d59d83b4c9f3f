"""Follow a chain of records through a table with two tools, then answer the value at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from envgym import TextEnv
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, ToolResult, format_call, tool

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

LETTERS = "bdfhjkmpqvxz"
"""Letters of keys and values: none appears in a command, so that a character-level model can tell keys from words."""
KEYS = tuple(letter + digit for letter in LETTERS for digit in "0123456789")


class PointerChase(ToolEnv):
    """`get(key)` returns the next key of a chain, the last record holds a value, `answer(value)` ends the episode.

    An episode with two gets::

        start k7          get(k7)
        k7 -> m2          get(m2)
        m2 = b4           answer(b4)
        right

    Reward components: "progress" +0.1 for a get that leads on, "repeat" and "useless" -0.02 for a get that brings
    nothing, "answer" +1 for the right value, "malformed" -0.05. A wrong answer ends the episode without success.

    Args:
        hops: Number of gets the chain needs: one number, or the lowest and the highest; between 1 and 7.
        distractors: Records off the chain, with keys that differ from a key of the chain in one character; 0 to 20.
        call_format: "function" or "hermes"; see `envgym.tools.parsing`.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = "get(key) to the value, then answer(value)."
    max_turns = 8

    def __init__(
        self, *, hops: int | Sequence[int] = (2, 4), distractors: int = 4, call_format: str = "function"
    ) -> None:
        super().__init__(call_format=call_format)
        low, high = (hops, hops) if isinstance(hops, int) else hops
        if not 1 <= low <= high <= 7:
            raise ValueError(f"hops must be a number or a range (low, high) within 1 to 7, got {hops!r}")
        if not 0 <= distractors <= 20:
            raise ValueError(f"distractors must be between 0 and 20, got {distractors}")
        self.hops = (low, high)
        self.distractors = distractors
        self.action_space = TextSpace(
            [format_call("get", {"key": key}, call_format) for key in KEYS]
            + [format_call("answer", {"value": value}, call_format) for value in KEYS]
        )
        self._chain: list[str] = []
        self._records: dict[str, str] = {}
        self._value = ""
        self._position = 0
        self._seen: set[str] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a chain, its value and the records beside it.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The key to start from, and info.
        """
        TextEnv.reset(self, seed=seed)
        length = int(self.np_random.integers(self.hops[0], self.hops[1] + 1))
        self._chain = [KEYS[i] for i in self.np_random.choice(len(KEYS), size=length, replace=False)]
        self._value = self._draw_value()
        leads = [*self._chain[1:], None]
        self._records = {key: self._record(key, lead) for key, lead in zip(self._chain, leads, strict=True)}
        for _ in range(self.distractors):
            near = self._chain[int(self.np_random.integers(length))]
            key = replace_character(near, self.np_random)
            lead = KEYS[int(self.np_random.integers(len(KEYS)))] if self.np_random.random() < 0.5 else None
            if key not in self._records:
                self._records[key] = f"{key} -> {lead}" if lead else f"{key} = {self._draw_value()}"
        self._position = 0
        self._seen = set()
        return f"start {self._chain[0]}", {"success": False}

    def step_info(self) -> dict[str, Any]:
        return {"success": False}

    @tool
    def get(self, key: str) -> ToolResult:
        """Looks up the record of a key.

        Args:
            key: A letter and a digit, for example k7.
        """
        text = self._records.get(key, f"{key[:8]} ?")
        repeated = key in self._seen
        self._seen.add(key)
        if repeated:
            return ToolResult(text, {"repeat": -0.02})
        if self._position == len(self._chain) or key != self._chain[self._position]:
            return ToolResult(text, {"useless": -0.02})
        while self._position < len(self._chain) and self._chain[self._position] in self._seen:
            self._position += 1
        return ToolResult(text, {"progress": 0.1})

    @tool
    def answer(self, value: str) -> ToolResult:
        """Gives the value at the end of the chain and ends the task.

        Args:
            value: A letter and a digit, for example b4.
        """
        right = value == self._value
        return ToolResult("right" if right else "wrong", {"answer": float(right)}, terminal=True, success=right)

    def solver(self) -> Player:
        """A player that follows every lead and answers the value it finds."""
        from envgym.environments.pointer_chase.players import Chaser

        return Chaser(self.call_format)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that knows the way but mistypes, repeats itself and answers too early; about 32 % success."""
        from envgym.environments.pointer_chase.players import ClumsyChaser

        return ClumsyChaser(self.call_format, rng)

    def _record(self, key: str, lead: str | None) -> str:
        return f"{key} = {self._value}" if lead is None else f"{key} -> {lead}"

    def _draw_value(self) -> str:
        return KEYS[int(self.np_random.integers(len(KEYS)))]


def replace_character(key: str, rng: np.random.Generator) -> str:
    """A key that differs from `key` in its letter or in its digit."""
    if rng.random() < 0.5:
        letters = LETTERS.replace(key[0], "")
        return letters[int(rng.integers(len(letters)))] + key[1]
    digits = "0123456789".replace(key[1], "")
    return key[0] + digits[int(rng.integers(len(digits)))]
