"""Agents that play an environment's own scripts: its solver and its demonstrator."""

from __future__ import annotations

from typing import cast

import numpy as np

from envgym.agent import Agent, Player
from envgym.env import TextEnv
from envgym.errors import UnplayableError

STREAM = 2
"""Keeps the demonstrator's randomness apart from the environment's, which is often given the same seed."""


class SolverAgent(Agent):
    """Starts the environment's solver: the upper bound of what can be expected."""

    name = "solver"

    def start(self, env: TextEnv, *, seed: int) -> Player:
        base = cast(TextEnv, env.unwrapped)
        player = base.solver()
        if player is None:
            raise UnplayableError(
                f"{type(base).__name__} has no solver; override its method `solver` or choose another agent"
            )
        return player


class DemonstratorAgent(Agent):
    """Starts the environment's demonstrator: the clumsy player a policy is warmed up with."""

    name = "demonstrator"

    def start(self, env: TextEnv, *, seed: int) -> Player:
        base = cast(TextEnv, env.unwrapped)
        player = base.demonstrator(np.random.default_rng([seed, STREAM]))
        if player is None:
            raise UnplayableError(
                f"{type(base).__name__} has no demonstrator; override its method `demonstrator` or choose another agent"
            )
        return player
