"""Scripted players of the maze."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.text_maze.maze import MOVES, Cell, neighbour

_VIEW = re.compile(r"north (\d+) east (\d+) south (\d+) west (\d+)(?: exit (\w+))?")
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def read_view(observation: str) -> tuple[list[str], str | None]:
    """The directions without a wall, and the direction of the exit where it is in sight."""
    match = _VIEW.fullmatch(observation)
    assert match is not None, f"not a view of the maze: {observation!r}"
    return [direction for direction, seen in zip(MOVES, match.groups(), strict=False) if int(seen)], match[5]


class Explorer(Player):
    """Walks depth first into cells it has not been to, back where there are none, and straight to an exit in sight.

    It counts its own moves to know where it is, relative to the start; a move into a wall never happens to it.
    """

    def __init__(self) -> None:
        self.cell: Cell = (0, 0)
        self.visited: set[Cell] = {self.cell}
        self.trail: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        opens, towards = read_view(observation)
        return self.go(towards or self.choose(opens), opens)

    def choose(self, opens: list[str]) -> str:
        """The first direction to a cell it has not been to, or the way back."""
        for direction in opens:
            if neighbour(self.cell, direction) not in self.visited:
                return direction
        return BACK[self.trail[-1]] if self.trail else opens[0]

    def go(self, direction: str, opens: list[str]) -> str:
        """Notes a move, unless a wall stops it."""
        if direction in opens:
            self.cell = neighbour(self.cell, direction)
            if self.trail and direction == BACK[self.trail[-1]]:
                self.trail.pop()
            else:
                self.trail.append(direction)
            self.visited.add(self.cell)
        return direction


class Stroller(Explorer):
    """An explorer that takes any direction in many turns, overlooks the exit, and mistypes.

    Args:
        rng: Source of its mistakes.
    """

    ANYWHERE, MISTYPED = 0.5, 0.05
    """Probability of each kind of slip in a turn."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        draw = self.rng.random()
        if draw >= self.ANYWHERE + self.MISTYPED:
            return super().act(observation, info)
        anything = tuple(MOVES)[int(self.rng.integers(len(MOVES)))]
        if draw >= self.ANYWHERE:
            return anything[: int(self.rng.integers(2, len(anything)))]
        return self.go(anything, read_view(observation)[0])
