"""Players that read the hidden state of a game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.text_arena.environment import TextArena
from envgym.environments.text_arena.solvers import PLANS


class Insider(Player):
    """Makes the moves of a plan, and plans again where it ends or the game said no.

    Args:
        env: The environment it plays in.
    """

    def __init__(self, env: TextArena) -> None:
        self.env = env
        self._plan: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if not self._plan or info.get("action_error"):
            self._plan = PLANS[self.env.game](self.env.native)
        return self._plan.pop(0) if self._plan else self.env.examples[0]


class Clumsy(Player):
    """Makes a move of the solver's plan in some turns, any move in others.

    Args:
        env: The environment it plays in.
        rng: Source of its mistakes.
    """

    RIGHT, RECOVERS = 0.3, 0.8
    """Probability of a move of the plan, where there is one: in an ordinary turn, and after an invalid move."""

    def __init__(self, env: TextArena, rng: np.random.Generator) -> None:
        self.env = env
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        plan = PLANS.get(self.env.game)
        anything = self.env.examples[int(self.rng.integers(len(self.env.examples)))]
        if plan is None or self.rng.random() >= (self.RECOVERS if info.get("action_error") else self.RIGHT):
            return anything
        return next(iter(plan(self.env.native)), anything)
