"""A maze on a grid: its passages, how it is drawn, and how far its cells are from one another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

Cell = tuple[int, int]
"""Row and column; row 0 is the northernmost."""

MOVES: dict[str, Cell] = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


def neighbour(cell: Cell, direction: str) -> Cell:
    """The cell next to a cell; it may lie outside the maze."""
    row, column = MOVES[direction]
    return cell[0] + row, cell[1] + column


@dataclass(frozen=True)
class Maze:
    """Cells of a square grid and the passages between them; every cell can be reached from every other.

    Attributes:
        size: Cells along a side.
        passages: Pairs of adjacent cells without a wall between them, in both orders.
    """

    size: int
    passages: frozenset[tuple[Cell, Cell]]

    def opens(self, cell: Cell, direction: str) -> bool:
        """Whether there is a passage from a cell in a direction."""
        return (cell, neighbour(cell, direction)) in self.passages

    def view(self, cell: Cell, direction: str) -> list[Cell]:
        """The cells in sight in a direction, nearest first: as far as the passages go straight on."""
        seen = []
        while self.opens(cell, direction):
            cell = neighbour(cell, direction)
            seen.append(cell)
        return seen

    def distances(self, target: Cell) -> dict[Cell, int]:
        """Length of the shortest path from every cell to a target."""
        found = {target: 0}
        queue = deque([target])
        while queue:
            cell = queue.popleft()
            for direction in MOVES:
                there = neighbour(cell, direction)
                if self.opens(cell, direction) and there not in found:
                    found[there] = found[cell] + 1
                    queue.append(there)
        return found


def draw_maze(size: int, loops: int, rng: np.random.Generator) -> Maze:
    """A maze by a random depth-first walk, with some further walls taken out.

    Args:
        size: Cells along a side; >= 2.
        loops: Walls taken out of the spanning tree at random, each of which makes a loop; fewer where fewer are left.
        rng: Source of the maze.
    """
    start = (int(rng.integers(size)), int(rng.integers(size)))
    path, visited = [start], {start}
    passages: set[tuple[Cell, Cell]] = set()
    while path:
        around = [c for c in (neighbour(path[-1], d) for d in MOVES) if _inside(c, size) and c not in visited]
        if not around:
            path.pop()
            continue
        there = around[int(rng.integers(len(around)))]
        passages |= {(path[-1], there), (there, path[-1])}
        visited.add(there)
        path.append(there)
    cells = [(row, column) for row in range(size) for column in range(size)]
    walls = [(c, neighbour(c, d)) for c in cells for d in ("east", "south")]
    walls = [(c, n) for c, n in walls if _inside(n, size) and (c, n) not in passages]
    for i in rng.permutation(len(walls))[:loops]:
        cell, there = walls[i]
        passages |= {(cell, there), (there, cell)}
    return Maze(size, frozenset(passages))


def _inside(cell: Cell, size: int) -> bool:
    return 0 <= cell[0] < size and 0 <= cell[1] < size
