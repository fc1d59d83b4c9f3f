"""Players that know the answer: those of the data set, and those worked out where it gives none."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.reasoning.environment import ReasoningGym


class Replayer(Player):
    """Gives a right answer.

    Args:
        env: The environment it plays in.
    """

    def __init__(self, env: ReasoningGym) -> None:
        self.env = env

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return f"<answer>{right_answer(self.env)}</answer>"


class ClumsyReplayer(Replayer):
    """Gives a right answer at times, and one with a character lost or doubled at others.

    Args:
        env: The environment it plays in.
        rng: Source of its mistakes.
    """

    RIGHT = 0.35
    """Probability of a right answer in an attempt."""

    def __init__(self, env: ReasoningGym, rng: np.random.Generator) -> None:
        super().__init__(env)
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        answer = right_answer(self.env)
        if self.rng.random() >= self.RIGHT:
            at = int(self.rng.integers(max(1, len(answer))))
            answer = answer[:at] + (answer[at] * 2 if self.rng.random() < 0.5 and answer else "") + answer[at + 1 :]
        return f"<answer>{answer}</answer>"


def right_answer(env: ReasoningGym) -> str:
    """An answer to the present task that the data set scores 1, as far as one is known."""
    answer = env.entry["answer"]
    if answer is not None:
        return str(answer)
    make = _MAKERS.get(env.source)
    return make(env) if make is not None else ""


def _conclusion(env: ReasoningGym) -> str:
    """The data set's own example where it scores 1, else the shortest other conclusion that does."""
    metadata = env.entry["metadata"]
    candidates = itertools.chain([metadata["example_answer"]], _formulas(metadata["variables"]))
    return next((text for text in candidates if env.score(text) >= 1), metadata["example_answer"])


def _formulas(variables: list[str]) -> Iterator[str]:
    literals = [*variables, *(f"¬{variable}" for variable in variables)]
    yield from literals
    for left, right in itertools.permutations(literals, 2):
        for operator in "∨∧→↔":
            yield f"({left} {operator} {right})"
    for first, second, third in itertools.permutations(literals, 3):
        yield f"({first} ∨ ({second} ∨ {third}))"


def _boxes(env: ReasoningGym) -> str:
    """Moves every box to a target of its colour, one move at a time: along the rows, then along the columns."""
    state: dict[str, list[str]] = env.entry["metadata"]["initial_state"]
    plan: list[dict[str, str]] = []
    targets = [
        (item.removeprefix("target_"), _place(key))
        for key, items in state.items()
        for item in items
        if item.startswith("target_")
    ]
    for key, items in state.items():
        for box in (item for item in items if item.startswith("box_")):
            row, column = _place(key)
            target = next(pair for pair in targets if pair[0] == box.removeprefix("box_"))
            targets.remove(target)
            while (row, column) != target[1]:
                agent = f"Agent[{row}, {column}]"
                if row != target[1][0]:
                    row += 1 if target[1][0] > row else -1
                else:
                    column += 1 if target[1][1] > column else -1
                plan.append({agent: f"move({box}, square[{row}, {column}])"})
            plan.append({f"Agent[{row}, {column}]": f"move({box}, target_{target[0]})"})
    return json.dumps(plan)


def _place(key: str) -> tuple[float, float]:
    row, _, column = key.partition("_")
    return float(row), float(column)


def _cars(env: ReasoningGym) -> str:
    """A shortest way out for the red car, by breadth-first search over the positions of all cars.

    Cars are named by their order, as the question shows them.
    """
    board: str = env.entry["metadata"]["board_config"]
    side = round(len(board) ** 0.5)
    cells: dict[str, list[int]] = {}
    for cell, label in enumerate(board):
        if label not in ".ox":
            cells.setdefault(label, []).append(cell)
    labels = sorted(cells)
    strides = [cells[label][1] - cells[label][0] for label in labels]
    lengths = [len(cells[label]) for label in labels]
    walls = sum(1 << cell for cell, label in enumerate(board) if label == "x")
    shapes = [sum(1 << i * stride for i in range(n)) for stride, n in zip(strides, lengths, strict=True)]
    start = tuple(cells[label][0] for label in labels)
    came: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {start: (start, "")}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here[0] % side == side - lengths[0]:
            return _way(came, here)
        taken = walls
        for position, shape in zip(here, shapes, strict=True):
            taken |= shape << position
        for car, (position, stride, length) in enumerate(zip(here, strides, lengths, strict=True)):
            line = position % side if stride == 1 else position // side
            for sign, room in ((1, side - length - line), (-1, line)):
                front = position + (length - 1) * stride if sign > 0 else position
                for steps in range(1, room + 1):
                    if taken >> (front + sign * steps * stride) & 1:
                        break
                    there = (*here[:car], position + sign * steps * stride, *here[car + 1 :])
                    if there not in came:
                        came[there] = here, f"{chr(ord('A') + car)}{sign * steps:+d}"
                        queue.append(there)
    return ""


def _way(came: Mapping[tuple[int, ...], tuple[tuple[int, ...], str]], end: tuple[int, ...]) -> str:
    moves: list[str] = []
    while came[end][1]:
        end, move = came[end][0], came[end][1]
        moves.append(move)
    return " ".join(reversed(moves))


_MAKERS: dict[str, Callable[[ReasoningGym], str]] = {
    "boxnet": _boxes,
    "graph_color": lambda env: json.dumps(env.entry["metadata"]["possible_answer"]),
    "propositional_logic": _conclusion,
    "rubiks_cube": lambda env: env.entry["metadata"]["example_correct_answer"],
    "rush_hour": _cars,
}
