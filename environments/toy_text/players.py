"""Scripted players of the ToyText environments. They read the state from the environment they play in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.toy_text.blackjack import Blackjack
from envgym.environments.toy_text.environment import ToyText


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


def optimal_policy(table: dict[int, dict[int, list[tuple[Any, ...]]]], discount: float = 0.999) -> np.ndarray:
    """The action of the highest value in every state; of equal ones the first.

    Iterates `V(s) = max_a sum_s' p (r + discount * (not terminated) * V(s'))` to a change below 1e-9.

    Args:
        table: Gymnasium's `env.P`: state -> action -> list of (probability, next state, reward, terminated).
        discount: Discount of a turn, in [0, 1); just below 1 prefers the shortest way.

    Returns:
        Actions, int64 `[S]`.
    """
    num_states, num_actions = len(table), len(table[0])
    width = max(len(outcomes) for actions in table.values() for outcomes in actions.values())
    chance, reward = np.zeros((2, num_states, num_actions, width))
    following = np.zeros((num_states, num_actions, width), dtype=np.int64)
    goes_on = np.zeros((num_states, num_actions, width))
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for index, (p, next_state, r, terminated) in enumerate(outcomes):
                cell = state, action, index
                chance[cell], reward[cell] = p, r
                following[cell], goes_on[cell] = next_state, not terminated
    values = np.zeros(num_states)
    while True:
        action_values = (chance * (reward + discount * goes_on * values[following])).sum(axis=2)
        new = action_values.max(axis=1)
        if np.abs(new - values).max() < 1e-9:
            return action_values.round(7).argmax(axis=1)
        values = new
