"""Find the way out of a maze from what can be seen along its corridors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.environments.text_maze.maze import MOVES, Cell, Maze, draw_maze, neighbour
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

EXIT = "exit"


class TextMaze(TextEnv):
    """A maze of square cells, a start and an exit. Each turn moves one cell north, east, south or west.

    The observation says how many cells can be seen in each direction before a wall, and where the exit is if it is in
    sight; nothing says where in the maze one is. An episode::

        north 0 east 2 south 1 west 0             east
        north 1 east 1 south 0 west 1             east
        north 2 east 0 south 0 west 2 exit north  north
        ...
        exit

    The reward is shaped by a potential: with d the length of the shortest path to the exit and d0 that from the start,
    the potential is 1 - d / d0, and "progress" is its difference over a move, so that it sums to 1 at the exit whatever
    the way there. "exit" +1 on reaching it; "bump" -0.02 for walking into a wall; "malformed" -0.05 for anything but a
    direction. The first letter of a direction is enough.

    Reaching the exit terminates. The limit of turns is outside the task and truncates; it leaves time to walk
    along every passage of the default maze and back.

    Args:
        size: Cells along a side; 2 to 12. The default limit of turns fits a size of up to 6; a larger maze wants
            `max_turns=2 * size**2` in `make`.
        loops: Walls taken out so that more than one way leads to some cells; 0 to 50.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = "Find the exit. Answer north, east, south or west."
    max_turns = 72

    def __init__(self, *, size: int = 6, loops: int = 3) -> None:
        if not 2 <= size <= 12:
            raise ValueError(f"size must be between 2 and 12, got {size}")
        if not 0 <= loops <= 50:
            raise ValueError(f"loops must be between 0 and 50, got {loops}")
        self.size = size
        self.loops = loops
        self.action_space = TextSpace(tuple(MOVES))
        self._maze = Maze(size, frozenset())
        self._distances: dict[Cell, int] = {}
        self._exit: Cell = (0, 0)
        self._cell: Cell = (0, 0)
        self._scale = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a maze, an exit, and a start at least `size` moves away from it, or as far as the maze allows.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            What can be seen from the start, and info.
        """
        super().reset(seed=seed)
        self._maze = draw_maze(self.size, self.loops, self.np_random)
        self._exit = (int(self.np_random.integers(self.size)), int(self.np_random.integers(self.size)))
        self._distances = self._maze.distances(self._exit)
        least = min(self.size, max(self._distances.values()))
        starts = sorted(cell for cell, distance in self._distances.items() if distance >= least)
        self._cell = starts[int(self.np_random.integers(len(starts)))]
        self._scale = 1.0 / self._distances[self._cell]
        return self._look(), {"success": False}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Moves one cell."""
        word = action.strip().lower() if len(action) < 32 else ""
        direction = next((name for name in MOVES if word in (name, name[0])), None)
        if direction is None:
            error = f"expected {', '.join(MOVES)}"
            return Step.running(self._look(), {"malformed": -0.05}, action_error=error, success=False)
        if not self._maze.opens(self._cell, direction):
            return Step.running(self._look(), {"bump": -0.02}, success=False)
        before = self._distances[self._cell]
        self._cell = neighbour(self._cell, direction)
        components = {"progress": (before - self._distances[self._cell]) * self._scale}
        if self._cell == self._exit:
            return Step.terminal(EXIT, {**components, "exit": 1.0}, success=True)
        return Step.running(self._look(), components, success=False)

    def _look(self) -> str:
        views = {direction: self._maze.view(self._cell, direction) for direction in MOVES}
        text = " ".join(f"{direction} {len(cells)}" for direction, cells in views.items())
        towards = [direction for direction, cells in views.items() if self._exit in cells]
        return f"{text} {EXIT} {towards[0]}" if towards else text

    def solver(self) -> Player:
        """A player that searches the maze depth first by what it sees, and walks to the exit once it is in sight."""
        from envgym.environments.text_maze.players import Explorer

        return Explorer()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that searches but often steps anywhere instead, and mistypes; about 45 % success."""
        from envgym.environments.text_maze.players import Stroller

        return Stroller(rng)
