"""Scripted players of the ToyText environments. They read the state from the environment they play in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.toy_text.blackjack import Blackjack
from envgym.environments.toy_text.environment import ToyText
from envgym.environments.toy_text.planning import optimal_policy


class Planner(Player):
    """Plays the optimal policy of the environment's transition table.

    Args:
        env: The environment it plays in.
    """

    def __init__(self, env: ToyText) -> None:
        self.env = env
        self._policy: np.ndarray | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self._policy is None:
            self._policy = optimal_policy(self.env.native.P)
        return self.env.words[int(self._policy[self.env.state])]


class BasicStrategy(Player):
    """Sticks where hitting loses more: from 17 on, against a dealer's 4 to 6 from 12 on, and with a soft 18 or 19.

    The thresholds are those of Sutton and Barto, "Reinforcement Learning: An Introduction", figure 5.2.

    Args:
        env: The environment it plays in.
    """

    def __init__(self, env: Blackjack) -> None:
        self.env = env

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        total, dealer, ace = self.env.state
        if ace:
            enough = 18 if 2 <= dealer <= 8 else 19
        elif 4 <= dealer <= 6:
            enough = 12
        else:
            enough = 13 if dealer in (2, 3) else 17
        return "stick" if total >= enough else "hit"


class Clumsy(Player):
    """Does what the solver would do in some turns, anything in others, and mistypes in a few.

    Args:
        env: The environment it plays in.
        rng: Source of its mistakes.
    """

    MALFORMED, RIGHT = 0.03, 0.35
    """Probability of each kind of turn; in the rest it does anything."""

    def __init__(self, env: ToyText, rng: np.random.Generator) -> None:
        self.solver: Any = env.solver()
        self.words = env.words
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        draw = self.rng.random()
        anything = self.words[int(self.rng.integers(len(self.words)))]
        if draw < self.MALFORMED:
            return anything[:-1]
        return self.solver.act(observation, info) if draw < self.MALFORMED + self.RIGHT else anything
