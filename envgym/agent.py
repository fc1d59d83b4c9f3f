"""The agent that acts in an environment, and the player it starts for each episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from envgym.player import Action, Player, PromptTooLong

if TYPE_CHECKING:
    from envgym.env import TextEnv

__all__ = ["Action", "Agent", "Player", "PromptTooLong"]


class Agent(ABC):
    """Plays any number of episodes, possibly many at once; each has a `Player` of its own."""

    name: str = "agent"

    @abstractmethod
    def start(self, env: TextEnv, *, seed: int) -> Player:
        """Starts playing one episode.

        Args:
            env: The environment, already reset. May be a wrapper; `env.unwrapped` is the environment itself.
            seed: Seed of the agent's own randomness in this episode.

        Raises:
            UnplayableError: This agent cannot play that environment; the message says why. Ends the whole evaluation;
                any other exception fails this episode alone.
        """

    def expect_episode(self) -> Callable[[], None]:
        """Announces that another episode is about to start, until the returned function is called.

        A policy that samples deterministically waits for every announced episode, so that which episodes it batches
        together does not depend on how fast their environments start.
        """
        return lambda: None
