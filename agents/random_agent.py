"""An agent that samples the action space: the floor every other agent is compared with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from envgym.agent import Agent, Player
from envgym.env import TextEnv

STREAM = 1
"""Keeps the agent's randomness apart from the environment's, which is often given the same seed."""


class RandomAgent(Agent):
    """Plays actions drawn from a copy of `env.action_space`: well-formed ones where the space has examples."""

    name = "random"

    def start(self, env: TextEnv, *, seed: int) -> Player:
        space = copy.deepcopy(env.action_space)
        space.seed(int(np.random.SeedSequence([seed, STREAM]).generate_state(1)[0]))
        return RandomPlayer(space)


class RandomPlayer(Player):
    """Samples a space that nobody else uses.

    Args:
        space: The seeded space.
    """

    def __init__(self, space: gymnasium.Space[str]) -> None:
        self.space = space

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return self.space.sample()
