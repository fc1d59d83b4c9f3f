"""Value iteration on the transition table of a ToyText environment."""

from __future__ import annotations

from typing import Any

import numpy as np


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
