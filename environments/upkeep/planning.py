"""The field as a Markov decision process, and the policies that are best for different views of its future.

States are numbered `soil * 3 + weeds`, actions as in `ACTIONS`. A policy is an integer array `[S]` of actions.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from envgym.environments.upkeep.environment import ACTIONS, GROW, MAX_SOIL, MAX_WEEDS, SPROUT, WEAR, crop_yield

NUM_STATES = (MAX_SOIL + 1) * (MAX_WEEDS + 1)


def state_index(soil: int, weeds: int) -> int:
    """Number of a state."""
    return soil * (MAX_WEEDS + 1) + weeds


@cache
def dynamics() -> tuple[np.ndarray, np.ndarray]:
    """Transition probabilities `[A, S, S]` and rewards `[A, S]`."""
    transitions = np.zeros((len(ACTIONS), NUM_STATES, NUM_STATES))
    rewards = np.zeros((len(ACTIONS), NUM_STATES))
    for soil in range(MAX_SOIL + 1):
        for weeds in range(MAX_WEEDS + 1):
            here = state_index(soil, weeds)
            rewards[ACTIONS.index("crop"), here] = crop_yield(soil, weeds)
            transitions[ACTIONS.index("weed"), here, state_index(soil, 0)] = 1.0
            for action, change, chance in (("crop", -1, WEAR), ("rest", 1, GROW)):
                for next_soil, soil_chance in ((soil + change, chance), (soil, 1 - chance)):
                    for next_weeds, weed_chance in ((weeds + 1, SPROUT), (weeds, 1 - SPROUT)):
                        there = state_index(min(max(next_soil, 0), MAX_SOIL), min(next_weeds, MAX_WEEDS))
                        transitions[ACTIONS.index(action), here, there] += soil_chance * weed_chance
    return transitions, rewards


@cache
def optimal_policy(discount: float = 0.95) -> np.ndarray:
    """The policy that is optimal for the endless task, by value iteration.

    Args:
        discount: Discount of a turn, in [0, 1).
    """
    transitions, rewards = dynamics()
    values = np.zeros(NUM_STATES)
    while True:
        new = (rewards + discount * transitions @ values).max(axis=0)
        if np.abs(new - values).max() < 1e-10:
            return (rewards + discount * transitions @ new).argmax(axis=0)
        values = new


def truncation_blind_policy(segment: int = 8, discount: float = 1.0, iterations: int = 300) -> np.ndarray:
    """The stationary policy that is best on segments whose last state counts as worth nothing.

    This is what a learner converges to that treats a truncation as a termination: it sees states, not how many turns
    are left. Every iteration moves the policy towards the action with the largest
    `sum_t P(state at turn t) * Q_t(state, action)` with `Q_segment = 0`, where segments start in any state alike.

    Args:
        segment: Turns of a segment.
        discount: Discount of a turn.
        iterations: Steps of the averaged policy iteration.
    """
    transitions, rewards = dynamics()
    policy = np.full((NUM_STATES, len(ACTIONS)), 1 / len(ACTIONS))
    scores = np.zeros_like(policy)
    for _ in range(iterations):
        occupancy = [np.full(NUM_STATES, 1 / NUM_STATES)]
        step = np.einsum("sa,ast->st", policy, transitions)
        for _ in range(segment - 1):
            occupancy.append(occupancy[-1] @ step)
        values = np.zeros(NUM_STATES)
        scores = np.zeros_like(policy)
        for turn in reversed(range(segment)):
            q_values = (rewards + discount * transitions @ values).T
            scores += occupancy[turn][:, None] * q_values
            values = (policy * q_values).sum(axis=1)
        policy = 0.9 * policy + 0.1 * np.eye(len(ACTIONS))[scores.argmax(axis=1)]
    return scores.argmax(axis=1)


def reward_per_turn(policy: np.ndarray, num_turns: int = 48) -> float:
    """Expected mean reward of a turn over an episode that starts in any state alike.

    Args:
        policy: Actions `[S]`, or probabilities `[S, A]`.
        num_turns: Turns of the episode.
    """
    transitions, rewards = dynamics()
    chances = np.eye(len(ACTIONS))[policy] if policy.ndim == 1 else policy
    step, reward = np.einsum("sa,ast->st", chances, transitions), np.einsum("sa,as->s", chances, rewards)
    occupancy, total = np.full(NUM_STATES, 1 / NUM_STATES), 0.0
    for _ in range(num_turns):
        total += float(occupancy @ reward)
        occupancy = occupancy @ step
    return total / num_turns
