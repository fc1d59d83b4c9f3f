"""Scripted players of the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.upkeep.environment import ACTIONS
from envgym.environments.upkeep.planning import optimal_policy, state_index

_STATE = re.compile(r"soil (\d) weeds (\d)")


class TablePlayer(Player):
    """Plays a policy given as one action for each state.

    Args:
        policy: Actions `[S]`, states numbered as in `planning`.
    """

    def __init__(self, policy: np.ndarray) -> None:
        self.policy = policy

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        match = _STATE.fullmatch(observation)
        assert match is not None, f"not a state of the field: {observation!r}"
        return ACTIONS[self.policy[state_index(int(match[1]), int(match[2]))]]


class Planner(TablePlayer):
    """Plays the policy that is optimal for the endless task."""

    def __init__(self) -> None:
        super().__init__(optimal_policy())


class Dabbler(Planner):
    """Crops out of greed, does what is right at times, and anything at others.

    Args:
        rng: Source of its mistakes.
    """

    MALFORMED, RIGHT, GREEDY = 0.03, 0.14, 0.35
    """Probability of each kind of turn; in the rest it does anything."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        draw = self.rng.random()
        anything = ACTIONS[int(self.rng.integers(len(ACTIONS)))]
        if draw < self.MALFORMED:
            return anything[: int(self.rng.integers(len(anything)))]
        if draw < self.MALFORMED + self.RIGHT:
            return super().act(observation, info)
        return "crop" if draw < self.MALFORMED + self.RIGHT + self.GREEDY else anything
